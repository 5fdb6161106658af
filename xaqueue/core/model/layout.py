"""Every name in a space's directory is made and read here, and nowhere else; ``message_name`` has those of messages.

A name that does not parse is None: the caller decides whether that is a foreign file or nothing of interest. Paths
are relative to the space's directory, with ``/`` between parts.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, NamedTuple
from zlib import crc32

from xaqueue.core.model import message_name, options
from xaqueue.core.model.message_name import Named
from xaqueue.core.storage import owner_file
from xaqueue.errors import InvalidArgument
from xaqueue.message import QUEUE_NAME, MessageId
from xaqueue.xid import Xid

FORMAT = "FORMAT"
LOCK = owner_file.LOCK
OWNER = owner_file.OWNER
QUEUES = "queues.toml"
GOOD_QUEUES = "queues.toml.good"
"""The last queues.toml that an owner took, for an open that finds it gone or damaged."""
ACTIVE = "active"
PREPARED = "prepared"
COMMITTED = "committed"
HEURISTIC = "heuristic"
QUARANTINE = "quarantine"
ARCHIVE = "archive"
"""What streams have consumed and were to keep; made when there is something."""
JOURNAL = "journal"
RESERVE = "reserve"
OPERATORS = "operators.log"
"""What became of decisions by hand; see ``xaqueue.core.engine.heuristics``."""
HEARTBEAT = owner_file.HEARTBEAT
"""Of an owner that a standby may take over from."""
STAGED = ".put."
"""In active/, where a name that starts with a dot is no block."""
SOCKET = "socket"
"""A server's, where it was told of no other place."""
_DIRECTORIES = (ACTIVE, PREPARED, COMMITTED, HEURISTIC, QUARANTINE)
_OWN_NAMES = frozenset(
    {FORMAT, LOCK, OWNER, QUEUES, JOURNAL, RESERVE, OPERATORS, SOCKET, ARCHIVE, *_DIRECTORIES}
    | {GOOD_QUEUES, f".{GOOD_QUEUES}.new", HEARTBEAT, owner_file.NEW_LOCK, owner_file.NEW_OWNER}
    | {f".{FORMAT}.new", f".{QUEUES}.new"}
)

GONE = ".gone"
"""In the directory of a queue: what is gone of its blocks of messages."""

RANGE_BITS = message_name.RANGE_BITS
RANGE_SIZE = 1 << RANGE_BITS
"""Sequence numbers a range directory covers."""
LAST_SEQ = 2**63 - 1

FIRST = "000"
"""Suffix of the block that makes a branch prepared: its only block, or its branch block."""
COMMIT = "commit"
"""Suffix of the branch block once its branch is committed."""

_MESSAGES_PATH = re.compile(rf"{COMMITTED}/queue=([^/]+)/range=[0-9a-f]{{13}}/([^/]+)")
_RANGE = re.compile(r"range=([0-9a-f]{13})")
_BLOCK = re.compile(r"(.+)\.([0-9]{3,}|commit)")
_TAGS = r"(?:\.[a-z][0-9a-z]+)*"
_NAMES = rf"[0-9a-f]{{3}}(?:\.[0-9a-f]{{32}}{_TAGS}|\+[0-9a-f]{{3}}\.[0-9a-f]{{32}})"
_RANGES = rf"queue={QUEUE_NAME.pattern}/range=([0-9a-f]{{13}})/(?=[0-7])\1{_NAMES}"
_XID = r"[0-9]{1,10}\.[0-9A-Za-z_-]{0,86}\.[0-9A-Za-z_-]{0,86}"
_RECORDED = re.compile(
    rf"(?:{COMMITTED}|{ARCHIVE})/{_RANGES}"
    rf"|{COMMITTED}/queue={QUEUE_NAME.pattern}/\{GONE}/[0-7][0-9a-f]{{15}}\.[0-9a-f]{{32}}"
    rf"|(?:{ACTIVE}|{PREPARED})/{_XID}\.(?:[0-9]{{3,}}|{COMMIT})|{HEURISTIC}/{_XID}"
)
_IN_QUEUE = re.compile(rf"(?:{COMMITTED}|{ARCHIVE})/queue={QUEUE_NAME.pattern}/(\.[a-z]+)")
NAME_BYTES = 255
WATERMARK_BYTES = 4096
"""More than the file of a watermark ever has."""
_WATERMARK = re.compile(rb"([0-9a-f]{16}) ([0-9a-f]{16}) ([0-9a-f]{8})\n")


class Watermark(NamedTuple):
    """Two sequence numbers: ``published``, to which every message is in its directory or consumed, and ``reserved``,
    above which none was ever used.
    """

    published: int
    reserved: int


def queue_path(queue: str) -> str:
    return f"{COMMITTED}/queue={queue}"


@lru_cache(maxsize=1024)
def watermark_path(queue: str) -> str:
    return f"{COMMITTED}/queue={queue}/.watermark"


def range_path(queue: str, seq: int) -> str:
    return f"{COMMITTED}/queue={queue}/range={seq >> RANGE_BITS:013x}"


def message_path(queue: str, seq: int, message_id: bytes, tags: str = "") -> str:
    """``tags``: as they end its name; see ``message_name``."""
    return f"{COMMITTED}/queue={queue}/range={seq >> RANGE_BITS:013x}/{seq:016x}.{message_id.hex()}{tags}"


def messages_path(queue: str, named: Named) -> str:
    """Of a file of messages in ``committed/``, by what its name says."""
    if not named.is_block:
        return message_path(queue, named.first, named.message_id, named.tags)
    name = f"{named.first:016x}+{named.count:03x}.{named.message_id.hex()}"
    return f"{COMMITTED}/queue={queue}/range={named.first >> RANGE_BITS:013x}/{name}"


def gone_path(queue: str, named: Named) -> str:
    """Of the bitmap of a block of messages."""
    return f"{COMMITTED}/queue={queue}/{GONE}/{named.first:016x}.{named.message_id.hex()}"


def retries_path(queue: str) -> str:
    """Of the directory of what changes of a queue's messages."""
    return f"{COMMITTED}/queue={queue}/.retries"


def retry_path(queue: str, seq: int, message_id: bytes) -> str:
    return f"{COMMITTED}/queue={queue}/.retries/{seq:016x}.{message_id.hex()}"


def block_path(directory: str, xid_text: str, suffix: str) -> str:
    return f"{directory}/{xid_text}.{suffix}"


def numbered(number: int) -> str:
    """The suffix of the block with this number, from 1."""
    return f"{number:03d}"


def staged_path(path: str) -> str:
    """Where the content of a record is written before it takes its name; recovery removes what stands there."""
    return f"{ACTIVE}/{STAGED}{path.replace('/', '~')}"


def parse_queue_directory(name: str) -> str | None:
    queue = name.removeprefix("queue=")
    return queue if queue != name and QUEUE_NAME.fullmatch(queue) else None


def parse_range(name: str) -> int | None:
    """The number of the range directory; its messages have ``seq >> RANGE_BITS`` equal to it."""
    match = _RANGE.fullmatch(name)
    return int(match[1], 16) if match else None


def parse_message(name: str) -> tuple[int, MessageId] | None:
    parsed = message_name.parse(name)
    return parsed[:2] if parsed else None


def is_consumed(name: str, consumed: int) -> bool:
    """Whether this is the name of a file of messages, all of whose numbers are at or below this one."""
    if name > f"{consumed:016x}.~":
        return False
    named = message_name.parse_any(name)
    return named is not None and named.last <= consumed


def parse_message_path(path: str) -> tuple[str, int] | None:
    """Queue and highest number of the path of a file of messages, one or many; None for any other path."""
    found = parse_path(path)
    return (found[0], found[1].last) if found is not None else None


def parse_path(path: str) -> tuple[str, Named] | None:
    """Queue, and what its name says, of the path of a file of messages in ``committed/``; None for any other."""
    match = _MESSAGES_PATH.fullmatch(path)
    named = message_name.parse_any(match[2]) if match else None
    return (match[1], named) if match and named is not None else None


@lru_cache(maxsize=4)
def _kept(kinds: tuple[Any, ...]) -> dict[str, re.Pattern[str]]:
    """By directory the names of the files that steps put there for features. One that starts with a dot is in the
    directories of queues."""
    return {kind.directory: kind.names for kind in kinds if kind.names is not None}


def directories() -> tuple[str, ...]:
    """That every space has at its top."""
    return (*_DIRECTORIES, *(name for name in _kept(options.everything().kinds()) if not name.startswith(".")))


def own_names() -> frozenset[str]:
    """What a space's directory may hold at its top."""
    return _OWN_NAMES.union(directories(), *(kind.others for kind in options.everything().kinds()))


def is_recorded(path: str) -> bool:
    """Whether a record may name it: a file of the space that steps make, move and remove. What came from elsewhere is
    believed in no other: none of these leads out of the space, or to what says who has it."""
    found = _RECORDED.fullmatch(path)
    directory, _, name = path.rpartition("/")
    if found is None:
        in_queue = _IN_QUEUE.fullmatch(directory)
        names = _kept(options.everything().kinds()).get(in_queue[1] if in_queue else directory)
        found = names.fullmatch(name) if names is not None else None
    return found is not None and len(name) <= NAME_BYTES


def parse_block(name: str) -> tuple[Xid, str] | None:
    """Xid and suffix of a file in ``active/`` or ``prepared/``."""
    match = _BLOCK.fullmatch(name)
    if not match:
        return None
    xid = parse_xid(match[1])
    return (xid, match[2]) if xid else None


def parse_xid(name: str) -> Xid | None:
    try:
        return Xid.parse(name)
    except InvalidArgument:
        return None


def format_watermark(watermark: Watermark) -> bytes:
    """One line of 43 bytes with its own checksum, written in place: a reader that sees half of it reads again."""
    numbers = b"%016x %016x" % watermark
    return b"%s %08x\n" % (numbers, crc32(numbers))


def parse_watermark(data: bytes) -> Watermark | None:
    """None for bytes that are no watermark, or only half of one."""
    match = _WATERMARK.fullmatch(data)
    if not match or crc32(data[:33]) != int(match[3], 16):
        return None
    return Watermark(int(match[1], 16), int(match[2], 16))
