"""``xaqueue ingest``: queues flow into a directory of Parquet files, each message once, as a row or as a dead letter.

One streaming query reads the queues, since a queue that is consumed can have only one. Each of its batches is parsed
once, written to staging as two tables, counted by what the files say, and put into place; see ``ingest_target``.
Spark goes on to the next batch, and the source removes messages, only after that.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import StorageLevel
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import BinaryType, StructType

from xaqueue import errors
from xaqueue.errors import Error, InvalidArgument, OperationalError
from xaqueue.lake.ingest import IngestProgress
from xaqueue.lake.ingest_bodies import PARTITION
from xaqueue.spark import ingest_schema
from xaqueue.spark.checkpoint import Checkpoint
from xaqueue.spark.ingest_target import (
    CHECKPOINT,
    DEAD,
    ROWS,
    IngestedBatch,
    Target,
    TargetRecord,
    check_checkpoint,
    open_target,
    written,
)
from xaqueue.spark.source.source import QueueSource

LOOK_S = 1
"""How often the query is looked at."""
_RAISED = re.compile(r"xaqueue\.errors\.(\w+): (.+)")


@dataclass(frozen=True, slots=True)
class IngestJob:
    """What is to be ingested. ``space`` and ``queue`` are the source's options path and queue."""

    space: str
    queue: str
    target: Path
    schema: str | None = None
    """DDL, or a file; None takes it from the target, or from a sample."""
    sample: int = 1_000
    keep_body: bool | None = None
    """None: as the target has it, or not."""
    once: bool = False
    """Ends when all that was there at the start is in."""
    every_s: float = 10.0
    """Between the starts of two batches, without ``once``."""
    checkpoint: Path | None = None
    """None: in the target."""
    most_per_trigger: int = 100_000
    options: tuple[tuple[str, str], ...] = ()
    """More options of the source."""


def run(
    job: IngestJob,
    spark: Callable[[], SparkSession],
    notify: Callable[[IngestProgress], None] = lambda _: None,
    stopping: Callable[[], bool] = lambda: False,
) -> IngestProgress:
    """Ingests until ``stopping``, which is asked now and then and lets the batch at work come to its end; with
    ``once`` until all is in. ``spark`` starts the session, when source and target are known to be right.

    Raises InvalidArgument for a target, checkpoint or schema that do not fit, and what the source raises.
    """
    source = QueueSource(_options(job))
    source.streamReader(source.schema())
    with (
        open_target(job.target) as (root, target),
        closing(Checkpoint((job.checkpoint or root / CHECKPOINT).resolve())) as checkpoint,
    ):
        known = target.record()
        check_checkpoint(checkpoint, known.query if known else None, root)
        try:
            session = spark()
            record = _settled(job, session, root, known)
            if record != known:
                target.write_record(record)
            return _Ingest(job, session, root, target, checkpoint, record).run(notify, stopping)
        except (PySparkException, Py4JError, ConnectionError) as error:
            raise translation(error) from error


def _settled(job: IngestJob, spark: SparkSession, root: Path, known: TargetRecord | None) -> TargetRecord:
    """What goes into the target, from what was asked for and what is in it. Raises InvalidArgument."""
    if known is None:
        if job.schema is not None:
            schema = ingest_schema.given(job.schema)
        else:
            schema = ingest_schema.sampled(spark, islice(_bodies(job), job.sample))
        return TargetRecord(job.space, job.queue, schema.jsonValue(), bool(job.keep_body))
    for what, now, then in (
        ("--space", job.space, known.space),
        ("QUEUE", job.queue, known.queue),
        ("--keep-body", known.keep_body if job.keep_body is None else job.keep_body, known.keep_body),
    ):
        if now != then:
            raise InvalidArgument(
                f"{root} was begun with {what} {then}, not {now}: go on with the same, or ingest into another target"
            )
    if job.schema is None:
        return known
    schema, before = ingest_schema.given(job.schema), StructType.fromJson(known.schema)
    types = {column.name: column.dataType for column in schema}
    if any(types.get(column.name) != column.dataType for column in before):  # old and new rows are read together
        raise InvalidArgument(
            f"{root} was begun with the schema {before.simpleString()}: columns may be added, and not "
            "changed or left out. Leave out --schema to go on with it, or ingest into another target"
        )
    return replace(known, schema=schema.jsonValue())


class _Ending(Exception):
    """Raised into Spark for a batch that it began while the query was ending: it must not count as done."""


@dataclass(slots=True)
class _Ingest:
    _job: IngestJob
    _spark: SparkSession
    _root: Path
    _target: Target
    _checkpoint: Checkpoint
    _record: TargetRecord
    _progress: IngestProgress = field(default_factory=IngestProgress)
    _at_work: Lock = field(default_factory=Lock)
    _ending: bool = False
    _failure: BaseException | None = None

    def run(self, notify: Callable[[IngestProgress], None], stopping: Callable[[], bool]) -> IngestProgress:
        started = time.monotonic()
        query = self._start()

        def so_far() -> IngestProgress:
            self._progress.seconds = time.monotonic() - started
            self._progress.lag = lag_of(query.lastProgress)
            return self._progress

        try:
            while not query.awaitTermination(LOOK_S):
                notify(so_far())
                if stopping():
                    self._ending = self._progress.stopped = True
                    with self._at_work:  # the batch at work comes to its end; one that begins now will not
                        pass
                    query.stop()
        except (StreamingQueryException, Py4JError, ConnectionError):
            if self._failure is not None:
                raise self._failure from None
            if not self._ending:
                raise
        finally:  # nothing is written any more, whatever ended the work; Spark may be gone
            with suppress(Py4JError, ConnectionError):
                if query.isActive:
                    query.stop()
        return so_far()

    def _start(self) -> StreamingQuery:
        job = self._job
        trigger: dict[str, Any] = {"availableNow": True} if job.once else {"processingTime": f"{job.every_s} seconds"}
        return (
            self._spark.readStream.format("xaqueue")
            .options(**_options(job), maxMessagesPerTrigger=str(job.most_per_trigger))
            .option("checkpointLocation", str(self._checkpoint.path))
            .load()
            .writeStream.queryName(f"ingest into {self._root}")
            .foreachBatch(self._batch)
            .option("checkpointLocation", str(self._checkpoint.path))
            .trigger(**trigger)
            .start()
        )

    def _batch(self, messages: DataFrame, number: int) -> None:
        with self._at_work:
            if self._ending:
                raise _Ending
            try:
                ingested = self._written(messages, number)
            except BaseException as error:
                self._failure = error
                raise
            if ingested is None:
                self._progress.repeated += 1
                return
            self._progress.rows += ingested.rows
            self._progress.dead_letters += ingested.dead_letters
            self._progress.batches += ingested != IngestedBatch(
                0, 0
            )  # the first of a stream that consumes has no messages

    def _written(self, messages: DataFrame, number: int) -> IngestedBatch | None:
        """None for a batch that is in place already."""
        offsets = self._checkpoint.offsets(number)
        if self._target.batch(number, offsets) is not None:
            return None
        if self._record.query is None:  # from the first batch on the target goes with this checkpoint alone
            self._record = replace(self._record, query=self._checkpoint.query())
            self._target.write_record(self._record)
        staged = self._root.parent / self._target.stage(number)
        schema = StructType.fromJson(self._record.schema)
        parsed = ingest_schema.parsed(messages, schema).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            _write(ingest_schema.rows(parsed, schema, keep_body=self._record.keep_body), staged / ROWS)
            _write(ingest_schema.dead_letters(parsed), staged / DEAD)
        finally:
            parsed.unpersist()
        ingested = IngestedBatch(written(staged / ROWS), written(staged / DEAD))
        self._checkpoint.harden(number)
        self._target.place(number, offsets, ingested)
        return ingested


def _options(job: IngestJob) -> dict[str, str]:
    """Of the source. Who asks what consumes a queue learns the target's name."""
    name = re.sub(r"[^\w.-]", "_", job.target.resolve().name)[:80]
    return {"path": job.space, "queue": job.queue, "streamName": f"ingest-{name}", **dict(job.options)}


def _bodies(job: IngestJob) -> Iterator[bytes]:
    """What is in the queues now, read by this process."""
    reader = QueueSource(_options(job) | {"consume": "keep"}).reader(StructType().add("body", BinaryType(), False))
    for partition in reader.partitions():
        for batch in reader.read(partition):
            yield from batch["body"].to_pylist()


def _write(table: DataFrame, directory: Path) -> None:
    writer = table.write.mode("append").partitionBy(*PARTITION).option("compression", "zstd")
    writer.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false").parquet(str(directory))


def lag_of(progress: Any) -> int | None:
    """The numbers between the end of the last batch and what is there."""
    if not progress or not progress["sources"]:
        return None
    source = progress["sources"][0]
    latest, end = (json.loads(source[name] or "null") for name in ("latestOffset", "endOffset"))
    if latest is None or end is None:
        return None
    return max(0, total(latest.get("spaces", latest)) - total(end.get("spaces", end)))


def total(offset: Any) -> int:
    """The sum of all numbers in an offset: how many messages were before it, gaps counted."""
    if isinstance(offset, Mapping):
        return sum(total(value) for value in offset.values())
    return offset if isinstance(offset, int) and not isinstance(offset, bool) else 0


def translation(error: BaseException) -> Error:
    """The error that Spark's report of a failure tells of."""
    text = str(error)
    ours = _RAISED.findall(text)
    if ours:
        name, said = ours[-1][0], ours[-1][1].replace("option failOnDataLoss=false", "--no-fail-on-data-loss")
        kind = getattr(errors, name, OperationalError)
        return kind(said) if isinstance(kind, type) and issubclass(kind, Error) else OperationalError(said)
    if isinstance(error, PySparkException):
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        said = lines[0] if lines else type(error).__name__
        return OperationalError(f"Spark failed: {said[:500]}; what is in the target stays, run it again to go on")
    return OperationalError("Spark's process ended: what is in the target stays, run it again to go on")
