"""MessagePack-RPC as xaqueue speaks it: frames, and every value and error in its wire form. No I/O here.

    request       [0, id, method, params]   id: 0 to 2**32-1, chosen by the client
    response      [1, id, error, result]    error: nil, or a map
    notification  [2, method, params]       has no answer: it rides with the next request

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
from functools import lru_cache
from typing import Any, NamedTuple, Self, TypeVar

import msgpack

from xaqueue import errors
from xaqueue.errors import DamagedBlock, DatabaseError, Error, HeuristicOutcome, InvalidArgument, RolledBack
from xaqueue.message import Message, MessageId, check_message_id
from xaqueue.space.model.block import properties_in, property_map
from xaqueue.xa import Code, Flag
from xaqueue.xid import Xid

PROTOCOL = 1
"""Version of the methods and values; ``hello`` settles it."""
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

T = TypeVar("T", list[Any], dict[Any, Any])


class MalformedFrame(Error):
    """Bytes that are no frame: who sent them speaks something else, and the session is over."""

    code = Code.XAER_INVAL


class Call(NamedTuple):
    """What a client sends; ``id`` is None in a notification."""

    id: int | None
    method: str
    params: list[Any]


class Answer(NamedTuple):
    """What a server sends; ``error`` is None, or a map."""

    id: int
    error: Any
    result: Any


def request(number: int, method: str, params: Sequence[Any]) -> bytes:
    packed: bytes = msgpack.packb((REQUEST, number, method, params))
    return packed


def notification(method: str, params: Sequence[Any]) -> bytes:
    packed: bytes = msgpack.packb((NOTIFICATION, method, params))
    return packed


def response(number: int, error: Mapping[str, Any] | None, result: Any) -> bytes:
    packed: bytes = msgpack.packb((RESPONSE, number, error, result))
    return packed


def unpacker(limit_bytes: int) -> msgpack.Unpacker:
    """To feed with what a server sends; it yields what ``answer_of`` takes. Raises ValueError."""
    return msgpack.Unpacker(raw=False, strict_map_key=True, max_buffer_size=limit_bytes)


class CallUnpacker(msgpack.Unpacker):  # type: ignore[misc]
    """To feed with what a client sends; it yields what ``call_of`` takes. Raises ValueError, UnpackException.

    A list takes its room as soon as its header is read, and one byte can stand for a value of a hundred: so lists are
    short, and the values of a frame are counted while it is read.
    """

    def __new__(cls, limit_bytes: int) -> Self:
        made: Self = super().__new__(cls)
        return made

    def __init__(self, limit_bytes: int) -> None:
        left = self._left = [FRAME_VALUES]

        def count(made: T) -> T:  # no method: an unpacker that refers to itself would keep its buffer until it is found
            left[0] -= len(made)
            if left[0] < 0:
                raise ValueError(f"more than {FRAME_VALUES} values in one frame")
            return made

        room = limit_bytes + CHUNK_BYTES
        limits = {
            "max_buffer_size": room,
            "max_bin_len": limit_bytes,
            "max_array_len": LONGEST_LIST,
            "max_map_len": FRAME_VALUES,
        }
        super().__init__(raw=False, strict_map_key=True, list_hook=count, object_hook=count, **limits)

    def __next__(self) -> Any:
        frame = super().__next__()
        self._left[0] = FRAME_VALUES
        return frame


def call_of(frame: Any) -> Call:
    """Raises MalformedFrame."""
    shape = tuple(map(type, frame)) if type(frame) is list else None
    number = None
    if shape == _NOTIFIED and frame[0] == NOTIFICATION:
        _, method, params = frame
    elif shape == _REQUESTED and frame[0] == REQUEST and 0 <= frame[1] < ID_LIMIT:
        _, number, method, params = frame
    else:
        wanted = "[0, id, method, params] or [2, method, params] is wanted"
        raise MalformedFrame(f"{_short(frame)} is no request: {wanted}")
    if _is_deeper(params, DEEPEST):
        raise MalformedFrame(f"parameters of {method[:60]!r} are nested more than {DEEPEST} deep")
    return Call(number, method, params)


_REQUESTED, _NOTIFIED = (int, int, str, list), (int, str, list)
"""By type: patterns take twice as long, and a transaction has five frames."""


def _is_deeper(values: Iterable[Any], levels: int) -> bool:
    """Whether there is a list or map below that many levels."""
    for value in values:
        if type(value) is dict:
            value = value.values()
        elif type(value) is not list:
            continue
        if not levels or _is_deeper(value, levels - 1):
            return True
    return False


def answer_of(frame: Any) -> Answer:
    """Raises MalformedFrame."""
    match frame:
        case [1, int(number), error, result] if error is None or isinstance(error, dict):
            return Answer(number, error, result)
    raise MalformedFrame(f"{_short(frame)} is no response: [1, id, error, result] is wanted")


def _short(frame: Any) -> str:
    """What it looks like, in few words: it may be long, and deeper than ``repr`` goes."""
    return reprlib.repr(frame)[:200]


# Values


def xid_to(xid: Xid) -> tuple[int, bytes, bytes]:
    return xid.format_id, xid.gtrid, xid.bqual


def xid_of(value: Any) -> Xid:
    """Raises InvalidArgument."""
    if not isinstance(value, list | tuple) or len(value) != 3:
        raise InvalidArgument(f"{_short(value)} is no xid: [format id, gtrid, bqual] is wanted")
    try:
        return _xid(*value)
    except TypeError:  # a list or map stands where a part should
        return Xid(*value)


@lru_cache(maxsize=1024, typed=True)
def _xid(format_id: int, gtrid: bytes, bqual: bytes) -> Xid:
    """A transaction names its branch four times."""
    return Xid(format_id, gtrid, bqual)


def flags_of(value: Any) -> Flag:
    """Raises InvalidArgument."""
    if type(value) is not int or not 0 <= value < 2**32:
        raise InvalidArgument(f"flags {_short(value)} are refused: an unsigned 32-bit number is wanted")
    return Flag(value)


def message_to(message: Message) -> tuple[bytes, str, int, dict[str, Any], bytes]:
    return message.message_id, message.queue, message.seq, property_map(message.properties), message.body


def message_of(value: Any) -> Message:
    """Raises MalformedFrame."""
    try:
        message_id, queue, seq, stored, body = value
        return Message(MessageId(check_message_id(message_id)), queue, seq, body, properties_in(stored))
    except (ValueError, TypeError, AttributeError, DamagedBlock) as error:
        raise MalformedFrame(f"{_short(value)} is no message: {error}") from None


# Errors


def error_to(error: Error, ride: str | None = None) -> dict[str, Any]:
    """The map that stands for an error; ``ride``: the notification that failed."""
    told = {
        "code": int(error.code),
        "name": error.code.name,
        "error": type(error).__name__,
        "message": str(error)[:LONGEST_MESSAGE],
    }
    if ride is not None:
        told["ride"] = ride
    return told


def error_of(told: Mapping[str, Any]) -> Error:
    """The error that a map stands for; of a class that is not known here, by its code."""
    message, code = str(told.get("message", "")), _code_of(told.get("code"))
    kind = _CLASSES.get(str(told.get("error")), _BY_CODE.get(code, DatabaseError))
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
    Code.XA_RETRY: errors.RetryLater,
    Code.XA_HEURMIX: HeuristicOutcome,
    Code.XA_HEURRB: HeuristicOutcome,
    Code.XA_HEURCOM: HeuristicOutcome,
    Code.XA_HEURHAZ: HeuristicOutcome,
    Code.XAER_ASYNC: errors.AsyncNotSupported,
    Code.XAER_RMERR: errors.ResourceError,
    Code.XAER_NOTA: errors.UnknownXid,
    Code.XAER_INVAL: InvalidArgument,
    Code.XAER_PROTO: errors.ProtocolError,
    Code.XAER_RMFAIL: errors.ResourceFailed,
    Code.XAER_DUPID: errors.DuplicateXid,
    Code.XAER_OUTSIDE: errors.OutsideTransaction,
}
