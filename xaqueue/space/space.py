"""An open space: its branches, queues and finished xids in memory, one lock around them, one barrier below.

A step changes memory and directories under the lock and waits for its ticket outside it. What it publishes becomes
visible when the ticket's round is hardened, in the order of the commit sequence. Any failure while a step is on its
way fences the space: every later call raises ResourceFailed, and only a reopen, which re-reads the disk, clears it.
A space knows nothing of processes, paths or locks on files: ``xaqueue.space.attach`` gives it a directory to own.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence

from xaqueue.branch import Branch, State
from xaqueue.errors import Error, ResourceFailed
from xaqueue.index import Entry
from xaqueue.space import layout, recovery
from xaqueue.space.definitions import Definitions
from xaqueue.space.load import Progress
from xaqueue.space.queue import Queue
from xaqueue.space.recovery import RecoveryReport
from xaqueue.storage.barrier import Barrier, Ticket
from xaqueue.storage.flags import DEFAULT, Hardening
from xaqueue.storage.fs import FileSystem
from xaqueue.xa import Outcome
from xaqueue.xid import Xid

FINISHED_LIMIT = 10_000
"""Finished xids that are remembered, at most."""
FINISHED_SECONDS = 3600.0
"""For how long a finished xid is remembered, at most."""

log = logging.getLogger("xaqueue")


def wall_clock() -> int:
    """Int microseconds UTC."""
    return time.time_ns() // 1000


class _Step:
    """The context that ``Space.step`` gives: written out, because every transaction enters it several times."""

    __slots__ = ("_space",)

    def __init__(self, space: Space) -> None:
        self._space = space

    def __enter__(self) -> None:
        self._space.barrier.enter()
        try:
            self._space.lock.acquire()
        except BaseException:  # interrupted: the gate would stay shut for ever
            self._space.barrier.leave()
            raise
        if self._space.barrier.failure is not None:
            self._space.lock.release()
            self._space.barrier.leave()
            self._space.barrier.check()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._space.lock.release()
        self._space.barrier.leave()
        if error is not None and not isinstance(error, Error):
            raise self._space.fence(error) from error


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
    ) -> None:
        """Opens the directories behind ``fs``, which must exist, and recovers. Raises OSError, SpaceError."""
        self.fs = fs
        self.definitions = definitions or Definitions()
        self.hardening = hardening
        self.epoch = epoch
        self.now_us = now_us
        self.lock = threading.Lock()
        self._step = _Step(self)
        self.settled = threading.Condition(self.lock)
        """Some branch is no longer busy."""
        self.barrier = Barrier(fs, hardening, self._publish)
        self.queues: dict[str, Queue] = {}
        self.branches: dict[Xid, Branch] = {}
        self._finished: OrderedDict[Xid, tuple[Outcome, float]] = OrderedDict()
        self._dirty: dict[str, Queue] = {}
        self._last_commit_us = 0
        self._sessions = 0
        self.closed = False
        self.serving = False
        """Recovery is done. Until then nothing is published, since it may yet put messages below what it found."""
        self.report: RecoveryReport = recovery.recover(self, progress)
        self.serving = True

    def next_session(self) -> int:
        with self.lock:
            self._sessions += 1
            return self._sessions

    def queue(self, name: str) -> Queue:
        """The queue's memory, made on first use; the name must be checked already. Called with the lock held."""
        queue = self.queues.get(name)
        if queue is None:
            definition = self.definitions.queues.get(name) or self.definitions.default
            queue = self.queues[name] = Queue(name, definition or recovery.UNDEFINED, self.lock)
        return queue

    def redefine(self, definitions: Definitions) -> None:
        """New definitions hold from here on; queues are put into their new order."""
        with self.lock:
            self.definitions = definitions
            for name, queue in self.queues.items():
                definition = definitions.queues.get(name) or definitions.default
                if definition is not None:
                    queue.index.reorder(definition.order)

    def step(self) -> _Step:
        """The lock, around changes of directories: what fails here unforeseen fences the space."""
        return self._step

    def fence(self, error: BaseException) -> ResourceFailed:
        """Nothing is acknowledged any more. Returns the error to raise."""
        self.barrier.fail(error)
        log.critical("the space is fenced: %r", error)
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
        for queue, entry in consumed:
            queue.consumed(self.fs, entry)

    def finish(self, branch: Branch, outcome: Outcome) -> None:
        """The branch is over and its files are gone."""
        with self.lock:
            if branch.decided is not None:
                self.branches[branch.xid] = Branch(branch.xid, base=branch.decided)
                return
            self.branches.pop(branch.xid, None)
            branch.become(State.UNKNOWN)
            if not branch.xid.is_local:
                self.remember(branch.xid, outcome)

    def remember(self, xid: Xid, outcome: Outcome) -> None:
        """Called with the lock held."""
        now = time.monotonic()
        self._finished.pop(xid, None)
        self._finished[xid] = (outcome, now)
        while len(self._finished) > FINISHED_LIMIT or next(iter(self._finished.values()))[1] < now - FINISHED_SECONDS:
            self._finished.popitem(last=False)

    def outcome(self, xid: Xid) -> Outcome:
        """What became of a branch. UNKNOWN: never started, still active, or finished too long ago."""
        with self.lock:
            branch = self.branches.get(xid)
            if branch is not None:
                return _OUTCOMES.get(branch.base, Outcome.UNKNOWN)
            outcome, when = self._finished.get(xid, (Outcome.UNKNOWN, 0.0))
            return outcome if time.monotonic() - when <= FINISHED_SECONDS else Outcome.UNKNOWN

    def close(self) -> None:
        """Ends the use of the directories. Blocks of branches still active are rolled back by the next open."""
        with self.lock:
            if self.closed:
                return
            self.closed = True
            failed = self.barrier.failure is not None
            self.barrier.fail(ResourceFailed("the space is closed"))
            for queue in self.queues.values():
                queue.arrived.notify_all()
            self.settled.notify_all()
        try:
            if not failed:
                self._write_final_watermarks()
        except OSError as error:
            raise ResourceFailed(f"the last watermark was not written ({error}): the next open numbers on") from error
        finally:
            self.barrier.close()
            self.fs.close()

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

    def _publish(self, group: Sequence[Ticket]) -> None:
        """The barrier's leader calls this without the lock; a step with nothing to sync calls it with the lock."""
        if len(group) == 1 and not group[0].waited:
            self._publish_locked(group)
        else:
            with self.lock:
                self._publish_locked(group)

    def _publish_locked(self, group: Sequence[Ticket]) -> None:
        for ticket in group:
            if ticket.publish is not None:
                ticket.publish()
        if not self.serving:
            return
        for queue in self._dirty.values():
            queue.write_watermark(self.fs)
            queue.arrived.notify_all()
        self._dirty.clear()


_OUTCOMES = {
    State.PREPARED: Outcome.IN_DOUBT,
    State.HEURISTIC_COMMIT: Outcome.COMMITTED,
    State.HEURISTIC_ROLLBACK: Outcome.ROLLED_BACK,
}
