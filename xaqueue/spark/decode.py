"""``decode(content)`` makes columns of a message file's bytes, for those who read the files with Spark's own source.

    files = spark.read.format("binaryFile").load("data/space/committed")     # gives content, and queue and range
    files.select("queue", decode("content").alias("message")).select("queue", "message.*")

It checks every bit, as the format ``xaqueue`` does. What only the file's name and times say (the sequence number, the
commit time) the built-in source gives itself, in ``path`` and ``modificationTime``. Tries stand beside the file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType

from xaqueue.errors import DamagedBlock
from xaqueue.space.model.block import decode_message
from xaqueue.spark.source.columns import HOUSE, MORE, Rows

if TYPE_CHECKING:
    from pyspark.sql import Column

_OF_THE_FILE = ("seq", "space", "committed_at", "tries")
"""What is not in its content."""
_COLUMNS = {name: column for name, column in {**HOUSE, **MORE}.items() if name not in (*_OF_THE_FILE, "queue")}

MESSAGE = StructType([StructField(name, column.kind) for name, column in _COLUMNS.items()])
"""The struct that ``decode`` gives."""


def decode(content: Column | str, *, damaged_as_null: bool = False) -> Column:
    """A struct of the message's columns, null for null. ``damaged_as_null``: also for what is no whole message.

    Otherwise the query fails with the first thing that is wrong.
    """
    arrow_udf: Any = functions.arrow_udf  # type: ignore[attr-defined]

    def decoded(contents: pa.Array) -> pa.Array:
        return decode_array(contents, damaged_as_null=damaged_as_null)

    decoded.__annotations__ = {"contents": pa.Array, "return": pa.Array}  # the kind of UDF is told by the types
    column: Column = arrow_udf(decoded, MESSAGE)(content)
    return column


def decode_array(contents: pa.Array, *, damaged_as_null: bool = False) -> pa.Array:
    """What ``decode`` does with a batch. Raises DamagedBlock."""
    rows, absent = Rows(""), []
    for data in contents.to_pylist():
        message_id, body = b"", b""
        stored: dict[str, Any] = {}
        if data is not None:
            try:
                message_id, stored, body = decode_message(data)
            except DamagedBlock as damage:
                if not damaged_as_null:
                    raise DamagedBlock(
                        f"{damage}: filter such files by path, or decode with damaged_as_null=True"
                    ) from None
                data = None
        absent.append(data is None)
        rows.seqs.append(0)
        rows.ids.append(message_id)
        rows.stored.append(stored)
        rows.bodies.append(body)
    fields = list(to_arrow_schema(MESSAGE, timezone="UTC"))
    arrays = [column.build(rows, field.type) for column, field in zip(_COLUMNS.values(), fields, strict=True)]
    return pa.StructArray.from_arrays(arrays, fields=fields, mask=pa.array(absent, pa.bool_()))
