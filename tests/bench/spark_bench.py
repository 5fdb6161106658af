"""How fast Spark reads a queue, against what Spark does with the same files by itself, in one run on one machine.

All are streams with the trigger ``availableNow`` into the sink ``noop`` (``spark_query``), each source in a JVM of its
own (``spark_sources``) that was warmed on a small queue as often as the others. The sources take turns, ours first.
Before each of them its files are read, so that all read from memory; a last round reads from the disk. ``binaryFile``
reads the range directories, as Spark ships it and tuned: listed by the driver instead of by a task a file. Of many
messages it reads a sample, since it would take minutes. What consumes is measured last: ours through a server, and
``binaryFile`` tuned, with ``cleanSource``, 10,000 files a batch.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any
from uuid import uuid4

from bench import page_cache, spark_bars, spark_scale, spark_sources
from bench.spark_query import Run, timed
from bench.spark_sources import Source, apart
from xaqueue.core.model import block as command
from xaqueue.core.model import layout
from xaqueue.core.storage.mounts import IN_MEMORY
from xaqueue.message import MessageId, Properties
from xaqueue.tools.environment import look

WARM_MESSAGES = 20_000
WARM_ROUNDS = 5
SAMPLE = 100_000
"""Files that binaryFile reads, at most."""
SHALLOW = 1_000
SINK_MESSAGES = 50_000
CONSUMED_PER_TRIGGER = 10_000
CONSUMED_SAMPLE = 20_000
"""Files that binaryFile reads and removes, at most: each batch lists all that are left."""
ORDER = ("xaqueue", "binary_file", "binary_file_tuned")

Progress = Callable[[str], None]


def measure(
    space: Path,
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

    ``space``: where a queue of ``messages`` messages of ``body_bytes`` random bytes is laid out first.
    ``per_trigger``: messages and files a batch, all in one without it. ``whole``: the sink, planning at two depths and
    many spaces are measured too, and what was laid out is consumed. ``progress`` is told what comes next.
    """
    progress(f"laying out {messages:,} messages of {body_bytes:,} bytes")
    lay_out(space, queue, messages, body_bytes)
    with tempfile.TemporaryDirectory(prefix="xaqueue-bench-", dir=space.parent) as directory:
        scratch = Path(directory)
        warm, sample = scratch / "warm", space
        lay_out(warm, queue, min(WARM_MESSAGES, messages), body_bytes)
        if messages > SAMPLE:
            progress(f"laying out a sample of {SAMPLE:,} for binaryFile")
            sample = scratch / "sample"
            lay_out(sample, queue, SAMPLE, body_bytes)
        os.sync()  # or the first to be timed shares the machine with what is being written
        taken: dict[str, list[Run]] = {name: [] for name in ORDER}
        with apart() as run:
            for name in ORDER:
                progress(f"warming {name}")
                for _ in range(WARM_ROUNDS):
                    run(Source(name, warm, queue), scratch)
            sources = {name: Source(name, space if name == "xaqueue" else sample, queue, per_trigger) for name in ORDER}
            for number, name in product(range(1, rounds + 1), ORDER):
                page_cache.fill(sources[name].space, queue)
                taken[name].append(run(sources[name], scratch))
                progress(f"round {number} of {rounds}: {name}: {taken[name][-1].per_s:,.0f} messages a second")
            from_disk: dict[str, float] = {}
            os.sync()  # what is not on disk yet is not dropped
            for name in ORDER if look(space).file_system not in IN_MEMORY else ():
                page_cache.drop(sources[name].space, queue)
                from_disk[name] = run(sources[name], scratch).per_s
                progress(f"from disk: {name}: {from_disk[name]:,.0f} messages a second")
        more = _more(space, queue, messages, body_bytes, scratch, progress) if whole else {}
        if whole:
            taken |= _consumed(space, queue, messages, body_bytes, per_trigger, scratch, progress)
    return _result(taken, body_bytes) | {"from_disk_per_s": from_disk} | more


def _more(space: Path, queue: str, messages: int, body_bytes: int, scratch: Path, progress: Progress) -> dict[str, Any]:
    progress("warming another session")
    for _ in range(WARM_ROUNDS):
        spark_sources.measure(Source("xaqueue", scratch / "warm", queue), scratch)
    spark = spark_sources.session()
    progress("the sink")
    sink = spark_scale.sink(spark, scratch / "sink", min(messages, SINK_MESSAGES), body_bytes)
    progress("planning")
    shallow = scratch / "shallow"
    lay_out(shallow, queue, min(SHALLOW, messages), body_bytes)
    depths = {min(SHALLOW, messages): shallow, messages: space}
    planning = {str(depth): spark_scale.planning(spark, root, queue, depth, scratch) for depth, root in depths.items()}
    scale = spark_scale.spaces(spark, lay_out, scratch, min(messages, SAMPLE), body_bytes, progress)
    return {"sink": sink, "planning": planning, "scale": scale}


def _consumed(
    space: Path, queue: str, messages: int, body_bytes: int, per_trigger: int | None, scratch: Path, progress: Progress
) -> dict[str, list[Run]]:
    """The sources that remove what they have read. In one session, warm from what was measured before: ours first."""
    spark = spark_sources.session()
    progress("consuming the queue")
    page_cache.fill(space, queue)
    with spark_scale.served(space):
        ours = timed(spark, spark_scale.stream(spark, str(space), queue, "delete", per_trigger), scratch)
    progress("binaryFile consumes")
    files = scratch / "files"
    lay_out(files, queue, min(messages, CONSUMED_SAMPLE), body_bytes)
    os.sync()
    page_cache.fill(files, queue)
    theirs = spark_sources.measure(Source("binary_file_delete", files, queue, CONSUMED_PER_TRIGGER), scratch)
    return {"xaqueue_delete": [ours], "binary_file_delete": [theirs]}


def lay_out(space: Path, queue: str, messages: int, body_bytes: int) -> None:
    """A space with one queue as its owner would leave it, written without the engine: what is measured is reading."""
    for directory in layout.directories():
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
        "cores": spark_sources.CORES,
        "order": list(ORDER),
        "warm_rounds": WARM_ROUNDS,
        "warm_messages": min(WARM_MESSAGES, taken["xaqueue"][0].rows),
        "rounds": len(taken["xaqueue"]),
        "xaqueue_per_s": per_s["xaqueue"],
        "binary_file_per_s": per_s["binary_file"],
        "ratio": per_s["xaqueue"] / per_s["binary_file"],
        "ratio_tuned": per_s["xaqueue"] / per_s["binary_file_tuned"],
        "runs": runs,
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.spark_bench", description=__doc__)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--per-trigger", type=int)
    parser.add_argument("--sources", action="store_true", help="the sources alone: no sink, depths or spaces")
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    say = partial(print, flush=True, file=sys.stdout)
    with tempfile.TemporaryDirectory(prefix="xaqueue-bench-", dir=given.directory) as scratch:
        measured = measure(
            *(Path(scratch) / "space", "bench", given.messages),
            rounds=given.rounds,
            per_trigger=given.per_trigger,
            whole=not given.sources,
            progress=say,
        )
    for line in spark_bars.lines(measured):
        say(line)
    if given.json is not None:
        given.json.write_text(json.dumps(measured, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
