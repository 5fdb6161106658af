"""Opening a space finishes what a crash cut off: every branch is committed, rolled back or in doubt, never in part.

    prepared/ has .commit              the decision is made: rolled forward from wherever each block is found
    prepared/ has .000 and all of it   in doubt, its messages locked; or finished, where its one move is done already
    batches/ has a decision            what it lists is committed, and what else its query prepared rolled back
    prepared/ lacks a block            promised to nobody: rolled back; or the block is in quarantine: in doubt, damaged
    heuristic/ has a decision          an operator decided: completed, and remembered until forget
    active/                            rolled back (presumed rollback)

Branches come first, with the messages that they name. Once these are as they should be, and on disk, those in doubt may
be listed, committed and rolled back by others, while recovery goes on to load all other messages.

Recovery is idempotent: it may be killed at any call and run again. After a kill, what it finds may be what the kernel
remembers and not yet what the disk holds: so it syncs every directory before it touches prepared/, and behind that.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from xaqueue.core.engine import commit, heuristics, quarantine, redo
from xaqueue.core.engine.directory_log import STAGED
from xaqueue.core.engine.memory import RecoveryReport
from xaqueue.core.engine.state import Space
from xaqueue.core.model import change, layout
from xaqueue.core.model.block import NO_MESSAGE, NO_TRY, Head, Kind
from xaqueue.core.model.block_files import listed
from xaqueue.core.model.branch import Branch, Damaged, State, Written
from xaqueue.core.model.change import Kind as Step
from xaqueue.core.model.definitions import Definitions
from xaqueue.core.model.entry import Entry
from xaqueue.core.model.layout import ACTIVE, COMMIT, COMMITTED, DIRECTORIES, FIRST, PREPARED
from xaqueue.core.model.message_name import tags_of
from xaqueue.core.recovery import prepared
from xaqueue.core.recovery.from_journal import open_for_reading, open_journal
from xaqueue.core.recovery.load import Load, Progress, read_head
from xaqueue.core.recovery.prepared import PreparedBranch, Verdict, named
from xaqueue.core.storage.fs import FileSystem
from xaqueue.core.storage.hardening import DEFAULT, Hardening
from xaqueue.core.storage.journal import Journal
from xaqueue.core.storage.journal_format import Record
from xaqueue.core.storage.regular import DAMAGE, NO_FILE
from xaqueue.errors import DamagedBlock, JournalDamaged, ResourceFailed, RetryLater
from xaqueue.features.batches import batch_recovery
from xaqueue.features.dedup import dedup
from xaqueue.features.replica.copying import Replication
from xaqueue.features.replica.shipping import Shipping
from xaqueue.features.retries import moving, tries
from xaqueue.features.retries.register import Register
from xaqueue.features.snapshots import restored
from xaqueue.features.snapshots.restored import CameBack
from xaqueue.features.streams.cleanup import filled_archives
from xaqueue.message import MessageId
from xaqueue.xa import Outcome
from xaqueue.xid import Xid

log = logging.getLogger("xaqueue")

_RECORDED: dict[int, Outcome] = {
    Step.COMMIT: Outcome.COMMITTED,
    Step.ONE_PHASE: Outcome.COMMITTED,
    Step.ROLLBACK: Outcome.ROLLED_BACK,
}


def open_space(
    fs: FileSystem,
    definitions: Definitions | None = None,
    *,
    hardening: Hardening = DEFAULT,
    epoch: int = 1,
    progress: Progress | None = None,
    journalled: bool = False,
    suspect: bool = False,
    is_shared: bool = False,
    on_branches: Callable[[Space], object] = lambda _: None,
    replication: Callable[[], Replication] | None = None,
    **options: Any,
) -> Space:
    """Opens the directories behind ``fs``, which must exist, and recovers; for reading only where the journal is
    damaged.

    journalled: whether a journal is known to hold what the directories may lack. suspect: whether what is read may be
    in memory only, since a sync of it failed in this boot or may have; then it is written anew. is_shared: whoever had
    it before may come back; see ``Journal.start``. on_branches: called in the middle, once the branches are
    recovered: from then on sessions may use the verbs for those that are prepared or decided, while whoever adds, takes
    or browses waits for the messages. replication: what queues.toml says of it now; see ``Shipping``. options: see
    ``Space``.
    Raises OSError, SpaceError.
    """
    definitions = definitions or Definitions()
    try:
        now_ns = options.get("now_ns", time.time_ns)
        journal, records, notes = open_journal(
            fs, definitions, hardening, epoch, journalled, suspect, is_shared, clock=lambda: now_ns() // 1000
        )
    except JournalDamaged as damage:
        space = Space(fs, definitions, hardening=hardening, epoch=epoch, **options)
        open_for_reading(space, damage, progress)
        return space
    space = Space(fs, definitions, hardening=hardening, journal=journal, epoch=epoch, **options)
    if journal is not None and definitions.replication.is_on:
        _ship(space, journal, replication or (lambda: space.definitions.replication))
    _remember(space, records)
    try:
        space.report = _Recovery(space, suspect and journal is None).run(progress, lambda: on_branches(space))
        space.report.notes[:0] = notes
        if space.journal_log is not None:
            space.journal_log.register = Register(space.room.unreserved, space.held)
        space.measure()
        space.serve()
        space.log.settle()
    except BaseException as error:
        space.log.end(error)  # who opens it is told
        with space.lock:
            space.settled.notify_all()
        raise
    return space


def _remember(space: Space, records: Sequence[Record]) -> None:
    """Who was not told what became of a branch, or of a message on lease, may ask. That a local branch was rolled back
    is no answer: a lease that has ended looks like one that was given back."""
    for record in records:
        outcome = _RECORDED.get(record.kind)
        xid = layout.parse_xid(change.name_of(record)) if outcome is not None else None
        if outcome is not None and xid is not None and (outcome is Outcome.COMMITTED or not xid.is_local):
            space.remember(xid, outcome)


def _ship(space: Space, journal: Journal, policy: Callable[[], Replication]) -> None:
    """Replicas may follow the journal from here on."""
    log = space.journal_log
    assert log is not None
    space.shipping = Shipping(space.fs, journal, space.waiting, policy)
    log.shipped, log.ship_early = space.shipping.hardened, space.shipping.written
    log.when_fenced(space.shipping.stop)


class _Recovery:
    """Brings directories and memory into one consistent state."""

    def __init__(self, space: Space, suspect: bool) -> None:
        self.space = space
        self.fs = space.fs
        self.suspect = suspect
        self.report = RecoveryReport()
        self.lost: dict[Xid, list[str]] = {}

    def run(self, progress: Progress | None, answer: Callable[[], object]) -> RecoveryReport:
        """answer: called once the branches are recovered, and before the messages that they do not name are loaded."""
        started = time.monotonic()
        for name in DIRECTORIES:
            if not self.fs.is_dir(name):
                self.fs.make_dir(name)
        self.space.begin_counting(self._note)
        closed_with = self.space.counter_file.closed_with
        uncounted = {name: there - self.space.queue(name).counters.balance for name, there in closed_with.items()}
        self.space.restored = restored.read(self.fs)
        if self.space.restored.snapshot == restored.DAMAGED:
            self._note(
                f"the file {layout.RESTORED} is damaged: every message passes for a possible duplicate, and what is in "
                "doubt now is an operator's: put it back from a copy, or remove it once nothing of then is left"
            )
        messages = Load(self.space, self._set_aside, self._note)
        self._branches(messages)
        self.space.log.settle()
        self._harden()
        batch_recovery.prune(self.space)
        self._count_branches()
        messages.is_placed()
        answer()
        aside = len(self.report.quarantined)
        messages.rest(progress)
        self._tell_gone(uncounted)
        tries.count_killed(self.space, self._set_aside)
        if len(self.report.quarantined) > aside:
            self._sync_directories()
        if self.space.shipping is not None:
            self.space.is_whole.set()
            try:
                self.space.shipping.await_replica()
            except ResourceFailed:
                self.space.check()  # why it was stopped, where it was fenced
                raise
        self._publish(messages.highest)
        with self.space.lock:
            self.report.messages = sum(len(queue.index) for queue in self.space.queues.values())
        self.report.seconds = time.monotonic() - started
        log.info("[recovered] %s", self.report)
        return self.report

    def _branches(self, messages: Load) -> None:
        """Every branch becomes what it is to be."""
        self.lost = quarantine.lost_blocks(self.fs)
        batch_recovery.find(self.space, self._set_aside)
        self._clear_staged()
        active, prepared_files = self._blocks(ACTIVE), self._blocks(PREPARED)
        paths = [path for files in (*prepared_files.values(), *active.values()) for path in files.values()]
        wanted = named(self.fs, paths)
        messages.place(wanted)
        if prepared_files:  # after a kill the disk may lack a move that is seen here; what follows must not outlive it
            self._sync_directories()
        self._restore_keys(wanted)
        decided = batch_recovery.decisions(self.space, {**prepared_files, **self.lost}, self._set_aside, self._note)
        for xid in sorted({*prepared_files, *self.lost}, key=str):
            files = prepared_files.get(xid, {})
            earlier = active.pop(xid, {}) if COMMIT in files else {}
            self._prepared(xid, {**earlier, **files}, decided)
            if xid not in self.space.branches:
                self._remove(earlier.values())
        self._heuristic()
        done, undone = batch_recovery.settle(self.space, decided, self._note)
        self.report.rolled_forward += done
        self.report.rolled_back += undone
        for xid, files in active.items():
            self._roll_back(xid, files)

    def _clear_staged(self) -> None:
        """What a step had not given its name yet was promised to nobody."""
        for name in self.fs.list(ACTIVE):
            if name == redo.MAKING or name.startswith(STAGED):
                path = f"{ACTIVE}/{name}"
                if self.fs.is_dir(path):
                    self._set_aside(path, "a directory where a file should be")
                else:
                    self.fs.unlink(path)

    def _blocks(self, directory: str) -> dict[Xid, dict[str, str]]:
        found, foreign = prepared.branches(self.fs, directory)
        for path in foreign:
            self._set_aside(path, "no command block: its name is not <xid>.<number>")
        return found

    def _prepared(self, xid: Xid, files: dict[str, str], decided: batch_recovery.Decisions) -> None:
        found = prepared.survey(self.fs, xid, files, self.lost.get(xid, ()), self._holds, alone=True)
        match found.verdict:
            case Verdict.COMMITTING:
                self._roll_forward(found, files)
            case _ if batch_recovery.rolls_forward(self.space, decided, found, files):
                self._roll_forward(found, files)
            case Verdict.IN_DOUBT:
                self.space.branches[xid] = self._in_doubt(found)
            case Verdict.FINISHED:
                self._remove(files.values())
                self.space.remember(xid, Outcome.COMMITTED)
                self.report.committed += 1
            case Verdict.INCOMPLETE:
                for path, reason in found.broken:
                    self._set_aside(path, reason)
                if files:
                    self._roll_back(xid, files)

    def _holds(self, queue: str, message_id: MessageId) -> bool:
        return message_id in self.space.queue(queue).index

    def _is_done(self, head: Head) -> bool:
        """Whether its message has come, or gone."""
        return self._holds(head.properties.queue, head.message_id) is not (head.kind is Kind.DEQUEUE)

    def _in_doubt(self, found: PreparedBranch) -> Branch:
        """A branch in doubt: what it removes is locked, what is damaged is set aside and noted."""
        branch = Branch(found.xid, str(found.xid), base=State.PREPARED, prepared_at=found.prepared_at)
        for path, reason in found.broken:
            self._set_aside(path, reason)
        snapshot = self.space.restored.of_branch(found.xid)
        if snapshot:
            branch.riders = (CameBack(snapshot),)
        if damage := [path for path, _ in found.broken] + found.lost:
            branch.riders = (*branch.riders, Damaged(damage))
        self._add_each(branch, found, found.blocks)
        if found.list_path:
            branch.branch_block = _branch_block(found.list_path)
        return branch

    def _add_each(self, branch: Branch, found: PreparedBranch, blocks: Iterable[tuple[str, Head]]) -> None:
        """Its list says which keys it claims; where that is lost, it is taken to claim all."""
        for path, head in blocks:
            written = self._add(branch, path, head)
            if not path.endswith(f".{FIRST}"):
                key = found.rows[written.number - 1].key if found.rows else dedup.key_of(head)
                dedup.recover_key(self.space, branch, written, key)
        _tell_moves(branch, found)

    def _add(self, branch: Branch, path: str, head: Head) -> Written:
        queue = self.space.queue(head.properties.queue)
        entry: Entry | None
        if head.kind is Kind.DEQUEUE:
            entry = queue.index.lock(head.message_id)
            if entry is not None:
                entry.tries = head.properties.tries  # its rollback, cut off, may have counted it
        else:
            entry = Entry(0, head.message_id, tags_of(head.properties))
            queue.pending.add(head.message_id)
        number = int(path.rpartition(".")[2]) or 1
        written = Written(number, head.kind, queue.name, head.message_id, head.checksum, entry, path)
        written.is_try = NO_TRY not in head.properties.unknown
        branch.blocks.append(written)
        return written

    def _roll_forward(self, found: PreparedBranch, files: Mapping[str, str]) -> None:
        """What is left to do of a branch that is committed, from wherever each of its blocks is found."""
        xid = found.xid
        branch = Branch(xid, str(xid), base=State.COMMITTING if COMMIT in files else State.PREPARED)
        for path, reason in found.broken:
            self._set_aside(path, reason)
            if path.endswith((f".{COMMIT}", f".{FIRST}")):
                self._note(
                    f"branch {xid} is committed but its list of blocks is damaged: what was found of it is committed"
                )
            else:
                number = path.rpartition(".")[2].lstrip("0")
                lost = f"its block {number} was damaged and is in quarantine"
                self._note(f"branch {xid} is committed, but {lost}: the rest is committed")
        self._add_each(branch, found, [block for block in found.blocks if not self._is_done(block[1])])
        self._number_again(branch, found)
        if found.list_path:
            branch.branch_block = _branch_block(found.list_path)
        if branch.blocks or branch.branch_block is not None:
            commit.commit(self.space, branch)
        self._remove(files.values())
        self.space.remember(xid, Outcome.COMMITTED)
        self.report.rolled_forward += 1

    def _restore_keys(self, wanted: Mapping[str, Mapping[MessageId, bytes]]) -> None:
        """Before a branch goes that claims it: its message may have moved, and not the record of the key."""
        for name, ids in wanted.items():
            queue = self.space.queue(name)
            for message_id, key in ids.items() if queue.definition.dedup_window_s else ():
                entry = queue.index.find(message_id) if key else None
                if entry is not None:
                    path = layout.message_path(name, entry.seq, message_id, entry.tags)
                    dedup.restore(self.space, queue, key, read_head(self.fs, path), self.fs.modified_ns(path) // 1000)

    def _number_again(self, branch: Branch, found: PreparedBranch) -> None:
        """Messages of one commit have consecutive numbers in a queue: what has moved tells those of the rest.

        Not to a journal, where a record of a number below others says that what follows is lost: ``check_end``.
        """
        if self.space.log.is_atomic:
            return
        for name in {row.queue for row in found.rows if row.kind is Kind.ENQUEUE}:
            index = self.space.queue(name).index
            added = [row for row in found.rows if row.kind is Kind.ENQUEUE and row.queue == name]
            left = {w.message_id: w.entry for w in branch.blocks if w.kind is Kind.ENQUEUE and w.queue == name}
            moved = {row.message_id: entry for row in added if (entry := index.find(row.message_id))}
            bases = {moved[row.message_id].seq - n for n, row in enumerate(added) if row.message_id in moved}
            if not left or len(bases) != 1 or len(left) + len(moved) != len(added):
                continue  # none has moved, or something is lost: new numbers in the same order
            (base,) = bases
            wanted = {base + n: left[row.message_id] for n, row in enumerate(added) if row.message_id in left}
            if base > 0 and not any(self._is_taken(name, seq) for seq in wanted):
                for seq, entry in wanted.items():
                    assert entry is not None
                    entry.seq = seq

    def _is_taken(self, queue: str, seq: int) -> bool:
        directory, start = layout.range_path(queue, seq), f"{seq:016x}."
        return self.fs.is_dir(directory) and any(name.startswith(start) for name in self.fs.list(directory))

    def _heuristic(self) -> None:
        for name in listed(self.fs, layout.HEURISTIC):
            path = f"{layout.HEURISTIC}/{name}"
            xid = layout.parse_xid(name)
            try:
                decision = heuristics.read(self.fs, path) if xid else None
            except DamagedBlock as damage:
                self._set_aside(path, f"the record of a decision, damaged: {damage}")
                self._note(f"the decision on branch {xid} was damaged: if it is in doubt, decide again")
                continue
            if xid is None or decision is None:
                self._set_aside(path, "no record of a decision: its name is no xid")
                continue
            try:
                heuristics.complete(self.space, xid, decision)
            except RetryLater as lack:
                self._note(f"the decision on branch {xid} is not carried out yet: {lack}")
            self.report.heuristic += 1

    def _roll_back(self, xid: Xid, files: dict[str, str]) -> None:
        """Of a branch that is not prepared: what it held was tried."""
        held = []
        for path in files.values():
            try:
                head = read_head(self.fs, path)
            except (DamagedBlock, FileNotFoundError):
                continue  # torn by the crash, and promised to nobody; or set aside
            tried = head.kind is Kind.DEQUEUE and NO_TRY not in head.properties.unknown
            if tried and xid not in self.space.branches and not moving.is_own(xid):
                entry = self.space.queue(head.properties.queue).index.find(head.message_id)
                if entry is not None and not entry.locked and entry.tries <= head.properties.tries:
                    entry.tries = head.properties.tries
                    held.append((head.properties.queue, entry))
        tries.count(self.space, str(xid), held)
        self._remove(files.values())
        if xid not in self.space.branches:
            self.report.rolled_back += 1

    def _harden(self) -> None:
        """What was found of branches, and every name, becomes what is on disk."""
        branches = self.space.branches.values()
        paths = [written.path for branch in branches for written in branch.all_blocks]
        records = [queue.record for queue in self.space.queues.values() if queue.record is not None]
        paths += [layout.stream_path(record.queue) for record in records if not record.damage]
        paths += [layout.carrier_path(one.name) for one in self.space.carriers.values() if not one.damage]
        if self.suspect:  # with a journal they were replayed, or checked off before
            for path in paths:
                redo.write_anew(self.fs, path, [self.fs.read(path)], harden=self.space.log.sync_contents)
        else:
            self.space.log.sync_contents(paths)
        self._sync_directories()

    def _publish(self, highest: Mapping[str, int]) -> None:
        """Every message that was found is there for those who read the directories. What others add meanwhile they
        publish themselves.
        """
        space = self.space
        with space.lock:
            queues = [queue for queue in space.queues.values() if queue.exists]
            for queue in queues:
                queue.remove_empty_ranges(self.fs)
            used = [queue for queue in queues if queue.reserved]  # of the others there is nothing to publish
            for queue in used:
                found = highest.get(queue.name, 0)
                queue.published = max(queue.published, found)
                mark = queue.watermark._replace(published=found) if space.log.is_atomic and found else queue.watermark
                self.fs.write_at(layout.watermark_path(queue.name), 0, [layout.format_watermark(mark)])
        space.log.sync_contents([layout.watermark_path(queue.name) for queue in used])
        space.log.sync_names([layout.queue_path(queue.name) for queue in used])

    def _sync_directories(self) -> None:
        """Every name that is seen in them is on disk, and every one that is not is gone: targets of moves first."""
        keys = [path for name in self.space.queues if self.fs.is_dir(path := layout.keys_path(name))]
        queues = [path for queue in self.space.queues.values() for path in queue.directories()]
        records = [layout.QUARANTINE, layout.HEURISTIC, layout.BATCHES, layout.STREAMS, layout.CARRIERS]
        self.space.log.sync_names(
            [*filled_archives(self.space), *records, *keys, *queues, COMMITTED, PREPARED, ACTIVE, ""]
        )

    def _remove(self, paths: Iterable[str]) -> None:
        """The files of a branch that is over, of which a journal may have only the names; what is no file was never a
        block.
        """
        self.space.log.settle()
        for path in paths:
            try:
                self.fs.size(path)
                self.fs.unlink(path)
            except FileNotFoundError:
                continue
            except OSError as error:
                if error.errno not in NO_FILE:
                    raise
                self._set_aside(path, f"no block: {error.strerror}")

    def _set_aside(self, path: str, reason: str) -> None:
        try:
            target = quarantine.move(self.fs, path, reason, self.space.now_us())
        except OSError as error:
            if error.errno not in DAMAGE:
                raise
            self._note(f"{path} is damaged ({reason}) and cannot be moved: {error.strerror}; it is left alone")
            return
        self.report.quarantined.append(f"{path}: {reason}")
        log.warning("[quarantined] %s as %s: %s", path, target, reason)

    def _tell_gone(self, uncounted: Mapping[str, int]) -> None:
        """What was there when the space was closed, and left by no way that is counted.

        uncounted: by queue, how many messages more it had then than its counters say. Others may use it by now.
        """
        for name, more in sorted(uncounted.items()):
            place = layout.queue_path(name)
            with self.space.lock:
                queue = self.space.queue(name)
                gone = queue.counters.balance + more - len(queue.index)
            gone -= sum(f"{place}/" in text for text in self.report.quarantined)
            if gone > 0:
                self._note(
                    f"{gone:,} messages of queue {name} are gone: they were in {place}/ when the space was closed. "
                    "Bring the directory back from a copy, with nobody at work, or send them again"
                )

    def _note(self, text: str) -> None:
        self.report.notes.append(text)
        log.warning("[recovery-note] %s", text)

    def _count_branches(self) -> None:
        in_doubt = [branch for branch in self.space.branches.values() if branch.base is State.PREPARED]
        self.report.in_doubt = len(in_doubt)
        for branch in in_doubt:
            for damage in branch.damage:
                self._note(f"branch {branch.xid} is in doubt and lost {damage}: decide with `xaqueue indoubt`")


def _tell_moves(branch: Branch, found: PreparedBranch) -> None:
    """What a branch takes from one queue and adds to another was moved, as far as its blocks tell."""
    added = {row.message_id for row in found.rows if row.kind is Kind.ENQUEUE}
    for written in branch.blocks:
        if written.kind is Kind.DEQUEUE and written.message_id in added:
            moving.leaves(branch, written, moving.MOVED)


def _branch_block(path: str) -> Written:
    return Written(0, Kind.BRANCH, "", NO_MESSAGE, 0, path=path)
