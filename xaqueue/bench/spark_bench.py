"""How fast Spark reads a queue, against what Spark does with the same files by itself, in one run on one machine.

All are streams with the trigger ``availableNow`` into the sink ``noop`` (``spark_query``). The session is warmed with
each on a small queue, and the rounds alternate, so that none has the warmer caches. ``binaryFile`` reads the range
directories, as Spark ships it and tuned: listed by the driver instead of by a task a file. Of many messages it reads a
sample, since it would take minutes. A queue that is made here is consumed at last, through a server.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any
from uuid import uuid4

from xaqueue import command
from xaqueue.bench import spark_scale
from xaqueue.bench.spark_query import Run, timed
from xaqueue.errors import InvalidArgument
from xaqueue.message import MessageId, Properties
from xaqueue.space import layout
from xaqueue.space.reader import QueueReader

CORES = 2
WARM_MESSAGES = 20_000
WARM_ROUNDS = 3
SAMPLE = 100_000
"""Files that binaryFile reads, at most."""
SHALLOW = 1_000
SINK_MESSAGES = 50_000
DRIVER_MEMORY = "2g"
FILE_COLUMNS = "path STRING, modificationTime TIMESTAMP, length LONG, content BINARY"
THRESHOLD = "spark.sql.sources.parallelPartitionDiscovery.threshold"
NEVER = 1 << 30

Progress = Callable[[str], None]
Streams = dict[str, Callable[[], Any]]


def measure(
    space_dir: str | os.PathLike[str],
    queue: str,
    messages: int = 100_000,
    body_bytes: int = 1024,
    *,
    rounds: int = 3,
    per_trigger: int | None = None,
    whole: bool = False,
    progress: Progress = lambda _: None,
) -> dict[str, Any]:
    """Messages a second of the source ``xaqueue`` and of ``binaryFile``, and how many times the first is the second.

    ``space_dir``: a space whose ``queue`` holds at least ``messages`` messages, or a directory that is missing or
    empty, where a queue of ``messages`` messages of ``body_bytes`` random bytes is laid out first. ``per_trigger``:
    messages and files a batch, all in one without it. ``whole``: the sink, planning at two depths and many spaces are
    measured too, and what was laid out is consumed. ``progress`` is told in a line what comes next. Raises
    InvalidArgument for a space with fewer messages.
    """
    space = Path(space_dir)
    made = _prepare(space, queue, messages, body_bytes, progress)
    spark = _session()
    with tempfile.TemporaryDirectory(prefix="xaqueue-bench-", dir=space.parent) as directory:
        scratch = Path(directory)
        warm, sample = scratch / "warm", space
        lay_out(warm, queue, min(WARM_MESSAGES, messages), body_bytes)
        if messages > SAMPLE:
            progress(f"laying out a sample of {SAMPLE:,} for binaryFile")
            sample = scratch / "sample"
            lay_out(sample, queue, SAMPLE, body_bytes)
        progress("warming Spark")
        for stream in list(_streams(spark, warm, warm, queue, None).values()) * WARM_ROUNDS:
            timed(spark, stream(), scratch)
        taken: dict[str, list[Run]] = {}
        for number in range(1, rounds + 1):
            for name, stream in _streams(spark, space, sample, queue, per_trigger).items():
                progress(f"round {number} of {rounds}: {name}")
                taken.setdefault(name, []).append(timed(spark, stream(), scratch))
        spark.conf.unset(THRESHOLD)
        more = _more(spark, space, queue, messages, body_bytes, scratch, progress) if whole else {}
        if whole and made:
            progress("consuming the queue")
            with spark_scale.served(space):
                consuming = spark_scale.stream(spark, str(space), queue, "delete", per_trigger)
                taken["xaqueue_delete"] = [timed(spark, consuming, scratch)]
    return _result(taken, body_bytes) | more


def _streams(spark: Any, space: Path, sample: Path, queue: str, per_trigger: int | None) -> Streams:
    def files(threshold: int | None) -> Any:
        if threshold is None:
            spark.conf.unset(THRESHOLD)
        else:
            spark.conf.set(THRESHOLD, threshold)
        reader = spark.readStream.format("binaryFile").schema(FILE_COLUMNS)
        if per_trigger is not None:
            reader = reader.option("maxFilesPerTrigger", per_trigger)
        return reader.load(str(sample / layout.queue_path(queue)))

    return {
        "xaqueue": lambda: spark_scale.stream(spark, str(space), queue, "keep", per_trigger),
        "binary_file": lambda: files(None),
        "binary_file_tuned": lambda: files(NEVER),
    }


def _more(
    spark: Any, space: Path, queue: str, messages: int, body_bytes: int, scratch: Path, progress: Progress
) -> dict[str, Any]:
    progress("the sink")
    sink = spark_scale.sink(spark, scratch / "sink", min(messages, SINK_MESSAGES), body_bytes)
    progress("planning")
    shallow = scratch / "shallow"
    lay_out(shallow, queue, min(SHALLOW, messages), body_bytes)
    depths = {min(SHALLOW, messages): shallow, messages: space}
    planning = {str(depth): spark_scale.planning(spark, root, queue, depth, scratch) for depth, root in depths.items()}
    scale = spark_scale.spaces(spark, lay_out, scratch, min(messages, SAMPLE), body_bytes, progress)
    return {"sink": sink, "planning": planning, "scale": scale}


def lay_out(space: Path, queue: str, messages: int, body_bytes: int) -> None:
    """A space with one queue as its owner would leave it, written without the engine: what is measured is reading."""
    for directory in layout.DIRECTORIES:
        (space / directory).mkdir(parents=True)
    (space / layout.FORMAT).write_text(f"xaqueue 1 bench {uuid4()}\n")
    (space / layout.QUEUES).write_text("[default]\n")
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


def _prepare(space: Path, queue: str, messages: int, body_bytes: int, progress: Progress) -> bool:
    """Whether the space was made here."""
    if not space.exists() or not any(space.iterdir()):
        progress(f"laying out {messages:,} messages of {body_bytes:,} bytes")
        lay_out(space, queue, messages, body_bytes)
        return True
    reader = QueueReader(space, queue)
    held = sum(len(found) for _, found in reader.names(0, reader.watermark()))
    if held < messages:
        raise InvalidArgument(f"queue {queue!r} of {space} holds {held:,} messages, {messages:,} are to be measured")
    return False


def _result(taken: dict[str, list[Run]], body_bytes: int) -> dict[str, Any]:
    runs: dict[str, dict[str, Any]] = {}
    for name, rounds in taken.items():
        rates = [run.per_s for run in rounds]
        middle = min(rounds, key=lambda run: abs(run.per_s - median(rates)))
        runs[name] = middle.figures() | {"rows_per_s": median(rates), "rounds_per_s": rates}
    per_s: dict[str, float] = {name: run["rows_per_s"] for name, run in runs.items()}
    return {
        "messages": taken["xaqueue"][0].rows,
        "binary_file_messages": taken["binary_file"][0].rows,
        "body_bytes": body_bytes,
        "cores": CORES,
        "rounds": len(taken["xaqueue"]),
        "xaqueue_per_s": per_s["xaqueue"],
        "binary_file_per_s": per_s["binary_file"],
        "ratio": per_s["xaqueue"] / per_s["binary_file"],
        "ratio_tuned": per_s["xaqueue"] / per_s["binary_file_tuned"],
        "runs": runs,
    }
