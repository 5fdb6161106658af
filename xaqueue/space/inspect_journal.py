"""What a space's journal is at a moment, from its files alone, also while its owner writes to it."""

from __future__ import annotations

from dataclasses import dataclass

from xaqueue.errors import JournalDamaged
from xaqueue.space import redo
from xaqueue.space.attach import Owner
from xaqueue.space.layout import JOURNAL
from xaqueue.storage.fs import FileSystem
from xaqueue.storage.scan import look
from xaqueue.storage.segments import parse_name

TRIES = 3
"""A segment that is being written, or renamed, may look damaged: what is so is so twice."""


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
    used = owner is not None and owner.journalled
    if not used and not fs.is_dir(JOURNAL):
        return None
    seen = ""
    for _ in range(TRIES):
        try:
            found = look(fs, JOURNAL, redo.sound, used=used)
            return JournalStatus(found.position, found.checkpoint, *_files(fs), len(found.records))
        except JournalDamaged as damage:
            if not owned or str(damage) == seen:
                return JournalStatus(0, 0, *_files(fs), 0, str(damage))
            seen = str(damage)
        except FileNotFoundError:
            continue
    return JournalStatus(0, 0, *_files(fs), 0)


def _files(fs: FileSystem) -> tuple[int, int]:
    """How many segments there are, and their bytes."""
    sizes = []
    for name in fs.list(JOURNAL) if fs.is_dir(JOURNAL) else ():
        if parse_name(name) is not None:
            try:
                sizes.append(fs.size(f"{JOURNAL}/{name}"))
            except FileNotFoundError:
                continue
    return len(sizes), sum(sizes)
