"""What lies between two commit sequence numbers is planned by numbers and read as files.

The watermark says what is visible and the range directories say where to look, so that planning never lists messages.
Executors read the message files themselves. A reader is pickled to them for ``read``, which so may use only what
``__getstate__`` keeps.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from socket import gethostname
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from xaqueue.errors import InvalidArgument, OperationalError, SpaceError
from xaqueue.space.offline.reader import QueueReader
from xaqueue.spark.options import log_ignored
from xaqueue.spark.source import plan
from xaqueue.spark.source.columns import Columns, Rows
from xaqueue.spark.source.offsets import EARLIEST, LATEST, Bounds, Moment, Offset
from xaqueue.spark.source.options import SourceOptions
from xaqueue.spark.source.rows import files, last_before, record_batches
from xaqueue.spark.source.snapshot import QueueState, Spaces, SpaceSnapshot, reserved

_log = logging.getLogger("xaqueue.spark")


class QueueKey(NamedTuple):
    """A queue of a query. ``number``: of its space."""

    path: str
    number: int
    queue: str


QueueSpan = plan.QueueSpan[QueueKey]


@dataclass(frozen=True)
class ReadTask(InputPartition):
    """What one task reads. ``stream``: for whom it is reserved; empty where it is not."""

    spans: tuple[tuple[QueueKey, plan.Span], ...]
    stream: str = ""


class Reader:
    """What batch and stream have in common: planned by numbers, and read by whoever gets a task."""

    def __init__(
        self, options: SourceOptions, schema: StructType, opened: Callable[[str], object] | None = None
    ) -> None:
        """opened: as for ``Spaces``. Raises UnknownQueue or SpaceError, so that a wrong path fails the query before
        it runs.
        """
        self._options = options
        self._columns = Columns(schema, kafka=options.kafka)
        self._spaces = Spaces(options, opened)
        self._is_logged = False
        snapshot = self._spaces.look()
        if snapshot.missing and not snapshot.spaces:
            raise self._spaces.missing(snapshot.missing)
        self._unknown = self._spaces.check_queues(snapshot)

    def __getstate__(self) -> dict[str, Any]:
        """What ``read`` needs: the rest is threads and caches of the driver."""
        return {"_options": self._options, "_columns": self._columns}

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of a task. Raises DamagedBlock naming the file, SpaceError where some were taken away."""
        if not isinstance(partition, ReadTask):
            raise TypeError(f"{partition!r} is not of this source")
        for (path, number, queue), span in partition.spans:
            reader = QueueReader(path, queue)
            self._check_seen(reader, span)
            found = files(reader, *span, times="times_ns" in self._columns.needs)
            tries = reader.tries() if "tries" in self._columns.schema.names else {}
            yield from record_batches(found, Rows(queue, path, number, tries), self._columns)
            self._check_whole(reader, span, partition.stream)

    def _check_seen(self, reader: QueueReader, span: plan.Span) -> None:
        """Another machine may have an older copy, another space or nothing where the driver has this one."""
        seen = max(reader.watermark(), reader.consumed())
        if seen < span.upto:
            self._lost(
                f"queue {reader.queue!r} of {reader.space} ends at {seen} as {gethostname()} sees it, and "
                f"({span.after}, {span.upto}] is to be read; executors need the same directory under this path"
            )

    def _check_whole(self, reader: QueueReader, span: plan.Span, stream: str) -> None:
        """What a stream consumes it consumes from the front; so nothing is missing that was not consumed before."""
        record = reserved(reader)
        if record is None:
            return  # none that can be seen yet on this machine, and a record never goes
        if stream and (record.released or record.stream != stream):
            self._lost(f"queue {reader.queue!r} of {reader.space} was released from stream {stream} while it was read")
        elif record.consumed > span.after:
            self._lost(
                f"queue {reader.queue!r} of {reader.space} was consumed to {record.consumed} by stream "
                f"{record.stream}, while ({span.after}, {span.upto}] was read"
            )

    def _lost(self, what: str) -> None:
        """Raises SpaceError, or logs where the user has asked for no more."""
        if self._options.fails_on_loss:
            raise SpaceError(
                f"{what}: messages may be missing. Start another checkpoint, or go on with what there is with "
                "option failOnDataLoss=false"
            )
        _log.warning("%s: messages may be missing", what)

    def _tasks(self, spans: Sequence[QueueSpan], stream: str = "") -> list[InputPartition]:
        options = self._options
        messages = sum(span.size for span in spans)
        pieces = options.least_partitions or options.tasks.of(messages)
        if options.most_of_partition is not None:
            pieces = max(pieces, ceil(messages / options.most_of_partition))
        tasks = plan.partition(spans, pieces)
        return [ReadTask(tuple(task), stream) for task in tasks or [[]]]

    def _log_once(self) -> None:
        """What there is to say of the options, once a query: its planning is all done by one of these."""
        if not self._is_logged:
            log_ignored(self._options.ignored)
            for unknown in self._unknown:
                _log.warning("%s", unknown)
        self._is_logged = True

    def _ahead(self, asked: str, state: QueueState) -> OperationalError:
        return SpaceError(
            f"{asked} is ahead of queue {state.name!r} in {state.path}, which ends at {state.watermark}: the space was "
            "emptied or restored from an older copy, or this is another space. Start another checkpoint, or mend the "
            "path"
        )

    def _begin(self, snapshot: SpaceSnapshot) -> dict[str, dict[str, int]]:
        """Where a new query begins, of all queues there are. Raises SpaceError for a number ahead of its queue."""
        return self._resolved(snapshot, self._options.start, needs_message=self._options.needs_message)

    def _resolved(
        self, snapshot: SpaceSnapshot, bounds: Bounds, *, needs_message: bool = False
    ) -> dict[str, dict[str, int]]:
        name = bounds.option
        found: dict[str, dict[str, int]] = {}
        for number, (path, queues) in enumerate(snapshot.spaces.items()):
            found[path] = {}
            for queue, state in queues.items():
                given = bounds.of(path, number, queue)
                offset = _number(given, state)
                if needs_message and isinstance(given, Moment) and offset == state.watermark:
                    raise InvalidArgument(
                        f"no message of queue {queue!r} in {path} was committed at {given.ms} of {name} or later: give "
                        "an earlier time, or begin with what comes with startingOffsetsByTimestampStrategy=latest"
                    )
                if offset > state.watermark:
                    raise self._ahead(f"{name} {offset}", state)
                if offset < state.consumed and not isinstance(given, Moment):
                    self._lost(
                        f"{name} {offset} of queue {queue!r} in {path} lies below {state.consumed}, up to which "
                        "it was consumed"
                    )
                found[path][queue] = max(offset, state.consumed)
        return found

    def _check_named(self, snapshot: SpaceSnapshot) -> None:
        """InvalidArgument for a queue or space that only the offsets name: a slip of the pen."""
        spaces = {**snapshot.spaces, **{str(number): found for number, found in enumerate(snapshot.spaces.values())}}
        for bounds in (self._options.start, self._options.end):
            for space, queue in bounds.named:
                if not any(queue in queues for path, queues in spaces.items() if space in ("", path)):
                    there = sorted({state.name for state in snapshot.states})
                    raise InvalidArgument(
                        f"option {bounds.option!r} names queue {queue!r}{space and f' of {space}'}, which is not "
                        f"read here: {', '.join(there) or 'none'} are"
                    )


def span_of(state: QueueState, number: int, after: int, upto: int) -> QueueSpan:
    """What is to be read of a queue, with the directories there are now. number: of its space."""
    held = plan.spans(state.reader.ranges(), after, upto) if upto > after else ()
    return plan.QueueSpan(QueueKey(state.path, number, state.name), after, upto, held)


def _number(given: Offset, state: QueueState) -> int:
    if isinstance(given, Moment):
        return last_before(state.reader, given.ms, state.watermark)
    if given == LATEST:
        return state.watermark
    return state.consumed if given == EARLIEST else int(given)
