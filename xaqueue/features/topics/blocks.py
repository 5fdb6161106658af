"""Many messages of one call come in as few blocks as hold them, where their queue is defined so."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from xaqueue.core.engine import blocks
from xaqueue.core.engine.state import Space
from xaqueue.core.model.block import Kind
from xaqueue.core.model.branch import Branch, Written
from xaqueue.core.model.definitions import MANY
from xaqueue.core.model.entry import Run
from xaqueue.core.model.message_block import FEWEST, MOST, MOST_BODY_BYTES, MOST_BYTES, encode, size_of
from xaqueue.core.model.queue import Queue
from xaqueue.errors import InvalidArgument
from xaqueue.message import MessageId


def add(
    space: Space,
    branch: Branch,
    queue: Queue,
    packed: bytes,
    tags: str,
    ids: Sequence[MessageId],
    bodies: Sequence[bytes],
    *,
    is_given: bool = False,
) -> int:
    """Adds messages with these properties in blocks, from the first on. Returns how many: what is left wants a file
    each. is_given: the queue may have some of these ids already. Raises as ``messages.add``."""
    if len(ids) < FEWEST or queue.definition.blocks != MANY or branch.riders:
        return 0
    if not space.log.is_atomic or len(max(bodies, key=len)) > MOST_BODY_BYTES:
        return 0
    done = 0
    for piece in _pieces(packed, list(map(len, bodies))):
        head, body, checksum = encode(packed, ids[piece], bodies[piece], space.epoch, tags=tags)
        written = Written(0, Kind.MESSAGES, queue.name, ids[piece.start], checksum, Run(ids[piece], tags))
        _add(space, branch, queue, written, head, body, is_given=is_given)
        done = piece.stop
    return done


def _pieces(packed: bytes, sizes: Sequence[int]) -> Iterator[slice]:
    """Those that fit in a block, as many as can be."""
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
    space: Space, branch: Branch, queue: Queue, written: Written, head: bytes, body: bytes, *, is_given: bool
) -> None:
    ids = written.ids
    with space.lock:
        if queue.name not in space.definitions.known:
            space.definitions.find(queue.name)  # raises where it was undefined since the caller has looked
        if is_given and (queue.index.has_any(ids) or not queue.pending.isdisjoint(ids) or len(set(ids)) < len(ids)):
            raise InvalidArgument(f"messages of these ids are in queue {queue.name} already: ids are unique")
        queue.pending.update(ids)
        if (room := queue.room) is not None:
            for message_id in ids:
                room.hold(message_id, (len(head) + len(body)) // len(ids))
        branch.numbers = written.number = branch.numbers + 1
    try:
        space.log.add(branch, written, head, body)
        branch.blocks.append(written)
    except BaseException as error:
        with space.lock:
            for message_id in ids:
                queue.withdraw(message_id)
        if isinstance(error, OSError):
            raise blocks.without_room(space, branch, len(head) + len(body), error) from error
        if written.path:  # interrupted: a later branch of its name may have a block of this number
            space.discard([written.path])
        raise
