"""Spark's executors check many spaces at once, and find message ids that stand in more than one place.

The driver lists directories; messages are listed and read where the tasks run, so every executor must see the spaces
under the same paths. A message is read once: what was found is kept by Spark until numbers and ids are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import ArrayType

from xaqueue.errors import InvalidArgument
from xaqueue.offline import verify as spaces_room
from xaqueue.offline.findings import Finding, Severity
from xaqueue.offline.verify import MessagePlace, Share, Summary
from xaqueue.spark import no_pandas_warning

SHARES_A_TASK = 8
CSV, PARQUET = ".csv", ".parquet"

_SHARE = "space string, live boolean, queue string, range string, whole boolean"
_COLUMNS = ("space", "severity", "path", "problem")
_FINDING = pa.struct([(name, pa.string()) for name in _COLUMNS])
_EXAMINED = pa.struct([*_FINDING, ("queue", pa.string()), ("seq", pa.int64()), ("message_id", pa.binary())])


def verify(spark: SparkSession, spaces: list[str], report: Path | None = None) -> Summary:
    """Checks all of the spaces. ``report``: all findings go there as a table, Parquet or CSV by its ending.

    Raises InvalidArgument for a report that is there already or has another ending.
    """
    check_report(report)
    todo = [share for space in spaces for share in spaces_room.shares(space)]
    tasks = max(spark.sparkContext.defaultParallelism, len(todo) // SHARES_A_TASK)
    given = _table(spark, todo, _SHARE).repartition(min(tasks, len(todo)))
    examined = given.select(f.inline(_rows_of(_examine, _EXAMINED)(*Share._fields)))
    examined.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        messages = examined.where("severity IS NULL")
        summary = Summary(len(spaces), spaces_room.queues_of(spaces), messages.count())
        findings = examined.where("severity IS NOT NULL").select(*_COLUMNS).unionAll(_repeated(messages))
        findings = findings.unionAll(_table(spark, _numbers(messages, todo), from_arrow_type(_FINDING))).persist()
        try:
            return _summed_up(summary, findings, report)
        finally:
            findings.unpersist()
    finally:
        examined.unpersist()


def check_report(report: Path | None) -> None:
    """InvalidArgument for a report that cannot be written."""
    if report is None:
        return
    if report.suffix not in (CSV, PARQUET):
        raise InvalidArgument(f"report {str(report)!r} is refused: a name that ends in {PARQUET} or {CSV} is wanted")
    if report.exists():
        raise InvalidArgument(f"report {str(report)!r} is there already: name another, or remove it")


def _rows_of(function: Callable[..., Iterator[list[tuple[Any, ...]]]], row: pa.StructType) -> Any:
    """A UDF whose answer to every row is a list of rows. Not ``mapInArrow``, which wants pandas to be installed."""

    def answers(*columns: pa.Array) -> pa.Array:
        return pa.array(function(*(column.to_pylist() for column in columns)), pa.list_(row))

    udf: Any = arrow_udf  # its overloads leave out the plain form
    return udf(answers, ArrayType(from_arrow_type(row)))


def _examine(*columns: list[Any]) -> Iterator[list[tuple[Any, ...]]]:
    for share in map(Share, *columns):
        examined = spaces_room.examine(share)
        messages = ((queue, *one) for queue, found in examined.messages.items() for one in found)
        yield [(*_columns(finding), None, None, None) for finding in examined.findings] + [
            (share.space, None, None, None, *message) for message in messages
        ]


def _repeated(messages: DataFrame) -> DataFrame:
    """The findings about ids that were seen in several places."""
    places = f.collect_list(f.struct(*MessagePlace._fields)).alias("places")
    repeated = messages.groupBy("message_id").agg(places).where("size(places) > 1")
    return repeated.select(f.inline(_rows_of(_duplicates, _FINDING)("message_id", "places")))


def _duplicates(message_ids: list[bytes], places: list[list[dict[str, Any]]]) -> Iterator[list[tuple[Any, ...]]]:
    for message_id, there in zip(message_ids, places, strict=True):
        found = spaces_room.duplicates(message_id, (MessagePlace(**place) for place in there))
        yield list(map(_columns, found))


def _columns(finding: Finding) -> tuple[str, ...]:
    return finding.space, finding.severity.value, finding.path, finding.problem


def _numbers(messages: DataFrame, todo: list[Share]) -> list[tuple[str, ...]]:
    """The findings about queues: few enough for the driver."""
    highest: dict[str, dict[str, int]] = {}
    for row in messages.groupBy("space", "queue").agg(f.max("seq").alias("seq")).collect():
        highest.setdefault(row["space"], {})[row["queue"]] = row["seq"]
    return list(map(_columns, spaces_room.check_numbers(todo, highest)))


def _summed_up(summary: Summary, findings: DataFrame, report: Path | None) -> Summary:
    summary.counts = {row["severity"]: row["count"] for row in findings.groupBy("severity").count().collect()}
    worst = f.array_position(f.array(*(f.lit(severity.value) for severity in Severity)), f.col("severity"))
    ordered = findings.orderBy(worst, "space", "path", "problem")
    summary.first = [
        Finding(Severity(row["severity"]), row["path"], row["problem"], space=row["space"])
        for row in ordered.limit(spaces_room.FIRST).collect()
    ]
    if report is not None:
        writer = ordered.coalesce(1).write
        writer.csv(str(report), header=True) if report.suffix == CSV else writer.parquet(str(report))
    return summary


def _table(spark: SparkSession, rows: Sequence[tuple[Any, ...]], schema: Any) -> DataFrame:
    with no_pandas_warning():
        return spark.createDataFrame(list(rows), schema)
