"""One process owns a directory: an exclusive advisory lock on a file that also says who the owner is.

The kernel drops the lock with the process, however it ends. Two processes on machines that share a file system are
kept apart only if that file system supports ``flock`` across them.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from pathlib import Path

from xaqueue.errors import SpaceError


class FileLock:
    """An exclusive lock on ``path``, and the file's content, which only its holder writes. Safe for several threads."""

    def __init__(self, path: str | os.PathLike[str], *, create: bool = True) -> None:
        self.path = Path(path)
        self._guard = threading.Lock()
        flags = os.O_RDWR | os.O_CREAT if create else os.O_RDONLY
        self._fd = os.open(self.path, flags | os.O_CLOEXEC, 0o644)

    def acquire(self, *, shared: bool = False) -> bool:
        """Whether the lock is now held; False when somebody else has it. shared: only to see that nobody has."""
        try:
            fcntl.flock(self._fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                return False
            raise SpaceError(f"{self.path} cannot be locked ({error}): use a file system with advisory locks") from None
        return True

    def read(self) -> bytes:
        return os.pread(self._fd, 1 << 16, 0)

    def write(self, content: bytes, *, durable: bool = True) -> None:
        """Replaces the content; once the lock is released, nothing."""
        with self._guard:
            if self._fd < 0:
                return
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, content, 0)
            if durable:
                os.fsync(self._fd)

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
