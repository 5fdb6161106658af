"""Branches that take too long are rolled back without their session: past their deadline, or idle for too long.

Never one that is prepared, past its commit point or decided by an operator. What such a branch did is gone at once and
its messages are back; its name stays, doomed with XA_RBTIMEOUT, until its session or transaction manager was told so.
A local one past its commit point, which found no room and whose client did not come again, is completed: nobody else
will, and readers wait for it.
Nobody comes for some: once they were idle as long again, and no session is in them, they are forgotten.

A call that works in a branch is never overtaken: it announces itself in ``branch.working`` before it looks for a reason
to roll back, and that is there before anybody looks who is at work. So idle is only what nobody works in; a deadline
that passes during a call is a reason at once, and the branch is rolled back after that call. A crash in the middle
finds the branch in active/, where everything is rolled back.
"""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

from xaqueue.core.engine import commit
from xaqueue.core.engine.state import Busy, Space, log
from xaqueue.core.model.branch import Branch, State
from xaqueue.errors import RetryLater
from xaqueue.xa import Code, Outcome

LEFT_S = 180.0
"""Without a server that says so: what has been past its commit point, or rolled back, so long is nobody's any more."""
LOOK_S = 1.0
"""What is late and at work is looked at again so soon."""


class _Limit(NamedTuple):
    """See ``expire``."""

    now: float
    idle_s: float
    left_s: float


def expire(space: Space, now: float, idle_s: float, left_s: float | None = None) -> int:
    """Rolls back every branch that takes too long; returns how many. To be called now and then, by one at a time.

    now: of the monotonic clock. idle_s: how long nothing may happen in a branch. left_s: how long the same may wait for
    its session once it is past its commit point or rolled back; None: as long. Raises ResourceFailed.
    """
    limit = _Limit(now, idle_s, idle_s if left_s is None else left_s)
    with space.lock:
        if space.closed or space.read_only is not None:
            return 0
        late = [branch for branch in space.branches.values() if _is_late(branch, limit)]
        left = [branch for branch in space.branches.values() if _is_left(branch, limit)]
    for branch in left:
        _complete(space, branch, limit)
    return sum(_roll_back(space, branch, limit) for branch in late)


def next_look(space: Space, now: float, idle_s: float) -> float:
    """When ``expire`` may find something next; infinite: not before another branch may become late. Called with the
    lock held."""
    limit = _Limit(now, idle_s, LEFT_S)
    return min((_late_at(branch, limit) for branch in space.branches.values()), default=float("inf"))


def _late_at(branch: Branch, limit: _Limit) -> float:
    now, left_at = limit.now, branch.progress + limit.left_s
    match branch.base:
        case State.ACTIVE | State.ROLLBACK_ONLY:
            idle_at = branch.progress + limit.idle_s if branch.holder is None else float("inf")
            at = idle_at if branch.deadline is None else min(idle_at, branch.deadline)
            return at if at > now else now + LOOK_S
        case State.UNDONE:
            return left_at if left_at > now else now + limit.left_s  # a session is in it still
        case State.COMMITTING if branch.xid.is_local:
            return left_at if left_at > now else now + LOOK_S
    return float("inf")


def _is_late(branch: Branch, limit: _Limit) -> bool:
    """Whether there is something to do. Called with the lock held."""
    if branch.busy or branch.base not in (State.ACTIVE, State.ROLLBACK_ONLY, State.UNDONE):
        return False
    if branch.base is State.UNDONE:
        return limit.now - branch.progress > limit.left_s and not _is_used(branch)
    if _is_overdue(branch, limit.now):
        return True
    is_idle = limit.now - branch.progress > limit.idle_s and not branch.working
    return is_idle and branch.holder is None


def _is_left(branch: Branch, limit: _Limit) -> bool:
    """Whether nobody completes it. Called with the lock held."""
    is_pending = branch.base is State.COMMITTING and branch.xid.is_local
    return is_pending and not branch.busy and limit.now - branch.progress > limit.left_s


def _complete(space: Space, branch: Branch, limit: _Limit) -> None:
    with space.lock:
        space.check()
        if space.branches.get(branch.xid) is not branch or not _is_left(branch, limit):
            return
        branch.busy = True
    with suppress(RetryLater), Busy(space, branch):  # which takes it for progress, so that it is tried again later
        commit.commit(space, branch)
        with space.lock:
            space.outcomes.remember(branch.xid, Outcome.COMMITTED, branch.begun.by)  # for who commits it again
        log.warning("[branch-completed] branch %s found no room when it was committed: it is completed", branch.xid)


def _is_overdue(branch: Branch, now: float) -> bool:
    return branch.deadline is not None and now > branch.deadline


def _is_used(branch: Branch) -> bool:
    """Whether some session is in it, which is told at its next call. One that was suspended to migrate may be gone."""
    return bool(branch.active) or (bool(branch.suspended) and not branch.migrates)


def _roll_back(space: Space, branch: Branch, limit: _Limit) -> bool:
    with space.lock:
        space.check()
        if space.branches.get(branch.xid) is not branch or not _is_late(branch, limit):
            return False
        if branch.base is not State.UNDONE:
            why = f"did nothing for {limit.idle_s:g} s"
            if _is_overdue(branch, limit.now):
                why = next(filter(None, (one.overdue for one in branch.riders)), "took longer than its timeout")
            branch.doom(why, Code.XA_RBTIMEOUT)
        if branch.working:
            return False
        branch.busy = True
    with Busy(space, branch):
        if branch.base is State.UNDONE:
            with space.lock:
                space.finish_locked(branch, Outcome.ROLLED_BACK)
            return False
        return _undo(space, branch, limit.now)


def _undo(space: Space, branch: Branch, now: float) -> bool:
    try:
        commit.undo(space, branch)
    except RetryLater as full:
        log.warning("[no-room-yet] branch %s is rolled back later: %s", branch.xid, full)
        return False
    if branch.holder is not None:  # who comes back to it is told that it is over
        with space.lock:
            space.branches.pop(branch.xid, None)
    branch.blocks.clear()
    branch.branch_block, branch.kept, branch.base = None, (0, 0), State.UNDONE
    branch.progress = now
    log.warning("[branch-timeout] %s: it is rolled back", branch.rollback_reason)
    return True
