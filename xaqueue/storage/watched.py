"""The calls of the port that are on their way, and since when: one that hangs in the kernel can be seen from outside.

Each call that writes or hardens is noted before it begins and struck out when it returns. That takes no lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import get_ident
from time import monotonic

from xaqueue.storage.fs import FileSystem


class WatchedFileSystem:
    """The port over another one."""

    def __init__(self, fs: FileSystem) -> None:
        self._fs = fs
        self.running: dict[int, tuple[float, str, str]] = {}
        """By thread: when a call began, which, and its path."""
        self.create = fs.create
        self.read = fs.read
        self.size = fs.size
        self.modified_ns = fs.modified_ns
        self.set_modified_ns = fs.set_modified_ns
        self.make_dir = fs.make_dir
        self.remove_dir = fs.remove_dir
        self.list = fs.list
        self.is_dir = fs.is_dir
        self.exists = fs.exists
        self.hold_dir = fs.hold_dir
        self.room = fs.room
        self.close = fs.close

    def write_at(self, path: str, offset: int, chunks: Sequence[bytes]) -> None:
        me = get_ident()
        try:
            self.running[me] = monotonic(), "write", path
            self._fs.write_at(path, offset, chunks)
        finally:
            self.running.pop(me, None)

    def rename(self, source: str, target: str) -> None:
        me = get_ident()
        try:
            self.running[me] = monotonic(), "rename", target
            self._fs.rename(source, target)
        finally:
            self.running.pop(me, None)

    def unlink(self, path: str) -> None:
        me = get_ident()
        try:
            self.running[me] = monotonic(), "unlink", path
            self._fs.unlink(path)
        finally:
            self.running.pop(me, None)

    def sync_file(self, path: str) -> None:
        me = get_ident()
        try:
            self.running[me] = monotonic(), "sync", path
            self._fs.sync_file(path)
        finally:
            self.running.pop(me, None)

    def sync_data(self, path: str) -> None:
        me = get_ident()
        try:
            self.running[me] = monotonic(), "sync", path
            self._fs.sync_data(path)
        finally:
            self.running.pop(me, None)

    def sync_dir(self, path: str) -> None:
        me = get_ident()
        try:
            self.running[me] = monotonic(), "sync", path
            self._fs.sync_dir(path)
        finally:
            self.running.pop(me, None)

    def sync_all(self) -> None:
        me = get_ident()
        try:
            self.running[me] = monotonic(), "sync", "the whole file system"
            self._fs.sync_all()
        finally:
            self.running.pop(me, None)

    def slow(self, deadline_s: float) -> str:
        """In words, the call that has been on its way longest, where that is longer than this; else empty."""
        began, call, path = min(list(self.running.values()), default=(monotonic(), "", ""))
        taken_s = monotonic() - began
        return f"the {call} of {path} has taken {taken_s:,.1f} s" if taken_s > deadline_s else ""
