"""A space on a disk that has no room at one call of a step, whichever that is."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from support import bare_space
from support.bare_space import BareSpace, FaultyFileSystem
from xaqueue.core.model.definitions import Definitions, QueueDefinition
from xaqueue.core.storage.journal import SMALLEST_SEGMENT_BYTES

NEEDS_ROOM = ("create", "rename", "unlink", "make_dir", "write_at", "set_modified_ns", "hold_dir")
"""The last needs a descriptor, which counts as room. The journal has its own, made before."""
GROWS = ("create", "rename", "make_dir", "write_at")
PLACES = ("active/", "prepared/", "committed/")
LARGE_BYTES = 8 * 1024
"""A branch with such a block has it in active/ from the beginning, at level JOURNAL too."""


class NarrowFileSystem(FaultyFileSystem):
    """Once told so, it has no room at the call of this number, and none for that call until it is told that there is.

    ``spreads``: nor for anything from there on that makes the directories larger. Nothing is synced: a process may be
    killed here, and the power stays.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        super().__init__(root)
        self._left: int | None = None
        self._spreads = False

    def fill(self, at: int, *, spreads: bool = False) -> None:
        self._left, self._spreads = at, spreads
        self.struck.clear()

    def free(self) -> None:
        self._left = None
        self.faults.clear()

    def strike(self, call: str, path: str) -> None:
        if self._left is not None and call in NEEDS_ROOM and not path.startswith("journal"):
            if self._left == 0:
                self.faults[call, path] = errno.EMFILE if call == "hold_dir" else errno.ENOSPC
                if self._spreads:
                    self.faults.update({(grows, place): errno.ENOSPC for grows in GROWS for place in PLACES})
            self._left -= 1
        super().strike(call, path)

    def sync_file(self, path: str) -> None:
        self.strike("sync_file", path)

    def sync_data(self, path: str) -> None:
        self.strike("sync_data", path)

    def sync_dir(self, path: str) -> None:
        self.strike("sync_dir", path)

    def sync_all(self) -> None:
        self.strike("sync_all", "")


@contextmanager
def narrow_space(root: Path, sync: str) -> Iterator[tuple[BareSpace, NarrowFileSystem]]:
    """With nothing of its messages in memory, and a small journal."""
    definitions = Definitions(default=QueueDefinition(), cache_bytes=0, journal_segment_bytes=SMALLEST_SEGMENT_BYTES)
    with (
        mock.patch.object(bare_space, "FaultyFileSystem", NarrowFileSystem),
        mock.patch("xaqueue.core.engine.journal_log.KEPT_BYTES", LARGE_BYTES),
        bare_space.bare_space(root, sync, definitions=definitions) as bare,
    ):
        fs = bare.fs
        assert isinstance(fs, NarrowFileSystem)
        yield bare, fs
