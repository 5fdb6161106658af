"""Level JOURNAL: a step is one redo record, and a follower brings the directories behind it.

The record, once it is hardened, is the commit point. What it says is done in the directories afterwards, by nobody
but ``follow``, which works on the changes in the order of the log: it takes all that were published, does what they
come to, and only then counts them as followed. So a checkpoint at an LSN covers exactly what is done below it.

A small block is kept in memory until its record is written, and its content until it is followed, and a while longer
as a cache: a reader that keeps up reads no file. A branch whose blocks are large has them in active/, on disk before
its prepare is recorded, which then says only that they move.

Without room on the disk the changes wait in the journal, and what they add is served from memory; who adds beyond a
limit is refused.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain

from xaqueue.core.engine import redo
from xaqueue.core.engine.behind import Behind, DeferringCommit, Turn
from xaqueue.core.engine.disk_space import refusal
from xaqueue.core.engine.log import BLOCK_BYTES, HELD_BYTES, KEPT_BYTES, Copying, Keeping, Owner, Register
from xaqueue.core.model import layout
from xaqueue.core.model.block import ADDS, HEAD_READ_BYTES, size_in_head, split_block
from xaqueue.core.model.block_files import make_shared, read_block
from xaqueue.core.model.branch import Branch, Written
from xaqueue.core.model.change import DROP, MOVE, PUT, Change, Moved, Op, entry_of, final_states
from xaqueue.core.model.entry import is_volatile
from xaqueue.core.model.layout import ACTIVE, block_path, numbered
from xaqueue.core.model.queue import Queue
from xaqueue.core.storage.fs import NO_ROOM, FileSystem, discard, suppress_room, synced
from xaqueue.core.storage.group_commit import Step
from xaqueue.core.storage.journal import Journal, checkpoint_entry
from xaqueue.core.storage.journal_format import Entry
from xaqueue.core.storage.scheduling import THREADS, Threads

PENDING_BYTES = 32 * 1024 * 1024
PENDING_FILES = 16 * 1024
"""Whoever adds a message beyond either follows first."""
LAG_S = 0.05
"""What has been pending so long, or at most twice as long, is followed in the background."""
RETRY_S = 1.0
"""After there was no room. The journal has what waits."""
LOOK_S = 1.0
"""How often is looked whether a checkpoint is due."""
NEW_FILES = 16 * 1024
"""With more since the last checkpoint an open after a kill would take long to make them anew: the next one is due."""
FEW = 256
"""Changed paths that are copied while nothing follows."""
COPIES = 20
"""In which the rest becomes so few, unless more changes than can be copied meanwhile."""

log = logging.getLogger("xaqueue")


class JournalLog(DeferringCommit, Keeping):
    """See ``Log``. ``follow`` and ``checkpoint`` may run in other threads beside the steps."""

    is_atomic = follows = True
    hardens_names = False
    _entry_of = staticmethod(entry_of)

    def __init__(
        self,
        fs: FileSystem,
        journal: Journal,
        lock: threading.Lock,
        owner: Owner,
        *,
        waiting: Threads = THREADS,
        cache_bytes: int = 0,
    ) -> None:
        super().__init__(lock, journal, owner, waiting=waiting, relieve=self._relieve_journal)
        self._owner = owner
        self.defers = owner.definitions.has_unsynced
        self.fs = fs
        self.register: Register | None = None
        self._kept_bytes = min(KEPT_BYTES, journal.largest_bytes)
        self.behind = Behind(lock, cache_bytes)
        self._marks = {}
        if journal.kept:
            self._entry_of = self._whole_entry
        self._upto = journal.position
        """The LSN behind the last change that was published."""
        self.followed = journal.position
        """Every change below this LSN is done in the directories."""
        self._following, self._writing_early = threading.Lock(), threading.Lock()
        self._covered = journal.position
        self._covered_at = time.monotonic()
        """Where the journal ended behind the last checkpoint, and when that was."""
        self._made = 0
        """Files that were made since."""
        self._switches = journal.switches
        self._is_full = False
        """A segment became full since."""
        self._hits = 0
        self._misses = 0
        self.changed_queues: dict[str, Queue] = {}
        self.touched: set[str] | None = None
        """The paths that were changed since somebody began to look at the directories while they follow."""

    # Blocks of active branches

    @property
    def adds_late(self) -> bool:
        return self.behind.size_bytes > PENDING_BYTES or self.behind.files > PENDING_FILES

    def add(self, branch: Branch, written: Written, head: bytes, body: bytes, *, may_wait: bool = True) -> None:
        if may_wait and written.kind in ADDS and self.adds_late:
            self.settle()  # whoever adds waits for the directories, and needs room in them; what ends a branch does not
        if is_volatile(written.entry):
            self.defers = True
        original = written.shared
        if original is written:
            original = None
        size = BLOCK_BYTES if original is not None else len(head) + len(body) + BLOCK_BYTES
        if original is None or not original.path:
            kept, count = branch.kept
            kept += size
            self._kept_left -= size
            if kept <= self._kept_bytes and (kept <= HELD_BYTES or self._kept_left >= 0 or self._has_left(size)):
                branch.kept, written.content = (kept, count + 1), (head, body)
                return
        self._end_earlier(branch)
        if original is not None and not original.path:  # with those that have a place, so that there is one file
            self._write_early(branch, [one for one in branch.blocks if one.shared is original])
        self._write(branch, written, head, body)

    def _end_earlier(self, branch: Branch) -> None:
        """Before a block goes to active/: a crash would leave an earlier branch of this name, whose commit is deferred,
        prepared, and a replay would move the block to where that one's was.
        """
        if any(step.planned.name == branch.name for step in list(self.deferred)):
            self.harden_late()

    def _write(self, branch: Branch, written: Written, head: bytes, body: bytes) -> None:
        path = block_path(ACTIVE, branch.name, numbered(written.number))
        chunks = [head, body] if body else [head]
        make = partial(make_shared, self.fs, written) if written.original is not None else self.fs.create
        try:
            make(path, chunks)
        except FileExistsError:  # a block of an earlier branch of this name, which is over and has not moved yet
            self._waiting.run(self._follow)
            discard(self.fs, path)  # or one that an interrupt has left, of which nobody knows
            make(path, chunks)
        branch.to_harden = True
        written.path, written.content = path, None

    def write_early(self, branch: Branch) -> None:
        self._end_earlier(branch)
        self._waiting.run(partial(self._write_early, branch, list(branch.blocks)))

    def take(self, branch: Branch | None, taken: Sequence[Written], epoch: int, *, returned: bool = False) -> None:
        if self.register is not None:
            try:
                self.register.add(taken, returned=returned)
            except OSError as error:
                self.fail(error)
                raise self._failed() from error

    def remember_takes(self, begin: Callable[[], Register]) -> None:
        self.register = begin()

    def return_untried(self, *taken: Written) -> None:
        self.take(None, taken, 0, returned=True)

    def _whole_entry(self, change: Change | Entry) -> Entry:
        """Of a journal that is kept: what stands in active/ by now is in it as well, since no snapshot has that."""
        if type(change) is Entry:
            return change
        assert type(change) is Change
        if not change.point and not any(op[0] == MOVE and op[1].startswith(ACTIVE) for op in change.ops):
            return entry_of(change)
        ops: list[Op] = []
        for op in chain(change.point, change.ops, change.rest):
            if op[0] == MOVE and op[1].startswith(ACTIVE):
                with suppress(OSError):  # then it only moves, as in any journal
                    head, body = split_block(read_block(self.fs, op[1]))
                    ops += [(PUT, op[2], head, body, op[3]), (DROP, op[1])]
                    continue
            ops.append(op)
        return entry_of(change._replace(point=(), ops=ops, rest=()))

    def harden(self, branch: Branch) -> None:
        if any(path.startswith(ACTIVE) for path in branch.contents):
            self.sync_names((ACTIVE,))  # content and names of all of them at once

    def harden_unprepared(self, branch: Branch, complete: Callable[[], None]) -> None:
        if branch.to_harden and (branch.needs_list or branch.blocks[0].kind in ADDS):
            self.harden(branch)

    def sync_contents(self, paths: Sequence[str]) -> None:
        self.check()
        self._waiting.run(partial(self._sync_contents, paths))

    def _sync_contents(self, paths: Sequence[str]) -> None:
        with self._fencing():
            for path in paths:
                self.fs.sync_data(path)

    def sync_names(self, directories: Sequence[str]) -> None:
        """All there are: the follower may just have moved a file out of one of these, and the journal has its name
        only. Were the loss on disk and the place that it has now not, a crash would leave it nowhere."""
        self.check()
        self._waiting.run(self._sync_all)

    def _sync_all(self) -> None:
        with self._fencing():
            self.fs.sync_all()

    # Steps

    def _publish(self, group: Sequence[Step]) -> None:
        behind = self.behind
        for step in group:
            planned = step.planned
            if step.error is not None:
                if type(planned) is Change:
                    planned.take_back()
            else:
                step.publish()
                if type(planned) is Change:
                    ops = planned.ops
                    if planned.point or planned.rest:
                        ops = [*planned.point, *ops, *planned.rest]
                    if not step.done:  # else it was published when it was deferred
                        behind.show(ops)
                    is_first = not behind.changes
                    behind.changes.append(ops)
                    behind.files += len(ops)
                    if is_first:
                        self._owner.wakes.pending.wake()
        if self.changed_queues:
            self._owner.published_locked(self._marks)
        journal = self.journal
        self._upto = journal.position
        if journal.switches != self._switches:
            self._switches, self._is_full = journal.switches, True
            self._owner.wakes.full.wake()

    def perform_unrecorded(self, plan: Callable[[], Change]) -> None:
        self.exclusively(lambda: self._apply_unrecorded(plan().ops))

    def _apply_unrecorded(self, ops: Sequence[Op]) -> None:
        turn = Turn([ops], set())
        try:
            redo.apply(self.fs, turn.left, turn.gone)
            redo.apply_removals(self.fs, turn.gone, turn.left)
        finally:
            self._note_touched(turn.final)

    def _note_touched(self, paths: Iterable[str]) -> None:
        """Behind the change: who looks at once sees what it came to."""
        if self.touched is not None:
            self.touched.update(paths)

    # The directories

    def read(self, path: str, *, may_wait: bool = True, at_once: int = HEAD_READ_BYTES) -> bytes:
        put = self.behind.held.get(path)
        if put is None and (put := self.behind.cached.get(path)) is not None:
            self.behind.used.add(path)
        if put is not None:
            self._hits += 1
            data: bytes = put[2] + put[3]
            return data
        self._misses += 1
        if path not in self.behind.dropped:
            try:
                data = self.fs.read(path, at_once)  # as ``read_block``, which each dequeue would call
                return data if len(data) < at_once else self.fs.read(path, size_in_head(data) + 1)
            except FileNotFoundError:
                pass
        if not may_wait:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        try:
            self.settle()  # it may be there under the name that it had before, or an earlier file of this name
        except OSError as error:
            if error.errno in NO_ROOM:
                return self._read_unmoved(path)
            self.fail(error)  # a failed write or sync says nothing of the block that was asked for
            raise self._failed() from error
        return read_block(self.fs, path)

    def modified_us(self, path: str) -> int:
        try:
            return self.fs.modified_ns(path) // 1000
        except FileNotFoundError:
            put = self.behind.held.get(path)
            if put is not None:
                return int(put[-1])
            for op in chain.from_iterable((*self.behind.changes, *self._deferred_ops())):
                if (op[2] if op[0] == MOVE else op[1]) == path and op[0] != DROP:
                    return int(op[-1])
            raise

    def _read_unmoved(self, path: str) -> bytes:
        """From where it stands as long as there is no room for its move."""
        with self._lock:
            pending = list(self.behind.changes)
        final = final_states(pending)
        want = final.get(path)
        if want is None and path in final:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        for place in want.places if isinstance(want, Moved) else ():
            with suppress(FileNotFoundError):
                return read_block(self.fs, place)
        return read_block(self.fs, path)

    @property
    def pending(self) -> bool:
        return bool(self.behind.changes or self._marks or self.deferred)

    @property
    def waiting_room(self) -> tuple[int, int]:
        """Bytes and files, about, that are going to need room on the disk."""
        return self.behind.size_bytes, len(self.behind.held)

    def settle(self) -> None:
        self._harden_deferred()  # here, and not where it may be slow: the round may need a turn there
        self._waiting.run(self._follow)

    def follow(self) -> None:
        """Does in the directories all that was published when it was called. Raises OSError, ResourceFailed.

        What finds no room is pending still, before all that is newer and may free some.
        """
        self._harden_deferred()
        self._follow()
        if self.journal.is_short and not refusal(self._owner.definitions, self.fs.room(), self.journal.largest_bytes):
            with self._fencing():
                self.journal.grow()

    def _follow(self) -> None:
        """Of what is recorded."""
        with self._following:
            with self._lock:
                changes, marks, upto = list(self.behind.changes), self._marks, self._upto
                self._marks = {}
                lines = {name: layout.format_watermark(queue.watermark) for name, queue in marks.items()}
            if changes or marks:
                try:
                    self._carry_out(Turn(changes, self.behind.standing), lines)
                except BaseException:
                    with self._lock:
                        self._marks |= marks
                    raise
            self.followed = upto

    def _carry_out(self, turn: Turn, marks: dict[str, bytes]) -> None:
        try:
            self.check()
            if self._lost():
                self._check_owner()
            self._do(turn)
            for queue, watermark in marks.items():
                self._mark(queue, watermark)
            redo.apply_removals(self.fs, turn.gone, turn.left)
        except BaseException:
            self.behind.followed(turn, [turn.rest()])
            with self._lock:
                self.behind.standing.update(turn.left)
            raise
        finally:
            self._note_touched(turn.final)
        self.behind.followed(turn, [])

    def _do(self, turn: Turn) -> None:
        """What goes makes room for what comes, and there may be a reserve. The journal has both, in their order."""
        with suppress_room():
            self._made += redo.apply(self.fs, turn.left, turn.gone)
        if not turn.left:
            return
        redo.apply_removals(self.fs, turn.gone, turn.left)
        try:
            self._made += redo.apply(self.fs, turn.left, turn.gone)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            self._owner.retry(error, lambda: redo.apply(self.fs, turn.left, turn.gone))

    def _mark(self, queue: str, watermark: bytes) -> None:
        path = layout.watermark_path(queue)
        try:
            self.fs.write_at(path, 0, [watermark])
        except FileNotFoundError:  # its messages came and went between two turns
            redo.make_dirs(self.fs, layout.queue_path(queue))
            self.fs.write_at(path, 0, [watermark])

    def exclusively(self, call: Callable[[], None]) -> None:
        """Follows, and calls this while nothing is being followed. Raises what either raises."""
        self.settle()
        with self._following:
            call()

    def copy(self, copying: Copying, settle: Callable[[], None]) -> int:
        self.touched = set()
        try:
            copying.changing()
            for _ in range(COPIES):
                settle()
                touched, self.touched = self.touched, set()
                copying.again(touched)
                if len(touched) <= FEW:
                    break
            self.settle()
            with self._following:
                copying.again(self.touched or ())
                copying.rest()
                return self.followed
        finally:
            self.touched = None

    # Figures

    @property
    def journal_epoch(self) -> int:
        return self.journal.segment_epoch

    @property
    def reads_of_memory(self) -> tuple[int, int]:
        return self._hits, self._misses

    def figures(self) -> dict[str, int]:
        end = self.journal.position
        behind = max(end - self.followed, 0) if self.pending else 0
        found = {"rounds": self.rounds, "steps": self.steps, "journal_end": end, "behind_bytes": behind}
        return found | {"hits": self._hits, "misses": self._misses}

    # Checkpoints

    def checkpoint(self) -> None:
        """What was followed is on disk, and the journal releases what that covers; traffic goes on. Raises
        ResourceFailed, RetryLater where there is no room for the record.
        """
        below, self._is_full = self.followed, False
        try:
            self._waiting.run(partial(synced, self.fs.sync_all))
            self.perform(lambda: checkpoint_entry(below), lambda: self._covers(below))
            self.journal.recycle()
        except OSError as error:
            self.fail(error)
            raise self._failed() from error
        self.checkpoints += 1
        self._covered, self._covered_at, self._made = self.journal.position, time.monotonic(), 0
        if self.register is not None:
            self.register.make()

    def checkpoint_in(self, every_s: float) -> float:
        if self.journal.position == self._covered:
            return LOOK_S
        if self._is_full or self._made > NEW_FILES:
            return 0.0
        return min(self._covered_at + every_s - time.monotonic(), LOOK_S)

    @property
    def is_covered(self) -> bool:
        return self.journal.position == self.journal.checkpoint + checkpoint_entry(0).size_bytes

    def _covers(self, below: int) -> None:
        self.journal.checkpoint = max(self.journal.checkpoint, below)

    def _relieve_journal(self, _: int) -> None:
        """A checkpoint in the middle of a round, by its leader, of everything up to that round."""
        if not self.journal.full_segments:
            return
        try:
            self._follow()
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            return
        below = self.followed
        synced(self.fs.sync_all)
        self.journal.write_checkpoint(below)
        if self.journal.kept:
            log.warning("[archive-gap] no room: the journal is not kept, and no restore to a moment since comes by it")
        self.journal.recycle(may_keep=False)
