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

from xaqueue.errors import InvalidArgument
from xaqueue.space.offline.findings import Finding, Severity
from xaqueue.space.offline.verify import (
    FIRST,
    Place,
    Share,
    Summary,
    check_numbers,
    duplicates,
    examine,
    queues_of,
    shares,
)
from xaqueue.spark.runtime.session import no_pandas_warning

SHARES_A_TASK = 8
CSV, PARQUET = ".csv", ".parquet"

_SHARE = "space string, live boolean, queue string, range string, whole boolean"
_COLUMNS = ("space", "severity", "path", "problem")
_FINDING = "space string, severity string, path string, problem string"
_EXAMINED = f"{_FINDING}, queue string, seq bigint, message_id binary"
_FINDING_TYPE = pa.struct([(name, pa.string()) for name in _COLUMNS])
_EXAMINED_TYPE = pa.struct(
    [*_FINDING_TYPE, ("queue", pa.string()), ("seq", pa.int64()), ("message_id", pa.binary())],
)


def verify(spark: SparkSession, spaces: list[str], report: Path | None = None) -> Summary:
    """Checks all of the spaces. ``report``: all findings go there as a table, Parquet or CSV by its ending.

    Raises InvalidArgument for a report that is there already or has another ending.
    """
    check_report(report)
    todo = [share for space in spaces for share in shares(space)]
    tasks = max(spark.sparkContext.defaultParallelism, len(todo) // SHARES_A_TASK)
    given = _table(spark, todo, _SHARE).repartition(min(tasks, len(todo)))
    examined = given.select(f.inline(_rows_of(_examine, _EXAMINED)(*Share._fields)))
    examined.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        messages = examined.where("severity IS NULL")
        summary = Summary(len(spaces), queues_of(spaces), messages.count())
        findings = examined.where("severity IS NOT NULL").select(*_COLUMNS).unionAll(_repeated(messages))
        findings = findings.unionAll(_table(spark, _numbers(messages, todo), _FINDING)).persist()
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


def _rows_of(function: Callable[..., pa.Array], row: str) -> Any:
    """A UDF whose answer to every row is a list of rows. Not ``mapInArrow``, which wants pandas to be installed."""
    udf: Any = arrow_udf  # its overloads leave out the plain form
    return udf(function, f"array<struct<{row}>>")


def _examine(space: pa.Array, live: pa.Array, queue: pa.Array, range_: pa.Array, whole: pa.Array) -> pa.Array:
    columns = (column.to_pylist() for column in (space, live, queue, range_, whole))
    shares_here = (Share(*values) for values in zip(*columns, strict=True))
    found = [[dict(zip(_EXAMINED_TYPE.names, row, strict=True)) for row in _rows(share)] for share in shares_here]
    return pa.array(found, pa.list_(_EXAMINED_TYPE))


def _rows(share: Share) -> Iterator[tuple[Any, ...]]:
    examined = examine(share)
    for finding in examined.findings:
        yield (*_columns(finding), None, None, None)
    for queue, found in examined.messages.items():
        for seq, message_id in found:
            yield share.space, None, None, None, queue, seq, message_id


def _repeated(messages: DataFrame) -> DataFrame:
    """The findings about ids that were seen in several places."""
    places = f.collect_list(f.struct(*Place._fields)).alias("places")
    repeated = messages.groupBy("message_id").agg(places).where("size(places) > 1")
    return repeated.select(f.inline(_rows_of(_duplicates, _FINDING)("message_id", "places")))


def _duplicates(message_ids: pa.Array, places: pa.Array) -> pa.Array:
    found = [
        [dict(zip(_COLUMNS, _columns(found), strict=True)) for found in duplicates(message_id, map(_place, there))]
        for message_id, there in zip(message_ids.to_pylist(), places.to_pylist(), strict=True)
    ]
    return pa.array(found, pa.list_(_FINDING_TYPE))


def _place(row: dict[str, Any]) -> Place:
    return Place(**row)


def _columns(finding: Finding) -> tuple[str, ...]:
    return finding.space, finding.severity.value, finding.path, finding.problem


def _numbers(messages: DataFrame, todo: list[Share]) -> list[tuple[str, ...]]:
    """The findings about queues: few enough for the driver."""
    highest: dict[str, dict[str, int]] = {}
    for row in messages.groupBy("space", "queue").agg(f.max("seq").alias("seq")).collect():
        highest.setdefault(row["space"], {})[row["queue"]] = row["seq"]
    return [_columns(finding) for finding in check_numbers(todo, highest)]


def _summed_up(summary: Summary, findings: DataFrame, report: Path | None) -> Summary:
    summary.counts = {row["severity"]: row["count"] for row in findings.groupBy("severity").count().collect()}
    worst = f.array_position(f.array(*(f.lit(severity.value) for severity in Severity)), f.col("severity"))
    ordered = findings.orderBy(worst, "space", "path", "problem")
    summary.first = [
        Finding(Severity(row["severity"]), row["path"], row["problem"], space=row["space"])
        for row in ordered.limit(FIRST).collect()
    ]
    if report is not None:
        writer = ordered.coalesce(1).write
        writer.csv(str(report), header=True) if report.suffix == CSV else writer.parquet(str(report))
    return summary


def _table(spark: SparkSession, rows: Sequence[tuple[Any, ...]], schema: str) -> DataFrame:
    with no_pandas_warning():
        return spark.createDataFrame(list(rows), schema)
