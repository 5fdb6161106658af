"""Message files become Arrow batches, every bit of them checked, in the columns that the schema names.

A batch is closed at 2,000 rows or 4 MiB, whichever comes first: Spark takes a batch over at once, and tuples one at a
time at a fifth of the speed. Damage is reported by the name of the file, and nothing damaged is ever passed over.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from xaqueue.command import decode_message
from xaqueue.errors import DamagedBlock, InvalidArgument
from xaqueue.message import DEFAULT_PRIORITY
from xaqueue.space.layout import message_path

BATCH_ROWS = 2_000
BATCH_BYTES = 4 * 1024 * 1024

SCHEMA = StructType(
    [
        StructField("seq", LongType(), nullable=False),
        StructField("message_id", BinaryType(), nullable=False),
        StructField("queue", StringType(), nullable=False),
        StructField("body", BinaryType(), nullable=False),
        StructField("correlation_id", BinaryType()),
        StructField("priority", IntegerType(), nullable=False),
        StructField("enqueued_at", TimestampType(), nullable=False),
        StructField("headers", MapType(StringType(), StringType(), valueContainsNull=False), nullable=False),
        StructField("content_type", StringType()),
        StructField("tries", IntegerType(), nullable=False),
    ]
)

_COLUMNS = [(field.name, field.dataType.simpleString()) for field in SCHEMA]
_ARROW_TYPES = {
    "bigint": pa.int64(),
    "int": pa.int32(),
    "binary": pa.binary(),
    "string": pa.string(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}


def arrow_schema(schema: StructType) -> pa.Schema:
    """SCHEMA as Arrow has it, with the nullability of the schema that Spark asked with.

    Raises InvalidArgument for a schema of other columns: a queue's are fixed.
    """
    if [(field.name, field.dataType.simpleString()) for field in schema] != _COLUMNS:
        raise InvalidArgument(
            f"the columns of a queue are fixed ({', '.join(SCHEMA.names)}): leave out .schema(...) and select from them"
        )
    return pa.schema([pa.field(field.name, _arrow_type(field), nullable=field.nullable) for field in schema])


def record_batches(
    messages: Iterable[tuple[int, bytes, bytes]], space: Path, queue: str, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Batches of (seq, message id, block) in their order. Raises DamagedBlock before its batch is given out."""
    rows: list[tuple[Any, ...]] = []
    size_bytes = 0
    for seq, message_id, data in messages:
        try:
            rows.append(_row(seq, message_id, data))
        except DamagedBlock as damage:
            raise DamagedBlock(f"{space / message_path(queue, seq, message_id)}: {damage}") from None
        size_bytes += len(data)
        if len(rows) == BATCH_ROWS or size_bytes >= BATCH_BYTES:
            yield _batch(rows, queue, schema)
            rows, size_bytes = [], 0
    if rows:
        yield _batch(rows, queue, schema)


def _row(seq: int, message_id: bytes, data: bytes) -> tuple[Any, ...]:
    written_id, stored, body = decode_message(data)
    if written_id != message_id:
        raise DamagedBlock(f"holds message {written_id.hex()}: renamed or copied by hand")
    get = stored.get
    return (
        seq,
        message_id,
        body,
        get("correlation_id"),
        get("priority", DEFAULT_PRIORITY),
        get("enqueued_at", 0),
        get("headers"),
        get("content_type"),
        get("tries", 0),
    )


def _batch(rows: list[tuple[Any, ...]], queue: str, schema: pa.Schema) -> pa.RecordBatch:
    seq, message_id, body, correlation_id, priority, enqueued_at, headers, content_type, tries = zip(*rows, strict=True)
    pairs = [list(header.items()) if header else [] for header in headers]
    values = [
        seq,
        message_id,
        [queue] * len(rows),
        body,
        correlation_id,
        priority,
        enqueued_at,
        pairs,
        content_type,
        tries,
    ]
    try:
        columns = [pa.array(column, field.type) for column, field in zip(values, schema, strict=True)]
    except (pa.ArrowException, TypeError, AttributeError) as error:
        raise DamagedBlock(
            f"queue {queue}, messages {seq[0]} to {seq[-1]}: a property is not of its type: {error}"
        ) from error
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _arrow_type(field: StructField) -> pa.DataType:
    kind = field.dataType
    if isinstance(kind, MapType):
        return pa.map_(pa.string(), pa.field("value", pa.string(), nullable=kind.valueContainsNull))
    return _ARROW_TYPES[kind.simpleString()]
