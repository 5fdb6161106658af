"""An exclusive advisory lock on a file, which the kernel drops with the process, however it ends.

Two processes on machines that share a file system are kept apart only if that file system supports ``flock`` across
them.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import threading
from pathlib import Path

from xaqueue.errors import SpaceError
from xaqueue.storage.modes import PRIVATE, give, heir_of


class FileLock:
    """An exclusive lock on ``path``. Safe for several threads."""

    def __init__(self, path: str | os.PathLike[str], *, create: bool = True) -> None:
        """create: whether it is made where it is missing; a link in its place is refused then. Raises OSError."""
        self.path = Path(path)
        self._guard = threading.Lock()
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW if create else os.O_RDONLY
        self._fd = os.open(self.path, flags | os.O_CLOEXEC | os.O_NONBLOCK, PRIVATE.file)
        if create and not stat.S_ISREG(os.fstat(self._fd).st_mode):
            self.release()
            raise OSError(errno.EINVAL, "is no regular file", os.fspath(path))
        if create:
            give(self._fd, heir_of(self.path.parent))

    def acquire(self, *, shared: bool = False) -> bool:
        """Whether the lock is now held; False when somebody else has it. shared: only to see that nobody has."""
        try:
            fcntl.flock(self._fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                return False
            raise SpaceError(f"{self.path} cannot be locked ({error}): use a file system with advisory locks") from None
        return True

    def stat(self) -> os.stat_result:
        """Of the file that is locked, which may have lost its name. Raises OSError once it is released."""
        return os.fstat(self._fd)

    def release(self) -> None:
        """Drops the lock by closing the file; a second call does nothing."""
        with self._guard:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1

    def abandon(self) -> None:
        """In a forked child: closes its copy of the file, whatever threads of the parent were about to do."""
        self._guard = threading.Lock()
        self.release()
