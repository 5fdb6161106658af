"""How fast Spark reads a queue, against what Spark does with the same files by itself, in one run on one machine.

Both are streams with the trigger ``availableNow`` into the sink ``noop``, timed from start to termination, query start
and checkpoint included. The session is warmed with both on a small queue, and the rounds alternate, so
that neither has the warmer caches. ``binaryFile`` runs as Spark ships it and reads the range directories. PySpark's
types are Any here: it is imported in ``xaqueue/spark`` only.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any
from uuid import uuid4

from xaqueue import command
from xaqueue.errors import InvalidArgument
from xaqueue.message import MessageId, Properties
from xaqueue.space import layout
from xaqueue.space.reader import QueueReader

CORES = 2
WARM_MESSAGES = 2_000
WARM_ROUNDS = 3
DRIVER_MEMORY = "2g"
FILE_COLUMNS = "path STRING, modificationTime TIMESTAMP, length LONG, content BINARY"

Progress = Callable[[str], None]


def measure(
    space_dir: str | os.PathLike[str],
    queue: str,
    messages: int = 100_000,
    body_bytes: int = 1024,
    *,
    rounds: int = 3,
    progress: Progress = lambda _: None,
) -> dict[str, Any]:
    """Messages a second of the source ``xaqueue`` and of ``binaryFile``, and how many times the first is the second.

    ``space_dir``: a space whose ``queue`` holds at least ``messages`` messages, or a directory that is missing or
    empty, where a queue of ``messages`` messages of ``body_bytes`` random bytes is laid out first. Both read the whole
    queue. ``progress`` is told in a line what comes next. Raises InvalidArgument for a space with fewer messages.
    """
    space = Path(space_dir)
    _prepare(space, queue, messages, body_bytes, progress)
    spark = _session()
    with tempfile.TemporaryDirectory(prefix="xaqueue-bench-") as scratch:
        progress("warming Spark")
        warm = Path(scratch) / "warm"
        lay_out(warm, queue, WARM_MESSAGES, body_bytes)
        for stream in (_queue_stream, _file_stream) * WARM_ROUNDS:
            _timed(stream(spark, warm, queue), Path(scratch))
        taken: dict[str, list[tuple[int, float]]] = {"xaqueue": [], "binaryFile": []}
        for number in range(1, rounds + 1):
            for name, stream in (("xaqueue", _queue_stream), ("binaryFile", _file_stream)):
                progress(f"round {number} of {rounds}: {name}")
                taken[name].append(_timed(stream(spark, space, queue), Path(scratch)))
    return _result(taken, body_bytes)


def lay_out(space: Path, queue: str, messages: int, body_bytes: int) -> None:
    """A space with one queue as its owner would leave it, written without the engine: what is measured is reading."""
    for directory in layout.DIRECTORIES:
        (space / directory).mkdir(parents=True)
    (space / layout.FORMAT).write_text(f"xaqueue 1 bench {uuid4()}\n")
    body = os.urandom(body_bytes)
    for seq in range(1, messages + 1):
        message_id = MessageId(seq.to_bytes(16, "big"))
        path = space / layout.message_path(queue, seq, message_id)
        if seq == 1 or seq % layout.RANGE_SIZE == 0:
            path.parent.mkdir(parents=True)
        properties = Properties(queue, enqueued_at=time.time_ns() // 1000)
        block = command.Block(command.Kind.ENQUEUE, message_id, properties, body)
        path.write_bytes(b"".join(command.encode(block)))
    watermark = layout.Watermark(messages, messages)
    (space / layout.watermark_path(queue)).write_bytes(layout.format_watermark(watermark))


def _session() -> Any:
    """The JVM compiles and collects as it does by default: ``session``'s quick start would hold binaryFile back."""
    from xaqueue.spark import session
    from xaqueue.spark.session import QUIET_LOGS

    java_options = f'"-Dlog4j2.configurationFile={QUIET_LOGS}"'
    settings = {"spark.driver.memory": DRIVER_MEMORY, "spark.driver.extraJavaOptions": java_options}
    return session("xaqueue bench", cores=CORES, **settings)


def _prepare(space: Path, queue: str, messages: int, body_bytes: int, progress: Progress) -> None:
    if not space.exists() or not any(space.iterdir()):
        progress(f"laying out {messages:,} messages of {body_bytes:,} bytes")
        lay_out(space, queue, messages, body_bytes)
        return
    reader = QueueReader(space, queue)
    held = sum(len(found) for _, found in reader.names(0, reader.watermark()))
    if held < messages:
        raise InvalidArgument(f"queue {queue!r} of {space} holds {held:,} messages, {messages:,} are to be measured")


def _queue_stream(spark: Any, space: Path, queue: str) -> Any:
    return spark.readStream.format("xaqueue").option("path", str(space)).option("queue", queue).load()


def _file_stream(spark: Any, space: Path, queue: str) -> Any:
    return spark.readStream.format("binaryFile").schema(FILE_COLUMNS).load(str(space / layout.queue_path(queue)))


def _timed(stream: Any, scratch: Path) -> tuple[int, float]:
    """Rows and seconds of one query that reads all there is. Raises what the query raises."""
    checkpoint = tempfile.mkdtemp(prefix="checkpoint-", dir=scratch)
    begun = time.perf_counter()
    query = (
        stream.writeStream.format("noop").option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    )
    query.awaitTermination()
    took_s = time.perf_counter() - begun
    rows = sum(int(progress["numInputRows"]) for progress in query.recentProgress)
    shutil.rmtree(checkpoint)
    return rows, took_s


def _result(taken: dict[str, list[tuple[int, float]]], body_bytes: int) -> dict[str, Any]:
    rates = {name: [rows / took_s for rows, took_s in rounds] for name, rounds in taken.items()}
    middle = {name: median(values) for name, values in rates.items()}
    return {
        "messages": taken["xaqueue"][0][0],
        "binary_file_messages": taken["binaryFile"][0][0],
        "body_bytes": body_bytes,
        "cores": CORES,
        "rounds": len(rates["xaqueue"]),
        "xaqueue_per_s": middle["xaqueue"],
        "binary_file_per_s": middle["binaryFile"],
        "ratio": middle["xaqueue"] / middle["binaryFile"],
        "xaqueue_rounds_per_s": rates["xaqueue"],
        "binary_file_rounds_per_s": rates["binaryFile"],
    }
