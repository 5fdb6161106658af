"""Small files that are read one after the other are asked of the disk before the first of them is read.

A file at a time, a disk is mostly waited for. Files that are in memory are opened once more for nothing, so none is
asked for behind a block that came without the disk. Nothing is held open: what goes before its turn is not seen.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator, Sequence
from contextlib import suppress

from xaqueue.storage.regular import READ

AHEAD = 128
"""Files a block."""
ASKED_BYTES = 64 * 1024
"""Of each file, from its beginning; the kernel itself looks ahead in larger ones."""


def ahead(directory: int, found: Sequence[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """The same numbers and names again, for the caller to read each file in an open directory when it comes."""
    asks = True
    for begin in range(0, len(found), AHEAD):
        block = found[begin : begin + AHEAD]
        before = blocks_read()
        if asks:
            for _, name in block:
                _ask(directory, name)
        yield from block
        asks = blocks_read() != before


def blocks_read() -> int:
    """How much this thread has read from disks."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_inblock


def _ask(directory: int, name: str) -> None:
    with suppress(OSError):  # only a hint: whoever reads the file meets what is wrong
        fd = os.open(name, READ, dir_fd=directory)
        try:
            os.posix_fadvise(fd, 0, ASKED_BYTES, os.POSIX_FADV_WILLNEED)
        finally:
            os.close(fd)
