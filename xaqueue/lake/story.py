"""What became of one message: when it came, what failed, where it was moved, who took it; from all queues of a space.

It is told by the message itself, wherever it is, and by the archives of queues that have one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from typing import Any, NamedTuple

from xaqueue.endpoint import is_url
from xaqueue.errors import InvalidArgument
from xaqueue.lake.place import place_at
from xaqueue.lake.scan import scan

_COLUMNS = ["seq", "message_id", "queue", "enqueued_at", "committed_at", "tries", "origin", "taken_at", "taken_by"]


class Event(NamedTuple):
    at: int
    """Microseconds UTC."""
    what: str
    queue: str
    seq: int
    """0 where that is not known."""
    told: str
    """By whom, or why."""


def story(space: str, digits: str) -> list[Event]:
    """Of the message whose id begins so, or did before it was moved; nothing where no queue knows of it. Raises
    InvalidArgument where there are several."""
    with closing(place_at(space, space if is_url(space) else "")) as place:
        names = sorted(place.known().names)
    found, ids = set[Event](), set[str]()
    for queue in names:
        for row, origin in _rows(space, queue, digits):
            ids.add(origin.get("message_id") or row["message_id"].hex())
            found.update(_events(space, row, origin))
    if len(ids) > 1:
        raise InvalidArgument(f"several messages begin with {digits}: give more digits")
    return sorted(found)


def _rows(space: str, queue: str, digits: str) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Each with where it was before."""
    for batch in scan(space, queue, _COLUMNS, archived=True):
        for at, one in enumerate(batch["message_id"].to_pylist()):
            text = batch["origin"][at].as_py()
            origin = json.loads(text) if text else {}
            if one.hex().startswith(digits) or origin.get("message_id", "").startswith(digits):
                yield batch.slice(at, 1).to_pylist()[0], origin


def _events(space: str, row: dict[str, Any], origin: dict[str, Any]) -> Iterator[Event]:
    queue, seq, came = row["queue"], row["seq"], _us(row["committed_at"])
    former = origin.get("queue", "")
    yield Event(_us(row["enqueued_at"]), "added", former or queue, 0, "")
    if tries := origin.get("tries", 0):
        why = origin.get("detail", "")
        yield Event(origin.get("last_failure", 0), "failed", former, 0, f"{_times(tries)}{why and f': {why}'}")
    reason = f"{origin.get('reason', '')}, from {former}" if former else ""
    yield Event(came, "moved" if former else "committed", queue, seq, reason)
    if row["tries"]:
        yield Event(came, "failed", queue, seq, f"{_times(row['tries'])} since")
    if row["taken_at"] is not None:
        by = row["taken_by"] or ""
        yield Event(_us(row["taken_at"]), "taken" if by else "expired", queue, seq, by)
    elif next((batch["seq"][0].as_py() for batch in scan(space, queue, ["seq"], after=seq - 1)), 0) == seq:
        yield Event(time.time_ns() // 1000, "is there", queue, seq, "")


def _times(tries: int) -> str:
    return "once" if tries == 1 else f"{tries} times"


def _us(when: datetime) -> int:
    return round(when.timestamp() * 1e6)
