"""Ports over another port: the one of an owner, and one that only reads.

The owner's notes each call that writes or hardens before it begins, and strikes it out when it returns, so that one
that hangs in the kernel can be seen from outside; that takes no lock. And where a call finds no room, pieces of the
reserve are given up for it, as long as there are some. Where files are copied on write, even what is overwritten
needs room.
"""

from __future__ import annotations

import errno
import os
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial
from threading import get_ident
from time import monotonic
from typing import Any, NoReturn

from xaqueue.core.storage.directory_fs import RWF_DSYNC, DirectoryFileSystem, Rename, Running, Unlink, WriteAt
from xaqueue.core.storage.fs import FileSystem, Syncing, Writer, writer_of
from xaqueue.core.storage.reserve import FULL, PIECE_BYTES, Reserve

SYNC_STEPS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
"""Up to which times syncs are counted together; one more step is for those that took longer."""


_ROUND = 0
"""No thread has this number."""


class SyncTimes:
    """How long the syncs of an owner took. Two threads that count at once may lose one of them."""

    __slots__ = ("counts", "total_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(SYNC_STEPS_S) + 1)
        self.total_s = 0.0


class Layer:
    """What every layer hands on as it is."""

    def __init__(self, fs: FileSystem) -> None:
        self._fs = fs
        self.read = fs.read
        self.size = fs.size
        self.modified_ns = fs.modified_ns
        self.list = fs.list
        self.is_dir = fs.is_dir
        self.exists = fs.exists
        self.hold_dir = fs.hold_dir
        self.room = fs.room
        self.close = fs.close


class OwnerFileSystem(Layer):
    """The port of whoever owns the directory."""

    def __init__(self, fs: FileSystem, reserve: Reserve | None = None, beside: OwnerFileSystem | None = None) -> None:
        """beside: another one of this owner."""
        super().__init__(fs)
        self.running: Running = {} if beside is None else beside.running
        self.syncs: SyncTimes = SyncTimes() if beside is None else beside.syncs
        self.set_modified_ns = fs.set_modified_ns
        self.remove_dir = fs.remove_dir
        self.create = partial(self._watched, "create")
        self.link = partial(self._watched, "link")
        self.rename: Rename = partial(self._watched, "rename")
        self.unlink: Unlink = partial(self._watched, "unlink")
        self.write_at: WriteAt = partial(self._watched, "write_at")
        self.sync_file = partial(self._watched_sync, "sync_file")
        self.sync_data = partial(self._watched_sync, "sync_data")
        self.sync_dir = partial(self._watched_sync, "sync_dir")
        self.sync_all = partial(self._watched_sync, "sync_all")
        self.reserve = reserve
        if isinstance(fs, DirectoryFileSystem) and (noted := fs.noted(self.running, self._again)) is not None:
            self.rename, self.unlink, self.write_at = noted

    def recovered(self) -> None:
        """What was made until now was promised before a crash: new files found room, too. From here on whoever must
        have one calls ``Reserve.again``."""
        self.create, self.link = partial(self._fs.create), partial(self._fs.link)

    def unreserved(self) -> OwnerFileSystem:
        """The same port, for what may be left undone without room."""
        return OwnerFileSystem(self._fs, beside=self)

    def _watched(self, call: str, path: str, *others: Any) -> None:
        me = get_ident()
        try:
            self.running[me] = monotonic(), call.removesuffix("_at"), others[0] if call == "rename" else path
            getattr(self._fs, call)(path, *others)
        except OSError as error:
            self._again(error, getattr(self._fs, call), path, *others)
        finally:
            self.running.pop(me, None)

    def make_dir(self, path: str) -> None:
        try:
            self._fs.make_dir(path)
        except OSError as error:
            self._again(error, self._fs.make_dir, path)

    def write_synced(self, path: str, offset: int, chunks: Sequence[bytes], syncing: Syncing = None) -> None:
        if syncing is not None:
            syncing = partial(self._begin_sync, path, syncing)
        syncs = self.syncs
        self.running[_ROUND] = monotonic(), "sync", path
        try:
            self._fs.write_synced(path, offset, chunks, syncing)
        except OSError as error:
            self._again(error, self._fs.write_synced, path, offset, chunks, syncing)
        finally:
            taken_s = monotonic() - self.running.pop(_ROUND)[0]
            syncs.counts[bisect_left(SYNC_STEPS_S, taken_s)] += 1
            syncs.total_s += taken_s

    def writer(self, path: str) -> Writer:
        """As ``write_synced``; in one frame where the port below would do nothing but the call: all rounds come by."""
        fs, otherwise, running, syncs = self._fs, writer_of(self, path), self.running, self.syncs
        if not isinstance(fs, DirectoryFileSystem) or (held := fs.held()) is None:
            return otherwise
        check_refused = fs.check_refused

        def write(offset: int, chunks: Sequence[bytes]) -> None:
            began = monotonic()
            running[_ROUND] = began, "sync", path
            try:
                written = os.pwritev(held[path], chunks, offset, RWF_DSYNC)
            except KeyError:  # it is not held yet, or no more
                otherwise(offset, chunks)
            except OSError as error:
                check_refused(error, path, chunks)
                otherwise(offset, chunks)
            else:
                taken_s = monotonic() - began
                syncs.counts[bisect_left(SYNC_STEPS_S, taken_s)] += 1
                syncs.total_s += taken_s
                if written != sum(map(len, chunks)):
                    raise OSError(errno.EIO, "short write in place", path)
            finally:
                running.pop(_ROUND, None)

        return write

    def _begin_sync(self, path: str, syncing: Callable[[], object]) -> None:
        """What a round waits for between its two calls is no part of its sync."""
        syncing()
        self.running[_ROUND] = monotonic(), "sync", path

    def _watched_sync(self, call: str, *path: str) -> None:
        me, began, syncs = get_ident(), monotonic(), self.syncs
        try:
            self.running[me] = began, "sync", path[0] if path else "the whole file system"
            getattr(self._fs, call)(*path)
        finally:
            self.running.pop(me, None)
            taken_s = monotonic() - began
            syncs.counts[bisect_left(SYNC_STEPS_S, taken_s)] += 1
            syncs.total_s += taken_s

    def slow(self, deadline_s: float) -> str:
        """In words, the call that has been on its way longest, where that is longer than this; else empty."""
        began, call, path = min(list(self.running.values()), default=(monotonic(), "", ""))
        taken_s = monotonic() - began
        return f"the {call} of {path} has taken {taken_s:,.1f} s" if taken_s > deadline_s else ""

    def _again(self, error: OSError, call: Callable[..., object], *arguments: object) -> None:
        """Raises it where no reserve helps, or it is a journal that grows, which it need not, or a large body."""
        chunks = next((one for one in arguments if isinstance(one, list | tuple)), ())
        if self.reserve is None or error.errno not in FULL or sum(map(len, chunks)) > PIECE_BYTES:
            raise error
        self.reserve.again(error, call, *arguments)


class ReadOnlyFileSystem(Layer):
    """Every call that would change something is refused, as on a disk mounted so."""

    @staticmethod
    def _refuse(*arguments: Any, **_: Any) -> NoReturn:
        path = next((one for one in arguments[1::-1] if isinstance(one, str)), "")  # of a rename the target
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)

    create = write_at = write_synced = writer = set_modified_ns = rename = link = unlink = make_dir = _refuse
    remove_dir = sync_file = sync_data = sync_dir = sync_all = _refuse
