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
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import types as t
from pyspark.sql.functions import explode
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema, to_arrow_type

from xaqueue.core.model.block import decode_message
from xaqueue.core.model.message_block import Table
from xaqueue.errors import DamagedBlock, InvalidArgument
from xaqueue.features.streams.message_files import whole_table
from xaqueue.lake import columns as arrow
from xaqueue.lake.columns import Rows, of_buffers

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn


LOG_APPEND_TIME = 1
"""Kafka's ``timestampType``: the time is that of the commit."""


@dataclass(frozen=True, slots=True)
class Column:
    """What it is to Spark, and how it is built."""

    kind: t.DataType
    arrow: arrow.Column

    @property
    def nullable(self) -> bool:
        return self.arrow.nullable


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


def _spark(columns: Mapping[str, arrow.Column]) -> dict[str, Column]:
    """A type of Arrow's that Spark has no word for is given by hand."""
    kinds = {name: _HEADER_MAP if name == "headers" else from_arrow_type(one.kind) for name, one in columns.items()}
    return {name: Column(kinds[name], one) for name, one in columns.items()}


HOUSE = _spark(arrow.HOUSE)
"""What comes without ``.schema(...)``."""

MORE = _spark({**arrow.MORE, "persistent": arrow.stored_column("persistent", pa.bool_(), True)})
"""What ``.schema(...)`` may name beside, and ``includeAll`` brings."""


def _kafka(kind: t.DataType, build: arrow.Builder, *, is_stored: bool = False) -> Column:
    return Column(kind, arrow.Column(to_arrow_type(kind, timezone="UTC"), build, is_stored=is_stored))


def _log_append_time(rows: Rows, kind: pa.DataType) -> pa.Array:
    return pa.repeat(pa.scalar(LOG_APPEND_TIME, kind), rows.size)


KAFKA = {
    "key": HOUSE["correlation_id"],
    "value": _kafka(t.BinaryType(), arrow.joined("bodies")),
    "topic": _kafka(t.StringType(), arrow.same("queue")),
    "partition": _kafka(t.IntegerType(), arrow.same("number")),
    "offset": _kafka(t.LongType(), arrow.numbers),
    "timestamp": _kafka(t.TimestampType(), arrow.commit_time),
    "timestampType": _kafka(t.IntegerType(), _log_append_time),
    "headers": _kafka(_HEADER_ARRAY, _header_array, is_stored=True),
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


class Columns(arrow.Columns):
    """Those that a query asked for."""

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
        super().__init__(to_arrow_schema(asked, timezone="UTC"), [known[one.name].arrow for one in asked])

    def __reduce__(self) -> tuple[Any, ...]:
        return Columns, (self._asked, self._kafka)


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

    called.__annotations__ = {"contents": pa.Array, "return": pa.Array}  # the types say which kind of UDF it is
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
            column.arrow.build(self._rows, field.type) for column, field in zip(_COLUMNS.values(), fields, strict=True)
        ]
        if index is not None:
            fields, columns = [pa.field(INDEX.name, index.type), *fields], [index, *columns]
        return pa.StructArray.from_arrays(columns, fields=fields, mask=pa.array(self._absent, pa.bool_()))
