"""Many messages that are taken in one call: locked together, and read in turn, or as neighbours in a block.

What is to be asked or done first, one that is damaged too, is for ``taking.dequeue`` to see.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from contextlib import suppress
from itertools import accumulate, repeat
from typing import Any

from xaqueue.core.engine import many, taking
from xaqueue.core.engine.state import Space
from xaqueue.core.model import layout
from xaqueue.core.model.block import NO_MESSAGE, Kind, split_message, stored_in
from xaqueue.core.model.branch import Branch, Written
from xaqueue.core.model.entry import Entry, MessageBlock
from xaqueue.errors import DamagedBlock
from xaqueue.message import Message, stored_message

RUN = 64
"""Messages that are locked together, while others wait, and before the first of them is read."""


def take_run(
    space: Space, branch: Branch, name: str, count: int, most_bytes: float, taken: list[Written]
) -> list[Message]:
    """The messages that come next, up to so many, and up to the one with which their bodies reach so many bytes: as by
    ``dequeue`` with ``together``, in one pass. They end before one that ``dequeue`` has to look at.

    The caller returns what is in ``taken`` where this raises."""
    before, found = len(taken), list[Message]()
    if name not in space.definitions.known:
        space.definitions.find(name)
    _lock_run(space, branch, name, min(count, RUN), taken)
    with suppress(DamagedBlock, OSError):
        _read_run(space, name, taken[before:], most_bytes, found)
    while len(taken) > before + len(found):
        taking.return_entry(space, branch, taken[-1])
        taken.pop()
    return found


def _lock_run(space: Space, branch: Branch, name: str, count: int, taken: list[Written]) -> None:
    """Adds those that come next, each before it is locked: an interrupt never leaves it to nobody."""
    with space.lock:
        queue, now = space.queues.get(name) or space.queue(name), space.now_ns() // 1000
        index = queue.index
        if queue.record is not None or index.clock is not None or space.gates or branch.rollback_reason is not None:
            return
        for done in range(count):
            if done and queue.blocks and queue.block_of(index.next_plain) is not None:
                break  # with its neighbours
            written = Written(0, Kind.DEQUEUE, name, NO_MESSAGE, 0)
            taken.append(written)
            written.entry = entry = index.take(now, holder=branch)
            if entry is None:
                taken.pop()
                break
            written.message_id = entry.message_id
            branch.numbers = written.number = branch.numbers + 1
            branch.blocks.append(written)
        if index.expired or index.exhausted:
            space.has_consumed()  # a dequeue only passes them over


def _read_run(space: Space, name: str, run: Sequence[Written], most_bytes: float, found: list[Message]) -> None:
    """Adds the messages that were locked, up to one that is not as it should be. Raises DamagedBlock, OSError."""
    queue, last, stored = space.queues[name], b"", dict[str, Any]()
    entries = [written.entry for written in run if written.entry is not None]
    while len(found) < len(entries) and most_bytes > 0:
        entry = entries[len(found)]
        block = queue.block_of(entry.seq) if queue.blocks else None
        if block is not None:
            some = _read_block(space, block, entries[len(found) :], most_bytes)
        else:
            entry.path = path = layout.message_path(name, entry.seq, entry.message_id, entry.tags)
            message_id, packed, body = split_message(space.log.read(path))
            if packed != last:
                last, stored = packed, stored_in(packed)
                if stored.get("queue") == "":  # several queues have it: none is named
                    stored["queue"] = name
            if message_id != entry.message_id or stored.get("queue") != name:
                return
            some = [(stored, body)]
        for own, body in some:
            entry = entries[len(found)]
            if entry.tries:
                own = {**own, "tries": entry.tries}
                with space.lock:
                    queue.redelivered += 1
            found.append(stored_message(entry.message_id, name, entry.seq, body, own))
            most_bytes -= len(body)


def _read_block(
    space: Space, block: MessageBlock, entries: Sequence[Entry], most_bytes: float
) -> list[tuple[dict[str, Any], bytes]]:
    """Properties, as stored, and bodies of messages that are neighbours in it, from the first of these on, up to the
    one with which the bodies reach so many bytes. Raises DamagedBlock where the first is damaged, OSError."""
    (table, data), begin = many.opened(space, block), entries[0].seq - block.named.first
    ends = [*accumulate(table.sizes[begin : begin + len(entries)])]
    count = min(bisect_left(ends, most_bytes) + 1, len(ends))
    end = begin + count
    if [entry.seq for entry in entries[:count]] != [*range(entries[0].seq, entries[0].seq + count)]:
        end = begin + 1
    try:
        bodies = table.bodies(data, begin, end)
    except DamagedBlock:
        bodies = [table.body(data, begin)]
    if table.own:
        return [(table.stored(index), body) for index, body in enumerate(bodies, begin)]
    return [*zip(repeat(table.stored(begin)), bodies)]
