"""The verbs of several messages in one call, and of one message in several queues; ``adding`` has the steps."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import chain
from math import inf
from operator import add
from typing import TYPE_CHECKING, Any, Unpack

from xaqueue.access import CONSUME, PRODUCE
from xaqueue.core.engine import taking
from xaqueue.core.engine.session import Session
from xaqueue.core.engine.state import Space
from xaqueue.core.model.block import pack_properties, property_map, repacked
from xaqueue.core.model.branch import Branch, Written
from xaqueue.core.storage.ids import fresh_id
from xaqueue.errors import ConnectionLost, Error, InvalidArgument
from xaqueue.features.topics import adding, blocks, runs
from xaqueue.features.topics.options import subscribers
from xaqueue.message import (
    MESSAGE_ID_BYTES,
    PLAIN_OPTIONS,
    EnqueueOptions,
    Message,
    MessageId,
    body_of,
    check_message_id,
    check_queue_name,
    check_queues,
    id_of,
    ids_in,
    properties_of,
    restored,
    stored_options,
)
from xaqueue.rpc import wire
from xaqueue.rpc.verb import verb, verb_of
from xaqueue.rpc.wire import PAGE, PAGE_BYTES
from xaqueue.times import check_seconds

if TYPE_CHECKING:
    from xaqueue.rpc.client.link import Link
    from xaqueue.rpc.server.peer import Caller

MANY_OPTIONS = tuple(name for name in PLAIN_OPTIONS if name != "message_id")


@verb(PRODUCE)
def enqueue_to(self: Session, queues: Sequence[str], body: bytes, **options: Unpack[EnqueueOptions]) -> MessageId:
    """Adds one message to several queues, its content once; see ``Connection.enqueue_to``."""
    with self._work() as branch:
        return adding.enqueue_to(self.space, branch, check_queues(queues), body, options)


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
            return adding.enqueue_to(self.space, branch, names, body, options)
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
    ids: Sequence[MessageId | None] | None = None,
    own: Sequence[EnqueueOptions] | None = None,
    /,
    **options: Unpack[EnqueueOptions],
) -> list[MessageId]:
    """See ``ResourceManager.enqueue_many``."""
    with self._work() as branch:
        self._awaits = queue
        return adding.enqueue_many(self.space, branch, queue, bodies, ids, own, options)


@verb_of(PRODUCE, _add_many)
def enqueue_many(
    self: Link,
    queue: str,
    bodies: Sequence[bytes],
    ids: Sequence[MessageId | None] | None = None,
    own: Sequence[EnqueueOptions] | None = None,
    /,
    **options: Unpack[EnqueueOptions],
) -> list[MessageId]:
    """Pipelined, as few frames as hold them; with a dedup_key, or ids of the caller, asked: the server may know the
    first one of it, or have one of these."""
    self._check_working()
    checked = properties_of(queue, 0, options)
    pack_properties(checked)
    sizes, each = [*map(len, bodies)], [*map(stored_options, own or ())]
    self._check_size(max(sizes, default=0))
    if not self._is_known(queue):
        self._ask("enqueue_many", queue, None, [], options)  # the server says what is wrong
    made = adding.complete(ids, len(bodies))
    if each:
        sizes = [*map(add, sizes, adding.sizes_of(queue, each))]
    is_asked = ids is not None or checked.dedup_key is not None or "dedup_key" in chain.from_iterable(each)
    is_asked |= self._branch.is_marked
    for page in _pages(sizes, min(PAGE_BYTES, self.space["max_body_bytes"])):
        call = "enqueue_many", queue, b"".join(made[page]), bodies[page], options, *([each[page]] if each else ())
        if is_asked:
            made[page] = self._ask(*call)
        else:
            self._pipeline(*call)
    return made


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
def _(caller: Caller, queue: str, ids: Any, bodies: Any, options: Any = None, own: Any = None) -> list[MessageId]:
    given = caller.options_to_add("enqueue_many", options, MANY_OPTIONS)
    if type(ids) is bytes and type(bodies) is list and len(ids) == MESSAGE_ID_BYTES * len(bodies):
        ids = ids_in(ids)
    elif type(ids) is list:
        ids = [*map(id_of, ids)]
    is_right = isinstance(bodies, list) and (ids is None or (isinstance(ids, list) and len(ids) == len(bodies)))
    if not is_right or len(bodies) > PAGE:
        raise InvalidArgument(f"enqueue_many is refused: ids (or nil) and as many bodies, at most {PAGE}, are wanted")
    if own is not None:
        _check_own(caller, own, len(bodies), given)
    return _add_many(caller.session, queue, bodies, ids, own, **given)


def _check_own(caller: Caller, own: Any, count: int, others: Any) -> None:
    if type(own) is not list or len(own) != count or {*map(type, own)} - {dict} or others:
        raise InvalidArgument("enqueue_many is refused: no options, or a map of them for each body, are wanted")
    names = {*chain.from_iterable(own)}
    caller.options_to_add("enqueue_many", dict.fromkeys(names), MANY_OPTIONS)
    if "failure_queue" in names:
        for one in own:
            caller.check_failure_queue(one.get("failure_queue"))


@verb(PRODUCE)
def restore(self: Session, queue: str, found: Sequence[Message]) -> list[bool]:
    """See ``ResourceManager.restore``."""
    with self._work() as branch:
        return adding.restore(self.space, branch, check_queue_name(queue), found)


@restore.client
def _(self: Link, queue: str, found: Sequence[Message]) -> list[bool]:
    self._check_working()
    self._check_size(max([len(message.body) for message in found], default=0))
    each = [repacked(queue, message.properties) for message in found]
    rows = [(one.message_id, property_map(more), one.body) for one, (more, _) in zip(found, each, strict=True)]
    added: list[bool] = []
    sizes = [len(one.body) + len(packed) for one, (_, packed) in zip(found, each, strict=True)]
    for page in _pages(sizes, min(PAGE_BYTES, self.space["max_body_bytes"])):
        added += self._ask("restore", queue, *map(list, zip(*rows[page], strict=True)))
    return added


@restore.server
def _(caller: Caller, queue: str, ids: Any, properties: Any, bodies: Any) -> bool | list[bool]:
    """Of one message, or of several by columns."""
    columns = ids, properties, bodies
    is_one = type(ids) is not list
    if not is_one and ({*map(type, columns)} != {list} or len({*map(len, columns)}) > 1 or len(ids) > PAGE):
        raise InvalidArgument(f"restore is refused: as many ids, properties and bodies, at most {PAGE}, are wanted")
    rows = [columns] if is_one else zip(*columns, strict=True)
    found = restore(caller.session, queue, [_coming_back(caller, queue, *row) for row in rows])
    return found[0] if is_one else found


def _coming_back(caller: Caller, queue: str, message_id: Any, properties: Any, body: Any) -> Message:
    """Whoever adds a message that says where it was must be allowed to add it there, where a requeue brings it."""
    if not isinstance(properties, dict):
        raise InvalidArgument("properties are refused: a map, as in a command block, is wanted")
    message = Message(check_message_id(message_id), queue, 0, body, restored(queue, properties))
    caller.check_failure_queue(message.properties.failure_queue)
    if message.origin is not None and message.origin.queue:
        caller.check_adding(check_queue_name(message.origin.queue))
    return message


def _take_many(
    self: Session, queue: str, count: int, *, wait_s: float | None = 0.0, most_bytes: float = inf
) -> list[Message]:
    """Takes up to ``count`` messages, and waits for the first as ``dequeue`` does. Where it raises, none.

    most_bytes: it ends behind the message with which the bodies reach so many."""
    limit_s = check_seconds("wait_s", wait_s) if wait_s != 0 else 0.0
    space, found, taken = self.space, list[Message](), list[Written]()
    branch = self._at_work()
    try:
        if limit_s:
            self._waits_since = time.monotonic()
        self._awaits = queue if limit_s else ""
        take_each(space, branch, queue, count, limit_s, most_bytes, taken, found)
        space.log.take(branch, taken, space.epoch)
        branch.progress = time.monotonic()
        branch.working.discard(self.number)
        return found  # noqa: TRY300 (interrupted before, nobody has them)
    except BaseException:
        try:
            taking.return_taken(space, branch, *taken)
        except BaseException as error:  # or interrupted once more
            taking.keeps(branch, error)
            raise
        finally:
            branch.progress = time.monotonic()
            branch.working.discard(self.number)
        raise


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
        if most_bytes != inf:
            most_bytes -= sum([len(message.body) for message in some])


@verb_of(CONSUME, _take_many)
def dequeue_many(self: Link, queue: str, count: int, *, wait_s: float | None = 0.0) -> list[Message]:
    self._check_working()
    found: list[Message] = []
    more, limit_s, in_columns = True, check_seconds("wait_s", wait_s), count > 1
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
