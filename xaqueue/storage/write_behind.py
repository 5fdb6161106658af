"""A port that lets the directories follow by a moment: what is made and removed meanwhile never touches them.

For use with a journal, which has recorded what is pending here. Small new files, removals and short overwrites are
kept in memory; ``flush`` does them, and so does every call that must see or harden them. New files come first, in the
order of their last rename; then overwrites at the start of a file, so that a watermark never tells of a file that is
not there; removals come last. What was flushed stays for a while as a cache: a reader that keeps up reads no file.

A flush follows files, not paths: one that is renamed meanwhile is made under its new name by this flush, since a
checkpoint behind it covers the record that alone has its content. One that is removed meanwhile needs no making: that
was recorded before it was done.
"""

from __future__ import annotations

import errno
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from xaqueue.errors import ResourceFailed, RetryLater
from xaqueue.storage.fs import NO_ROOM, FileSystem, Room

LARGE_BYTES = 64 * 1024
"""A larger file is written at once: its content costs more than its name."""
PENDING_BYTES = 32 * 1024 * 1024
PENDING_FILES = 16 * 1024
"""Whoever creates a file beyond either flushes first."""
LAG_S = 0.05
"""What has been pending so long, or at most twice as long, is flushed in the background."""
SHORT_BYTES = 512
RETRY_S = 1.0
"""After a flush that found no room. The journal has what waits; the next enqueue beyond the limits says so."""


class _File:
    """A new file, or one that was: its path, its content, and its modification time where that was set."""

    __slots__ = ("chunks", "modified_ns", "path", "size")

    def __init__(self, path: str, chunks: Sequence[bytes]) -> None:
        self.path = path
        self.chunks = chunks
        self.size = sum(map(len, chunks))
        self.modified_ns = 0


class Waits(OSError):
    """There is no room for files that may wait for it, in memory; all others that were pending are done."""


class Snapshot(NamedTuple):
    """What was pending at one moment."""

    new: Sequence[_File]
    short: Mapping[str, Sequence[bytes]]
    gone: Sequence[str]
    flushes: int


class WriteBehind:
    """The port over another one. Safe for several threads, as long as no two use one path at a time."""

    def __init__(self, fs: FileSystem, cache_bytes: int = 0) -> None:
        self.fs = fs
        self._cache_bytes = cache_bytes
        self.notify: Callable[[], None] = lambda: None
        """Called when something is pending after nothing was."""
        self.again: Callable[[OSError, Callable[[str], None], str], None] = _give_up
        """Does again what found no room, or raises: Waits for a file that may wait."""
        self.check_owner: Callable[[], None] = lambda: None
        """Called before anything is flushed: raises where this process is not the owner of the directories any more."""
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._flushing = threading.Lock()
        self._new: OrderedDict[str, _File] = OrderedDict()
        self._gone: dict[str, None] = {}
        self._short: dict[str, Sequence[bytes]] = {}
        self._busy = ""
        """The new file that is being flushed."""
        self._flushes = 0
        self._cache: OrderedDict[str, _File] = OrderedDict()
        self._cached_bytes = 0
        self._pending_bytes = 0
        self.made = 0
        """Files that were flushed so far."""
        self.hits = 0
        self.misses = 0

    # What is pending

    def snapshot(self) -> Snapshot:
        """What is pending now."""
        with self._lock:
            return Snapshot(list(self._new.values()), dict(self._short), list(self._gone), self._flushes)

    def flush(self, snapshot: Snapshot | None = None) -> None:
        """Does everything that was pending when it was called, or of an earlier moment what still is.

        Raises OSError; what was not done stays pending.
        """
        with self._flushing:
            if snapshot is None:
                snapshot = self.snapshot()
            elif snapshot.flushes != self._flushes:
                return  # a later one was done meanwhile
            self.check_owner()
            self._flushes += 1
            waits: Waits | None = None
            for file in snapshot.new:
                try:
                    self._flush_new(file, snapshot.gone)
                except Waits as lack:
                    waits = lack
            for path, chunks in snapshot.short.items():
                self.fs.write_at(path, 0, chunks)
                with self._lock:
                    if self._short.get(path) is chunks:
                        del self._short[path]
            self._flush_removals(snapshot.gone)
            if waits is not None:
                raise waits

    def _flush_removals(self, paths: Sequence[str]) -> None:
        for path in paths:
            if path in self._gone:
                with suppress(FileNotFoundError):  # somebody was faster: it is gone, which is what was wanted
                    self.fs.unlink(path)
                del self._gone[path]

    def _flush_new(self, file: _File, gone: Sequence[str]) -> None:
        """What goes makes room for what comes, and there may be a reserve. The journal has both, in their order."""
        try:
            self._flush_file(file)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
        else:
            return
        self._flush_removals(gone)
        try:
            self._flush_file(file)
        except OSError as error:
            self.again(error, lambda _: self._flush_file(file), file.path)

    def _flush_file(self, file: _File) -> None:
        with self._lock:
            path = file.path
            if self._new.get(path) is not file:
                return  # it is removed or replaced, or was flushed when an earlier try found no room
            self._busy = path
        done = False
        try:
            self.fs.create(path, file.chunks)
            if file.modified_ns:
                self.fs.set_modified_ns(path, file.modified_ns)
            done = True
        finally:
            with self._lock:
                if done:
                    self.made += 1
                    self._drop_new(path)
                    self._remember(path, file)
                self._busy = ""
                self._changed.notify_all()

    def _drop_new(self, path: str) -> None:
        """The file waits no more. Called with the lock held."""
        file = self._new.pop(path, None)
        if file is not None:
            self._pending_bytes -= file.size

    def _settle(self, *paths: str) -> None:
        """Waits until nobody is flushing one of these. Called with the lock held."""
        while self._busy in paths:
            self._changed.wait()

    @property
    def pending(self) -> bool:
        return bool(self._new or self._gone or self._short)

    @property
    def waiting(self) -> tuple[int, int]:
        """Bytes and files that are going to need room on the disk."""
        return self._pending_bytes, len(self._new)

    # The cache

    def _remember(self, path: str, file: _File) -> None:
        if file.size > self._cache_bytes:
            return
        self._cache[path] = file
        self._cached_bytes += file.size
        while self._cached_bytes > self._cache_bytes:
            self._cached_bytes -= self._cache.popitem(last=False)[1].size

    def _forget(self, path: str) -> _File | None:
        file = self._cache.pop(path, None)
        if file is not None:
            self._cached_bytes -= file.size
        return file

    # The port

    def create(self, path: str, chunks: Sequence[bytes]) -> None:
        file = _File(path, chunks)
        if file.size > LARGE_BYTES:
            self._create(path, chunks)
            return
        if self._pending_bytes > PENDING_BYTES or len(self._new) > PENDING_FILES:
            self.flush()
        self._flush_gone(path)
        with self._lock:
            if path in self._new:
                raise FileExistsError(errno.EEXIST, "File exists", path)
            first = not self.pending
            self._new[path] = file
            self._pending_bytes += file.size
        if first:
            self.notify()

    def _create(self, path: str, chunks: Sequence[bytes]) -> None:
        self._flush_gone(path)
        try:
            self.fs.create(path, chunks)
        except OSError as error:
            if error.errno not in NO_ROOM or not self._gone:
                raise
            with self._flushing:
                self._flush_removals(list(self._gone))
            self.fs.create(path, chunks)

    def _flush_gone(self, path: str) -> None:
        if path in self._gone:
            self.flush()

    def write_at(self, path: str, offset: int, chunks: Sequence[bytes]) -> None:
        if offset or sum(map(len, chunks)) > SHORT_BYTES:
            self.fs.write_at(path, offset, chunks)
            return
        with self._lock:
            first = not self.pending
            self._short[path] = chunks
        if first:
            self.notify()

    def rename(self, source: str, target: str) -> None:
        self._flush_gone(target)
        if source in self._short or source in self._gone or target in self._short or target in self._new:
            self.flush()  # so that no other flush finds neither the file that is replaced nor its successor
        with self._lock:
            self._settle(source, target)
            file = self._new.pop(source, None)
            if file is not None:
                file.path = target
                self._new[target] = file
                return
            self._forget(target)
            cached = self._forget(source)
        self.fs.rename(source, target)
        if cached is not None:
            with self._lock:
                self._remember(target, cached)

    def unlink(self, path: str) -> None:
        with self._lock:
            self._settle(path)
            if path in self._new:
                self._drop_new(path)
                return
            if path in self._gone:
                raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
            if self._forget(path) is not None:  # so it is there
                first = not self.pending
                self._gone[path] = None
                if first:
                    self.notify()
                return
        self.fs.unlink(path)

    def set_modified_ns(self, path: str, when_ns: int) -> None:
        with self._lock:
            self._settle(path)
            file = self._new.get(path)
            if file is not None:
                file.modified_ns = when_ns
                return
            if path in self._gone:
                raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        self.fs.set_modified_ns(path, when_ns)

    def read(self, path: str, size: int | None = None) -> bytes:
        with self._lock:
            file = self._new.get(path) or self._cache.get(path)
            if file is not None:
                self.hits += 1
                return b"".join(file.chunks)[:size]
            self.misses += 1
        self._see(path)
        return self.fs.read(path, size)

    def size(self, path: str) -> int:
        self._see(path)
        return self.fs.size(path)

    def modified_ns(self, path: str) -> int:
        file = self._new.get(path)
        if file is not None and file.modified_ns:
            return file.modified_ns
        self._see(path)
        return self.fs.modified_ns(path)

    def exists(self, path: str) -> bool:
        with self._lock:
            if path in self._new or path in self._short:
                return True
            if path in self._gone:
                return False
        return self.fs.exists(path)

    def list(self, path: str) -> list[str]:
        self._see_within(path)
        return self.fs.list(path)

    def is_dir(self, path: str) -> bool:
        return self.fs.is_dir(path)

    def make_dir(self, path: str) -> None:
        self.fs.make_dir(path)

    def remove_dir(self, path: str) -> None:
        self._see_within(path)
        self.fs.remove_dir(path)

    def hold_dir(self, path: str) -> None:
        self.fs.hold_dir(path)

    def sync_file(self, path: str) -> None:
        self._be_ready_to_sync(path)
        self.fs.sync_file(path)

    def sync_data(self, path: str) -> None:
        self._be_ready_to_sync(path)
        self.fs.sync_data(path)

    def sync_dir(self, path: str) -> None:
        self._be_ready_to_sync()
        self.fs.sync_dir(path)

    def sync_all(self) -> None:
        """Raises RetryLater where there is no room for what is pending, as all syncs do: nothing has failed then."""
        self._be_ready_to_sync()
        self.fs.sync_all()

    def room(self) -> Room:
        return self.fs.room()

    def close(self) -> None:
        """What is pending stays undone: the journal has it."""
        self.fs.close()

    def _be_ready_to_sync(self, path: str = "") -> None:
        try:
            if path:
                self._see(path)
            else:
                self.flush()
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            if isinstance(error, Waits) and path not in self._new:
                return  # it is not what is to be synced
            raise RetryLater(f"no room for what the directories lack ({error.strerror}): free some") from error

    def _see_within(self, directory: str) -> None:
        """The directory behind holds what this one says."""
        with self._lock:
            pending = [*self._new, *self._short, *self._gone]
        if any(path.rpartition("/")[0] == directory for path in pending):
            self.flush()

    def _see(self, path: str) -> None:
        """The file behind is as this one says."""
        if path in self._new or path in self._short or path in self._gone:
            self.flush()


def _give_up(error: OSError, call: Callable[[str], None], path: str) -> None:
    raise error


class Flusher:
    """A thread that flushes what has been pending for a moment. ``failed`` is told of an error that ends it."""

    def __init__(self, files: WriteBehind, failed: Callable[[OSError], object]) -> None:
        self._files = files
        self._failed = failed
        self._stopped = threading.Event()
        self._pending = threading.Event()
        files.notify = self._pending.set
        self._thread = threading.Thread(target=self._run, name="xaqueue-flush", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._pending.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._pending.wait()
            self._pending.clear()
            while self._files.pending and not self._stopped.is_set():
                snapshot = self._files.snapshot()
                self._stopped.wait(LAG_S)
                try:
                    self._files.flush(snapshot)
                except ResourceFailed:
                    return  # whoever raised it has fenced the space
                except OSError as error:
                    if error.errno not in NO_ROOM:
                        self._failed(error)
                        return
                    self._stopped.wait(RETRY_S)
