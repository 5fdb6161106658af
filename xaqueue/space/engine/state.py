"""An open space: its branches, queues and finished xids in memory, one lock around them, one barrier below.

A step is handed to the barrier, which applies it to memory and directories under the lock and hardens it outside.
What it publishes becomes visible after that, in the order of the commit sequence. Any failure while a step is on its
way fences the space: every later call raises ResourceFailed, and only a reopen, which re-reads the disk, clears it.
A space knows nothing of processes, paths or locks on files: ``xaqueue.space.owner.open`` gives it a directory to own.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from xaqueue.errors import JournalDamaged, ResourceFailed, RetryLater, RolledBack
from xaqueue.space.engine import redo
from xaqueue.space.engine.disk_space import RoomLimit, segment_bytes
from xaqueue.space.engine.register import Register
from xaqueue.space.model import layout
from xaqueue.space.model.batch_record import BatchMemory
from xaqueue.space.model.branch import Branch, State
from xaqueue.space.model.definitions import Definitions
from xaqueue.space.model.index import Entry
from xaqueue.space.model.queue import Queue
from xaqueue.space.recovery import read_only, recover
from xaqueue.space.recovery.cut_short import check_end
from xaqueue.space.recovery.load import Progress
from xaqueue.space.recovery.report import RecoveryReport
from xaqueue.storage.fs import FileSystem
from xaqueue.storage.group_commit import Barrier, Touched
from xaqueue.storage.hardening import DEFAULT, Hardening
from xaqueue.storage.journal import Journal, checkpoint_entry
from xaqueue.storage.journal_format import Record
from xaqueue.storage.scheduling import THREADS, Threads
from xaqueue.storage.write_behind import WriteBehind
from xaqueue.xa import Code, Outcome
from xaqueue.xid import Xid

LOOK_S = 1.0
"""Who waits for a branch looks so often whether the space is fenced: not every failure wakes those who wait."""
FINISHED_LIMIT = 10_000
"""Finished xids that are remembered, at most, and as many local ones."""
FINISHED_SECONDS = 3600.0
"""For how long a finished xid is remembered, at most."""

log = logging.getLogger("xaqueue")
_Finished = OrderedDict[Xid, tuple[Outcome, float]]


def wall_clock() -> int:
    """Int microseconds UTC."""
    return time.time_ns() // 1000


class Space:
    """The state that all sessions of a space share. Sessions and steps use its attributes; nobody else does."""

    def __init__(
        self,
        fs: FileSystem,
        definitions: Definitions | None = None,
        *,
        hardening: Hardening = DEFAULT,
        epoch: int = 1,
        now_us: Callable[[], int] = wall_clock,
        progress: Progress | None = None,
        journalled: bool = False,
        suspect: bool = False,
        room: RoomLimit | None = None,
        waiting: Threads = THREADS,
        on_branches: Callable[[Space], object] = lambda _: None,
        lost: Callable[[], str] = lambda: "",
    ) -> None:
        """Opens the directories behind ``fs``, which must exist, and recovers; for reading only where the journal is
        damaged.

        journalled: whether a journal is known to hold what the directories may lack. suspect: whether what is read may
        be in memory only, since a sync of it failed in this boot or may have; then it is written anew. on_branches:
        called in the middle, once the branches are recovered: from then on sessions may use the verbs for those that
        are prepared or decided, while whoever adds, takes or browses waits for the messages. lost:
        why this process is not the owner of the directories any more, where it is not. Raises OSError, SpaceError.
        """
        self.fs = fs
        self.lag: WriteBehind | None = None
        """With a journal, the directories follow through it."""
        self.register: Register | None = None
        """What is remembered of dequeues should this process be killed, where the directories lag."""
        self.room = room or RoomLimit(fs)
        self.definitions = definitions or Definitions()
        self.hardening = hardening
        self.epoch = epoch
        self.suspect = suspect
        self.now_us = now_us
        self.lock = threading.Lock()
        self.waiting = waiting
        self.settled = waiting.condition(self.lock)
        """Some branch is no longer busy, or the messages are loaded."""
        self._lost = lost
        self.barrier = Barrier(fs, hardening, self.lock, self._published, waiting)
        self.barrier.check_owner = self.check_owner
        self.queues: dict[str, Queue] = {}
        self.branches: dict[Xid, Branch] = {}
        self.batches = BatchMemory()
        self._finished: tuple[_Finished, _Finished] = OrderedDict(), OrderedDict()
        """Those of two-phase transactions, and local ones, of which there may be many more."""
        self._dirty: dict[str, Queue] = {}
        self.has_consumed: Callable[[], None] = lambda: None
        """Files of what a stream has consumed, or of what has expired, are to be cleared."""
        self.has_expiring: Callable[[], None] = lambda: None
        """A message that may expire was published."""
        self.remembers_local = False
        """Whoever commits a local transaction may lose the answer and ask again."""
        self._last_commit_us = 0
        self._sessions = 0
        self.closed = False
        self.draining = False
        """Branches that are there are finished, and no new one is begun."""
        self.serving = False
        """Recovery is done. Until then nothing is published, since it may yet put messages below what it found."""
        self.loaded = False
        """All messages are in memory."""
        self.read_only: JournalDamaged | None = None
        """Why nothing can be changed."""
        self.report = RecoveryReport()
        try:
            notes = self._open_journal(journalled)
        except JournalDamaged as damage:
            read_only.open_for_reading(self, damage, self.report, progress)
            self.loaded = True
            return
        try:
            self.report = recover.recover(self, progress, lambda: on_branches(self))
            self.report.notes[:0] = notes
            self._serve()
        except BaseException as error:
            self.barrier.end(error)  # who opens it is told
            with self.lock:
                self.settled.notify_all()
            raise

    def _serve(self) -> None:
        """Recovery is done, and some may be using its branches already."""
        with self.lock:
            self.barrier.check()
            self.serving = True
            self._published()  # what was committed since recovery wrote the watermarks
            if self.barrier.journal is not None:
                self.lag = WriteBehind(self.fs, self.definitions.cache_bytes)
                self.lag.again = self.room.again_unless_active
                self.lag.check_owner = self.check_owner
                self.register = Register(self.room.unreserved, self.lag.flush)
                self.fs = self.lag
                self.barrier.use(self.lag)
            self.loaded = True
            self.settled.notify_all()

    def wait_settled(self) -> None:
        """Waits until some branch may no longer be busy. Called with the lock held.

        Raises ResourceFailed once the space is fenced: who is in that branch may hang for ever.
        """
        self.barrier.check()
        self.settled.wait(LOOK_S)
        self.barrier.check()

    def wait_until_loaded(self) -> None:
        """Returns once all messages are in memory. Raises ResourceFailed where opening has failed."""
        if not self.loaded:
            with self.lock:
                while not self.loaded:
                    self.wait_settled()

    def _open_journal(self, used: bool) -> list[str]:
        """Makes the directories what the journal says; returns what is worth a note. Raises JournalDamaged."""
        fs = self.fs
        if not self.hardening.journal and not used and not fs.is_dir(layout.JOURNAL):
            return []
        fs.hold_dir("")
        size = segment_bytes(self.definitions, fs.room())
        journal = Journal(fs, layout.JOURNAL, segment_bytes=size, sound=redo.sound, used=used, epoch=self.epoch)
        check_end(fs, journal.replay, journal.position)
        journal.harden()
        notes: list[str] = []
        replayed = len(journal.replay)
        if replayed:
            notes += redo.replay(fs, journal.replay, anew=self.suspect)
            fs.sync_all()
            self._remember_all(journal.replay)
        if journal.position or self.suspect or self.hardening.journal:
            notes += journal.start([])  # whoever had the old one may write there yet
        else:
            journal.tidy()
        if replayed:
            journal.write_checkpoint(journal.position)
            journal.recycle()
        if replayed:
            log.info("%d records of the journal were done again", replayed)
        if self.hardening.journal:
            self.barrier.journal = journal
            journal.syncing = self.barrier.wake_finished
            self.barrier.relieve = self._relieve
        for note in notes:
            log.warning("%s", note)
        return notes

    def checkpoint(self) -> None:
        """Hardens what the journal is ahead of the directories, and releases what it covers; traffic goes on.

        Raises ResourceFailed. Without a journal there is nothing to do.
        """
        journal = self.barrier.journal
        if journal is None:
            return
        below = 0

        def applied() -> Touched:
            nonlocal below
            below = self._applied_locked(journal.position)  # between two rounds
            return Touched()

        def covered() -> Touched:
            journal.checkpoint = max(journal.checkpoint, below)
            return Touched()

        self.barrier.perform(applied)
        try:
            self.sync_all()
            self.barrier.perform(covered, entry=lambda: checkpoint_entry(below))
            journal.recycle()
            self.room.restore(self.definitions)
            if self.register is not None:
                self.register.make()
        except RetryLater as full:
            log.warning("no checkpoint yet: %s", full)
        except OSError as error:
            raise self.fence(error) from error

    def sync_all(self) -> None:
        """All that was done in the directories is on disk. Raises RetryLater without room, and ResourceFailed."""
        self.barrier.check()
        try:
            self.waiting.run(self.fs.sync_all)
        except OSError as error:
            raise self.fence(error) from error

    def _relieve(self, below: int) -> None:
        """A checkpoint in the middle of a round, by its leader, of everything up to that round."""
        journal = self.barrier.journal
        if journal is not None and journal.full_segments:
            with self.lock:
                below = self._applied_locked(below)
            with suppress(RetryLater):
                self.sync_all()
                journal.write_checkpoint(below)
                journal.recycle()

    def _applied_locked(self, position: int) -> int:
        """The LSN below which every record is in the directories: this one, or that of a commit without room there."""
        return min([position, *(branch.behind for branch in self.branches.values() if branch.behind)])

    def next_session(self) -> int:
        with self.lock:
            self._sessions += 1
            return self._sessions

    def queue(self, name: str) -> Queue:
        """The queue's memory, made on first use; the name must be checked already. Called with the lock held."""
        queue = self.queues.get(name)
        if queue is None:
            definition = self.definitions.queues.get(name) or self.definitions.default
            queue = self.queues[name] = Queue(name, definition or recover.UNDEFINED, self.waiting.condition(self.lock))
        return queue

    def redefine(self, definitions: Definitions) -> None:
        """New definitions hold from here on; queues are put into their new order."""
        with self.lock:
            self.definitions = definitions
            for name, queue in self.queues.items():
                definition = definitions.queues.get(name) or definitions.default
                if definition is not None:
                    queue.index.reorder(definition.order)

    def check_readable(self) -> None:
        """ResourceFailed where what memory and directories hold may no longer be shown."""
        if self.read_only is None:
            self.barrier.check()

    def check_draining(self) -> None:
        """RolledBack where no new branch is begun; the code says that the same work may be done later."""
        if self.draining:
            raise RolledBack(
                "no new branch is begun here while the space is drained: do the work again elsewhere, or here once "
                "`xaqueue drain --resume` was called or the server was started again",
                Code.XA_RBTRANSIENT,
            )

    def check_owner(self) -> None:
        """Fences, and raises ResourceFailed, where another process may own the directories. Costs two calls of stat.

        What a step of the other one does by then is not seen here, and what is done here would overwrite it.
        """
        reason = self._lost()
        if reason:
            self.barrier.check()
            failed = ResourceFailed(
                f"the space is fenced: this process owns it no more: {reason}. What was being committed is uncertain; "
                "find out who else has the space open and why its lock was lost, then connect again"
            )
            self.barrier.fail(failed)
            raise failed

    def fence(self, error: BaseException) -> ResourceFailed:
        """Nothing is acknowledged any more. Returns the error to raise."""
        self.barrier.fail(error)
        return ResourceFailed(
            f"the space is fenced: a step failed with {error!r}. Its outcome is uncertain; "
            "close the space, look at the disk, and open it again: recovery re-reads it"
        )

    def committed_by(self, when_us: int) -> None:
        """A message that was found has this commit time: no later one gets an earlier one."""
        self._last_commit_us = max(self._last_commit_us, when_us)

    def commit_time_us(self) -> int:
        """Now, and never before an earlier commit, whatever the clock does. Called with the lock held."""
        self._last_commit_us = max(self._last_commit_us, self.now_us())
        return self._last_commit_us

    def publish(self, arrived: Sequence[tuple[Queue, Entry]], consumed: Sequence[tuple[Queue, Entry]]) -> None:
        """Makes a hardened step visible as a whole. Called with the lock held, in commit order."""
        for queue, entry in arrived:
            queue.publish(entry)
            self._dirty[queue.name] = queue
            if entry.expires_at is not None:
                self.has_expiring()
        for queue, entry in consumed:
            if queue.consumed(entry):
                self.has_consumed()

    def finish(self, branch: Branch, outcome: Outcome) -> None:
        """The branch is over and its files are gone."""
        with self.lock:
            if branch.decided is not None:
                self.branches[branch.xid] = Branch(branch.xid, base=branch.decided)
                return
            self.branches.pop(branch.xid, None)
            branch.become(State.UNKNOWN)
            if self.remembers_local or not branch.xid.is_local:
                self.remember(branch.xid, outcome)

    def _remember_all(self, records: Iterable[Record]) -> None:
        """What became of the branches whose steps were done again: whoever was not told may ask."""
        for record in records:
            outcome, xid = _RECORDED.get(record.kind), layout.parse_xid(redo.xid_of(record))
            if outcome is not None and xid is not None and not xid.is_local:
                self.remember(xid, outcome)

    def remember(self, xid: Xid, outcome: Outcome) -> None:
        """Called with the lock held."""
        finished = self._finished[xid.is_local]
        finished.pop(xid, None)
        finished[xid] = (outcome, time.monotonic())
        while len(finished) > FINISHED_LIMIT:
            finished.popitem(last=False)

    def outcome(self, xid: Xid) -> Outcome:
        """What became of a branch. UNKNOWN: never started, still active, or finished too long ago."""
        with self.lock:
            branch = self.branches.get(xid)
            if branch is not None:
                return Outcome.ROLLED_BACK if branch.undone else _OUTCOMES.get(branch.base, Outcome.UNKNOWN)
            outcome, when = self._finished[xid.is_local].get(xid, (Outcome.UNKNOWN, 0.0))
            return outcome if time.monotonic() - when <= FINISHED_SECONDS else Outcome.UNKNOWN

    def was_here(self, xid: Xid) -> bool:
        """Whether a branch of this xid is known to be over."""
        with self.lock:
            return xid in self._finished[xid.is_local]

    def close(self) -> bool:
        """Ends the use of the directories. Blocks of branches still active are rolled back by the next open.

        Returns whether the directories hold everything, durably to the level of the space.
        """
        failed = self.barrier.failure is not None
        if not failed:
            with suppress(ResourceFailed):  # then it is fenced, and the next open replays
                self.check_owner()
                self.checkpoint()
        with self.lock:
            if self.closed:
                return False
            self.closed = True
            failed = failed or self.barrier.failure is not None
            self.barrier.end(ResourceFailed("the space is closed"))
            for queue in self.queues.values():
                queue.arrived.notify_all()
            self.settled.notify_all()
        journal = self.barrier.journal
        is_covered = journal is None or journal.position == journal.checkpoint + checkpoint_entry(0).size_bytes
        try:
            if not failed:
                self._write_final_watermarks()
        except OSError as error:
            raise ResourceFailed(f"the last watermark was not written ({error}): the next open numbers on") from error
        finally:
            self.barrier.close()
            self.fs.close()
        return is_covered and not failed

    def abandon(self) -> None:
        """A forked child's copy: fenced, its descriptors closed, its threads never there."""
        self.lock = threading.Lock()
        self.settled = threading.Condition(self.lock)
        self.closed = True
        self.barrier.abandon(ResourceFailed("the space belongs to the parent of this forked process: connect again"))
        self.fs.close()

    def _write_final_watermarks(self) -> None:
        """After a clean close numbering goes on without a gap."""
        for queue in self.queues.values():
            if queue.reserved > queue.last == queue.published:
                queue.reserved = queue.last
                queue.write_watermark(self.fs)
                if self.hardening.content:
                    self.fs.sync_data(layout.watermark_path(queue.name))

    def _published(self) -> None:
        """Behind each group of steps, with the lock held: the watermarks follow, and those who wait look again."""
        if not self._dirty or not self.serving:
            return
        for queue in self._dirty.values():
            queue.write_watermark(self.fs)
            queue.arrived.notify_all()
        self._dirty.clear()


_RECORDED: dict[int, Outcome] = {
    redo.Kind.COMMIT: Outcome.COMMITTED,
    redo.Kind.ONE_PHASE: Outcome.COMMITTED,
    redo.Kind.ROLLBACK: Outcome.ROLLED_BACK,
}
_OUTCOMES = {
    State.PREPARED: Outcome.IN_DOUBT,
    State.HEURISTIC_COMMIT: Outcome.COMMITTED,
    State.HEURISTIC_ROLLBACK: Outcome.ROLLED_BACK,
}
