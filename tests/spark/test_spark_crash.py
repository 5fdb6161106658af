"""A stream from one space into others, killed wherever it can be: each message is at the far end exactly once.

The driver dies with its JVM, and in two points the sink's server with it. A run goes on from the checkpoint of the one
before and is killed at the next point. ``XAQUEUE_CRASH_FULL=1`` takes 25,000 messages and every point, with one far
space and with two; else it is two points on the way to two: each life is a JVM, which takes longer than its work.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from support import spark_copies
from support.spark_copies import FULL

pytest.importorskip("pyspark", reason="pyspark is not installed")
pytest.importorskip("pyarrow", reason="pyarrow is not installed")

pytestmark = [pytest.mark.crash, pytest.mark.spark, pytest.mark.xdist_group("spark-kill")]

MESSAGES, MOST = (25_000, 1_500) if FULL else (500, 100)
FAILS = "fails for good"
KILLS = ("planning", "reading", "writing", "written", "decided", "half", FAILS, "committed", "consuming", "consumed")
KILLS_OF_TWO = ("writing", "written", "half of the spaces", "committed")
SOME_OF_TWO = ("half of the spaces",), ("consuming",)


CAMPAIGNS = (
    [(1, KILLS, "fails once"), (2, KILLS_OF_TWO, "worker")]
    if FULL
    else [(2, points, "worker") for points in SOME_OF_TWO]
)
"""Far spaces, where each run dies, and what the run survives that comes to the end."""


@pytest.mark.parametrize(("sinks", "points", "last"), CAMPAIGNS)
def test_each_message_arrives_once_wherever_the_driver_dies(
    tmp_path: Path, sinks: int, points: tuple[str, ...], last: str
) -> None:
    with spark_copies.scene(tmp_path, sinks, MESSAGES, MOST) as scene:
        for batch, point in enumerate(points, 1):
            run = scene.run(point, batch)
            if point == FAILS:
                assert run.returncode > 0, run.stdout
                assert "attempt 2 fails" in run.stdout
            else:
                assert run.returncode == -signal.SIGKILL, f"{point}: {run.stdout}"
            scene.check_nothing_is_lost()
        run = scene.run(last, scene.planned() + 1)
        assert run.returncode == 0, run.stdout
        assert "attempt 0 fails" in run.stdout or last != "fails once"
        scene.check_whole()
