"""A stream as Spark drives it, without Spark: offsets through JSON, readers and partitions through pickle."""

from __future__ import annotations

import json
import pickle
from typing import Any

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit

from xaqueue.spark.source.reader import Reader
from xaqueue.spark.source.source import QueueSource, StreamReader

Offset = dict[str, Any]
ALL = ReadAllAvailable()


def stream(path: object, queue: str = "orders", **options: object) -> StreamReader:
    source = QueueSource({"path": str(path), "queue": queue} | {name: str(value) for name, value in options.items()})
    return source.streamReader(source.schema())


def rows(reader: Reader, partitions: list[Any]) -> list[dict[str, Any]]:
    """What executors would give out."""
    executor: Reader = pickle.loads(pickle.dumps(reader))
    shares = pickle.loads(pickle.dumps(partitions))
    return [row for share in shares for batch in executor.read(share) for row in batch.to_pylist()]


class Query:
    """A query with its checkpoint: ``offset`` is committed, and what a crash leaves is ``planned``."""

    def __init__(self, reader: StreamReader, offset: Offset | None = None) -> None:
        self.reader = reader
        self.begun: Offset = through_json(reader.initialOffset()) if offset is None else offset
        self.offset = self.begun
        self.is_new = offset is None

    def batch(self, limit: ReadLimit | None = None) -> list[dict[str, Any]] | None:
        """The rows of the next batch; None where there is nothing new."""
        if limit is None:
            limit = self.reader.getDefaultReadLimit()
        end = through_json(self.reader.latestOffset(self.offset, limit))
        if end == self.offset and self.is_new:  # the first batch is run in any case
            assert rows(self.reader, self.reader.partitions(self.offset, end)) == []
            end = through_json(self.reader.latestOffset(self.offset, limit))
        self.is_new = False
        if end == self.offset:
            return None
        if self.offset is not self.begun:
            self.reader.commit(self.offset)  # once the next one is written down
        found = rows(self.reader, self.reader.partitions(self.offset, end))
        self.offset = end
        return found

    def all(self, limit: ReadLimit | None = None) -> list[list[dict[str, Any]]]:
        """The rows of all batches until there is nothing new."""
        batches = []
        while (found := self.batch(limit)) is not None:
            batches.append(found)
        return batches


def through_json(offset: Offset) -> Offset:
    """As it comes back from Spark, which compares the texts."""
    read: Offset = json.loads(json.dumps(offset))
    assert json.dumps(read) == json.dumps(offset)
    return read


def places(found: list[dict[str, Any]]) -> list[tuple[str, str, int]]:
    """Name of the space, queue and number of every row, sorted."""
    return sorted((row["space"].rpartition("/")[2], row["queue"], row["seq"]) for row in found)
