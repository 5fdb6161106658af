"""Transactions over a lake are killed: at each step, at each file, and at any moment."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from datetime import timedelta

import pytest

pytest.importorskip("pyiceberg", reason="pyiceberg is not installed")
pytest.importorskip("sqlalchemy", reason="sqlalchemy is not installed")

from support.lake_killer import Killer, killing
from support.lake_scene import BATCH, CARRIED, EVERY, FIRST, NODE, ORDERS, PREPARED, TWO_PHASES, Lake
from support.patience import PATIENCE_S
from xaqueue.lake.orphans import orphans
from xaqueue.tm.coordinator import TraceStep as Step

FULL = os.environ.get("XAQUEUE_CRASH_FULL") == "1"
TOLD = [f"{step} {name}" for step in (Step.PREPARE, Step.PREPARED, Step.COMMIT, Step.COMMITTED) for name in ("queue",)]
ROW = [f"{Step.COMMIT_LAST} db", f"{Step.COMMITTED_LAST} db"]
DATABASES = [f"{step} db" for step in (Step.PREPARE, Step.PREPARED, Step.COMMIT, Step.COMMITTED)]
ALWAYS = [f"{Step.BEGIN} db", f"{Step.BEGIN} queue", f"{Step.ROLLBACK} db", f"{Step.DONE} "]
STEPS = {
    CARRIED: [*ALWAYS, *ROW, f"{Step.PREPARE} queue", f"{Step.PREPARED} queue"],
    PREPARED: [*ALWAYS, *ROW, *TOLD],
    NODE: [*ALWAYS, *ROW, *TOLD],
    TWO_PHASES: [*ALWAYS, *TOLD, *DATABASES, f"{Step.DECIDE} ", f"{Step.DECIDED} "],
}
DECIDED = (Step.COMMITTED_LAST, Step.DECIDED, Step.COMMIT, Step.COMMITTED, Step.DONE)
KILLS = [((kind, way), moment) for kind, way in EVERY for moment in STEPS[way]]


@pytest.fixture(scope="module")
def killer() -> Iterator[Killer]:
    with killing() as made:
        yield made


@pytest.mark.parametrize(
    ("lake", "moment"), KILLS, indirect=["lake"], ids=["-".join([*how, *moment.split()]) for how, moment in KILLS]
)
def test_killed_at_a_step(lake: Lake, moment: str, killer: Killer) -> None:
    assert killer.kill(lake, moment) == signal.SIGKILL
    lake.settle()
    assert lake.judge() == (FIRST if moment.split()[0] in DECIDED else [])
    with lake.manager() as tm, tm.transaction() as tx:
        lake.take(tx)
    assert len(lake.judge()) in (BATCH, 2 * BATCH)


@pytest.mark.parametrize("lake", [("sqlite", PREPARED)], indirect=True, ids=["sqlite"])
def test_killed_at_each_of_its_files(lake: Lake, killer: Killer) -> None:
    """Nobody sees what is left of them."""
    moments = 0
    while killer.kill(lake, f"file {moments + 1}") == signal.SIGKILL:
        moments += 1 if FULL else 13
        lake.settle()
        assert lake.judge() == []
    assert moments > 20
    assert lake.judge() == FIRST
    for path in lake.warehouse.rglob("*.*"):
        os.utime(path, (0, 0))
    assert orphans(lake.catalog, ORDERS, timedelta(days=1), remove=True)
    assert lake.judge() == FIRST


@pytest.mark.parametrize("lake", EVERY, indirect=True, ids=["-".join(how) for how in EVERY])
def test_killed_at_any_moment(lake: Lake, killer: Killer) -> None:
    """The next one goes on where it was; with ``XAQUEUE_CRASH_FULL`` a hundred are killed."""
    dice, taken = random.Random(0), 0
    for _ in range(100 if FULL else 3):
        if len(lake.left()) < 2 * BATCH:
            lake.put(8 * BATCH)
        assert killer.kill(lake, f"after {dice.uniform(0.001, 1.0):.3f}") in (signal.SIGALRM, 0)
        lake.settle()
        now = len(lake.judge())
        assert now >= taken
        taken = now
    assert killer.kill(lake, f"after {PATIENCE_S}") == 0
    assert len(lake.judge()) == lake.orders
