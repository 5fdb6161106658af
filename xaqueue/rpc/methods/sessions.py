"""Who is connected to a server: since when, what each waits for, and which branches it holds.

Times are int microseconds UTC, 0 where nobody knows. A prepared branch outlives its session, and is that of the session
which began it as long as that is there.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from xaqueue.core.engine.session import Session
from xaqueue.core.engine.state import Space
from xaqueue.core.model.branch import Branch, State
from xaqueue.core.recovery.prepared import Verdict
from xaqueue.xid import Xid

UNPREPARED = (State.ACTIVE, State.IDLE, State.ROLLBACK_ONLY)
UNFINISHED = {
    State.PREPARED: Verdict.IN_DOUBT.value,
    State.DELEGATED: Verdict.IN_DOUBT.value,
    State.COMMITTING: Verdict.COMMITTING.value,
}
"""States of prepared branches, and how they are named."""
ACTIVE, ON_LEASE = "active", "on lease"
LISTED = 100
"""Branches of one session."""
PIECE = 200
"""So many branches are looked at before others may have the space's lock."""


@dataclass(frozen=True, slots=True)
class HeldBranch:
    xid: Xid
    state: str
    since: int
    messages: int
    """That it adds and takes."""


@dataclass(frozen=True, slots=True)
class SessionStatus:
    """One session."""

    who: str
    """As a member of a role."""
    address: str
    """Empty on a Unix socket."""
    transport: str
    """unix, tcp or tls."""
    protocol: int
    """0 before its hello."""
    since: int
    calls: int
    waits_for: str = ""
    """The queue of whose messages, or of room in which; or empty."""
    waits_since: int = 0
    holds: int = 0
    """Branches, the first begun of which are listed."""
    branches: list[HeldBranch] = field(default_factory=list)
    number: int = 0
    """By which people call it; no other session of this server has it."""
    pid: int = 0
    """Of its process, on a Unix socket; else 0."""
    heard: int = 0
    """When it has last asked for something; while that is being done, now."""
    asks: bool = False
    """It is the session that asks."""


def with_work(space: Space, found: Iterable[tuple[SessionStatus, Session]]) -> list[SessionStatus]:
    """With what these wait for and hold, the longest connected first."""
    known = sorted(found, key=lambda one: one[0].since)
    numbers: dict[bytes | int | None, int] = {}
    for at, (_, session) in enumerate(known):
        numbers |= {session.number: at} | ({session.key: at} if session.key is not None else {})
    held: list[list[HeldBranch]] = [[] for _ in known]
    with space.lock:
        waits = [session.waits_locked() for _, session in known]
        branches = list(space.branches.values())
    for first in range(0, len(branches), PIECE):
        with space.lock:
            for branch in branches[first : first + PIECE]:
                if branch.decided is None and (branch.base in UNPREPARED or branch.base in UNFINISHED):
                    for at in {numbers[one] for one in _holders(branch) if one in numbers}:
                        state, since = state_of(branch), since_of(space, branch)
                        messages = sum(len(written.ids) for written in branch.blocks)
                        held[at].append(HeldBranch(branch.xid, state, since, messages))
    return [
        replace(
            reported,
            waits_for=queue,
            waits_since=_wall(space, began),
            holds=len(holds),
            branches=sorted(holds, key=lambda one: one.since)[:LISTED],
        )
        for (reported, _), (queue, began), holds in zip(known, waits, held, strict=True)
    ]


def _holders(branch: Branch) -> Iterator[bytes | int | None]:
    """Numbers and keys of sessions."""
    yield from branch.active
    yield from branch.suspended
    yield branch.holder
    yield branch.begun.by


def state_of(branch: Branch) -> str:
    return UNFINISHED.get(branch.base, ACTIVE if branch.holder is None else ON_LEASE)


def since_of(space: Space, branch: Branch) -> int:
    """When it was begun, or prepared; 0 where nobody knows."""
    return branch.prepared_at or _wall(space, branch.begun.at)


def age_of_oldest(space: Space, branches: Iterable[Branch]) -> int:
    """In microseconds; 0 where there is none whose age is known."""
    since = min((at for branch in branches if (at := since_of(space, branch))), default=0)
    return max(space.now_us() - since, 0) if since else 0


def _wall(space: Space, moment: float) -> int:
    """A moment of the monotonic clock."""
    return space.now_us() - int((time.monotonic() - moment) * 1_000_000) if moment else 0
