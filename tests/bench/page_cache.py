"""Whether files come from memory or from the disk is decided before they are timed, not by what the kernel kept.

A kernel may give back memory within a minute, and the figures of two rounds then differ by half.
"""

from __future__ import annotations

import os
from pathlib import Path

from xaqueue.core.model.layout import RANGE_BITS, range_path
from xaqueue.offline.reader import QueueReader


def fill(space: Path, queue: str, upto: int | None = None) -> None:
    """A queue's messages are in memory afterwards, all or the first, as far as there is room."""
    reader = QueueReader(space, queue)
    for _ in reader.read(0, reader.watermark() if upto is None else upto):
        pass


def drop(space: Path, queue: str) -> None:
    """No content that is on disk is in memory afterwards; names and inodes are."""
    reader = QueueReader(space, queue)
    for number, found in reader.names(0, reader.watermark()):
        directory = space / range_path(queue, number << RANGE_BITS)
        for _, name in found:
            try:
                fd = os.open(directory / name, os.O_RDONLY)
            except FileNotFoundError:
                continue  # consumed meanwhile
            try:
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)
