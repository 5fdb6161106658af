"""What each queue has had and lost since its space was made. A message that came has left once, by one way, or is here:

    enqueued = messages + dequeued + expired + dead_lettered + rejected + moved

but for what a crash took of the counting, and what damage took into quarantine, which is counted nowhere.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from operator import attrgetter
from typing import Any, TypeVar
from zlib import crc32

COUNTERS = "counters"
"""The file of the space that has them."""

T = TypeVar("T")


@dataclass(slots=True)
class Counters:
    """Of one queue."""

    enqueued: int = 0
    """Messages that came, by whatever way."""
    dequeued: int = 0
    """Consumed, by a commit or a stream, or removed by an operator."""
    redelivered: int = 0
    """Deliveries of a message of which one had failed before."""
    expired: int = 0
    dead_lettered: int = 0
    """Left for a failure queue: they had all their tries."""
    rejected: int = 0
    """Left for one because a consumer rejected them."""
    moved: int = 0
    """Left for another queue because somebody wanted it."""

    def copy(self) -> Counters:
        return Counters(*_values(self))

    @property
    def balance(self) -> int:
        """Messages that came and have not left, by the counting."""
        return self.enqueued - self.dequeued - self.expired - self.dead_lettered - self.rejected - self.moved


_values = attrgetter(*Counters.__slots__)


@dataclass(frozen=True, slots=True)
class Counting:
    """Since when a space counts, and what a crash may have taken of that. Times are int microseconds UTC."""

    since: int
    as_of: int
    """When it was written; of an owner that was asked, now."""
    epoch: int
    """Of the owner that has counted."""
    closed: bool = False
    """That one has done nothing since."""
    crashes: int = 0
    """Owners that ended without a word, as far as this was written."""
    lost_after: int = 0
    """Since then the last of them may have done more than is counted."""
    found_at: int = 0
    """When the next one found that."""
    hits: int = 0
    """Reads that this owner has answered from memory, where it has a journal."""
    misses: int = 0
    messages: dict[str, int] = field(default_factory=dict)
    """Of each queue that had some when the space was closed; empty before."""


def encode(counting: Counting, queues: dict[str, Counters]) -> bytes:
    """One line: a checksum, and the JSON that it is of."""
    said = {**asdict(counting), "queues": {name: asdict(counters) for name, counters in queues.items()}}
    text = json.dumps(said).encode() + b"\n"
    return b"%08x %s" % (crc32(text), text)


def decode(data: bytes) -> tuple[Counting, dict[str, Counters]] | None:
    """None for what is no such line. What a later version adds is passed over."""
    checksum, _, text = data.partition(b" ")
    try:
        if int(checksum, 16) != crc32(text):
            return None
        said = json.loads(text)
        return _of(Counting, said), {name: _of(Counters, counts) for name, counts in said["queues"].items()}
    except (ValueError, TypeError, LookupError, AttributeError):
        return None


def _of(kind: type[T], said: dict[str, Any]) -> T:
    return kind(**{name: said[name] for name in kind.__dataclass_fields__ if name in said})  # type: ignore[attr-defined]
