"""What people type for a time, a header or an id, made into what the engine takes."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from datetime import datetime

from xaqueue.errors import InvalidArgument
from xaqueue.message import MESSAGE_ID_BYTES
from xaqueue.xid import Xid

TIME_HELP = "ISO 8601, local where it has no offset, or from now on: +90s, +5m, +2h, +1d"
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_FROM_NOW = re.compile(r"\+(\d+(?:\.\d+)?)([smhd])")


def time_us(text: str | None) -> int | None:
    """Int microseconds UTC. Raises InvalidArgument."""
    if text is None:
        return None
    ahead = _FROM_NOW.fullmatch(text.strip())
    if ahead:
        return time.time_ns() // 1000 + int(float(ahead[1]) * _UNITS[ahead[2]] * 1_000_000)
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1_000_000)
    except (ValueError, OverflowError):
        raise InvalidArgument(f"time {text!r} is refused: {TIME_HELP}") from None


def headers(given: Sequence[str] | None) -> dict[str, str] | None:
    """The headers of ``key=value`` words. Raises InvalidArgument."""
    if not given:
        return None
    found = {}
    for word in given:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise InvalidArgument(f"header {word!r} is refused: key=value is wanted")
        found[key] = value
    return found


def message_id(text: str | None) -> bytes | None:
    """The bytes of an id in hex. Raises InvalidArgument."""
    if text is None:
        return None
    try:
        value = bytes.fromhex(text)
    except ValueError:
        value = b""
    if len(value) != MESSAGE_ID_BYTES:
        raise InvalidArgument(f"message id {text!r} is refused: {2 * MESSAGE_ID_BYTES} hex digits are wanted")
    return value


def xid(text: str) -> Xid:
    """The xid as ``indoubt list`` shows it. Raises InvalidArgument."""
    return Xid.parse(text)
