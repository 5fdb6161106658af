"""What an open makes of each branch whose files stand there.

prepared/ has .commit              the decision is made: rolled forward from wherever each block is found
prepared/ has .000 and all of it   in doubt, its messages locked; or finished, where its one move is done already
a record of another kind decides   what it lists is committed, and what else belongs to that rolled back
prepared/ lacks a block            promised to nobody: rolled back; or the block is in quarantine: in doubt, damaged
heuristic/ has a decision          an operator decided: completed, and remembered until forget
active/                            rolled back (presumed rollback)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from itertools import accumulate, repeat

from xaqueue.core.engine import commit, quarantine, redo
from xaqueue.core.engine.state import Space
from xaqueue.core.model import layout
from xaqueue.core.model.block import ADDS, NO_MESSAGE, NO_TRY, Head, Kind
from xaqueue.core.model.block_files import ids_taken
from xaqueue.core.model.branch import Branch, Damaged, State, Written
from xaqueue.core.model.entry import Entry, MessageBlock, Run
from xaqueue.core.model.layout import ACTIVE, COMMIT, FIRST, PREPARED, RANGE_BITS
from xaqueue.core.model.message_block import decode_table
from xaqueue.core.model.message_name import parse_any, tags_of
from xaqueue.core.model.record_kinds import Opening, RecordKinds
from xaqueue.core.recovery import prepared
from xaqueue.core.recovery.load import Load, read_head
from xaqueue.core.recovery.prepared import PreparedBranch, Verdict, named
from xaqueue.core.storage.regular import NO_FILE
from xaqueue.errors import DamagedBlock
from xaqueue.message import MessageId
from xaqueue.xa import Outcome
from xaqueue.xid import Xid


class Branches:
    """Each is committed, rolled back or in doubt in the end, and its messages are placed."""

    def __init__(self, space: Space, kinds: RecordKinds, opening: Opening, sync: Callable[[], None]) -> None:
        """sync: every name that is seen is on disk behind it."""
        self._space = space
        self._fs = space.fs
        self._kinds = kinds
        self._opening = opening
        self._sync = sync
        self._lost: dict[Xid, list[str]] = {}

    def recover(self, messages: Load) -> None:
        """Every branch becomes what it is to be."""
        self._lost = quarantine.lost_blocks(self._fs)
        self._clear_staged()
        active, prepared_files = self._blocks(ACTIVE), self._blocks(PREPARED)
        paths = [path for files in (*prepared_files.values(), *active.values()) for path in files.values()]
        wanted = named(self._fs, paths)
        messages.place(wanted)
        if prepared_files:  # after a kill the disk may lack a move that is seen here; what follows must not outlive it
            self._sync()
            messages.harden_bitmaps()
        for kind in self._kinds:
            kind.meet(self._opening, {**prepared_files, **self._lost}, wanted)
        for xid in sorted({*prepared_files, *self._lost}, key=str):
            files = prepared_files.get(xid, {})
            earlier = active.pop(xid, {}) if COMMIT in files else {}
            self._prepared(xid, {**earlier, **files})
            if xid not in self._space.branches:
                self._remove(earlier.values())
        for kind in self._kinds:
            done, undone = kind.settle(self._opening)
            self._space.report.rolled_forward += done
            self._space.report.rolled_back += undone
        for xid, files in active.items():
            self._roll_back(xid, files)

    def _clear_staged(self) -> None:
        """What a step had not given its name yet was promised to nobody."""
        for name in self._fs.list(ACTIVE):
            if name == redo.MAKING or name.startswith(layout.STAGED):
                path = f"{ACTIVE}/{name}"
                if self._fs.is_dir(path):
                    self._opening.set_aside(path, "a directory where a file should be")
                else:
                    self._fs.unlink(path)

    def _blocks(self, directory: str) -> dict[Xid, dict[str, str]]:
        found, foreign = prepared.branches(self._fs, directory)
        for path in foreign:
            self._opening.set_aside(path, "no command block: its name is not <xid>.<number>")
        return found

    def _prepared(self, xid: Xid, files: dict[str, str]) -> None:
        found = prepared.survey(self._fs, xid, files, self._lost.get(xid, ()), self._holds)
        match found.verdict:
            case Verdict.COMMITTING:
                self._roll_forward(found, files)
            case _ if any(kind.commits(self._space, found, files) for kind in self._kinds):
                self._roll_forward(found, files)
            case Verdict.IN_DOUBT:
                self._space.branches[xid] = self._in_doubt(found)
            case Verdict.FINISHED:
                self._remove(files.values())
                self._space.outcomes.remember(xid, Outcome.COMMITTED)
                self._space.report.committed += 1
            case Verdict.INCOMPLETE:
                for path, reason in found.broken:
                    self._opening.set_aside(path, reason)
                if files:
                    self._roll_back(xid, files)

    def _holds(self, queue: str, message_id: MessageId) -> bool:
        return message_id in self._space.queue(queue).index

    def _is_done(self, head: Head) -> bool:
        """Whether its message has come, or all that it takes are gone."""
        queue, taken = head.properties.queue, head.kind is Kind.DEQUEUE
        return (
            any(self._holds(queue, one) for one in (ids_taken(self._fs, head) if taken else [head.message_id]))
            is not taken
        )

    def _in_doubt(self, found: PreparedBranch) -> Branch:
        """A branch in doubt: what it removes is locked, what is damaged is set aside and noted."""
        branch = Branch(found.xid, str(found.xid), base=State.PREPARED, prepared_at=found.prepared_at)
        for path, reason in found.broken:
            self._opening.set_aside(path, reason)
        if damage := [path for path, _ in found.broken] + found.lost:
            branch.riders = (*branch.riders, Damaged(damage))
        self._add_each(branch, found, found.blocks)
        for kind in self._kinds:
            kind.doubt(self._space, branch)
        if found.list_path:
            branch.branch_block = _branch_block(found.list_path)
        return branch

    def _add_each(self, branch: Branch, found: PreparedBranch, blocks: Iterable[tuple[str, Head]]) -> None:
        for path, head in blocks:
            self._add(branch, path, head)
        for kind in self._kinds:
            kind.adopt(self._space, branch, found)

    def _add(self, branch: Branch, path: str, head: Head) -> None:
        queue = self._space.queue(head.properties.queue)
        entries: list[Entry] = []
        if head.kind is Kind.MESSAGES:
            table = decode_table(self._fs.read(path))
            ids, tags = table.message_ids(), map(table.tags_of, range(table.count))
            entries = [Run(ids, entries=() if table.is_plain else [*map(Entry, repeat(0), ids, tags)])]
            queue.pending.update(ids)
        elif head.kind is Kind.DEQUEUE:
            entries = [entry for one in ids_taken(self._fs, head) if (entry := queue.index.lock(one)) is not None]
            for entry in entries:
                entry.tries = head.properties.tries  # its rollback, cut off, may have counted it
        else:
            entries = [Entry(0, head.message_id, tags_of(head.properties))]
            queue.pending.add(head.message_id)
        number = int(path.rpartition(".")[2]) or 1
        for entry in entries or (None,):
            message_id = entry.message_id if entry is not None else head.message_id
            written = Written(number, head.kind, queue.name, message_id, head.checksum, entry)
            written.path, path = path, ""  # of many that were taken together the first has it
            written.is_try = NO_TRY not in head.properties.unknown
            branch.blocks.append(written)

    def _roll_forward(self, found: PreparedBranch, files: Mapping[str, str]) -> None:
        """What is left to do of a branch that is committed, from wherever each of its blocks is found."""
        xid = found.xid
        branch = Branch(xid, str(xid), base=State.COMMITTING if COMMIT in files else State.PREPARED)
        for path, reason in found.broken:
            self._opening.set_aside(path, reason)
            if path.endswith((f".{COMMIT}", f".{FIRST}")):
                self._opening.note(
                    f"branch {xid} is committed but its list of blocks is damaged: what was found of it is committed"
                )
            else:
                number = path.rpartition(".")[2].lstrip("0")
                lost = f"its block {number} was damaged and is in quarantine"
                self._opening.note(f"branch {xid} is committed, but {lost}: the rest is committed")
        self._add_each(branch, found, [block for block in found.blocks if not self._is_done(block[1])])
        self._number_again(branch, found)
        if found.list_path:
            branch.branch_block = _branch_block(found.list_path)
        if branch.blocks or branch.branch_block is not None:
            commit.commit(self._space, branch)
        self._remove(files.values())
        self._space.outcomes.remember(xid, Outcome.COMMITTED)
        self._space.report.rolled_forward += 1

    def _number_again(self, branch: Branch, found: PreparedBranch) -> None:
        """Messages of one commit have consecutive numbers in a queue: what has moved tells those of the rest.

        Not to a journal, where a record of a number below others says that what follows is lost: ``check_end``.
        """
        if self._space.log.is_atomic:
            return
        for name in {row.queue for row in found.rows if row.kind in ADDS}:
            queue = self._space.queue(name)
            added = [row.message_id for row in found.rows if row.kind in ADDS and row.queue == name]
            left = {w.message_id: w for w in branch.blocks if w.kind in ADDS and w.queue == name}
            moved = {one: entry.seq for one in added if (entry := queue.index.find(one))}
            blocks = {one: queue.block_of(seq) for one, seq in moved.items()}
            counts = [len(left[one].ids) if one in left else _count(blocks.get(one)) for one in added]
            places = dict(zip(added, accumulate(counts, initial=0), strict=False))
            bases = {seq - places[one] for one, seq in moved.items()}
            if not left or len(bases) != 1 or len(left) + len(moved) != len(added):
                continue  # none has moved, or something is lost: new numbers in the same order
            (base,) = bases
            wanted = {base + places[one]: left[one] for one in added if one in left}
            if base > 0 and not any(self._is_taken(name, seq, len(one.ids)) for seq, one in wanted.items()):
                for seq, written in wanted.items():
                    assert written.entry is not None
                    written.entry.seq = seq

    def _is_taken(self, queue: str, first: int, count: int) -> bool:
        """One of these numbers; or a block of so many would not lie in one range."""
        directory, last = layout.range_path(queue, first), first + count - 1
        names = self._fs.list(directory) if self._fs.is_dir(directory) else []
        others = [one for one in map(parse_any, names) if one is not None and one.first <= last and first <= one.last]
        return bool(others) or first >> RANGE_BITS != last >> RANGE_BITS

    def _roll_back(self, xid: Xid, files: dict[str, str]) -> None:
        """Of a branch that is not prepared."""
        heads = []
        for path in files.values():
            with suppress(DamagedBlock, FileNotFoundError):  # torn by the crash, and promised to nobody; or set aside
                heads.append(read_head(self._fs, path))
        if xid not in self._space.branches:
            for kind in self._kinds:
                kind.undone(self._space, xid, heads)
            self._space.report.rolled_back += 1
        self._remove(files.values())

    def _remove(self, paths: Iterable[str]) -> None:
        """The files of a branch that is over, of which a journal may have only the names; what is no file was never a
        block.
        """
        self._space.log.settle()
        for path in paths:
            try:
                self._fs.size(path)
                self._fs.unlink(path)
            except FileNotFoundError:
                continue
            except OSError as error:
                if error.errno not in NO_FILE:
                    raise
                self._opening.set_aside(path, f"no block: {error.strerror}")


def _count(block: MessageBlock | None) -> int:
    return block.named.count if block is not None else 1


def _branch_block(path: str) -> Written:
    written = Written(0, Kind.BRANCH, "", NO_MESSAGE, 0)
    written.path = path
    return written
