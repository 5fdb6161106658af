"""Opening a space finishes what a crash cut off: every branch is committed, rolled back or in doubt, never in part.

    prepared/ has .commit              the decision is made: rolled forward from wherever each block is found
    prepared/ has .000 and all of it   in doubt, its messages locked; or finished, where its one move is done already
    a record of another kind decides   what it lists is committed, and what else belongs to that rolled back
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
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from xaqueue.core.engine import commit, heuristics, quarantine, redo
from xaqueue.core.engine.directory_log import STAGED
from xaqueue.core.engine.memory import RecoveryReport
from xaqueue.core.engine.state import Space
from xaqueue.core.model import layout
from xaqueue.core.model.block import NO_MESSAGE, NO_TRY, Head, Kind
from xaqueue.core.model.branch import Branch, Damaged, State, Written
from xaqueue.core.model.definitions import Definitions
from xaqueue.core.model.entry import Entry
from xaqueue.core.model.layout import ACTIVE, COMMIT, COMMITTED, FIRST, PREPARED
from xaqueue.core.model.message_name import tags_of
from xaqueue.core.model.record_kinds import Opening, RecordKinds
from xaqueue.core.recovery import prepared
from xaqueue.core.recovery.from_journal import open_for_reading, open_journal, remember
from xaqueue.core.recovery.load import Load, Progress, read_head
from xaqueue.core.recovery.prepared import PreparedBranch, Verdict, named
from xaqueue.core.storage.fs import FileSystem
from xaqueue.core.storage.hardening import DEFAULT, Hardening
from xaqueue.core.storage.journal import Journal
from xaqueue.core.storage.regular import DAMAGE, NO_FILE
from xaqueue.errors import DamagedBlock, JournalDamaged, ResourceFailed
from xaqueue.features.replica import options as copies
from xaqueue.features.replica.shipping import Shipping
from xaqueue.message import MessageId
from xaqueue.xa import Outcome
from xaqueue.xid import Xid

log = logging.getLogger("xaqueue")


def open_space(
    fs: FileSystem,
    definitions: Definitions | None = None,
    *,
    kinds: RecordKinds,
    hardening: Hardening = DEFAULT,
    epoch: int = 1,
    progress: Progress | None = None,
    journalled: bool = False,
    suspect: bool = False,
    is_shared: bool = False,
    on_branches: Callable[[Space], object] = lambda _: None,
    replication: Callable[[], copies.Replication] | None = None,
    **options: Any,
) -> Space:
    """Opens the directories behind ``fs``, which must exist, and recovers; for reading only where the journal is
    damaged.

    kinds: of records that the space may have beside the core's own. journalled: whether a journal is known to hold what
    the directories may lack. suspect: whether what is read may be in memory only, since a sync of it failed in this
    boot or may have; then it is written anew. is_shared: whoever had it before may come back; see ``Journal.start``.
    on_branches: called in the middle, once the branches are recovered: from then on sessions may use the verbs for
    those that are prepared or decided, while whoever adds, takes or browses waits for the messages. replication: what
    queues.toml says of it now; see ``Shipping``. options: see ``Space``.
    Raises OSError, SpaceError.
    """
    definitions = definitions or Definitions()
    try:
        now_ns = options.get("now_ns", time.time_ns)
        journal, records, notes = open_journal(
            fs,
            definitions,
            kinds,
            hardening,
            epoch,
            journalled,
            suspect,
            is_shared or copies.waits(definitions),
            keeps=copies.is_kept(definitions),
            is_timed=copies.is_timed(definitions),
            clock=lambda: now_ns() // 1000,
        )
    except JournalDamaged as damage:
        space = Space(fs, definitions, hardening=hardening, epoch=epoch, **options)
        open_for_reading(space, damage, kinds, progress)
        return space
    space = Space(fs, definitions, hardening=hardening, journal=journal, epoch=epoch, **options)
    if journal is not None and copies.is_on(definitions):
        _ship(space, journal, replication or (lambda: copies.policy_of(space.definitions)))
    remember(space, records)
    try:
        _Recovery(space, kinds, suspect and journal is None).run(progress, lambda: on_branches(space))
        space.report.notes[:0] = notes
        space.measure()
        space.serve()
        space.log.settle()
    except BaseException as error:
        space.log.end(error)  # who opens it is told
        with space.lock:
            space.settled.notify_all()
        raise
    return space


def _ship(space: Space, journal: Journal, policy: Callable[[], copies.Replication]) -> None:
    """Replicas may follow the journal from here on."""
    space.shipping = Shipping(space.fs, journal, space.waiting, policy)
    space.log.ship(space.shipping)
    space.log.when_fenced(space.shipping.stop)


class _Recovery:
    """Brings directories and memory into one consistent state."""

    def __init__(self, space: Space, kinds: RecordKinds, suspect: bool) -> None:
        self.space = space
        self.kinds = (heuristics.KIND, *kinds)
        self.opening = Opening(space, self._set_aside, self._note)
        self.fs = space.fs
        self.suspect = suspect
        self.report = space.report
        self.lost: dict[Xid, list[str]] = {}

    def run(self, progress: Progress | None, answer: Callable[[], object]) -> RecoveryReport:
        """answer: called once the branches are recovered, and before the messages that they do not name are loaded."""
        started = time.monotonic()
        for name in layout.directories():
            if not self.fs.is_dir(name):
                self.fs.make_dir(name)
        self.space.begin_counting(self._note)
        messages = Load(self.space, self._set_aside, self._note)
        for kind in self.kinds:
            kind.find(self.opening)
        self._branches(messages)
        self.space.log.settle()
        self._harden()
        for kind in self.kinds:
            kind.tidy(self.space)
        self._count_branches()
        messages.is_placed()
        answer()
        aside = len(self.report.quarantined)
        messages.rest(progress)
        for kind in self.kinds:
            kind.finish(self.opening)
        if len(self.report.quarantined) > aside:
            self._sync_directories()
        if self.space.shipping is not None:
            self.space.shipping.is_whole.set()
            try:
                self.space.shipping.await_others()
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
        self._clear_staged()
        active, prepared_files = self._blocks(ACTIVE), self._blocks(PREPARED)
        paths = [path for files in (*prepared_files.values(), *active.values()) for path in files.values()]
        wanted = named(self.fs, paths)
        messages.place(wanted)
        if prepared_files:  # after a kill the disk may lack a move that is seen here; what follows must not outlive it
            self._sync_directories()
        for kind in self.kinds:
            kind.meet(self.opening, {**prepared_files, **self.lost}, wanted)
        for xid in sorted({*prepared_files, *self.lost}, key=str):
            files = prepared_files.get(xid, {})
            earlier = active.pop(xid, {}) if COMMIT in files else {}
            self._prepared(xid, {**earlier, **files})
            if xid not in self.space.branches:
                self._remove(earlier.values())
        for kind in self.kinds:
            done, undone = kind.settle(self.opening)
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

    def _prepared(self, xid: Xid, files: dict[str, str]) -> None:
        found = prepared.survey(self.fs, xid, files, self.lost.get(xid, ()), self._holds)
        match found.verdict:
            case Verdict.COMMITTING:
                self._roll_forward(found, files)
            case _ if any(kind.commits(self.space, found, files) for kind in self.kinds):
                self._roll_forward(found, files)
            case Verdict.IN_DOUBT:
                self.space.branches[xid] = self._in_doubt(found)
            case Verdict.FINISHED:
                self._remove(files.values())
                self.space.outcomes.remember(xid, Outcome.COMMITTED)
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
        if damage := [path for path, _ in found.broken] + found.lost:
            branch.riders = (*branch.riders, Damaged(damage))
        self._add_each(branch, found, found.blocks)
        for kind in self.kinds:
            kind.doubt(self.space, branch)
        if found.list_path:
            branch.branch_block = _branch_block(found.list_path)
        return branch

    def _add_each(self, branch: Branch, found: PreparedBranch, blocks: Iterable[tuple[str, Head]]) -> None:
        for path, head in blocks:
            self._add(branch, path, head)
        for kind in self.kinds:
            kind.adopt(self.space, branch, found)

    def _add(self, branch: Branch, path: str, head: Head) -> None:
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
        self.space.outcomes.remember(xid, Outcome.COMMITTED)
        self.report.rolled_forward += 1

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

    def _roll_back(self, xid: Xid, files: dict[str, str]) -> None:
        """Of a branch that is not prepared."""
        heads = []
        for path in files.values():
            with suppress(DamagedBlock, FileNotFoundError):  # torn by the crash, and promised to nobody; or set aside
                heads.append(read_head(self.fs, path))
        if xid not in self.space.branches:
            for kind in self.kinds:
                kind.undone(self.space, xid, heads)
            self.report.rolled_back += 1
        self._remove(files.values())

    def _harden(self) -> None:
        """What was found of branches, and every name, becomes what is on disk."""
        branches = self.space.branches.values()
        paths = [written.path for branch in branches for written in branch.all_blocks]
        paths += [path for kind in self.kinds for path in kind.hardened(self.space)]
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
        places = [path for kind in self.kinds for path in kind.places(self.space)]
        queues = [path for queue in self.space.queues.values() for path in queue.directories()]
        self.space.log.sync_names([layout.QUARANTINE, *places, *queues, COMMITTED, PREPARED, ACTIVE, ""])

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

    def _note(self, text: str) -> None:
        self.report.notes.append(text)
        log.warning("[recovery-note] %s", text)

    def _count_branches(self) -> None:
        in_doubt = [branch for branch in self.space.branches.values() if branch.base is State.PREPARED]
        self.report.in_doubt = len(in_doubt)
        for branch in in_doubt:
            for damage in branch.damage:
                self._note(f"branch {branch.xid} is in doubt and lost {damage}: decide with `xaqueue indoubt`")


def _branch_block(path: str) -> Written:
    return Written(0, Kind.BRANCH, "", NO_MESSAGE, 0, path=path)
