"""The format ``xaqueue`` as Spark finds it, the reader of one look at the queues, and a stream's.

Spark makes the objects of a source in several processes: a stream's reader lives beside the driver for planning, and a
second one is pickled to the executors.

A stream consumes its queues from the front: reserved while a batch is read, removed once that is for good. Nothing
waits for messages, and a space that does not answer is missing: a query that hangs in its source hangs for ever. What
is kept in memory is a cache only: any method may be the first call after a restart, and a batch that Spark has written
down is planned again from its offsets alone. Spark calls ``commit`` for a batch when the next one is written down, so
the last batch is removed when there is nothing new: its commit is durable by then.

The first batch of a new query that consumes has no messages, and so reserves nothing: Spark runs it although nothing is
new, and where the sink is not there or refuses what it is given, that fails and leaves the queues as they were. When
the next batch is planned, Spark knows it done.
"""

from __future__ import annotations

import logging
import shlex
import sys
from collections.abc import Sequence
from math import inf
from time import monotonic
from typing import Any, NoReturn
from uuid import uuid4

from pyspark.sql import datasource as spark
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming import datasource as streaming
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows
from pyspark.sql.types import StructType

from xaqueue.core.model.layout import LAST_SEQ
from xaqueue.errors import Error, InvalidArgument, QueueReserved, SpaceError
from xaqueue.spark.checkpoint import check_of
from xaqueue.spark.source import columns, plan, pushdown
from xaqueue.spark.source.consumer import Consumer
from xaqueue.spark.source.options import KEEP, SourceOptions, parse
from xaqueue.spark.source.plan import EARLIEST, LATEST, Bounds, StreamOffsets, between, nested, read
from xaqueue.spark.source.reader import QueueSpan, Reader, span_of
from xaqueue.spark.source.snapshot import QueueState, SpaceSnapshot

_log = logging.getLogger("xaqueue.spark")

Document = dict[str, Any]


class StreamReader(Reader, spark.DataSourceStreamReader, streaming.SupportsTriggerAvailableNow):
    """See the module. Offsets are ``plan.StreamOffsets``."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._consumer = Consumer(options)
        self._removes = options.removes
        super().__init__(options, schema, self._consumer.opened if self._removes else None)
        if options.end != Bounds(LATEST):
            way = "leave it out, and end with what is there by .trigger(availableNow=True)"
            raise InvalidArgument(f'option "{options.end.option}" is for spark.read: {way}')
        if options.wants_filters:
            raise InvalidArgument('option "pushFilters" is for spark.read: Spark tells no filters to a stream')
        self._initial: Document | None = None
        self._is_tried = self._is_checked = False
        self._latest_batch = -inf
        self._target: SpaceSnapshot | None = None
        self._latest: SpaceSnapshot | None = None
        self._idle: tuple[SpaceSnapshot | None, Document] = None, {}
        """At which look there was nothing new behind this offset, and that was consumed."""
        self._identity = f"{options.stream_name}#{uuid4()}"
        self._logged: frozenset[str] = frozenset()
        self._looked_at: set[tuple[str, str]] = set()
        self._logged_restored: set[tuple[str, str, int]] = set()

    def initialOffset(self) -> Document:
        """Where a new query begins. Spark asks twice and is given the same."""
        if self._initial is None:
            snapshot = self._spaces.look()
            self._check_named(snapshot)
            behind = self._options.start != Bounds(EARLIEST)
            begun = self._resolved(snapshot, self._options.start)
            offsets = StreamOffsets(self._identity, begun, snapshot.ids, initial=True, behind=behind)
            self._initial = offsets.document()
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:
        """One of the two limits: Spark has no word for both, so ``latestOffset`` looks at the options as well.

        All there is, is a number of messages, too: Spark says the other only where one batch is all that it will run.
        """
        options = self._options
        if options.most_messages is None and options.most_bytes is not None:
            return ReadMaxBytes(options.most_bytes)
        return ReadMaxRows(options.most_messages or sys.maxsize)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._spaces.look()

    def latestOffset(self, start: Document, limit: ReadLimit) -> Document:
        """The end of the next batch: all there is, or as much as ``limit`` and the options admit, from all queues.

        Raises QueueReserved for what another stream consumes.
        """
        self._log_once()
        begun = read(start)
        if not self._is_checked:
            check_of(self._options.checkpoint, begun.stream)
            self._is_checked = True
        snapshot = self._latest = self._spaces.look(begun.spaces)
        if snapshot is self._idle[0] and start == self._idle[1]:
            return start
        begun.check_spaces(snapshot.ids)
        if begun.initial and self._removes:
            self._check_not_kept(begun, snapshot)
        spans, joined = self._spans(begun, snapshot)
        spans = self._reachable(spans, snapshot)
        # see the module; a restart begins with what is written down, which no new query does, and has run that batch
        is_tried = self._is_tried or not self._removes or isinstance(limit, ReadAllAvailable) or start != self._initial
        self._is_tried = True
        if not is_tried:
            return start
        ends = {}
        if not self._is_delayed(sum(span.size for span in spans), limit):
            turn = sum(seq for queues in begun.spaces.values() for seq in queues.values())
            ends = self._admitted(spans, snapshot, limit, turn)
        if not ends:  # nothing is new, so all that was read is committed: it need not wait for a next batch
            self._consume(begun)
            if not (spans or (self._removes and self._options.skips_missing)):  # what was not consumed is, later
                self._idle = snapshot, start
            return start
        ended = nested((path, queue, seq) for (path, queue), seq in ends.items())
        begins = nested((path, queue, after) for (path, queue), after in joined.items() if (path, queue) in ends)
        consumed = nested((state.path, state.name, state.consumed) for state in snapshot.states if state.consumed)
        return begun.advanced(begun.stream or self._identity, ended, begins, snapshot.ids, consumed).document()

    def _is_delayed(self, messages: int, limit: ReadLimit) -> bool:
        """Whether the batch waits for more messages: not the first, nor where a trigger wants what there is."""
        options, now = self._options, monotonic()
        wants_all = self._target is not None or isinstance(limit, ReadAllAvailable)
        if options.least_messages is None or wants_all or not messages:
            return False
        if messages < options.least_messages and now - self._latest_batch < options.most_delay_s:
            return True
        self._latest_batch = now
        return False

    def reportLatestOffset(self) -> Document:
        """For ``latestOffset`` in the query's progress: the lag is the difference to its ``endOffset``."""
        snapshot = self._latest or self._spaces.look()
        return {"spaces": nested((state.path, state.name, state.watermark) for state in snapshot.states)}

    def partitions(self, start: Document, end: Document) -> list[InputPartition]:
        """The batch that Spark has written down: the same messages, however often it is asked."""
        self._log_once()
        ended = read(end)
        parts = list(between(read(start), ended))
        known = nested((path, queue, upto) for path, _, queue, _, upto in parts)
        snapshot = self._spaces.look(known, only_known=True)
        if snapshot.missing and self._options.fails_on_loss:  # a batch without them would lose what they hold
            raise self._spaces.missing(snapshot.missing, planned=True)
        if snapshot.missing:
            _log.warning(
                "[messages-missing] messages of this batch are given up: %s", "; ".join(snapshot.missing.values())
            )
        ended.check_spaces(snapshot.ids)
        spans = []
        for path, number, queue, after, upto in parts:
            if path in snapshot.spaces:
                state = snapshot.spaces[path][queue]
                self._check_not_restored(ended, state)
                if upto > state.watermark:
                    raise self._ahead(f"the stream's offset {upto}", state)
                if state.consumed > after:
                    self._lost(
                        f"{state} is consumed to {state.consumed} by stream {state.stream}, "
                        f"and ({after}, {upto}] was to be read"
                    )
                self._check_nothing_is_passed_over(ended, state, after)
                spans.append(span_of(state, number, after, upto, self._options.url_of(path)))
        stream = ended.stream if self._removes else ""
        if stream:
            self._consumer.reserve(
                stream, nested((key.path, key.queue, (after, upto)) for key, after, upto, _ in spans)
            )
        return self._tasks(spans, stream)

    def commit(self, end: Document) -> None:
        """Everything up to here is consumed. Spark says so late, or not at all: it holds for all before, too."""
        self._consume(read(end))

    def _spans(
        self, begun: StreamOffsets, snapshot: SpaceSnapshot
    ) -> tuple[list[QueueSpan], dict[tuple[str, str], int]]:
        """What there is to read, and where those queues begin that have joined."""
        spans: list[QueueSpan] = []
        joined: dict[tuple[str, str], int] = {}
        for state in snapshot.states:
            after = begun.at(state.path, state.name)
            if after is None:
                self._check_not_renamed(begun, snapshot, state)
                after = joined[state.path, state.name] = state.consumed
            if after > state.watermark:
                raise self._ahead(f"the stream's offset {after}", state)
            self._check_not_restored(begun, state)
            self._check_nothing_is_passed_over(begun, state, after)
            upto = state.watermark
            if self._target is not None:
                target = self._target.spaces.get(state.path, {}).get(state.name)
                upto = 0 if target is None else min(target.watermark, upto)
            if upto > after:
                spans.append(span_of(state, 0, after, upto, self._options.url_of(state.path)))
        return spans, joined

    def _admitted(
        self, spans: Sequence[QueueSpan], snapshot: SpaceSnapshot, limit: ReadLimit, turn: int
    ) -> dict[tuple[str, str], int]:
        """How far each queue is read in this batch; those that aren't are left out."""
        rows, size_bytes = self._options.most_messages, self._options.most_bytes
        if isinstance(limit, ReadAllAvailable):  # a trigger wants everything at once
            rows = size_bytes = None
        elif isinstance(limit, ReadMaxRows):
            rows = limit.max_rows
        elif isinstance(limit, ReadMaxBytes):
            size_bytes = limit.max_bytes
        else:
            raise InvalidArgument(f"{type(limit).__name__} is no limit of this source: it counts messages and bytes")
        rows = sys.maxsize if rows is None else rows
        if size_bytes is not None:
            readers = {key: snapshot.spaces[key.path][key.queue].reader for key, _, _, _ in spans}
            asked = {key: (readers[key].sizes(after, upto), after, upto) for key, after, upto, _ in spans}
            ends = plan.within_bytes(asked, size_bytes, rows, turn)
        else:
            shares = plan.fair_shares([span.size for span in spans], rows, turn)
            ends = {span.key: span.end(share) for span, share in zip(spans, shares, strict=True)}
        return {(key.path, key.queue): ends[key] for key, after, _, _ in spans if ends[key] > after}

    def _reachable(self, spans: list[QueueSpan], snapshot: SpaceSnapshot) -> list[QueueSpan]:
        """Without those of owners who do not answer, where missing spaces are to be skipped. These are logged once
        for as long as they are the same: Spark asks a hundred times a second.
        """
        failures = self._consumer.connect({span.key.path for span in spans}) if self._removes else {}
        if failures and not self._options.skips_missing:
            raise self._spaces.missing(failures)
        missing = {**snapshot.missing, **failures}
        if missing and self._logged != frozenset(missing):
            _log.warning("[space-missing] left out until they are back: %s", "; ".join(missing.values()))
        self._logged = frozenset(missing)
        return [span for span in spans if span.key.path not in failures]

    def _consume(self, through: StreamOffsets) -> None:
        """Of spaces that are not named any more there may be nobody to ask."""
        if self._removes and through.stream and not through.initial:
            named = {path: queues for path, queues in through.spaces.items() if self._spaces.names_space(path)}
            self._consumer.consume(through.stream, named)

    def _check_not_kept(self, begun: StreamOffsets, snapshot: SpaceSnapshot) -> None:
        """QueueReserved for a new query where another stream consumes: maybe this one, whose checkpoint was lost."""
        for state in snapshot.states:
            record = state.record
            if record is not None and not record.released and record.stream != begun.stream:
                after = max(begun.at(state.path, state.name) or 0, state.consumed)
                raise QueueReserved(
                    f"{state} is reserved for stream {record.stream}, and the checkpoint of this query is new: go on "
                    f"with that stream's checkpoint; where it is lost, `xaqueue release {state.name} --space "
                    f"{shlex.quote(state.path)}` ends the reservation, and this query reads from message {after + 1} on"
                )

    def _check_not_renamed(self, begun: StreamOffsets, snapshot: SpaceSnapshot, state: QueueState) -> None:
        """What this stream has reserved is in its offsets: only under a path that is gone, it would be read twice."""
        if not begun.stream or state.stream != begun.stream:
            return
        for former, queues in begun.spaces.items():
            if former not in snapshot.spaces and queues.get(state.name):
                raise SpaceError(
                    f"{state} is reserved for this stream, which has read it as {former} as far as "
                    f"{queues[state.name]}: the space was renamed. Give it its former path, or make that a link to it"
                )

    def _check_not_restored(self, known: StreamOffsets, state: QueueState) -> None:
        """A space never forgets what was consumed: an older copy of it does. Said once, where that is enough."""
        was = known.consumed.get(state.path, {}).get(state.name, 0)
        if state.consumed < was and (state.path, state.name, was) not in self._logged_restored:
            self._lost(
                f"{state} is consumed to {state.consumed} and was to {was} when the stream read it: the space was "
                "restored from an older copy, where new messages have the numbers of others that were read, or its "
                f"record of that was damaged (run `xaqueue release {state.name} --space {state.path}` before you start "
                "another checkpoint)"
            )
            self._logged_restored.add((state.path, state.name, was))

    def _check_nothing_is_passed_over(self, known: StreamOffsets, state: QueueState, after: int) -> None:
        """A queue is consumed from its front: a stream that began behind messages would remove them unread, also one
        that kept until now. Looked at once a queue, until it is reserved.
        """
        key = state.path, state.name
        if not self._removes or not known.behind or known.stream == state.stream or key in self._looked_at:
            return
        if after > state.consumed and next(state.reader.sizes(state.consumed, after), None):
            raise InvalidArgument(
                f"the stream is to begin behind {after} of queue {state.name!r} in {state.path}, where there are "
                "messages before: consuming would remove them unread. Begin with startingOffsets=earliest and a new "
                "checkpoint, or read with consume=keep"
            )
        self._looked_at.add(key)


class BatchReader(Reader, spark.DataSourceReader):
    """One look at the queues: what lies between start and end when the query is planned."""

    is_only_look = True

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        if options.consume != KEEP:
            way = "leave it out here, spark.read removes nothing"
            raise InvalidArgument(f"consume={options.consume} is for spark.readStream: {way}")

    filters: Sequence[spark.Filter] = ()
    """Of the query, where it gives them: what no row passes is not read."""

    def partitions(self) -> list[InputPartition]:
        self._log_once()
        snapshot = self._spaces.look()
        self._check_named(snapshot)
        start = self._resolved(snapshot, self._options.start)
        end = self._resolved(snapshot, self._options.end)
        paths = list(snapshot.spaces)
        spans = []
        for state in snapshot.states:
            after, upto = start[state.path][state.name], end[state.path][state.name]
            if after > upto:
                raise InvalidArgument(
                    f"startingOffsets {after} lies behind endingOffsets {upto} in {state}: the first must not be the "
                    "larger"
                )
            number = paths.index(state.path)
            after, upto = self._wanted(state, number, after, upto)
            if upto > after:
                spans.append(span_of(state, number, after, upto, self._options.url_of(state.path)))
        return self._tasks(spans)

    def _wanted(self, state: QueueState, number: int, after: int, upto: int) -> tuple[int, int]:
        """What the filters leave of (after, upto]. Raises what looking for a time does."""
        same = {"queue": state.name, "topic": state.name, "space": state.path, "partition": number}
        if not pushdown.may_have(self.filters, same):
            return after, after
        least, most = pushdown.least_and_most(self.filters, pushdown.SEQ)
        after, upto = max(after, least - 1), min(upto, most)
        least, most = pushdown.least_and_most(self.filters, pushdown.TIME)
        if upto > after and least:
            after = max(after, state.reader.last_before(least, state.watermark))
        if upto > after and most < LAST_SEQ:
            upto = min(upto, state.reader.last_before(max(0, most + 1), state.watermark))
        return after, upto


class FilteredReader(BatchReader):
    """One that gets the filters: see ``pushdown``."""

    def pushFilters(self, filters: list[spark.Filter]) -> list[spark.Filter]:
        self.filters = filters
        return filters


class QueueSource(spark.DataSource):
    """The format ``xaqueue``. Its options are tables in ``source/options.py`` and ``sink.py``."""

    tasks = plan.Tasks()

    @classmethod
    def name(cls) -> str:
        return "xaqueue"

    def schema(self) -> StructType:
        options = parse(self.options)
        return columns.schema(kafka=options.kafka, headers=options.headers, everything=options.everything)

    def reader(self, schema: StructType) -> BatchReader:
        options = parse(self.options, tasks=self.tasks)
        return (FilteredReader if options.wants_filters else BatchReader)(options, schema)

    def streamReader(self, schema: StructType) -> StreamReader:
        return StreamReader(parse(self.options, stream=True, tasks=self.tasks), schema)

    def writer(self, schema: StructType, overwrite: bool) -> spark.DataSourceWriter:
        from xaqueue.spark import sink  # who reads does without RPC

        return sink.BatchWriter(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> spark.DataSourceStreamWriter:
        from xaqueue.spark import sink

        return sink.StreamWriter(self.options, schema, overwrite)


class Refused(spark.DataSourceStreamReader, streaming.SupportsTriggerAvailableNow):
    """Raises why there is no reader when it is asked for anything."""

    def __init__(self, failure: Exception) -> None:
        self._failure = failure

    def latestOffset(self, start: Document, limit: ReadLimit) -> NoReturn:
        raise self._failure

    def partitions(self, start: Document, end: Document) -> NoReturn:
        raise self._failure

    def initialOffset(self) -> NoReturn:
        raise self._failure

    def read(self, partition: InputPartition) -> NoReturn:
        raise self._failure

    getDefaultReadLimit = prepareForTriggerAvailableNow = reportLatestOffset = initialOffset


class SparksSource(QueueSource):
    """As Spark is to have it: where a stream's reader cannot be made it fails once more over that, and an
    UnboundLocalError comes behind what went wrong.
    """

    def streamReader(self, schema: StructType) -> spark.DataSourceStreamReader:  # type: ignore[override]
        try:
            return super().streamReader(schema)
        except (Error, OSError) as failure:
            return Refused(failure)
