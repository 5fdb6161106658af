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
from enum import Enum
from typing import TYPE_CHECKING

from xaqueue.errors import DamagedBlock, RetryLater
from xaqueue.space.engine import blocks, heuristics, quarantine, redo, register, tries
from xaqueue.space.engine.cleanup import filled_archives
from xaqueue.space.engine.complete import complete
from xaqueue.space.model import layout
from xaqueue.space.model.block import Head, Kind, Listed
from xaqueue.space.model.branch import Branch, State, Written
from xaqueue.space.model.definitions import QueueDefinition
from xaqueue.space.model.index import Entry
from xaqueue.space.model.layout import ACTIVE, COMMIT, COMMITTED, DIRECTORIES, FIRST, PREPARED, block_path, numbered
from xaqueue.space.model.message_name import tags_of
from xaqueue.space.recovery import batch_recovery
from xaqueue.space.recovery.load import Load, Progress, read_head, read_list
from xaqueue.space.recovery.named import named, stands_at
from xaqueue.space.recovery.report import RecoveryReport
from xaqueue.storage.group_commit import touched
from xaqueue.storage.regular import DAMAGE, NO_FILE
from xaqueue.xa import Outcome
from xaqueue.xid import Xid

if TYPE_CHECKING:
    from xaqueue.space.engine.state import Space

UNDEFINED = QueueDefinition(description="has messages, and no definition")

log = logging.getLogger("xaqueue")
Blocks = dict[Xid, dict[str, str]]


class Found(Enum):
    """What the blocks of a branch in ``prepared/`` say of it."""

    IN_DOUBT = "all there, or damaged"
    FINISHED = "its one move is done"
    GONE = "never completely prepared"


def _is_block(damage: str, suffix: str) -> bool:
    """Whether what was lost is the block of this suffix; quarantine may have numbered its name."""
    return damage.split("~")[0].endswith(f".{suffix}")


def recover(
    space: Space, progress: Progress | None = None, answer: Callable[[], object] = lambda: None
) -> RecoveryReport:
    """Brings directories and memory into one consistent state. Raises OSError where the disk does not let it.

    answer: called once the branches are recovered, and before the messages that they do not name are loaded.
    """
    return _Recovery(space).run(progress, answer)


class _Recovery:
    def __init__(self, space: Space) -> None:
        self.space = space
        self.fs = space.fs
        self.report = RecoveryReport()
        self.lost: dict[Xid, list[str]] = {}

    def run(self, progress: Progress | None, answer: Callable[[], object]) -> RecoveryReport:
        started = time.monotonic()
        for name in DIRECTORIES:
            if not self.fs.is_dir(name):
                self.fs.make_dir(name)
        messages = Load(self.space, self._set_aside, self._note)
        self._branches(messages)
        self._harden()
        batch_recovery.prune(self.space)
        self._count_branches()
        messages.is_placed()
        answer()
        aside = len(self.report.quarantined)
        messages.rest(progress)
        register.count(self.space, self._set_aside)
        if len(self.report.quarantined) > aside:
            self._sync_directories(self._every_directory)
        self._publish(messages.highest)
        with self.space.lock:
            self.report.messages = sum(len(queue.index) for queue in self.space.queues.values())
        self.report.seconds = time.monotonic() - started
        log.info("recovered: %s", self.report)
        return self.report

    def _branches(self, messages: Load) -> None:
        """Every branch becomes what it is to be."""
        self.lost = quarantine.lost_blocks(self.fs)
        batch_recovery.find(self.space, self._set_aside)
        active, prepared = self._blocks(ACTIVE), self._blocks(PREPARED)
        paths = [path for files in (*prepared.values(), *active.values()) for path in files.values()]
        messages.place(named(self.fs, paths))
        if prepared:  # after a kill the disk may lack a move that is seen here; what follows must not outlive it
            self._sync_directories(self._every_directory)
        decided = batch_recovery.decisions(self.space, {**prepared, **self.lost}, self._set_aside, self._note)
        for xid, files in list(prepared.items()):
            if COMMIT in files or batch_recovery.rolls_forward(self.space, decided, xid, files):
                self._roll_forward(xid, prepared.pop(xid), active.pop(xid, {}))
        for xid in sorted({*prepared, *self.lost}, key=str):
            self._prepared(xid, prepared.get(xid, {}))
        self._heuristic()
        self._settle(decided)
        for xid, files in active.items():
            self._roll_back_active(xid, files)

    def _settle(self, decided: batch_recovery.Decisions) -> None:
        done, undone = batch_recovery.settle(self.space, decided, self._note)
        self.report.rolled_forward += done
        self.report.rolled_back += undone

    def _blocks(self, directory: str) -> Blocks:
        found: Blocks = {}
        for name in self.fs.list(directory):
            parsed = layout.parse_block(name)
            if parsed is not None:
                found.setdefault(parsed[0], {})[parsed[1]] = f"{directory}/{name}"
            elif name == redo.MAKING and not self.fs.is_dir(f"{directory}/{name}"):
                self.fs.unlink(f"{directory}/{name}")  # an open before was killed while it wrote a file anew
            elif name == redo.MAKING or not name.startswith("."):
                self._set_aside(f"{directory}/{name}", "no command block: its name is not <xid>.<number>")
        return found

    def _roll_forward(self, xid: Xid, prepared: dict[str, str], active: dict[str, str]) -> None:
        marker = prepared.pop(COMMIT, "") or prepared.pop(FIRST)
        branch = Branch(xid, base=State.PREPARED, listed=True, committing=True)
        try:
            listed = read_list(self.fs, marker)
        except DamagedBlock as damage:
            self._set_aside(marker, str(damage))
            self._note(
                f"branch {xid} is committed but its list of blocks is damaged: what was found of it is committed"
            )
            listed = self._list_found(prepared)
        for number, item in enumerate(listed, 1):
            path = prepared.get(numbered(number)) or active.get(numbered(number))
            self._finish_block(branch, number, item, path)
        self._number_again(branch, listed)
        found = {**active, **prepared}
        complete(self.space, branch, {w.number: found.get(w.suffix, marker) for w in branch.blocks})
        self._remove((*prepared.values(), *active.values()))
        self._remember(xid)
        self.report.rolled_forward += 1

    def _number_again(self, branch: Branch, listed: list[Listed]) -> None:
        """Messages of one commit have consecutive numbers in a queue: what has moved tells those of the rest."""
        for name in {item.queue for item in listed if item.kind is Kind.ENQUEUE}:
            index = self.space.queue(name).index
            added = [item for item in listed if item.kind is Kind.ENQUEUE and item.queue == name]
            left = {w.message_id: w.entry for w in branch.blocks if w.kind is Kind.ENQUEUE and w.queue == name}
            moved = {item.message_id: entry for item in added if (entry := index.find(item.message_id))}
            bases = {moved[item.message_id].seq - n for n, item in enumerate(added) if item.message_id in moved}
            if not left or len(bases) != 1 or len(left) + len(moved) != len(added):
                continue  # none has moved, or something is lost: new numbers in the same order
            (base,) = bases
            wanted = {base + n: left[item.message_id] for n, item in enumerate(added) if item.message_id in left}
            if base > 0 and not any(self._is_taken(name, seq) for seq in wanted):
                for seq, entry in wanted.items():
                    assert entry is not None
                    entry.seq = seq

    def _is_taken(self, queue: str, seq: int) -> bool:
        return stands_at(self.fs, layout.range_path(queue, seq), [seq])

    def _list_found(self, files: dict[str, str]) -> list[Listed]:
        """Without the list: the blocks that are there, by their numbers, as far as they can be read."""
        listed: list[Listed] = []
        for suffix in sorted(set(files) - {FIRST}, key=int):
            head = self._head(files[suffix])
            if head is not None:
                listed += [blocks.NOTHING] * (int(suffix) - 1 - len(listed))
                listed.append(Listed(head.kind, head.properties.queue, head.message_id, head.checksum))
        return listed

    def _finish_block(self, branch: Branch, number: int, item: Listed, path: str | None) -> None:
        """Adds to the branch what is left to do of one listed block."""
        if item == blocks.NOTHING:
            return
        index = self.space.queue(item.queue).index
        entry = index.find(item.message_id)
        if item.kind is Kind.DEQUEUE:
            if entry is None:
                return
            index.lock(item.message_id)
        else:
            if entry is not None or path is None:
                return
            head = self._head(path, item)
            if head is None:
                self._note(f"branch {branch.xid} is committed, but its block {number} was damaged and is in quarantine")
                return
            entry = Entry(0, item.message_id, tags_of(head.properties))
        written = Written(number, item.kind, item.queue, item.message_id, item.checksum, suffix=numbered(number))
        written.entry = entry
        branch.blocks.append(written)

    def _prepared(self, xid: Xid, files: dict[str, str]) -> None:
        branch = Branch(xid, base=State.PREPARED, damage=[f"quarantine/{name}" for name in self.lost.get(xid, ())])
        found = self._first_block(branch, files) if FIRST in files else self._headless(branch, files)
        if found is Found.IN_DOUBT:
            self.space.branches[xid] = branch
            return
        self._unlock(branch)
        self._remove(files.values())
        if found is Found.FINISHED:
            self._remember(xid)
            self.report.committed += 1
        elif files:
            self.report.rolled_back += 1

    def _headless(self, branch: Branch, files: dict[str, str]) -> Found:
        """Without .000 a branch was promised to nobody, unless the .000 is in quarantine."""
        if not any(_is_block(damage, FIRST) for damage in branch.damage):
            return Found.GONE
        for suffix in sorted(set(files) - {FIRST}, key=int):
            self._add(branch, int(suffix), suffix, files[suffix])
        return Found.IN_DOUBT

    def _first_block(self, branch: Branch, files: dict[str, str]) -> Found:
        path = files[FIRST]
        try:
            head = read_head(self.fs, path)
            listed = read_list(self.fs, path) if head.kind is Kind.BRANCH else []
        except DamagedBlock as damage:
            self._set_aside(path, str(damage))
            branch.damage.append(path)
            return self._headless(branch, files)
        branch.prepared_at = self.fs.modified_ns(path) // 1000
        if head.kind is not Kind.BRANCH:
            return self._only_block(branch, head, path)
        branch.listed = True
        for number, item in enumerate(listed, 1):
            suffix = numbered(number)
            if item == blocks.NOTHING:
                continue
            if suffix in files:
                self._add(branch, number, suffix, files[suffix], item)
            elif not any(_is_block(damage, suffix) for damage in branch.damage):
                return Found.GONE
        return Found.IN_DOUBT

    def _only_block(self, branch: Branch, head: Head, path: str) -> Found:
        there = head.message_id in self.space.queue(head.properties.queue).index
        if head.kind is Kind.ENQUEUE and there:
            return Found.FINISHED
        if head.kind is Kind.DEQUEUE and not there and not quarantine.has_message(self.fs, head.message_id):
            return Found.FINISHED
        self._add(branch, 1, FIRST, path)
        return Found.IN_DOUBT

    def _add(self, branch: Branch, number: int, suffix: str, path: str, item: Listed | None = None) -> None:
        """Takes one block into a branch in doubt; what it removes is locked, what is damaged is noted."""
        head = self._head(path, item)
        if head is None:
            branch.damage.append(path)
            return
        queue = self.space.queue(head.properties.queue)
        entry: Entry | None = None
        if head.kind is Kind.DEQUEUE:
            entry = queue.index.lock(head.message_id)
            if entry is None:
                branch.damage.append(f"message {head.message_id.hex()} of queue {queue.name}, which it dequeues")
        else:
            entry = Entry(0, head.message_id, tags_of(head.properties))
            queue.pending.add(head.message_id)
        written = Written(number, head.kind, queue.name, head.message_id, head.checksum, suffix=suffix)
        written.entry = entry
        branch.blocks.append(written)

    def _unlock(self, branch: Branch) -> None:
        for written in branch.blocks:
            queue = self.space.queue(written.queue)
            if written.kind is Kind.DEQUEUE and written.entry is not None:
                queue.index.release(written.entry)
            queue.pending.discard(written.message_id)

    def _heuristic(self) -> None:
        for name in self.fs.list(layout.HEURISTIC):
            if name.startswith("."):
                continue
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

    def _roll_back_active(self, xid: Xid, files: dict[str, str]) -> None:
        held = []
        branch = Branch(xid, numbers=max((int(suffix) for suffix in files if suffix.isdigit()), default=0))
        for path in files.values():
            try:
                head = read_head(self.fs, path)
            except DamagedBlock:
                continue  # torn by the crash, and promised to nobody
            if head.kind is Kind.DEQUEUE and xid not in self.space.branches:
                entry = self.space.queue(head.properties.queue).index.find(head.message_id)
                if entry is not None and not entry.locked:
                    held.append((head.properties.queue, entry))
        tries.count(self.space, branch, held)
        self._remove(files.values())
        if xid not in self.space.branches:
            self.report.rolled_back += 1

    def _harden(self) -> None:
        """What was found of branches, and every name, becomes what is on disk."""
        branches = self.space.branches.items()
        paths = [path for xid, branch in branches for path in self._paths(xid, branch)]
        records = [queue.record for queue in self.space.queues.values() if queue.record is not None]
        paths += [layout.stream_path(record.queue) for record in records if not record.damage]
        if self.space.suspect and self.space.barrier.journal is None:  # else they were replayed, or checked off before
            for path in paths:
                redo.write_anew(self.fs, path, [self.fs.read(path)], harden=self.space.barrier.harden_content)
        else:
            self.space.barrier.harden_content(paths)
        self._sync_directories(self._every_directory)

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
                queue.published = max(queue.published, highest.get(queue.name, 0))
                queue.write_watermark(self.fs)
        space.barrier.harden_content([layout.watermark_path(queue.name) for queue in used])
        self._sync_directories(lambda: [layout.queue_path(queue.name) for queue in used])

    def _every_directory(self) -> list[str]:
        """In an order that syncs targets of moves before sources."""
        queues = [path for queue in self.space.queues.values() for path in queue.directories()]
        records = [layout.QUARANTINE, layout.HEURISTIC, layout.BATCHES, layout.STREAMS]
        return [*filled_archives(self.space), *records, *queues, COMMITTED, PREPARED, ACTIVE, ""]

    def _sync_directories(self, directories: Callable[[], Sequence[str]]) -> None:
        """Every name that is seen in them is on disk, and every one that is not is gone."""
        self.space.barrier.perform(lambda: touched(directories()))

    def _paths(self, xid: Xid, branch: Branch) -> list[str]:
        suffixes = dict.fromkeys([FIRST, *(written.suffix for written in branch.blocks)])
        return [path for suffix in suffixes if self.fs.exists(path := block_path(PREPARED, str(xid), suffix))]

    def _head(self, path: str, item: Listed | None = None) -> Head | None:
        """The head of a block in doubt, or None once it is quarantined."""
        try:
            head = read_head(self.fs, path)
            if item is not None and (head.checksum, head.message_id) != (item.checksum, item.message_id):
                raise DamagedBlock("is not the block that its branch lists")  # noqa: TRY301
            tags_of(head.properties)
        except DamagedBlock as damage:
            self._set_aside(path, str(damage))
            return None
        return head

    def _remove(self, paths: Iterable[str]) -> None:
        """The files of a branch that is over; what is no file was never a block."""
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

    def _remember(self, xid: Xid) -> None:
        if not xid.is_local:
            self.space.remember(xid, Outcome.COMMITTED)

    def _set_aside(self, path: str, reason: str) -> None:
        try:
            target = quarantine.move(self.fs, path, reason, self.space.now_us())
        except OSError as error:
            if error.errno not in DAMAGE:
                raise
            self._note(f"{path} is damaged ({reason}) and cannot be moved: {error.strerror}; it is left alone")
            return
        self.report.quarantined.append(f"{path}: {reason}")
        log.warning("quarantined %s as %s: %s", path, target, reason)

    def _note(self, text: str) -> None:
        self.report.notes.append(text)
        log.warning("%s", text)

    def _count_branches(self) -> None:
        in_doubt = [branch for branch in self.space.branches.values() if branch.base is State.PREPARED]
        self.report.in_doubt = len(in_doubt)
        for branch in in_doubt:
            for damage in branch.damage:
                self._note(f"branch {branch.xid} is in doubt and lost {damage}: decide with `xaqueue indoubt`")
