"""A port that only reads: every call that would change something is refused, as on a disk mounted so."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import NoReturn

from xaqueue.storage.fs import FileSystem


class ReadOnlyFileSystem:
    """The port over another one."""

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

    def create(self, path: str, chunks: Sequence[bytes]) -> None:
        self._refuse(path)

    def write_at(self, path: str, offset: int, chunks: Sequence[bytes]) -> None:
        self._refuse(path)

    def set_modified_ns(self, path: str, when_ns: int) -> None:
        self._refuse(path)

    def rename(self, source: str, target: str) -> None:
        self._refuse(target)

    def unlink(self, path: str) -> None:
        self._refuse(path)

    def make_dir(self, path: str) -> None:
        self._refuse(path)

    def remove_dir(self, path: str) -> None:
        self._refuse(path)

    def sync_file(self, path: str) -> None:
        self._refuse(path)

    def sync_data(self, path: str) -> None:
        self._refuse(path)

    def sync_dir(self, path: str) -> None:
        self._refuse(path)

    def sync_all(self) -> None:
        self._refuse("")

    @staticmethod
    def _refuse(path: str) -> NoReturn:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
