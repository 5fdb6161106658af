"""MessagePack-RPC as xaqueue speaks it: frames, and every value and error in its wire form. No I/O here.

    request       [0, id, method, params]   id: 0 to 2**32-1, chosen by the client
    response      [1, id, error, result]    error: nil, or a map
    notification  [2, method, params]       has no answer: it is pipelined with the next request

    xid           [format id, gtrid, bqual]
    flags         as in xa.h, an unsigned 32-bit number
    message       [message id, queue, seq, properties, body]; properties as in a command block
    error         {"code": XA code, "name": its name in xa.h, "error": class, "message": text, "ride": method, if one}

Requests of a session are carried out and answered in their order. When a notification fails, what follows it up to the
next request is not carried out, and that request is answered with the failure. ``man/xaqueue.5`` has every method.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache, lru_cache, partial
from itertools import repeat
from operator import contains
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

import msgpack

from xaqueue import errors
from xaqueue.core.model.block import property_map
from xaqueue.errors import DatabaseError, Error, HeuristicOutcome, InvalidArgument, RolledBack
from xaqueue.message import MESSAGE_ID_BYTES, Message, check_message_id, ids_in, stored_message, stored_of
from xaqueue.xa import Code, Flag
from xaqueue.xid import Xid

PROTOCOL = 4
"""Version of the methods and values; ``hello`` settles it. 1.0.0rc1 has this one, and what was before is spoken by
nobody."""
REQUEST, RESPONSE, NOTIFICATION = 0, 1, 2
ID_LIMIT = 2**32
CHUNK_BYTES = 256 * 1024
"""What one read of the socket may bring of frames behind the one that it completes."""
LONGEST_LIST = 1024
"""Values of one list in a request."""
FRAME_VALUES = 100_000
"""Values in all lists and maps of a request."""
DEEPEST = 16
"""Lists and maps within each other in a parameter."""
LONGEST_MESSAGE = 4000
"""Characters of an error's message."""
PAGE = 1000
"""Messages or xids of one answer, at most."""
PAGE_BYTES = 1024 * 1024
"""Of bodies in one answer, after which it ends."""
TRIES = 3
"""Of a call that may be made twice."""
LONG_S = 3600.0
"""For how long a client waits for what looks at every message."""

T = TypeVar("T", list[Any], dict[Any, Any])
D = TypeVar("D")


class MalformedFrame(Error):
    """Bytes that are no frame: who sent them speaks something else, and the session is over."""

    code = Code.XAER_INVAL


CallFrame = tuple[int | None, str, list[Any]]
"""What a client sends: its id, which is None in a notification, the method and its parameters."""


class Packed(bytes):
    """A result in its wire form."""


def response(number: int, error: Mapping[str, Any] | None, result: Any) -> bytes:
    if type(result) is Packed:
        return b"".join((b"\x94", msgpack.packb(RESPONSE), msgpack.packb(number), msgpack.packb(None), result))
    packed: bytes = msgpack.Packer(default=plain).pack((RESPONSE, number, error, result))  # packb is two calls
    return packed


def unpacker(limit_bytes: int) -> msgpack.Unpacker:
    """To feed with what a server sends; it yields what ``check_answer`` takes. Raises ValueError."""
    return msgpack.Unpacker(raw=False, strict_map_key=True, max_buffer_size=limit_bytes)


class CallUnpacker:
    """Makes frames, which ``call_of`` takes, of what a client sends.

    A list takes its room as soon as its header is read, and one byte can stand for a value of a hundred: so lists are
    short, and the values of a frame are limited. One that is shorter than FRAME_VALUES bytes cannot have more; those of
    a longer one are counted while it is read.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limits = {
            "raw": False,
            "strict_map_key": True,
            "max_buffer_size": limit_bytes + CHUNK_BYTES,
            "max_bin_len": limit_bytes,
            "max_array_len": LONGEST_LIST,
            "max_map_len": FRAME_VALUES,
        }
        self._fed_bytes = self._whole_bytes = 0
        """Of the unpacker of now: in all, and up to the end of the last frame that was whole."""
        self._part = b""
        """What has come of a frame that is not whole yet, where it may be a short one."""
        self._left: list[int] | None = None
        """Of a long frame: how many values it may have yet."""
        self._unpacker = msgpack.Unpacker(**self._limits)

    @property
    def has_part(self) -> bool:
        """Whether something has come of a frame that is not whole yet."""
        return bool(self._part) or self._left is not None

    def frames(self, data: bytes) -> list[tuple[Any, int]]:
        """The frames that are whole now, each with its size in bytes. Raises ValueError, UnpackException."""
        if self._left is None and len(self._part) + len(data) > FRAME_VALUES:
            self._count_values()
        self._fed_bytes += len(data)
        unpacker, left, whole = self._unpacker, self._left, self._whole_bytes
        unpacker.feed(data)
        found: list[tuple[Any, int]] = []
        for frame in unpacker:
            before, whole = whole, unpacker.tell()
            found.append((frame, whole - before))
            if left is not None:
                left[0] = FRAME_VALUES
        self._whole_bytes, rest = whole, self._fed_bytes - whole
        if left is None:
            self._part = data[len(data) - rest :] if found else self._part + data
        elif rest == 0:
            self._fed_bytes, self._whole_bytes, self._left = 0, 0, None
            self._unpacker = msgpack.Unpacker(**self._limits)
        return found

    def _count_values(self) -> None:
        """Begins the frame that is not whole yet anew."""
        left = [FRAME_VALUES]

        def count(made: T) -> T:  # no method: an unpacker that refers to itself would keep its buffer until it is found
            left[0] -= len(made)
            if left[0] < 0:
                raise ValueError(f"more than {FRAME_VALUES} values in one frame")
            return made

        self._left = left
        self._unpacker = msgpack.Unpacker(list_hook=count, object_hook=count, **self._limits)
        self._unpacker.feed(self._part)
        self._fed_bytes, self._whole_bytes, self._part = len(self._part), 0, b""


_REQUEST_TYPES, _NOTIFICATION_TYPES = [int, int, str, list], [int, str, list]
unpacked = partial(msgpack.unpackb, strict_map_key=True, max_array_len=LONGEST_LIST)
"""The frame that these bytes are, FRAME_VALUES at most. Raises ValueError, UnpackException: they may be several, or a
part of one."""


def call_of(frame: Any) -> CallFrame:
    """Raises MalformedFrame."""
    types = [*map(type, frame)] if type(frame) is list else []  # patterns take twice as long
    number: int | None = None
    if types == _REQUEST_TYPES and frame[0] == REQUEST and 0 <= frame[1] < ID_LIMIT:
        _, number, method, params = frame
    elif types == _NOTIFICATION_TYPES and frame[0] == NOTIFICATION:
        _, method, params = frame
    else:
        wanted = "[0, id, method, params] or [2, method, params] is wanted"
        raise MalformedFrame(f"{_short(frame)} is no request: {wanted}")
    if method != "work" and not _NESTED.isdisjoint(map(type, params)):  # of a work each call is looked at
        check_depth(method, params)
    return number, method, params


def check_depth(method: str, values: Iterable[Any], levels: int = DEEPEST - 1) -> None:
    """None of these is a list or map that has such below that many levels. Raises MalformedFrame."""
    for value in values:
        if type(value) in _NESTED:
            inner = value.values() if type(value) is dict else value
            if not _NESTED.isdisjoint(map(type, inner)):  # an xid has none, mostly
                if not levels:
                    raise MalformedFrame(f"parameters of {method[:60]!r} are nested more than {DEEPEST} deep")
                check_depth(method, inner, levels - 1)


_NESTED = {list, dict}


def check_answer(frame: Any) -> None:
    """Raises MalformedFrame for what is no answer."""
    if type(frame) is list and len(frame) == 4 and frame[0] == RESPONSE and isinstance(frame[1], int):
        error = frame[2]
        if error is None or isinstance(error, dict):
            return
    raise MalformedFrame(f"{_short(frame)} is no response: [1, id, error, result] is wanted")


def _short(frame: Any) -> str:
    """What it looks like, in few words: it may be long, and deeper than ``repr`` goes."""
    return reprlib.repr(frame)[:200]


# Values


def xid_of(value: Any) -> Xid:
    """Raises InvalidArgument."""
    if not isinstance(value, list | tuple) or len(value) != 3:
        raise InvalidArgument(f"{_short(value)} is no xid: [format id, gtrid, bqual] is wanted")
    try:
        return xid_known(*value)
    except TypeError:  # a list or map stands where a part should
        raise InvalidArgument(f"{_short(value)} is no xid: [format id, gtrid, bqual] is wanted") from None


xid_known = lru_cache(maxsize=1024, typed=True)(Xid)
"""A transaction names its branch two times, or four."""


def flags_of(value: Any) -> Flag:
    """Raises InvalidArgument."""
    if type(value) is not int or not 0 <= value < 2**32:
        raise InvalidArgument(f"flags {_short(value)} are refused: an unsigned 32-bit number is wanted")
    return Flag(value)


def queue_of(value: Any) -> str:
    """Raises InvalidArgument."""
    if not isinstance(value, str):
        raise InvalidArgument(f"queue {value!r} is refused: a string is wanted")
    return value


def key_of(value: Any) -> bytes | None:
    """Raises InvalidArgument."""
    if value is not None and not isinstance(value, bytes):
        raise InvalidArgument(f"session key {_short(value)} is refused: bytes are wanted")
    return value


def timeout_of(value: Any) -> float | None:
    """Raises InvalidArgument."""
    if value is None:
        return None
    if type(value) not in (int, float) or not 0 <= value < float("inf"):
        raise InvalidArgument(f"timeout_s {value!r} is refused: seconds from 0 are wanted")
    return float(value)


def options_of(value: Any, method: str, names: tuple[str, ...]) -> dict[str, Any]:
    """Raises InvalidArgument."""
    if not isinstance(value, dict) or set(map(type, value)) - {str}:
        raise InvalidArgument(f"options of {method} are refused: a map with names as keys is wanted")
    for name in value:
        if name not in names:
            raise InvalidArgument(f"{name!r} is not an option of {method}: {', '.join(names)}")
    return value


def enqueue_of(work: Sequence[Any]) -> list[Any]:
    """The parameters of an enqueue for what stands for it among works: [queue, body, message id or options]."""
    queue, body, given = work
    return [queue, body, given if isinstance(given, dict) else {"message_id": given}]


def message_to(message: Message) -> tuple[bytes, str, int, Mapping[str, Any], bytes]:
    stored = stored_of(message) or property_map(message.properties)
    return message.message_id, message.queue, message.seq, stored, message.body


def message_of(value: Any) -> Message:
    """Raises MalformedFrame."""
    try:
        message_id, queue, seq, stored, body = value
        if type(stored) is dict and "queue" in stored:
            return stored_message(check_message_id(message_id), queue, seq, body, stored)
    except (ValueError, TypeError) as error:
        raise MalformedFrame(f"{_short(value)} is no message: {error}") from None
    raise MalformedFrame(f"{_short(value)} is no message: its properties name no queue")


def columns_to(found: Sequence[Message]) -> tuple[bytes, list[int], Any, list[bytes]]:
    """Messages of one queue: their ids, one behind the other, their numbers, properties and bodies. The properties are
    one map where all have the same."""
    stored = [stored_of(message) or property_map(message.properties) for message in found]
    is_one = bool(stored) and stored.count(stored[0]) == len(stored)
    ids = b"".join([message.message_id for message in found])
    return ids, [message.seq for message in found], stored[0] if is_one else stored, [one.body for one in found]


def messages_of(queue: str, value: Any) -> list[Message]:
    """Of what ``columns_to`` has made. Raises MalformedFrame."""
    try:
        ids, seqs, stored, bodies = value
        each = [stored] * len(bodies) if type(stored) is dict else stored
        are_maps = {*map(type, each)} <= {dict} and all(map(contains, each, repeat("queue")))
        if are_maps and len(ids) == MESSAGE_ID_BYTES * len(bodies):
            columns = zip(ids_in(ids), seqs, bodies, each, strict=True)
            return [stored_message(message_id, queue, seq, body, one) for message_id, seq, body, one in columns]
    except (ValueError, TypeError) as error:
        raise MalformedFrame(f"{_short(value)} are no messages: {error}") from None
    raise MalformedFrame(f"{_short(value)} are no messages: as many ids and properties as bodies are wanted")


# Dataclasses: a map of their fields, each in its own wire form


def plain(value: Any) -> Any:
    """For msgpack, the form of what it does not know itself: of an enum its value, of a dataclass a map."""
    if isinstance(value, Enum):
        return value.value
    return {field.name: getattr(value, field.name) for field in fields(value)}


def decode(kind: type[D], value: Any) -> D:
    """The dataclass that a map of its fields stands for, or a list of them in their order. Raises MalformedFrame.

    Fields that it has not, of a later version, are passed over; those with a default may be missing.
    """
    try:
        return cast(D, _decoded(kind, value))
    except (TypeError, ValueError, AttributeError, InvalidArgument) as error:
        raise MalformedFrame(f"{str(value)[:60]} is no {getattr(kind, '__name__', kind)}: {error!r}") from None


def _decoded(hint: Any, value: Any) -> Any:
    inner = get_args(hint)
    if type(None) in inner:
        return None if value is None else _decoded(inner[0], value)
    if hint is Xid:
        return xid_of(value)
    if is_dataclass(hint) and isinstance(hint, type):
        hints = _hints(hint)
        given = dict(zip(hints, value, strict=True)) if isinstance(value, list | tuple) else value
        return hint(**{name: _decoded(hints[name], given[name]) for name in hints if name in given})
    if get_origin(hint) is dict:
        return {_decoded(inner[0], key): _decoded(inner[1], one) for key, one in value.items()}
    if inner:  # list[X], or a tuple of as many
        items = [_decoded(inner[0], one) for one in value]
        return items if get_origin(hint) is list else tuple(items)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint(value)
    wanted = getattr(hint, "__supertype__", hint)
    if not isinstance(value, wanted):
        raise TypeError(f"{_short(value)} stands where {wanted.__name__} is wanted")
    return value


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


# Errors


def error_to(error: Error, pipelined: str | None = None) -> dict[str, Any]:
    """The map that stands for an error; ``pipelined``: the notification that failed."""
    made = {
        "code": int(error.code),
        "name": error.code.name,
        "error": "OutcomeUnknown" if isinstance(error, errors.OutcomeUnknown) else type(error).__name__,
        "message": str(error)[:LONGEST_MESSAGE],
    }
    if pipelined is not None:
        made["ride"] = pipelined
    return made


def error_of(given: Mapping[str, Any]) -> Error:
    """The error that a map stands for; of a class that is not known here, by its code."""
    message, code = str(given.get("message", "")), _code_of(given.get("code"))
    kind = _CLASSES.get(str(given.get("error")), _BY_CODE.get(code, DatabaseError))
    if code.name.startswith("XA_RB") and not issubclass(kind, RolledBack):
        kind = RolledBack
    if kind in (RolledBack, HeuristicOutcome):
        made: Error = kind(message, code)
    else:
        made = kind(message)
        made.code = code
    return made


def _code_of(value: Any) -> Code:
    try:
        return Code(value)
    except ValueError:
        return Code.XAER_RMERR


_CLASSES: dict[str, type[Any]] = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, Error)
}
_BY_CODE: dict[Code, type[Any]] = {
    kind.code: kind
    for kind in (
        *(errors.RetryLater, errors.AsyncNotSupported, errors.ResourceError, errors.UnknownXid, InvalidArgument),
        *(errors.ProtocolError, errors.ResourceFailed, errors.DuplicateXid, errors.OutsideTransaction),
    )
} | {code: HeuristicOutcome for code in Code if code.name.startswith("XA_HEUR")}
