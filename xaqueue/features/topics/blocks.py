"""Many messages of one call come in as few blocks as hold them, where their queue is defined so."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import groupby, repeat
from math import inf
from operator import attrgetter
from struct import unpack
from typing import Any, NamedTuple

from xaqueue.core.engine import many, messages, taking
from xaqueue.core.engine.log import BLOCK_BYTES
from xaqueue.core.engine.state import Space
from xaqueue.core.model.block import (
    ADDS,
    COLUMNS,
    MESSAGE_BYTES,
    NO_MESSAGE,
    PREFIX_BYTES,
    Kind,
    before_time,
    pack,
    stored_in,
)
from xaqueue.core.model.branch import Branch, State, Written
from xaqueue.core.model.definitions import MANY
from xaqueue.core.model.entry import Entry, MessageBlock, Run
from xaqueue.core.model.message_block import MOST_BYTES, decode_table, encode
from xaqueue.core.model.queue import Queue
from xaqueue.errors import DamagedBlock
from xaqueue.features.limits.queue_room import each_alone
from xaqueue.features.topics.format import says_blocks
from xaqueue.message import Message, MessageId, stored_messages

FEWEST, MOST = 16, 1000
"""Messages of a block."""
MOST_BODY_BYTES = 64 * 1024
FEWEST_TAKEN = 2
"""Taken together; one goes its own way."""
TAGS_BYTES = 96
"""More than the tags of one take in a table, and what stands around its properties."""
LONG = b"\xcf"
"""Before an integer of 8 bytes in MessagePack, as each time since 1970 is."""
_queue, _number, _content = attrgetter("queue"), attrgetter("number"), attrgetter("content")
_message_id, _entry, _tags = attrgetter("message_id"), attrgetter("entry"), attrgetter("tags")
_ENQUEUE = Kind.ENQUEUE
Own = tuple[str, dict[str, Any]]
"""Tags and properties of one message."""


class Columns(NamedTuple):
    """New messages of one queue."""

    packed: bytes
    """The properties of all."""
    tags: str
    ids: Sequence[MessageId]
    bodies: Sequence[bytes]
    own: Sequence[Own] = ()
    """Tags and further properties of each, where they have some."""


def add(
    space: Space, branch: Branch, queue: Queue, new: Columns, found: list[MessageId], *, is_given: bool = False
) -> None:
    """Adds these in blocks, from the first on, and the ids of each block to ``found`` once the branch has it: what is
    left wants a file each. is_given: the queue may have some of these ids already. Raises as ``messages.add``."""
    if len(new.ids) < FEWEST or queue.definition.blocks != MANY:
        return
    if len(max(new.bodies, key=len)) > MOST_BODY_BYTES or not says_blocks(space):
        return
    sizes = [*map(len, new.bodies)]
    if new.own:
        sizes = [size + 2 * (len(pack(more)) + TAGS_BYTES) for size, (_, more) in zip(sizes, new.own, strict=True)]
    packed, tags = new.packed, new.tags
    for piece in _pieces(packed, sizes):
        ids, bodies, own = new.ids[piece], new.bodies[piece], new.own[piece]
        head, body, checksum = encode(packed, ids, bodies, space.epoch, tags=tags, own=dict(enumerate(own)))
        all_tags = [one for one, _ in own] if own else [tags] * len(ids) if tags else ()
        run = Run(ids, entries=[*map(Entry, repeat(0), ids, all_tags)] if any(all_tags) else ())
        written = Written(0, Kind.MESSAGES, queue.name, ids[0], checksum, run)
        _add(space, branch, queue, written, (head, body), is_given=is_given)
        found += ids


def merge(space: Space, branch: Branch) -> None:
    """See ``Features.merge``: what it adds one by one is in blocks from here on, as far as memory has it."""
    if branch.base is not State.ACTIVE:
        return
    queues = [queue for name in set(map(_queue, branch.blocks)) if (queue := space.queues.get(name)) is not None]
    names = {queue.name for queue in queues if queue.definition.blocks == MANY}
    if not names:
        return
    left, merged, shared = set(branch.blocks), list[Written](), dict[bytes, Written]()
    for name, of_queue in groupby(sorted(branch.blocks, key=_queue), _queue):
        added = [one for one in of_queue if one.kind in ADDS] if name in names else ()
        for says, group in groupby(added, _says):
            run = [*group]
            if says is None or len(run) < FEWEST or not says_blocks(space):
                continue
            heads, bodies = zip(*map(_content, run), strict=True)
            packed = [head[PREFIX_BYTES:] for head in heads]
            own_bytes = 2 * (max(map(len, packed)) + TAGS_BYTES)
            for piece in _pieces(b"", [len(body) + own_bytes for body in bodies]):
                written = _merged(says, run[piece], packed[piece], bodies[piece], space.epoch)
                if says or _shares(written, shared):
                    merged.append(written)
                    left.difference_update(run[piece])
    blocks = sorted([*left, *merged], key=_number)
    kept = [one.content for one in blocks if one.content is not None and not one.path]
    size_bytes = BLOCK_BYTES * len(kept) + sum([len(head) + len(body) for head, body in dict(kept).items()])
    if size_bytes <= branch.kept[0]:  # else a record had twice what queues have in blocks that are not the same
        with space.lock:
            branch.blocks, branch.kept = blocks, (size_bytes, len(kept))


def _says(written: Written) -> str | None:
    """The queue that its properties name, none where several have it; None where it cannot be in a block with others: a
    dedup_key is claimed with a block of its own."""
    content = written.content
    if content is None or written.path or written.kind is not _ENQUEUE or len(content[1]) > MOST_BODY_BYTES:
        return None
    if b"dedup_key" in content[0]:
        return None
    return written.queue if written.shared is None else ""


def _shares(written: Written, others: dict[bytes, Written]) -> bool:
    """Whether it is one of several blocks with the same content from here on, or the first of them: a record has that
    once, and tells it by its head."""
    content = _content(written)
    written.shared = first = others.setdefault(content[0], written)
    written.content = first.content
    return bool(content == first.content)


def _merged(says: str, run: Sequence[Written], packed: Sequence[bytes], bodies: Sequence[bytes], epoch: int) -> Written:
    """The block in which these are, which say this queue. It has the number of the first."""
    ids, entries = [*map(_message_id, run)], [*map(_entry, run)]
    tags = [*map(_tags, entries)]
    shared, own = _columns(says, packed, tags)
    head, body, checksum = encode(shared, ids, bodies, epoch, tags=tags[0], own=own)
    entry = Run(ids, entries=entries if any(tags) else ())
    written = Written(run[0].number, Kind.MESSAGES, run[0].queue, ids[0], checksum, entry)
    written.content = head, body
    return written


def _columns(name: str, packed: Sequence[bytes], tags: Sequence[str]) -> tuple[bytes, dict[int, Own]]:
    """Properties that all have, and by index the tags and properties of those that differ: mostly by when they were
    enqueued, and by nothing else."""
    before = before_time(name) + LONG
    end = len(before) + 8
    begin, rest, times = packed[0][: len(before)], packed[0][end:], [one[len(before) : end] for one in packed]
    if begin[1:] == before[1:] and begin + (rest + begin).join(times) + rest == b"".join(packed):
        when = unpack(f">{len(times)}Q", b"".join(times))
        return packed[0], {at: (tags[0], {"enqueued_at": us}) for at, us in enumerate(when) if us != when[0]}
    own = [*map(stored_in, packed)]
    for stored in own:
        del stored["queue"]
    return pack({"queue": name}), dict(enumerate(zip(tags, own, strict=True)))


def size_of(count: int, properties: bytes, bodies_bytes: int) -> int:
    """Of the file of so many plain messages."""
    return 2 * (PREFIX_BYTES + len(properties) + COLUMNS.size + MESSAGE_BYTES * count) + bodies_bytes + 4


def _pieces(packed: bytes, sizes: Sequence[int]) -> Iterator[slice]:
    """Those that fit in a block, as many as can be. sizes: what each takes beside its place in the columns."""
    begin = 0
    while len(sizes) - begin >= FEWEST:
        end = min(begin + MOST, len(sizes))
        while size_of(end - begin, packed, sum(sizes[begin:end])) > MOST_BYTES:
            end -= max((end - begin) // 16, 1)
        if end - begin < FEWEST:
            return
        yield slice(begin, end)
        begin = end


def _add(
    space: Space, branch: Branch, queue: Queue, written: Written, content: tuple[bytes, bytes], *, is_given: bool
) -> None:
    ids = written.ids
    try:
        with space.lock:
            if queue.name not in space.definitions.known:
                space.definitions.find(queue.name)  # raises where it was undefined since the caller has looked
            if is_given:
                check_new(queue, ids)
                messages.reuses_locked(space, branch)
            branch.numbers = written.number = branch.numbers + 1
            queue.pending.update(ids)
            if (room := queue.room) is not None:
                for message_id, size_bytes in each_alone(decode_table(b"".join(content))).items():
                    room.hold(message_id, size_bytes)
        space.log.add(branch, written, *content)
        branch.blocks.append(written)
    except BaseException as error:
        messages.take_back(space, branch, written, content, error)
        raise


def check_new(queue: Queue, ids: Sequence[MessageId]) -> None:
    if queue.index.has_any(ids) or not queue.pending.isdisjoint(ids) or len(set(ids)) < len(ids):
        raise messages.there_is(
            queue,
            next(one for at, one in enumerate(ids) if one in queue.index or one in queue.pending or one in ids[:at]),
        )


def take(space: Space, branch: Branch, name: str, count: int, most_bytes: float, taken: list[Written]) -> list[Message]:
    """Takes neighbours that lie in one block, and adds to ``taken`` what is written of them, before they are locked.
    None where there are none, or each is to be asked for by itself. They end with the one with which their bodies
    reach so many bytes."""
    if count < FEWEST_TAKEN:
        return []
    queue, written = space.queues[name], Written(0, Kind.DEQUEUE, name, NO_MESSAGE, 0)
    taken.append(written)
    run: Run | None = None
    with suppress(DamagedBlock, OSError):
        while run is None:
            with space.lock:
                block = _next(space, branch, queue)
                if block is None:
                    break
                opened, first = block.opened, block.named.first
                if most_bytes != inf and opened is not None:
                    offsets, at = opened[0].offsets, queue.index.head - first
                    count = min(count, bisect_left(offsets, offsets[at] + most_bytes, at + 1) - at)
                if most_bytes == inf or opened is not None:  # others find those behind it, and not it
                    written.entry = run = queue.index.take_run(block.named.last, count)
                    if run is None:
                        break
                    run.block, written.message_id = block, run.message_id
                    branch.numbers = written.number = branch.numbers + 1
                    branch.blocks.append(written)
            table, data = opened or many.opened(space, block)
        if run is not None:
            begin = run.seq - first
            end = begin + len(run.ids)
            bodies, shared, own = table.bodies(data, begin, end), stored_in(table.packed), table.own
            every = (
                [shared | own[at][1] if at in own else shared for at in range(begin, end)] if own else repeat(shared)
            )
            return stored_messages(run.ids, name, run.seq, bodies, every)
    if run is not None:
        taking.return_entry(space, branch, written)
    taken.remove(written)
    return []


def _next(space: Space, branch: Branch, queue: Queue) -> MessageBlock | None:
    """In which the next message lies, where that is plain and nobody else has a say. Called with the lock held."""
    index = queue.index
    if queue.record is not None or index.clock is not None or space.gates or branch.rollback_reason is not None:
        return None
    return queue.block_of(index.head) if space.log.failure is None else None
