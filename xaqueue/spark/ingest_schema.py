"""A body is a row or a dead letter: a row where it is one JSON object that fits the schema in every field.

Spark's parser alone is too kind: it stops behind the first value and takes what is no UTF-8 for something else, so the
syntax is checked by Python's, strictly; the types are checked by Spark's. A field that the schema does not name is
passed over, one that is missing is null.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import StringType, StructField, StructType

from xaqueue.errors import InvalidArgument
from xaqueue.lake.ingest_bodies import DEAD_KEPT, KEPT, PARTITION, column, why_no_object

SCHEMA_FORMS = "DDL such as 'carrier STRING, dep_delay INT', or a file with that or with Spark's JSON of a schema"

_CORRUPT = "_xaqueue_corrupt"
_DAY_US = 86_400_000_000


def given(text: str) -> StructType:
    """The schema that a person gave: DDL, or the name of a file with DDL or JSON. Raises InvalidArgument."""
    path = Path(text)
    written = path.read_text("utf-8") if len(text) < 4096 and path.is_file() else text
    try:
        if written.lstrip().startswith("{"):
            found: Any = StructType.fromJson(json.loads(written))
        else:
            found = StructType.fromDDL(written)
    except (PySparkException, ValueError, KeyError, TypeError) as error:
        said = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InvalidArgument(f"schema {text!r} is refused: {said}; give {SCHEMA_FORMS}") from None
    return checked(found, text)


def checked(found: Any, what: str) -> StructType:
    """InvalidArgument for what cannot be the columns of a table."""
    if not isinstance(found, StructType) or not found.fields:
        raise InvalidArgument(f"schema {what!r} is refused: it has no columns; give {SCHEMA_FORMS}")
    seen: set[str] = set()
    for name in (column(field.name) for field in found):
        if name.lower() in seen:
            twice = f"schema {what!r} is refused: there is more than one column {name}"
            raise InvalidArgument(f"{twice}; give {SCHEMA_FORMS}")
        seen.add(name.lower())
    return found


def sampled(spark: SparkSession, bodies: Iterable[bytes]) -> StructType:
    """The schema of these bodies, as far as they are JSON objects. Raises InvalidArgument where none has a field."""
    texts = [body.decode() for body in bodies if why_no_object(body) is None]
    found = spark.read.json(spark.sparkContext.parallelize(texts, 1)).schema if texts else StructType()
    if not found.fields:
        raise InvalidArgument(
            "no JSON object with a field was found among the first messages to take a schema from: "
            f"give --schema, {SCHEMA_FORMS}"
        )
    return checked(found, "of the sample")


def parsed(messages: DataFrame, schema: StructType) -> DataFrame:
    """The messages with ``day``, ``parsed``, and ``reason``, which is null for rows."""
    wanted = StructType([*schema.fields, StructField(_CORRUPT, StringType())])
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}

    def reasons(bodies: pa.Array) -> pa.Array:
        return pa.array(map(why_no_object, bodies.to_pylist()), pa.string())

    udf: Any = arrow_udf  # its overloads leave out the plain form
    no_object = udf(reasons, "string")("body")
    fits = f.col(f"parsed.{_CORRUPT}").isNull() & f.col("parsed").isNotNull()
    return (
        messages.withColumn("day", f.expr(f"date_from_unix_date(cast(unix_micros(enqueued_at) div {_DAY_US} as int))"))
        .withColumn("message_id", f.lower(f.hex("message_id")))
        .withColumn("parsed", f.from_json(f.col("body").cast("string"), wanted, options))
        .withColumn("reason", f.coalesce(no_object, f.when(~fits, f.lit("does not fit the schema"))))
    )


def rows(messages: DataFrame, schema: StructType, *, keep_body: bool) -> DataFrame:
    """The rows of what ``parsed`` gave."""
    fields = [f.col("parsed").getField(field.name).alias(column(field.name)) for field in schema]
    kept = [*_kept(messages, KEPT), *(["body"] if keep_body else [])]
    return messages.where(f.col("reason").isNull()).select(*kept, *fields)


def dead_letters(messages: DataFrame) -> DataFrame:
    """The others, whole, each with its reason."""
    return messages.where(f.col("reason").isNotNull()).select(*_kept(messages, DEAD_KEPT), "body", "reason")


def _kept(messages: DataFrame, wanted: tuple[str, ...]) -> list[str]:
    return [name for name in (*wanted, "space", *PARTITION) if name in messages.columns]
