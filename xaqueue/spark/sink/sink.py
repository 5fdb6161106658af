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
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from xaqueue.batch import Batch, Decision, Plan
from xaqueue.errors import InvalidArgument, OperationalError
from xaqueue.space.model.format import read_format
from xaqueue.space.owner.open import read_definitions
from xaqueue.spark.options import log_ignored
from xaqueue.spark.runtime import server_launcher
from xaqueue.spark.sink import batch_commit
from xaqueue.spark.sink.columns import SinkColumns
from xaqueue.spark.sink.options import SinkOptions, parse
from xaqueue.spark.sink.task import Branches, WriteTask
from xaqueue.spark.source.checkpoint import hardened_plan, query_in
from xaqueue.xid import Xid

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

QUERY_PROPERTY, BATCH_PROPERTY = "sql.streaming.queryId", "streaming.sql.batchId"
"""What Spark tells the tasks of a stream."""

CHECKPOINTS = "spark.sql.streaming.checkpointLocation"
"""And where checkpoints are that no option names, in directories named after their queries."""

_log = logging.getLogger("xaqueue.spark")


@dataclass(frozen=True, slots=True)
class Prepared(WriterCommitMessage):
    """What a task tells the driver: its branches, in the space of this number."""

    batch: Batch
    space: int
    xids: tuple[Xid, ...] = ()
    messages: int = 0
    passed_over: int = 0
    """Rows that were not written, since the batch or a later one is decided."""
    expired: int = 0
    """Rows that were not written, since nobody would ever be given them."""
    checkpoint: str = ""
    """Of the query, where the session's settings say."""
    queues: frozenset[str] = frozenset()
    """To which it wrote."""


Messages = Sequence[WriterCommitMessage | None]


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> StreamWriter:
    """Raises InvalidArgument, UnknownQueue, and SpaceError for a path that is no space."""
    if overwrite:
        raise InvalidArgument('output mode "complete" is refused: a queue takes new messages, so use "append"')
    return StreamWriter(_checked(parse(options, stream=True), is_expected=True), schema)


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchWriter:
    """Raises InvalidArgument, UnknownQueue, and SpaceError for a path that is no space."""
    if overwrite:
        raise InvalidArgument('mode "overwrite" is refused: a queue takes new messages, so use .mode("append")')
    return BatchWriter(_checked(parse(options, stream=False)), schema)


def _checked(options: SinkOptions, *, is_expected: bool = False) -> SinkOptions:
    """SpaceError for a path that is no space, and UnknownQueue: what a task raises is hidden in Spark's report."""
    for space in options.spaces:
        if space.path and not space.server:
            read_format(space.path, is_expected=is_expected)
            if options.queue is not None:
                read_definitions(space.path).find(options.queue)
    return options


class _Writer:
    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._options = options
        self._columns = SinkColumns(schema, options.queue)

    def _write(self, batches: Iterable[pa.RecordBatch], task: WriteTask, checkpoint: str = "") -> Prepared:
        """Prepares all messages in one space, which goes by the partition; nothing for a batch that is decided."""
        spaces, batch = self._options.spaces, task.batch
        number = task.partition % len(spaces)
        prepared = Prepared(batch, number, checkpoint=checkpoint)
        with ExitStack() as stack:
            session = stack.enter_context(closing(server_launcher.reach(*spaces[number])))
            home = session if number == 0 else stack.enter_context(closing(server_launcher.reach(*spaces[0])))
            if any(one.decision(batch) is not None for one in {session, home}):  # as far as these two know
                # somebody has to read them: Spark's worker waits
                return replace(prepared, passed_over=sum(part.num_rows for part in batches))
            branches = Branches(session, task, batch_commit.id_of(spaces[0], home) if len(spaces) > 1 else "")
            branches.write(row for part in batches for row in self._columns.rows(part))
        return replace(
            prepared,
            xids=tuple(branches.prepared),
            messages=branches.messages,
            expired=branches.expired,
            queues=frozenset(branches.queues),
        )

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
        before = batch_commit.commit(
            self._options.spaces, batch, plan, branches, queues=queues, is_numbered_by_user=is_numbered
        )
        expired = sum(message.expired for message in prepared)
        if before is not None:
            _log_passed_over(sum(one.messages + one.passed_over for one in prepared), batch, plan, before)
        elif expired:
            _log.warning("%s rows of %s were not written: they have expired", f"{expired:,}", batch)


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """The sink of a stream."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Raises InvalidArgument for rows that are no messages, and what the server refuses with."""
        return self._write(iterator, _task(self._options.application), self._checkpoint_of_session())

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
        query = self._options.application or _query_in(messages)
        if query is None and self._options.checkpoint is not None:
            query = query_in(self._options.checkpoint)
        if query is not None:
            batch_commit.roll_back(self._options.spaces, Batch(query, batchId))

    def _checkpoint_of_session(self) -> str:
        """Where Spark keeps it without the option. That of a query without a name is new each time."""
        context = TaskContext.get()
        directory = context.getLocalProperty(CHECKPOINTS) if context is not None else None
        name = self._options.query_name
        return f"{directory}/{name}" if directory and name else ""


class BatchWriter(_Writer, DataSourceArrowWriter):
    """The sink of a batch query: one batch."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._batch = Batch(options.application or str(uuid.uuid4()), options.version or 0)
        self._is_named = options.application is not None
        log_ignored(options.ignored)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Raises InvalidArgument for rows that are no messages, and what the server refuses with."""
        return self._write(iterator, _task_of(self._batch))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Returns once the batch is committed everywhere. What was written under its number, or a later one, is not
        written again, and the log says how much that was.
        """
        batch = self._batch if self._is_named else None
        self._commit(messages, batch, Plan(once=not self._is_named), is_numbered=self._is_named)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Rolls back what was prepared."""
        query = self._options.application or _query_in(messages) or self._batch.query
        batch_commit.roll_back(self._options.spaces, Batch(query, self._batch.number))


def _log_passed_over(rows: int, batch: Batch, plan: Plan, before: Decision) -> None:
    """Rows that are not written: a warning where nothing shows that they are those which were written before."""
    at = datetime.fromtimestamp(before.decided_at / 1_000_000, UTC).isoformat(timespec="seconds")
    what = f"{rows:,} rows were passed over: {batch} was written before, at {at}"
    if batch != before.batch:
        what = f"{rows:,} rows were passed over: {batch} is below {before.batch}, which was written at {at}"
    if plan.digest and before.plan.digest:
        _log.info("%s", what)
    elif rows:
        _log.warning("%s", what)


def _query_in(messages: Messages) -> str | None:
    return next((message.batch.query for message in messages if isinstance(message, Prepared)), None)


def _task(application: str | None) -> WriteTask:
    """This task of a stream. Raises OperationalError where Spark does not say which batch it is of."""
    context = TaskContext.get()
    query = application or (context.getLocalProperty(QUERY_PROPERTY) if context else None)
    number = context.getLocalProperty(BATCH_PROPERTY) if context else None
    if query is None or number is None:
        raise OperationalError(
            "Spark does not tell this task its query and batch: write with foreachBatch and df.write, "
            'with options "txnAppId" and "txnVersion"'
        )
    return _task_of(Batch(query, int(number)))


def _task_of(batch: Batch) -> WriteTask:
    context = TaskContext.get()
    return WriteTask(batch, context.partitionId(), context.taskAttemptId()) if context else WriteTask(batch)
