"""The methods for messages: enqueue, dequeue, browse.

Options are a map; a browse is answered in pages, under a cursor as long as there are more.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Unpack

from xaqueue.errors import ConnectionLost, InvalidArgument, MessageTooLarge
from xaqueue.message import PLAIN_OPTIONS, EnqueueOptions, Message, MessageId, id_of, properties_of
from xaqueue.rpc import wire
from xaqueue.rpc.client.link import Link
from xaqueue.space.model.block import pack_properties
from xaqueue.storage.ids import fresh_id
from xaqueue.times import check_seconds

if TYPE_CHECKING:
    from xaqueue.rpc.server.authorizer import Caller

DEQUEUE_OPTIONS = ("wait_s", "message_id", "correlation_id")
CURSORS = 16
"""Open browses of one session, at most."""
PAGE_BYTES = 1024 * 1024
"""Of bodies in one answer, after which it ends."""

# On the server


def enqueue(caller: Caller, queue: Any, body: Any, options: Any = None) -> bytes:
    return caller.session.enqueue(
        wire.text_of("queue", queue), body, **wire.options_of(options, "enqueue", PLAIN_OPTIONS)
    )


def dequeue(caller: Caller, queue: Any, options: Any = None) -> Any:
    given = wire.options_of(options, "dequeue", DEQUEUE_OPTIONS)
    message = caller.session.dequeue(wire.text_of("queue", queue), **given)
    return None if message is None else wire.message_to(message)


def browse(caller: Caller, queue: Any, limit: Any = None) -> tuple[int | None, list[Any]]:
    if limit is not None and (type(limit) is not int or limit < 0):
        raise InvalidArgument(f"limit {limit!r} is refused: a number from 0, or nil, is wanted")
    found = caller.session.browse(wire.text_of("queue", queue), limit)
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
    for message in islice(browse, wire.PAGE):
        found.append(wire.message_to(message))
        size += len(message.body)
        if size >= PAGE_BYTES:
            break
    if len(found) < wire.PAGE and size < PAGE_BYTES:
        return None, found
    caller.browses[cursor] = browse
    return cursor, found


MESSAGE_METHODS = (enqueue, dequeue, browse, browse_next, browse_end)

# On the client


class MessageCalls(Link):
    """The part of a RemoteManager that is about messages."""

    def enqueue(self, queue: str, body: bytes, **options: Unpack[EnqueueOptions]) -> MessageId:
        if self._closed or self._branch.why is not None:
            self._check_working()
        checked = properties_of(queue, 0, options)
        space = self.space
        if not isinstance(body, bytes) or not (space["any_queue"] or queue in space["queues"]):
            return MessageId(self._ask("enqueue", queue, body, options))  # the server says what is wrong
        if options:
            pack_properties(checked)  # raises MessageTooLarge
        if len(body) > space["max_body_bytes"]:
            raise MessageTooLarge(
                f"body of {len(body):,} bytes is over the limit of {space['max_body_bytes']:,}: "
                "raise [space] max_body_bytes in queues.toml, or send a reference to the content"
            )
        given = options.get("message_id")
        if given is not None:
            return MessageId(self._ask("enqueue", queue, body, {**options, "message_id": id_of(given)}))
        message_id = MessageId(fresh_id())
        self._pipeline("enqueue", queue, body, {**options, "message_id": message_id})
        return message_id

    def dequeue(
        self,
        queue: str,
        *,
        wait_s: float | None = 0.0,
        message_id: bytes | None = None,
        correlation_id: bytes | str | None = None,
    ) -> Message | None:
        self._check_working()
        limit_s = check_seconds("wait_s", wait_s)
        options = {"wait_s": limit_s, "message_id": message_id, "correlation_id": correlation_id}
        given = {name: value for name, value in options.items() if value is not None and value != 0}
        answer = self._ask("dequeue", queue, given, waits_s=limit_s)
        return None if answer is None else wire.message_of(answer)

    def browse(self, queue: str, limit: int | None = None) -> Iterator[Message]:
        return self._pages(*self.call("browse", queue, limit))

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
                socket.append("browse_end", (cursor,))
