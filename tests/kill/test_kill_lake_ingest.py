"""Queues of two spaces flow into a table, and the process is killed: at steps, at calls of the system, at random.

Between the kills messages come. At last DuckDB and Polars read the same rows, each message once, as a row or as a dead
letter. ``XAQUEUE_CRASH_FULL=1`` kills 100 times in each way, without it a few times.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import xaqueue
from support import SUPPORT
from support.patience import eventually
from xaqueue.core.owner.open import is_owned
from xaqueue.core.owner.record import read_owner
from xaqueue.features.opening import create
from xaqueue.offline.reader import QueueReader

pytest.importorskip("pyarrow", reason="pyarrow is not installed")
pytest.importorskip("pyiceberg", reason="pyiceberg is not installed")
pytest.importorskip("deltalake", reason="deltalake is not installed")

import duckdb
import polars
from deltalake import DeltaTable

from xaqueue.lake.catalog import catalog_named

pytestmark = pytest.mark.crash

FULL = bool(os.environ.get("XAQUEUE_CRASH_FULL"))
KILLS = int(os.environ.get("XAQUEUE_KILLS", "100" if FULL else "6"))
SEED = int(os.environ.get("XAQUEUE_KILL_SEED", random.SystemRandom().randrange(1 << 32)))
EACH, BATCH = 4, 7


QUEUES = ("orders", "refunds")


class Scene:
    """Two spaces, a table that their queues flow into, and the process whose forks are killed."""

    def __init__(self, place: Path, to: str, consume: str) -> None:
        self.spaces = [place / "space-1", place / "space-2"]
        self.lake, self.to, self.sent = place / "lake", to, 0
        for space in self.spaces:
            create(space, any_queue=True)
        self.lake.mkdir()
        self.catalog = f"sqlite:///{self.lake}/catalog.db,warehouse=file://{self.lake}/warehouse"
        self.target = "shop.orders" if to == "iceberg" else str(self.lake / "orders")
        self.job: dict[str, Any] = {
            "space": f"{place}/space-*",
            "queue": "orders,ref*",
            "target": self.target,
            "to": to,
            "consume": consume,
        }
        self.job |= {"catalog": self.catalog, "schema": "n BIGINT, s STRING", "most_messages": BATCH, "once": True}
        words = [sys.executable, str(SUPPORT / "lake_ingest_child.py")]
        self.child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def put(self) -> None:
        """To each queue as many; every fifth is no JSON."""
        for space in self.spaces:
            with xaqueue.connect(space) as connection:
                for queue in QUEUES:
                    numbers = range(self.sent, self.sent + EACH)
                    bodies = [b"%d!" % n if n % 5 == 4 else b'{"n":%d,"s":"x"}' % n for n in numbers]
                    connection.enqueue_many(queue, bodies)
                    self.sent += EACH

    def ingest(self, **death: Any) -> tuple[int, float]:
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        self.child.stdin.write(json.dumps({"job": self.job, **death}) + "\n")
        self.child.stdin.flush()
        said = json.loads(self.child.stdout.readline())
        return said["status"], said["seconds"]

    def found(self, dead: bool = False) -> list[tuple[int, Any]]:
        """By DuckDB, which Polars agrees with."""
        value = "body" if dead else "n"
        place = self.target + (("_dead_letters" if self.to == "iceberg" else "/_dead_letters") if dead else "")
        lazy: polars.LazyFrame
        with duckdb.connect() as duck:
            if self.to == "parquet":
                rows = duck.sql(f"select seq, {value} from '{place}/*.parquet' order by {value}").fetchall()
                lazy = polars.scan_parquet(f"{place}/*.parquet")
            elif self.to == "delta":
                duck.register("found", DeltaTable(place).to_pyarrow_dataset())
                rows = duck.sql(f"select seq, {value} from found order by {value}").fetchall()
                lazy = polars.scan_delta(place)
            else:
                with catalog_named(self.catalog) as catalog:
                    iceberg = catalog.load_table(place)
                    duck.register("found", iceberg.scan().to_arrow())
                    rows = duck.sql(f"select seq, {value} from found order by {value}").fetchall()
                    lazy = polars.scan_iceberg(iceberg)
        assert lazy.select("seq", value).collect().sort(value).rows() == rows
        return [(seq, found) for seq, found in rows]

    def check(self) -> None:
        self.put()
        eventually(lambda: self.ingest()[0] == 0 and len(self.found()) + len(self.found(dead=True)) >= self.sent)
        rows, dead = self.found(), self.found(dead=True)
        assert [number for _, number in rows] == [n for n in range(self.sent) if n % 5 != 4]
        assert [body for _, body in dead] == sorted(b"%d!" % n for n in range(self.sent) if n % 5 == 4)
        of_each = range(1, self.sent // 4 + 1)
        assert sorted(seq for seq, _ in (*rows, *dead)) == sorted(4 * [*of_each])
        if self.job["consume"] == "delete":
            readers = [QueueReader(space, queue) for space in self.spaces for queue in QUEUES]
            eventually(lambda: not any(list(reader.read(0, self.sent)) for reader in readers))

    def close(self) -> None:
        self.child.communicate()
        for space in self.spaces:
            owner = read_owner(space)
            if owner is not None and is_owned(space):
                with suppress(ProcessLookupError):
                    os.kill(owner.pid, signal.SIGTERM)


@pytest.fixture(params=["parquet", "delta", "iceberg"])
def to(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["delete", "keep"] if FULL else ["delete"])
def scene(request: pytest.FixtureRequest, tmp_path: Path, to: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    made = Scene(tmp_path, to, request.param)
    made.put()
    assert made.ingest()[0] == 0  # its server is there from now on
    yield made
    made.close()


def test_killed_behind_each_step(scene: Scene) -> None:
    killed = 0
    for _ in range(max(1, KILLS // 20)):
        for step in range(1, 40):
            scene.put()
            status, _ = scene.ingest(step=step)
            if status == 0:
                break
            assert status == -signal.SIGKILL
            killed += 1
            if killed >= KILLS and not FULL:
                break
    assert killed >= min(KILLS, 6)
    scene.check()


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_killed_at_calls_of_the_system(scene: Scene) -> None:
    chance = random.Random(SEED)
    killed = sum(_killed(scene, call=number if FULL else chance.randrange(1, 30)) for number in range(1, KILLS + 1))
    assert killed > KILLS // 10, SEED
    scene.check()


def test_killed_at_random(scene: Scene) -> None:
    chance = random.Random(SEED)
    scene.put()
    _, seconds = scene.ingest()
    killed = tries = 0
    while killed < KILLS:
        tries += 1
        killed += _killed(scene, after_s=chance.uniform(0, seconds))
        assert tries < 5 * KILLS + 20, SEED
    scene.check()


def _killed(scene: Scene, **death: Any) -> bool:
    scene.put()
    status, _ = scene.ingest(**death)
    assert status in (0, -signal.SIGKILL), SEED
    return status != 0
