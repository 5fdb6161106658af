"""What a space's journal is at a moment, from its files alone, also while its owner writes to it."""

from __future__ import annotations

import errno
from dataclasses import dataclass

from xaqueue.space.model.layout import JOURNAL
from xaqueue.space.offline.redo_view import Seen, read_journal
from xaqueue.space.owner.open import Owner
from xaqueue.storage.fs import FileSystem
from xaqueue.storage.journal_format import parse_name
from xaqueue.storage.regular import NO_FILE


@dataclass(frozen=True, slots=True)
class JournalStatus:
    """``end`` is the LSN of the next record; everything below ``checkpoint`` is durable in the directories."""

    end: int
    checkpoint: int
    segments: int
    allocated_bytes: int
    ahead: int
    """Records since the checkpoint."""
    damage: str = ""
    """What is wrong with it; then the other figures are those of its files."""


def journal_status(fs: FileSystem, owner: Owner | None, owned: bool) -> JournalStatus | None:
    """None where there is no journal. Raises SpaceError for a newer format."""
    return status_of(fs, read_journal(fs, owner, owned))


def status_of(fs: FileSystem, seen: Seen) -> JournalStatus | None:
    """The same, of a journal that was read."""
    if seen.found is not None:
        return JournalStatus(seen.found.position, seen.found.checkpoint, *_files(fs), len(seen.records))
    return JournalStatus(0, 0, *_files(fs), 0, seen.damage) if seen.damage else None


def _files(fs: FileSystem) -> tuple[int, int]:
    """How many segments there are, and their bytes."""
    sizes = []
    for name in fs.list(JOURNAL) if fs.is_dir(JOURNAL) else ():
        if parse_name(name) is not None:
            try:
                sizes.append(fs.size(f"{JOURNAL}/{name}"))
            except OSError as error:
                if error.errno not in (errno.ENOENT, *NO_FILE):
                    raise
    return len(sizes), sum(sizes)
