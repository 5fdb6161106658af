"""The methods of the server: each takes a session and the parameters as they came, and returns what is answered.

Parameters that are left out at the end have their defaults. Whatever is wrong with them is InvalidArgument, and then
nothing was done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

from xaqueue.errors import InvalidArgument
from xaqueue.message import PLAIN_OPTIONS, Message
from xaqueue.rpc import wire
from xaqueue.rpc.batch_methods import BATCH_METHODS
from xaqueue.rpc.gate import Gate
from xaqueue.rpc.operator_methods import OPERATOR_METHODS
from xaqueue.rpc.server_methods import SERVER_METHODS
from xaqueue.rpc.stream_methods import STREAM_METHODS
from xaqueue.rpc.wire import flags_of, xid_of
from xaqueue.space.engine.session import Session
from xaqueue.space.offline.inspect_branches import InDoubt
from xaqueue.xa import Flag

PAGE = 1000
"""Messages or xids of one answer, at most."""
ENQUEUE_OPTIONS = PLAIN_OPTIONS
KEY_BYTES = 16
"""Of a session's key, at least."""
CURSORS = 16
"""Open browses of one session, at most."""


class Peer:
    """What methods know of a session: its branch's session, and the browses it has open."""

    def __init__(
        self, session: Session, status: Callable[[], dict[str, Any]], gate: Gate, cut: Callable[[bytes], object]
    ) -> None:
        """cut: ends the session of this key."""
        self.session = session
        self.gate = gate
        self.status = status
        self.cut = cut
        self.key: bytes | None = None
        """Known to its client alone."""
        self.browses: dict[int, Iterator[Message]] = {}
        self._browses = 0
        self.listing: Iterator[list[InDoubt]] | None = None
        """What is left of the list of branches in doubt that it asked for last."""

    def keep(self, browse: Iterator[Message]) -> int:
        if len(self.browses) >= CURSORS:
            raise InvalidArgument(f"a session has {CURSORS} browses open at most: read one to its end")
        self._browses += 1
        self.browses[self._browses] = browse
        return self._browses


def hello(peer: Peer, said: Any = None) -> dict[str, Any]:
    """What a lost session has sent, and this server has not read yet, is never read: its client goes on here."""
    told = said if isinstance(said, Mapping) else {}
    protocol = told.get("protocol", wire.PROTOCOL)
    if type(protocol) is not int or protocol < 1:
        raise InvalidArgument(f"protocol {protocol!r} is refused: this server speaks 1 to {wire.PROTOCOL}")
    key, lost = _key(told, "session"), _key(told, "instead_of")
    peer.key = key or peer.key
    if lost is not None:
        peer.cut(lost)
    definitions = peer.session.space.definitions
    return {
        "protocol": min(protocol, wire.PROTOCOL),
        "sync": str(peer.session.space.hardening),
        "epoch": peer.session.space.epoch,
        "queues": sorted(definitions.queues),
        "any_queue": definitions.default is not None,
        "max_body_bytes": definitions.max_body_bytes,
    }


def _key(told: Mapping[Any, Any], name: str) -> bytes | None:
    key = told.get(name)
    if key is not None and not (isinstance(key, bytes) and KEY_BYTES <= len(key) <= 4 * KEY_BYTES):
        raise InvalidArgument(f"the {name} is refused: {KEY_BYTES} to {4 * KEY_BYTES} random bytes are wanted")
    return key


def echo(peer: Peer, value: Any = None) -> Any:
    return value


def start(peer: Peer, xid: Any, flags: Any = 0, timeout_s: Any = None) -> None:
    peer.session.start(xid_of(xid), flags_of(flags), _seconds("timeout_s", timeout_s))


def end(peer: Peer, xid: Any, flags: Any = int(Flag.SUCCESS)) -> None:
    peer.session.end(xid_of(xid), flags_of(flags))


def prepare(peer: Peer, xid: Any, flags: Any = 0) -> str:
    return peer.session.prepare(xid_of(xid), flags_of(flags)).value


def commit(peer: Peer, xid: Any, flags: Any = 0) -> None:
    peer.session.commit(xid_of(xid), flags_of(flags))


def rollback(peer: Peer, xid: Any, flags: Any = 0) -> None:
    peer.session.rollback(xid_of(xid), flags_of(flags))


def recover(peer: Peer, count: Any = PAGE, flags: Any = 0) -> list[tuple[int, bytes, bytes]]:
    if type(count) is not int or count > PAGE:
        raise InvalidArgument(f"recover of {count!r} xids: a number from 0 to {PAGE} is wanted")
    return [wire.xid_to(xid) for xid in peer.session.recover(count, flags_of(flags))]


def forget(peer: Peer, xid: Any, flags: Any = 0) -> None:
    peer.session.forget(xid_of(xid), flags_of(flags))


def outcome(peer: Peer, xid: Any) -> str:
    return peer.session.outcome(xid_of(xid)).value


def enqueue(peer: Peer, queue: Any, body: Any, options: Any = None) -> bytes:
    return peer.session.enqueue(_text("queue", queue), body, **_options(options, "enqueue", ENQUEUE_OPTIONS))


def dequeue(peer: Peer, queue: Any, options: Any = None) -> Any:
    given = _options(options, "dequeue", ("wait_s", "message_id", "correlation_id"))
    message = peer.session.dequeue(_text("queue", queue), **given)
    return None if message is None else wire.message_to(message)


def browse(peer: Peer, queue: Any, limit: Any = None) -> tuple[int | None, list[Any]]:
    if limit is not None and (type(limit) is not int or limit < 0):
        raise InvalidArgument(f"limit {limit!r} is refused: a number from 0, or nil, is wanted")
    return _page(peer, peer.keep(peer.session.browse(_text("queue", queue), limit)))


def browse_next(peer: Peer, cursor: Any) -> tuple[int | None, list[Any]]:
    if type(cursor) is not int or cursor not in peer.browses:
        raise InvalidArgument(f"browse {cursor!r} is not open: it ended, or was never begun in this session")
    return _page(peer, cursor)


def browse_end(peer: Peer, cursor: Any) -> None:
    peer.browses.pop(cursor if type(cursor) is int else 0, None)


def close(peer: Peer) -> None:
    """What the session has active is rolled back; nothing more is taken of it."""
    peer.session.close()


def status(peer: Peer) -> dict[str, Any]:
    return peer.status()


def _page(peer: Peer, cursor: int) -> tuple[int | None, list[Any]]:
    """The next messages of a browse; without a cursor they are the last."""
    found, size = [], 0
    browse = peer.browses.pop(cursor)  # and not put back where it is over, or cannot go on
    for message in islice(browse, PAGE):
        found.append(wire.message_to(message))
        size += len(message.body)
        if size >= PAGE_BYTES:
            break
    if len(found) < PAGE and size < PAGE_BYTES:
        return None, found
    peer.browses[cursor] = browse
    return cursor, found


PAGE_BYTES = 1024 * 1024
"""Of bodies in one answer, after which it ends."""


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidArgument(f"{name} {value!r} is refused: a string is wanted")
    return value


def _seconds(name: str, value: Any) -> float | None:
    if value is None:
        return None
    if type(value) not in (int, float) or not 0 <= value < float("inf"):
        raise InvalidArgument(f"{name} {value!r} is refused: seconds from 0 are wanted")
    return float(value)


def _options(value: Any, method: str, names: tuple[str, ...]) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise InvalidArgument(f"options of {method} are refused: a map with names as keys is wanted")
    unknown = [name for name in value if name not in names]
    if unknown:
        raise InvalidArgument(f"{unknown[0]!r} is not an option of {method}: {', '.join(names)}")
    return dict(value)


class Method(NamedTuple):
    """One method, with how many parameters it takes at least and at most."""

    call: Callable[..., Any]
    least: int
    most: int


_TABLES = OPERATOR_METHODS | SERVER_METHODS | BATCH_METHODS | STREAM_METHODS
METHODS: dict[str, Method] = {
    "hello": Method(hello, 0, 1),
    "echo": Method(echo, 0, 1),
    "start": Method(start, 1, 3),
    "end": Method(end, 1, 2),
    "prepare": Method(prepare, 1, 2),
    "commit": Method(commit, 1, 2),
    "rollback": Method(rollback, 1, 2),
    "recover": Method(recover, 0, 2),
    "forget": Method(forget, 1, 2),
    "outcome": Method(outcome, 1, 1),
    "enqueue": Method(enqueue, 2, 3),
    "dequeue": Method(dequeue, 1, 2),
    "browse": Method(browse, 1, 2),
    "browse_next": Method(browse_next, 1, 1),
    "browse_end": Method(browse_end, 1, 1),
    "close": Method(close, 0, 0),
    "status": Method(status, 0, 0),
    **{name: Method(*row) for name, row in _TABLES.items()},
}


def perform(peer: Peer, call: wire.Call) -> Any:
    """What is answered. Raises InvalidArgument for a method or parameters that are none, AccessDenied for a right that
    is missing, and what the method raises."""
    method = METHODS.get(call.method)
    if method is None:
        raise InvalidArgument(f"method {call.method[:60]!r} is unknown: see xaqueue(5)")
    if not method.least <= len(call.params) <= method.most:
        wanted = str(method.least) if method.least == method.most else f"{method.least} to {method.most}"
        raise InvalidArgument(f"{call.method} takes {wanted} parameters, not {len(call.params)}")
    if method.call is hello:  # only there a token is shown
        said = call.params[0] if call.params else None
        if isinstance(said, Mapping) and said.get("token") is not None:
            peer.gate.show(said["token"])
    peer.gate.check(call.method, call.params)
    return method.call(peer, *call.params)
