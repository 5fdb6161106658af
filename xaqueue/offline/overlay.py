"""A directory as it would be: every change stays in memory, above a port that is only read.

What works on the files of a space can so be tried, and shows by what it does there what it would do. A file that is
not changed is read from below whenever it is asked for, also under a new name; one that is written to is in memory
as a whole. A sync has nothing to do.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from xaqueue.core.storage.fs import FileSystem, write_then_sync, writer_of


@dataclass(eq=False, slots=True)
class _File:
    below: str = ""
    """Its path there, unless it has a content of its own."""
    data: bytearray | None = None
    modified_ns: int | None = None
    leads_to: _Directory | None = None
    """What stands behind it, for who goes through it: below it is a link to a directory."""


@dataclass(eq=False, slots=True)
class _Directory:
    below: str | None = None
    """Its path there; None for one that is new."""
    names: dict[str, _File | _Directory | None] = field(default_factory=dict)
    """Whatever differs from that, None for what is gone; and each directory that was looked into."""


class Overlay:
    """The port over another one, which is never changed. For one thread that changes something at a time."""

    def __init__(self, fs: FileSystem, may_change: Callable[[str], bool] = lambda _: True, at: str = "") -> None:
        """may_change: whether names in this directory below may be, or this file. at: what an error names a path by."""
        self._fs = fs
        self._at = at
        self._may_change = may_change
        self._root = _Directory("")
        self.room = fs.room
        self.close = fs.close

    def create(self, path: str, chunks: Sequence[bytes], modified_ns: int = 0) -> None:
        directory, name = self._free(path)
        directory.names[name] = _File(data=bytearray().join(chunks), modified_ns=modified_ns or time.time_ns())

    def write_at(self, path: str, offset: int, chunks: Sequence[bytes]) -> None:
        if not self.exists(path):
            self.create(path, ())
        file = self._file(path, owned=True)
        if file.data is None:
            self._check(file.below)
            file.data = bytearray(self._fs.read(file.below))
        written = b"".join(chunks)
        file.data.extend(bytes(max(0, offset - len(file.data))))
        file.data[offset : offset + len(written)] = written
        file.modified_ns = time.time_ns()

    write_synced = write_then_sync
    writer = writer_of

    def read(self, path: str, size: int | None = None, offset: int = 0) -> bytes:
        file = self._file(path)
        if file.data is None:
            return self._fs.read(file.below, size, offset)
        return bytes(file.data[offset : None if size is None else offset + size])

    def size(self, path: str) -> int:
        file = self._file(path)
        return self._fs.size(file.below) if file.data is None else len(file.data)

    def modified_ns(self, path: str) -> int:
        file = self._file(path)
        return self._fs.modified_ns(file.below) if file.modified_ns is None else file.modified_ns

    def set_modified_ns(self, path: str, when_ns: int) -> None:
        node = self._owned(path)
        if isinstance(node, _File):  # that of a directory nobody asks for
            node.modified_ns = when_ns

    def rename(self, source: str, target: str) -> None:
        self._check(self._place(source)[0].below)
        directory, name = self._place(target)
        self._check(directory.below)
        node = self._owned(source)
        if isinstance(node, _Directory):  # whose name of the one above it changes, too
            self._check(node.below)
        there = self._child(directory, name)
        if there is node:
            return  # two names of one file both stay
        if isinstance(there, _Directory) is not isinstance(node, _Directory) and there is not None:
            raise self._error(errno.EISDIR if isinstance(there, _Directory) else errno.ENOTDIR, target)
        if isinstance(there, _Directory) and self.list(target):
            raise self._error(errno.ENOTEMPTY, target)
        directory.names[name] = node
        self._take(source)

    def link(self, source: str, target: str) -> None:
        node = self._owned(source)
        directory, name = self._free(target)
        if isinstance(node, _Directory):
            raise self._error(errno.EPERM, source)
        directory.names[name] = node

    def unlink(self, path: str) -> None:
        if isinstance(self._node(path), _Directory):
            raise self._error(errno.EISDIR, path)
        self._take(path)

    def make_dir(self, path: str) -> None:
        directory, name = self._free(path)
        directory.names[name] = _Directory()

    def remove_dir(self, path: str) -> None:
        if self.list(path):
            raise self._error(errno.ENOTEMPTY, path)
        self._take(path)

    def list(self, path: str) -> list[str]:
        directory = self._directory(path)
        below = [] if directory.below is None else self._fs.list(directory.below)
        there = [name for name, node in directory.names.items() if node is not None]
        return there + [name for name in below if name not in directory.names]

    def is_dir(self, path: str) -> bool:
        with suppress(FileNotFoundError, NotADirectoryError):
            return isinstance(self._node(path), _Directory)
        return False

    def exists(self, path: str) -> bool:
        with suppress(FileNotFoundError, NotADirectoryError):
            return self._node(path) is not None
        return False

    def hold_dir(self, path: str) -> None:
        self._directory(path)

    def sync_file(self, path: str) -> None:
        self._file(path)

    sync_dir, sync_data = hold_dir, sync_file

    def sync_all(self) -> None:
        pass

    def _node(self, path: str) -> _File | _Directory:
        node: _File | _Directory | None = self._root
        for name in path.split("/") if path else ():
            node = self._child(self._entered(node, path), name)
            if node is None:
                raise self._error(errno.ENOENT, path)
        assert node is not None
        return node

    def _entered(self, node: _File | _Directory | None, path: str) -> _Directory:
        """The directory that this is, or that a link leads to."""
        if isinstance(node, _File) and node.data is None:
            if node.leads_to is None and _is_listed(self._fs, node.below):
                node.leads_to = _Directory(node.below)
            node = node.leads_to
        if not isinstance(node, _Directory):
            raise self._error(errno.ENOTDIR, path)
        return node

    def _child(self, directory: _Directory, name: str) -> _File | _Directory | None:
        if name in directory.names or directory.below is None:
            return directory.names.get(name)
        below = f"{directory.below}/{name}".lstrip("/")
        if self._fs.is_dir(below):
            return directory.names.setdefault(name, _Directory(below))
        if not self._fs.exists(below):
            return None
        file = _File(below)
        return directory.names.setdefault(name, file) if _is_listed(self._fs, below) else file

    def _owned(self, path: str) -> _File | _Directory:
        """What stands there, which may get another name, or another content under all of its names."""
        node = self._node(path)
        if path:
            directory, name = self._place(path)
            directory.names[name] = node
        return node

    def _file(self, path: str, *, owned: bool = False) -> _File:
        node = self._owned(path) if owned else self._node(path)
        if isinstance(node, _Directory):
            raise self._error(errno.EISDIR, path, "it is a directory, not a file")
        return node

    def _directory(self, path: str) -> _Directory:
        return self._entered(self._node(path), path)

    def _place(self, path: str) -> tuple[_Directory, str]:
        above, _, name = path.rpartition("/")
        return self._directory(above), name

    def _free(self, path: str) -> tuple[_Directory, str]:
        directory, name = self._place(path)
        if self._child(directory, name) is not None:
            raise self._error(errno.EEXIST, path)
        self._check(directory.below)
        return directory, name

    def _take(self, path: str) -> None:
        directory, name = self._place(path)
        self._check(directory.below)
        directory.names[name] = None

    def _check(self, below: str | None) -> None:
        if below is not None and not self._may_change(below):
            raise self._error(errno.EACCES, below)

    def _error(self, number: int, path: str, why: str = "") -> OSError:
        return OSError(number, why or os.strerror(number), self._at + path)


def _is_listed(fs: FileSystem, path: str) -> bool:
    """Whether it is a directory, or leads to one."""
    with suppress(OSError):
        fs.list(path)
        return True
    return False
