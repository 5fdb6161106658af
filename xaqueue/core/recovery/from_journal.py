"""What an open makes of the journal: the directories become what it says, unless they prove that its end was lost.

A journal whose end was lost looks like one that ended; whether committed/ has what it no longer tells of is seen so. A
message gets its file only once its record is on disk, and numbers only go up. So where the records name messages of
a queue, no file of it and no watermark is above the highest of them; what is was acknowledged, and its record is lost.
A queue of which the records say nothing proves nothing.

Where it is damaged the space is opened for reading only: it shows what the directories hold, and changes nothing. They
may be behind what was acknowledged, so nothing that is missing is known to be lost: a branch that is not listed may be
prepared all the same. Every verb that would change something says what is damaged and what to do.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from xaqueue.core.engine import heuristics, quarantine, redo
from xaqueue.core.engine.disk_space import segment_bytes
from xaqueue.core.engine.features import Keeping
from xaqueue.core.engine.state import Space, log
from xaqueue.core.model import change, layout
from xaqueue.core.model.block_files import listed, ranges_in
from xaqueue.core.model.branch import Branch, Damaged, State
from xaqueue.core.model.change import CoreStep, highest_numbers
from xaqueue.core.model.definitions import Definitions
from xaqueue.core.model.message_name import parse_any
from xaqueue.core.model.record_kinds import Opening, RecordKinds
from xaqueue.core.recovery import prepared
from xaqueue.core.recovery.load import Load, Progress
from xaqueue.core.recovery.prepared import Verdict
from xaqueue.core.storage.fs import NO_ROOM, FileSystem
from xaqueue.core.storage.hardening import Hardening
from xaqueue.core.storage.journal import Journal, checkpoint_entry, time_entry
from xaqueue.core.storage.journal_format import Record
from xaqueue.core.storage.journal_reader import damage_of
from xaqueue.core.storage.layers import ReadOnlyFileSystem
from xaqueue.errors import DamagedBlock, JournalDamaged, ResourceFailed
from xaqueue.message import MessageId
from xaqueue.xa import Outcome

_RECORDED: dict[int, Outcome] = {
    CoreStep.COMMIT: Outcome.COMMITTED,
    CoreStep.ONE_PHASE: Outcome.COMMITTED,
    CoreStep.ROLLBACK: Outcome.ROLLED_BACK,
}


def open_journal(
    fs: FileSystem,
    definitions: Definitions,
    kinds: RecordKinds,
    hardening: Hardening,
    epoch: int,
    used: bool,
    suspect: bool,
    keeping: Keeping = Keeping(),  # noqa: B008 - nothing changes it
    clock: Callable[[], int] = lambda: time.time_ns() // 1000,
) -> tuple[Journal | None, Sequence[Record], list[str]]:
    """Makes the directories what the journal says. The journal, where steps are to be recorded; what it held, and of
    what a checkpoint covers the steps of local branches; and what is worth a note. Raises JournalDamaged.

    clock: for the times of rounds.
    """
    if not hardening.journal and not used and not fs.is_dir(layout.JOURNAL):
        return None, (), []
    fs.hold_dir("")
    used = used or (fs.exists(layout.JOURNAL) and not fs.is_dir(layout.JOURNAL))  # something stands for it
    size = segment_bytes(definitions, fs.room())
    keeps = bool(keeping.kept_in) and hardening.journal
    journal = Journal(fs, layout.JOURNAL, segment_bytes=size, is_valid=change.is_valid, used=used, epoch=epoch)
    records, steps = journal.replay, [*filter(_is_local, journal.covered), *journal.replay]
    check_end(fs, records, journal.position)
    journal.harden(rewrites=suspect)
    begun = journal.position  # 0 where there is none
    if keeps:
        redo.make_dirs(fs, keeping.kept_in)
        fs.sync_dir(keeping.kept_in.rpartition("/")[0])
        fs.sync_dir("")
        clock = _rising(clock)
        journal.kept = keeping.kept_in
        if keeping.is_timed:
            journal.clock = clock
    notes: list[str] = []
    if records:
        notes += redo.replay(fs, records, kinds, rewrites=suspect)
        fs.sync_all()
    if journal.position or suspect or hardening.journal:
        carried = [checkpoint_entry(begun), time_entry(clock())] if keeps else []
        # Whoever had the old one may write, or read, there yet.
        notes += journal.start(carried, is_shared=keeping.is_shared)
    else:
        journal.tidy()
    if keeps and not begun:
        journal.write([time_entry(clock())])
    if records:
        journal.write_checkpoint(journal.position)
        journal.recycle()
        log.info("[journal-replayed] %d records of the journal were done again", len(records))
    for note in notes:
        log.warning("[journal-note] %s", note)
    return journal if hardening.journal else None, steps, notes


def remember(space: Space, records: Sequence[Record]) -> None:
    """Who was not told what became of a branch, or of a message on lease, may ask. That a local branch was rolled back
    is no answer: a lease that has ended looks like one that was given back."""
    for record in records:
        outcome = _RECORDED.get(record.kind)
        xid = layout.parse_xid(change.name_of(record)) if outcome is not None else None
        if outcome is not None and xid is not None and (outcome is Outcome.COMMITTED or not xid.is_local):
            space.outcomes.remember(xid, outcome)


def _is_local(record: Record) -> bool:
    """Such a branch has no other life, as one has whose name somebody chose: what became of it is true for good."""
    if record.kind != CoreStep.ONE_PHASE:
        return False
    xid = layout.parse_xid(change.name_of(record))
    return xid is not None and xid.is_local


def _rising(clock: Callable[[], int]) -> Callable[[], int]:
    """No two rounds have one time, and none an earlier one than the round before it, however the clock is set."""
    last = 0

    def rising() -> int:
        nonlocal last
        last = max(last + 1, clock())
        return last

    return rising


def check_end(fs: FileSystem, records: Sequence[Record], end: int) -> None:
    """JournalDamaged where the directories prove that records are lost behind these, which end at that LSN. Changes
    nothing.
    """
    for queue, seq in highest_numbers(records).items():
        beyond = _highest(fs, queue, seq)
        if beyond > seq:
            raise damage_of(
                layout.JOURNAL,
                f"it was cut short at LSN {end:#x}: committed/ has message {beyond} of queue {queue}, and the last one "
                f"that the journal tells of is {seq}",
                end,
            )


def _highest(fs: FileSystem, queue: str, seq: int) -> int:
    """The highest number of the queue from this one on, by its watermark and its files."""
    found = seq
    with _what_can_be_read():
        watermark = layout.parse_watermark(fs.read(layout.watermark_path(queue), layout.WATERMARK_BYTES))
        found = max(found, watermark.published if watermark is not None else 0)
    with _what_can_be_read():
        for number in ranges_in(fs, queue):
            if number >= seq >> layout.RANGE_BITS:
                with _what_can_be_read():
                    found = _highest_message(fs, layout.range_path(queue, number << layout.RANGE_BITS), found)
    return found


def _highest_message(fs: FileSystem, directory: str, above: int) -> int:
    """The highest number of a message there, or this one. A name alone proves nothing: anybody may have put it."""
    found = sorted((named.last, name) for name in fs.list(directory) if (named := parse_any(name)) is not None)
    paths = ((last, f"{directory}/{name}") for last, name in reversed(found) if last > above)
    return next((last for last, path in paths if redo.is_that(fs, path, path)), above)


@contextmanager
def _what_can_be_read() -> Iterator[None]:
    """A file that cannot be read proves nothing; that there is no descriptor for it says nothing of it."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_ROOM:
            raise


def open_for_reading(space: Space, damage: JournalDamaged, kinds: RecordKinds, progress: Progress | None) -> None:
    """Fills the memory of a space, and its report, from what the directories hold, and fences it with the damage."""
    started, report = time.monotonic(), space.report
    space.read_only = damage
    space.fs = ReadOnlyFileSystem(space.fs)
    space.log.end(ResourceFailed(f"the space is open for reading only: {damage}"))
    log.error("[read-only] the space is open for reading only: %s", damage)
    report.notes.append(str(damage))
    opening = Opening(space, lambda path, reason: report.notes.append(f"{path}: {reason}"), report.notes.append)
    for kind in kinds:
        kind.begin(opening)
    messages = Load(space, opening.set_aside, opening.note)
    for kind in kinds:
        kind.find(opening)
    messages.rest(progress)
    report.messages = sum(len(queue.index) for queue in space.queues.values())
    _prepared(space, kinds)
    _decided(space)
    report.in_doubt = sum(1 for branch in space.branches.values() if branch.base is State.PREPARED)
    report.heuristic = len(space.branches) - report.in_doubt
    report.seconds = time.monotonic() - started
    space.loaded = True


def _prepared(space: Space, kinds: RecordKinds) -> None:
    """Branches as their files in prepared/ say."""

    def holds(queue: str, message_id: MessageId) -> bool:
        return message_id in space.queue(queue).index

    found, _ = prepared.prepared(space.fs)
    lost = quarantine.lost_blocks(space.fs)
    for xid in {**found, **lost}:
        status = prepared.survey(space.fs, xid, found.get(xid, {}), lost.get(xid, ()), holds, kinds=kinds)
        if status.verdict is Verdict.IN_DOUBT and (status.blocks or status.damage):
            branch = Branch(xid, str(xid), base=State.PREPARED, prepared_at=status.prepared_at)
            branch.riders = (Damaged(status.damage),) if status.damage else ()
            space.branches[xid] = branch
        elif status.verdict in (Verdict.COMMITTING, Verdict.FINISHED):
            space.outcomes.remember(xid, Outcome.COMMITTED)


def _decided(space: Space) -> None:
    """What operators decided."""
    for name in listed(space.fs, layout.HEURISTIC):
        xid = layout.parse_xid(name)
        if xid is None:
            continue
        try:
            decision = heuristics.read(space.fs, f"{layout.HEURISTIC}/{name}")
        except DamagedBlock:
            continue
        space.branches[xid] = Branch(xid, str(xid), base=heuristics.OUTCOMES[decision.outcome])
