"""Many messages that are taken in one call: locked together, and read in turn, or as neighbours in a block.

What is to be asked or done first, one that is damaged too, is for ``taking.dequeue`` to see.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from xaqueue.core.engine import many, taking
from xaqueue.core.engine.state import Space
from xaqueue.core.model.block import NO_MESSAGE, Kind, stored_in
from xaqueue.core.model.branch import Branch, Written
from xaqueue.errors import DamagedBlock
from xaqueue.message import Message, stored_message

RUN = 64
"""Messages that are locked together, while others wait, and before the first of them is read."""


def take_run(
    space: Space,
    branch: Branch,
    name: str,
    count: int,
    most_bytes: float,
    taken: list[Written],
    *,
    alone: bool = False,
) -> list[Message]:
    """The messages that come next, up to so many, and up to the one with which their bodies reach so many bytes: as by
    ``dequeue`` with ``together``, in one pass. They end before one that ``dequeue`` has to look at. alone: none comes
    with one that is in its group.

    The caller returns what is in ``taken`` where this raises."""
    before, found = len(taken), list[Message]()
    if name not in space.definitions.known:
        space.definitions.find(name)
    _lock_run(space, branch, name, min(count, RUN), taken, None if alone else branch)
    with suppress(DamagedBlock, OSError):
        _read_run(space, name, taken[before:], most_bytes, found)
    while len(taken) > before + len(found):
        taking.return_entry(space, branch, taken[-1])
        taken.pop()
    return found


def _lock_run(space: Space, branch: Branch, name: str, count: int, taken: list[Written], holder: Branch | None) -> None:
    """Adds those that come next, each before it is locked: an interrupt never leaves it to nobody."""
    with space.lock:
        queue, now = space.queues.get(name) or space.queue(name), space.now_ns() // 1000
        index = queue.index
        if queue.record is not None or index.clock is not None or space.gates or branch.rollback_reason is not None:
            return
        for done in range(count):
            if done and queue.blocks and (seq := index.next_plain) >= 0 and queue.block_of(seq) is not None:
                break  # with its neighbours
            written = Written(0, Kind.DEQUEUE, name, NO_MESSAGE, 0)
            taken.append(written)
            written.entry = entry = index.take(now, holder=holder)
            if entry is None:
                taken.pop()
                break
            written.message_id = entry.message_id
            branch.numbers = written.number = branch.numbers + 1
            branch.blocks.append(written)
        if index.expired or index.exhausted:
            space.wakes.consumed.wake()  # a dequeue only passes them over


def _read_run(space: Space, name: str, run: Sequence[Written], most_bytes: float, found: list[Message]) -> None:
    """Adds the messages that were locked, up to one that is not as it should be. Raises DamagedBlock, OSError."""
    queue, last, stored = space.queues[name], b"", dict[str, Any]()
    for written in run:
        entry = written.entry
        if entry is None or most_bytes <= 0:
            return
        packed, body = many.content(space, queue, entry)
        if packed != last:
            last, stored = packed, stored_in(packed)
            if stored.get("queue") == "":  # several queues have it: none is named
                stored["queue"] = name
        if stored.get("queue") != name:
            return
        own = stored
        if entry.tries:
            own = {**stored, "tries": entry.tries}
            with space.lock:
                queue.redelivered += 1
        found.append(stored_message(entry.message_id, name, entry.seq, body, own))
        most_bytes -= len(body)
