"""What lies between two commit sequence numbers is planned by numbers and read as files.

The watermark says what is visible and the range directories say where to look, so that planning never lists messages.

Executors read the message files, which become Arrow batches (``xaqueue.lake.batches``): Spark takes a batch over at
once, and tuples one at a time at a fifth of the speed. A reader is pickled to executors for ``read``, which so may use
only what ``__getstate__`` keeps.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from math import ceil
from time import monotonic, sleep
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from xaqueue.errors import InvalidArgument, OperationalError, SpaceError
from xaqueue.lake.batches import record_batches
from xaqueue.lake.columns import Rows
from xaqueue.lake.place import Place, QueueScan, place_at
from xaqueue.spark import executor
from xaqueue.spark.options import log_ignored
from xaqueue.spark.source import plan
from xaqueue.spark.source.columns import Columns
from xaqueue.spark.source.options import SourceOptions
from xaqueue.spark.source.plan import EARLIEST, LATEST, Bounds, Offset, Timestamp
from xaqueue.spark.source.snapshot import QueueState, Spaces, SpaceSnapshot

SEEN_S = 20.0
"""For how long a task asks again for what the driver saw, each time that it is tried."""
POLL_S = 0.1

_log = logging.getLogger("xaqueue.spark")


class QueueKey(NamedTuple):
    """A queue of a query. ``number``: of its space; ``space_id`` and ``consumed``: what the driver has seen there;
    ``url``: of the server that reads it."""

    path: str
    number: int
    queue: str
    space_id: str
    consumed: int
    url: str = ""


QueueSpan = plan.QueueSpan[QueueKey]


@dataclass(frozen=True)
class ReadTask(InputPartition):
    """What one task reads. ``stream``: for whom it is reserved; empty where it is not."""

    spans: tuple[tuple[QueueKey, plan.Span], ...]
    stream: str = ""


class Reader:
    """What batch and stream have in common: planned by numbers, and read by whoever gets a task."""

    is_only_look = False
    """Whether all that it is to read is there now."""

    def __init__(
        self, options: SourceOptions, schema: StructType, opened: Callable[[str], object] | None = None
    ) -> None:
        """opened: as for ``Spaces``. Raises UnknownQueue or SpaceError, so that a wrong path fails the query before
        it runs.
        """
        self._options = options
        self._columns = Columns(schema, kafka=options.kafka)
        self._spaces = Spaces(options, opened, is_only_look=self.is_only_look)
        self._is_logged = False
        snapshot = self._spaces.look()
        if snapshot.missing and not snapshot.spaces:
            raise self._spaces.missing(snapshot.missing)
        self._spaces.check_queues(snapshot)

    def __getstate__(self) -> dict[str, Any]:
        """What ``read`` needs: the rest is threads and caches of the driver."""
        return {"_options": self._options, "_columns": self._columns}

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of a task. Raises DamagedBlock naming the file; SpaceError where some were taken away, and where
        this machine has not the space that the driver has planned.
        """
        if not isinstance(partition, ReadTask):
            raise TypeError(f"{partition!r} is not of this source")
        with ExitStack() as opened:
            places: dict[tuple[str, str], Place] = {}
            for key, span in partition.spans:
                if (key.path, key.space_id) not in places:
                    place = opened.enter_context(closing(place_at(key.path, key.url, key.space_id)))
                    places[key.path, key.space_id] = place
                with executor.readable(key.path):
                    reader = self._reader_of(places[key.path, key.space_id], key, span, partition.stream)
                    tries = reader.tries() if "tries" in self._columns.schema.names else {}
                    empty = Rows(key.queue, key.path, key.number, tries)
                    yield from record_batches(reader.files(*span), empty, self._columns)
                    self._check_same(key)  # all of it was read there
                    self._check_whole(reader, key, span, partition.stream)

    def _check_same(self, key: QueueKey) -> None:
        if not key.url:  # a server's answers tell
            executor.check_same(key.path, key.space_id)

    def _reader_of(self, place: Place, key: QueueKey, span: plan.Span, stream: str) -> QueueScan:
        """Once this machine sees what the driver saw, for caches of network file systems. SpaceError where it never
        does: it has a copy, where other messages may have these numbers.
        """
        self._check_same(key)
        reader, deadline = place.queue(key.queue), monotonic() + SEEN_S
        while True:
            found = reader.position()
            record, consumed, seen = found.record, found.consumed, found.seen
            is_kept = not stream or (record is not None and record.stream == stream and not record.released)
            if (is_kept and consumed >= key.consumed and seen >= span.upto) or monotonic() >= deadline:
                break
            sleep(POLL_S)
        where = f"queue {key.queue!r} of {key.path} as {executor.here()} sees it"
        if not is_kept or consumed < key.consumed:
            raise SpaceError(
                f"{where} is consumed to {consumed}{'' if is_kept else f' and not reserved for stream {stream}'}, and "
                f"to {key.consumed} as the driver sees it: it was released, or this is a copy; {executor.SAME}"
            )
        if seen < span.upto:
            self._lost(f"{where} ends at {seen}, and ({span.after}, {span.upto}] is to be read; {executor.SAME}")
        return reader

    def _check_whole(self, reader: QueueScan, key: QueueKey, span: plan.Span, stream: str) -> None:
        """What a stream consumes it consumes from the front; so nothing is missing that was not consumed before."""
        record = reader.position().record
        if record is None:
            return  # nobody ever consumed it, or not that it could be seen here
        if stream and (record.released or record.stream != stream):
            self._lost(f"queue {key.queue!r} of {key.path} was released from stream {stream} while it was read")
        elif record.consumed > span.after:
            self._lost(
                f"queue {key.queue!r} of {key.path} was consumed to {record.consumed} by stream "
                f"{record.stream}, while ({span.after}, {span.upto}] was read"
            )

    def _lost(self, what: str) -> None:
        """Raises SpaceError, or logs where the user has asked for no more."""
        if self._options.fails_on_loss:
            raise SpaceError(
                f"{what}: messages may be missing. Start another checkpoint, or go on with what there is with "
                "option failOnDataLoss=false"
            )
        _log.warning("[messages-missing] %s: messages may be missing", what)

    def _tasks(self, spans: Sequence[QueueSpan], stream: str = "") -> list[InputPartition]:
        options = self._options
        messages = sum(span.size for span in spans)
        pieces = options.least_partitions or options.tasks.of(messages)
        if options.most_of_partition is not None:
            pieces = max(pieces, ceil(messages / options.most_of_partition))
        return [ReadTask(tuple(task), stream) for task in plan.partition(spans, pieces) or [[]]]

    def _log_once(self) -> None:
        """What there is to say of the options, once a query: its planning is all done by one of these."""
        if not self._is_logged:
            log_ignored(self._options.ignored)
        self._is_logged = True

    def _ahead(self, asked: str, state: QueueState) -> OperationalError:
        return SpaceError(
            f"{asked} is ahead of queue {state.name!r} in {state.path}, which ends at {state.watermark}: the space was "
            "emptied or restored from an older copy, or this is another space. Start another checkpoint, or mend the "
            "path"
        )

    def _resolved(self, snapshot: SpaceSnapshot, bounds: Bounds) -> dict[str, dict[str, int]]:
        """Where a new query begins or ends, of all queues there are. Raises SpaceError for a number ahead of its queue,
        InvalidArgument for a moment to begin at that has to have a message, and has none.
        """
        name = bounds.option
        needs_message = name.startswith("starting") and self._options.needs_message
        found: dict[str, dict[str, int]] = {}
        for number, (path, queues) in enumerate(snapshot.spaces.items()):
            found[path] = {}
            for queue, state in queues.items():
                given = bounds.of(path, number, queue)
                offset = _number(given, state)
                if needs_message and isinstance(given, Timestamp) and offset == state.watermark:
                    raise InvalidArgument(
                        f"no message of queue {queue!r} in {path} was committed at {given.ms} of {name} or later: give "
                        "an earlier time, or begin with what comes with startingOffsetsByTimestampStrategy=latest"
                    )
                if offset > state.watermark:
                    raise self._ahead(f"{name} {offset}", state)
                if offset < state.consumed and not isinstance(given, Timestamp):
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
                        f"read here: {', '.join(there) or 'none'} are. Mend the name, or read that queue, too"
                    )


def span_of(state: QueueState, number: int, after: int, upto: int, url: str = "") -> QueueSpan:
    """What is to be read of a queue, with the directories there are now. number: of its space."""
    held = plan.spans(state.reader.ranges(), after, upto) if upto > after else ()
    key = QueueKey(state.path, number, state.name, state.space_id, state.consumed, url)
    return plan.QueueSpan(key, after, upto, held)


def _number(given: Offset, state: QueueState) -> int:
    if isinstance(given, Timestamp):
        return state.reader.last_before(given.ms, state.watermark)
    if given == LATEST:
        return state.watermark
    return state.consumed if given == EARLIEST else int(given)
