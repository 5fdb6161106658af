"""Room that is kept on the disk for the calls that must not fail for want of it, and given up piece by piece.

A piece is a file of the reserve's directory: some bytes and an inode. A call that finds no room removes one and is
tried again, as long as there are pieces. What is in them is never read. One that a crash left short is made again.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from contextlib import suppress

from xaqueue.core.storage.fs import FileSystem, discard
from xaqueue.core.storage.regular import NO_FILE

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Errors against which a piece helps."""
PIECES = 16
PIECE_BYTES = 64 * 1024
PAGE_BYTES = 4096
SHARE = 16
"""The reserve takes this part of a small file system, at most."""


class Reserve:
    """The pieces, in a directory of their own. Safe for several threads."""

    def __init__(self, fs: FileSystem, directory: str = "reserve") -> None:
        """``fs``: a port that keeps no descriptors, since pieces are never synced."""
        self._fs = fs
        self._directory = directory
        self._making = threading.Lock()
        room = fs.room()
        share = min(PIECES * PIECE_BYTES, room.total_bytes // SHARE)
        self.piece_bytes = max(share // PIECES // PAGE_BYTES, 1) * PAGE_BYTES
        inodes = room.total_inodes // SHARE if room.total_inodes else PIECES
        self.pieces = min(PIECES, share // self.piece_bytes, inodes)
        """How many there are to be."""
        self.used: Callable[[], None] = lambda: None
        """Called when a piece was given up."""
        self._names = self._found()

    def _found(self) -> list[str]:
        """What an earlier owner left."""
        if not self._fs.is_dir(self._directory):
            return []
        wanted = {self._name(number) for number in range(1, self.pieces + 1)}
        return [name for name in self._fs.list(self._directory) if name in wanted and self._is_piece(name)]

    def _is_piece(self, name: str) -> bool:
        try:
            return self._fs.size(self._path(name)) == self.piece_bytes
        except OSError as error:
            if error.errno not in NO_FILE:
                raise
            return False

    @property
    def missing(self) -> int:
        """How many pieces were given up and not made again."""
        return self.pieces - len(self._names)

    def make(self) -> None:
        """Makes the pieces that are missing. Raises OSError, one of ``FULL`` without room; what was made stays."""
        with self._making:
            if not self._fs.is_dir(self._directory):
                self._fs.make_dir(self._directory)
            content = os.urandom(self.piece_bytes)  # where zeros are compressed they take no room
            for number in range(1, self.pieces + 1):
                name = self._name(number)
                if name not in self._names:
                    discard(self._fs, self._path(name))  # one that was cut short
                    with suppress(FileExistsError):  # a directory, which somebody has put there
                        self._fs.create(self._path(name), [content])
                        self._names.append(name)

    def give_up(self) -> bool:
        """Removes a piece, for a call that found no room; False when there is none left."""
        while self._names:
            with suppress(IndexError, OSError):  # another thread was faster, or somebody removed it
                self._fs.unlink(self._path(self._names.pop()))
                self.used()
                return True
        return False

    def again(self, error: OSError, call: Callable[..., object], *arguments: object) -> None:
        """Does a call that failed with this error again, as long as pieces can be given up for it. Raises its last."""
        while error.errno in FULL and self.give_up():
            try:
                call(*arguments)
            except OSError as other:
                error = other
            else:
                return
        raise error

    def _path(self, name: str) -> str:
        return f"{self._directory}/{name}"

    @staticmethod
    def _name(number: int) -> str:
        return f"{number:02d}"
