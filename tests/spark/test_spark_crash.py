"""A stream from one space into others, killed wherever it can be: each message is at the far end exactly once.

The driver dies with its JVM, and in two points the sink's server with it. A run goes on from the checkpoint of the one
before and is killed at the next point. ``XAQUEUE_CRASH_FULL=1`` takes 25,000 messages and every point.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import spark_copies
from support.spark_copies import FULL, Scene

pytest.importorskip("pyspark", reason="pyspark is not installed")
pytest.importorskip("pyarrow", reason="pyarrow is not installed")

pytestmark = [pytest.mark.crash, pytest.mark.spark, pytest.mark.xdist_group("spark-kill")]

MESSAGES, MOST = (25_000, 1_500) if FULL else (2_000, 250)
FAILS = "fails for good"
KILLS = ("planning", "reading", "writing", "written", "decided", "half", FAILS, "committed", "consuming", "consumed")
POINTS = KILLS if FULL else ("half", "committed", "consuming")
POINTS_OF_TWO = ("writing", "written", "half of the spaces", "committed") if FULL else ("half of the spaces",)


@pytest.fixture
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scene]:
    with spark_copies.scene(tmp_path, request.param, MESSAGES, MOST) as made:
        yield made


def goes_through(scene: Scene, points: tuple[str, ...], last: str) -> None:
    """last: what the run survives that comes to the end."""
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


@pytest.mark.parametrize("scene", [1], indirect=True)
def test_each_message_arrives_once_wherever_the_driver_dies(scene: Scene) -> None:
    goes_through(scene, POINTS, "fails once")


@pytest.mark.parametrize("scene", [2], indirect=True)
def test_a_batch_over_two_spaces_is_in_both_or_in_none(scene: Scene) -> None:
    goes_through(scene, POINTS_OF_TWO, "worker")
