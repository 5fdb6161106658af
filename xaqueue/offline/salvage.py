"""A damaged journal is given up: what can be read of it is done again, all of it is kept, and a new one begins.

Every record is a whole step and says what becomes of each file it names, so those behind a loss are done as well as
those before it. What stood in the lost part is as the directories have it by chance. That may cost what was
acknowledged, so nobody does it but an operator who was shown what is lost.

    done again and synced -> new segment, above every LSN that was ever used -> the others renamed to .archive

Until the new segment is there the journal is damaged still, and this is to be done again; the renames that a crash
leaves are finished by the next open.
"""

from __future__ import annotations

import logging
import os
import time
from contextlib import suppress
from dataclasses import dataclass

from xaqueue.core.engine import quarantine, redo
from xaqueue.core.model import change, layout
from xaqueue.core.model.change import is_valid
from xaqueue.core.model.format import read_format
from xaqueue.core.model.layout import JOURNAL
from xaqueue.core.owner.definitions_file import usable_definitions
from xaqueue.core.owner.record import Owner, find_group
from xaqueue.core.recovery.from_journal import check_end
from xaqueue.core.storage.fs import FileSystem
from xaqueue.core.storage.journal import whole_sectors
from xaqueue.core.storage.journal_files import free_archive, make_segment
from xaqueue.core.storage.journal_format import Record, Segment
from xaqueue.core.storage.journal_reader import look
from xaqueue.errors import JournalDamaged, SpaceError
from xaqueue.features.kinds import KINDS
from xaqueue.offline.journal_remains import Gap, read_readable
from xaqueue.offline.plan import GIVEN_UP, KEPT, Item, Plan, Site, counted, site_of

log = logging.getLogger("xaqueue")


@dataclass(frozen=True, slots=True)
class StepRead:
    """A step of which the record can be read. ``behind``: behind a loss, so that others may be missing before it."""

    lsn: int
    kind: str
    xid: str
    queues: list[str]
    behind: bool


@dataclass(frozen=True, slots=True)
class JournalLoss:
    """What is wrong with a journal, what of it cannot be read, what can, and which files are gone that it had moved."""

    damage: str
    files: list[str]
    gaps: list[Gap]
    steps: list[StepRead]


@dataclass(frozen=True, slots=True)
class Salvaged:
    """What was done: how many steps, where the old segments are, and what is worth a note."""

    steps: int
    archives: list[str]
    notes: list[str]

    def tell(self, plan: Plan, loss: JournalLoss) -> None:
        lost = [str(gap) for gap in loss.gaps] + ([counted(len(loss.files), "file")] if loss.files else [])
        done, wrong = f"{counted(self.steps, 'step')} done again; a new journal begins", loss.damage.partition(". ")[0]
        plan.items.append(Item(f"{JOURNAL}/", wrong, GIVEN_UP, done, ", ".join(lost)))
        plan.items += (Item(archive, "", KEPT) for archive in self.archives)
        plan.notes += self.notes


def find_loss(place: Site | str | os.PathLike[str]) -> JournalLoss | None:
    """What is lost of a space's journal; None where it is sound. Changes nothing. Raises SpaceError, OSError."""
    site = site_of(place)
    read_format(site)
    fs = site.files()
    damage = _damage(fs, site.owner())
    if damage is None:
        return None
    readable = read_readable(fs, JOURNAL, is_valid)
    gaps = readable.gaps or ([] if damage.lost_from is None else [Gap(damage.lost_from, None, readable.files[-1])])
    first = min((gap.start for gap in gaps), default=None)
    steps = [_step(record, first is not None and record.lsn > first) for record in readable.records]
    return JournalLoss(str(damage), list(damage.lost_files), gaps, steps)


def salvage(place: Site | str | os.PathLike[str]) -> Salvaged:
    """Goes on without what is lost. Raises SpaceInUse, SpaceError where the journal is sound, OSError."""
    site = site_of(place)
    read_format(site)
    definitions, _ = usable_definitions(site)
    find_group(definitions.readers)
    with site.held(keep_unsynced=True) as fs:
        if _damage(fs, site.owner()) is None:
            raise SpaceError(f"the journal of {os.fspath(site)} is sound: nothing is to be given up")
        done = give_up(fs, definitions.journal_segment_bytes)
        text = "[journal-salvaged] the journal of %s was given up; %d steps of it were done again"
        log.warning(text, os.fspath(site), done.steps)
    return done


def give_up(fs: FileSystem, segment_bytes: int) -> Salvaged:
    """Does what can be read of the journal again, and begins a new one. Raises OSError."""
    readable = read_readable(fs, JOURNAL, is_valid)
    for name in (*layout.directories(), JOURNAL):
        if not fs.is_dir(name):
            if fs.exists(name):
                quarantine.move(fs, name, "a file where a directory should be", time.time_ns() // 1000)
            fs.make_dir(name)
    notes = redo.replay(fs, readable.records, KINDS, rewrites=True, without_lost=True)
    fs.sync_all()
    for name in readable.unused:
        fs.unlink(f"{JOURNAL}/{name}")
    size, epoch = whole_sectors(segment_bytes), readable.epoch + 1
    make_segment(fs, JOURNAL, Segment(readable.fresh, size, checkpoint=readable.fresh, epoch=epoch))
    archives = []
    for name in readable.files:
        archives.append(free_archive(fs, f"{JOURNAL}/{name}"))
        fs.rename(f"{JOURNAL}/{name}", archives[-1])
        with suppress(OSError):  # a link may lead nowhere
            fs.set_modified_ns(archives[-1], time.time_ns())  # since when it is set aside, and not written
    fs.sync_dir(JOURNAL)
    return Salvaged(len(readable.records), archives, notes)


def _damage(fs: FileSystem, owner: Owner | None) -> JournalDamaged | None:
    try:
        found = look(fs, JOURNAL, is_valid, used=owner is not None and owner.journalled)
        check_end(fs, found.records, found.position)
        lost = redo.find_lost(fs, found.records, KINDS)
    except JournalDamaged as damage:
        return damage
    return redo.lost_error(list(lost.values())) if lost else None


def _step(record: Record, behind: bool) -> StepRead:
    kind = change.step_name(record.kind).replace("_", " ")
    return StepRead(record.lsn, kind, change.name_of(record), change.queues_of(record), behind)
