"""The format ``xaqueue`` as Spark finds it, and the reader of one look at the queues; a stream's is in ``stream.py``.

Spark makes the objects of a source in several processes: a stream's reader lives beside the driver for planning, and a
second one is pickled to the executors.
"""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import StructType

from xaqueue.errors import InvalidArgument
from xaqueue.spark.source import columns, plan
from xaqueue.spark.source.options import KEEP, SourceOptions, parse
from xaqueue.spark.source.reader import Reader, span_of
from xaqueue.spark.source.stream import StreamReader


class BatchReader(Reader, DataSourceReader):
    """One look at the queues: what lies between start and end when the query is planned."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        if options.consume != KEEP:
            raise InvalidArgument(f"consume={options.consume} is for spark.readStream: spark.read removes nothing")

    def partitions(self) -> list[InputPartition]:
        self._log_once()
        snapshot = self._spaces.look()
        self._check_named(snapshot)
        start = self._begin(snapshot)
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
            spans.append(span_of(state, paths.index(state.path), after, upto))
        return self._tasks(spans)


class QueueSource(DataSource):
    """The format ``xaqueue``. Its options are tables in ``source/options.py`` and ``sink/options.py``."""

    tasks = plan.Tasks()

    @classmethod
    def name(cls) -> str:
        return "xaqueue"

    def schema(self) -> StructType:
        options = parse(self.options)
        return columns.schema(kafka=options.kafka, headers=options.headers, everything=options.everything)

    def reader(self, schema: StructType) -> BatchReader:
        return BatchReader(self._options(), schema)

    def streamReader(self, schema: StructType) -> StreamReader:
        return StreamReader(self._options(stream=True), schema)

    def _options(self, *, stream: bool = False) -> SourceOptions:
        return replace(parse(self.options, stream=stream), tasks=self.tasks)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from xaqueue.spark.sink import sink  # who reads does without RPC

        return sink.batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from xaqueue.spark.sink import sink

        return sink.stream_writer(self.options, schema, overwrite)
