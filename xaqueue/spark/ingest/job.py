"""``xaqueue ingest``: queues flow into a directory of Parquet files, each message once, as a row or as a dead letter.

One streaming query reads the queues, since a queue that is consumed can have only one. Each of its batches is parsed
once, written to staging as two tables, counted by what the files say, and put into place; see ``ingest_target``.
Spark goes on to the next batch, and the source removes messages, only after that.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import StorageLevel
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import BinaryType, StructType

from xaqueue import errors
from xaqueue.errors import Error, InvalidArgument, OperationalError
from xaqueue.spark.ingest import schema as ingest_schema
from xaqueue.spark.ingest.target import (
    CHECKPOINT,
    DEAD,
    ROWS,
    PlacedBatch,
    Target,
    TargetRecord,
    open_target,
    written,
)
from xaqueue.spark.source.checkpoint import Checkpoint, check
from xaqueue.spark.source.source import QueueSource

SAMPLE = 1_000
LOOK_S = 1
"""How often the query is looked at."""
_RAISED = re.compile(r"xaqueue\.errors\.(\w+): (.+)")
FILE_OPTIONS = {"mapreduce.fileoutputcommitter.marksuccessfuljobs": "false", "compression": "zstd"}


@dataclass(frozen=True, slots=True)
class IngestJob:
    """What is to be ingested. ``space`` and ``queue`` are the source's options path and queue."""

    space: str
    queue: str
    target: Path
    schema: str | None = None
    """DDL, or a file; None takes it from the target, or from a sample."""
    sample: int = SAMPLE
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


@dataclass(slots=True)
class IngestProgress:
    """How far it is. ``lag``: messages that wait, as of the last batch; None before it."""

    rows: int = 0
    dead_letters: int = 0
    batches: int = 0
    repeated: int = 0
    """Batches that were in place already: of a run that was killed."""
    seconds: float = 0.0
    lag: int | None = None
    stopped: bool = False
    """It was asked to end before there was nothing left."""

    @property
    def messages(self) -> int:
        return self.rows + self.dead_letters


def check_source(job: IngestJob) -> None:
    """Without Spark's session: raises what is wrong with space, queue or options."""
    source = QueueSource(dict(_options(job)))
    source.streamReader(source.schema())


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
    check_source(job)
    with (
        open_target(job.target) as (root, target),
        closing(Checkpoint((job.checkpoint or root / CHECKPOINT).resolve())) as checkpoint,
        translated(),
    ):
        known = target.record()
        check(checkpoint, known.query if known else None, root)
        return _Ingest(job, spark(), root, target, checkpoint, known).run(notify, stopping)


class _Ending(Exception):
    """Raised into Spark for a batch that it began while the query was ending: it must not count as done."""


class _Ingest:
    def __init__(
        self,
        job: IngestJob,
        spark: SparkSession,
        root: Path,
        target: Target,
        checkpoint: Checkpoint,
        known: TargetRecord | None,
    ) -> None:
        self._job = job
        self._spark = spark
        self._root = root
        self._target = target
        self._checkpoint = checkpoint
        self._progress = IngestProgress()
        self._at_work = threading.Lock()
        self._ending = False
        self._failure: BaseException | None = None
        self._record = self._settled(known)
        if self._record != known:
            self._target.write_record(self._record)
        self._schema = StructType.fromJson(self._record.schema)

    def run(self, notify: Callable[[IngestProgress], None], stopping: Callable[[], bool]) -> IngestProgress:
        started = time.monotonic()
        query = self._start()
        try:
            while not query.awaitTermination(LOOK_S):
                self._progress.seconds = time.monotonic() - started
                self._progress.lag = lag_of(query.lastProgress)
                notify(self._progress)
                if stopping():
                    self._end(query)
        except (StreamingQueryException, Py4JError, ConnectionError):
            if self._failure is not None:
                raise self._failure from None
            if not self._ending:
                raise
        finally:
            _stop(query)
        self._progress.seconds = time.monotonic() - started
        self._progress.lag = lag_of(query.lastProgress)
        return self._progress

    def _start(self) -> StreamingQuery:
        trigger: dict[str, Any] = {"processingTime": f"{self._job.every_s} seconds"}
        if self._job.once:
            trigger = {"availableNow": True}
        return (
            self._spark.readStream.format("xaqueue")
            .options(**_options(self._job), maxMessagesPerTrigger=str(self._job.most_per_trigger))
            .option("checkpointLocation", str(self._checkpoint.path))
            .load()
            .writeStream.queryName(f"ingest into {self._root}")
            .foreachBatch(self._batch)
            .option("checkpointLocation", str(self._checkpoint.path))
            .trigger(**trigger)
            .start()
        )

    def _end(self, query: StreamingQuery) -> None:
        """The batch at work comes to its end; one that begins now will not."""
        self._ending = self._progress.stopped = True
        with self._at_work:
            pass
        query.stop()

    def _batch(self, messages: DataFrame, number: int) -> None:
        with self._at_work:
            if self._ending:
                raise _Ending
            try:
                placed = self._written(messages, number)
            except BaseException as error:
                self._failure = error
                raise
            if placed is None:
                self._progress.repeated += 1
                return
            self._progress.rows += placed.rows
            self._progress.dead_letters += placed.dead_letters
            self._progress.batches += placed != PlacedBatch(0, 0)  # the first of a stream that consumes has no messages

    def _written(self, messages: DataFrame, number: int) -> PlacedBatch | None:
        """None for a batch that is in place already."""
        offsets = self._checkpoint.offsets(number)
        if self._target.batch(number, offsets) is not None:
            return None
        if self._record.query is None:  # from the first batch on the target goes with this checkpoint alone
            self._record = replace(self._record, query=self._checkpoint.query())
            self._target.write_record(self._record)
        staged = self._root.parent / self._target.stage(number)
        parsed = ingest_schema.parsed(messages, self._schema).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            _write(ingest_schema.rows(parsed, self._schema, keep_body=self._record.keep_body), staged / ROWS)
            _write(ingest_schema.dead_letters(parsed), staged / DEAD)
        finally:
            parsed.unpersist()
        placed = PlacedBatch(written(staged / ROWS), written(staged / DEAD))
        if placed == PlacedBatch(0, 0):
            self._target.drop(number)
        else:
            self._checkpoint.harden(number)
            self._target.place(number, offsets, placed)
        return placed

    def _settled(self, known: TargetRecord | None) -> TargetRecord:
        """What goes into the target, from what was asked for and what is in it. Raises InvalidArgument."""
        job = self._job
        if known is None:
            if job.schema is not None:
                schema = ingest_schema.given(job.schema)
            else:
                schema = ingest_schema.sampled(self._spark, islice(_bodies(job), job.sample))
            return TargetRecord(job.space, job.queue, schema.jsonValue(), bool(job.keep_body))
        for what, now, then in (
            ("--space", job.space, known.space),
            ("QUEUE", job.queue, known.queue),
            ("--keep-body", known.keep_body if job.keep_body is None else job.keep_body, known.keep_body),
        ):
            if now != then:
                raise InvalidArgument(
                    f"{self._root} was begun with {what} {then}, not {now}: "
                    "go on with the same, or ingest into another target"
                )
        if job.schema is None:
            return known
        schema, before = ingest_schema.given(job.schema), StructType.fromJson(known.schema)
        if not ingest_schema.grown(before, schema):
            raise InvalidArgument(
                f"{self._root} was begun with the schema {before.simpleString()}: columns may be added, and not "
                "changed or left out. Leave out --schema to go on with it, or ingest into another target"
            )
        return replace(known, schema=schema.jsonValue())


def _stop(query: StreamingQuery) -> None:
    """Nothing is written any more, whatever ended the work. Spark may be gone."""
    with suppress(Py4JError, ConnectionError):
        if query.isActive:
            query.stop()


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
    partitions = table.write.mode("append").partitionBy(*ingest_schema.PARTITION)
    partitions.options(**FILE_OPTIONS).parquet(str(directory))


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


@contextmanager
def translated() -> Iterator[None]:
    """What fails inside Spark is raised as what it is: ours by its own class, all else in a sentence."""
    try:
        yield
    except (PySparkException, Py4JError, ConnectionError) as error:
        raise translation(error) from error


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
