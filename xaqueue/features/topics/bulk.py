"""Several messages in one call, and one message in several queues: all of them, or none.

What is refused is refused before the first is added. What fails in the middle leaves a branch that can only be rolled
back.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from math import inf
from typing import TYPE_CHECKING, Any, Unpack

from xaqueue.access import CONSUME, PRODUCE
from xaqueue.core.engine import messages, taking
from xaqueue.core.engine.disk_space import FILE_BYTES
from xaqueue.core.engine.session import Session
from xaqueue.core.engine.state import Space
from xaqueue.core.model.block import NO_MESSAGE, Kind, head_of, pack_properties
from xaqueue.core.model.branch import Branch, Written
from xaqueue.core.model.entry import Entry
from xaqueue.core.model.message_name import tags_of
from xaqueue.core.storage.ids import fresh_id, fresh_ids
from xaqueue.errors import ConnectionLost, Error, InvalidArgument, RolledBack
from xaqueue.features.topics import blocks, runs
from xaqueue.features.topics.options import subscribers
from xaqueue.message import (
    MESSAGE_ID_BYTES,
    PLAIN_OPTIONS,
    EnqueueOptions,
    Message,
    MessageId,
    body_of,
    check_queue_name,
    check_queues,
    id_of,
    ids_in,
    properties_of,
)
from xaqueue.rpc import wire
from xaqueue.rpc.verb import verb, verb_of
from xaqueue.rpc.wire import PAGE, PAGE_BYTES
from xaqueue.times import check_seconds
from xaqueue.xa import Code

if TYPE_CHECKING:
    from xaqueue.rpc.client.link import Link
    from xaqueue.rpc.server.peer import Caller

MANY_OPTIONS = tuple(name for name in PLAIN_OPTIONS if name != "message_id")


@verb(PRODUCE)
def enqueue_to(self: Session, queues: Sequence[str], body: bytes, **options: Unpack[EnqueueOptions]) -> MessageId:
    """Adds one message to several queues, its content once; see ``Connection.enqueue_to``."""
    with self._work() as branch:
        return _enqueue_to(self.space, branch, check_queues(queues), body, options)


@enqueue_to.server
def _(caller: Caller, queues: Any, body: Any, options: Any = None) -> bytes:
    return enqueue_to(caller.session, queues, body, **caller.options_to_add("enqueue_to", options))


@enqueue_to.client
def _(self: Link, queues: Sequence[str], body: bytes, **options: Unpack[EnqueueOptions]) -> MessageId:
    return _ask_to_add(self, "enqueue_to", list(queues), body, options)


@verb(PRODUCE)
def publish(self: Session, topic: str, body: bytes, **options: Unpack[EnqueueOptions]) -> MessageId:
    """Adds a message to each queue that subscribes to the topic; see ``Connection.publish``."""
    with self._work() as branch:
        properties = properties_of("", 0, options)  # which is refused as well where nobody wants it
        names = subscribers(self.space.definitions, check_queue_name(topic), properties.headers)
        if names:
            return _enqueue_to(self.space, branch, names, body, options)
        body_of(body)
        given = options.get("message_id")
        return MessageId(fresh_id()) if given is None else id_of(given)


@publish.server
def _(caller: Caller, topic: str, body: Any, options: Any = None) -> bytes:
    """Whoever may produce to the topic need not know who subscribes."""
    return publish(caller.session, topic, body, **caller.options_to_add("publish", options))


@publish.client
def _(self: Link, topic: str, body: bytes, **options: Unpack[EnqueueOptions]) -> MessageId:
    return _ask_to_add(self, "publish", topic, body, options)


def _ask_to_add(self: Link, name: str, to: str | list[str], body: bytes, options: EnqueueOptions) -> MessageId:
    self._check_working()
    self._check_size(len(body))
    return MessageId(self._ask(name, to, body, options))


def _add_many(
    self: Session,
    queue: str,
    bodies: Sequence[bytes],
    ids: Sequence[MessageId] | None = None,
    **options: Unpack[EnqueueOptions],
) -> list[MessageId]:
    """Adds several messages with these options; see ``Connection.enqueue_many``. ids: what the caller has made."""
    with self._work() as branch:
        self._awaits = queue
        return _enqueue_many(self.space, branch, queue, bodies, ids, options)


@verb_of(PRODUCE, _add_many)
def enqueue_many(self: Link, queue: str, bodies: Sequence[bytes], **options: Unpack[EnqueueOptions]) -> list[MessageId]:
    """Pipelined, as few frames as hold them; with a dedup_key asked: the server may know the first one of it."""
    self._check_working()
    checked = properties_of(queue, 0, options)
    pack_properties(checked)
    sizes = [*map(len, bodies)]
    self._check_size(max(sizes, default=0))
    if not self._is_known(queue):
        self._ask("enqueue_many", queue, None, [], options)  # the server says what is wrong
    ids = fresh_ids(len(bodies))
    for page in _pages(sizes, min(PAGE_BYTES, self.space["max_body_bytes"])):
        made = b"".join(ids[page]) if self.space["protocol"] > 2 else ids[page]
        call = "enqueue_many", queue, made, bodies[page], options
        if checked.dedup_key is None:
            self._pipeline(*call)
        else:
            ids[page] = self._ask(*call)
    return ids


def _pages(sizes: Sequence[int], most_bytes: int) -> Iterator[slice]:
    """Of bodies of these sizes, those that go together."""
    if 0 < len(sizes) <= PAGE and sum(sizes) <= most_bytes:
        yield slice(len(sizes))
        return
    first, size = 0, 0
    for number, size_bytes in enumerate([*sizes, most_bytes + 1]):
        if number > first and (size + size_bytes > most_bytes or number - first == PAGE):
            yield slice(first, number)
            first, size = number, 0
        size += size_bytes


@enqueue_many.server
def _(caller: Caller, queue: str, ids: Any, bodies: Any, options: Any = None) -> list[MessageId]:
    given = caller.options_to_add("enqueue_many", options, MANY_OPTIONS)
    if type(ids) is bytes and type(bodies) is list and len(ids) == MESSAGE_ID_BYTES * len(bodies):
        ids = ids_in(ids)
    elif type(ids) is list:
        ids = [*map(id_of, ids)]
    is_right = isinstance(bodies, list) and (ids is None or (isinstance(ids, list) and len(ids) == len(bodies)))
    if not is_right or len(bodies) > PAGE:
        raise InvalidArgument(f"enqueue_many is refused: ids (or nil) and as many bodies, at most {PAGE}, are wanted")
    return _add_many(caller.session, queue, bodies, ids, **given)


def _take_many(
    self: Session, queue: str, count: int, *, wait_s: float | None = 0.0, most_bytes: float = inf
) -> list[Message]:
    """Takes up to ``count`` messages, and waits for the first as ``dequeue`` does. Where it raises, none.

    most_bytes: it ends behind the message with which the bodies reach so many."""
    limit_s = check_seconds("wait_s", wait_s) if wait_s != 0 else 0.0
    with self._work() as branch:
        if limit_s:
            self._waits_since = time.monotonic()
        self._awaits = queue if limit_s else ""
        space, found, taken = self.space, list[Message](), list[Written]()
        try:
            take_each(space, branch, queue, count, limit_s, most_bytes, taken, found)
            space.log.take(branch, taken, space.epoch)
        except BaseException:
            for written in reversed(taken):
                taking.return_last(space, branch, [written])
            raise
        return found


def take_each(
    space: Space,
    branch: Branch,
    queue: str,
    count: int,
    wait_s: float,
    most_bytes: float,
    taken: list[Written],
    found: list[Message],
    *,
    alone: bool = False,
) -> None:
    """Adds the next messages to ``found``, and what is written of them to ``taken``, in as few passes as can be. alone:
    each is going to somebody by itself, so that of a group the next one does not come with it.

    The caller returns what is in ``taken`` where this raises; after RetryLater both are whole."""
    has_blocks = queue in space.queues and bool(space.queues[queue].blocks)
    while len(found) < count and most_bytes > 0:
        some = blocks.take(space, branch, queue, count - len(found), most_bytes, taken) if has_blocks else []
        some = some or runs.take_run(space, branch, queue, count - len(found), most_bytes, taken, alone=alone)
        if not some:
            waits_s = 0.0 if found else wait_s
            message = taking.dequeue(space, branch, queue, waits_s, None, None, together=taken)
            if message is None:
                break
            some, entry = [message], taken[-1].entry
            if alone and entry is not None:
                with space.lock:
                    space.queues[queue].index.pass_on(entry, None)
        found += some
        most_bytes -= sum([len(message.body) for message in some])


@verb_of(CONSUME, _take_many)
def dequeue_many(self: Link, queue: str, count: int, *, wait_s: float | None = 0.0) -> list[Message]:
    self._check_working()
    found: list[Message] = []
    more, limit_s, in_columns = True, check_seconds("wait_s", wait_s), count > 1 and self.space["protocol"] > 2
    while more and len(found) < count:
        waits_s = 0.0 if found else limit_s
        options = {"wait_s": waits_s} | ({"columns": True} if in_columns else {})
        try:
            more, page = self._ask("dequeue_many", queue, count - len(found), options, waits_s=waits_s)
        except Error as error:
            if not found or isinstance(error, ConnectionLost):
                raise
            break  # those are taken; the next call says what is wrong
        found += wire.messages_of(queue, page) if in_columns else map(wire.message_of, page)
    return found


@dequeue_many.server
def _(caller: Caller, queue: str, count: Any, options: Any = None) -> tuple[bool, Sequence[Any]]:
    """Whether there may be more, for want of which it did not end, and the messages."""
    given = {} if options is None else wire.options_of(options, "dequeue_many", ("wait_s", "columns"))
    in_columns = given.pop("columns", False)
    if type(count) is not int or count < 1:
        raise InvalidArgument(f"dequeue_many of {count!r} messages: a number from 1 is wanted")
    found = _take_many(caller.session, queue, min(count, PAGE), most_bytes=PAGE_BYTES, **given)
    is_full = len(found) == PAGE or sum(len(message.body) for message in found) >= PAGE_BYTES
    page = wire.columns_to(found) if in_columns else [wire.message_to(message) for message in found]
    return is_full and len(found) < count, page


# The steps


def _enqueue_to(space: Space, branch: Branch, names: Sequence[str], body: bytes, options: EnqueueOptions) -> MessageId:
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


def _enqueue_many(
    space: Space,
    branch: Branch,
    name: str,
    bodies: Sequence[bytes],
    ids: Sequence[MessageId] | None,
    options: EnqueueOptions,
) -> list[MessageId]:
    space.definitions.find(name)
    bodies = [body if type(body) is bytes else body_of(body) for body in bodies]
    given = fresh_ids(len(bodies)) if ids is None else ids
    properties = properties_of(name, space.now_ns() // 1000, options)
    packed, tags = pack_properties(properties), tags_of(properties)
    epoch, limit_bytes = space.epoch, space.definitions.max_body_bytes
    head, _ = head_of(Kind.ENQUEUE, NO_MESSAGE, packed, max(bodies, key=len, default=b""), epoch, limit_bytes)
    size_bytes = sum(map(len, bodies))
    on_disk = size_bytes + FILE_BYTES * max(len(bodies) - 1, 0)
    if not space.room.has(on_disk):
        messages.check_room(space, branch, on_disk)
    with space.lock:
        queue = space.queues.get(name) or space.queue(name)
        if queue.room is not None:
            size_bytes += len(head) * len(bodies)
            queue.room.admit(space, branch, queue, size_bytes, count=len(bodies), may_wait=True)
    terms = messages.Terms(ids is not None, wanted=properties) if options or ids is not None else messages.PLAIN
    found: list[MessageId] = []
    try:
        if properties.dedup_key is None:
            blocks.add(space, branch, queue, packed, tags, given, bodies, found, is_given=ids is not None)
        for message_id, body in zip(given[len(found) :], bodies[len(found) :], strict=True):
            there = space.features.admit(space, branch, name, message_id, properties) if options else None
            if there is None:
                head, checksum = head_of(Kind.ENQUEUE, message_id, packed, body, epoch)
                added = Written(0, Kind.ENQUEUE, name, message_id, checksum, Entry(0, message_id, tags))
                messages.add(space, branch, added, (head, body), terms)
            found.append(there or message_id)
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
