"""A queue is a Spark source whose offsets are commit sequence numbers: ``{"seq": N}`` is the last one consumed.

The watermark says what is visible and the range directories say where to look, so that planning never lists messages.
Executors read the message files themselves. Nothing here writes, locks or waits: a query that hangs in its source
hangs for ever. Messages that others consume before they are read are simply absent.

Spark makes the objects here in several processes: the stream reader lives beside the driver for planning, and a second
one is pickled to the executors for ``read``, which so may use only what the constructor has stored.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from xaqueue.errors import InvalidArgument, SpaceError, UnknownQueue
from xaqueue.space.definitions import Definitions, suggestion
from xaqueue.space.definitions import parse as parse_definitions
from xaqueue.space.layout import QUEUES
from xaqueue.space.reader import QueueReader, queues
from xaqueue.spark import plan
from xaqueue.spark.options import EARLIEST, LATEST, Options, parse
from xaqueue.spark.rows import SCHEMA, arrow_schema, record_batches

LEAST_MESSAGES = 5_000
MOST_MESSAGES = 100_000
"""Of a partition, where ``minpartitions`` doesn't say otherwise: a task costs as much as reading some 7,000 messages,
so one a core is best, as long as a retry does not repeat too much."""

Offset = dict[str, int]


class QueueSource(DataSource):
    """The format ``xaqueue``. Options: ``path`` (the space's directory), ``queue``, and those in ``options.py``."""

    @classmethod
    def name(cls) -> str:
        return "xaqueue"

    def schema(self) -> StructType:
        return SCHEMA

    def reader(self, schema: StructType) -> BatchReader:
        return BatchReader(parse(self.options), schema)

    def streamReader(self, schema: StructType) -> StreamReader:
        return StreamReader(parse(self.options), schema)


@dataclass(frozen=True)
class Range(InputPartition):
    """One task's share: the sequence numbers with after < seq <= upto."""

    after: int
    upto: int


class _Reader:
    """What batch and stream have in common: one queue, planned by numbers and read by whoever gets a range."""

    def __init__(self, options: Options, schema: StructType) -> None:
        """Raises UnknownQueue or SpaceError, so that a wrong path fails the query before it runs."""
        self._options = options
        self._schema = arrow_schema(schema)
        self._queue = QueueReader(options.path, options.queue)
        try:
            empty = self._queue.watermark() == 0
        except SpaceError as error:
            raise SpaceError(f"cannot read queue {options.queue!r}: {error}") from None
        if empty:
            _check_queue(options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of the range that are there now. Raises DamagedBlock naming the file."""
        if not isinstance(partition, Range):
            raise TypeError(f"{partition!r} is not of this source")
        messages = self._queue.read(partition.after, partition.upto)
        return record_batches(messages, Path(self._options.path), self._options.queue, self._schema)

    def _cut(self, after: int, upto: int) -> list[InputPartition]:
        held = plan.spans(self._queue.ranges(), after, upto)
        pieces = self._options.least_partitions or _pieces(sum(span.size for span in held))
        return [Range(*span) for span in plan.cut(held, after, upto, pieces)]

    def _position(self, given: int | str, watermark: int) -> int:
        if given == LATEST:
            return watermark
        if given == EARLIEST:
            return 0
        return int(given)

    def _ahead(self, asked: str, watermark: int) -> SpaceError:
        return SpaceError(
            f"{asked} is ahead of queue {self._options.queue!r} in {self._options.path}, which ends at {watermark}: "
            "the space was emptied or restored from an older copy, or this is another space"
        )


class BatchReader(_Reader, DataSourceReader):
    """One look at the queue: what lies between ``startingoffsets`` and ``endingoffsets`` when the query is planned."""

    def partitions(self) -> list[InputPartition]:
        watermark = self._queue.watermark()
        after = self._position(self._options.start, watermark)
        upto = self._position(self._options.end, watermark)
        for name, number in (("startingoffsets", after), ("endingoffsets", upto)):
            if number > watermark:
                raise self._ahead(f"{name} {number}", watermark)
        if after > upto:
            raise InvalidArgument(
                f"startingoffsets {after} lies behind endingoffsets {upto}: the first must not be the larger"
            )
        return self._cut(after, upto)


class StreamReader(_Reader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream over the queue. Its state is a cache only: any method may be the first call after a restart."""

    def __init__(self, options: Options, schema: StructType) -> None:
        super().__init__(options, schema)
        if options.end != LATEST:
            raise InvalidArgument('option "endingoffsets" is for spark.read: a stream ends where its trigger says')
        self._initial: int | None = None
        self._target: int | None = None

    def initialOffset(self) -> Offset:
        """Where a new query begins. Spark asks twice and is told the same."""
        if self._initial is None:
            watermark = self._queue.watermark()
            self._initial = self._position(self._options.start, watermark)
            if self._initial > watermark:
                raise self._ahead(f"startingoffsets {self._initial}", watermark)
        return {"seq": self._initial}

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self._options.most_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._queue.watermark()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """The end of the next batch: the watermark, or as many messages on as ``limit`` admits."""
        after, watermark = start["seq"], self._queue.watermark()
        if after > watermark:
            raise self._ahead(f"the stream's offset {after}", watermark)
        upto = watermark if self._target is None else max(after, min(self._target, watermark))
        if isinstance(limit, ReadAllAvailable):
            return {"seq": upto}
        if not isinstance(limit, ReadMaxRows):
            raise InvalidArgument(f"{type(limit).__name__} is no limit of this source: it counts messages")
        if upto - after <= limit.max_rows:
            return {"seq": upto}
        return {"seq": plan.limited(plan.spans(self._queue.ranges(), after, upto), upto, limit.max_rows)}

    def reportLatestOffset(self) -> Offset:
        """For ``latestOffset`` in the query's progress: the lag is the difference to its ``endOffset``."""
        return {"seq": self._queue.watermark()}

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        after, upto = start["seq"], end["seq"]
        watermark = self._queue.watermark()
        if upto > watermark:
            raise self._ahead(f"the stream's offset {upto}", watermark)
        return self._cut(after, upto)

    def commit(self, end: Offset) -> None:
        """Nothing: this source only reads, and what is in a queue is removed by those who consume it."""


def _pieces(messages: int) -> int:
    return max(min(os.cpu_count() or 1, ceil(messages / LEAST_MESSAGES)), ceil(messages / MOST_MESSAGES))


def _check_queue(options: Options) -> None:
    """UnknownQueue for a queue that has had no message and that queues.toml does not allow."""
    found = queues(options.path)
    written = Path(options.path) / QUEUES
    defined = parse_definitions(written.read_text()) if written.is_file() else Definitions()
    if options.queue in found or options.queue in defined.queues or defined.default is not None:
        return
    known = sorted({*found, *defined.queues})
    raise UnknownQueue(
        f"{options.path} has no queue {options.queue!r}{suggestion(options.queue, known)}; "
        f"its queues are {', '.join(known) or 'none yet'}"
    )
