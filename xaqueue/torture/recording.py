"""A port that does everything twice: in the directory, and in a file system that knows what a power loss may leave."""

from __future__ import annotations

import builtins
import errno
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from xaqueue.storage.fs import DirectoryFileSystem, FileSystem, Room
from xaqueue.torture.forgetful import ForgetfulFileSystem
from xaqueue.torture.scratch import tree_in


class PowerLost(OSError):
    """Every call since then."""

    def __init__(self) -> None:
        super().__init__(errno.EIO, "the power is gone")


class RecordingFileSystem:
    """What is in the directory when this is made is durable. Safe for threads: one call at a time.

    ``lost`` is set before the call at which the power goes, and from then on every call raises PowerLost.
    """

    def __init__(self, root: Path, *, keep_unsynced: bool) -> None:
        self.real = DirectoryFileSystem(root, keep_unsynced=keep_unsynced)
        self.model: ForgetfulFileSystem = tree_in(root).open()
        self.guard = threading.Lock()
        self.lost = threading.Event()
        self._left: int | None = None

    def lose_power_after(self, calls: int) -> None:
        """So many calls that change or sync something are still done."""
        with self.guard:
            self._left = calls

    def agrees(self) -> bool:
        """Whether directory and model hold the same."""
        with self.guard:
            return tree_in(Path(self.real.root)).key() == self.model.tree_after_kill().key()

    def create(self, path: str, chunks: Sequence[bytes]) -> None:
        self._change(lambda fs: fs.create(path, chunks))

    def write_at(self, path: str, offset: int, chunks: Sequence[bytes]) -> None:
        self._change(lambda fs: fs.write_at(path, offset, chunks))

    def set_modified_ns(self, path: str, when_ns: int) -> None:
        self._change(lambda fs: fs.set_modified_ns(path, when_ns))

    def rename(self, source: str, target: str) -> None:
        self._change(lambda fs: fs.rename(source, target))

    def unlink(self, path: str) -> None:
        self._change(lambda fs: fs.unlink(path))

    def make_dir(self, path: str) -> None:
        self._change(lambda fs: fs.make_dir(path))

    def remove_dir(self, path: str) -> None:
        self._change(lambda fs: fs.remove_dir(path))

    def sync_file(self, path: str) -> None:
        self._change(lambda fs: fs.sync_file(path))

    def sync_data(self, path: str) -> None:
        self._change(lambda fs: fs.sync_data(path))

    def sync_dir(self, path: str) -> None:
        self._change(lambda fs: fs.sync_dir(path))

    def sync_all(self) -> None:
        self._change(lambda fs: fs.sync_all())

    def read(self, path: str, size: int | None = None) -> bytes:
        return self._powered().read(path, size)

    def size(self, path: str) -> int:
        return self._powered().size(path)

    def modified_ns(self, path: str) -> int:
        return self._powered().modified_ns(path)

    def list(self, path: str) -> builtins.list[str]:
        return self._powered().list(path)

    def is_dir(self, path: str) -> bool:
        return self._powered().is_dir(path)

    def exists(self, path: str) -> bool:
        return self._powered().exists(path)

    def hold_dir(self, path: str) -> None:
        self._powered().hold_dir(path)

    def room(self) -> Room:
        return self._powered().room()

    def close(self) -> None:
        self.real.close()

    def _change(self, call: Callable[[FileSystem], None]) -> None:
        with self.guard:
            if self._left == 0:
                self.lost.set()
            if self._left is not None:
                self._left -= 1
            call(self._powered())
            call(self.model)

    def _powered(self) -> DirectoryFileSystem:
        if self.lost.is_set():
            raise PowerLost
        return self.real
