"""Queues are a Spark sink: each task prepares what it writes, and the driver commits the batch with one decision.

    df.writeStream.format("xaqueue").option("path", space).option("queue", "orders").start()

A batch is known by its query and its number: by Spark's id and number, or by what ``txnAppId`` and ``txnVersion`` say.
Every space remembers the last one that was committed of a query, with a digest of what Spark had written down of it. So
a batch that is written again after a crash is not written twice, and one that an older checkpoint makes under a number
that was used is refused. A batch query (``df.write``) without ``txnAppId`` has a name of its own each time it is run.

Spark makes the writer anew in several processes; nothing but the messages of the tasks gets from one to the other.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import zip_longest
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from xaqueue.batch import NUMBER_LIMIT, Batch, BatchDecision, Plan
from xaqueue.core.model.format import read_format
from xaqueue.core.owner.definitions_file import usable_definitions
from xaqueue.endpoint import parse as parse_url
from xaqueue.errors import InvalidArgument, OperationalError
from xaqueue.message import check_queue_name
from xaqueue.rpc.client import server_launcher
from xaqueue.spark import batch_commit, executor
from xaqueue.spark.batch_commit import SinkSpace
from xaqueue.spark.checkpoint import hardened_plan, query_in
from xaqueue.spark.options import (
    RawOptions,
    count,
    is_server,
    log_ignored,
    option,
    places,
    plain,
    refused,
    space_path,
    table,
)
from xaqueue.spark.sink_task import Branches, Prepared, SinkColumns
from xaqueue.xid import Xid

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from xaqueue.rpc.client.manager import RemoteManager

QUERY_PROPERTY, BATCH_PROPERTY = "sql.streaming.queryId", "streaming.sql.batchId"
"""What Spark tells the tasks of a stream."""

CHECKPOINTS = "spark.sql.streaming.checkpointLocation"
"""And where checkpoints are that no option names, in directories named after their queries."""

_log = logging.getLogger("xaqueue.spark")


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Where to, and under which name."""

    spaces: tuple[SinkSpace, ...]
    queue: str | None = option(
        "queue topic", lambda _, text: check_queue_name(text), None, "of every message; without it a column says"
    )
    application: str | None = option("txnAppId", plain, None, "the name of the query, instead of Spark's id")
    version: int | None = option("txnVersion", count, None, "the number of a batch query's batch", 0, NUMBER_LIMIT)
    checkpoint: str | None = option("checkpointLocation", plain, None, "of the query: Spark hands it over")
    query_name: str | None = option("queryName", plain, None, "of the query: Spark hands it over")
    ignored: tuple[str, ...] = ()
    """Options of a Kafka connection."""


OF_SPARK = ("checkpointLocation", "queryName")
NAMES = (
    *("path", "server"),
    *(name for row in table(SinkOptions).values() for name in row.names if name not in OF_SPARK),
)


def parse(written: Mapping[str, str], *, stream: bool) -> SinkOptions:
    """Raises InvalidArgument for an option that is missing, wrong or unknown."""
    raw = RawOptions(written, NAMES, "a writer", OF_SPARK)
    options = SinkOptions(_spaces(raw), ignored=raw.ignored, **raw.fields(SinkOptions))
    if options.application is not None:
        Batch(options.application, 0)
    if stream and options.version is not None:
        raise InvalidArgument('option "txnVersion" is for df.write: the batches of a stream are numbered by Spark')
    if options.version is not None and options.application is None:
        raise InvalidArgument('option "txnVersion" needs "txnAppId": a number alone names no batch')
    if not stream and options.application is not None and options.version is None:
        raise InvalidArgument(
            'option "txnAppId" needs "txnVersion", the number of the batch: '
            "else what is written next would be taken for what was written before"
        )
    return options


def _spaces(raw: RawOptions) -> tuple[SinkSpace, ...]:
    paths, servers = _listed("path", raw.text("path")), _listed("server", raw.text("server"))
    if not paths and not servers:
        raise InvalidArgument('option "path" is missing: the directory of the queue space, or several with commas')
    urls = [path for path in paths if is_server(path)]
    for url in (*servers, *urls):
        parse_url(url)
    if urls and servers:
        raise InvalidArgument('a server in "path" and option "server" exclude each other: name all in "path"')
    if urls:
        servers = [path if path in urls else "" for path in paths]
        paths = ["" if path in urls else path for path in paths]
    if paths and servers and len(paths) != len(servers):
        raise InvalidArgument(f'{len(paths)} in "path" and {len(servers)} in "server": one server for each is wanted')
    spaces = tuple(SinkSpace(*pair) for pair in zip_longest(paths, servers, fillvalue=""))
    if len(set(spaces)) != len(spaces):
        raise InvalidArgument('a space is named twice in "path" or "server": name each once')
    return spaces


def _listed(name: str, text: str | None) -> list[str]:
    if text is None:
        return []
    parts = places(text)
    if not all(parts):
        raise refused(name, text, "one, or several with a comma between them, is wanted")
    return [part if is_server(part) else space_path(name, part) for part in parts] if name == "path" else parts


Messages = Sequence[WriterCommitMessage | None]


class _Writer:
    def __init__(self, options: SinkOptions, schema: StructType, *, is_expected: bool) -> None:
        """SpaceError for a path that is no space, and UnknownQueue: what a task raises is hidden in Spark's report."""
        self._ids: dict[int, str] = {}
        """Of the spaces that tasks find by their paths, by the number of each: so they have to be."""
        for number, space in enumerate(options.spaces):
            if space.path and not space.server:
                self._ids[number] = read_format(space.path, is_expected=is_expected).id
                if options.queue is not None:
                    usable_definitions(space.path)[0].find(options.queue)
        self._options = options
        self._columns = SinkColumns(schema, options.queue)

    def _write(self, batches: Iterable[pa.RecordBatch], batch: Batch, checkpoint: str = "") -> Prepared:
        """Prepares all messages in one space, which goes by the partition; nothing for a batch that is decided.

        Raises InvalidArgument for rows that are no messages, and what the server refuses with.
        """
        spaces, context = self._options.spaces, TaskContext.get()
        partition, attempt = (context.partitionId(), context.taskAttemptId()) if context else (0, 0)
        number = partition % len(spaces)
        prepared = Prepared(batch, number, checkpoint)
        with ExitStack() as stack:
            session = stack.enter_context(closing(self._reached(number)))
            home = session if number == 0 else stack.enter_context(closing(self._reached(0)))
            prepared.ids = {
                one: batch_commit.id_of(spaces[one], asked) for one, asked in ((number, session), (0, home))
            }
            if any(one.decision(batch) is not None for one in {session, home}):  # as far as these two know
                # somebody has to read them: Spark's worker waits
                prepared.passed_over = sum(part.num_rows for part in batches)
                return prepared
            home_id = prepared.ids[0] if len(spaces) > 1 else ""
            branches = Branches(session, prepared, f"p{partition}.{attempt}", home_id)
            branches.write(run for part in batches for run in self._columns.runs(part))
        return prepared

    def _reached(self, number: int) -> RemoteManager:
        """A task's session. SpaceError where this machine has another space there: its owner is not even looked for."""
        space = self._options.spaces[number]
        if number not in self._ids:
            return server_launcher.reach(*space)
        executor.check_same(space.path, self._ids[number])
        with executor.writable(space.path):
            return server_launcher.reach(*space)

    def _commit(self, messages: Messages, batch: Batch | None, plan: Plan, *, is_numbered: bool = False) -> None:
        prepared = [message for message in messages if isinstance(message, Prepared)]
        if len(prepared) < len(messages):
            raise OperationalError("a task has ended without saying what it wrote: start the query again")
        branches: dict[int, list[Xid]] = {}
        for message in prepared:
            if batch is not None and message.batch != batch:
                raise OperationalError(
                    f"a task has written for {message.batch} and not for {batch}: start the query again"
                )
            batch = message.batch
            branches.setdefault(message.space, []).extend(message.xids)
        if batch is None:  # there was no task, and it was not the batch of a known query
            return
        named = frozenset() if self._options.queue is None else frozenset({self._options.queue})
        queues = named.union(*(message.queues for message in prepared))
        with batch_commit.reached(self._options.spaces, batch, plan) as opened:
            for message in prepared:
                opened.check_seen(message.ids, message.passed_over > 0)
            before = opened.commit(branches, queues, is_numbered)
        expired = sum(message.expired for message in prepared)
        if before is not None:
            _log_passed_over(sum(one.messages + one.passed_over for one in prepared), batch, plan, before)
        elif expired:
            _log.warning("[rows-expired] %s rows of %s were not written: they have expired", f"{expired:,}", batch)

    def _roll_back(self, messages: Messages, number: int, otherwise: str | None) -> None:
        """Of the batch of this number. otherwise: the query, where neither options nor tasks say it."""
        queries = (message.batch.query for message in messages if isinstance(message, Prepared))
        query = self._options.application or next(queries, otherwise)
        if query is not None:
            with batch_commit.reached(self._options.spaces, Batch(query, number), Plan()) as opened:
                opened.roll_back()


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """The sink of a stream. Raises InvalidArgument, UnknownQueue, and SpaceError for a path that is no space."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise InvalidArgument('output mode "complete" is refused: a queue takes new messages, so use "append"')
        super().__init__(parse(options, stream=True), schema, is_expected=True)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._write(iterator, _batch_of_task(self._options.application), self._checkpoint_of_session())

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Returns once the batch is committed everywhere; may be called again, with other messages.

        Raises InvalidArgument where the query has written another batch of this number, or a later one.
        """
        query = self._options.application
        if batchId == 0:
            log_ignored(self._options.ignored)
        checkpoint = next((one.checkpoint for one in messages if isinstance(one, Prepared)), "")
        plan = hardened_plan(self._options.checkpoint or checkpoint, batchId)
        self._commit(messages, Batch(query, batchId) if query is not None else None, plan)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Rolls back what was prepared, where the query is known here: else that happens when it is written again."""
        self._roll_back(messages, batchId, query_in(self._options.checkpoint or ""))

    def _checkpoint_of_session(self) -> str:
        """Where Spark keeps it without the option. That of a query without a name is new each time."""
        context = TaskContext.get()
        directory = context.getLocalProperty(CHECKPOINTS) if context is not None else None
        name = self._options.query_name
        return f"{directory}/{name}" if directory and name else ""


class BatchWriter(_Writer, DataSourceArrowWriter):
    """The sink of a batch query: one batch. Raises as that of a stream."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise InvalidArgument('mode "overwrite" is refused: a queue takes new messages, so use .mode("append")')
        found = parse(options, stream=False)
        super().__init__(found, schema, is_expected=False)
        self._batch = Batch(found.application or str(uuid.uuid4()), found.version or 0)
        self._is_named = found.application is not None
        log_ignored(found.ignored)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._write(iterator, self._batch)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Returns once the batch is committed everywhere. What was written under its number, or a later one, is not
        written again, and the log says how much that was.
        """
        batch = self._batch if self._is_named else None
        self._commit(messages, batch, Plan(once=not self._is_named), is_numbered=self._is_named)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._roll_back(messages, self._batch.number, self._batch.query)


def _log_passed_over(rows: int, batch: Batch, plan: Plan, before: BatchDecision) -> None:
    """Rows that are not written: a warning where nothing shows that they are those which were written before."""
    at = datetime.fromtimestamp(before.decided_at / 1_000_000, UTC).isoformat(timespec="seconds")
    what = f"{rows:,} rows were passed over: {batch} was written before, at {at}"
    if batch != before.batch:
        what = f"{rows:,} rows were passed over: {batch} is below {before.batch}, which was written at {at}"
    if plan.digest and before.plan.digest:
        _log.info("[batch-passed-over] %s", what)
    elif rows:
        _log.warning("[batch-passed-over] %s", what)


def _batch_of_task(application: str | None) -> Batch:
    """Of a stream. Raises OperationalError where Spark does not say which."""
    context = TaskContext.get()
    query = application or (context.getLocalProperty(QUERY_PROPERTY) if context else None)
    number = context.getLocalProperty(BATCH_PROPERTY) if context else None
    if query is None or number is None:
        raise OperationalError(
            "Spark does not tell this task its query and batch: write with foreachBatch and df.write, "
            'with options "txnAppId" and "txnVersion"'
        )
    return Batch(query, int(number))
