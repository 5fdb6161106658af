"""A sink without Spark: what Spark calls, in its order, with the tasks that a test names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql.pandas.types import from_arrow_schema

from support.served import ServerThread
from xaqueue.core.owner import open as attach_room
from xaqueue.rpc.client.manager import remote_manager
from xaqueue.spark import sink
from xaqueue.spark.sink import BatchWriter, StreamWriter
from xaqueue.spark.sink_task import Prepared
from xaqueue.xa import Flag

QUERY = "11111111-2222-3333-4444-555555555555"


class Context:
    """What a task asks Spark of itself."""

    def __init__(self, properties: Mapping[str, str], partition: int, attempt: int) -> None:
        self._properties = properties
        self._partition = partition
        self._attempt = attempt

    def getLocalProperty(self, name: str) -> str | None:
        return self._properties.get(name)

    def partitionId(self) -> int:
        return self._partition

    def taskAttemptId(self) -> int:
        return self._attempt


class Scene:
    """Spaces with a server each, and a sink that writes to them."""

    def __init__(
        self, directory: Path, monkeypatch: pytest.MonkeyPatch, *, spaces: int = 1, sync: str = "NONE"
    ) -> None:
        self._monkeypatch = monkeypatch
        self._attempts = 0
        self.properties: dict[str, str] = {}
        """What the session's settings tell each task."""
        self.roots = [directory / f"space{number}" for number in range(spaces)]
        self.servers: list[ServerThread] = []
        for root in self.roots:
            attach_room.create(root, sync=sync, any_queue=True)
            self.servers.append(ServerThread(root, root.with_suffix(".socket")))

    @property
    def path(self) -> str:
        return ",".join(str(root) for root in self.roots)

    def stream(self, table: pa.Table, **options: str) -> StreamWriter:
        given = {"path": self.path, "queue": "orders"} | options
        return sink.StreamWriter(given, from_arrow_schema(table.schema), False)

    def batch(self, table: pa.Table, **options: str) -> BatchWriter:
        given = {"path": self.path, "queue": "orders"} | options
        return sink.BatchWriter(given, from_arrow_schema(table.schema), False)

    def task(self, writer: Any, table: pa.Table, *, number: int = 0, partition: int = 0) -> Prepared:
        """One attempt at a partition, as its task sees it."""
        self._attempts += 1
        told = {sink.QUERY_PROPERTY: QUERY, sink.BATCH_PROPERTY: str(number)} | self.properties
        context = Context(told if isinstance(writer, StreamWriter) else {}, partition, self._attempts)
        self._monkeypatch.setattr(TaskContext, "get", lambda: context)
        try:
            made = writer.write(iter(table.to_batches()))
        finally:
            self._monkeypatch.setattr(TaskContext, "get", lambda: None)
        assert isinstance(made, Prepared)
        return made

    def tasks(self, writer: Any, tables: Sequence[pa.Table], *, number: int = 0) -> list[Any]:
        """All partitions of a batch; what the driver is given."""
        return [self.task(writer, table, number=number, partition=n) for n, table in enumerate(tables)]

    def bodies(self, space: int = 0, queue: str = "orders") -> list[bytes]:
        with closing(remote_manager(self.servers[space].url)) as manager:
            return sorted(message.body for message in manager.browse(queue))

    def in_doubt(self, space: int = 0) -> int:
        with closing(remote_manager(self.servers[space].url)) as manager:
            return len(manager.recover(1000, Flag.STARTRSCAN | Flag.ENDRSCAN))

    def stop(self) -> None:
        for server in self.servers:
            server.stop()


def texts(*values: object) -> pa.Table:
    """A table of bodies."""
    return pa.table({"body": [str(value) for value in values]})


def as_bytes(values: Iterable[object]) -> list[bytes]:
    return sorted(str(value).encode() for value in values)
