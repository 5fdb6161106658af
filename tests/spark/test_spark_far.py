"""A cluster that sees no directory copies queues by their servers, and whoever is killed meanwhile: each message once.

Two of the spaces have a pair of servers each, and Spark makes a second attempt at what takes long. ``FAR_STRIKES`` says
who is struck, one after the other, as ``far_cluster`` names them. ``XAQUEUE_CRASH_FULL=1`` takes 200,000 messages of
four spaces, or ``FAR_MESSAGES``, and strikes fifty times.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")
pytest.importorskip("pyarrow", reason="pyarrow is not installed")

from support.far_cluster import far

pytestmark = [
    *(pytest.mark.crash, pytest.mark.spark, pytest.mark.xdist_group("spark-kill")),
    pytest.mark.timeout(7_200),
]

FULL = os.environ.get("XAQUEUE_CRASH_FULL") == "1"
MESSAGES, SOURCES, SINKS, MOST = (
    (int(os.environ.get("FAR_MESSAGES", "200_000")), 4, 2, 2_500) if FULL else (3_000, 2, 2, 500)
)
ALL = ("driver", "worker", "executor", "server", "pair", "stall", "straggler", "writing", "writing", "straggler")
STRIKES = ALL * 5 if FULL else ("straggler", "pair", "writing")
PAUSE_S = (2.0, 8.0)


def test_each_message_is_copied_once_amid_strikes(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    dice = random.Random(seed)
    strikes = os.environ.get("FAR_STRIKES", "").split() or dice.sample(STRIKES, len(STRIKES))
    with far(tmp_path, SOURCES, SINKS) as scene:
        for name in scene.sources:
            scene.fill(name, MESSAGES // SOURCES)
        failed = scene.copy_all(strikes, dice, PAUSE_S, f"most={MOST}")
        seen = f"seed {seed}, struck {strikes}, {failed} drivers failed, {scene.speculated()} tasks were speculated"
        sys.stdout.write(seen)
        assert scene.copies() == list(range(scene.filled)), seen
        assert scene.left() == 0, seen
