"""The port of an owner that may be taken over while it runs: it may have been stopped, and is continued later.

Before each call that changes something it looks whether it is the owner still. Then one call, of each thread, may be on
its way already when another process takes the directory over, and be done at any time afterwards. So whatever appears
in the directory, or is put in the place of something, is a rename of a file that was made in a directory of this
owner's alone. Whoever takes over removes that one first (``retire``): a call that comes late finds nothing to rename.

    create, link     made in the own directory, and renamed
    write_at         likewise, as a whole; but in place (``is_in_place``) what the next owner reads no more behind its
                     takeover, or believes nothing of
    a temporary      (.NAME.new, journal/NAME.new, .replay) stands in the own directory until it is renamed
    rename, unlink   of names that the next owner has seen in their last state, since both have the same records

Crash safety: what ``create`` makes may not be on disk when it has its name, as without all this. What replaces a file
that stands is on disk first: a crash must not tear what was written long ago, and a write in place would not.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count

from xaqueue.core.storage.fs import FileSystem, Syncing, synced, writer_of
from xaqueue.core.storage.layers import Layer

OWN = ".owner-"
"""Begins the name of an owner's own directory."""
TRIES = 100
"""Of removing a directory in which each thread of its owner may make one more file."""


class PairFileSystem(Layer):
    """Safe for as many threads as the port below."""

    def __init__(
        self,
        fs: FileSystem,
        above: str,
        token: str,
        check: Callable[[], object],
        is_in_place: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """above: where the own directory is made, which no other owner names by the same token. check: raises where
        another process is the owner. Raises OSError.
        """
        super().__init__(fs)
        self.exists = self._exists
        self.sync_dir = fs.sync_dir
        self.sync_all = fs.sync_all
        self.check = check
        self._is_in_place = is_in_place
        self._own = f"{above}/{OWN}{token}"
        self._numbers = count()
        self.make_dir(self._own)

    def leave(self) -> None:
        """Nothing more is made."""
        with suppress(OSError):
            self._fs.remove_dir(self._own)

    def create(self, path: str, chunks: Sequence[bytes], modified_ns: int = 0) -> None:
        self.check()
        if self._is_temporary(path):
            self._fs.create(self._place(path), chunks, modified_ns)
            return
        own = self._checked(path)
        self._fs.create(own, chunks, modified_ns)
        self._give(own, path)

    def link(self, source: str, target: str) -> None:
        self.check()
        if self._is_temporary(target):
            self._fs.link(source, self._place(target))
            return
        own = self._checked(target)
        self._fs.link(source, own)
        self._give(own, target)

    def write_at(self, path: str, offset: int, chunks: Sequence[bytes]) -> None:
        self.check()
        if self._is_in_place(path):
            self._fs.write_at(path, offset, chunks)
            return
        try:
            before = self._fs.read(path)
        except FileNotFoundError:
            before = b""
        own, data = self._next(), b"".join(chunks)
        self._fs.create(own, [before[:offset].ljust(offset, b"\0"), data, before[offset + len(data) :]])
        synced(self._fs.sync_data, own)
        self._give(own, path)

    def write_synced(self, path: str, offset: int, chunks: Sequence[bytes], syncing: Syncing = None) -> None:
        self.check()
        if self._is_in_place(path):
            self._fs.write_synced(path, offset, chunks, syncing)
        else:
            self.write_at(path, offset, chunks)  # which syncs it

    writer = writer_of

    def rename(self, source: str, target: str) -> None:
        self.check()
        self._fs.rename(self._place(source), target)

    def unlink(self, path: str) -> None:
        self.check()
        own = self._place(path)
        self._fs.unlink(own if self._fs.exists(own) else path)  # which an owner that was in no pair has left

    def make_dir(self, path: str) -> None:
        self.check()
        self._fs.make_dir(path)

    def remove_dir(self, path: str) -> None:
        self.check()
        self._fs.remove_dir(path)

    def set_modified_ns(self, path: str, when_ns: int) -> None:
        self.check()
        self._fs.set_modified_ns(self._place(path), when_ns)

    def sync_file(self, path: str) -> None:
        self._fs.sync_file(self._place(path))

    def sync_data(self, path: str) -> None:
        self._fs.sync_data(self._place(path))

    def _exists(self, path: str) -> bool:
        return self._fs.exists(self._place(path))

    def _is_temporary(self, path: str) -> bool:
        """A queue may have such a name, too."""
        if path.endswith(".new"):
            return (path[0] == "." and "/" not in path) or self._is_in_place(path)
        return path.endswith("/.replay")

    def _place(self, path: str) -> str:
        return f"{self._own}/{path.replace('/', '~')}" if self._is_temporary(path) else path

    def _next(self) -> str:
        return f"{self._own}/{next(self._numbers)}"

    def _checked(self, path: str) -> str:
        """Where a file is made that gets this name. Raises FileExistsError: nobody else makes it meanwhile."""
        if self._fs.exists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        return self._next()

    def _give(self, own: str, path: str) -> None:
        try:
            self.check()
            self._fs.rename(own, path)
        except BaseException:
            with suppress(OSError):
                self._fs.unlink(own)
            raise


def retire(fs: FileSystem, above: str, check: Callable[[], object]) -> None:
    """No former owner renames anything into the directory any more. Raises OSError, and what ``check`` raises."""
    names = fs.list(above) if fs.is_dir(above) else []
    check()  # behind which they are not those of the next one
    for name in names:
        if not name.startswith(OWN):
            continue
        for left in range(TRIES, -1, -1):
            for file in fs.list(f"{above}/{name}"):
                with suppress(FileNotFoundError):
                    fs.unlink(f"{above}/{name}/{file}")
            try:
                fs.remove_dir(f"{above}/{name}")
                break
            except OSError as error:
                if error.errno != errno.ENOTEMPTY or not left:
                    raise
