"""Messages that are added together, in steps of the engine: all of them, or none. ``bulk`` has the verbs.

What is refused is refused before the first is added. What fails in the middle leaves a branch that can only be rolled
back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xaqueue.core.engine import messages
from xaqueue.core.engine.disk_space import FILE_BYTES
from xaqueue.core.engine.state import Space
from xaqueue.core.model.block import (
    NO_MESSAGE,
    PREFIX_BYTES,
    Kind,
    before_time,
    head_of,
    pack,
    pack_properties,
    property_map,
    repacked,
    stored_in,
)
from xaqueue.core.model.branch import Branch, Written
from xaqueue.core.model.entry import Entry
from xaqueue.core.model.message_name import tags_in, tags_of
from xaqueue.core.model.queue import Queue
from xaqueue.core.storage.ids import fresh_id, fresh_ids
from xaqueue.errors import InvalidArgument
from xaqueue.features.topics import blocks
from xaqueue.message import (
    EnqueueOptions,
    Message,
    MessageId,
    Properties,
    body_of,
    check_message_id,
    id_of,
    properties_in,
    properties_of,
    stored_options,
)
from xaqueue.times import LATEST_US
from xaqueue.xa import Code


def complete(ids: Sequence[MessageId | None] | None, count: int) -> list[MessageId]:
    return fresh_ids(count) if ids is None else [one or MessageId(fresh_id()) for one in ids]


def sizes_of(queue: str, each: Sequence[dict[str, Any]]) -> list[int]:
    """The bytes of these properties. MessageTooLarge where one message of the queue cannot have them."""
    sizes = [*map(len, map(pack, each))]
    longest = each[sizes.index(max(sizes))]
    pack_properties(properties_in({"queue": queue, "enqueued_at": LATEST_US, **longest}))
    return sizes


def enqueue_to(space: Space, branch: Branch, names: Sequence[str], body: bytes, options: EnqueueOptions) -> MessageId:
    if len(names) == 1:
        return messages.enqueue(space, branch, names[0], body, options)
    for name in names:
        space.definitions.find(name)
    body = body_of(body)
    if not space.room.has(len(body)):
        messages.check_room(space, branch, len(body))
    given = options.get("message_id")
    message_id = MessageId(fresh_id()) if given is None else id_of(given)
    properties = properties_of("", space.now_ns() // 1000, options)  # the branch's list has the queues
    packed, tags = pack_properties(properties), tags_of(properties)
    head, checksum = head_of(Kind.ENQUEUE, message_id, packed, body, space.epoch, space.definitions.max_body_bytes)
    if options:
        there = {name: space.features.admit(space, branch, name, message_id, properties) for name in names}
        names = [name for name in names if there[name] is None]
        if not names:
            return next(filter(None, there.values()))
    with space.lock:  # before the first has it
        for queue in map(space.queue, names):
            if queue.room is not None:
                queue.room.admit(space, branch, queue, len(head) + len(body), may_wait=True)
    terms = messages.Terms(given is not None, wanted=properties)
    first: Written | None = None
    done = 0
    try:
        for name in names:
            added = Written(0, Kind.ENQUEUE, name, message_id, checksum, Entry(0, message_id, tags))
            added.shared = first or added
            messages.add(space, branch, added, (head, body), terms)
            if first is None or (added.path and not first.path):  # a file can have more names
                first = added
            done += 1
    except BaseException as error:  # or interrupted: a commit would have some of them
        _fail_in_part(branch, done, len(names), error)
        raise
    return message_id


def enqueue_many(
    space: Space,
    branch: Branch,
    name: str,
    bodies: Sequence[bytes],
    ids: Sequence[MessageId | None] | None,
    each: Sequence[EnqueueOptions] | None,
    options: EnqueueOptions,
) -> list[MessageId]:
    space.definitions.find(name)
    if {*map(type, bodies)} != {bytes}:
        bodies = [*map(body_of, bodies)]
    given: Any = complete(ids, len(bodies)) if ids is None or None in ids else ids
    now_us, properties, tags = space.now_ns() // 1000, None, ""
    if options or each:
        properties = properties_of(name, now_us, options)
        packed, tags = pack_properties(properties), tags_of(properties)
    else:
        packed = before_time(name) + pack(now_us)
    epoch, limit_bytes = space.epoch, space.definitions.max_body_bytes
    sizes = [*map(len, bodies)]
    if sizes and max(sizes) > limit_bytes:
        head_of(Kind.ENQUEUE, NO_MESSAGE, packed, max(bodies, key=len), epoch, limit_bytes)  # raises
    size_bytes, own = sum(sizes), list[blocks.Own]()
    if each:
        stored = [*map(stored_options, each)]
        size_bytes += sum(sizes_of(name, stored))
        own = [*zip(map(tags_in, stored), stored, strict=True)]
    queue = _with_room(space, branch, name, size_bytes, PREFIX_BYTES + len(packed), len(bodies))
    has_own, terms = bool(options or own), messages.PLAIN
    if has_own or ids is not None:
        terms = messages.Terms(ids is not None, wanted=properties if has_own else None)
    return _add_all(space, branch, queue, blocks.Columns(packed, tags, given, bodies, own), terms)


def restore(space: Space, branch: Branch, name: str, found: Sequence[Message]) -> list[bool]:
    space.definitions.find(name)
    each = [repacked(name, message.properties) for message in found]
    ids = [check_message_id(message.message_id) for message in found]
    bodies = [body_of(message.body) for message in found]
    longest, limit_bytes = max(bodies, key=len, default=b""), space.definitions.max_body_bytes
    head_of(Kind.ENQUEUE, NO_MESSAGE, b"", longest, space.epoch, limit_bytes)  # raises MessageTooLarge
    new: dict[MessageId, int] = {}
    with space.lock:
        queue = space.queue(name)
        for at, message_id in enumerate(ids):
            if not _has_locked(branch, queue, message_id):
                new.setdefault(message_id, at)
    own = [(tags_of(each[at][0]), property_map(each[at][0])) for at in new.values()]
    for _, stored in own:
        del stored["queue"]
    size_bytes = sum([len(bodies[at]) + len(each[at][1]) for at in new.values()])
    queue = _with_room(space, branch, name, size_bytes, PREFIX_BYTES, len(new))
    some = [bodies[at] for at in new.values()]
    columns = blocks.Columns(pack_properties(Properties(name)), "", [*new], some, own)
    _add_all(space, branch, queue, columns, messages.Terms(is_given=True))
    return [new.get(message_id) == at for at, message_id in enumerate(ids)]


def _has_locked(branch: Branch, queue: Queue, message_id: MessageId) -> bool:
    """Whether a message that comes back is there: in the queue, or added by the branch. Raises InvalidArgument where it
    takes that."""
    if message_id not in queue.index and message_id not in queue.pending:
        return False
    own = {one.kind for one in branch.blocks if message_id in one.ids and one.queue == queue.name}
    if Kind.DEQUEUE in own:
        raise InvalidArgument(f"message {message_id.hex()} of queue {queue.name} is taken by this same transaction")
    return bool(own) or message_id in queue.index


def _with_room(space: Space, branch: Branch, name: str, size_bytes: int, head_bytes: int, count: int) -> Queue:
    """The queue, which has room for so many messages of so many bytes in all, beside the head of each; so has the
    disk."""
    on_disk = size_bytes + FILE_BYTES * max(count - 1, 0)
    if not space.room.has(on_disk):
        messages.check_room(space, branch, on_disk)
    with space.lock:
        queue = space.queues.get(name) or space.queue(name)
        if queue.room is not None:
            size_bytes += head_bytes * count
            queue.room.admit(space, branch, queue, size_bytes, count=count, may_wait=True)
    return queue


def _add_all(space: Space, branch: Branch, queue: Queue, new: blocks.Columns, terms: messages.Terms) -> list[MessageId]:
    """Adds them in blocks where it may, but each with a dedup_key by itself. terms: new ones have ``wanted``. Returns
    their ids, or those of the first ones of their keys."""
    packed, tags, ids, bodies, own = new
    count, found = len(ids), list[MessageId]()
    alone: Sequence[int] = ()
    if own:
        alone = [at for at, (_, more) in enumerate(own) if "dedup_key" in more]
    elif terms.wanted is not None and terms.wanted.dedup_key is not None:
        alone = range(count)
    if terms.is_given:  # before the first is added
        with space.lock:
            blocks.check_new(queue, [ids[at] for at in {*range(count)}.difference(alone)] if alone else ids)
    try:
        for end in (*alone, count):
            run, some = slice(len(found), end), new
            if found or end < count:
                some = new._replace(ids=ids[run], bodies=bodies[run], own=own[run])
            blocks.add(space, branch, queue, some, found, is_given=terms.is_given)
            for at in range(len(found), min(end + 1, count)):
                if own:
                    properties = properties_in(stored_in(new.packed) | own[at][1])
                    packed, tags = pack_properties(properties), own[at][0]
                    terms = terms._replace(wanted=terms.wanted and properties)
                found.append(_add_one(space, branch, queue.name, ids[at], (packed, tags, bodies[at]), terms))
    except BaseException as error:  # or interrupted: a commit would have some of them
        _fail_in_part(branch, len(found), count, error)
        raise
    return found


def _add_one(
    space: Space,
    branch: Branch,
    name: str,
    message_id: MessageId,
    said: tuple[bytes, str, bytes],
    terms: messages.Terms,
) -> MessageId:
    """said: its packed properties, its tags and its body."""
    (packed, tags, body), wanted = said, terms.wanted
    there = None if wanted is None else space.features.admit(space, branch, name, message_id, wanted)
    if there is None:
        head, checksum = head_of(Kind.ENQUEUE, message_id, packed, body, space.epoch)
        added = Written(0, Kind.ENQUEUE, name, message_id, checksum, Entry(0, message_id, tags))
        messages.add(space, branch, added, (head, body), terms)
    return there or message_id


def _fail_in_part(branch: Branch, done: int, wanted: int, error: BaseException) -> None:
    if done:
        why = f"{done} of {wanted} messages were added: {str(error) or type(error).__name__}"
        branch.doom(f"is rolled back: {why}", Code.XA_RBOTHER)
