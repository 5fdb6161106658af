"""The port over a real directory.

A file that was written and not yet synced keeps its descriptor until ``sync_data`` or ``sync_file``: the kernel reports
a failed write-back to descriptors that were open when it failed, and to a later one only perhaps.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import stat
import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from threading import get_ident
from time import monotonic
from typing import ParamSpec, Protocol, TypeVar

from xaqueue.core.storage.fs import Room, Syncing, lasting, synced, writer_of
from xaqueue.core.storage.modes import BY_UMASK, PRIVATE, Modes, give, heir_of
from xaqueue.core.storage.mounts import MOUNTINFO, file_system_of
from xaqueue.core.storage.regular import WRITE, open_regular, read_up_to, stat_regular

OPEN_FILES = 384
"""Descriptors kept for files not yet synced; beyond them the oldest is synced early, which is only sooner."""
OPEN_DIRECTORIES = 128
WRITE_VECTORS = 512

_libc = ctypes.CDLL(None, use_errno=True)
"""For syncfs(2), which ``os`` lacks."""
_NO_DESCRIPTOR = frozenset({errno.EMFILE, errno.ENFILE})
RWF_DSYNC = getattr(os, "RWF_DSYNC", 0)
_NO_FLAG = frozenset({errno.EOPNOTSUPP, errno.ENOSYS})
_OVERWRITES = frozenset({"ext2", "ext3", "ext4", "tmpfs"})
"""File systems on which what has its room is overwritten without any: a write that syncs, too, and fails for want of
room was then a sync that failed. On others the two are two calls, whose failures are not the same."""
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC

Running = dict[int, tuple[float, str, str]]
"""By thread, and one for who leads a round: when a call began, which, and its path."""
Rename = Callable[[str, str], None]
Unlink = Callable[[str], None]
WriteAt = Callable[[str, int, Sequence[bytes]], None]
P = ParamSpec("P")
T = TypeVar("T")


class DirectoryFileSystem:
    """The port over a real directory. Safe for several threads, as long as no two use one path at a time."""

    def __init__(self, root: str | os.PathLike[str], *, keep_unsynced: bool = True, modes: Modes = PRIVATE) -> None:
        """``keep_unsynced``: whether files that were written will be synced, so that their descriptors are kept.

        ``modes``: of what is made. In another user's directory root makes it that user's.
        """
        self.root = os.fspath(root)
        self._prefix = self.root + "/"
        self._keep = keep_unsynced
        self._modes = modes
        self._heir = heir_of(self.root) if modes is not BY_UMASK else None
        self._settles = modes.masked or self._heir is not None
        self._unsynced: OrderedDict[str, int] = OrderedDict()
        self._directories: OrderedDict[str, int] = OrderedDict()
        self._places: OrderedDict[str, int] = OrderedDict()
        self._root_fd: int | None = None
        self._dsync: bool | None = None
        """Whether a write may sync what it writes; None until the first one."""
        self._held: dict[str, int] = {}
        """Of the file that was written and synced last in one; who wants room for descriptors does not close it."""
        self._descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0] & sys.maxsize
        """What the process may have. Half of it is others', whatever is kept here."""

    def create(self, path: str, chunks: Sequence[bytes], modified_ns: int = 0) -> None:
        full = self._prefix + path
        try:
            fd = os.open(full, _NEW_FILE, self._modes.file)
        except OSError as error:
            self._free_descriptor(error)
            fd = self._opened(os.open, full, _NEW_FILE, self._modes.file)
        try:
            if self._settles:
                self._settle(fd, self._modes.file)
            written = os.writev(fd, chunks[:WRITE_VECTORS])
            if written != sum(map(len, chunks)):
                _write_rest(fd, chunks, written)
            if modified_ns:
                os.utime(fd, ns=(modified_ns, modified_ns))
        except BaseException as error:
            os.close(fd)
            os.unlink(full)
            _name_file(error, full)
            raise
        if self._keep:
            self._unsynced[path] = fd
            if len(self._unsynced) > min(OPEN_FILES, self._descriptors // 4):
                self._sync_oldest()
        else:
            os.close(fd)

    def write_at(self, path: str, offset: int, chunks: Sequence[bytes]) -> None:
        self._write_at(self._places.pop(path, None), path, offset, chunks)

    def _write_at(self, place: int | None, path: str, offset: int, chunks: Sequence[bytes]) -> None:
        fd = self._open_place(path) if place is None else place
        try:
            _write_all(fd, offset, chunks)
        except OSError as error:
            _name_file(error, self._prefix + path)
            raise
        finally:
            self._remember(self._places, path, fd)

    def write_synced(self, path: str, offset: int, chunks: Sequence[bytes], syncing: Syncing = None) -> None:
        fd = self._hold(path)
        if syncing is not None or not self._dsync or len(chunks) > WRITE_VECTORS:
            self._write_and_sync(fd, path, offset, chunks, syncing)
            return
        try:
            written = os.pwritev(fd, chunks, offset, RWF_DSYNC)
        except OSError as error:
            self.check_refused(error, path, chunks)
            self.write_synced(path, offset, chunks)
            return
        if written != sum(map(len, chunks)):
            raise OSError(errno.EIO, "short write in place", self._prefix + path)

    writer = writer_of

    def held(self) -> Mapping[str, int] | None:
        """By path the descriptor by which ``write_synced`` has written last, where that is one call of the system. None
        where it is two; whoever derives from this sees each call."""
        if self._dsync is None:
            self._dsync = has_dsync(self.root)
        return self._held if self._dsync and type(self) is DirectoryFileSystem else None

    def check_refused(self, error: OSError, path: str, chunks: Sequence[bytes]) -> None:
        """Raises what a write that syncs has failed with, unless it did nothing, and two calls can do it."""
        if error.errno in _NO_FLAG:
            self._dsync = False
        elif error.errno != errno.EINVAL or len(chunks) <= WRITE_VECTORS:
            _name_file(error, self._prefix + path)
            raise lasting(error, path) from error

    def _hold(self, path: str) -> int:
        """What a round writes, it syncs by the same descriptor: the kernel tells of a failed write-back once at each
        that was open then, and what was told at that of another thread, which grows the file, is told here, too."""
        if path in self._held:
            return self._held[path]
        if self._dsync is None:
            self._dsync = has_dsync(self.root)
        for earlier in tuple(self._held):
            self._let_go(earlier)
        self._held[path] = fd = self._open_place(path)
        return fd

    def _write_and_sync(self, fd: int, path: str, offset: int, chunks: Sequence[bytes], syncing: Syncing) -> None:
        try:
            _write_all(fd, offset, chunks)
            if syncing is not None:
                syncing()
            synced(lambda _: os.fdatasync(fd), path)
        except OSError as error:
            _name_file(error, self._prefix + path)
            raise

    def _open_place(self, path: str) -> int:
        fd, found = self._opened(open_regular, self._prefix + path, WRITE | os.O_CREAT, mode=self._modes.file)
        if self._settles and not found.st_size:
            self._settle(fd, self._modes.file)
        return fd

    def read(self, path: str, size: int | None = None, offset: int = 0) -> bytes:
        try:
            fd, found = open_regular(self._prefix + path)
        except OSError as error:
            self._free_descriptor(error)
            fd, found = self._opened(open_regular, self._prefix + path)
        try:
            if offset:
                os.lseek(fd, offset, os.SEEK_SET)
            size = found.st_size if size is None or size > found.st_size else size
            data = os.read(fd, size)  # as ``read_up_to``, which each dequeue would call
            return data if len(data) == size else data + read_up_to(fd, size - len(data))
        finally:
            os.close(fd)

    def size(self, path: str) -> int:
        return stat_regular(self._prefix + path).st_size

    def modified_ns(self, path: str) -> int:
        return stat_regular(self._prefix + path).st_mtime_ns

    def set_modified_ns(self, path: str, when_ns: int) -> None:
        os.utime(self._prefix + path, ns=(when_ns, when_ns))

    def rename(self, source: str, target: str) -> None:
        os.rename(self._prefix + source, self._prefix + target)
        self._move_kept(source, target)

    def link(self, source: str, target: str) -> None:
        os.link(self._prefix + source, self._prefix + target, follow_symlinks=False)

    def unlink(self, path: str) -> None:
        os.unlink(self._prefix + path)
        self._let_go(path)

    def noted(self, running: Running, again: Callable[..., None]) -> tuple[Rename, Unlink, WriteAt] | None:
        """``rename``, ``unlink`` and ``write_at``, each with what an owner has around it in one frame, since every step
        comes by here. again: what is called with an error, the call and its arguments. None where whoever derives from
        this sees each call."""
        if type(self) is not DirectoryFileSystem:
            return None
        prefix, places, unsynced, held = self._prefix, self._places, self._unsynced, self._held

        def rename(source: str, target: str) -> None:
            me = get_ident()
            try:
                running[me] = monotonic(), "rename", target
                os.rename(prefix + source, prefix + target)
                if unsynced or source in places or target in places or source in held or target in held:
                    self._move_kept(source, target)
            except OSError as error:
                again(error, self.rename, source, target)
            finally:
                running.pop(me, None)

        def unlink(path: str) -> None:
            me = get_ident()
            try:
                running[me] = monotonic(), "unlink", path
                os.unlink(prefix + path)
                if path in places or path in unsynced or path in held:
                    self._let_go(path)
            except OSError as error:
                again(error, self.unlink, path)
            finally:
                running.pop(me, None)

        return rename, unlink, self._noted_write(running, again)

    def _noted_write(self, running: Running, again: Callable[..., None]) -> WriteAt:
        places = self._places

        def write_at(path: str, offset: int, chunks: Sequence[bytes]) -> None:
            me = get_ident()
            try:
                running[me] = monotonic(), "write", path
                fd = places.pop(path, None)  # meanwhile nobody closes it
                if fd is None or len(chunks) > WRITE_VECTORS:
                    self._write_at(fd, path, offset, chunks)
                    return
                try:
                    if os.pwritev(fd, chunks, offset) != sum(map(len, chunks)):
                        _write_all(fd, offset, chunks)
                finally:
                    if path in places:
                        self._remember(places, path, fd)
                    else:
                        places[path] = fd
            except OSError as error:
                _name_file(error, self._prefix + path)
                again(error, self.write_at, path, offset, chunks)
            finally:
                running.pop(me, None)

        return write_at

    def make_dir(self, path: str) -> None:
        os.mkdir(self._prefix + path, self._modes.directory)
        if self._settles:
            fd = self._open_dir(path)
            try:
                self._settle(fd, self._modes.directory)
            finally:
                os.close(fd)

    def remove_dir(self, path: str) -> None:
        os.rmdir(self._prefix + path)
        fd = self._directories.pop(path, None)
        if fd is not None:
            os.close(fd)

    def list(self, path: str) -> list[str]:
        return self._opened(os.listdir, self._prefix + path)

    def is_dir(self, path: str) -> bool:
        try:
            return stat.S_ISDIR(os.lstat(self._prefix + path).st_mode)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                raise
            return False

    def exists(self, path: str) -> bool:
        return os.path.lexists(self._prefix + path)

    def hold_dir(self, path: str) -> None:
        if not path:
            self._root()
        if path not in self._directories:
            self._remember(self._directories, path, self._open_dir(path))

    def sync_file(self, path: str) -> None:
        self._sync(path, os.fsync)

    def sync_data(self, path: str) -> None:
        self._sync(path, os.fdatasync)

    def sync_dir(self, path: str) -> None:
        fd = self._directories.pop(path, None)
        if fd is None:
            fd = self._open_dir(path)
        try:
            os.fsync(fd)
        except OSError as error:
            _name_file(error, self._prefix + path)
            raise
        finally:
            self._remember(self._directories, path, fd)

    def sync_all(self) -> None:
        if _libc.syncfs(self._root()) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), self.root)

    def room(self) -> Room:
        state = os.statvfs(self.root)
        unit = state.f_frsize
        return Room(state.f_bavail * unit, state.f_blocks * unit, state.f_favail, state.f_files)

    def close(self) -> None:
        for kept in (self._unsynced, self._directories, self._places, self._held):
            while kept:
                os.close(kept.popitem()[1])
        if self._root_fd is not None:
            os.close(self._root_fd)
            self._root_fd = None

    def _root(self) -> int:
        """A sync tells of no failure before its descriptor was opened that somebody else was told of."""
        if self._root_fd is None:
            self._root_fd = self._opened(os.open, self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        return self._root_fd

    def _sync(self, path: str, sync: Sync) -> None:
        fd = place = self._places.pop(path, None)
        if fd is None:
            fd = self._unsynced.pop(path, None)
        if fd is None:
            fd, _ = self._opened(open_regular, self._prefix + path)
        try:
            sync(fd)
        except OSError as error:
            _name_file(error, self._prefix + path)
            raise
        finally:
            if place is None:
                os.close(fd)
            else:
                self._remember(self._places, path, fd)

    def _settle(self, fd: int, mode: int) -> None:
        give(fd, self._heir)
        if self._modes.masked:
            os.fchmod(fd, mode)

    def _move_kept(self, source: str, target: str) -> None:
        fd = self._unsynced.pop(source, None)
        self._let_go(source)
        self._let_go(target)
        if fd is not None:
            self._unsynced[target] = fd

    def _let_go(self, path: str) -> None:
        """The file of this name is another one now, or none: what was kept open of the old one is closed."""
        for kept in (self._unsynced, self._places, self._held):
            if path in kept and (fd := kept.pop(path, None)) is not None:
                os.close(fd)

    def _sync_oldest(self) -> None:
        path, fd = self._unsynced.popitem(last=False)
        try:
            os.fdatasync(fd)
        except OSError as error:  # another branch's file: even "no space" must not pass for room wanted here
            raise OSError(errno.EIO, f"early sync failed: {error.strerror}", path) from error
        finally:
            os.close(fd)

    def _open_dir(self, path: str) -> int:
        return self._opened(os.open, self._prefix + path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def _opened(self, call: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """The result of a call that takes a descriptor. What is kept here must not be what is missing."""
        while True:
            try:
                return call(*arguments, **named)
            except OSError as error:
                self._free_descriptor(error)

    def _free_descriptor(self, error: OSError) -> None:
        """Closes some of what is kept, so that the same call may find a descriptor; raises where that is no help."""
        if error.errno not in _NO_DESCRIPTOR or not self._close_some():
            raise error

    def _close_some(self) -> bool:
        """Closes some of what is kept; whether there was something. What a step is about to sync goes last."""
        for kept in (self._places, self._directories):
            if kept:
                for _ in range((len(kept) + 1) // 2):
                    with suppress(KeyError):  # another thread was faster
                        os.close(kept.popitem(last=False)[1])
                return True
        if self._unsynced:
            self._sync_oldest()
            return True
        return False

    def _remember(self, kept: OrderedDict[str, int], path: str, fd: int) -> None:
        """Puts a descriptor back; while it was out, nobody else could close it."""
        other = kept.pop(path, None)
        if other is not None:
            os.close(other)
        kept[path] = fd
        if len(kept) > min(OPEN_DIRECTORIES, self._descriptors // 8):
            os.close(kept.popitem(last=False)[1])


class Sync(Protocol):
    def __call__(self, fd: int, /) -> None: ...


def has_dsync(root: str) -> bool:
    """Whether a write may sync what it writes there."""
    return bool(RWF_DSYNC) and file_system_of(os.path.realpath(root), MOUNTINFO) in _OVERWRITES


def _name_file(error: BaseException, full: str) -> None:
    """Which file it was: a call on a descriptor does not say."""
    if isinstance(error, OSError) and error.filename is None:
        error.filename = full


def _write_all(fd: int, offset: int, chunks: Sequence[bytes]) -> None:
    """In place. Raises OSError where it falls short; it says why where that is no room."""
    for first in range(0, len(chunks), WRITE_VECTORS):
        vector = chunks[first : first + WRITE_VECTORS]
        size = sum(map(len, vector))
        written = os.pwritev(fd, vector, offset)
        if written != size:
            os.pwrite(fd, b"".join(vector)[written:], offset + written)
            raise OSError(errno.EIO, "short write in place")
        offset += size


def _write_rest(fd: int, chunks: Sequence[bytes], written: int) -> None:
    """However short each single write falls."""
    rest = memoryview(b"".join(chunks))[written:]
    while rest:
        rest = rest[os.write(fd, rest) :]
