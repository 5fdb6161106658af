"""A cluster that sees no directory copies queues by their servers, and whoever is killed meanwhile: each message once.

``XAQUEUE_CRASH_FULL=1`` takes 200,000 messages of four spaces, and kills fifty times.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")
pytest.importorskip("pyarrow", reason="pyarrow is not installed")

from support.far_cluster import far

pytestmark = [pytest.mark.crash, pytest.mark.spark, pytest.mark.xdist_group("spark-kill")]

FULL = os.environ.get("XAQUEUE_CRASH_FULL") == "1"
MESSAGES, SOURCES, SINKS, KILLS = (200_000, 4, 2, 50) if FULL else (3_000, 2, 2, 2)
PAUSE_S = (2.0, 12.0)


def test_whoever_is_killed_each_message_is_copied_once(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    with far(tmp_path, SOURCES, SINKS) as scene:
        each = MESSAGES // SOURCES
        for number, name in enumerate(scene.sources):
            scene.fill(name, number * each, each)
        killed = scene.copy_all(KILLS, random.Random(seed), PAUSE_S, "most=5000" if FULL else "most=500")
        assert scene.copies() == list(range(MESSAGES)), (seed, killed)
        assert scene.left() == 0, (seed, killed)
