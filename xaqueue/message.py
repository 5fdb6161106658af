"""A message and its properties, as values: what goes in, what comes out, and what is refused at every door.

Times are int microseconds since 1970, UTC. Sizes are bytes. Nothing here touches a disk or a clock.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime, timedelta
from itertools import chain, count, repeat
from struct import Struct
from typing import Any, NewType, TypedDict, cast

from xaqueue.errors import InvalidArgument
from xaqueue.times import check_instant, instant_us, said, span_us

MessageId = NewType("MessageId", bytes)
"""16 bytes, made by the client, unique for ever; 32 hex digits in file names."""

Body = bytes | bytearray | memoryview
"""What a body may come as."""
MESSAGE_ID_BYTES = 16
DEFAULT_PRIORITY = 4
HIGHEST_PRIORITY = 9
MOST_TRIES = 2**28 - 1
"""That a message may come with: what counts on from there has 32 bits."""
HEX_ID = re.compile(r"[0-9A-Fa-f]{32}")
ID_DIGITS = re.compile(r"[0-9A-Fa-f]{1,32}")
QUEUE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,126}")


def check_queue_name(name: str) -> str:
    """The name itself, or InvalidArgument. The grammar is ``[A-Za-z0-9][A-Za-z0-9._-]{0,126}``."""
    if not isinstance(name, str) or not QUEUE_NAME.fullmatch(name):
        raise InvalidArgument(
            f"queue name {said(name)} is refused: 1 to 127 of A-Z a-z 0-9 . _ - and the first a letter or digit"
        )
    return name


def check_queues(names: Sequence[str]) -> Sequence[str]:
    """Several names of queues, none twice, or InvalidArgument."""
    if isinstance(names, str) or not isinstance(names, Sequence) or not names:
        raise InvalidArgument(f"queues {said(names)} are refused: a list of names is wanted")
    for name in names:
        check_queue_name(name)
    if len(set(names)) < len(names):
        raise InvalidArgument(f"queues {', '.join(names)} are refused: one is named twice")
    return names


REASON_LIMIT = 500
"""Characters of why something failed."""


def check_message_id(value: bytes) -> MessageId:
    """The value itself, or InvalidArgument when it is not 16 bytes."""
    if not isinstance(value, bytes) or len(value) != MESSAGE_ID_BYTES:
        raise InvalidArgument(
            f"message id {said(value)} is refused: {MESSAGE_ID_BYTES} bytes or {2 * MESSAGE_ID_BYTES} hex digits are "
            "wanted"
        )
    return MessageId(value)


def id_of(value: bytes | str) -> MessageId:
    """Of 16 bytes, or of 32 hex digits. Raises InvalidArgument."""
    if isinstance(value, str) and HEX_ID.fullmatch(value):
        return MessageId(bytes.fromhex(value))
    return check_message_id(value)  # type: ignore[arg-type]


def correlation_id_of(value: bytes | str | None) -> bytes | None:
    """Of bytes, or of text. Raises InvalidArgument."""
    if isinstance(value, str) and is_text(value):
        return value.encode()
    if value is not None and not isinstance(value, bytes):
        raise InvalidArgument(f"correlation_id {value!r} is refused: bytes or str are wanted")
    return value


def ids_in(data: bytes) -> list[MessageId]:
    """Those that stand there one behind the other."""
    return [*Struct(f"{MESSAGE_ID_BYTES}s" * (len(data) // MESSAGE_ID_BYTES)).unpack(data)]


def id_digits_of(value: bytes | str | None) -> str:
    """Hex digits with which ids begin: of 16 bytes, or of 1 to 32 digits; of None none. Raises InvalidArgument."""
    if isinstance(value, str) and ID_DIGITS.fullmatch(value):
        return value.lower()
    if isinstance(value, str):
        raise InvalidArgument(f"message id {said(value)} is refused: 32 hex digits, or the first of them, are wanted")
    return "" if value is None else id_of(value).hex()


def body_of(value: Any) -> bytes:
    """Of bytes, or of what has them. Raises InvalidArgument."""
    if isinstance(value, Body):
        return bytes(value)
    how = {"str": ", so encode it: body.encode()", "dict": ", so encode it: json.dumps(body).encode()"}
    kind = type(value).__name__
    raise InvalidArgument(f"body is a {kind}: bytes are wanted{how.get(kind, '')}")


@dataclass
class Properties:
    """What a message says of itself, beside its body. Absent is None (or the default), never an empty value.

    Not frozen, and without slots: what is read is put in as a whole (``properties_in``), not field by field.
    ``unknown`` holds what a later version wrote and this one does not know; it is kept as it is.
    """

    queue: str
    correlation_id: bytes | None = None
    reply_queue: str | None = None
    failure_queue: str | None = None
    priority: int = DEFAULT_PRIORITY
    enqueued_at: int = 0
    not_before: int | None = None
    expires_at: int | None = None
    tries: int = 0
    group: str | None = None
    dedup_key: bytes | None = None
    content_type: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    traceparent: str | None = None
    origin: str | None = None
    possible_duplicate: bool = False
    persistent: bool = True
    unknown: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a message was before it was moved, and why it was. Times are int microseconds UTC, 0 if not known."""

    queue: str
    reason: str
    """``tries``: it had all its tries; ``expired``; ``rejected``; ``moved``: somebody has moved it."""
    tries: int = 0
    """Deliveries that had failed there."""
    first_failure: int = 0
    last_failure: int = 0
    detail: str = ""
    """Why the last one failed."""
    expires_at: int | None = None
    message_id: str = ""
    """In hex, where it had another one there."""

    @property
    def text(self) -> str:
        """As it stands in the message's properties."""
        return json.dumps({name: value for name, value in asdict(self).items() if value})


class EnqueueOptions(TypedDict, total=False):
    """What ``enqueue`` takes beside queue and body; each is a property of the message.

    correlation_id: bytes (a str is taken as UTF-8), found again by ``dequeue(correlation_id=...)``.
    priority: 0 to 9, 9 first, where the queue is ordered by priority.
    not_before, expires_at: hidden before the one, never delivered after the other. A datetime with its time zone, a
    timedelta from now on, or int microseconds UTC. delay, ttl: the same from now on, as timedelta or seconds.
    headers: str to str. content_type, traceparent, group, reply_queue, failure_queue: str. dedup_key: bytes.
    persistent: False where it need not outlive the owner of the space: nobody waits for a sync on its account, and the
    next owner removes it.
    message_id: 16 bytes or 32 hex digits, where the caller wants to choose it. origin: for who hands on what was moved.

    A resource manager takes them plain, as ``options_of`` makes them.
    """

    correlation_id: bytes | str | None
    reply_queue: str | None
    failure_queue: str | None
    priority: int
    not_before: datetime | timedelta | int | None
    expires_at: datetime | timedelta | int | None
    delay: timedelta | float | None
    ttl: timedelta | float | None
    group: str | None
    dedup_key: bytes | str | None
    content_type: str | None
    headers: Mapping[str, str] | None
    traceparent: str | None
    origin: str | None
    persistent: bool
    message_id: bytes | str | None


SPANS = (("delay", "not_before"), ("ttl", "expires_at"))
"""Options that say from now on what others say by the calendar."""
_SAID_OTHERWISE = {*chain(*SPANS), "message_id"}
"""Options that a resource manager takes in one form only."""
PLAIN_OPTIONS = tuple(name for name in EnqueueOptions.__annotations__ if name not in dict(SPANS))


def options_of(options: EnqueueOptions, now_us: int) -> EnqueueOptions:
    """The same options plain: times in int microseconds UTC, ids in bytes. Raises InvalidArgument.

    A message that nobody could ever be given is refused.
    """
    plain: dict[str, Any] = dict(options)
    for span, instant in SPANS:
        given = plain.pop(span, None)
        if given is not None:
            if plain.get(instant) is not None:
                raise InvalidArgument(f"{span} and {instant} say the same: give one of them")
            plain[instant] = now_us + span_us(span, given)
        elif plain.get(instant) is not None:
            plain[instant] = instant_us(instant, plain[instant], now_us)
    expires = plain.get("expires_at")
    if expires is not None and expires <= max(now_us, plain.get("not_before") or 0):
        when = "now" if expires <= now_us else "before its not_before"
        raise InvalidArgument(f"the message is refused: it expires {when}, so nobody would ever be given it")
    if plain.get("message_id") is not None:
        plain["message_id"] = id_of(plain["message_id"])
    return cast(EnqueueOptions, plain)


def each_of(
    given: Sequence[Any], options: EnqueueOptions, now_us: int
) -> tuple[list[bytes], list[Any], list[EnqueueOptions]]:
    """Bodies, ids and plain options of messages, some of which are ``(body, options)``: these go over what all have."""
    bodies, ids, own, plain = list[bytes](), list[Any](), list[EnqueueOptions](), options_of(options, now_us)
    for one in given:
        body, more = one if type(one) is tuple and len(one) == 2 else (one, {})
        if not isinstance(more, Mapping):
            raise InvalidArgument(f"options {said(more)} are refused: a body, or (body, {{...}}), is wanted")
        each: Any = {**plain, **more} if _SAID_OTHERWISE.isdisjoint(more) else options_of({**options, **more}, now_us)
        bodies.append(body if type(body) is bytes else body_of(body))
        ids.append(each.pop("message_id", None))
        own.append(each)
    return bodies, ids, own


@dataclass(frozen=True, slots=True)
class Message:
    """A message as it was committed. ``seq`` is its commit sequence number in its queue (Kafka: offset)."""

    message_id: MessageId
    queue: str
    seq: int
    body: bytes
    properties: Properties

    @property
    def correlation_id(self) -> bytes | None:
        return self.properties.correlation_id

    @property
    def headers(self) -> Mapping[str, str]:
        return self.properties.headers

    @property
    def priority(self) -> int:
        return self.properties.priority

    @property
    def tries(self) -> int:
        """How often a delivery of it has failed."""
        return self.properties.tries

    @property
    def possible_duplicate(self) -> bool:
        """It came back by a restore of a snapshot: it may have been delivered, and handled, before."""
        return self.properties.possible_duplicate

    @property
    def persistent(self) -> bool:
        """Not so where it goes when the space has another owner: who enqueued it said so. See also its queue."""
        return self.properties.persistent

    @property
    def origin(self) -> Origin | None:
        """Where it was before it was moved, if it was."""
        if not self.properties.origin:
            return None
        try:
            known = {field.name for field in fields(Origin)}
            known_fields = {name: value for name, value in json.loads(self.properties.origin).items() if name in known}
            return Origin(**{"queue": "", "reason": "", **known_fields})
        except (ValueError, AttributeError):  # another's words
            return Origin("", self.properties.origin)

    @property
    def enqueued_at(self) -> int:
        """When it was enqueued, int microseconds UTC."""
        return self.properties.enqueued_at

    @property
    def content_type(self) -> str | None:
        return self.properties.content_type


class _Made:
    """A message while it is made: to set what is frozen takes four times as long."""

    __slots__ = ("body", "message_id", "properties", "queue", "seq")


def stored_message(message_id: MessageId, queue: str, seq: int, body: bytes, stored: Mapping[str, Any]) -> Message:
    """stored: its properties, as a command block has them, with the queue. They are values once somebody asks."""
    made: Any = _new(_Made)
    made.message_id = message_id
    made.queue = queue
    made.seq = seq
    made.body = body
    made.properties = stored
    made.__class__ = Message
    message: Message = made
    return message


def stored_messages(
    ids: Sequence[MessageId], queue: str, first: int, bodies: Sequence[bytes], stored: Iterable[Mapping[str, Any]]
) -> list[Message]:
    """As many as there are ids, whose numbers follow one another, without a call for each."""
    found: list[Any] = [*map(_new, repeat(_Made, len(ids)))]
    made: Any
    for made, made.message_id, made.seq, made.body, made.properties in zip(
        found, ids, count(first), bodies, stored, strict=False
    ):
        made.queue = queue
        made.__class__ = Message
    return found


def stored_of(message: Message) -> Mapping[str, Any] | None:
    """Its properties as they are stored, as long as nobody has asked for them."""
    found = _read(message)
    return found if type(found) is dict else None


def _properties(message: Message) -> Properties:
    found = _read(message)
    if type(found) is dict:
        found = properties_in(found)
        _write(message, found)
    return cast(Properties, found)


_new = object.__new__
_slot: Any = vars(Message)["properties"]
_read, _write = _slot.__get__, _slot.__set__
Message.properties = property(_properties, _write)  # type: ignore[assignment,misc]


def properties_in(stored: Mapping[str, Any]) -> Properties:
    """The values of a map as a command block has it, which has a queue. Several messages may have the same map."""
    found, headers = Properties.__new__(Properties), stored.get("headers", {})
    found.__dict__ = {"unknown": {}, **stored, "headers": {**headers} if type(headers) is dict else headers}
    if not stored.keys() <= _KNOWN:
        unknown = {name: found.__dict__.pop(name) for name in stored if name not in _KNOWN}
        found.__dict__["unknown"] = deepcopy(unknown)
    return found


_KNOWN = frozenset(each.name for each in fields(Properties) if each.name != "unknown")
_TEXT = ("group", "content_type", "traceparent", "origin")
_QUEUES = ("reply_queue", "failure_queue")
_TIMES = ("not_before", "expires_at")
_BYTES = ("correlation_id", "dedup_key")


def properties_of(queue: str, enqueued_at: int, options: Mapping[str, Any]) -> Properties:
    """The properties of a new message; InvalidArgument names the option that is wrong and what it takes."""
    if not options:
        return Properties(queue, enqueued_at=enqueued_at)
    return Properties(queue, enqueued_at=enqueued_at, **_given(options))


def stored_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """What the map of a command block says of these options: no default. Raises as ``properties_of``."""
    given = _given(options)
    if "priority" in given and given["priority"] == DEFAULT_PRIORITY:
        del given["priority"]
    if given.get("persistent"):
        del given["persistent"]
    if "headers" in given:
        given["headers"] = dict(given["headers"])
        if not given["headers"]:
            del given["headers"]
    return given


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    given = {name: value for name, value in options.items() if value is not None and name != "message_id"}
    for name, value in given.items():
        given[name] = _checked(name, value)
    return given


def restored(queue: str, stored: Mapping[str, Any]) -> Properties:
    """The properties of a message that comes back, of a map as a command block has it, for this queue.

    Raises InvalidArgument, which names the property that is wrong and what it takes.
    """
    left = {name: value for name, value in stored.items() if name != "queue"}
    tries, origin = left.pop("tries", 0), left.pop("origin", None)
    enqueued_at = left.pop("enqueued_at", 0)
    if enqueued_at != 0:  # which is not known
        check_instant("enqueued_at", enqueued_at)
    found = properties_of(queue, enqueued_at, {name: left.pop(name) for name in PLAIN_OPTIONS if name in left})
    if type(tries) is not int or not 0 <= tries <= MOST_TRIES:
        raise InvalidArgument(f"tries {said(tries)} is refused: a number from 0 to {MOST_TRIES:,} is wanted")
    if origin is not None and not is_text(origin):
        raise InvalidArgument(f"origin {said(origin)} is refused: str is wanted")
    found.possible_duplicate = left.pop("possible_duplicate", False) is True
    found.tries, found.origin, found.unknown = tries, origin, left
    return found


def _checked(name: str, value: Any) -> Any:
    if name in _BYTES:
        value = value.encode() if is_text(value) else value
        wanted, right = "bytes or str", isinstance(value, bytes)
    elif name in _QUEUES:
        return check_queue_name(value)
    elif name in _TEXT:
        wanted, right = "str", is_text(value)
    elif name in _TIMES:
        return check_instant(name, value)
    elif name == "priority":
        is_int = isinstance(value, int) and not isinstance(value, bool)
        wanted, right = f"int 0 to {HIGHEST_PRIORITY}", is_int and 0 <= value <= HIGHEST_PRIORITY
    elif name == "persistent":
        wanted, right = "True or False", isinstance(value, bool)
    elif name == "headers":
        wanted = "a mapping of str to str"
        right = isinstance(value, Mapping) and all(map(is_text, chain.from_iterable(value.items())))
    else:
        raise InvalidArgument(f"{said(name)} is not an option of enqueue: {', '.join(EnqueueOptions.__annotations__)}")
    if not right:
        raise InvalidArgument(f"{name} {said(value)} is refused: {wanted} is wanted")
    return value


def is_text(value: Any) -> bool:
    """Whether it is a str that has UTF-8: half a pair of surrogates has none, as which a shell's odd bytes come."""
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:
        return False


def reason_of(error: str | BaseException) -> str:
    """Why something failed, as it is recorded: the type and the text of an exception, in one line, and no more of it
    than a record has room for. What is no printable character is a blank."""
    text = error
    if isinstance(error, BaseException):
        kind = type(error)
        is_plain = kind.__module__ in ("builtins", "__main__")
        name = kind.__qualname__ if is_plain else f"{kind.__module__}.{kind.__qualname__}"
        try:
            said = str(error)
        except Exception as unsayable:
            said = f"(its text raises {type(unsayable).__name__})"
        text = f"{name}: {said}" if said.strip() else name
    line = " ".join("".join(one if one.isprintable() else " " for one in str(text)[: 4 * REASON_LIMIT]).split())
    return line if len(line) <= REASON_LIMIT else line[: REASON_LIMIT - 3] + "..."


def checked_reason(reason: Any) -> str:
    """As it is recorded. Raises InvalidArgument."""
    if isinstance(reason, BaseException):
        return reason_of(reason)
    if not isinstance(reason, str) or not 0 < len(reason) <= REASON_LIMIT:
        raise InvalidArgument(f"reason {str(reason)[:60]!r} is refused: 1 to {REASON_LIMIT} characters are wanted")
    return reason_of(reason) or "-"
