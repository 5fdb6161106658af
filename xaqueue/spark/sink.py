"""Queues are a Spark sink: each task prepares what it writes, and the driver commits the batch with one decision.

    df.writeStream.format("xaqueue").option("path", space).option("queue", "orders").start()

A batch is known by its query and its number: by Spark's id and number, or by what ``txnAppId`` and ``txnVersion`` say.
The space remembers the last 100 that were committed of a query, so a batch that is written again after a crash is not
written twice. A batch query (``df.write``) without ``txnAppId`` has a name of its own each time it is run.

Spark makes the writer anew in several processes; nothing but the messages of the tasks gets from one to the other.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from xaqueue.batch import ONE_SPACE, SEVERAL_SPACES, Batch
from xaqueue.errors import InvalidArgument, OperationalError
from xaqueue.rpc.client import RemoteManager
from xaqueue.space.attach import read_definitions
from xaqueue.space.definitions import Definitions
from xaqueue.space.format import read_format
from xaqueue.spark import deciding, owner
from xaqueue.spark.branches import Branches, Task
from xaqueue.spark.checkpoint import OFFSETS, Checkpoint, local_directory
from xaqueue.spark.sink_columns import Row, SinkColumns
from xaqueue.spark.sink_options import SinkOptions, Space, parse, query_in
from xaqueue.xid import Xid

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

QUERY_PROPERTY, BATCH_PROPERTY = "sql.streaming.queryId", "streaming.sql.batchId"
"""What Spark tells the tasks of a stream."""


@dataclass(frozen=True, slots=True)
class Prepared(WriterCommitMessage):
    """What a task tells the driver: its branches, in the space of this number."""

    query: str
    number: int
    space: int
    xids: tuple[Xid, ...] = ()
    messages: int = 0


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> StreamWriter:
    """Raises InvalidArgument, and SpaceError for a path that is no space."""
    if overwrite:
        raise InvalidArgument('output mode "complete" is refused: a queue takes new messages, so use "append"')
    return StreamWriter(_checked(parse(options, stream=True)), schema)


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchWriter:
    """Raises InvalidArgument, and SpaceError for a path that is no space."""
    if overwrite:
        raise InvalidArgument('mode "overwrite" is refused: a queue takes new messages, so use .mode("append")')
    return BatchWriter(_checked(parse(options, stream=False)), schema)


def _checked(options: SinkOptions) -> SinkOptions:
    """SpaceError for a path that is no space: what a task or the commit raises is hidden in Spark's report."""
    for space in options.spaces:
        if not space.server:
            read_format(space.path)
    return options


class _Writer:
    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._options = options
        self._columns = SinkColumns(schema, options.queue)

    def _write(self, batches: Iterable[pa.RecordBatch], task: Task) -> Prepared:
        """Prepares all messages in one space, which goes by the partition; nothing for a batch that is decided."""
        spaces = self._options.spaces
        number = task.partition % len(spaces)
        with closing(_reach(spaces[number])) as session:
            if self._is_decided(task.batch, number, session):
                for _ in batches:  # Spark's worker would wait for somebody to read them
                    pass
                return Prepared(task.batch.query, task.batch.number, number)
            written = Branches(session, task, ONE_SPACE if len(spaces) == 1 else SEVERAL_SPACES)
            written.write(self._rows(batches))
        return Prepared(task.batch.query, task.batch.number, number, tuple(written.prepared), written.messages)

    def _is_decided(self, batch: Batch, number: int, session: RemoteManager) -> bool:
        """As far as the task's own space and the first one know."""
        if session.decision(batch) is not None:
            return True
        if number == 0:
            return False
        with closing(_reach(self._options.spaces[0])) as home:
            return home.decision(batch) is not None

    def _rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Row]:
        for batch in batches:
            yield from self._columns.rows(batch)

    def _commit(self, messages: Sequence[WriterCommitMessage | None], batch: Batch | None) -> None:
        branches: dict[int, list[Xid]] = {}
        for message in messages:
            if not isinstance(message, Prepared):
                raise OperationalError("a task has ended without saying what it wrote: start the query again")
            told = Batch(message.query, message.number)
            if batch is not None and told != batch:
                raise OperationalError(f"a task has written for {told} and not for {batch}: start the query again")
            batch = told
            branches.setdefault(message.space, []).extend(message.xids)
        if batch is not None:  # else there was no task, and it was not the batch of a known query
            deciding.commit(self._options.spaces, _reach, batch, branches)

    def _abort(self, batch: Batch | None) -> None:
        if batch is not None:
            deciding.roll_back(self._options.spaces, _reach, batch)


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """The sink of a stream."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Raises InvalidArgument for rows that are no messages, and what the server refuses with."""
        return self._write(iterator, _task(self._options.application))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Returns once the batch is committed everywhere; may be called again, with other messages."""
        query = self._options.application
        if self._options.checkpoint is not None:
            _harden_range(self._options.checkpoint, batchId)
            if batchId == 0:
                self._check_remembered(self._options.checkpoint, query or _query_in(messages))
        self._commit(messages, Batch(query, batchId) if query is not None else None)

    def _check_remembered(self, checkpoint: str, query: str | None) -> None:
        """OperationalError for a batch 0 so old that its decision would be forgotten: a later one never is."""
        directory, home = local_directory(checkpoint), self._options.spaces[0]
        planned = directory / OFFSETS / "0" if directory is not None else None
        if query is None or planned is None or not planned.is_file():
            return
        kept_s = (Definitions() if home.server else read_definitions(home.path)).forget_after_s
        if time.time() - planned.stat().st_mtime > kept_s and not self._is_known(Batch(query, 0)):
            raise OperationalError(
                f"batch 0 of query {query} was planned over {kept_s / 86_400:g} days ago, after which it is forgotten "
                "whether it was written: look into the queue. If it was not, `touch "
                f"{planned}` and start the query again; if it was, start another checkpoint behind it"
            )

    def _is_known(self, batch: Batch) -> bool:
        for space in self._options.spaces:
            with closing(_reach(space)) as session:
                if session.decision(batch) is not None:
                    return True
        return False

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Rolls back what was prepared, where the query is known here: else that happens when it is written again."""
        query = self._options.application or _query_in(messages)
        if query is None and self._options.checkpoint is not None:
            query = query_in(self._options.checkpoint)
        self._abort(Batch(query, batchId) if query is not None else None)


class BatchWriter(_Writer, DataSourceArrowWriter):
    """The sink of a batch query: one batch."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._batch = Batch(options.application or str(uuid.uuid4()), options.version or 0)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Raises InvalidArgument for rows that are no messages, and what the server refuses with."""
        return self._write(iterator, _task_of(self._batch))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Returns once the batch is committed everywhere."""
        self._commit(messages, self._batch if self._options.application is not None else None)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Rolls back what was prepared."""
        query = self._options.application or _query_in(messages) or self._batch.query
        self._abort(Batch(query, self._batch.number))


def _reach(space: Space) -> RemoteManager:
    return owner.reach(space.path, space.server or None)


def _harden_range(checkpoint: str, number: int) -> None:
    """Spark does not sync what it writes: after a power loss it may plan this batch anew, with more messages, which
    would be taken for the batch that is decided. Where the checkpoint is on no disk of this machine, that is its own.
    """
    directory = local_directory(checkpoint)
    if directory is not None and (directory / OFFSETS / str(number)).is_file():
        with closing(Checkpoint(directory)) as found:
            found.harden(number)


def _query_in(messages: Iterable[WriterCommitMessage | None]) -> str | None:
    return next((message.query for message in messages if isinstance(message, Prepared)), None)


def _task(application: str | None) -> Task:
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


def _task_of(batch: Batch) -> Task:
    context = TaskContext.get()
    if context is None:
        return Task(batch)
    return Task(batch, context.partitionId(), context.taskAttemptId())
