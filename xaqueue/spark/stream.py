"""A stream over queues consumes them from the front: reserved while a batch is read, removed once that is for good.

Nothing here waits for messages, and a space that does not answer is missing: a query that hangs in its source hangs
for ever. What is kept in memory is a cache only: any method may be the first call after a restart, and a batch that
Spark has written down is planned again from its offsets alone. Spark calls ``commit`` for a batch when the next one is
written down, so the last batch is removed when there is nothing new: its commit is durable by then.

A query that ends in its first batch leaves no reservation: see ``_is_to_be_tried``.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from math import inf
from time import monotonic
from typing import Any
from uuid import uuid4

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from xaqueue.errors import InvalidArgument, SpaceError
from xaqueue.space.model.stream_records import refusal
from xaqueue.space.offline.reader import QueueReader
from xaqueue.spark import keeping, plan
from xaqueue.spark.keeping import Keeper
from xaqueue.spark.offsets import Offsets, between, read
from xaqueue.spark.options import ARCHIVE, DELETE, Options
from xaqueue.spark.positions import EARLIEST, LATEST, Positions
from xaqueue.spark.sizes import admitted
from xaqueue.spark.source import Reader, lane
from xaqueue.spark.view import Queue, View, reserved

_log = logging.getLogger("xaqueue.spark")

Document = dict[str, Any]
Key = tuple[str, int, str]


class StreamReader(Reader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """See the module. Offsets are those of ``offsets.py``."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._keeper = Keeper(options, lambda path, server: keeping.reach_owner(path, server))
        self._removes = options.consume in (DELETE, ARCHIVE)
        super().__init__(options, schema, self._keeper.opened if self._removes else None)
        if options.end != Positions(LATEST):
            name = options.end.option
            raise InvalidArgument(f'option "{name}" is for spark.read: a stream ends where its trigger says')
        self._initial: Document | None = None
        self._is_tried = True
        self._latest_batch = -inf
        self._target: Mapping[str, Mapping[str, Queue]] | None = None
        self._view: View | None = None
        self._identity = ""
        self._told: frozenset[str] = frozenset()
        self._looked_at: set[tuple[str, str]] = set()
        self._told_restored: set[tuple[str, str, int]] = set()

    def initialOffset(self) -> Document:
        """Where a new query begins. Spark asks twice and is told the same."""
        if self._initial is None:
            self._is_tried = False
            view = self._spaces.look()
            self._check_named(view)
            behind = self._options.start != Positions(EARLIEST)
            begun = Offsets(self._new_stream(), self._begin(view), initial=True, behind=behind, ids=view.ids)
            self._initial = begun.document()
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
        self._target = self._spaces.look().spaces

    def latestOffset(self, start: Document, limit: ReadLimit) -> Document:
        """The end of the next batch: all there is, or as much as ``limit`` and the options admit, from all queues."""
        self._tell_once()
        begun = read(start, self._options.alone)
        view = self._view = self._spaces.look(begun.spaces)
        begun.check_spaces(view.ids)
        lanes, joined = self._lanes(begun, view)
        lanes = self._reachable(lanes, view)
        if self._is_to_be_tried(limit):
            self._check_free(view)
            return start
        if self._is_delayed(sum(one.size for one in lanes), limit):
            self._catch_up(begun)
            return start
        ends = self._admit(lanes, limit, sum(seq for queues in begun.spaces.values() for seq in queues.values()))
        if not ends:
            self._catch_up(begun)
            return start
        begins = {key: after for key, after in joined.items() if key in ends}
        stream = begun.stream or self._new_stream()
        return begun.advanced(stream, _nested(ends), _nested(begins), view.ids, _consumed(view)).document()

    def _is_to_be_tried(self, limit: ReadLimit) -> bool:
        """Once in a new query that consumes: its first batch has no messages, and so reserves nothing.

        Spark runs a query's first batch although nothing is new. Where its sink is not there or refuses what it is
        given, that fails, and leaves the queues as they were; when the next batch is planned, Spark knows it done.
        """
        is_to_be, self._is_tried = not self._is_tried and self._removes, True
        return is_to_be and not isinstance(limit, ReadAllAvailable)

    def _check_free(self, view: View) -> None:
        """QueueReserved for what another stream consumes: a new one is told so before there is a message to read."""
        for queues in view.spaces.values():
            for state in queues.values():
                record = reserved(state.reader)
                if record is not None and not record.released:
                    raise refusal(record)

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
        view = self._view or self._spaces.look()
        return {
            "spaces": {
                path: {queue: state.watermark for queue, state in queues.items()}
                for path, queues in view.spaces.items()
            }
        }

    def partitions(self, start: Document, end: Document) -> list[InputPartition]:
        """The batch that Spark has written down: the same messages, however often it is asked."""
        self._tell_once()
        ended = read(end, self._options.alone)
        parts = list(between(read(start, self._options.alone), ended))
        known: dict[str, list[str]] = {}
        for path, _, queue, _, _ in parts:
            known.setdefault(path, []).append(queue)
        view = self._spaces.look(known, only_known=True)
        self._check_all_there(view)
        ended.check_spaces(view.ids)
        lanes = []
        for path, number, queue, after, upto in parts:
            if path in view.spaces:
                state = view.spaces[path][queue]
                self._check_not_restored(ended, path, queue, state)
                self._check_range(path, queue, state, after, upto)
                self._check_nothing_is_passed_over(ended, path, queue, after, state)
                lanes.append(lane(state.reader, (path, number, queue), after, upto))
        stream = ended.stream if self._removes else ""
        if stream:
            self._keeper.reserve(stream, _ranges(lanes))
        return self._shares(lanes, stream)

    def commit(self, end: Document) -> None:
        """Everything up to here is consumed. Spark says so late, or not at all: it holds for all before, too."""
        ended = read(end, self._options.alone)
        if self._removes and ended.stream and not ended.initial:
            self._consume(ended)

    def _tell(self, missing: Mapping[str, str]) -> None:
        """Once for as long as the same ones are missing: Spark asks a hundred times a second."""
        if missing and self._told != frozenset(missing):
            _log.warning("left out until they are back: %s", "; ".join(missing.values()))
        self._told = frozenset(missing)

    def _lanes(self, begun: Offsets, view: View) -> tuple[list[plan.Lane[Key]], dict[tuple[str, str], int]]:
        """What there is to read, and where those queues begin that have joined."""
        lanes: list[plan.Lane[Key]] = []
        joined: dict[tuple[str, str], int] = {}
        for path, queues in view.spaces.items():
            for queue, state in queues.items():
                after = begun.at(path, queue)
                if after is None:
                    self._check_not_renamed(begun, view, path, queue)
                    after = joined[path, queue] = state.consumed
                if after > state.watermark:
                    raise self._ahead(f"the stream's offset {after}", path, queue, state)
                self._check_not_restored(begun, path, queue, state)
                self._check_nothing_is_passed_over(begun, path, queue, after, state)
                upto = self._upto(path, queue, state)
                if upto > after:
                    lanes.append(lane(state.reader, (path, 0, queue), after, upto))
        return lanes, joined

    def _upto(self, path: str, queue: str, state: Queue) -> int:
        if self._target is None:
            return state.watermark
        target = self._target.get(path, {}).get(queue)
        return 0 if target is None else min(target.watermark, state.watermark)

    def _admit(self, lanes: list[plan.Lane[Key]], limit: ReadLimit, turn: int) -> dict[tuple[str, str], int]:
        """How far each queue is read in this batch; those that aren't are left out."""
        rows, size_bytes = self._limits(limit)
        if size_bytes is not None:
            asked = [((one.key[0], one.key[2]), self._reader(one.key), one.after, one.upto) for one in lanes]
            ends = admitted(asked, size_bytes, rows, turn)
        else:
            shares = plan.fair_shares([one.size for one in lanes], sys.maxsize if rows is None else rows, turn)
            ends = {(one.key[0], one.key[2]): one.end(share) for one, share in zip(lanes, shares, strict=True)}
        return {
            (path, queue): ends[path, queue] for (path, _, queue), after, _, _ in lanes if ends[path, queue] > after
        }

    def _reader(self, key: Key) -> QueueReader:
        assert self._view is not None
        return self._view.spaces[key[0]][key[2]].reader

    def _limits(self, limit: ReadLimit) -> tuple[int | None, int | None]:
        """Messages and bytes, both None for a trigger that wants everything at once."""
        if isinstance(limit, ReadAllAvailable):
            return None, None
        if isinstance(limit, ReadMaxRows):
            return limit.max_rows, self._options.most_bytes
        if isinstance(limit, ReadMaxBytes):
            return self._options.most_messages, limit.max_bytes
        raise InvalidArgument(f"{type(limit).__name__} is no limit of this source: it counts messages and bytes")

    def _reachable(self, lanes: list[plan.Lane[Key]], view: View) -> list[plan.Lane[Key]]:
        """Without those of owners who do not answer, where missing spaces are to be skipped."""
        failures = self._keeper.connect({one.key[0] for one in lanes}) if self._removes else {}
        if failures and not self._options.skips_missing:
            raise self._spaces.missing(View(missing=failures))
        self._tell({**view.missing, **failures})
        return [one for one in lanes if one.key[0] not in failures]

    def _catch_up(self, begun: Offsets) -> None:
        """Nothing is new, so all that was read is committed: it need not wait for a next batch."""
        if self._removes and begun.stream and not begun.initial:
            self._consume(begun)

    def _consume(self, through: Offsets) -> None:
        """Of spaces that are not named any more there may be nobody to tell."""
        named = {path: queues for path, queues in through.spaces.items() if self._spaces.names_space(path)}
        self._keeper.consume(through.stream, named)

    def _check_not_renamed(self, begun: Offsets, view: View, path: str, queue: str) -> None:
        """What this stream has reserved is in its offsets: only under a path that is gone, it would be read twice."""
        if not begun.stream or view.spaces[path][queue].stream != begun.stream:
            return
        for former, queues in begun.spaces.items():
            if former not in view.spaces and queues.get(queue):
                raise SpaceError(
                    f"queue {queue!r} of {path} is reserved for this stream, which has read it as {former} as far as "
                    f"{queues[queue]}: the space was renamed. Give it its former path, or make that a link to it"
                )

    def _check_not_restored(self, known: Offsets, path: str, queue: str, state: Queue) -> None:
        """A space never forgets what was consumed: an older copy of it does. Told of once, where that is enough."""
        was = known.consumed.get(path, {}).get(queue, 0)
        if state.consumed < was and (path, queue, was) not in self._told_restored:
            self._lost(
                f"queue {queue!r} of {path} is consumed to {state.consumed} and was to {was} when the stream read it: "
                "the space was restored from an older copy, where new messages have the numbers of others that were "
                "read, or its record of that was damaged "
                f"(run `xaqueue release {queue} --space {path}` before you start another checkpoint)"
            )
            self._told_restored.add((path, queue, was))

    def _check_nothing_is_passed_over(self, known: Offsets, path: str, queue: str, after: int, state: Queue) -> None:
        """A queue is consumed from its front: a stream that began behind messages would remove them unread, also one
        that kept until now. Looked at once a queue, until it is reserved.
        """
        if not self._removes or not known.behind or known.stream == state.stream or (path, queue) in self._looked_at:
            return
        if after > state.consumed and next(state.reader.names(state.consumed, after), None):
            raise InvalidArgument(
                f"the stream is to begin behind {after} of queue {queue!r} in {path}, where there are messages "
                "before: consuming would remove them unread. Begin with startingOffsets=earliest and a new checkpoint, "
                "or read with consume=keep"
            )
        self._looked_at.add((path, queue))

    def _check_all_there(self, view: View) -> None:
        """A batch is written down with its spaces: one without them would lose what they hold."""
        if view.missing and self._options.fails_on_loss:
            raise self._spaces.missing(view, planned=True)
        if view.missing:
            _log.warning("messages of this batch are given up: %s", "; ".join(view.missing.values()))

    def _check_range(self, path: str, queue: str, state: Queue, after: int, upto: int) -> None:
        if upto > state.watermark:
            raise self._ahead(f"the stream's offset {upto}", path, queue, state)
        if state.consumed > after:
            self._lost(
                f"queue {queue!r} of {path} is consumed to {state.consumed} by stream {state.stream}, and "
                f"({after}, {upto}] was to be read"
            )

    def _new_stream(self) -> str:
        if not self._identity:
            self._identity = f"{self._options.stream_name}#{uuid4()}"
        return self._identity


def _nested(ends: Mapping[tuple[str, str], int]) -> dict[str, dict[str, int]]:
    nested: dict[str, dict[str, int]] = {}
    for (path, queue), seq in ends.items():
        nested.setdefault(path, {})[queue] = seq
    return nested


def _consumed(view: View) -> dict[str, dict[str, int]]:
    """How far the queues are consumed, of all that are at all."""
    found = {
        path: {name: one.consumed for name, one in queues.items() if one.consumed}
        for path, queues in view.spaces.items()
    }
    return {path: queues for path, queues in found.items() if queues}


def _ranges(lanes: list[plan.Lane[Key]]) -> dict[str, dict[str, tuple[int, int]]]:
    ranges: dict[str, dict[str, tuple[int, int]]] = {}
    for one in lanes:
        ranges.setdefault(one.key[0], {})[one.key[2]] = (one.after, one.upto)
    return ranges
