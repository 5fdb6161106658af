"""Advisory locks for the moment of an edit, of all processes that have a file or directory open.

For what two commands at once would spoil, not for who owns a space: a file system without such locks keeps nobody
apart.
"""

from __future__ import annotations

import errno
import fcntl
from contextlib import suppress


def lock(descriptor: int) -> bool:
    """Whether it is locked now; False: another one has it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno != errno.EWOULDBLOCK
    return True


def unlock(descriptor: int) -> None:
    """Also where a child was forked meanwhile, and has it open."""
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)
