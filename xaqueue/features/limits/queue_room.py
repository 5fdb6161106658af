"""An enqueue finds its queue full: it is refused, and nothing has changed; or it waits until others make room.

What a branch takes out of the queue makes room for what it adds: they come and go together. So for each set of open
branches what is committed, with what these add and without what they take, is within the limits: whichever commit, no
limit is passed. What others take makes room once it is committed.
Nobody waits for himself: where the queue were full of what the branch itself adds, it is refused at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from time import monotonic

from xaqueue.core.engine import many
from xaqueue.core.engine.state import Space
from xaqueue.core.model.block import ADDS, PREFIX_BYTES, Kind, pack
from xaqueue.core.model.branch import Branch
from xaqueue.core.model.entry import Entry, MessageBlock
from xaqueue.core.model.message_block import Table, decode_table
from xaqueue.core.model.queue import Queue
from xaqueue.errors import DamagedBlock, QueueFull
from xaqueue.features.limits.limits import QueueLimits

LOOK_S = 0.5
"""How long who waits sleeps at most before it looks again: a fence, or the end of its branch, may wake nobody."""


class Room:
    """Of a queue that has limits, and what counts for them."""

    def __init__(self, limits: QueueLimits) -> None:
        self.sizes: dict[bytes, int] | None = None
        """Bytes of what the queue holds and of what is ``pending``, by id, where they are limited."""
        self.size_bytes = 0
        """Their sum."""
        self._is_to_be_measured = False
        self.change(limits)

    def change(self, limits: QueueLimits) -> None:
        """They are these from here on."""
        self.limits = limits
        if not limits.max_bytes:
            self.sizes, self.size_bytes = None, 0
        elif self.sizes is None:
            self.sizes, self._is_to_be_measured = {}, True

    def hold(self, message_id: bytes, size_bytes: int) -> None:
        if self.sizes is not None and message_id not in self.sizes:
            self.sizes[message_id] = size_bytes
            self.size_bytes += size_bytes

    def gone(self, message_id: bytes) -> None:
        if self.sizes is not None:
            self.size_bytes -= self.sizes.pop(message_id, 0)

    def admit(
        self, space: Space, branch: Branch, queue: Queue, size_bytes: int, *, count: int = 1, may_wait: bool = False
    ) -> None:
        """Waits where the queue is defined so. Raises QueueFull, UnknownQueue, the reason for which the branch is
        rolled back meanwhile, ResourceFailed."""
        began = monotonic()
        while (room := room_of(queue)) is not None:
            limits = room.limits
            lack = _lack(branch, queue, room, size_bytes, count)
            if not lack:
                return
            left_s, why = _left(space, branch, limits, began) if may_wait and limits.waits else (0.0, "")
            added, added_bytes = _of(branch, queue, room, ADDS)
            if left_s > 0 and limits.lack(added + count, added_bytes + size_bytes):
                left_s, why = 0.0, ", and it does not wait for what its own branch adds"
            if left_s <= 0:
                _make_room(space, queue)
                raise QueueFull(
                    f"queue {queue.name} is full: with this it had {lack}{why}. "
                    "Enqueue again once others have taken some"
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

    def measure(self, space: Space, queue: Queue) -> None:
        with space.lock:
            if not self._is_to_be_measured:
                return
            self._is_to_be_measured = False
            blocks = [one for branch in space.branches.values() for one in branch.blocks if one.queue == queue.name]
            entries = list(queue.index.entries(0))
        sizes: dict[bytes, int] = {}
        for one in blocks:
            if one.kind is Kind.MESSAGES:
                data = b"".join(one.content) if one.content is not None else space.log.read(one.path)
                sizes |= each_alone(decode_table(data))
            else:
                size_bytes = sum(map(len, one.content)) if one.content is not None else _size_at(space, one.path)
                sizes |= dict.fromkeys(one.ids, size_bytes)
        looked: MessageBlock | None = None
        for entry in entries:
            block = queue.block_of(entry.seq) if queue.blocks else None
            if block is None:
                sizes[entry.message_id] = size_of(space, queue, entry)
            elif block is not looked:
                looked = block
                with suppress(DamagedBlock, OSError):  # whoever takes its messages sets them aside
                    sizes |= each_alone(many.opened(space, block)[0])
        with space.lock:
            for message_id, size_bytes in sizes.items():
                if message_id in queue.index or message_id in queue.pending:
                    self.hold(message_id, size_bytes)


def room_of(queue: Queue) -> Room | None:
    """Where it has limits."""
    return queue.room if isinstance(queue.room, Room) else None


def act(queue: Queue, limits: QueueLimits | None) -> None:
    """It is defined so now."""
    room = room_of(queue)
    if limits == (room.limits if room is not None else None):
        return
    if limits is None:
        queue.room = None
    elif room is None:
        queue.room = Room(limits)
    else:
        room.change(limits)
    if queue.waiters:
        queue.arrived.notify_all()  # there may be room now


def _lack(branch: Branch, queue: Queue, room: Room, size_bytes: int, count: int) -> str:
    limits = room.limits
    messages, held_bytes = len(queue.index) + len(queue.pending) + count, room.size_bytes + size_bytes
    if not limits.lack(messages, held_bytes):
        return ""
    taken, taken_bytes = _of(branch, queue, room, (Kind.DEQUEUE,))
    return limits.lack(messages - taken, held_bytes - taken_bytes)


def _of(branch: Branch, queue: Queue, room: Room, kinds: Sequence[Kind]) -> tuple[int, int]:
    """How many messages of the queue the branch adds, or takes, and their bytes."""
    blocks = [one for one in list(branch.blocks) if one.kind in kinds and one.queue == queue.name]
    found = [message_id for one in blocks for message_id in one.ids]
    sizes = room.sizes or {}
    return len(found), sum(sizes.get(message_id, 0) for message_id in found)


def size_of(space: Space, queue: Queue, entry: Entry) -> int:
    """What a message takes on disk; of those that are left in one block each the same."""
    block = queue.block_of(entry.seq) if queue.blocks else None
    return _size_at(space, queue.path_of(entry)) // (max(block.left, 1) if block is not None else 1)


def _size_at(space: Space, path: str) -> int:
    """Of the block there; 0 where it is gone meanwhile, or cannot be read."""
    try:
        return space.fs.size(path)
    except OSError:
        with suppress(OSError, DamagedBlock):
            return len(space.log.read(path))  # it has no file yet
    return 0


def each_alone(table: Table) -> dict[bytes, int]:
    """What counts for the messages of a block: the bytes that each had in a file of its own."""
    heads = [PREFIX_BYTES + len(table.packed)] * table.count
    for index in table.own:
        heads[index] = PREFIX_BYTES + len(pack(table.stored(index)))
    return {one: head + size for one, head, size in zip(table.message_ids(), heads, table.sizes, strict=True)}


def _left(space: Space, branch: Branch, limits: QueueLimits, began: float) -> tuple[float, str]:
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
        space.wakes.consumed.wake()
