"""An enqueue finds its queue full: it is refused, and nothing has changed; or it waits until others make room.

What a branch takes out of the queue makes room for what it adds: they come and go together. So for each set of open
branches what is committed, with what these add and without what they take, is within the limits: whichever commit, no
limit is passed. What others take makes room once it is committed.
Nobody waits for himself: where the queue were full of what the branch itself adds, it is refused at once.
"""

from __future__ import annotations

from time import monotonic

from xaqueue.core.engine.state import Space
from xaqueue.core.model.block import Kind
from xaqueue.core.model.branch import Branch
from xaqueue.core.model.queue import Queue
from xaqueue.errors import QueueFull
from xaqueue.features.limits.limits import Limits

LOOK_S = 0.5
"""How long who waits sleeps at most before it looks again: a fence, or the end of its branch, may wake nobody."""


def check(
    space: Space, branch: Branch, queue: Queue, size_bytes: int, *, count: int = 1, may_wait: bool = False
) -> None:
    """Returns once there is room for so many messages more, of so many bytes in all. Called with the lock held.

    may_wait: where the queue is defined so. Raises QueueFull, UnknownQueue, the reason for which the branch is rolled
    back meanwhile, ResourceFailed.
    """
    began = monotonic()
    while (limits := queue.limits) is not None:
        lack = _lack(branch, queue, limits, size_bytes, count)
        if not lack:
            return
        left_s, why = _left(space, branch, limits, began) if may_wait and limits.waits else (0.0, "")
        added, added_bytes = _of(branch, queue, Kind.ENQUEUE)
        if left_s > 0 and limits.lack(added + count, added_bytes + size_bytes):
            left_s, why = 0.0, ", and it does not wait for what its own branch adds"
        if left_s <= 0:
            _make_room(space, queue)
            raise QueueFull(
                f"queue {queue.name} is full: with this it had {lack}{why}. Enqueue again once others have taken some"
            )
        queue.waiters += 1
        try:
            queue.arrived.wait(min(left_s, LOOK_S))
        finally:
            queue.waiters -= 1
        space.check()
        space.definitions.find(queue.name)  # it may be undefined: what made room was its last message
        if branch.rollback_reason is not None:
            raise branch.rollback_reason


def _lack(branch: Branch, queue: Queue, limits: Limits, size_bytes: int, count: int) -> str:
    messages, held_bytes = len(queue.index) + len(queue.pending) + count, queue.size_bytes + size_bytes
    if not limits.lack(messages, held_bytes):
        return ""
    taken, taken_bytes = _of(branch, queue, Kind.DEQUEUE)
    return limits.lack(messages - taken, held_bytes - taken_bytes)


def _of(branch: Branch, queue: Queue, kind: Kind) -> tuple[int, int]:
    """How many messages of the queue the branch adds, or takes, and their bytes."""
    found = [one for one in list(branch.blocks) if one.kind is kind and one.queue == queue.name]
    sizes = queue.sizes or {}
    return len(found), sum(sizes.get(one.message_id, 0) for one in found)


def _left(space: Space, branch: Branch, limits: Limits, began: float) -> tuple[float, str]:
    """For how many seconds it may wait yet, and why not where it may not: never longer than its branch has."""
    if space.draining:
        return 0.0, ", and nobody waits while the space is drained"
    now, end = monotonic(), began + limits.wait_s
    if branch.deadline is not None:
        end = min(end, branch.deadline)
    return end - now, f", also after {now - began:.1f} s"


def _make_room(space: Space, queue: Queue) -> None:
    """What has expired leaves sooner."""
    queue.index.find_expired(space.now_us(), 1)
    if queue.index.expired:
        space.has_consumed()
