"""An open space: what memory holds of it (``Memory``), one lock around that, one log below.

A step is handed to the log as a plan and a publish; see ``xaqueue.core.engine.commit``. What it publishes becomes
visible once it is durable, in the order of the commit sequence. Any failure while a step is on its way fences the
space: every later call raises ResourceFailed, and only a reopen, which re-reads the disk, clears it.
A space knows nothing of processes, paths or locks on files, and nothing of how it was opened: ``recovery.recover``
fills it, and ``owner.open`` gives it a directory to own.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import IntEnum
from functools import partial

from xaqueue.core.engine.directory_log import DirectoryLog
from xaqueue.core.engine.disk_space import RoomLimit
from xaqueue.core.engine.features import Features
from xaqueue.core.engine.journal_log import JournalLog
from xaqueue.core.engine.log import Log, Ships
from xaqueue.core.engine.memory import Memory, RecoveryReport
from xaqueue.core.engine.unsynced_log import UnsyncedLog
from xaqueue.core.model import layout
from xaqueue.core.model.block_files import damage_of
from xaqueue.core.model.branch import Branch, State
from xaqueue.core.model.change import DROP, PUT, Change
from xaqueue.core.model.definitions import Definitions
from xaqueue.core.model.queue import Queue
from xaqueue.core.storage.fs import NO_ROOM, FileSystem, synced
from xaqueue.core.storage.group_commit import nothing
from xaqueue.core.storage.hardening import DEFAULT, NOTHING, Hardening
from xaqueue.core.storage.journal import Journal
from xaqueue.core.storage.regular import NO_RIGHTS
from xaqueue.core.storage.scheduling import THREADS, Threads, Turns
from xaqueue.errors import Error, JournalDamaged, ResourceFailed, RetryLater, RolledBack
from xaqueue.xa import Code, Outcome
from xaqueue.xid import LOCAL_FORMAT_ID

LOOK_S = 1.0
"""Who waits for a branch looks so often whether the space is fenced: not every failure wakes those who wait."""
log = logging.getLogger("xaqueue")


class Space(Memory):
    """The state that all sessions of a space share."""

    def __init__(
        self,
        fs: FileSystem,
        definitions: Definitions | None = None,
        *,
        hardening: Hardening = DEFAULT,
        journal: Journal | None = None,
        epoch: int = 1,
        now_ns: Callable[[], int] = time.time_ns,
        room: RoomLimit | None = None,
        waiting: Threads = THREADS,
        lost: Callable[[], str] = lambda: "",
        space_id: str = "",
        features: Features | None = None,
    ) -> None:
        """An empty one over the directories behind ``fs``; ``recover`` fills it.

        journal: where steps are recorded, at the level that has one. lost: why this process is not the owner of the
        directories any more, where it is not.
        """
        if waiting is THREADS and journal is None and hardening == NOTHING:
            waiting = Turns()
        super().__init__(definitions or Definitions(), now_ns, waiting, features or Features())
        self.fs = fs
        self.room = room or RoomLimit(fs)
        self.room.kept = self.kept
        self.hardening = hardening
        self.epoch = epoch
        self.id = space_id
        self.lost = lost
        self.waiters = 0
        """Who waits for ``settled``."""
        self.is_closing = False
        """Who closes it does not wait for what takes long: that is given up."""
        self.closed = False
        self.draining = False
        """Branches that are there are finished, and no new one is begun."""
        self.serving = False
        """Recovery is done. Until then nothing is published, since it may yet put messages below what it found."""
        self.loaded = False
        """All messages are in memory."""
        self.read_only: JournalDamaged | None = None
        """Why nothing can be changed."""
        self.report = RecoveryReport(began_at=self.now_us())
        self.shipping: Ships | None = None
        """Where its journal is shipped."""
        self.log: Log
        if journal is not None:
            self.log = JournalLog(
                fs,
                journal,
                self.lock,
                self,
                waiting=waiting,
                cache_bytes=self.definitions.cache_bytes,
            )
        else:
            kind = UnsyncedLog if hardening == NOTHING else DirectoryLog
            self.log = kind(fs, hardening, self.lock, self, waiting=waiting)

    def serve(self) -> None:
        """Recovery is done, and some may be using its branches already."""
        with self.lock:
            self.log.check()
            self.serving = self.loaded = True
            self.log.mark_published_locked()  # what was committed since recovery wrote the watermarks
            self.settled.notify_all()

    def redefine(self, definitions: Definitions, check: Callable[[], None] = nothing) -> None:
        super().redefine(definitions, check)
        self.log.defers |= definitions.has_unsynced
        if self.shipping is not None:
            self.shipping.changed()
        self.measure()

    def measure(self) -> None:
        """Whether there is room in a queue is counted from now on, where it was not before."""
        with self.lock:
            limited = [(queue, queue.room) for queue in self.queues.values() if queue.room is not None]
        for queue, room in limited:
            room.measure(self, queue)

    # Failure

    @property
    def failure(self) -> BaseException | None:
        """Why it is used no more: fenced, closed, or for reading only."""
        return self.log.failure

    def check(self) -> None:
        """ResourceFailed once anything has failed."""
        if self.log.failure is not None:
            self.log.check()

    def fence(self, error: BaseException) -> ResourceFailed:
        """Nothing is acknowledged any more. Returns the error to raise."""
        self.log.fail(error)
        return ResourceFailed(
            f"the space is fenced: a step failed with {error!r}. Its outcome is uncertain; "
            "close the space, look at the disk, and open it again: recovery re-reads it"
        )

    @contextmanager
    def fencing(self, lack: str = "", then: str = "free some") -> Iterator[None]:
        """What fails in it fences the space. lack: for what there may be no room, which is RetryLater."""
        try:
            yield
        except OSError as error:
            if lack and error.errno in NO_ROOM:
                raise RetryLater(f"no room {lack} ({error.strerror}): {then}") from error
            raise self.fence(error) from error

    def check_readable(self) -> None:
        """ResourceFailed where what memory and directories hold may no longer be shown."""
        if self.read_only is None:
            self.check()

    def check_owner(self) -> None:
        """Fences, and raises ResourceFailed, where another process may own the directories. Costs two calls of stat.

        What a step of the other one does by then is not seen here, and what is done here would overwrite it.
        """
        reason = self.lost()
        if reason:
            self.check()
            failed = ResourceFailed(
                f"the space is fenced: this process owns it no more: {reason}. What was being committed is uncertain; "
                "find out who else has the space open and why its lock was lost, then connect again"
            )
            self.log.fail(failed)
            raise failed

    def check_draining(self) -> None:
        """RolledBack where no new branch is begun; the code says that the same work may be done later."""
        if self.draining:
            raise RolledBack(
                "no new branch is begun here while the space is drained: do the work again elsewhere, or here once "
                "`xaqueue drain --resume` was called or the server was started again",
                Code.XA_RBTRANSIENT,
            )

    # Waiting

    def wait_settled(self) -> None:
        """Waits until some branch may no longer be busy. Called with the lock held.

        Raises ResourceFailed once the space is fenced: who is in that branch may hang for ever.
        """
        self.check()
        self.waiters += 1
        try:
            self.settled.wait(LOOK_S)
        finally:
            self.waiters -= 1
        self.check()

    def settle_locked(self, branch: Branch) -> None:
        """No step of the branch is on its way any more."""
        branch.busy = False
        if self.waiters:
            self.settled.notify_all()

    def wait_until_loaded(self) -> None:
        """Returns once all messages are in memory. Raises ResourceFailed where opening has failed."""
        if not self.loaded:
            with self.lock:
                while not self.loaded:
                    self.wait_settled()
                    if self.shipping is not None:
                        self.shipping.check_shown()

    # Checkpoints

    def checkpoint(self) -> bool:
        """Hardens what the journal is ahead of the directories, and releases what it covers; traffic goes on. Behind
        that comes what features have to do then.

        Returns whether there was room for it. Raises ResourceFailed.
        """
        behind = [then for before in self.features.checkpoints if (then := before(self)) is not None]
        try:
            self.settle()
            self.log.checkpoint()
            self.room.restore(self.definitions)
            for then in behind:
                then()
        except RetryLater as full:
            log.warning("[no-room-yet] no checkpoint yet: %s", full)
            return False
        except OSError as error:
            raise self.fence(error) from error
        return True

    def settle(self) -> None:
        """All that was published is in the directories, for who looks there. Raises RetryLater without room,
        ResourceFailed.
        """
        self.check()
        with self.fencing("for what the directories lack"):
            self.log.settle()

    def sync_all(self) -> None:
        """As ``settle``, and on disk."""
        self.settle()
        with self.fencing():
            self.waiting.run(partial(synced, self.fs.sync_all))

    def read_record(self, path: str) -> bytes:
        """As of the last step. Raises FileNotFoundError, DamagedBlock, RetryLater, ResourceFailed."""
        try:
            return self.log.read(path)
        except FileNotFoundError:
            raise
        except OSError as error:
            damage = damage_of(self.fs, path, error)
            raise (self.unread(path, error) if damage is error else damage) from error

    def unread(self, path: str, error: OSError) -> Exception:
        """What a read that failed for no fault of its file means: not now, or the end."""
        if error.errno in NO_ROOM:
            return RetryLater(f"{path} cannot be read now ({error.strerror}): try again")
        if error.errno in NO_RIGHTS:
            return RetryLater(
                f"{path} cannot be read ({error.strerror}): nothing was changed. Run this as the user that the space "
                f"belongs to, or give the file its rights and owner back, and try again"
            )
        return self.fence(error)

    def discard(self, paths: Iterable[str]) -> None:
        """Removes blocks in active/, which nobody was promised. Raises ResourceFailed."""
        self.check()
        with self.fencing():
            self.log.discard(paths)

    def put(
        self,
        kind: IntEnum,
        name: str,
        path: str,
        head: bytes,
        body: bytes = b"",
        publish: Callable[[], None] = nothing,
        drops: Sequence[str] = (),
    ) -> None:
        """One step that makes a record of the space, or replaces it, and removes these files behind it.

        Raises RetryLater without room, and nothing was done; ResourceFailed.
        """
        self.stage(path, head, body)
        change = Change(kind, name, [(PUT, path, head, body, 0)], rest=[(DROP, gone) for gone in drops])
        self.log.perform(change, publish)

    def stage(self, path: str, head: bytes, body: bytes) -> None:
        """What a step is going to PUT there is written. Raises as ``put``."""
        with self.fencing(f"to record {path}", "nothing was done"):
            try:
                self.log.stage(path, head, body)
            except OSError as error:
                self.room.retry(error, lambda: self.log.stage(path, head, body))

    def finish_locked(self, branch: Branch, outcome: Outcome) -> None:
        """The branch is over and its files are gone."""
        xid = branch.xid
        branch.busy = False
        if self.waiters:
            self.settled.notify_all()
        if branch.riders and (decided := branch.decided) is not None:
            self.branches[xid] = Branch(xid, branch.name, base=decided)
            return
        self.branches.pop(xid, None)
        branch.base = State.UNKNOWN
        if xid[0] != LOCAL_FORMAT_ID or self.outcomes.of_local:
            self.outcomes.remember(xid, outcome, branch.begun.by)

    def close(self) -> bool:
        """Ends the use of the directories. Blocks of branches still active are rolled back by the next open.

        Returns whether the directories hold everything, durably to the level of the space.
        """
        failed = self.failure is not None
        if not failed:
            with suppress(ResourceFailed):  # then it is fenced, and the next open replays
                self.check_owner()
                self.features.close(self)
                self.checkpoint()
        with self.lock:
            if self.closed:
                return False
            self.closed = True
            failed = failed or self.failure is not None
            self.log.end(ResourceFailed("the space is closed"))
            for queue in self.queues.values():
                queue.arrived.notify_all()
            self.settled.notify_all()
        is_covered = self.log.is_covered
        try:
            if not failed:
                self._write_final_watermarks()
        except OSError as error:
            raise ResourceFailed(f"the last watermark was not written ({error}): the next open numbers on") from error
        finally:
            self.log.close()
            self.fs.close()
        return is_covered and not failed

    def abandon(self) -> None:
        """A forked child's copy: fenced, its descriptors closed, its threads never there."""
        self.lock = threading.Lock()
        self.settled = threading.Condition(self.lock)
        self.closed = True
        self.log.abandon(ResourceFailed("the space belongs to the parent of this forked process: connect again"))
        self.fs.close()

    def retry(self, error: OSError, call: Callable[[], object]) -> None:
        self.room.retry(error, call)

    def _write_final_watermarks(self) -> None:
        """After a clean close numbering goes on without a gap."""
        for queue in self.queues.values():
            if queue.reserved > queue.last == queue.published:
                queue.reserved = queue.last
                queue.write_watermark(self.fs)
                if self.hardening.content:
                    self.fs.sync_data(layout.watermark_path(queue.name))

    def arrived_locked(self) -> None:
        """A message has come to be seen: those who wait look again."""
        for queue in self.log.changed_queues.values():
            if queue.waiters:
                queue.arrived.notify_all()

    def published_locked(self, marks: dict[str, Queue]) -> None:
        """Behind each group of steps: those who wait look again. Adds the queues whose watermark is another one now."""
        if not self.serving:
            return
        unhardened = self.log.unhardened() if self.log.deferred else {}
        for name, queue in self.log.changed_queues.items():
            if queue.waiters:
                queue.arrived.notify_all()
            through = min(queue.shown, unhardened[name] - 1) if name in unhardened else queue.shown
            if through > queue.published:
                queue.published = through
            marks[name] = queue
        if unhardened:
            self.log.changed_queues = {name: self.queues[name] for name in unhardened}
        else:
            self.log.changed_queues.clear()


class Busy:
    """A block in which a step of a branch is on its way to disk: every other call on it waits, and hears when that is
    over. Made with ``branch.busy`` set under the lock.
    """

    __slots__ = ("_branch", "_space")

    def __init__(self, space: Space, branch: Branch) -> None:
        self._space = space
        self._branch = branch

    def __enter__(self) -> Branch:
        return self._branch

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        leave(self._space, self._branch, error)


def leave(space: Space, branch: Branch, error: BaseException | None = None) -> None:
    """The step is over, with this error or none; what is no answer of ours fences the space."""
    failed = None
    if error is not None:
        branch.progress = time.monotonic()  # it was called, and may be called again
        if not isinstance(error, Error):  # or interrupted: those who wait for the step are woken
            failed = space.fence(error)
    with space.lock:
        space.settle_locked(branch)
    space.log.deliver_interrupt()
    if failed is not None and isinstance(error, OSError):
        raise failed from error
