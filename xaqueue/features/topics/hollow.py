"""A block of which little is left is replaced by one without what is gone of it: same name, numbers and time.

What the plan of a step says is gone is back where that step fails, so a body goes only once its message is gone for
everybody: published, with no step on its way that takes from the block. It is read with no lock held; what goes
meanwhile keeps its body until the next time. Which blocks these are memory knows: each is read once.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from xaqueue.core.engine.state import Space
from xaqueue.core.model import layout
from xaqueue.core.model.change import PUT, Change, CoreStep
from xaqueue.core.model.entry import MessageBlock
from xaqueue.core.model.message_block import check_block, decode_table, encode
from xaqueue.core.model.queue import Queue
from xaqueue.core.owner.chores import Chore, Chores
from xaqueue.errors import DamagedBlock, RetryLater

PART = 4
"""Less than one in so many is left of the messages of which it has a body."""
AGE_US = 60_000_000
"""Until then a block stands as it came: most of what is taken goes soon, and the block with it."""
LOOK_S = 60.0


class Hollow(Chore):
    """Looks for such blocks once a minute, in memory, and replaces them one by one."""

    def __init__(self, space: Space) -> None:
        super().__init__(space)
        self._due = time.monotonic() + LOOK_S

    def left_s(self) -> float:
        return self._due - time.monotonic()

    def run(self, turn: Chores) -> float:
        self._due = time.monotonic() + LOOK_S
        for queue, block in sparse(self.space):
            if turn.is_over():
                self._due = 0.0  # the next turn finds those that are left
                break
            try:
                hollow(self.space, queue, block)
            except RetryLater:
                break  # it needs room to make some: another time
        return 0.0


def sparse(space: Space) -> Iterator[tuple[Queue, MessageBlock]]:
    """The blocks of which little is left."""
    with space.lock:
        space.check()
        ranges = [(queue, number) for queue in space.queues.values() for number in queue.blocks]
    for queue, number in ranges:
        with space.lock:
            found = [block for block in queue.blocks.get(number, ()) if block.left * PART < block.held]
        yield from ((queue, block) for block in found)


def hollow(space: Space, queue: Queue, block: MessageBlock) -> None:
    """Replaces it, unless it is too young or somebody takes from it. Raises RetryLater without room, ResourceFailed."""
    named = block.named
    try:
        with space.lock:
            gone, is_settled, when_us = block.gone, block.is_settled, space.log.modified_us(block.path)
        if not is_settled or space.now_us() - when_us < AGE_US or queue.consumed_through >= named.first:
            return  # what a stream consumes of it may go to the archive, with its body
        if queue.kept_in:
            return  # as all of it is going to
        data = space.read_record(block.path)
        table = decode_table(data)
        packed = table.packed
        check_block(table, queue.name, named)
        left = table.left(gone)
        bodies = {index: table.body(data, index) for index in left}
    except FileNotFoundError:
        return  # the last one went
    except DamagedBlock:
        block.held = 0  # whoever takes from it sets that aside
        return
    if space.fs.room().free_bytes < len(data):
        raise RetryLater(f"no room to make {block.path} smaller")
    head, body, _ = encode(
        packed,
        table.message_ids(),
        [bodies.get(index, b"") for index in range(named.count)],
        space.epoch,
        tags=table.tags,
        own=table.own,
        hollow={*range(named.count)}.difference(left),
    )

    is_put = False

    def plan() -> Change | None:
        nonlocal is_put
        is_put = queue.block_of(named.first) is block and block.gone.bit_count() < named.count  # else it goes just now
        return Change(CoreStep.HOLLOW, queue.name, [(PUT, block.path, head, body, when_us)]) if is_put else None

    space.stage(block.path, head, body)
    space.log.perform(plan)
    if is_put:
        block.held, block.opened = len(left), None
    else:
        space.discard([layout.staged_path(block.path)])
