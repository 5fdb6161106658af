"""Queues are a Spark source: what lies between two commit sequence numbers is planned by numbers and read as files.

The watermark says what is visible and the range directories say where to look, so that planning never lists messages.
Executors read the message files themselves.

Spark makes the objects here in several processes: the stream reader lives beside the driver for planning, and a second
one is pickled to the executors for ``read``, which so may use only what the constructor has stored.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import ceil
from socket import gethostname
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import StructType

from xaqueue.errors import InvalidArgument, OperationalError, SpaceError
from xaqueue.space.offline.reader import QueueReader
from xaqueue.spark import columns, plan
from xaqueue.spark.columns import Columns, Rows
from xaqueue.spark.option_text import log_ignored
from xaqueue.spark.options import KEEP, Options, parse
from xaqueue.spark.positions import EARLIEST, LATEST, Moment, Position, Positions
from xaqueue.spark.rows import files, record_batches
from xaqueue.spark.times import last_before
from xaqueue.spark.view import Queue, Spaces, View, reserved

if TYPE_CHECKING:
    from xaqueue.spark.stream import StreamReader

_log = logging.getLogger("xaqueue.spark")


class QueueSource(DataSource):
    """The format ``xaqueue``. Options: see ``options.py`` for reading, and ``sink.py`` for writing."""

    tasks = plan.Tasks()

    @classmethod
    def name(cls) -> str:
        return "xaqueue"

    def schema(self) -> StructType:
        options = parse(self.options)
        return columns.schema(kafka=options.kafka, headers=options.headers, everything=options.everything)

    def reader(self, schema: StructType) -> BatchReader:
        return BatchReader(self._options(), schema)

    def streamReader(self, schema: StructType) -> StreamReader:
        from xaqueue.spark.stream import StreamReader

        return StreamReader(self._options(stream=True), schema)

    def _options(self, *, stream: bool = False) -> Options:
        return replace(parse(self.options, stream=stream), tasks=self.tasks)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from xaqueue.spark import sink

        return sink.batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from xaqueue.spark import sink

        return sink.stream_writer(self.options, schema, overwrite)


@dataclass(frozen=True, slots=True)
class Range:
    """The sequence numbers with after < seq <= upto of a queue. ``number``: of the space in this query."""

    space: str
    number: int
    queue: str
    after: int
    upto: int


@dataclass(frozen=True)
class Share(InputPartition):
    """What one task reads. ``stream``: for whom it is reserved; empty where it is not."""

    ranges: tuple[Range, ...]
    stream: str = ""


class Reader:
    """What batch and stream have in common: planned by numbers, and read by whoever gets a share."""

    def __init__(self, options: Options, schema: StructType, opened: Callable[[str], object] | None = None) -> None:
        """opened: as for ``Spaces``. Raises UnknownQueue or SpaceError, so that a wrong path fails the query before
        it runs.
        """
        self._options = options
        self._columns = Columns(schema, kafka=options.kafka)
        self._spaces = Spaces(options, opened)
        self._is_told = False
        view = self._spaces.look()
        if view.missing and not view.spaces:
            raise self._spaces.missing(view)
        self._unknown = self._spaces.check_queues(view)

    def __getstate__(self) -> dict[str, Any]:
        """What ``read`` needs: the rest is threads and caches of the driver."""
        return {"_options": self._options, "_columns": self._columns}

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of the share. Raises DamagedBlock naming the file, SpaceError where some were taken away."""
        if not isinstance(partition, Share):
            raise TypeError(f"{partition!r} is not of this source")
        for part in partition.ranges:
            reader = QueueReader(part.space, part.queue)
            self._check_seen(reader, part)
            found = files(reader, part.after, part.upto, times="times_ns" in self._columns.needs)
            yield from record_batches(found, Rows(part.queue, part.space, part.number), self._columns)
            self._check_whole(reader, part, partition.stream)

    def _check_seen(self, reader: QueueReader, part: Range) -> None:
        """Another machine may have an older copy, another space or nothing where the driver has this one."""
        seen = max(reader.watermark(), reader.consumed())
        if seen < part.upto:
            self._lost(
                f"queue {part.queue!r} of {part.space} ends at {seen} as {gethostname()} sees it, and "
                f"({part.after}, {part.upto}] is to be read; executors need the same directory under this path"
            )

    def _check_whole(self, reader: QueueReader, part: Range, stream: str) -> None:
        """What a stream consumes it consumes from the front; so nothing is missing that was not consumed before."""
        record = reserved(reader)
        if record is None:
            return  # none that can be seen yet on this machine, and a record never goes
        if stream and (record.released or record.stream != stream):
            self._lost(f"queue {part.queue!r} of {part.space} was released from stream {stream} while it was read")
        elif record.consumed > part.after:
            self._lost(
                f"queue {part.queue!r} of {part.space} was consumed to {record.consumed} by stream {record.stream}, "
                f"while ({part.after}, {part.upto}] was read"
            )

    def _lost(self, what: str) -> None:
        """Raises SpaceError, or logs where the user has asked for no more."""
        if self._options.fails_on_loss:
            raise SpaceError(
                f"{what}: messages may be missing. Start another checkpoint, or go on with what there is with "
                "option failOnDataLoss=false"
            )
        _log.warning("%s: messages may be missing", what)

    def _shares(self, lanes: list[plan.Lane[tuple[str, int, str]]], stream: str = "") -> list[InputPartition]:
        messages = sum(lane.size for lane in lanes)
        pieces = self._options.least_partitions or self._options.tasks.of(messages)
        if self._options.most_of_partition is not None:
            pieces = max(pieces, ceil(messages / self._options.most_of_partition))
        hands = plan.deal(lanes, pieces)
        return [Share(tuple(Range(*key, *span) for key, span in hand), stream) for hand in hands] or [Share((), stream)]

    def _tell_once(self) -> None:
        """What there is to say of the options, once a query: its planning is all done by one of these."""
        if not self._is_told:
            log_ignored(self._options.ignored)
            for unknown in self._unknown:
                _log.warning("%s", unknown)
        self._is_told = True

    def _position(self, given: Position, queue: Queue) -> int:
        if isinstance(given, Moment):
            return last_before(queue.reader, given.ms, queue.watermark)
        if given == LATEST:
            return queue.watermark
        return queue.consumed if given == EARLIEST else int(given)

    def _ahead(self, asked: str, path: str, name: str, queue: Queue) -> OperationalError:
        return SpaceError(
            f"{asked} is ahead of queue {name!r} in {path}, which ends at {queue.watermark}: the space was emptied or "
            "restored from an older copy, or this is another space. Start another checkpoint, or mend the path"
        )

    def _begin(self, view: View) -> dict[str, dict[str, int]]:
        """Where a new query begins, of all queues there are. Raises SpaceError for a number ahead of its queue."""
        return self._resolve(view, self._options.start, needs_message=self._options.needs_message_from_start)

    def _resolve(self, view: View, positions: Positions, *, needs_message: bool = False) -> dict[str, dict[str, int]]:
        name = positions.option
        found: dict[str, dict[str, int]] = {}
        for number, (path, queues) in enumerate(view.spaces.items()):
            found[path] = {}
            for queue, state in queues.items():
                given = positions.of(path, number, queue)
                position = self._position(given, state)
                if needs_message and isinstance(given, Moment) and position == state.watermark:
                    raise InvalidArgument(
                        f"no message of queue {queue!r} in {path} was committed at {given.ms} of {name} or later: give "
                        "an earlier time, or begin with what comes with startingOffsetsByTimestampStrategy=latest"
                    )
                if position > state.watermark:
                    raise self._ahead(f"{name} {position}", path, queue, state)
                if position < state.consumed:
                    if not isinstance(given, Moment):
                        self._lost(
                            f"{name} {position} of queue {queue!r} in {path} lies below {state.consumed}, up to which "
                            "it was consumed"
                        )
                    position = state.consumed
                found[path][queue] = position
        return found

    def _check_named(self, view: View) -> None:
        """InvalidArgument for a queue or space that only the positions name: a slip of the pen."""
        for positions in (self._options.start, self._options.end):
            for place, queue in positions.named:
                spaces = {**view.spaces, **{str(number): view.spaces[p] for number, p in enumerate(view.spaces)}}
                if not any(queue in queues for path, queues in spaces.items() if place in ("", path)):
                    raise InvalidArgument(
                        f"option {positions.option!r} names queue {queue!r}{place and f' of {place}'}, which is not "
                        "read here: "
                        f"{', '.join(sorted({q for queues in view.spaces.values() for q in queues})) or 'none'} are"
                    )


class BatchReader(Reader, DataSourceReader):
    """One look at the queues: what lies between start and end when the query is planned."""

    def __init__(self, options: Options, schema: StructType) -> None:
        super().__init__(options, schema)
        if options.consume != KEEP:
            raise InvalidArgument(f"consume={options.consume} is for spark.readStream: spark.read removes nothing")

    def partitions(self) -> list[InputPartition]:
        self._tell_once()
        view = self._spaces.look()
        self._check_named(view)
        start = self._begin(view)
        end = self._resolve(view, self._options.end)
        lanes = []
        for number, (path, queues) in enumerate(view.spaces.items()):
            for queue, state in queues.items():
                after, upto = start[path][queue], end[path][queue]
                if after > upto:
                    raise InvalidArgument(
                        f"startingOffsets {after} lies behind endingOffsets {upto} in queue {queue!r} of {path}: the "
                        "first must not be the larger"
                    )
                lanes.append(lane(state.reader, (path, number, queue), after, upto))
        return self._shares(lanes)


def lane(reader: QueueReader, key: tuple[str, int, str], after: int, upto: int) -> plan.Lane[tuple[str, int, str]]:
    """What is to be read of a queue, with the directories there are now."""
    return plan.Lane(key, after, upto, plan.spans(reader.ranges(), after, upto) if upto > after else ())
