"""Which branch a session is in: it starts and ends one, works in it, and may lose it.

A session is associated with at most one branch, and what it adds and takes belongs to that.
Every verb asks the table in ``core.model.branch`` first.
"""

from __future__ import annotations

import time

from xaqueue.core.engine.state import Space
from xaqueue.core.model import branch as states
from xaqueue.core.model.branch import Begun, Branch, Call, State, call_of
from xaqueue.errors import Error, InterfaceError, OutsideTransaction, ProtocolError, RetryLater, RolledBack
from xaqueue.xa import Code, Flag
from xaqueue.xid import LOCAL_FORMAT_ID, Xid

_ACTIVE = State.ACTIVE
_UNPREPARED = (State.ACTIVE, State.IDLE, State.ROLLBACK_ONLY)


class Association:
    """The part of a ``Session`` that says where it is."""

    def __init__(self, space: Space) -> None:
        self.space = space
        self.number = space.next_session()
        self._current: Branch | None = None
        self._last: Xid | None = None
        """The branch that was entered last."""
        self._receiving: Branch | None = None
        """The last of which it is the holder without being in it; it may wait for a message."""
        self._is_lost = False
        self._local: Branch | None = None
        """The last local branch: nobody else finishes it, not even when it is idle."""
        self._undone: list[Branch] = []
        """Branches that ``fail`` has left, which nobody may have been told."""
        self.key: bytes | None = None
        """By which a client names this session in another, once it has lost it."""
        self.branch_limit: int | None = None
        """So many branches may be begun here and be neither prepared nor over."""
        self._begun: list[Xid] = []
        self._closed = False

    def start(self, xid: Xid, flags: Flag = Flag.NOFLAGS, timeout_s: float | None = None) -> None:
        if self._closed:
            self._check_open()
        space = self.space
        with space.lock:
            if space.log.failure is not None:
                space.check()
            if flags is Flag.NOFLAGS and self._current is None and xid not in space.branches:
                branch = self._begin_locked(xid, timeout_s)
                branch.active.add(self.number)
            else:
                branch = self._enter_locked(xid, call_of("start", flags), timeout_s)
                branch.progress = time.monotonic()
        self._current, self._last = branch, xid
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
            raise branch.rollback_reason or why from None
        if branch is None:
            branch = self._begin_locked(xid, timeout_s)
        branch.enter(self.number)
        return branch

    def end(self, xid: Xid, flags: Flag = Flag.SUCCESS) -> None:
        if self._closed:
            self._check_open()
        branch = self._current
        with self.space.lock:
            is_plain = branch is not None and branch.xid == xid and branch.base is _ACTIVE and flags is Flag.SUCCESS
            if (
                branch is None
                or not is_plain
                or branch.busy
                or branch.rollback_reason
                or branch.deadline
                or branch.riders
            ):
                self._end_locked(xid, call_of("end", flags), flags)
            else:
                self._current = None
                branch.active.discard(self.number)
                branch.progress = time.monotonic()

    def _end_locked(self, xid: Xid, call: Call, flags: Flag) -> None:
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
        branch.active.discard(self.number)
        if state is State.SUSPENDED:
            branch.resume(self.number)
        if branch.deadline is not None:
            self._expire(branch)
        if branch.rollback_reason is not None or after is State.ROLLBACK_ONLY:
            self._end_rollback_only_locked(branch, after)

    @staticmethod
    def _end_rollback_only_locked(branch: Branch, after: State) -> None:
        if branch.active or branch.suspended:  # it is rolled back once they have left it, too
            branch.doom("was failed by a session in it")
        else:
            branch.become(State.ROLLBACK_ONLY)
        if branch.rollback_reason is not None and after is not State.ROLLBACK_ONLY:
            raise branch.rollback_reason

    def fail(self, error: Error) -> None:
        """Work that belongs to the branch was refused, and nobody waits for the answer: the session leaves it, and it
        can only be rolled back."""
        branch = self._current
        if branch is not None:
            with self.space.lock:
                branch.doom(f"is rolled back: {error}", Code.XA_RBOTHER)
                self._current = None
                branch.leave(self.number)
                if not (branch.active or branch.suspended):
                    branch.become(State.ROLLBACK_ONLY)
                branches = self.space.branches
                self._undone = [one for one in self._undone if branches.get(one.xid) is one] + [branch]

    @property
    def is_in_branch(self) -> bool:
        return self._current is not None

    # Within

    @property
    def identity(self) -> bytes | int:
        """By which it is known as the holder of a branch."""
        return self.key or self.number

    def _check_open(self) -> None:
        if self._closed:
            raise InterfaceError("the session is closed")

    def _settled_locked(self, xid: Xid) -> Branch | None:
        while (branch := self.space.branches.get(xid)) is not None and branch.busy:
            self.space.wait_settled()
        return branch

    def _begin_locked(self, xid: Xid, timeout_s: float | None) -> Branch:
        space = self.space
        if space.draining:
            space.check_draining()
        if self.branch_limit is not None:
            if len(self._begun) >= self.branch_limit:
                self._make_room_locked(xid, self.branch_limit)
            self._begun.append(xid)
        branch = Branch(xid, str(xid))
        branch.progress = now = time.monotonic()
        branch.begun = Begun(now, self.key)
        rule = space.features.rules.get(xid[0])
        if rule is not None:
            try:
                rule.check(space, branch, Call.START)
            except RolledBack as why:
                branch.rollback_reason = why
        if timeout_s is not None:
            branch.deadline = now + timeout_s
            space.look_by(branch.deadline)
        if space.definitions.branch_idle_s:
            space.look_by(now + space.definitions.branch_idle_s)
        space.branches[xid] = branch  # at last: interrupted before there is none
        return branch

    def _make_room_locked(self, xid: Xid, limit: int) -> None:
        """There is room for one more; those that are prepared or over are not looked for before it is full."""
        found = ((begun, self.space.branches.get(begun)) for begun in self._begun)
        self._begun = [begun for begun, branch in found if branch is not None and branch.base in _UNPREPARED]
        if len(self._begun) >= limit:
            raise RetryLater(
                f"branch {xid} is not begun: {limit} of this session are neither prepared nor over, which is the "
                "limit: finish some first, and settle what was received"
            )

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
            self._check_work(branch)
        except BaseException:
            branch.working.discard(self.number)
            raise
        return branch

    def _check_work(self, branch: Branch) -> None:
        """Once the messages are there. Raises why the branch takes no work."""
        self.space.wait_until_loaded()
        self.space.check()
        self._expire(branch)
        if branch.rollback_reason is not None:
            raise branch.rollback_reason
        if branch.base is not State.ACTIVE:
            raise ProtocolError(f"branch {branch.xid} is {branch.base.value}: it takes no more work")

    @staticmethod
    def _expire(branch: Branch) -> None:
        if branch.deadline is None or branch.rollback_reason or branch.base is not State.ACTIVE:
            return
        if time.monotonic() > branch.deadline:
            branch.doom("took longer than its timeout", Code.XA_RBTIMEOUT)
