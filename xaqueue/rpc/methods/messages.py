"""The methods of messages: enqueue, dequeue, publish, move, browse, alone and many at once.

Options are a map; a browse is answered in pages, under a cursor as long as there are more. On the client what a branch
adds is pipelined where nothing can be wrong with it, and what it takes is asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Unpack

from xaqueue.access import BROWSE, CONSUME, NOTHING, PRODUCE
from xaqueue.core.engine.session import Session
from xaqueue.core.model.block import pack_properties, property_map, repacked
from xaqueue.core.storage.ids import fresh_id
from xaqueue.errors import ConnectionLost, Error, InvalidArgument, MessageTooLarge
from xaqueue.message import (
    PLAIN_OPTIONS,
    EnqueueOptions,
    Message,
    MessageId,
    check_message_id,
    check_queue_name,
    id_digits_of,
    id_of,
    properties_of,
    restored,
)
from xaqueue.rpc import wire
from xaqueue.rpc.client.link import Link
from xaqueue.rpc.verb import method, methods
from xaqueue.rpc.wire import PAGE, PAGE_BYTES
from xaqueue.times import check_seconds

if TYPE_CHECKING:
    from xaqueue.rpc.server.peer import Caller

MANY_OPTIONS = tuple(name for name in PLAIN_OPTIONS if name != "message_id")
DEQUEUE_OPTIONS = ("wait_s", "message_id", "correlation_id")
CURSORS = 16
"""Open browses of one session, at most."""

# On the server: what is more than the same call of a session


def enqueue(caller: Caller, queue: str, body: Any, options: Any = None) -> bytes:
    return caller.session.enqueue(queue, body, **_options_to_add(caller, "enqueue", options))


def dequeue(caller: Caller, queue: str, options: Any = None) -> Any:
    given = {} if options is None else wire.options_of(options, "dequeue", DEQUEUE_OPTIONS)
    message = caller.session.dequeue(queue, **given)
    return None if message is None else wire.message_to(message)


def enqueue_many(caller: Caller, queue: str, ids: Any, bodies: Any, options: Any = None) -> list[MessageId]:
    given = _options_to_add(caller, "enqueue_many", options, MANY_OPTIONS)
    is_right = isinstance(bodies, list) and (ids is None or (isinstance(ids, list) and len(ids) == len(bodies)))
    if not is_right or len(bodies) > PAGE:
        raise InvalidArgument(f"enqueue_many is refused: ids (or nil) and as many bodies, at most {PAGE}, are wanted")
    return caller.session.enqueue_many(queue, bodies, ids, **given)


def enqueue_to(caller: Caller, queues: Any, body: Any, options: Any = None) -> bytes:
    return caller.session.enqueue_to(queues, body, **_options_to_add(caller, "enqueue_to", options))


def publish(caller: Caller, topic: str, body: Any, options: Any = None) -> bytes:
    """Whoever may produce to the topic need not know who subscribes."""
    return caller.session.publish(topic, body, **_options_to_add(caller, "publish", options))


def dequeue_many(caller: Caller, queue: str, count: Any, options: Any = None) -> tuple[bool, list[Any]]:
    """Whether there may be more, for want of which it did not end, and the messages."""
    given = {} if options is None else wire.options_of(options, "dequeue_many", ("wait_s",))
    if type(count) is not int or count < 1:
        raise InvalidArgument(f"dequeue_many of {count!r} messages: a number from 1 is wanted")
    found = caller.session.dequeue_many(queue, min(count, PAGE), most_bytes=PAGE_BYTES, **given)
    is_full = len(found) == PAGE or sum(len(message.body) for message in found) >= PAGE_BYTES
    return is_full and len(found) < count, [wire.message_to(message) for message in found]


def move(caller: Caller, queue: str, message_id: Any, to: Any = None) -> bytes | None:
    """Whoever moves a message must be allowed to add it there."""
    target = None if to is None else check_queue_name(to)
    return caller.session.move(queue, message_id, target, lambda name: _check_produce(caller, name))


def _options_to_add(caller: Caller, verb: str, options: Any, known: tuple[str, ...] = PLAIN_OPTIONS) -> dict[str, Any]:
    given = {} if options is None else wire.options_of(options, verb, known)
    if "failure_queue" in given:
        check_failure_queue(caller, given["failure_queue"])
    return given


def _check_produce(caller: Caller, queue: str) -> None:
    if not caller.identity.owner:
        caller.check("enqueue", PRODUCE, [queue])


def check_failure_queue(caller: Caller, queue: Any) -> None:
    """Whoever adds a message that names where it goes at last must be allowed to add it there."""
    if queue is not None:
        _check_produce(caller, check_queue_name(queue))


def restore(caller: Caller, queue: str, message_id: Any, properties: Any, body: Any) -> bool:
    """Whoever adds a message that says where it was must be allowed to add it there, where a requeue brings it."""
    if not isinstance(properties, dict):
        raise InvalidArgument("properties are refused: a map, as in a command block, is wanted")
    message = Message(check_message_id(message_id), queue, 0, body, restored(queue, properties))
    check_failure_queue(caller, message.properties.failure_queue)
    if message.origin is not None and message.origin.queue:
        _check_produce(caller, check_queue_name(message.origin.queue))
    return caller.session.restore(queue, message)


def browse(caller: Caller, queue: str, limit: Any = None, id_digits: Any = "") -> tuple[int | None, list[Any]]:
    if limit is not None and (type(limit) is not int or limit < 0):
        raise InvalidArgument(f"limit {limit!r} is refused: a number from 0, or nil, is wanted")
    found = caller.session.browse(queue, limit, id_digits_of(id_digits or None))
    if len(caller.browses) >= CURSORS:
        raise InvalidArgument(f"a session has {CURSORS} browses open at most: read one to its end")
    caller.last_cursor += 1
    caller.browses[caller.last_cursor] = found
    return _page(caller, caller.last_cursor)


def browse_next(caller: Caller, cursor: Any) -> tuple[int | None, list[Any]]:
    if type(cursor) is not int or cursor not in caller.browses:
        raise InvalidArgument(f"browse {cursor!r} is not open: it ended, or was never begun in this session")
    return _page(caller, cursor)


def browse_end(caller: Caller, cursor: Any) -> None:
    caller.browses.pop(cursor if type(cursor) is int else 0, None)


def _page(caller: Caller, cursor: int) -> tuple[int | None, list[Any]]:
    """The next messages of a browse; without a cursor they are the last."""
    found, size = [], 0
    browse = caller.browses.pop(cursor)  # and not put back where it is over, or cannot go on
    for message in islice(browse, PAGE):
        found.append(wire.message_to(message))
        size += len(message.body)
        if size >= PAGE_BYTES:
            break
    if len(found) < PAGE and size < PAGE_BYTES:
        return None, found
    caller.browses[cursor] = browse
    return cursor, found


MESSAGE_METHODS = (
    *methods(PRODUCE, enqueue, enqueue_many, enqueue_to, publish, restore),
    *methods(CONSUME, dequeue, dequeue_many, move, Session.remove),
    method(BROWSE, browse),
    *methods(NOTHING, browse_next, browse_end),
)

# On the client


class MessageCalls(Link):
    """The part of a RemoteManager that is about messages."""

    def enqueue(self, queue: str, body: bytes, **options: Unpack[EnqueueOptions]) -> MessageId:
        if self._closed or self._branch.why is not None:
            self._check_working()
        checked = properties_of(queue, 0, options)
        if not isinstance(body, bytes) or not self._is_known(queue):
            return MessageId(self._ask("enqueue", queue, body, options))  # the server says what is wrong
        if options:
            pack_properties(checked)  # raises MessageTooLarge
        self._check_size(len(body))
        given = options.get("message_id")
        if checked.dedup_key is not None and given is None:  # the server may know the first one of its key
            return MessageId(self._ask("enqueue", queue, body, options))
        if given is not None:
            return MessageId(self._ask("enqueue", queue, body, {**options, "message_id": id_of(given)}))
        message_id = MessageId(fresh_id())
        self._pipeline("enqueue", queue, body, {**options, "message_id": message_id})
        return message_id

    def enqueue_many(self, queue: str, bodies: Sequence[bytes], **options: Unpack[EnqueueOptions]) -> list[MessageId]:
        """Pipelined, as few frames as hold them; with a dedup_key asked: the server may know the first one of it."""
        self._check_working()
        checked = properties_of(queue, 0, options)
        pack_properties(checked)
        sizes = [len(body) for body in bodies]
        self._check_size(max(sizes, default=0))
        if not self._is_known(queue):
            self._ask("enqueue_many", queue, None, [], options)  # the server says what is wrong
        ids = [MessageId(fresh_id()) for _ in bodies]
        most_bytes, first, size = min(PAGE_BYTES, self.space["max_body_bytes"]), 0, 0
        for number, size_bytes in enumerate([*sizes, most_bytes + 1]):
            if number > first and (size + size_bytes > most_bytes or number - first == PAGE):
                call = "enqueue_many", queue, ids[first:number], bodies[first:number], options
                if checked.dedup_key is None:
                    self._pipeline(*call)
                else:
                    ids[first:number] = map(MessageId, self._ask(*call))
                first, size = number, 0
            size += size_bytes
        return ids

    def enqueue_to(self, queues: Sequence[str], body: bytes, **options: Unpack[EnqueueOptions]) -> MessageId:
        return self._ask_to_add("enqueue_to", list(queues), body, options)

    def publish(self, topic: str, body: bytes, **options: Unpack[EnqueueOptions]) -> MessageId:
        return self._ask_to_add("publish", topic, body, options)

    def _ask_to_add(self, verb: str, to: str | list[str], body: bytes, options: EnqueueOptions) -> MessageId:
        self._check_working()
        self._check_size(len(body))
        return MessageId(self._ask(verb, to, body, options))

    def _is_known(self, queue: str) -> bool:
        return self.space["any_queue"] or queue in self.space["queues"]

    def _check_size(self, size_bytes: int) -> None:
        if size_bytes > self.space["max_body_bytes"]:
            raise MessageTooLarge(
                f"body of {size_bytes:,} bytes is over the limit of {self.space['max_body_bytes']:,}: "
                "raise [space] max_body_bytes in queues.toml, or send a reference to the content"
            )

    def dequeue_many(self, queue: str, count: int, *, wait_s: float | None = 0.0) -> list[Message]:
        self._check_working()
        found: list[Message] = []
        more, limit_s = True, check_seconds("wait_s", wait_s)
        while more and len(found) < count:
            waits_s = 0.0 if found else limit_s
            try:
                more, page = self._ask("dequeue_many", queue, count - len(found), {"wait_s": waits_s}, waits_s=waits_s)
            except Error as error:
                if not found or isinstance(error, ConnectionLost):
                    raise
                break  # those are taken; the next call says what is wrong
            found += map(wire.message_of, page)
        return found

    def dequeue(
        self,
        queue: str,
        *,
        wait_s: float | None = 0.0,
        message_id: bytes | None = None,
        correlation_id: bytes | str | None = None,
    ) -> Message | None:
        if self._closed or self._branch.why is not None:
            self._check_working()
        limit_s = check_seconds("wait_s", wait_s)
        if limit_s or message_id is not None or correlation_id is not None:
            options = {"wait_s": limit_s, "message_id": message_id, "correlation_id": correlation_id}
            given = {name: value for name, value in options.items() if value is not None and value != 0}
            answer = self._ask("dequeue", queue, given, waits_s=limit_s)
        else:
            answer = self._ask("dequeue", queue)
        return None if answer is None else wire.message_of(answer)

    def move(self, queue: str, message_id: bytes, to: str | None = None) -> MessageId | None:
        self._check_working()
        answer = self._ask("move", queue, message_id, to)
        return None if answer is None else MessageId(answer)

    def remove(self, queue: str, message_id: bytes) -> bool:
        self._check_working()
        return bool(self._ask("remove", queue, message_id))

    def restore(self, queue: str, message: Message) -> bool:
        self._check_working()
        properties, _ = repacked(queue, message.properties)
        return bool(self._ask("restore", queue, message.message_id, property_map(properties), message.body))

    def browse(self, queue: str, limit: int | None = None, id_digits: str = "") -> Iterator[Message]:
        return self._pages(*self.call("browse", queue, limit, id_digits))

    # Within

    def _pages(self, cursor: int | None, page: list[Any]) -> Iterator[Message]:
        socket = self._socket
        try:
            while True:
                yield from map(wire.message_of, page)
                if cursor is None:
                    return
                if self._socket is not socket:
                    raise ConnectionLost("the connection was lost while browsing: browse again")
                cursor, page = self._ask("browse_next", cursor)
        finally:
            if cursor is not None and socket is not None:  # broken off; perhaps by the collector, anywhere
                socket.pipeline("browse_end", (cursor,), later=True)
