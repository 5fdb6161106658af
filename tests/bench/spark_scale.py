"""What the sink writes a second, what planning costs at a depth, and what a message, a batch and a space cost.

The last three are differences between runs over the same messages: in one batch and in ten, in one space and in many.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from bench.spark_query import Run, timed

Progress = Callable[[str], None]
LayOut = Callable[[Path, str, int, int], None]

SPACES = (1, 4, 16)
BATCHES = 10
WAIT_S = 0.05


@contextmanager
def served(space: Path) -> Iterator[None]:
    """A server has it, so that nobody waits for one later; it ends with the block."""
    from xaqueue.core.owner.open import is_owned
    from xaqueue.core.owner.record import read_owner
    from xaqueue.rpc.client.server_launcher import reach

    with closing(reach(space)) as manager:
        manager.reservations()
    try:
        yield
    finally:
        owner = read_owner(space)
        if owner is not None and is_owned(space):
            os.kill(owner.pid, signal.SIGTERM)
        while is_owned(space):
            time.sleep(WAIT_S)


def sink(spark: Any, space: Path, messages: int, body_bytes: int) -> dict[str, float]:
    """Messages a second of ``df.write`` into a served space with a journal."""
    from xaqueue.core.owner.open import create

    create(space, sync="JOURNAL", any_queue=True)
    taken: list[float] = []
    with served(space):
        for many in (min(messages, 1_000), messages):  # the first to warm it
            frame = spark.range(0, many, 1, 2).selectExpr(f"repeat('x', {body_bytes}) as body")
            begun = time.perf_counter()
            frame.write.format("xaqueue").options(path=str(space), queue="bench").mode("append").save()
            taken.append(many / (time.perf_counter() - begun))
    return {"messages": messages, "messages_per_s": taken[-1]}


def stream(spark: Any, path: str, queue: str, consume: str = "keep", per_trigger: int | None = None) -> Any:
    reader = spark.readStream.format("xaqueue").options(path=path, queue=queue, consume=consume)
    return (reader if per_trigger is None else reader.option("maxMessagesPerTrigger", per_trigger)).load()


def planning(spark: Any, space: Path, queue: str, waiting: int, scratch: Path) -> dict[str, float]:
    """Of ten batches over all that waits there: Spark says it in milliseconds, and the median counts."""
    return timed(spark, stream(spark, str(space), queue, per_trigger=-(-waiting // BATCHES)), scratch).figures()


def spaces(
    spark: Any, lay_out: LayOut, scratch: Path, messages: int, body_bytes: int, progress: Progress
) -> dict[str, Any]:
    """The same messages in one space and in many, and in one batch and in ten."""
    runs: dict[int, Run] = {}
    for many in SPACES:
        progress(f"{messages:,} messages in {many} spaces")
        root = scratch / f"spaces{many}"
        for number in range(many):
            lay_out(root / f"space{number:02d}", "bench", messages // many, body_bytes)
        timed(spark, stream(spark, f"{root}/*", "bench"), scratch)
        runs[many] = timed(spark, stream(spark, f"{root}/*", "bench"), scratch)
    one = stream(spark, str(scratch / "spaces1" / "space00"), "bench", per_trigger=-(-messages // BATCHES))
    batched = timed(spark, one, scratch)
    lay_out(scratch / "few", "bench", max(messages // 10, 1), body_bytes)
    few = timed(spark, stream(spark, str(scratch / "few"), "bench"), scratch)
    most = runs[SPACES[-1]]
    return {
        "spaces": {str(many): run.figures() for many, run in runs.items()},
        "us_a_message": (runs[1].took_s - few.took_s) / max(runs[1].rows - few.rows, 1) * 1e6,
        "ms_a_batch": (batched.took_s - runs[1].took_s) / max(len(batched.planning_ms) - 1, 1) * 1e3,
        "ms_a_space": (most.took_s - runs[1].took_s) / (SPACES[-1] - 1) * 1e3,
    }
