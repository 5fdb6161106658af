"""``xaqueue ingest --to``: a queue flows into a table, each message once, as a row or as a dead letter; without Spark.

    ask the table how far it is -> read the queue behind that -> commit the dead letters, then the rows, each with the
    number up to which their table is then -> the queue is told, where it is consumed, and again

A table's rows and its number are one commit (see ``ingest_tables``), so wherever this is killed the next one goes on
behind what is in. Killed between the two tables it finds the dead letters there already, by their table's own number.
What leaves the queue is in a table that was hardened before.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice

import pyarrow as pa
import pyarrow.compute as pc

from xaqueue.endpoint import is_url
from xaqueue.errors import InvalidArgument, OperationalError, SpaceError, UnknownQueue
from xaqueue.lake.batches import record_batches
from xaqueue.lake.columns import HOUSE, Rows
from xaqueue.lake.ingest_bodies import DEAD_KEPT, KEPT, Bodies, column, field_of, given, sampled
from xaqueue.lake.ingest_tables import Table, open_table
from xaqueue.lake.place import Place, QueueScan, place_at
from xaqueue.lake.scan import chosen
from xaqueue.message import check_queue_name
from xaqueue.offline.spans import Position
from xaqueue.rpc.client.manager import RemoteManager
from xaqueue.rpc.client.server_launcher import reach

BATCH_BYTES = 64 * 1024 * 1024
"""Of messages, of which a commit is not made larger."""
COMMITS = 20
"""How often a commit is tried that others were quicker than."""
LOOK_S = 0.2
OF_FORMATS = ("deltalake", "_internal", "pyiceberg", "pyarrow", "sqlalchemy", "requests")
"""Packages whose errors say what is wrong with a table or its place."""
MESSAGE = (*DEAD_KEPT, "space", "queue", "body")
"""Columns of a table that are the message's own; all others are fields of its body."""

Step = Callable[[str], None]

_log = logging.getLogger("xaqueue.lake")


@dataclass(frozen=True, slots=True)
class TableJob:
    """What is to be ingested, from one queue into one table."""

    space: str
    """A directory, or the URL of its server."""
    queue: str
    target: str
    to: str
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
    ``once`` until all is in that was there. step: is told what was done.

    Raises InvalidArgument for a table or schema that do not fit, UnknownQueue, SpaceError, OperationalError.
    """
    url = job.space if is_url(job.space) else ""
    with ExitStack() as held:
        place = place_at(job.space, url)
        held.callback(place.close)
        source = f"xaqueue:{place.id()}:{check_queue_name(job.queue)}"
        known = place.known()
        if not known.any_queue and job.queue not in known.names:
            raise UnknownQueue(f"{job.space} has no queue {job.queue}: it has {', '.join(sorted(known.names))}")
        table = open_table(job.to, job.target, source, job.catalog, held)
        owner = None
        if job.consume != "keep":
            owner = reach(job.space, job.server or url)
            held.callback(owner.close)
            if owner.space_id != place.id():
                raise InvalidArgument(f"the server {job.server} serves another space than {job.space}: mend --server")
        place.check()
        try:
            return _Ingest(job, place, table, owner, step).run(notify, stopping)
        except Exception as error:
            if type(error).__module__.partition(".")[0] not in OF_FORMATS:
                raise
            said = (str(error).strip() or type(error).__name__).splitlines()[0][:500]
            raise OperationalError(f"{table.name}: {said}; what is in it stays, run it again to go on") from error


class _Ingest:
    def __init__(self, job: TableJob, place: Place, table: Table, owner: RemoteManager | None, step: Step) -> None:
        self._job, self._table, self._owner, self._step = job, table, owner, step
        self._reader: QueueScan = place.queue(job.queue)
        self._columns = chosen(MESSAGE)
        self._progress = IngestProgress()
        self._done = table.refresh()
        self._dead = table.dead_letters()
        self._schema = self._settled()
        fields = [one for one in self._schema if one.name not in MESSAGE]
        self._bodies = Bodies(pa.schema([pa.field(field_of(one.name), one.type, one.nullable) for one in fields]))
        name = re.sub(r"[^\w.-]", "_", table.name.rpartition("/")[2])[:80]
        self._stream = f"ingest-{name}#{table.identity}"
        self._there = {one.name: (one.refresh(), one.identity) for one in (table, self._dead)}
        """Up to which number each table had the queue, and which one that was."""
        self._begin()

    def run(self, notify: Callable[[IngestProgress], None], stopping: Callable[[], bool]) -> IngestProgress:
        progress, started = self._progress, time.monotonic()
        while True:
            begun, upto = time.monotonic(), self._position().seen
            while self._done < upto and not stopping():
                self._batch(upto)
                progress.seconds, progress.lag = time.monotonic() - started, upto - self._done
                notify(progress)
            if self._job.once or stopping():
                break
            while time.monotonic() < begun + self._job.every_s and not stopping():
                time.sleep(LOOK_S)
        progress.stopped = self._done < upto or not self._job.once
        progress.seconds, progress.lag = time.monotonic() - started, upto - self._done
        return progress

    def _settled(self) -> pa.Schema:
        """The table's columns, with what a new schema adds: they say what is a dead letter, and so come before any.

        Raises InvalidArgument.
        """
        table = self._table
        found, wanted = table.schema, self._wanted()
        if found is None:
            self._created(wanted)
        elif wanted.names != found.names:
            if self._dead.refresh() > self._done:
                raise InvalidArgument(
                    f"{table.name}: the last run ended before all of its last batch was in: run it once without a new "
                    "--schema, and then with it"
                )
            table.grow(wanted)
        self._done = table.refresh()
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
            fields = sampled(islice(self._sample(), job.sample))
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
        for batch in self._read_batches(self._reader.position().seen):
            yield from batch["body"].to_pylist()

    def _begin(self) -> None:
        """Where it goes on. Raises SpaceError, OperationalError."""
        job, found = self._job, self._position()
        stream = found.record.stream if found.record else ""
        if found.consumed > max(self._done, self._dead.refresh()) and (self._done or stream == self._stream):
            lost = (
                f"queue {job.queue} is consumed to {found.consumed} by stream {stream}, and {self._table.name} has it "
                f"to {self._done}: messages are missing"
            )
            if job.fails_on_loss:
                raise OperationalError(f"{lost}; --no-fail-on-data-loss goes on without them")
            _log.warning("[messages-missing] %s", lost)
        self._done = max(self._done, found.consumed)
        self._reserve(self._done)
        if self._done > found.consumed:  # maybe it was killed before the queue was told
            self._consume()

    def _position(self) -> Position:
        """Raises SpaceError."""
        job, found = self._job, self._reader.position()
        if self._done > found.seen:
            raise SpaceError(
                f"{self._table.name} has queue {job.queue} up to message {self._done}, and {job.space} has published "
                f"{found.seen}: this is an older copy of the space, or a server serves one"
            )
        return found

    def _batch(self, upto: int) -> None:
        self._reserve(upto)
        messages, upto = self._read(upto)
        reasons, columns = self._bodies.columns(messages["body"].to_pylist())
        why = pa.array(reasons, pa.string())
        self._step("read")
        dead = messages.filter(why.is_valid())
        if dead.num_rows:
            if not self._dead.refresh() and self._dead.schema is None:
                self._dead.create(pa.schema([*map(_of_message, MESSAGE), ("reason", pa.string())]))
            self._progress.dead_letters += self._put(self._dead, self._dead.schema, dead, upto, [why.drop_null()])
        rows = messages.filter(why.is_null())
        if rows.num_rows:
            self._progress.rows += self._put(self._table, self._schema, rows, upto, columns)
        self._progress.batches += bool(messages.num_rows)
        self._done = upto
        self._consume()

    def _read(self, upto: int) -> tuple[pa.Table, int]:
        """The next messages, as many as one commit may have, and the number up to which there are no others."""
        found, rows, size_bytes = [], 0, 0
        for batch in self._read_batches(upto):
            found.append(batch.slice(0, self._job.most_messages - rows))
            rows, size_bytes = rows + batch.num_rows, size_bytes + batch.nbytes
            if rows >= self._job.most_messages or size_bytes >= BATCH_BYTES:
                upto = found[-1]["seq"][-1].as_py()
                break
        return pa.Table.from_batches(found, self._columns.schema), upto

    def _read_batches(self, upto: int) -> Iterator[pa.RecordBatch]:
        files = self._reader.files(self._done, upto)
        return record_batches(files, Rows(self._job.queue, self._job.space), self._columns)

    def _put(self, table: Table, schema: pa.Schema, messages: pa.Table, upto: int, others: Sequence[pa.Array]) -> int:
        """Commits what the table has not got yet, and returns how much that was. others: of the bodies."""
        rows = _fitting(schema, messages, iter(others))
        for _ in range(COMMITS):
            there = table.refresh()
            before, identity = self._there[table.name]
            if there < before or identity not in ("", table.identity):  # what this run has passed is not in it
                raise OperationalError(f"{table.name} was put back, or made anew, meanwhile: run it again to go on")
            self._there[table.name] = there, table.identity
            left = rows.filter(pc.greater(messages["seq"], there))
            if table.schema is None or table.schema.names != schema.names:
                raise OperationalError(f"{table.name} has other columns meanwhile: run it again to go on")
            if not left.num_rows:
                self._progress.repeated += 1
                return 0
            if table.commit(left, upto):
                self._there[table.name] = upto, table.identity
                self._step(f"committed {table.name}")
                return int(left.num_rows)
        raise OperationalError(f"{table.name}: others were quicker {COMMITS} times; run it again to go on")

    def _reserve(self, upto: int) -> None:
        if self._owner is not None:
            self._owner.reserve(self._job.queue, self._stream, self._done, upto)
            self._step("reserved")

    def _consume(self) -> None:
        """What is in the tables leaves the queue."""
        if self._owner is not None:
            self._owner.consume(self._job.queue, self._stream, self._done, self._job.consume == "archive")
            self._step("consumed")


def _of_message(name: str) -> pa.Field:
    return pa.field(name, pa.string() if name == "message_id" else HOUSE[name].kind)


def _fitting(schema: pa.Schema, messages: pa.Table, others: Iterator[pa.Array]) -> pa.Table:
    """The messages as the table has them."""
    columns = []
    for one in schema:
        values = messages[one.name] if one.name in MESSAGE else next(others)
        if one.name == "message_id" and not pa.types.is_binary(one.type) and not pa.types.is_large_binary(one.type):
            values = pa.array([found.hex() for found in values.to_pylist()], pa.string())
        columns.append(values.cast(one.type))
    return pa.table(columns, schema=schema)


def _likeness(kind: pa.DataType) -> str:
    """The same for types that a format takes for the same."""
    return re.sub(r"\bint(8|16)\b", "int32", re.sub(r"large_| not null|(?<=list<)\w+", "", str(kind)))
