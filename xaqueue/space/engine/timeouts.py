"""Branches that take too long are rolled back without their session: past their deadline, or idle for too long.

Never one that is prepared, past its commit point or decided by an operator. What such a branch did is gone at once and
its messages are back; its name stays, doomed with XA_RBTIMEOUT, until its session or transaction manager was told so.
A local one past its commit point, which found no room and whose client did not come again, is completed: nobody else
will, and readers wait for it.
Nobody comes for some: once they were idle as long again, and no session is in them, they are forgotten.

A call that works in a branch is never overtaken: it announces itself in ``branch.working`` before it looks for a doom,
and the doom is there before anybody looks who is at work. So idle is only what nobody works in; a deadline that
passes during a call dooms the branch at once, and it is undone after that call. A crash in the middle finds the branch
in active/, where everything is rolled back.
"""

from __future__ import annotations

import logging
from contextlib import suppress

from xaqueue.errors import RetryLater, RolledBack
from xaqueue.space.engine import commit
from xaqueue.space.engine.busy import Busy
from xaqueue.space.engine.state import Space
from xaqueue.space.model.branch import Branch, State
from xaqueue.xa import Code, Outcome

log = logging.getLogger("xaqueue")


def expire(space: Space, now: float, idle_s: float) -> int:
    """Rolls back every branch that takes too long; returns how many. To be called now and then, by one at a time.

    now: of the monotonic clock. idle_s: how long nothing may happen in a branch. Raises ResourceFailed.
    """
    with space.lock:
        if space.closed or space.read_only is not None:
            return 0
        late = [branch for branch in space.branches.values() if _is_late(branch, now, idle_s)]
        left = [branch for branch in space.branches.values() if _is_left(branch, now, idle_s)]
    for branch in left:
        _complete(space, branch, now, idle_s)
    return sum(_roll_back(space, branch, now, idle_s) for branch in late)


def _is_late(branch: Branch, now: float, idle_s: float) -> bool:
    """Whether there is something to do. Called with the lock held."""
    if branch.busy or branch.committing or branch.base not in (State.ACTIVE, State.ROLLBACK_ONLY):
        return False
    if branch.undone:
        return now - branch.progress > idle_s and not _is_used(branch)
    return _is_overdue(branch, now) or (now - branch.progress > idle_s and not branch.working)


def _is_left(branch: Branch, now: float, idle_s: float) -> bool:
    """Whether nobody completes it. Called with the lock held."""
    return branch.committing and branch.xid.is_local and not branch.busy and now - branch.progress > idle_s


def _complete(space: Space, branch: Branch, now: float, idle_s: float) -> None:
    with space.lock:
        space.barrier.check()
        if space.branches.get(branch.xid) is not branch or not _is_left(branch, now, idle_s):
            return
        branch.busy = True
    with suppress(RetryLater), Busy(space, branch):  # which takes it for progress, so that it is tried again later
        commit.commit_one_phase(space, branch)
        log.warning("branch %s found no room when it was committed: it is completed", branch.xid)


def _is_overdue(branch: Branch, now: float) -> bool:
    return branch.deadline is not None and now > branch.deadline


def _is_used(branch: Branch) -> bool:
    """Whether some session is in it, which is told at its next call. One that was suspended to migrate may be gone."""
    return bool(branch.active) or (bool(branch.suspended) and not branch.migrates)


def _roll_back(space: Space, branch: Branch, now: float, idle_s: float) -> bool:
    with space.lock:
        space.barrier.check()
        if space.branches.get(branch.xid) is not branch or not _is_late(branch, now, idle_s):
            return False
        if not branch.undone:
            why = "took longer than its timeout" if _is_overdue(branch, now) else f"did nothing for {idle_s:g} s"
            branch.doom = branch.doom or RolledBack(f"branch {branch.xid} {why}", Code.XA_RBTIMEOUT)
        if branch.working:
            return False
        branch.busy = True
    with Busy(space, branch):
        if branch.undone:
            space.finish(branch, Outcome.ROLLED_BACK)
            return False
        return _undo(space, branch, now)


def _undo(space: Space, branch: Branch, now: float) -> bool:
    try:
        commit.undo(space, branch)
    except RetryLater as full:
        log.warning("branch %s is rolled back later: %s", branch.xid, full)
        return False
    branch.blocks.clear()
    branch.kept_bytes, branch.listed, branch.undone = 0, False, True
    branch.progress = now
    log.warning("%s: it is rolled back", branch.doom)
    return True
