"""``xaqueue ingest``: queues flow into a table, each message once, as a row or as a dead letter.

    ask the table how far it is -> read the queues behind that -> commit the dead letters, then the rows, each with the
    numbers up to which their table is then -> the queues are told, where they are consumed, and again

A table's rows and its numbers are one commit (see ``ingest_tables``), so wherever this is killed the next one goes on
behind what is in. Killed between the two tables it finds the dead letters there already, by their table's own numbers.
What leaves a queue is in a table that was hardened before.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from xaqueue.errors import Error, InvalidArgument, OperationalError, SpaceError
from xaqueue.lake.batches import record_batches
from xaqueue.lake.columns import HOUSE, Rows
from xaqueue.lake.ingest_bodies import KEPT, MESSAGE, Bodies, column, field_of, given, sampled
from xaqueue.lake.ingest_sources import Source, Sources
from xaqueue.lake.ingest_tables import Numbers, Table, open_table
from xaqueue.lake.scan import chosen

BATCH_BYTES = 64 * 1024 * 1024
"""Of messages, of which a commit is not made larger."""
COMMITS = 20
"""How often a commit is tried that others were quicker than."""
LOOK_S = 0.2
OF_FORMATS = ("deltalake", "_internal", "pyiceberg", "pyarrow", "sqlalchemy", "requests")
"""Packages whose errors say what is wrong with a table or its place."""

Step = Callable[[str], None]


class _Part(NamedTuple):
    """Messages of one queue, with other columns of theirs, and the number up to which there are no more."""

    source: Source
    upto: int
    messages: pa.Table
    others: Sequence[pa.Array]


_log = logging.getLogger("xaqueue.lake")


@dataclass(frozen=True, slots=True)
class TableJob:
    """What is to be ingested, from queues into a table."""

    space: str
    """A directory, several (a,b), a pattern, or the URL of a server."""
    queue: str
    """One, several, or a pattern."""
    target: str
    to: str = "parquet"
    """parquet, delta or iceberg."""
    catalog: str | None = None
    schema: str | None = None
    """DDL, or a file; None: what the table has, or a sample."""
    sample: int = 1_000
    keep_body: bool = False
    once: bool = False
    every_s: float = 10.0
    most_messages: int = 100_000
    consume: str = "keep"
    server: str | None = None
    """Who consumes, where the directory does not say."""
    fails_on_loss: bool = True


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


def run(
    job: TableJob,
    notify: Callable[[IngestProgress], None] = lambda _: None,
    stopping: Callable[[], bool] = lambda: False,
    step: Step = lambda _: None,
) -> IngestProgress:
    """Ingests until ``stopping``, which is asked now and then and lets the batch at work come to its end; with
    ``once`` until all is in that was there. step: called with what was done.

    Raises InvalidArgument for a table or schema that do not fit, UnknownQueue, SpaceError, OperationalError.
    """
    with ExitStack() as held:
        sources = Sources(job.space, job.queue, held, is_only_look=job.once)
        sources.check()
        try:
            table = open_table(job.to, job.target, job.catalog, held)
            if job.consume != "keep":
                sources.consume(job.server)
            return _Ingest(job, sources, table, step).run(notify, stopping)
        except Exception as error:
            if type(error).__module__.partition(".")[0] not in OF_FORMATS:
                raise
            said = (str(error).strip() or type(error).__name__).splitlines()[0][:500]
            raise OperationalError(f"{job.target}: {said}; what is in it stays, run it again to go on") from error


@dataclass(slots=True)
class _Known:
    """What this run knows of a table: which one it is, and how far it had each queue when it was looked at."""

    identity: str = ""
    numbers: dict[str, int] = field(default_factory=dict)


class _Ingest:
    def __init__(self, job: TableJob, sources: Sources, table: Table, step: Step) -> None:
        self._job, self._sources, self._table, self._step = job, sources, table, step
        self._columns = chosen(MESSAGE)
        self._progress = IngestProgress()
        self._dead = table.dead_letters()
        table.refresh(())
        self._schema = self._settled()
        self._known = {table.name: _Known(), self._dead.name: _Known()}
        fields = [one for one in self._schema if one.name not in MESSAGE]
        self._bodies = Bodies(pa.schema([pa.field(field_of(one.name), one.type, one.nullable) for one in fields]))
        name = re.sub(r"[^\w.-]", "_", table.name.rpartition("/")[2])[:80]
        self._stream = f"ingest-{name}#{table.identity}"

    def run(self, notify: Callable[[IngestProgress], None], stopping: Callable[[], bool]) -> IngestProgress:
        progress, started = self._progress, time.monotonic()
        while True:
            begun, sources = time.monotonic(), self._look()
            while (left := [one for one in sources if one.lag and self._sources.has(one)]) and not stopping():
                first = progress.batches % len(left)  # each comes first in its turn
                self._batch(left[first:] + left[:first])
                progress.seconds, progress.lag = time.monotonic() - started, sum(one.lag for one in sources)
                notify(progress)
            self._sources.check_failures()
            if self._job.once or stopping():
                break
            while time.monotonic() < begun + self._job.every_s and not stopping():
                time.sleep(LOOK_S)
        progress.stopped = bool(left) or not self._job.once
        progress.seconds, progress.lag = time.monotonic() - started, sum(one.lag for one in sources)
        return progress

    def _look(self) -> list[Source]:
        """All queues, and how far they are; of what is new, where it goes on. What fails of one is said at the end."""
        found = self._sources.look()
        known = self._known[self._table.name].numbers
        if new := [one for one in found if one.key not in known]:
            keys = [one.key for one in new]
            rows, dead = (self._refreshed(table, keys) for table in (self._table, self._dead))
            for one in new:
                one.done, one.dead = rows[one.key], dead[one.key]
        for one in found:
            with self._sources.alone(one.space, one.queue):
                if one.done > one.found.seen:
                    raise SpaceError(
                        f"{self._table.name} has queue {one.queue} up to message {one.done}, and {one.space} has "
                        f"published {one.found.seen}: this is an older copy of the space, or a server serves one"
                    )
                if one in new:
                    self._begin(one)
        return found

    def _begin(self, one: Source) -> None:
        """Where it goes on. Raises OperationalError."""
        found = one.found
        stream = found.record.stream if found.record else ""
        if found.consumed > max(one.done, one.dead) and (one.done or stream == self._stream):
            lost = (
                f"queue {one.queue} is consumed to {found.consumed} by stream {stream}, and {self._table.name} has it "
                f"to {one.done}: messages are missing"
            )
            if self._job.fails_on_loss:
                raise OperationalError(f"{lost}; --no-fail-on-data-loss goes on without them")
            _log.warning("[messages-missing] %s", lost)
        one.done = max(one.done, found.consumed)
        self._reserve(one, one.done)
        if one.done > found.consumed:  # maybe it was killed before the queue was told
            self._consume(one)

    def _refreshed(self, table: Table, keys: Iterable[str]) -> Numbers:
        """Raises OperationalError for a table that has no more what this run has passed."""
        there, known = table.refresh(keys), self._known[table.name]
        if known.identity not in ("", table.identity) or any(there[key] < known.numbers.get(key, 0) for key in there):
            raise OperationalError(f"{table.name} was put back, or made anew, meanwhile: run it again to go on")
        known.identity = table.identity
        known.numbers |= there
        return there

    def _settled(self) -> pa.Schema:
        """The table's columns, with what a new schema adds: they say what is a dead letter, and so come before any.

        Raises InvalidArgument.
        """
        table = self._table
        found, wanted = table.schema, self._wanted()
        if found is None:
            self._created(wanted)
        elif wanted.names != found.names:
            table.grow(wanted)
        table.refresh(())
        assert table.schema is not None
        return table.schema.remove_metadata()

    def _created(self, wanted: pa.Schema) -> None:
        try:
            self._table.create(wanted)
        except (OSError, InvalidArgument):
            raise
        except Exception as error:  # the formats' own for names that they do not take are plain ones
            if type(error).__module__ != "builtins":
                raise
            said = (str(error).strip() or type(error).__name__).splitlines()[0][:500]
            raise InvalidArgument(
                f"{self._table.name}: no table has these columns: {said}; give --schema with those that you want"
            ) from error

    def _wanted(self) -> pa.Schema:
        job, found = self._job, self._table.schema
        fields: Iterable[pa.Field] = ()
        if job.schema is not None:
            fields = given(job.schema)
        elif found is None:
            fields = sampled(self._sample())
        wanted = [pa.field(column(one.name), one.type) for one in fields]
        body = [_of_message("body")] if job.keep_body else []
        if found is None:
            return pa.schema([*map(_of_message, (*KEPT, "space", "queue")), *body, *wanted])
        types = {one.name: one.type for one in found}
        for one in wanted:
            if one.name in types and _likeness(one.type) != _likeness(types[one.name]):
                raise InvalidArgument(
                    f"{self._table.name} has column {one.name} as {types[one.name]}, not as {one.type}: columns may be "
                    "added, and not changed. Leave out --schema to go on with those it has, or name another table"
                )
        return pa.schema([*found, *(one for one in (*body, *wanted) if one.name not in types)])

    def _sample(self) -> Iterator[bytes]:
        """Bodies, of each queue as many."""
        sources = self._sources.look()
        for one in sources:
            batches = self._read_batches(one, one.found.seen)
            bodies = (body for batch in batches for body in batch["body"].to_pylist())
            yield from islice(bodies, max(1, self._job.sample // len(sources)))

    def _batch(self, sources: Iterable[Source]) -> None:
        """What waits in these queues, as much of it as one commit may have."""
        rows, dead, most, size_bytes = list[_Part](), list[_Part](), self._job.most_messages, BATCH_BYTES
        for one in sources:
            if most <= 0 or size_bytes <= 0:
                break
            try:
                self._reserve(one, one.found.seen)
                messages, upto = self._read(one, most, size_bytes)
            except Error as error:
                self._sources.fail(one.space, one.queue, error)
                continue
            most, size_bytes = most - messages.num_rows, size_bytes - messages.nbytes
            if one.dead > one.done:  # a run that was killed between the two tables may have had another schema
                messages = messages.filter(self._lacks(self._dead, one, messages, one.dead))
            reasons, columns = self._bodies.columns(messages["body"].to_pylist())
            why = pa.array(reasons, pa.string())
            rows.append(_Part(one, upto, messages.filter(why.is_null()), columns))
            dead.append(_Part(one, upto, messages.filter(why.is_valid()), [why.drop_null()]))
        self._step("read")
        progress, before = self._progress, self._progress.messages
        progress.dead_letters += self._put(self._dead, dead)
        progress.rows += self._put(self._table, rows)
        progress.batches += progress.messages > before
        for part in rows:
            part.source.done = part.upto
            with self._sources.alone(part.source.space, part.source.queue):
                self._consume(part.source)

    def _read(self, one: Source, most: int, size_bytes: int) -> tuple[pa.Table, int]:
        """The next messages, so many at the most, and the number up to which there are no others."""
        found, upto = list[pa.RecordBatch](), one.found.seen
        for batch in self._read_batches(one, upto):
            found.append(batch.slice(0, most))
            most, size_bytes = most - batch.num_rows, size_bytes - batch.nbytes
            if most <= 0 or size_bytes <= 0:
                upto = found[-1]["seq"][-1].as_py()
                break
        return pa.Table.from_batches(found, self._columns.schema), upto

    def _read_batches(self, one: Source, upto: int) -> Iterator[pa.RecordBatch]:
        return record_batches(one.reader.files(one.done, upto), Rows(one.queue, one.space), self._columns)

    def _put(self, table: Table, parts: Iterable[_Part]) -> int:
        """Commits what the table has not got yet, and returns how much that was."""
        parts = [one for one in parts if one.messages.num_rows]
        if not parts:
            return 0
        if table.schema is None:
            table.create(pa.schema([*map(_of_message, MESSAGE), ("reason", pa.string())]))
        schema = self._schema if table is self._table else table.schema
        assert schema is not None
        fitted = [_fitting(schema, one.messages, iter(one.others)) for one in parts]
        for _ in range(COMMITS):
            there = self._refreshed(table, [one.source.key for one in parts])
            if table.schema is None or table.schema.names != schema.names:
                raise OperationalError(f"{table.name} has other columns meanwhile: run it again to go on")
            left, numbers = dict[str, pa.Table](), dict[str, int]()
            for (source, upto, messages, _others), rows in zip(parts, fitted, strict=True):
                found = rows.filter(self._lacks(table, source, messages, there[source.key]))
                if found.num_rows:
                    left[source.key], numbers[source.key] = found, max(upto, there[source.key])
            if not left:
                self._progress.repeated += 1
                return 0
            if table.commit(left, numbers):
                self._known[table.name].numbers |= numbers
                self._step(f"committed {table.name}")
                return sum(rows.num_rows for rows in left.values())
        raise OperationalError(f"{table.name}: others were quicker {COMMITS} times; run it again to go on")

    def _lacks(self, table: Table, one: Source, messages: pa.Table, there: int) -> pa.Array | pa.ChunkedArray:
        """Which of these messages the table has not. Dead letters that are ahead of the rows are looked for one by one:
        by another schema others may be dead.
        """
        if table is self._table or there <= one.done:
            return pc.greater(messages["seq"], there)
        found = table.behind(one.key, one.done)
        own = found.filter(pc.equal(found["space"], one.space))  # copies of a space have the same messages
        dead = {*_named(own if own.num_rows else found)}
        return pa.array([name not in dead for name in _named(messages)], pa.bool_())

    def _reserve(self, one: Source, upto: int) -> None:
        if one.owner is not None:
            latest = one.owner.reserve(one.queue, self._stream, one.done, upto).latest
            if latest < upto:
                raise SpaceError(f"the server of {one.space} has queue {one.queue} to {latest} only: it serves a copy")
            self._step("reserved")

    def _consume(self, one: Source) -> None:
        """What is in the tables leaves the queue."""
        if one.owner is not None:
            one.owner.consume(one.queue, self._stream, one.done, self._job.consume == "archive")
            self._step("consumed")


def _of_message(name: str) -> pa.Field:
    return pa.field(name, pa.string() if name == "message_id" else HOUSE[name].kind)


def _named(messages: pa.Table) -> Iterator[tuple[int, str]]:
    return zip(messages["seq"].to_pylist(), map(_hex, messages["message_id"].to_pylist()), strict=True)


def _hex(message_id: bytes | str) -> str:
    return message_id if isinstance(message_id, str) else message_id.hex()


def _fitting(schema: pa.Schema, messages: pa.Table, others: Iterator[pa.Array]) -> pa.Table:
    """The messages as the table has them."""
    columns = []
    for one in schema:
        values = messages[one.name] if one.name in MESSAGE else next(others)
        if one.name == "message_id" and not pa.types.is_binary(one.type) and not pa.types.is_large_binary(one.type):
            values = pa.array(map(_hex, values.to_pylist()), pa.string())
        columns.append(values.cast(one.type))
    return pa.table(columns, schema=schema)


def _likeness(kind: pa.DataType) -> str:
    """The same for types that a format takes for the same."""
    return re.sub(r"\bint(8|16)\b", "int32", re.sub(r"large_| not null|(?<=list<)\w+", "", str(kind)))
