"""A message's columns, in the house's names: each is built by itself, and only where it is asked for.

Properties are not even unpacked where no column needs them, and a column of a property that no message has costs
nothing. Ids and bodies of a block of many messages are columns as they lie there.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import repeat
from typing import Any

import pyarrow as pa

from xaqueue.errors import DamagedBlock
from xaqueue.message import DEFAULT_PRIORITY


@dataclass
class Rows:
    """What was read of one queue, in its order. Properties stay empty where no column needs them."""

    queue: str
    space: str = ""
    number: int = 0
    """Which of the stream's spaces it is: Kafka's partition."""
    tries: Mapping[int, int] = field(default_factory=dict)
    """By number, of those that had any: it stands beside the messages."""
    taken: Mapping[int, tuple[int, str | None]] = field(default_factory=dict)
    """By number, when in microseconds and by whom."""
    seqs: array[int] = field(default_factory=partial(array, "q"))
    ids: list[bytes] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    """Of messages that have files of their own."""
    together: list[tuple[int, Mapping[str, pa.Array]]] = field(default_factory=list)
    """Ids and bodies of those that lie in a block together, and behind how many of the others."""
    stored: list[Mapping[str, Any]] = field(default_factory=list)
    """Properties, what is absent or default left out."""
    times_ns: list[int] = field(default_factory=list)
    several: list[tuple[int, int]] = field(default_factory=list)
    """Which of these are of more than one message, and of how many."""

    @property
    def size(self) -> int:
        return len(self.seqs)

    def joined(self, name: str, kind: pa.DataType) -> pa.Array:
        """The ids, or the bodies, of all."""
        values, parts, at = getattr(self, name), [], 0
        for before, arrays in self.together:
            if before > at:
                parts.append(pa.array(values[at:before], kind))
                at = before
            parts.append(arrays[name])
        if len(values) > at or not parts:
            parts.append(pa.array(values[at:], kind))
        return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)

    def spread(self, values: Sequence[Any], kind: pa.DataType) -> pa.Array:
        """For each message that of these which is its."""
        found = pa.array(values, kind)
        return found.take(self._places) if self.several else found

    @cached_property
    def _places(self) -> pa.Array:
        places, at = array("i"), 0
        for place, count in self.several:
            places.extend(range(at, place))
            places.extend(repeat(place, count))
            at = place + 1
        places.extend(range(at, len(self.times_ns)))
        return of_buffers(pa.int32(), len(places), places)

    @cached_property
    def held(self) -> frozenset[str]:
        """The properties that any of them has, looked at once, when all are there: a column of none costs nothing."""
        return frozenset().union(*self.stored)


def of_buffers(kind: pa.DataType, count: int, *buffers: Any) -> pa.Array:
    """So many values, of which none is null, as they lie in these bytes."""
    return pa.Array.from_buffers(kind, count, [None, *map(pa.py_buffer, buffers)])


Builder = Callable[[Rows, pa.DataType], pa.Array]


@dataclass(frozen=True, slots=True)
class Column:
    """Its type, where it comes from, and whether properties are unpacked for it."""

    kind: pa.DataType
    build: Builder
    nullable: bool = True
    is_stored: bool = False


def numbers(rows: Rows, kind: pa.DataType) -> pa.Array:
    return of_buffers(kind, rows.size, rows.seqs)


def joined(name: str) -> Builder:
    return lambda rows, kind: rows.joined(name, kind)


def same(name: str) -> Builder:
    return lambda rows, kind: pa.repeat(pa.scalar(getattr(rows, name), kind), rows.size)


def stored_column(name: str, kind: pa.DataType, default: Any = None) -> Column:
    def build(rows: Rows, arrow: pa.DataType) -> pa.Array:
        if name not in rows.held:
            return pa.repeat(pa.scalar(default, arrow), rows.size)
        return rows.spread([stored.get(name, default) for stored in rows.stored], arrow)

    return Column(kind, build, nullable=default is None, is_stored=True)


def commit_time(rows: Rows, kind: pa.DataType) -> pa.Array:
    return rows.spread([time_ns // 1000 for time_ns in rows.times_ns], kind)


def _header_map(rows: Rows, kind: pa.DataType) -> pa.Array:
    if "headers" not in rows.held:
        offsets = pa.repeat(pa.scalar(0, pa.int32()), rows.size + 1)
        return pa.MapArray.from_arrays(offsets, pa.array([], kind.key_type), pa.array([], kind.item_type), kind)
    return rows.spread([[*stored.get("headers", {}).items()] for stored in rows.stored], kind)


def _taken(at: int) -> Builder:
    def build(rows: Rows, kind: pa.DataType) -> pa.Array:
        if not rows.taken:
            return pa.nulls(rows.size, kind)
        return pa.array([rows.taken.get(seq, (None, None))[at] for seq in rows.seqs], kind)

    return build


_TIME = pa.timestamp("us", tz="UTC")
_HEADERS = pa.map_(pa.string(), pa.field("value", pa.string(), nullable=False))

HOUSE = {
    "seq": Column(pa.int64(), numbers, nullable=False),
    "message_id": Column(pa.binary(), joined("ids"), nullable=False),
    "queue": Column(pa.string(), same("queue"), nullable=False),
    "body": Column(pa.binary(), joined("bodies"), nullable=False),
    "correlation_id": stored_column("correlation_id", pa.binary()),
    "priority": stored_column("priority", pa.int32(), DEFAULT_PRIORITY),
    "enqueued_at": stored_column("enqueued_at", _TIME, 0),
    "headers": Column(_HEADERS, _header_map, nullable=False, is_stored=True),
    "content_type": stored_column("content_type", pa.string()),
    "tries": stored_column("tries", pa.int32(), 0),
    "space": Column(pa.string(), same("space"), nullable=False),
    "committed_at": Column(_TIME, commit_time, nullable=False),
}
"""What comes where nobody says which."""

MORE = {
    "group": stored_column("group", pa.string()),
    "not_before": stored_column("not_before", _TIME),
    "expires_at": stored_column("expires_at", _TIME),
    "reply_queue": stored_column("reply_queue", pa.string()),
    "failure_queue": stored_column("failure_queue", pa.string()),
    "dedup_key": stored_column("dedup_key", pa.binary()),
    "traceparent": stored_column("traceparent", pa.string()),
    "origin": stored_column("origin", pa.string()),
}
"""What may be named beside."""


TAKEN = {"taken_at": Column(_TIME, _taken(0)), "taken_by": Column(pa.string(), _taken(1))}
"""Of what has left the queue and is kept."""


class Columns:
    """Those that are asked for: their Arrow schema, with its nullability, and how each is built."""

    def __init__(self, schema: pa.Schema, columns: Sequence[Column]) -> None:
        self.schema = schema
        self._columns = columns
        self.unpacks = any(column.is_stored for column in columns)

    def batch(self, rows: Rows) -> pa.RecordBatch:
        """Raises DamagedBlock for a property that is not of its type."""
        try:
            arrays = [column.build(rows, kind) for column, kind in zip(self._columns, self.schema.types, strict=True)]
            return pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        except (pa.ArrowException, TypeError, AttributeError) as error:
            raise DamagedBlock(
                f"queue {rows.queue}, messages {rows.seqs[0]} to {rows.seqs[-1]}: a property is not of its type: "
                f"{error}"
            ) from error
