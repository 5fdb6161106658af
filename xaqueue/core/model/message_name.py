"""The name of a message's file says all that decides its turn and never changes, so that an open reads no message.

    <seq>.<message id>[.<tag>...]        16 and 32 hex digits; a tag is a letter and a value

    c  hash of the correlation id: the first 16 hex digits of its SHA-256
    e  when it expires, n  when it is first due: microseconds since 1970, in hex without leading zeros
    g  hash of the group, likewise
    p  priority, one digit, where it is not the default
    t  tries that it had before it came here, in hex likewise, where it had any
    v  0 where it need not outlive the owner of the space

A plain message has no tag. There is one canonical form: lower case, tags in the order of their letters, each at most
once, and none that says the default; anything else is a foreign file. A letter that is not known here is a later
version's. Whatever must be understood comes with a higher number in ``FORMAT``; so such a message is delivered as its
other tags say, and keeps its whole name as long as it stands there. No I/O here; ``man/xaqueue.5`` has the table.

    <first seq>+<count>.<message id of the first>        a block of many messages; the count in 3 hex digits

Their numbers follow one another, and are all of one range.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from operator import attrgetter
from struct import unpack
from typing import Any, NamedTuple

from xaqueue.errors import DamagedBlock
from xaqueue.message import DEFAULT_PRIORITY, HIGHEST_PRIORITY, MOST_TRIES, MessageId, Properties

PLAIN_NAME = 49
"""Characters in the name of a plain message's file; of every other one this is the part that comes first."""
ID_DIGITS = slice(17, PLAIN_NAME)
BLOCK_ID_DIGITS = slice(21, 53)
PATTERN = r"([0-9a-f]{16})\.([0-9a-f]{32})((?:\.[a-z][0-9a-z]+)*)"
_NAME = re.compile(PATTERN)
_BLOCK_NAME = re.compile(r"([0-9a-f]{16})\+([0-9a-f]{3})\.([0-9a-f]{32})")
RANGE_BITS = 12
"""Numbers that are equal above these bits are of one range."""
_LAST_US = 2**63 - 1


def correlation_hash(correlation_id: bytes) -> str:
    return sha256(correlation_id).hexdigest()[:16]


def hash_of(text: str) -> str:
    return correlation_hash(text.encode("utf-8", "surrogatepass"))


def _checked(value: int, highest: int) -> int:
    if not 0 <= value <= highest:
        raise ValueError(f"{value} is not between 0 and {highest}")
    return value


def _time(value: int) -> str:
    return f"{_checked(value, _LAST_US):x}"


class Tag(NamedTuple):
    """How a property of a message stands in its name."""

    name: str
    """Of the property."""
    default: object
    """Which no tag says."""
    form: re.Pattern[str]
    text: Callable[[Any], str]


_HASH = re.compile(r"[0-9a-f]{16}")
_TIME = re.compile(r"(?:0|[1-9a-f][0-9a-f]{0,14}|[1-7][0-9a-f]{15})")
TAGS = {
    "c": Tag("correlation_id", None, _HASH, correlation_hash),
    "e": Tag("expires_at", None, _TIME, _time),
    "g": Tag("group", None, _HASH, hash_of),
    "n": Tag("not_before", None, _TIME, _time),
    "p": Tag(
        *("priority", DEFAULT_PRIORITY, re.compile(f"(?!{DEFAULT_PRIORITY})[0-{HIGHEST_PRIORITY}]")),
        lambda value: f"{_checked(value, HIGHEST_PRIORITY):d}",
    ),
    "t": Tag("tries", 0, re.compile(r"[1-9a-f][0-9a-f]{0,6}"), lambda value: f"{_checked(value, MOST_TRIES):x}"),
    "v": Tag("persistent", True, re.compile("0"), lambda value: f"{_checked(value, 0):d}"),
}
"""By letter, in the order in which they stand."""
VOLATILE = ".v0"
"""Stands among the tags of a message that is not persistent, and at the end of no other value."""
_values = attrgetter(*(tag.name for tag in TAGS.values()))
_DEFAULTS = tuple(tag.default for tag in TAGS.values())
_TEXTS = tuple(tag.text for tag in TAGS.values())
_TAGGED = {tag.name: (letter, tag.text) for letter, tag in TAGS.items()}


@dataclass(frozen=True, slots=True)
class Named:
    """What the name of a file of messages says: of one message, or of a block of many."""

    first: int
    last: int
    """Of one message the same number; a block has two or more."""
    message_id: MessageId
    """Of the first."""
    tags: str = ""
    """Of the one."""

    @property
    def count(self) -> int:
        return self.last - self.first + 1

    @property
    def is_block(self) -> bool:
        return self.last > self.first


class Tags(NamedTuple):
    """What tags say."""

    correlation: str | None = None
    """``correlation_hash`` of its correlation id."""
    expires_at: int | None = None
    not_before: int | None = None
    priority: int = DEFAULT_PRIORITY
    tries: int = 0
    """Before it came here."""


def tags_of(properties: Properties) -> str:
    """The tags of a message with these properties, as they end its name. DamagedBlock for what no message has."""
    values = _values(properties)
    if values == _DEFAULTS:
        return ""
    tags = ""
    try:
        for letter, default, text, value in zip(TAGS, _DEFAULTS, _TEXTS, values, strict=True):
            if value != default:
                tags += f".{letter}{text(value)}"
    except (AttributeError, TypeError, ValueError) as error:
        raise DamagedBlock(f"a property is not what it can be: {error}") from None
    return tags


def tags_in(stored: Mapping[str, Any]) -> str:
    """``tags_of`` a message with these, which were checked and are no defaults."""
    if _TAGGED.keys().isdisjoint(stored):
        return ""
    found = [(_TAGGED[name], value) for name, value in stored.items() if name in _TAGGED]
    return "".join(sorted([f".{letter}{text(value)}" for (letter, text), value in found]))


def read_tags(tags: str) -> Tags:
    """What these say, which are those of a name that ``parse`` has accepted."""
    said = {tag[0]: tag[1:] for tag in tags.split(".") if tag}
    expires_at, not_before = said.get("e"), said.get("n")
    return Tags(
        said.get("c"),
        int(expires_at, 16) if expires_at is not None else None,
        int(not_before, 16) if not_before is not None else None,
        int(said.get("p", DEFAULT_PRIORITY)),
        int(said.get("t", "0"), 16),
    )


def parse(name: str) -> tuple[int, MessageId, str] | None:
    """Number, id and tags of a message by the name of its file; None for any other name."""
    match = _NAME.fullmatch(name)
    if not match or (match[3] and not _is_canonical(match[3])):
        return None
    return int(match[1], 16), MessageId(bytes.fromhex(match[2])), match[3]


def parse_seq(name: str) -> int | None:
    """The number alone: ``parse`` for those who look at very many."""
    match = _NAME.fullmatch(name)
    return int(match[1], 16) if match and (not match[3] or _is_canonical(match[3])) else None


def parse_any(name: str) -> Named | None:
    """Of a message or of a block of many; None for any other name."""
    match = _BLOCK_NAME.fullmatch(name)
    if match is None:
        found = parse(name)
        return Named(found[0], found[0], found[1], found[2]) if found is not None else None
    first, count = int(match[1], 16), int(match[2], 16)
    last = first + count - 1
    if count < 2 or first >> RANGE_BITS != last >> RANGE_BITS:
        return None
    return Named(first, last, MessageId(bytes.fromhex(match[3])))


def parse_plain(names: Sequence[str]) -> tuple[Sequence[int], Sequence[MessageId]] | None:
    """Numbers and ids of many names, one or more, in their order; None unless they are all of plain messages."""
    if set(map(len, names)) != {PLAIN_NAME}:
        return None
    text = "".join(names)
    digits = text.replace(".", "")
    try:
        data = bytes.fromhex(digits)
    except ValueError:
        return None
    if text[16::PLAIN_NAME] != "." * len(names) or data.hex() != digits:
        return None
    rows = unpack(">" + "Q16s" * len(names), data)
    return rows[::2], rows[1::2]


def _is_canonical(tags: str) -> bool:
    listed = tags[1:].split(".")
    letters = [tag[0] for tag in listed]
    if letters != sorted(set(letters)):
        return False
    return all(tag[0] not in TAGS or TAGS[tag[0]].form.fullmatch(tag, 1) for tag in listed)
