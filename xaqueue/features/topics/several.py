"""Several messages in one call, and one message in several queues: all of them, or none.

What is refused is refused before the first is added. What fails in the middle leaves a branch that can only be rolled
back.
"""

from __future__ import annotations

from collections.abc import Sequence

from xaqueue.core.engine import messages
from xaqueue.core.engine.state import Space
from xaqueue.core.model.block import NO_MESSAGE, Kind, head_of, pack_properties
from xaqueue.core.model.branch import Branch, Written
from xaqueue.core.model.entry import Entry
from xaqueue.core.model.message_name import tags_of
from xaqueue.core.storage.ids import fresh_id
from xaqueue.errors import RolledBack
from xaqueue.features.dedup import dedup
from xaqueue.features.dedup.values import hash_of
from xaqueue.features.limits import queue_room
from xaqueue.message import EnqueueOptions, Message, MessageId, body_of, check_queue_name, id_of, properties_of
from xaqueue.xa import Code


def enqueue_to(space: Space, branch: Branch, names: Sequence[str], body: bytes, options: EnqueueOptions) -> MessageId:
    """Adds one message to several queues, its content once; see ``ResourceManager.enqueue_to``."""
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
    key = hash_of(properties.dedup_key) if properties.dedup_key is not None else b""
    known = {name: dedup.known(space, branch, name, message_id, key) for name in names} if key else {}
    names = [name for name in names if known.get(name) is None]
    if not names:
        return next(filter(None, known.values()))
    with space.lock:  # before the first has it
        for queue in map(space.queue, names):
            if queue.limits is not None:
                queue_room.check(space, branch, queue, len(head) + len(body), may_wait=True)
    first: Written | None = None
    done = 0
    try:
        for name in names:
            entry = Entry(0, message_id, tags)
            added = messages.add(
                *(space, branch, entry, name, checksum, head, body),
                is_given=given is not None,
                is_shared=True,
                twin=first,
            )
            if first is None or (added.path and not first.path):  # a file can have more names
                first = added
            done += 1
    except BaseException as error:  # or interrupted: a commit would have some of them
        _fail_in_part(branch, done, len(names), error)
        raise
    return message_id


def publish(space: Space, branch: Branch, topic: str, body: bytes, options: EnqueueOptions) -> MessageId:
    """Adds a message to all that subscribe to the topic; see ``ResourceManager.publish``."""
    properties = properties_of("", 0, options)  # which is refused as well where nobody wants it
    names = space.definitions.subscribers(check_queue_name(topic), properties.headers)
    if names:
        return enqueue_to(space, branch, names, body, options)
    body_of(body)
    given = options.get("message_id")
    return MessageId(fresh_id()) if given is None else id_of(given)


def enqueue_many(
    space: Space,
    branch: Branch,
    name: str,
    bodies: Sequence[bytes],
    ids: Sequence[bytes] | None,
    options: EnqueueOptions,
) -> list[MessageId]:
    """Adds the blocks of several messages; see ``ResourceManager.enqueue_many``."""
    space.definitions.find(name)
    sizes = [len(body) for body in map(body_of, bodies)]
    if sizes and max(sizes) > space.definitions.max_body_bytes:
        largest = bodies[sizes.index(max(sizes))]
        messages.enqueue(space, branch, name, largest, options)  # refused, before another is added
    if not space.room.has(sum(sizes)):
        messages.check_room(space, branch, sum(sizes))
    with space.lock:
        queue = space.queues.get(name) or space.queue(name)
        if queue.limits is not None:
            packed = pack_properties(properties_of(name, space.now_ns() // 1000, options))
            head, _ = head_of(Kind.ENQUEUE, NO_MESSAGE, packed, b"", space.epoch)
            size_bytes = sum(sizes) + len(head) * len(sizes)
            queue_room.check(space, branch, queue, size_bytes, count=len(sizes), may_wait=True)
    found: list[MessageId] = []
    try:
        for number, body in enumerate(bodies):
            given: EnqueueOptions = options if ids is None else {**options, "message_id": ids[number]}
            found.append(messages.enqueue(space, branch, name, body, given))
    except BaseException as error:  # or interrupted: a commit would have some of them
        _fail_in_part(branch, len(found), len(bodies), error)
        raise
    return found


def _fail_in_part(branch: Branch, done: int, wanted: int, error: BaseException) -> None:
    if done and branch.rollback_reason is None:
        branch.rollback_reason = RolledBack(
            f"branch {branch.xid} is rolled back: {done} of {wanted} messages were added: "
            f"{str(error) or type(error).__name__}",
            Code.XA_RBOTHER,
        )


def dequeue_many(
    space: Space, branch: Branch, name: str, count: int, wait_s: float, most_bytes: int | None
) -> list[Message]:
    """The next messages, up to ``count``, or to the one whose body brings all to ``most_bytes``; it waits for the
    first. Where it raises, it has taken none."""
    found: list[Message] = []
    size = 0
    try:
        while len(found) < count and (most_bytes is None or size < most_bytes):
            message = messages.dequeue(space, branch, name, 0.0 if found else wait_s, None, None)
            if message is None:
                break
            found.append(message)
            size += len(message.body)
    except BaseException:
        messages.give_back(space, branch, name, {message.message_id for message in found})
        raise
    return found
