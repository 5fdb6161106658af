"""The verbs of messages, one at a time: enqueue, dequeue, remove, restore, browse.

Options are a map; a browse is answered in pages, under a cursor as long as there are more. On the client what a branch
adds is pipelined where nothing can be wrong with it, and what it takes is asked.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Unpack

from xaqueue.access import BROWSE, CONSUME, NOTHING, PRODUCE
from xaqueue.core.engine.session import Session
from xaqueue.core.model.block import pack_properties
from xaqueue.core.storage.ids import fresh_id
from xaqueue.errors import ConnectionLost, Error, InvalidArgument
from xaqueue.message import (
    EnqueueOptions,
    Message,
    MessageId,
    id_digits_of,
    id_of,
    properties_of,
)
from xaqueue.rpc import wire
from xaqueue.rpc.verb import methods, verb, verb_of
from xaqueue.rpc.wire import PAGE, PAGE_BYTES
from xaqueue.times import check_seconds

if TYPE_CHECKING:
    from xaqueue.rpc.client.link import Link
    from xaqueue.rpc.server.peer import Caller

DEQUEUE_OPTIONS = ("wait_s", "message_id", "correlation_id")
CURSORS = 16
"""Open browses of one session, at most."""


remove = verb(CONSUME, "work")(Session.remove)


@verb_of(PRODUCE, Session.enqueue)
def enqueue(self: Link, queue: str, body: bytes, **options: Unpack[EnqueueOptions]) -> MessageId:
    branch = self._branch
    if branch.why is not None or not self.queues:
        self._check_working()
    if not options and type(body) is bytes and queue in self.queues and len(body) <= self.max_body_bytes:
        message_id = MessageId(fresh_id())
        self._defer(branch, (queue, body, message_id), len(body))
        return message_id
    checked = properties_of(queue, 0, options)
    if not isinstance(body, bytes) or not self._is_known(queue):
        return MessageId(self._ask("enqueue", queue, body, options))  # the server says what is wrong
    size_bytes = len(body)
    self._check_size(size_bytes)
    message_id = MessageId(fresh_id())
    if not options:
        self._defer(self._branch, (queue, body, message_id), size_bytes)
        return message_id
    size_bytes += len(pack_properties(checked))  # raises MessageTooLarge
    given = options.get("message_id")
    if checked.dedup_key is not None and given is None:  # the server may know the first one of its key
        return MessageId(self._ask("enqueue", queue, body, options))
    if given is not None:
        return MessageId(self._ask("enqueue", queue, body, {**options, "message_id": id_of(given)}))
    taken: dict[str, Any] = {**options, "message_id": message_id}
    if checked.headers:
        taken["headers"] = dict(checked.headers)  # its caller may change them before they are sent
    self._defer(self._branch, (queue, body, taken), size_bytes)
    return message_id


@enqueue.server
def _(caller: Caller, queue: str, body: Any, options: Any = None) -> bytes:
    return caller.session.enqueue(queue, body, **caller.options_to_add("enqueue", options))


@verb_of(CONSUME, Session.dequeue)
def dequeue(
    self: Link,
    queue: str,
    *,
    wait_s: float | None = 0.0,
    message_id: bytes | None = None,
    correlation_id: bytes | str | None = None,
) -> Message | None:
    if self._closed or self._branch.why is not None:
        self._check_working()
    limit_s = check_seconds("wait_s", wait_s) if wait_s else 0.0
    try:
        if limit_s or message_id is not None or correlation_id is not None:
            options = {"wait_s": limit_s, "message_id": message_id, "correlation_id": correlation_id}
            given = {name: value for name, value in options.items() if value is not None and value != 0}
            answer = self._ask("dequeue", queue, given, waits_s=limit_s)
        else:
            branch = self._branch
            is_work = branch.deferred is not None and not branch.ends
            answer = self._work(branch, queue) if is_work else self._ask("dequeue", queue)
        return None if answer is None else wire.message_of(answer)
    except (Error, TypeError):
        raise
    except BaseException:  # interrupted: a commit is not to consume what nobody got
        self._lose(ConnectionLost("a call was interrupted"))
        raise


@dequeue.server
def _(caller: Caller, queue: str, options: Any = None) -> Any:
    given = {} if options is None else wire.options_of(options, "dequeue", DEQUEUE_OPTIONS)
    message = caller.session.dequeue(queue, **given)
    return None if message is None else wire.message_to(message)


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


@verb_of(BROWSE, Session.browse)
def browse(self: Link, queue: str, limit: int | None = None, id_digits: str = "") -> Iterator[Message]:
    return _pages(self, *self.call("browse", queue, limit, id_digits))


@browse.server
def _(caller: Caller, queue: str, limit: Any = None, id_digits: Any = "") -> tuple[int | None, list[Any]]:
    if limit is not None and (type(limit) is not int or limit < 0):
        raise InvalidArgument(f"limit {limit!r} is refused: a number from 0, or nil, is wanted")
    found = caller.session.browse(queue, limit, id_digits_of(id_digits or None))
    if len(caller.browses) >= CURSORS:
        raise InvalidArgument(f"a session has {CURSORS} browses open at most: read one to its end")
    caller.last_cursor += 1
    caller.browses[caller.last_cursor] = found
    return _page(caller, caller.last_cursor)


def _pages(self: Link, cursor: int | None, page: list[Any]) -> Iterator[Message]:
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


BROWSE_METHODS = methods(NOTHING, browse_next, browse_end)
