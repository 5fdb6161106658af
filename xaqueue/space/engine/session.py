"""One session with a space: the XA verbs over its branches, and the work between them.

Every verb asks the table in ``space.model.branch`` first, then performs a step of ``commit``. While a step is
on its way its branch is busy, and another call on it waits; the space's lock is never held across a sync.
"""

from __future__ import annotations

import _thread
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Unpack

from xaqueue.batch import BATCH_FORMAT_IDS, is_of_a_batch
from xaqueue.errors import (
    Error,
    InterfaceError,
    InvalidArgument,
    OutsideTransaction,
    ProtocolError,
    ResourceFailed,
    RetryLater,
    RolledBack,
    UnknownXid,
)
from xaqueue.message import EnqueueOptions, Message, MessageId
from xaqueue.space.engine import batches, commit, heuristics, messages
from xaqueue.space.engine.batches import BatchVerbs
from xaqueue.space.engine.busy import Busy, leave
from xaqueue.space.engine.state import Space
from xaqueue.space.engine.stream_verbs import StreamVerbs
from xaqueue.space.model import branch as states
from xaqueue.space.model.branch import ALLOWED, Branch, Call, State, call_of, check_flags
from xaqueue.times import check_seconds
from xaqueue.xa import Code, Flag, Outcome, Vote
from xaqueue.xid import LOCAL_FORMAT_ID, Xid


class Session(BatchVerbs, StreamVerbs):
    """A ResourceManager. Used by one thread at a time; any number of sessions share a space."""

    def __init__(self, space: Space, on_close: Callable[[], None] = lambda: None) -> None:
        self.space = space
        self.number = space.next_session()
        self._on_close = on_close
        self._current: Branch | None = None
        self._local: Branch | None = None
        """The last local branch: nobody else finishes it, not even when it is idle."""
        self._undone: list[Branch] = []
        """Branches that ``fail`` has left, which nobody may have been told."""
        self._scan: list[Xid] | None = None
        self.branch_limit: int | None = None
        """So many branches may be begun here and be neither prepared nor over."""
        self._begun: list[Xid] = []
        self._awaits = ""
        """The queue of the last dequeue, if it may have waited."""
        self._closed = False

    # The verbs of a branch's life

    def start(self, xid: Xid, flags: Flag = Flag.NOFLAGS, timeout_s: float | None = None) -> None:
        call = Call.START if flags is Flag.NOFLAGS else call_of("start", flags)
        if self._closed:
            self._check_open()
        space = self.space
        with space.lock:
            if space.log.failure is not None:
                space.check()
            branch = space.branches.get(xid)
            if branch is None and call is Call.START and self._current is None:
                branch = self._begin_locked(xid, timeout_s)
                branch.active.add(self.number)
            else:
                branch = self._enter_locked(xid, call, timeout_s)
            branch.progress = time.monotonic()
        self._current = branch
        if xid[0] == LOCAL_FORMAT_ID:
            self._local = branch

    def _enter_locked(self, xid: Xid, call: Call, timeout_s: float | None) -> Branch:
        current, branch = self._current, self._settled_locked(xid)
        if current is not None and current is not branch:
            if current.xid.is_local:
                raise OutsideTransaction("a local transaction is open: commit it or roll it back first")
            raise ProtocolError(f"the session is in branch {current.xid}: end it before it starts {xid}")
        if branch is not None:
            self._expire(branch)
        state = branch.state_for(self.number) if branch is not None else State.UNKNOWN
        try:
            states.step(state, call, xid)
        except RolledBack as why:
            assert branch is not None
            branch.become(State.ROLLBACK_ONLY)
            raise branch.doom or why from None
        if branch is None:
            branch = self._begin_locked(xid, timeout_s)
        branch.enter(self.number)
        return branch

    def end(self, xid: Xid, flags: Flag = Flag.SUCCESS) -> None:
        call = Call.END_SUCCESS if flags is Flag.SUCCESS else call_of("end", flags)
        if self._closed:
            self._check_open()
        with self.space.lock:
            branch = self.space.branches.get(xid)
            if branch is not None and branch.busy:
                branch = self._settled_locked(xid)
            state = branch.state_for(self.number) if branch is not None else State.UNKNOWN
            after = states.step(state, call, xid)
            assert branch is not None
            if self._current is branch:
                self._current = None
            branch.progress = time.monotonic()
            if after is State.SUSPENDED:
                branch.suspend(self.number, migrates=bool(flags & Flag.MIGRATE))
                return
            if state is State.SUSPENDED and branch.migrates:
                branch.suspended.clear()
            branch.active.discard(self.number)
            branch.suspended.discard(self.number)
            if branch.deadline is not None:
                self._expire(branch)
            if branch.doom is not None or after is State.ROLLBACK_ONLY:
                self._end_doomed_locked(branch, after)

    @staticmethod
    def _end_doomed_locked(branch: Branch, after: State) -> None:
        if branch.active or branch.suspended:  # it is rolled back once they have left it, too
            branch.doom = branch.doom or RolledBack(f"branch {branch.xid} was failed by a session in it")
        else:
            branch.become(State.ROLLBACK_ONLY)
        if branch.doom is not None and after is not State.ROLLBACK_ONLY:
            raise branch.doom

    def prepare(self, xid: Xid, flags: Flag = Flag.NOFLAGS) -> Vote:
        branch = self._take(xid, Call.PREPARE if flags is Flag.NOFLAGS else call_of("prepare", flags))
        try:
            if not branch.blocks:
                with self.space.lock:
                    del self.space.branches[xid]
                    self.space.settle_locked(branch)
                return Vote.RDONLY
            try:
                if xid[0] in BATCH_FORMAT_IDS and is_of_a_batch(xid):
                    batches.check_prepare(self.space, branch)
                commit.prepare(self.space, branch)
            except RolledBack:
                commit.rollback(self.space, branch)
                raise
        except BaseException as error:
            leave(self.space, branch, error)
            raise
        if self.space.log.interrupts:
            self.space.log.deliver_interrupt()
        return Vote.OK

    def commit(self, xid: Xid, flags: Flag = Flag.NOFLAGS) -> None:
        branch = self._take(xid, Call.COMMIT if flags is Flag.NOFLAGS else call_of("commit", flags))
        try:
            if xid[0] in BATCH_FORMAT_IDS and is_of_a_batch(xid):
                batches.check_commit(branch)
            if branch.damage:
                raise RetryLater(  # noqa: TRY301
                    f"branch {xid} lost {', '.join(branch.damage)}: it cannot be committed as a whole; "
                    f"an operator decides with `xaqueue indoubt show {xid}`"
                )
            if not branch.blocks and branch.base is not State.PREPARED:
                with self.space.lock:
                    self.space.finish_locked(branch, Outcome.COMMITTED)
                return
            try:
                commit.commit(self.space, branch)
            except RolledBack:
                commit.rollback(self.space, branch)
                raise
        except BaseException as error:
            leave(self.space, branch, error)
            raise
        if self.space.log.interrupts:
            self.space.log.deliver_interrupt()

    def rollback(self, xid: Xid, flags: Flag = Flag.NOFLAGS) -> None:
        branch = self._take(xid, Call.ROLLBACK if flags is Flag.NOFLAGS else call_of("rollback", flags))
        with Busy(self.space, branch):
            batches.check_rollback(branch)
            commit.rollback(self.space, branch)

    def flush(self) -> None:
        self._check_open()

    def forget(self, xid: Xid, flags: Flag = Flag.NOFLAGS) -> None:
        branch = self._take(xid, call_of("forget", flags))
        with Busy(self.space, branch):
            if branch.decided is not None:
                raise ProtocolError(f"the decision on {xid} is not carried out yet: decide it again")
            heuristics.forget(self.space, branch)

    def recover(self, count: int, flags: Flag = Flag.NOFLAGS) -> list[Xid]:
        check_flags("recover", flags)
        self._check_open()
        if count < 0:
            raise InvalidArgument(f"recover of {count} xids: a count from 0 is wanted")
        if flags & Flag.STARTRSCAN:
            with self.space.lock:
                self.space.check()  # for reading only it may lack branches that are prepared
                listed = (State.PREPARED, *states.HEURISTICS)
                self._scan = [
                    xid
                    for xid, branch in self.space.branches.items()
                    if branch.base in listed or (branch.base is State.COMMITTING and branch.prepared_at)
                ]
        if self._scan is None:
            raise InvalidArgument("recover without an open scan: begin with STARTRSCAN")
        page, self._scan = self._scan[:count], self._scan[count:]
        if flags & Flag.ENDRSCAN:
            self._scan = None
        return page

    def outcome(self, xid: Xid) -> Outcome:
        self._check_open()
        with self.space.lock:
            self._settled_locked(xid)  # a step on its way is waited for: what it comes to is the answer
        found = self.space.outcome(xid)
        return batches.outcome(self.space, xid) if found is Outcome.UNKNOWN and is_of_a_batch(xid) else found

    # The work

    def enqueue(self, queue: str, body: bytes, **options: Unpack[EnqueueOptions]) -> MessageId:
        branch = self._at_work()
        try:
            return messages.enqueue(self.space, branch, queue, body, options)
        finally:
            branch.progress = time.monotonic()
            branch.working.discard(self.number)

    def dequeue(
        self,
        queue: str,
        *,
        wait_s: float | None = 0.0,
        message_id: bytes | None = None,
        correlation_id: bytes | str | None = None,
    ) -> Message | None:
        limit_s = check_seconds("wait_s", wait_s) if wait_s != 0 else 0.0
        branch = self._at_work()
        self._awaits = queue if limit_s else ""
        try:
            return messages.dequeue(self.space, branch, queue, limit_s, message_id, correlation_id)
        finally:
            branch.progress = time.monotonic()
            branch.working.discard(self.number)

    def browse(self, queue: str, limit: int | None = None) -> Iterator[Message]:
        self._check_open()
        self.space.wait_until_loaded()
        return messages.browse(self.space, queue, limit)

    def fail(self, error: Error) -> None:
        """Work that belongs to the branch was refused, and nobody waits for the answer: the session leaves it, and it
        can only be rolled back."""
        branch = self._current
        if branch is not None:
            with self.space.lock:
                branch.doom = branch.doom or RolledBack(f"branch {branch.xid} is rolled back: {error}", Code.XA_RBOTHER)
                self._current = None
                branch.leave(self.number)
                if not (branch.active or branch.suspended):
                    branch.become(State.ROLLBACK_ONLY)
                branches = self.space.branches
                self._undone = [one for one in self._undone if branches.get(one.xid) is one] + [branch]

    def lose(self, why: str = "its session was lost") -> Xid | None:
        """Whoever used the session is gone: what waits in it is to end, and ``close`` follows.

        Returns the branch that it was in.
        """
        branch = self._current
        if branch is not None:
            branch.doom = branch.doom or RolledBack(f"branch {branch.xid}: {why}", Code.XA_RBCOMMFAIL)
            with self.space.lock:
                awaited = self.space.queues.get(self._awaits)
                if awaited is not None:
                    awaited.arrived.notify_all()
        return branch.xid if branch is not None else None

    def close(self, left: Xid | None = None) -> None:
        if self._closed:
            return
        if left is not None and self.outcome(left) is not Outcome.IN_DOUBT:
            with suppress(UnknownXid, ProtocolError, ResourceFailed):  # finished, past its commit point, fenced
                self.rollback(left)
        self._closed = True
        space = self.space
        with space.lock:
            with suppress(ResourceFailed):
                while any(branch.busy for branch in self._mine_locked()):  # rolled back just now, for being idle
                    space.wait_settled()
            alone = []
            for branch in self._mine_locked():
                branch.leave(self.number)
                if branch.active or branch.suspended:
                    branch.doom = RolledBack(f"branch {branch.xid}: a session in it was lost", Code.XA_RBCOMMFAIL)
                else:
                    branch.busy = True
                    alone.append(branch)
            failed = space.failure is not None
        try:
            for branch in alone:
                if not failed:
                    with Busy(space, branch):
                        commit.rollback(space, branch)
        finally:
            with space.lock:
                for branch in alone:
                    branch.busy = False
                space.settled.notify_all()
            self._on_close()

    def drop(self) -> bool:
        """In a thread of its own: the collector may have come in while this one has the space's lock."""
        if self._closed or self.space.closed:
            return False
        with suppress(RuntimeError):  # no threads any more: the process ends, and the space with it
            _thread.start_new_thread(self.close, ())
        return self.space.failure is None  # of what a fence undoes everybody is told

    # Within

    def _check_open(self) -> None:
        if self._closed:
            raise InterfaceError("the session is closed")

    def _mine_locked(self) -> list[Branch]:
        """The branches that end with the session."""
        return [
            branch
            for branch in self.space.branches.values()
            if self.number in branch.active
            or (self.number in branch.suspended and not branch.migrates)
            or (branch is self._local and branch.base in _UNFINISHED)
            or (branch.base is State.ROLLBACK_ONLY and any(branch is one for one in self._undone))
        ]

    def _settled_locked(self, xid: Xid) -> Branch | None:
        while (branch := self.space.branches.get(xid)) is not None and branch.busy:
            self.space.wait_settled()
        return branch

    def _take(self, xid: Xid, call: Call) -> Branch:
        """The branch, busy, after the table allowed the call; a doomed one is rolled back and says why."""
        if self._closed:
            self._check_open()
        space = self.space
        with space.lock:
            if space.log.failure is not None:
                space.check()
            branch = space.branches.get(xid)
            if branch is not None and (branch.busy or branch.deadline is not None):
                branch = self._settled_locked(xid)
                if branch is not None:
                    self._expire(branch)
            if branch is None:
                state = State.UNKNOWN
            elif branch.base is State.PREPARED and branch.decided is None:
                state = State.PREPARED
            else:
                state = branch.state_for(self.number)
            allowed = (call, state) in ALLOWED or states.is_allowed(state, call, xid)
            assert branch is not None
            branch.busy = True
        if not allowed:
            with Busy(space, branch):
                self._reject(branch)
        return branch

    def _reject(self, branch: Branch) -> None:
        """Rolls a doomed branch back and says why."""
        commit.rollback(self.space, branch)
        raise branch.doom or RolledBack(f"branch {branch.xid} was rolled back")

    def _begin_locked(self, xid: Xid, timeout_s: float | None) -> Branch:
        if self.space.draining:
            self.space.check_draining()
        if self.branch_limit is not None:
            self._count_locked(xid, self.branch_limit)
        branch = self.space.branches[xid] = Branch(xid)
        branch.begun = time.monotonic()
        late = batches.refusal(self.space, xid) if xid[0] in BATCH_FORMAT_IDS and is_of_a_batch(xid) else ""
        if late:
            branch.doom = RolledBack(late)
        if timeout_s is not None:
            branch.deadline = branch.begun + timeout_s
        return branch

    def _count_locked(self, xid: Xid, limit: int) -> None:
        """One more branch of this session; those that are prepared or over are not looked for before it is full."""
        if len(self._begun) >= limit:
            found = ((begun, self.space.branches.get(begun)) for begun in self._begun)
            self._begun = [begun for begun, branch in found if branch is not None and branch.base in _UNPREPARED]
        if len(self._begun) >= limit:
            raise RetryLater(
                f"branch {xid} is not begun: {limit} of this session are neither prepared nor over, which is the "
                "limit: finish some first"
            )
        self._begun.append(xid)

    def _at_work(self) -> Branch:
        """The branch that work belongs to, which nobody rolls back now: the caller takes the session out of
        ``working`` again."""
        if self._closed:
            self._check_open()
        branch = self._current
        if branch is None:
            self.space.check()
            raise ProtocolError("no branch is started in this session: start one first")
        branch.working.add(self.number)
        try:
            if not self.space.loaded:
                self.space.wait_until_loaded()
            if self.space.log.failure is not None:
                self.space.check()
            if branch.deadline is not None:
                self._expire(branch)
            if branch.doom is not None or branch.base is not State.ACTIVE:
                self._check_working(branch)
        except BaseException:
            branch.working.discard(self.number)
            raise
        return branch

    @staticmethod
    def _check_working(branch: Branch) -> None:
        if branch.doom is not None:
            raise branch.doom
        if branch.base is not State.ACTIVE:
            raise ProtocolError(f"branch {branch.xid} is {branch.base.value}: it takes no more work")

    @staticmethod
    def _expire(branch: Branch) -> None:
        if branch.deadline is None or branch.doom or branch.base is not State.ACTIVE:
            return
        if time.monotonic() > branch.deadline:
            branch.doom = RolledBack(f"branch {branch.xid} took longer than its timeout", Code.XA_RBTIMEOUT)


_UNPREPARED = (State.ACTIVE, State.IDLE, State.ROLLBACK_ONLY)


_UNFINISHED = (State.ACTIVE, State.ROLLBACK_ONLY)
