"""A task makes its rows messages, writes them in branches and prepares each; the driver decides them with the batch.

Columns have the house's names or Kafka's, and none is dropped by mistake: what the source adds of its own (the number,
the time of the commit...) is passed over by name, so that a copy from queue to queue needs no ``select``; the message
id is among that, since a copy is another message, and a task that is tried again writes it again. Any other column that
says nothing of a message is refused.

Those to one queue go to the server in one call, and so into one file where that is how their queue is defined. Rows to
other queues do not part them: what is in order is each queue.

A branch is begun once its rows are there, so that it is at work for moments, however slowly they come. One that was
lost with its server is written again under another xid; the first, if it was prepared after all, is in no list of
branches and is rolled back with the batch's decision. A task that fails rolls back what it prepared, as far as it can.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import chain, groupby
from operator import itemgetter
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import types as t
from pyspark.sql.datasource import WriterCommitMessage

from xaqueue.batch import HOME_DIGITS, MANY_SPACES, ONE_SPACE, Batch
from xaqueue.errors import ConnectionLost, Error, InvalidArgument, OutcomeUnknown, RolledBack
from xaqueue.message import PLAIN_OPTIONS
from xaqueue.rpc.client.manager import RemoteManager
from xaqueue.spark.source.columns import HOUSE, KAFKA, MORE
from xaqueue.times import LATEST_US
from xaqueue.xa import Code, Vote
from xaqueue.xid import Xid

SLICE_ROWS = 2_000
"""Rows that are Python objects at a time."""


class Run(NamedTuple):
    """Messages to be of one queue."""

    queue: str
    bodies: list[bytes]
    options: list[Any]
    """Of each."""


def _bytes(column: pa.Array) -> list[Any]:
    """Of text its UTF-8, without a Python object in between."""
    if pa.types.is_string(column.type):
        column = column.cast(pa.binary())
    elif pa.types.is_large_string(column.type):
        column = column.cast(pa.large_binary())
    return list(column.to_pylist())


def _header_map(pairs: list[Any] | None) -> dict[str, str] | None:
    """Of a map's pairs, or of an array of structs as Kafka's."""
    made: dict[str, str] = {}
    for pair in pairs or ():
        name, value = pair.values() if isinstance(pair, dict) else pair
        if name is None or value is None:
            raise InvalidArgument(f"header {name!r} is null: leave it out, or give it an empty text")
        if name in made:
            raise InvalidArgument(f"header {name!r} is there twice: a message has each header once")
        try:
            made[name] = value if isinstance(value, str) else value.decode()
        except UnicodeDecodeError:
            raise InvalidArgument(f"header {name!r} is no UTF-8: encode it, in base64 for one") from None
    return made or None


@dataclass(frozen=True, slots=True)
class ColumnKind:
    """What a column may be to Spark, and how its values are had from Arrow."""

    wanted: str
    types: tuple[type[t.DataType], ...]
    values: Callable[[pa.Array], list[Any]]


_NUMBERS = (t.ByteType, t.ShortType, t.IntegerType, t.LongType)
_OF_TYPE = {
    t.BinaryType: ColumnKind("binary or a string", (t.BinaryType, t.StringType), _bytes),
    t.StringType: ColumnKind("a string", (t.StringType,), pa.Array.to_pylist),
    t.IntegerType: ColumnKind("a whole number", _NUMBERS, pa.Array.to_pylist),
    t.BooleanType: ColumnKind("a boolean", (t.BooleanType,), pa.Array.to_pylist),
    t.TimestampType: ColumnKind("a timestamp", (t.TimestampType,), lambda column: column.cast(pa.int64()).to_pylist()),
    t.MapType: ColumnKind(
        "map<string,string>, or array<struct<key:string,value:binary>> as Kafka's",
        (t.MapType, t.ArrayType),
        lambda column: [*map(_header_map, column.to_pylist())],
    ),
}
"""By the type that the source gives such a column."""

BODY, QUEUE = "body", "queue"
_WRITTEN = (BODY, QUEUE, *(name for name in PLAIN_OPTIONS if name not in ("message_id", "origin")))
KINDS = {name: _OF_TYPE[type({**HOUSE, **MORE}[name].kind)] for name in _WRITTEN}
SYNONYMS = {"value": BODY, "topic": QUEUE, "key": "correlation_id"}
"""Kafka's."""
OF_THE_SOURCE = {*HOUSE, *MORE, *KAFKA} - {*KINDS, *SYNONYMS}
"""Columns that a source adds, and that are of no meaning to a sink."""


class SinkColumns:
    """How the rows of one schema become messages."""

    def __init__(self, schema: t.StructType, queue: str | None) -> None:
        """queue: that of every message, whatever a column says. Raises InvalidArgument."""
        self._queue = queue
        self._columns: dict[str, str] = {}
        for written, kind in ((column.name, column.dataType) for column in schema if column.name not in OF_THE_SOURCE):
            name = SYNONYMS.get(written, written)
            _check(written, name, kind)
            if name in self._columns:
                raise InvalidArgument(f"columns {self._columns[name]!r} and {written!r} mean the same: drop one")
            self._columns[name] = written
        if BODY not in self._columns:
            raise InvalidArgument(
                'a column "body" (or "value") is missing: it holds the messages, as to_json(struct("*")) makes it'
            )
        if queue is None and QUEUE not in self._columns:
            raise InvalidArgument('the queue is missing: give option "queue", or a column of that name')

    def runs(self, batch: pa.RecordBatch) -> Iterator[Run]:
        """Its messages. Raises InvalidArgument for a value that no message can have."""
        for start in range(0, batch.num_rows, SLICE_ROWS):
            yield from self._slice(batch.slice(start, SLICE_ROWS))

    def _slice(self, batch: pa.RecordBatch) -> Iterator[Run]:
        values = {
            name: KINDS[name].values(batch.column(column))
            for name, column in self._columns.items()
            if batch.column(column).null_count < batch.num_rows or name in (BODY, QUEUE)
        }
        bodies, queues = values.pop(BODY), values.pop(QUEUE, None)
        if self._queue is not None or queues is None:
            queues = [self._queue] * len(bodies)
        if None in bodies:
            raise InvalidArgument("a body is null: filter such rows, or give them an empty body with coalesce")
        if None in queues:
            raise InvalidArgument('a queue is null: filter such rows, or give option "queue"')
        options: list[dict[str, Any]] = [{}] * len(bodies)
        if values:
            given = zip(*values.values(), strict=True)
            options = [
                {name: value for name, value in zip(values, row, strict=True) if value is not None} for row in given
            ]
        rows = sorted(zip(queues, bodies, options, strict=True), key=itemgetter(0))  # each in its order
        for queue, run in groupby(rows, itemgetter(0)):
            _, *columns = zip(*run, strict=True)
            yield Run(queue, *map(list, columns))


def _check(written: str, name: str, kind: t.DataType) -> None:
    if name not in KINDS:
        near = get_close_matches(written, [*KINDS, *SYNONYMS], 1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise InvalidArgument(
            f"column {written!r} says nothing of a message{hint}: {', '.join([*KINDS, *SYNONYMS])} do. "
            "Drop it, or put it into the body"
        )
    wanted = KINDS[name]
    if not isinstance(kind, wanted.types) or (name == "headers" and not _is_headers(kind)):
        raise InvalidArgument(f"column {written!r} is {kind.simpleString()}: {wanted.wanted} is wanted, so cast it")


def _is_headers(kind: t.DataType) -> bool:
    if isinstance(kind, t.MapType):
        return isinstance(kind.keyType, t.StringType) and isinstance(kind.valueType, t.StringType)
    pair = kind.elementType if isinstance(kind, t.ArrayType) else None
    return (
        isinstance(pair, t.StructType)
        and len(pair) == 2
        and isinstance(pair[0].dataType, t.StringType)
        and isinstance(pair[1].dataType, t.BinaryType | t.StringType)
    )


BRANCH_ROWS = 2_000
BRANCH_BYTES = 4 * 1024 * 1024
TRIES = 3
"""To write a branch whose server was lost."""
UNREACHED = (ConnectionLost, OutcomeUnknown)
LOST = (Code.XA_RBCOMMFAIL, Code.XA_RBTRANSIENT)
"""Codes of a branch that is rolled back for no fault of its own."""


@dataclass(slots=True)
class Prepared(WriterCommitMessage):
    """What a task tells the driver: its branches, in the space of this number."""

    batch: Batch
    space: int
    checkpoint: str = ""
    """Of the query, where the session's settings say."""
    ids: dict[int, str] = field(default_factory=dict)
    """Of the spaces that it has asked, by the number of each."""
    xids: list[Xid] = field(default_factory=list)
    messages: int = 0
    passed_over: int = 0
    """Rows that were not written, since the batch or a later one is decided."""
    expired: int = 0
    """The same, since nobody would ever be given them: a copy of a queue would never get behind one."""
    queues: set[str] = field(default_factory=set)
    """To which it wrote."""


class Branches:
    """What one task writes into one space."""

    def __init__(self, manager: RemoteManager, prepared: Prepared, attempt: str, home: str = "") -> None:
        """attempt: its name among those at this batch. home: the id of the space that decides, where it is several."""
        self._manager = manager
        self._prepared = prepared
        self._format_id = MANY_SPACES if home else ONE_SPACE
        self._home = f"@{home[:HOME_DIGITS]}" if home else ""
        self._attempt = f"{attempt}.{secrets.token_hex(4)}"  # they are counted anew after a restart
        self._begun = 0

    def write(self, runs: Iterable[Run]) -> None:
        """All of them, or none: when it raises, what was prepared is rolled back as far as the server can be asked."""
        try:
            for part in self._parts(runs):
                xid = self._write_again(part)
                if xid is not None:
                    self._prepared.xids.append(xid)
                self._prepared.messages += sum(len(run.bodies) for run in part)
                self._prepared.queues.update(run.queue for run in part)
        except UNREACHED:
            raise
        except BaseException:
            self._undo()
            raise

    def _parts(self, runs: Iterable[Run]) -> Iterator[list[Run]]:
        """What goes into one branch each: never nothing."""
        part: list[Run] = []
        rows, size_bytes = 0, 0
        for run in runs:
            if "expires_at" in chain.from_iterable(run.options):
                run = self._unexpired(run)
            begin = 0
            for at, body in enumerate(run.bodies):
                if rows and (rows >= BRANCH_ROWS or size_bytes + len(body) > BRANCH_BYTES):
                    yield [*part, *_cut(run, begin, at)]
                    part, rows, size_bytes, begin = [], 0, 0, at
                rows += 1
                size_bytes += len(body)
            part += _cut(run, begin, len(run.bodies))
        if part:
            yield part

    def _unexpired(self, run: Run) -> Run:
        now_us, never = time.time_ns() // 1000, LATEST_US + 1
        rows = zip(run.bodies, run.options, strict=True)
        left = [
            (body, one) for body, one in rows if one.get("expires_at", never) > max(now_us, one.get("not_before", 0))
        ]
        self._prepared.expired += len(run.bodies) - len(left)
        return Run(run.queue, [body for body, _ in left], [one for _, one in left])

    def _undo(self) -> None:
        """Best effort: what is left is rolled back with the batch's decision, over several spaces all of it."""
        for xid in self._prepared.xids if self._format_id == ONE_SPACE else ():
            try:
                self._manager.rollback(xid)
            except UNREACHED:
                return
            except Error:
                continue

    def _write_again(self, part: list[Run]) -> Xid | None:
        for _ in range(TRIES - 1):
            try:
                return self._write(part)
            except UNREACHED:
                continue
            except RolledBack as lost:
                if lost.code not in LOST:
                    raise
        return self._write(part)

    def _write(self, part: list[Run]) -> Xid | None:
        """None where nothing was to be prepared."""
        manager = self._manager
        xid = Xid(self._format_id, self._prepared.batch.gtrid, f"{self._attempt}.{self._begun}{self._home}".encode())
        self._begun += 1
        manager.start(xid)
        try:
            for queue, bodies, options in part:
                if options.count(options[0]) == len(options):
                    manager.enqueue_many(queue, bodies, **options[0])
                else:
                    manager.enqueue_many(queue, bodies, None, options)
            manager.end(xid)
            vote = manager.prepare(xid)
        except UNREACHED:
            raise
        except Error:
            with suppress(Error):
                manager.rollback(xid)
            raise
        return xid if vote is Vote.OK else None


def _cut(run: Run, begin: int, end: int) -> list[Run]:
    """These of its messages, if there are any."""
    return [Run(run.queue, run.bodies[begin:end], run.options[begin:end])] if begin < end else []
