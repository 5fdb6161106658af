"""One process owns a directory, by the lock on one file; another file says who that is.

    lock    empty; the owner locks it and never replaces it
    owner   written new and renamed, so that whoever looks finds one that is whole, after a crash, too

A lock can be lost without a word: its file is replaced, a lock server forgets, a backup is restored over it. So an
owner looks at both by their paths again and again (``lost``), and whoever takes the directory over writes ``owner``
before anything else. Of two owners one sees the other then at the latest when it is about to answer.

The kernel drops a lock with its process, however that ends. Two processes on machines that share a file system are kept
apart only if that file system supports ``flock`` across them. A process that is stopped keeps its lock: whoever takes
the directory over all the same puts another file in the lock's place, which it holds already (``take_over``).
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import stat
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from operator import attrgetter
from pathlib import Path

from xaqueue.core.storage.fs import FileSystem, replace_file
from xaqueue.core.storage.modes import PRIVATE, give, heir_of
from xaqueue.errors import ResourceFailed, SpaceError

LOCK = "lock"
OWNER = "owner"
NEW_OWNER = ".owner.new"
NEW_LOCK = ".lock.new"
HEARTBEAT = "heartbeat"
OWNER_BYTES = 1 << 16
"""An owner file is never larger."""
LOCK_TRIES = 5
RELEASE_S = 10.0
"""For who closes, to wait for a thread that writes."""
_PAUSE_S = 0.02
_NFS = 0x6969
"""NFS_SUPER_MAGIC of statfs(2)."""


def try_lock(descriptor: int) -> bool:
    """False: another process has it locked. Where the file system has no such locks nobody is kept apart."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno != errno.EWOULDBLOCK
    return True


class FileLock:
    """An exclusive advisory lock on ``path``. Safe for several threads."""

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
        """Drops the lock, whatever child was forked meanwhile and has the file too; a second call does nothing."""
        with self._guard:
            if self._fd >= 0:
                with suppress(OSError):
                    fcntl.flock(self._fd, fcntl.LOCK_UN)
                self._close()

    def abandon(self) -> None:
        """In a forked child: closes its copy of the file, whatever threads of the parent were about to do."""
        self._guard = threading.Lock()
        self._close()

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


_Seen = tuple[int, int, int]
"""A file as a look by its path found it: its device, its inode, when that was changed."""
_seen: Callable[[os.stat_result], _Seen] = attrgetter("st_dev", "st_ino", "st_ctime_ns")


class OwnerFile:
    """The lock on a directory and the file that says who has it. Safe for several threads."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        """Raises OSError."""
        self.root = Path(root)
        self._lock = FileLock(self.root / LOCK)
        self._guard = threading.RLock()
        """Reentrant: a port that looks before each call is what ``owner`` is written by."""
        self._paths = os.path.join(root, LOCK), os.path.join(root, OWNER)  # noqa: PTH118
        self._look = _look_anew if _is_nfs(root) else _look
        self._contents: tuple[bytes, ...] = ()
        """What may stand in ``owner``: two, once a write has failed; whatever there is, before the first one."""
        self._seen: tuple[_Seen, _Seen] | None = None
        self._ended = self._writing = False
        """Ended: whoever has the guard releases the lock at its end, and behind what it writes."""

    def acquire(self) -> bool:
        """Whether this process has the lock now. Tries for a moment: a look at whether it is owned takes an instant.

        Raises OSError, SpaceError.
        """
        for _ in range(LOCK_TRIES):
            held, stands = self._lock.acquire(), False
            with suppress(FileNotFoundError):
                stands = self._stands()
            if held and stands:
                return True
            if stands:
                time.sleep(_PAUSE_S)
            else:
                self._lock.release()  # it was replaced meanwhile, or removed, and the other one counts
                self._lock = FileLock(self.root / LOCK)
        return False

    def hold(self) -> bool:
        """As ``acquire``, for who writes no ``owner`` and looks at no loss: without a heartbeat no standby takes over,
        whatever the last owner said of it.
        """
        held = self.acquire()
        if held:
            with suppress(FileNotFoundError, IsADirectoryError):
                (self.root / HEARTBEAT).unlink()
        return held

    @property
    def locked(self) -> tuple[int, int]:
        """Names the file that has the lock's name now. Raises OSError."""
        return self._look(self._paths[0])[:2]

    def take_over(self, instead_of: tuple[int, int]) -> bool:
        """Whether the lock is another file from now on, which this process holds: that one's owner has lost it.

        False where the lock is another one already, or somebody else is about to do the same. Raises OSError.
        """
        new = FileLock(self.root / NEW_LOCK)  # what a crash left of it is used
        try:
            held = new.acquire() and self._look(os.fspath(new.path))[:2] == (new.stat().st_dev, new.stat().st_ino)
            if held and self.locked == instead_of:
                new.path.rename(self._paths[0])
                new, self._lock = self._lock, new
                return True
        except FileNotFoundError:  # it was renamed by who held it until now
            pass
        finally:
            new.release()
        return False

    def read(self) -> bytes | None:
        """What stands in ``owner``; None where there is none. Raises OSError."""
        try:
            return read_owner_file(self.root)
        except FileNotFoundError:
            return None

    def write(self, fs: FileSystem, content: bytes, *, durable: bool = True) -> None:
        """Replaces ``owner``; once the lock is released, nothing. ``fs``: a port that was opened on the directory.

        Raises OSError; ResourceFailed where another process is the owner.
        """
        with self._guard:
            if not self._is_held():
                return
            try:
                reason = self._lost() if self._seen is None or self._looks() != self._seen else ""
                if reason:
                    raise ResourceFailed(reason)
                if self._contents:
                    self._contents = (*self._contents, content)
                self._writing = True
                replace_file(fs, OWNER, content, durable=durable)
                self._contents = (content,)
                reason = self._lost()  # a takeover in the middle of this is seen by nobody else
                if reason:
                    raise ResourceFailed(reason)
            finally:
                self._writing = False
                self._release_late()

    def lost(self) -> str:
        """Why this process is the owner no more; empty as long as it is. Before the first ``write``: by the lock alone.

        One stat of each file, and more only where one is not as it was. A failed look counts as lost.
        """
        try:
            if self._look is _look:  # as ``_looks``, written out: every step of a space comes by here
                lock, owner = self._paths
                seen = _seen(os.lstat(lock)), _seen(os.lstat(owner))
            else:
                seen = self._looks()
            if seen == self._seen:
                return ""
        except OSError:
            pass  # the closer look says which
        with self._guard:
            try:
                return self._lost()
            finally:
                self._release_late()

    def release(self) -> None:
        """Waits for a thread that writes ``owner``: it would replace what the next owner writes.

        Where that thread hangs for longer than ``RELEASE_S``, it releases the lock itself when it comes back.
        """
        self._ended = True
        if self._guard.acquire(timeout=RELEASE_S):
            try:
                self._lock.release()
            finally:
                self._guard.release()

    def _release_late(self) -> None:
        """For who has the guard, and kept it while another one wanted to release."""
        if self._ended and not self._writing:
            self._lock.release()

    def abandon(self) -> None:
        """In a forked child: closes its copy of the lock, whatever threads of the parent were about to do."""
        self._guard = threading.RLock()
        self._lock.abandon()

    def _lost(self) -> str:
        try:
            seen = self._looks() if self._contents else None
            if not self._stands():
                return f"{self._paths[0]} is another file than the one that was locked"
            if not self._lock.acquire():
                return f"another process has locked {self._paths[0]}"
            if self._contents and self.read() not in self._contents:
                return f"{self._paths[1]} names another owner"
        except OSError as error:
            return f"{error.filename or self.root} cannot be looked at ({error.strerror})"
        self._seen = seen
        return ""

    def _looks(self) -> tuple[_Seen, _Seen]:
        lock, owner = self._paths
        return self._look(lock), self._look(owner)

    def _stands(self) -> bool:
        """Whether the file that is locked is the one of that name."""
        held = self._lock.stat()
        return self._look(self._paths[0])[:2] == (held.st_dev, held.st_ino)

    def _is_held(self) -> bool:
        try:
            self._lock.stat()
        except OSError:
            return False
        return True


def is_owned(root: str | os.PathLike[str]) -> bool:
    """Whether some process owns the directory now. Two that look at once do not take each other for an owner."""
    try:
        lock = FileLock(Path(root) / LOCK, create=False)
    except OSError:
        return False
    try:
        return not lock.acquire(shared=True)
    finally:
        lock.release()


def read_owner_file(root: str | os.PathLike[str]) -> bytes:
    """What stands in a directory's ``owner``. Raises OSError, also for a link or a device."""
    path = Path(root) / OWNER
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "is no regular file", os.fspath(path))
        return os.read(fd, OWNER_BYTES)
    finally:
        os.close(fd)


def beat(root: Path, content: bytes, mode: int) -> None:
    """Overwrites ``heartbeat``: no sync, and closed, so that a network file system sends it. Raises OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    fd = os.open(root / HEARTBEAT, flags, mode)
    try:
        os.pwrite(fd, content, 0)
    finally:
        os.close(fd)


def _look(path: str) -> _Seen:
    return _seen(os.lstat(path))


def _look_anew(path: str) -> _Seen:
    """NFS keeps what a stat says for seconds; an open asks the server."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        return _seen(os.fstat(fd))
    finally:
        os.close(fd)


def _is_nfs(root: str | os.PathLike[str]) -> bool:
    buffer = ctypes.create_string_buffer(256)  # a struct statfs, whose first word is the type
    if ctypes.CDLL(None).statfs(os.fsencode(root), buffer) != 0:
        return False
    return ctypes.c_long.from_buffer(buffer).value == _NFS


def boot_id() -> str:
    """Names this boot of the host; empty where the system does not tell."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return ""


def boot_to_close() -> str:
    """What an owner says until it has closed well: this boot.

    Whoever opens the directory next in this boot cannot trust what it reads back. A sync may have failed, and then the
    kernel counts the pages as written and shows them until the power goes; the owner may have been killed before it
    knew, and whoever asks again is told that all is well. After another boot what is read is what is on disk.
    """
    return boot_id() or "unknown"
