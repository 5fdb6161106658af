"""An ingest that dies on its way: python ingest_child.py SPACE TARGET CONSUME MOST [BATCH:POINT]

Points: ``staged``, the files are written; ``dead``, dead letters are in place; ``placed``, all is in place and Spark
does not know it; ``jvm``, Spark's JVM dies instead of this process, when the batch begins.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from xaqueue.errors import OperationalError
from xaqueue.spark import session
from xaqueue.spark.ingest import IngestJob, run
from xaqueue.spark.ingest_target import Target

POINTS = ("staged", "dead", "placed", "jvm")
QUEUE = "flights"


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_jvm() -> None:
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    os.kill(gateway.proc.pid, signal.SIGKILL)


def arm(batch: int, point: str) -> None:
    def wrapped(name: str, before: Callable[[], None] | None, after: Callable[[], None] | None) -> None:
        original = getattr(Target, name)

        def call(self: Target, number: int, *rest: Any) -> Any:
            if number == batch and before:
                before()
            answer = original(self, number, *rest)
            if number == batch and after:
                after()
            return answer

        setattr(Target, name, call)

    armed = {
        "staged": ("place", die, None),
        "dead": ("_place_dead_letters", None, die),
        "placed": ("place", None, die),
        "jvm": ("stage", None, kill_jvm),
    }
    wrapped(*armed[point])


def main(space: str, target: str, consume: str, most: str, death: str = "") -> None:
    if death:
        batch, _, point = death.partition(":")
        arm(int(batch), point)
    job = IngestJob(space, QUEUE, Path(target), once=True, most_per_trigger=int(most), options=(("consume", consume),))
    try:
        told = run(job, lambda: session("ingest child"))
    except OperationalError as error:
        sys.exit(f"failed: {error}")
    sys.stdout.write(f"{told}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
