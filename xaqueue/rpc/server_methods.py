"""The methods that concern the server as a whole: it is drained, and tells which branches are left then.

    branch     {"xid": xid, "state": "active", "in doubt" or "committing", "since": int microseconds UTC}
    drained    {"draining": bool, "active": count, "in_doubt": count, "left": [branch], the oldest first}

``since`` is when it was begun, or prepared; 0 where nobody knows. Not counted: what is decided or undone already, and
only waits for somebody to be told so.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from xaqueue.errors import InvalidArgument
from xaqueue.rpc.wire import xid_to
from xaqueue.space.engine.state import Space
from xaqueue.space.model.branch import Branch, State
from xaqueue.space.recovery.prepared import Verdict

if TYPE_CHECKING:
    from xaqueue.rpc.methods import Peer

LISTED = 1000
"""Branches of one answer, at most."""
ACTIVE = "active"


class Left(NamedTuple):
    """Branches that are neither prepared nor over, and those that are prepared and not finished."""

    active: list[Branch]
    in_doubt: list[Branch]


def left(space: Space) -> Left:
    found = Left([], [])
    with space.lock:
        for branch in space.branches.values():
            if branch.decided is not None:
                continue
            if branch.base is State.PREPARED or branch.committing:
                found.in_doubt.append(branch)
            elif branch.base in _UNPREPARED and not branch.undone:
                found.active.append(branch)
    return found


def drain(peer: Peer, on: Any = None) -> dict[str, Any]:
    """Takes no new branches from here on (true), or takes them again (false); nil only asks. Tells what is left."""
    if on is not None and not isinstance(on, bool):
        raise InvalidArgument(f"drain of {on!r} is refused: true, false or nil is wanted")
    space = peer.session.space
    if on is not None:
        space.draining = on
    found = left(space)
    told = sorted((_branch_to(space, branch) for branch in (*found.active, *found.in_doubt)), key=lambda b: b["since"])
    counts = {"active": len(found.active), "in_doubt": len(found.in_doubt)}
    return {"draining": space.draining, **counts, "left": told[:LISTED]}


def _branch_to(space: Space, branch: Branch) -> dict[str, Any]:
    if branch.committing:
        state = Verdict.COMMITTING.value
    elif branch.base is State.PREPARED:
        state = Verdict.IN_DOUBT.value
    else:
        state = ACTIVE
    return {"xid": xid_to(branch.xid), "state": state, "since": _since(space, branch)}


def _since(space: Space, branch: Branch) -> int:
    if branch.prepared_at or not branch.begun:
        return branch.prepared_at
    return space.now_us() - int((time.monotonic() - branch.begun) * 1_000_000)


_UNPREPARED = (State.ACTIVE, State.IDLE, State.ROLLBACK_ONLY)

SERVER_METHODS: dict[str, tuple[Callable[..., Any], int, int]] = {"drain": (drain, 0, 1)}
"""By name: the method, and how many parameters it takes at least and at most."""
