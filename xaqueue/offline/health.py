"""What is wrong with a space, by its status: for ``xaqueue health``, and the light of the console. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from xaqueue.core.owner.record import READ_ONLY, RECOVERING
from xaqueue.features.replica.replicated import REPLACED, REPLICA, SOURCE

if TYPE_CHECKING:
    from xaqueue.offline.inspect import Status

NOTE = "note"
KINDS = (
    *("fenced", "unowned", "read-only", "damaged", "low disk", "replica", "in doubt", "recovering", "draining"),
    NOTE,
)
"""The worst first. All but a note ends ``xaqueue health`` with an exit code."""
BAD = KINDS[:3]
"""It does not work."""
IN_DOUBT_S, LAG_S = 600.0, 60.0
NEAR = 0.9
"""A queue that has so much of what it may hold is nearly full."""


@dataclass(frozen=True, slots=True)
class HealthFinding:
    kind: str
    text: str
    """What is so, and the way out."""

    @property
    def is_bad(self) -> bool:
        return self.kind in BAD


def findings(
    status: Status, *, draining: bool, in_doubt_age_s: float, in_doubt_s: float = IN_DOUBT_S, lag_s: float = LAG_S
) -> list[HealthFinding]:
    """The worst first; empty where all is well. in_doubt_age_s: of the oldest branch in doubt, 0 for none; it may be in
    doubt for ``in_doubt_s``. lag_s: so long a replica may not be heard of, or be behind."""
    found = [*_of_owner(status), *_of_branches(status, in_doubt_age_s, in_doubt_s), *_of_replication(status, lag_s)]
    if status.low:
        found.append(HealthFinding("low disk", f"enqueues are refused: {status.low}"))
    if draining:
        found.append(HealthFinding("draining", "no new branches are taken: `xaqueue drain --resume` ends that"))
    found += [HealthFinding(NOTE, text) for text in _notes(status)]
    return sorted(found, key=lambda one: KINDS.index(one.kind))


def _of_owner(status: Status) -> list[HealthFinding]:
    if status.trouble:
        who = "the owner" if status.owned else "the last owner"
        way = "look at the disk and the kernel's log, then start it again"
        return [HealthFinding("fenced", f"{who} is fenced: {status.trouble}. Nothing is acknowledged: {way}")]
    why = status.journal.damage if status.journal is not None else ""
    if why or status.state == READ_ONLY:
        way = "`xaqueue check` says what is lost, `xaqueue salvage-journal` goes on without it"
        return [HealthFinding("read-only", f"it is for reading only: {why or 'its owner changes nothing'}. {way}")]
    if status.state == RECOVERING:
        return [HealthFinding("recovering", "messages are being loaded: wait")]
    role = status.replication.role if status.replication is not None else SOURCE
    if not status.owned and role not in (REPLICA, REPLACED):
        return [HealthFinding("unowned", "nobody has the space open: `xaqueue serve` serves it")]
    return []


def _of_branches(status: Status, age_s: float, limit_s: float) -> list[HealthFinding]:
    found = []
    if status.damaged:
        way = "`xaqueue indoubt show` says what; look into quarantine/ before you decide"
        found.append(HealthFinding("damaged", f"branches in doubt that have lost something: {status.damaged}. {way}"))
    if age_s > limit_s:
        way = "`xaqueue indoubt list`, and `xaqueue indoubt advise`"
        found.append(HealthFinding("in doubt", f"a branch is in doubt for {age_s:,.0f} s: {way}"))
    return found


def _of_replication(status: Status, lag_s: float) -> list[HealthFinding]:
    one = status.replication
    if one is None:
        return []
    if one.role == REPLACED:
        return [HealthFinding("replica", f"{one}: connect there")]
    if one.role in (SOURCE, REPLICA) and one.lag_s > lag_s and (one.lag_bytes > 0 or not one.connected):
        return [HealthFinding("replica", f"{one}: is `xaqueue replica` at work, and is the network?")]
    return []


def _notes(status: Status) -> list[str]:
    found = []
    if status.complaint:
        found.append(f"queues.toml is not in force: {status.complaint}")
    if status.quarantined:
        found.append(f"{status.quarantined:,} damaged or foreign files are in quarantine/: `xaqueue check`")
    found += status.snapshots
    for one in status.carriers:
        if one.pending and one.state.value == "open":
            waiting = ", ".join(one.queues) or "all queues"
            found.append(f"{waiting} wait for database {one.carrier}: start who commits there, or `xaqueue release`")
    for queue in status.queues:
        if queue.full:
            found.append(f"queue {queue.name} is full: {queue.full}")
        elif queue.used >= NEAR:
            found.append(f"queue {queue.name} is nearly full, {queue.used:.0%}: take some, or raise its limit")
        if queue.stuck:
            found.append(f"messages of queue {queue.name} cannot be moved: {queue.stuck}")
    return found
