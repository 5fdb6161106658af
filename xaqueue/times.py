"""Points in time and spans as callers give them, made into int microseconds since 1970, UTC, or seconds. No clock here.

An integer says nothing of its unit, so one that is no likely point in time is refused with what it looks like.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from xaqueue.errors import InvalidArgument

EARLIEST_US = 946_684_800_000_000
"""The year 2000."""
LATEST_US = 253_402_300_799_999_999
"""The end of the year 9999, which is the last that a datetime knows."""
FOREVER_S = 1e9
"""Who waits for thirty years waits for ever."""
MOST_SAID = 160
"""Characters."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_SPANS = {"not_before": "delay", "expires_at": "ttl"}


def said(value: object) -> str:
    """A value that is refused, as the error repeats it: whoever sent it may have made it as long as he likes."""
    text = repr(value)
    return text if len(text) <= MOST_SAID else f"{text[:MOST_SAID]}..."


def check_instant(name: str, value: Any) -> int:
    """The value itself: int microseconds UTC. Raises InvalidArgument."""
    if isinstance(value, int) and not isinstance(value, bool):
        if EARLIEST_US <= value <= LATEST_US:
            return value
        raise InvalidArgument(f"{name} {said(value)} is refused: {_likely(name, value)}")
    raise InvalidArgument(
        f"{name} {said(value)} is refused: a datetime with its time zone, or int microseconds UTC, is wanted"
    )


def instant_us(name: str, value: Any, now_us: int) -> int:
    """Of an aware datetime, of a timedelta from now on, or of int microseconds UTC. Raises InvalidArgument."""
    if isinstance(value, datetime):
        if value.utcoffset() is None:
            raise InvalidArgument(
                f"{name} {value!r} has no time zone: give it one, as datetime.now(UTC) or value.astimezone() do"
            )
        return check_instant(name, (value - EPOCH) // _MICROSECOND)
    if isinstance(value, timedelta):
        return check_instant(name, now_us + span_us(name, value))
    return check_instant(name, value)


def span_us(name: str, value: Any) -> int:
    """Of a timedelta, or of seconds. Raises InvalidArgument."""
    if not isinstance(value, timedelta):
        seconds = check_seconds(name, value)
        if value is None or seconds >= FOREVER_S:
            raise InvalidArgument(f"{name} {said(value)} is refused: a timedelta, or seconds, is wanted")
        value = timedelta(seconds=seconds)
    if value < timedelta(0):
        raise InvalidArgument(f"{name} {value!r} is refused: it is negative")
    return int(value // _MICROSECOND)


def check_seconds(name: str, value: Any) -> float:
    """Seconds from 0; for ever, which is infinite, where it is None. Raises InvalidArgument."""
    if value is None:
        return float("inf")
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise InvalidArgument(f"{name} {value!r} is refused: seconds from 0 are wanted, or None for ever")
    return float(value) if value < FOREVER_S else float("inf")


def _likely(name: str, value: int) -> str:
    """What was meant by an integer that is no point in time."""
    if value > LATEST_US:
        return "int microseconds up to the year 9999 are wanted; these look like nanoseconds, so divide by 1,000"
    for unit, factor in (("seconds", 1_000_000), ("milliseconds", 1_000)):
        if EARLIEST_US <= value * factor < 10 * EARLIEST_US:
            return f"int microseconds are wanted; these look like {unit}: give a datetime, or multiply by {factor:,}"
    return f"that is before the year 2000 in microseconds; for a time from now on give {_SPANS.get(name, 'delay')}="
