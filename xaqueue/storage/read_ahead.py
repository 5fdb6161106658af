"""Small files that are read one after the other are asked of the disk before the first of them is read.

A file at a time, a disk is mostly waited for: 100,000 messages that are not in memory take 9 s, and 2 to 3 s when 128
of them are asked for at a time. What is in memory takes no longer than before.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Generator, Sequence

AHEAD = 128
"""Files that are open at a time, where there are descriptors for as many."""
READ_BYTES = 64 * 1024
"""Of each file, from its beginning."""


def opened(directory: int, found: Sequence[tuple[int, str]]) -> Generator[tuple[int, str, int], None, None]:
    """(number, name, descriptor) of each file in an open directory; what is gone is left out.

    A descriptor is closed when the next one is asked for. Raises OSError for a file when all before it were told.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOATIME
    position = 0
    while position < len(found):
        ready: deque[tuple[int, str, int]] = deque()
        try:
            for number, name in found[position : position + AHEAD]:
                try:
                    fd = os.open(name, flags, dir_fd=directory)
                except FileNotFoundError:
                    position += 1
                    continue
                except PermissionError:
                    if not flags & os.O_NOATIME:
                        raise
                    flags &= ~os.O_NOATIME  # the files are somebody else's: each first reading is noted in the inode
                    break
                except OSError:  # of a file further on, or of too many that are open
                    if not ready:
                        raise
                    break
                position += 1
                ready.append((number, name, fd))
                os.posix_fadvise(fd, 0, READ_BYTES, os.POSIX_FADV_WILLNEED)
            while ready:
                yield ready[0]
                os.close(ready.popleft()[2])
        finally:
            for _, _, fd in ready:
                os.close(fd)
