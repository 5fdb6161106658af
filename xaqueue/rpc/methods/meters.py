"""What an owner measures, for ``xaqueue.metrics``: one answer, which reads of a queue when its oldest message came.

The space's lock is held for one queue at a time, and once to look at the branches. Counters begin at 0 with each owner:
what a crash takes of those that outlive it would make them fall, and who computes rates would take all for new.
"""

from __future__ import annotations

import time
from dataclasses import astuple, dataclass, field
from functools import partial
from typing import Any, cast

from xaqueue.core.engine import disk_space
from xaqueue.core.engine.state import Space
from xaqueue.core.model import layout
from xaqueue.core.model.block_files import listed
from xaqueue.core.model.branch import State
from xaqueue.core.storage.layers import OwnerFileSystem
from xaqueue.errors import ResourceFailed
from xaqueue.features.counters.counters import file_of
from xaqueue.features.counters.values import Counters
from xaqueue.features.replica import replicated
from xaqueue.features.replica.replicated import ReplicationStatus
from xaqueue.features.replica.shipping import shipping_of
from xaqueue.offline.inspect import QueueStatus, Status
from xaqueue.offline.inspect_branches import InDoubt
from xaqueue.rpc import wire
from xaqueue.rpc.methods.sessions import UNPREPARED, age_of_oldest

QueueRow = tuple[
    str, int, int, int, int, int, int, int, int, bool, bool, str, int, int, int, int, int, int, int, int, float
]
"""Name; messages that are ready, delayed, locked, in doubt, exhausted; age of the oldest that is ready in microseconds;
bytes; consumers; whether it is stuck, and full; the stream that has it and how far that is behind; then the counters of
``Counters``, in their order; and the share of its limits that it has."""


@dataclass(frozen=True, slots=True)
class Metrics:
    """Of one owner, at one moment; its answer has ``queues`` as well, a list of ``QueueRow``.

    Times are int microseconds UTC, ages int microseconds; 0 where there is none. None is what nobody knows: while the
    space recovers, where only files were read, or without a journal.
    """

    state: str
    """"recovering", "ready", "read-only", "draining" or "fenced"; empty where nobody owns the space."""
    sync: str
    epoch: int
    began_at: int
    fenced_at: int
    active: int | None = None
    in_doubt: int | None = None
    damaged: int | None = None
    """How many of those in doubt have lost something."""
    in_doubt_age: int | None = None
    """Of the oldest."""
    sync_counts: list[int] = field(default_factory=list)
    """By ``layers.SYNC_STEPS_S``."""
    sync_total_s: float = 0.0
    rounds: int | None = None
    steps: int | None = None
    """Steps that were hardened, several in a round."""
    journal_end: int | None = None
    """LSN of the next record."""
    behind_bytes: int | None = None
    """Of the journal, which the directories do not have yet."""
    hits: int | None = None
    misses: int | None = None
    """Reads from memory, and from files."""
    free_bytes: int | None = None
    free_inodes: int | None = None
    is_low: bool | None = None
    """Enqueues are refused for want of room."""
    quarantined: int | None = None
    replication: ReplicationStatus | None = None
    sessions: int | None = None
    waiting: int | None = None
    """Sessions that wait for a message."""


def metrics_in(space: Space, sessions: int) -> dict[str, Any]:
    """The fields of ``Metrics``; few while the space recovers. Raises ResourceFailed, also once it is closed."""
    if space.closed:
        raise ResourceFailed("the space is closed")
    head = {
        "state": _state(space),
        "sync": str(space.hardening),
        "epoch": space.epoch,
        "began_at": space.report.began_at,
        "fenced_at": space.report.fenced_at,
        "sessions": sessions,
    }
    if not space.loaded:
        return head
    found = space.waiting.run(partial(_of_disk, space))
    return {**head, **found, **_of_branches(space), **_of_log(space), "queues": _queues(space)}


def metrics_of(status: Status, waiting: list[InDoubt]) -> dict[str, Any]:
    """What the files tell of a space: less than its owner knows, and counters from the day that it was made."""
    now, none, journal, owner = time.time_ns() // 1000, Counters(), status.journal, status.owner
    since = min((branch.since for branch in waiting if branch.since and branch.decision is None), default=0)
    return {
        "state": "fenced" if status.owned and status.trouble else {"alive": "ready"}.get(status.state, status.state),
        "sync": status.sync,
        "epoch": owner.epoch if owner is not None else 0,
        "began_at": 0,
        "fenced_at": owner.fenced_at if owner is not None else 0,
        "active": status.active,
        "in_doubt": status.in_doubt,
        "damaged": status.damaged,
        "in_doubt_age": max(now - since, 0) if since else 0,
        "journal_end": journal.end if journal is not None else None,
        "free_bytes": status.free_bytes,
        "free_inodes": status.free_inodes,
        "is_low": bool(status.low),
        "quarantined": status.quarantined,
        "replication": None if status.replication is None else wire.plain(status.replication),
        "queues": [_row(queue, none, now) for queue in status.queues],
    }


def _state(space: Space) -> str:
    if space.log.fenced:
        return "fenced"
    if not space.loaded:
        return "recovering"
    return "read-only" if space.read_only is not None else "draining" if space.draining else "ready"


def _of_disk(space: Space) -> dict[str, Any]:
    left, shipping = space.fs.room(), shipping_of(space)
    status = replicated.status(space.fs, space.now_us()) if shipping is None else shipping.status
    return {
        "free_bytes": left.free_bytes,
        "free_inodes": left.free_inodes if left.total_inodes else None,
        "is_low": bool(disk_space.refusal(space.definitions, left)),
        "quarantined": sum(1 for name in listed(space.fs, layout.QUARANTINE) if not name.endswith(".reason")),
        "replication": None if status is None else wire.plain(status),
    }


def _of_branches(space: Space) -> dict[str, Any]:
    with space.lock:
        open_ones = [branch for branch in space.branches.values() if branch.decided is None]
        waiting = sum(queue.takers for queue in space.queues.values())
    in_doubt = [branch for branch in open_ones if branch.base in (State.PREPARED, State.DELEGATED)]
    return {
        "active": sum(branch.base in UNPREPARED for branch in open_ones),
        "in_doubt": len(in_doubt),
        "damaged": sum(bool(branch.damage) for branch in in_doubt),
        "in_doubt_age": age_of_oldest(space, in_doubt),
        "waiting": waiting,
    }


def _of_log(space: Space) -> dict[str, Any]:
    found: dict[str, Any] = space.log.figures()
    if isinstance(space.fs, OwnerFileSystem):
        found |= {"sync_counts": list(space.fs.syncs.counts), "sync_total_s": space.fs.syncs.total_s}
    return found


def _queues(space: Space) -> list[QueueRow]:
    from xaqueue.rpc.methods.service import queue_list

    now, before, none = space.now_us(), file_of(space).before, Counters()
    return [_row(queue, before.get(queue.name, none), now) for queue in queue_list(space)]


def _row(queue: QueueStatus, before: Counters, now: int) -> QueueRow:
    counted = (now_has - had for now_has, had in zip(astuple(queue.counters), astuple(before), strict=True))
    row = (
        queue.name,
        queue.ready,
        queue.delayed,
        max(queue.held - queue.in_doubt, 0),
        queue.in_doubt,
        queue.exhausted,
        max(now - queue.oldest, 0) if queue.oldest is not None else 0,
        queue.size_bytes,
        queue.consumers or 0,
        bool(queue.stuck),
        bool(queue.full),
        queue.stream,
        queue.lag,
        *counted,
        queue.used,
    )
    return cast(QueueRow, row)
