"""What reads a queue's files in Spark, ours and Spark's own, each in a process and a JVM of its own.

So no figure is of a heap that another source has filled, or of code that was compiled for another. The processes live
until all is measured and take turns: what has none waits. PySpark's types are Any here: it is imported in
``xaqueue/spark`` only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from bench import spark_scale
from bench.spark_query import Run, timed
from xaqueue.core.model import layout

CORES = 2
DRIVER_MEMORY = "2g"
FILE_COLUMNS = "path STRING, modificationTime TIMESTAMP, length LONG, content BINARY"
THRESHOLD = "spark.sql.sources.parallelPartitionDiscovery.threshold"
NEVER = 1 << 30
TUNED = ("binary_file_tuned", "binary_file_delete")


@dataclass(frozen=True, slots=True)
class Source:
    """``name``: as in the result; ``per_trigger``: messages or files a batch, all in one without it; ``url``: of the
    server that reads for it. Parquet's ``space`` is the directory of its files."""

    name: str
    space: Path
    queue: str
    per_trigger: int | None = None
    url: str = ""


Measure = Callable[[Source, Path], Run]


def measure(source: Source, scratch: Path) -> Run:
    """One query, in this process's session. Raises what the query raises."""
    spark = session()
    if source.name in TUNED:
        spark.conf.set(THRESHOLD, NEVER)
    try:
        return timed(spark, _stream(spark, source), scratch)
    finally:
        spark.conf.unset(THRESHOLD)


@contextmanager
def apart() -> Iterator[Measure]:
    """``measure`` in a process for each source's name, which keeps its session until the block ends."""
    processes: dict[str, ProcessPoolExecutor] = {}

    def run(source: Source, scratch: Path) -> Run:
        if source.name not in processes:
            processes[source.name] = ProcessPoolExecutor(1, mp_context=get_context("spawn"))
        return processes[source.name].submit(measure, source, scratch).result()

    try:
        yield run
    finally:
        for process in processes.values():
            process.shutdown()


def session() -> Any:
    """The JVM compiles and collects as it does by default: ``session``'s quick start would hold binaryFile back."""
    from xaqueue.spark import QUIET_LOGS
    from xaqueue.spark import session as started

    java_options = f'"-Dlog4j2.configurationFile={QUIET_LOGS}"'
    settings = {"spark.driver.memory": DRIVER_MEMORY, "spark.driver.extraJavaOptions": java_options}
    return started("xaqueue bench", cores=CORES, **settings)


def _stream(spark: Any, source: Source) -> Any:
    if source.name.startswith("xaqueue"):
        place = source.url or str(source.space)
        return spark_scale.stream(spark, place, source.queue, "keep", source.per_trigger)
    if source.name == "parquet":
        return spark.readStream.schema(spark.read.parquet(str(source.space)).schema).parquet(str(source.space))
    if source.name == "rate":
        rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", source.per_trigger)
        return rate.option("numPartitions", CORES).load()
    reader = spark.readStream.format("binaryFile").schema(FILE_COLUMNS)
    if source.per_trigger is not None:
        reader = reader.option("maxFilesPerTrigger", source.per_trigger)
    if source.name == "binary_file_delete":
        reader = reader.option("cleanSource", "delete")
    return reader.load(str(source.space / layout.queue_path(source.queue)))
