"""A message's columns, in the house's names and in Kafka's: each is built by itself, and only where it is asked for.

Spark tells a Python source nothing of what a query selects. So whoever needs little names it: ``.schema("seq LONG,
body BINARY")`` takes any known columns in any order, and what is not in it is not even unpacked.

``messages(content)`` makes rows of a file's bytes, for those who read the files with Spark's own source, and
``decode(content)`` columns, where each file is of one message.

    files = spark.read.format("binaryFile").load("data/space/committed")     # gives content, and queue and range
    files.select("queue", messages("content").alias("message")).select("queue", "message.*")

They check every bit, as the format ``xaqueue`` does. What only the file's name and times say (the sequence number, the
commit time) the built-in source gives itself, in ``path`` and ``modificationTime``. Tries stand beside the file, and so
does what was taken of a file of many.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import repeat
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import types as t
from pyspark.sql.functions import explode
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import to_arrow_schema

from xaqueue.core.model.block import decode_message
from xaqueue.core.model.message_block import Table
from xaqueue.errors import DamagedBlock, InvalidArgument
from xaqueue.features.streams.message_files import whole_table
from xaqueue.message import DEFAULT_PRIORITY

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn


LOG_APPEND_TIME = 1
"""Kafka's ``timestampType``: the time is that of the commit."""


@dataclass
class Rows:
    """What was read of one queue, in its order. Properties stay empty where no column needs them."""

    queue: str
    space: str = ""
    number: int = 0
    """Which of the stream's spaces it is: Kafka's partition."""
    tries: Mapping[int, int] = field(default_factory=dict)
    """By number, of those that had any: it stands beside the messages."""
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
    """What it is to Spark, where it comes from, and whether properties are unpacked for it."""

    kind: t.DataType
    build: Builder
    nullable: bool = True
    is_stored: bool = False


def _numbers(rows: Rows, kind: pa.DataType) -> pa.Array:
    return of_buffers(kind, rows.size, rows.seqs)


def _joined(name: str) -> Builder:
    return lambda rows, kind: rows.joined(name, kind)


def _same(name: str) -> Builder:
    return lambda rows, kind: pa.repeat(pa.scalar(getattr(rows, name), kind), rows.size)


def _property(name: str, kind: t.DataType, default: Any = None) -> Column:
    def build(rows: Rows, arrow: pa.DataType) -> pa.Array:
        if name not in rows.held:
            return pa.repeat(pa.scalar(default, arrow), rows.size)
        return rows.spread([stored.get(name, default) for stored in rows.stored], arrow)

    return Column(kind, build, nullable=default is None, is_stored=True)


def _commit_time(rows: Rows, kind: pa.DataType) -> pa.Array:
    return rows.spread([time_ns // 1000 for time_ns in rows.times_ns], kind)


def _header_map(rows: Rows, kind: pa.DataType) -> pa.Array:
    if "headers" not in rows.held:
        offsets = pa.repeat(pa.scalar(0, pa.int32()), rows.size + 1)
        return pa.MapArray.from_arrays(offsets, pa.array([], kind.key_type), pa.array([], kind.item_type), kind)
    return rows.spread([[*stored.get("headers", {}).items()] for stored in rows.stored], kind)


def _header_array(rows: Rows, kind: pa.DataType) -> pa.Array:
    """As Kafka's: none is null, and values are bytes."""
    if "headers" not in rows.held:
        return pa.nulls(rows.size, kind)
    found = [stored.get("headers") for stored in rows.stored]
    pairs = [[{"key": k, "value": v.encode()} for k, v in headers.items()] if headers else None for headers in found]
    return rows.spread(pairs, kind)


_HEADER_MAP = t.MapType(t.StringType(), t.StringType(), valueContainsNull=False)
_HEADER_ARRAY = t.ArrayType(
    t.StructType([t.StructField("key", t.StringType()), t.StructField("value", t.BinaryType())])
)

HOUSE = {
    "seq": Column(t.LongType(), _numbers, nullable=False),
    "message_id": Column(t.BinaryType(), _joined("ids"), nullable=False),
    "queue": Column(t.StringType(), _same("queue"), nullable=False),
    "body": Column(t.BinaryType(), _joined("bodies"), nullable=False),
    "correlation_id": _property("correlation_id", t.BinaryType()),
    "priority": _property("priority", t.IntegerType(), DEFAULT_PRIORITY),
    "enqueued_at": _property("enqueued_at", t.TimestampType(), 0),
    "headers": Column(_HEADER_MAP, _header_map, nullable=False, is_stored=True),
    "content_type": _property("content_type", t.StringType()),
    "tries": _property("tries", t.IntegerType(), 0),
    "space": Column(t.StringType(), _same("space"), nullable=False),
    "committed_at": Column(t.TimestampType(), _commit_time, nullable=False),
}
"""What comes without ``.schema(...)``."""

MORE = {
    "group": _property("group", t.StringType()),
    "not_before": _property("not_before", t.TimestampType()),
    "expires_at": _property("expires_at", t.TimestampType()),
    "reply_queue": _property("reply_queue", t.StringType()),
    "failure_queue": _property("failure_queue", t.StringType()),
    "dedup_key": _property("dedup_key", t.BinaryType()),
    "traceparent": _property("traceparent", t.StringType()),
    "origin": _property("origin", t.StringType()),
}
"""What ``.schema(...)`` may name beside, and ``includeAll`` brings."""

KAFKA = {
    "key": _property("correlation_id", t.BinaryType()),
    "value": Column(t.BinaryType(), _joined("bodies")),
    "topic": Column(t.StringType(), _same("queue")),
    "partition": Column(t.IntegerType(), _same("number")),
    "offset": Column(t.LongType(), _numbers),
    "timestamp": Column(t.TimestampType(), _commit_time),
    "timestampType": Column(t.IntegerType(), lambda rows, kind: pa.repeat(pa.scalar(LOG_APPEND_TIME, kind), rows.size)),
    "headers": Column(_HEADER_ARRAY, _header_array, is_stored=True),
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

    def __init__(self, asked: t.StructType, kafka: bool = False) -> None:
        """Raises InvalidArgument for a column that no message has, or that is of another type."""
        self._asked, self._kafka = asked, kafka
        known = known_columns(kafka=kafka)
        for one in asked:
            if one.name not in known:
                raise InvalidArgument(f"a message has no column {one.name!r}: .schema(...) may name {', '.join(known)}")
            wanted, given = known[one.name].kind.simpleString(), one.dataType.simpleString()
            if wanted != given:
                raise InvalidArgument(
                    f"column {one.name!r} is {wanted.upper()}, not {given.upper()}: say so in .schema(...), "
                    "and cast in the query"
                )
        self.schema = to_arrow_schema(asked, timezone="UTC")
        self._columns = [known[one.name] for one in asked]
        self.unpacks = any(column.is_stored for column in self._columns)

    def __reduce__(self) -> tuple[Any, ...]:
        return Columns, (self._asked, self._kafka)

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


def known_columns(*, kafka: bool = False) -> dict[str, Column]:
    """By name; where both vocabularies have one of that name, it is that of the query."""
    return {**HOUSE, **MORE, **KAFKA} if kafka else {**KAFKA, **HOUSE, **MORE}


_OF_THE_FILE = ("seq", "space", "committed_at", "tries")
"""What is not in its content."""
_COLUMNS = {name: column for name, column in {**HOUSE, **MORE}.items() if name not in (*_OF_THE_FILE, "queue")}

MESSAGE = t.StructType([t.StructField(name, column.kind) for name, column in _COLUMNS.items()])
"""The struct that ``decode`` gives."""


INDEX = t.StructField("index", t.IntegerType())
"""In a file: the message's number is the one that the name of the file begins with, and this more."""


def decode(content: SparkColumn | str, *, damaged_as_null: bool = False) -> SparkColumn:
    """A struct of the message's columns, null for null. ``damaged_as_null``: also for what is no whole message.

    Otherwise the query fails with the first thing that is wrong. A file of many messages is refused: see ``messages``.
    """
    return _called(partial(decode_array, damaged_as_null=damaged_as_null), MESSAGE, content)


def messages(content: SparkColumn | str, *, damaged_as_null: bool = False) -> SparkColumn:
    """A row for each message of a file, one or many, as ``explode`` makes them: a struct as that of ``decode``, and the
    ``index`` of the message in its file.

    Messages of a file of many are there as long as the file is, those that were *taken* among them: which these are
    stands beside it, and Spark's own source does not read that. The format ``xaqueue`` leaves them out. What was made
    smaller has lost the bodies of those gone, which are left out here, too.
    """
    kind = t.ArrayType(t.StructType([INDEX, *MESSAGE]))
    return explode(_called(partial(messages_array, damaged_as_null=damaged_as_null), kind, content))


def _called(made_of: Callable[[pa.Array], pa.Array], kind: t.DataType, content: SparkColumn | str) -> SparkColumn:
    def called(contents: pa.Array) -> pa.Array:
        return made_of(contents)

    called.__annotations__ = {"contents": pa.Array, "return": pa.Array}  # the kind of UDF is told by the types
    udf: Any = arrow_udf  # its overloads leave out the plain form
    column: SparkColumn = udf(called, kind)(content)
    return column


def decode_array(contents: pa.Array, *, damaged_as_null: bool = False) -> pa.Array:
    """What ``decode`` does with a batch. Raises DamagedBlock."""
    found = _Found(damaged_as_null)
    for data in contents.to_pylist():
        if data is not None and _table_in(data) is not None:
            raise DamagedBlock(
                'a file holds a block of many messages, and decode makes one row of a file: use messages("content"), '
                'or read with format "xaqueue", which leaves out what was taken'
            )
        found.add(None if data is None else partial(decode_message, data))
    return found.structs()


def messages_array(contents: pa.Array, *, damaged_as_null: bool = False) -> pa.Array:
    """A list for each file. Raises DamagedBlock."""
    found, ends, indexes = _Found(damaged_as_null), array("i", [0]), array("i")
    for data in contents.to_pylist():
        table = None if data is None else _table_in(data)
        if table is not None:
            for index in table.left(0):
                found.add(partial(_message_in, table, data, index))
                indexes.append(index)
        elif data is not None:
            found.add(partial(decode_message, data))
            indexes.append(0)
        ends.append(len(indexes))
    rows = found.structs(of_buffers(pa.int32(), len(indexes), indexes))
    return pa.ListArray.from_arrays(of_buffers(pa.int32(), len(ends), ends), rows)


def _table_in(data: bytes) -> Table | None:
    """That of a block of many messages, where this is one."""
    try:
        return whole_table(data)
    except DamagedBlock:
        return None


def _message_in(table: Table, data: bytes, index: int) -> tuple[bytes, dict[str, Any], bytes]:
    return table.message_id(index), table.stored(index), table.body(data, index)


class _Found:
    """Messages of files, one after the other."""

    def __init__(self, damaged_as_null: bool) -> None:
        self._damaged_as_null = damaged_as_null
        self._rows = Rows("")
        self._absent: list[bool] = []

    def add(self, read: Callable[[], tuple[bytes, dict[str, Any], bytes]] | None) -> None:
        """read: gives id, properties and body; None for null. Raises DamagedBlock."""
        message_id, stored, body = b"", dict[str, Any](), b""
        if read is not None:
            try:
                message_id, stored, body = read()
            except DamagedBlock as damage:
                if not self._damaged_as_null:
                    raise DamagedBlock(f"{damage}: filter such files by path, or say damaged_as_null=True") from None
                read = None
        self._absent.append(read is None)
        self._rows.seqs.append(0)
        self._rows.ids.append(message_id)
        self._rows.stored.append(stored)
        self._rows.bodies.append(body)

    def structs(self, index: pa.Array | None = None) -> pa.Array:
        """What was found. index: another column, before the others."""
        fields = list(to_arrow_schema(MESSAGE, timezone="UTC"))
        columns = [
            column.build(self._rows, field.type) for column, field in zip(_COLUMNS.values(), fields, strict=True)
        ]
        if index is not None:
            fields, columns = [pa.field(INDEX.name, index.type), *fields], [index, *columns]
        return pa.StructArray.from_arrays(columns, fields=fields, mask=pa.array(self._absent, pa.bool_()))
