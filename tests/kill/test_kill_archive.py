"""What leaves queues becomes Parquet while those who do it, and who owns the space, are killed at any time: the queue
with all that left it only grows meanwhile, and in the end each message is in Parquet once, for whoever reads that.

``XAQUEUE_CRASH_FULL=1`` takes 100 kills of the process and 10 of the owner, at each level.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from support import SUPPORT
from support.patience import eventually
from xaqueue.core.owner.definitions_file import write_definitions
from xaqueue.features.opening import create

pytest.importorskip("pyarrow", reason="pyarrow is not installed")
pytest.importorskip("duckdb", reason="duckdb is not installed")
pytest.importorskip("polars", reason="polars is not installed")

import duckdb
import polars

from xaqueue import lake
from xaqueue.lake.archive import archive

pytestmark = pytest.mark.crash

FULL = os.environ.get("XAQUEUE_CRASH_FULL") == "1"
KILLS, OWNERS = (100, 10) if FULL else (12, 2)
CHILD = SUPPORT / "archive_child.py"
QUEUES = '[queues.q]\narchive = "parquet"\n[queues.s]\narchive = "parquet"\n'


def work(root: Path, log: Path, seed: str, word: str = "") -> subprocess.Popen[bytes]:
    """Returns when it has done something."""
    before = log.stat().st_size if log.exists() else 0
    process = subprocess.Popen([sys.executable, str(CHILD), str(root), str(log), seed, word])
    eventually(lambda: word or (log.exists() and log.stat().st_size > before))
    return process


def said(log: Path, what: str, queue: str) -> set[bytes]:
    words = [line.split() for line in log.read_bytes().splitlines()]
    return {body for did, of, body in words if (did, of) == (what.encode(), queue.encode())}


@pytest.mark.parametrize("sync", ["JOURNAL", "FDATASYNC;DSYNC", "NONE"])
def test_each_message_is_there_once(tmp_path: Path, sync: str) -> None:
    rng = random.Random(seed := os.environ.get("XAQUEUE_KILL_SEED") or str(time.time_ns()))
    logging.getLogger(__name__).warning("XAQUEUE_KILL_SEED=%s", seed)
    root, log = tmp_path / "space", tmp_path / "log"
    create(root, sync=sync)
    write_definitions(root, QUEUES)
    forked = multiprocessing.get_context("forkserver")
    forked.set_forkserver_preload(["xaqueue.lake.archive"])
    before: dict[str, dict[int, bytes]] = {"q": {}, "s": {}}
    owner = work(root, log, "0")
    try:
        _archive(forked, root).join()  # from here on one begins in a moment
        for kill in range(KILLS):
            process = _archive(forked, root)
            time.sleep(rng.uniform(0.0, 0.4))
            process.kill()
            process.join()
            if kill * OWNERS % KILLS < OWNERS:
                assert owner.poll() is None
                owner.kill()
                owner.wait()
                owner = work(root, log, f"{kill + 1}")
            queue = rng.choice("qs")
            found = lake.scan(root, queue, ["seq", "body"], archived=True).read_all()
            seqs = found["seq"].to_pylist()
            assert seqs == sorted(set(seqs))
            now = dict(zip(seqs, found["body"].to_pylist(), strict=True))
            assert before[queue].items() <= now.items()
            before[queue] = now
    finally:
        owner.kill()
        owner.wait()
    assert work(root, log, "end", "drain").wait() == 0
    assert archive(root).wrong == []
    for queue in "qs":
        check(root, queue, before[queue], said(log, "put", queue), said(log, "took", queue))


def _archive(forked: Any, root: Path) -> Any:
    process = forked.Process(target=archive, args=(str(root),))
    process.start()
    return process


def check(root: Path, queue: str, seen: dict[int, bytes], put: set[bytes], took: set[bytes]) -> None:
    """All is in Parquet, since nothing is in the queue any more."""
    names = "seq, body, taken_at is not null as taken, taken_by"
    files = f"{root}/archive/parquet/queue={queue}/*/*.parquet"
    rows = duckdb.sql(f"select {names} from read_parquet('{files}') order by seq").fetchall()  # type: ignore[union-attr]
    frame = polars.read_parquet(files).sort("seq")
    assert [row[:2] for row in rows] == list(frame.select("seq", "body").iter_rows())
    table = lake.scan(root, queue, ["seq", "body", "taken_by"], archived=True).read_all()
    assert [(*row[:2], row[3]) for row in rows] == list(zip(*table.to_pydict().values(), strict=True))
    bodies = [row[1] for row in rows]
    assert len(bodies) == len(set(bodies)) == len({row[0] for row in rows})
    assert put <= set(bodies)
    assert seen.items() <= {row[0]: row[1] for row in rows}.items()
    assert took <= {row[1] for row in rows if row[2]}
    left = [path for path in root.glob(f"archive/queue={queue}/range=*/*") if path.is_file()]
    assert left == []
