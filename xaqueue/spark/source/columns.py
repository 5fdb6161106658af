"""A message's columns, in the house's names and in Kafka's: each is built by itself, and only where it is asked for.

Spark tells a Python source nothing of what a query selects. So whoever needs little names it: ``.schema("seq LONG,
body BINARY")`` takes any known columns in any order, and what is not in it is not even unpacked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

from xaqueue.errors import InvalidArgument
from xaqueue.message import DEFAULT_PRIORITY

LOG_APPEND_TIME = 1
"""Kafka's ``timestampType``: the time is that of the commit."""


@dataclass(slots=True)
class Rows:
    """What was read of one queue, as parallel lists; those that no column needs stay empty."""

    queue: str
    space: str = ""
    number: int = 0
    """Which of the stream's spaces it is: Kafka's partition."""
    tries: Mapping[int, int] = field(default_factory=dict)
    """By number, of those that had any: it stands beside the messages."""
    seqs: list[int] = field(default_factory=list)
    ids: list[bytes] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    stored: list[dict[str, Any]] = field(default_factory=list)
    """Properties, what is absent or default left out."""
    times_ns: list[int] = field(default_factory=list)
    _held: frozenset[str] | None = field(default=None, init=False)

    @property
    def size(self) -> int:
        return len(self.seqs)

    @property
    def held(self) -> frozenset[str]:
        """The properties that any of them has, looked at once, when all are there: a column of none costs nothing."""
        if self._held is None:
            self._held = frozenset().union(*self.stored)
        return self._held


Builder = Callable[[Rows, pa.DataType], pa.Array]


@dataclass(frozen=True, slots=True)
class Column:
    """What it is to Spark, where it comes from, and which of the lists that takes."""

    kind: t.DataType
    build: Builder
    nullable: bool = True
    needs: frozenset[str] = frozenset()


def _list(name: str) -> Builder:
    return lambda rows, kind: pa.array(getattr(rows, name), kind)


def _same(name: str) -> Builder:
    return lambda rows, kind: pa.repeat(pa.scalar(getattr(rows, name), kind), rows.size)


def _property(name: str, default: Any = None) -> Builder:
    def build(rows: Rows, kind: pa.DataType) -> pa.Array:
        if name not in rows.held:
            return pa.repeat(pa.scalar(default, kind), rows.size)
        return pa.array([stored.get(name, default) for stored in rows.stored], kind)

    return build


def _commit_time(rows: Rows, kind: pa.DataType) -> pa.Array:
    return pa.array([time_ns // 1000 for time_ns in rows.times_ns], kind)


def _header_map(rows: Rows, kind: pa.DataType) -> pa.Array:
    if "headers" not in rows.held:
        offsets = pa.repeat(pa.scalar(0, pa.int32()), rows.size + 1)
        return pa.MapArray.from_arrays(offsets, pa.array([], kind.key_type), pa.array([], kind.item_type), kind)
    pairs: Iterable[Any] = [list(stored["headers"].items()) if "headers" in stored else [] for stored in rows.stored]
    return pa.array(pairs, kind)


def _header_array(rows: Rows, kind: pa.DataType) -> pa.Array:
    """As Kafka's: none is null, and values are bytes."""
    if "headers" not in rows.held:
        return pa.nulls(rows.size, kind)
    found = [stored.get("headers") for stored in rows.stored]
    pairs = [[{"key": k, "value": v.encode()} for k, v in headers.items()] if headers else None for headers in found]
    return pa.array(pairs, kind)


_STORED, _BODY, _TIMES = frozenset({"stored"}), frozenset({"bodies"}), frozenset({"times_ns"})
_HEADER_MAP = t.MapType(t.StringType(), t.StringType(), valueContainsNull=False)
_HEADER_ARRAY = t.ArrayType(
    t.StructType([t.StructField("key", t.StringType()), t.StructField("value", t.BinaryType())])
)

HOUSE = {
    "seq": Column(t.LongType(), _list("seqs"), nullable=False),
    "message_id": Column(t.BinaryType(), _list("ids"), nullable=False),
    "queue": Column(t.StringType(), _same("queue"), nullable=False),
    "body": Column(t.BinaryType(), _list("bodies"), nullable=False, needs=_BODY),
    "correlation_id": Column(t.BinaryType(), _property("correlation_id"), needs=_STORED),
    "priority": Column(t.IntegerType(), _property("priority", DEFAULT_PRIORITY), nullable=False, needs=_STORED),
    "enqueued_at": Column(t.TimestampType(), _property("enqueued_at", 0), nullable=False, needs=_STORED),
    "headers": Column(_HEADER_MAP, _header_map, nullable=False, needs=_STORED),
    "content_type": Column(t.StringType(), _property("content_type"), needs=_STORED),
    "tries": Column(t.IntegerType(), _property("tries", 0), nullable=False, needs=_STORED),
    "space": Column(t.StringType(), _same("space"), nullable=False),
    "committed_at": Column(t.TimestampType(), _commit_time, nullable=False, needs=_TIMES),
}
"""What comes without ``.schema(...)``."""

MORE = {
    "group": Column(t.StringType(), _property("group"), needs=_STORED),
    "not_before": Column(t.TimestampType(), _property("not_before"), needs=_STORED),
    "expires_at": Column(t.TimestampType(), _property("expires_at"), needs=_STORED),
    "reply_queue": Column(t.StringType(), _property("reply_queue"), needs=_STORED),
    "failure_queue": Column(t.StringType(), _property("failure_queue"), needs=_STORED),
    "dedup_key": Column(t.BinaryType(), _property("dedup_key"), needs=_STORED),
    "traceparent": Column(t.StringType(), _property("traceparent"), needs=_STORED),
    "origin": Column(t.StringType(), _property("origin"), needs=_STORED),
}
"""What ``.schema(...)`` may name beside, and ``includeAll`` brings."""

KAFKA = {
    "key": Column(t.BinaryType(), _property("correlation_id"), needs=_STORED),
    "value": Column(t.BinaryType(), _list("bodies"), needs=_BODY),
    "topic": Column(t.StringType(), _same("queue")),
    "partition": Column(t.IntegerType(), _same("number")),
    "offset": Column(t.LongType(), _list("seqs")),
    "timestamp": Column(t.TimestampType(), _commit_time, needs=_TIMES),
    "timestampType": Column(t.IntegerType(), lambda rows, kind: pa.repeat(pa.scalar(LOG_APPEND_TIME, kind), rows.size)),
    "headers": Column(_HEADER_ARRAY, _header_array, needs=_STORED),
}
"""Kafka's names and types: the correlation id is the key, the queue the topic, the commit sequence the offset."""
SAME_AS_KAFKAS = frozenset({"correlation_id", "body", "queue", "seq", "committed_at", "headers"})
"""What Kafka's columns say already, so that ``includeAll`` does not say it twice."""


def schema(*, kafka: bool = False, headers: bool = True, everything: bool = False) -> t.StructType:
    """The columns that come unless the query says which it wants. everything: each property of a message."""
    columns = KAFKA if kafka else HOUSE
    if everything:
        others = {**HOUSE, **MORE}
        columns = {**columns, **{name: others[name] for name in others if not kafka or name not in SAME_AS_KAFKAS}}
    return t.StructType(
        [
            t.StructField(name, column.kind, column.nullable)
            for name, column in columns.items()
            if headers or name != "headers"
        ]
    )


class Columns:
    """Those that a query asked for: their Arrow schema, with its nullability, and how each is built."""

    def __init__(self, asked: t.StructType, *, kafka: bool = False) -> None:
        """Raises InvalidArgument for a column that no message has, or that is of another type."""
        self._asked, self._kafka = asked, kafka
        known = known_columns(kafka=kafka)
        for asked_field in asked:
            _check(asked_field, known)
        self.schema = to_arrow_schema(asked, timezone="UTC")
        self._columns = [known[asked_field.name] for asked_field in asked]
        self.needs = frozenset().union(*(column.needs for column in self._columns))

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Columns, kafka=self._kafka), (self._asked,)

    def arrays(self, rows: Rows) -> list[pa.Array]:
        """Raises what Arrow raises for a property that is not of its type."""
        return [column.build(rows, kind) for column, kind in zip(self._columns, self.schema.types, strict=True)]


def known_columns(*, kafka: bool = False) -> dict[str, Column]:
    """By name; where both vocabularies have one of that name, it is that of the query."""
    return {**HOUSE, **MORE, **KAFKA} if kafka else {**KAFKA, **HOUSE, **MORE}


def _check(asked: t.StructField, known: dict[str, Column]) -> None:
    column = known.get(asked.name)
    if column is None:
        raise InvalidArgument(f"a message has no column {asked.name!r}: .schema(...) may name {', '.join(known)}")
    wanted, given = column.kind.simpleString(), asked.dataType.simpleString()
    if wanted != given:
        raise InvalidArgument(
            f"column {asked.name!r} is {wanted.upper()}, not {given.upper()}: say so in .schema(...), "
            "and cast in the query"
        )
