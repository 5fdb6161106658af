"""Spark's own binaryFile source reads ``committed/`` as a stream, while its owner is killed: each message comes once.

The space has the default level. ``XAQUEUE_CRASH_FULL=1`` kills a hundred times.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import xaqueue
from support import SUPPORT
from support.patience import eventually
from xaqueue.features.opening import create

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.crash, pytest.mark.spark, pytest.mark.xdist_group("spark")]

KILLS, RESTARTS = (100, 10) if os.environ.get("XAQUEUE_CRASH_FULL") == "1" else (4, 2)
"""Every so many lives of the owner the query is ended, and begun again from its checkpoint."""
FILE = "path STRING, modificationTime TIMESTAMP, length LONG, content BINARY, queue STRING, range STRING"
LISTING = "spark.sql.sources.parallelPartitionDiscovery.threshold"


class Copy:
    """What the stream has read, as a table of queue and body."""

    def __init__(self, spark: SparkSession, space: Path, scratch: Path) -> None:
        self._spark, self._space, self._scratch = spark.newSession(), space, scratch
        self._spark.conf.set(LISTING, 1_000_000)
        self._query: Any = None

    def start(self) -> None:
        from xaqueue.spark import decode, messages

        frame = self._spark.readStream.format("binaryFile").schema(FILE).option("maxFilesPerTrigger", 1_000)
        files = frame.load(str(self._space / "committed"))
        orders = files.where("queue = 'orders'").select("queue", decode("content").alias("m"))
        calls = files.where("queue = 'calls'").select("queue", messages("content").alias("m"))
        rows = orders.selectExpr("queue", "m.body").union(calls.selectExpr("queue", "m.body"))
        writer = rows.writeStream.format("parquet").option("checkpointLocation", str(self._scratch / "checkpoint"))
        self._query = writer.start(str(self._scratch / "copies"))

    def stop(self) -> None:
        self._query.stop()

    def all(self) -> list[tuple[str, bytes]]:
        self._query.processAllAvailable()
        rows = self._spark.read.parquet(str(self._scratch / "copies")).collect()
        return sorted((row["queue"], bytes(row["body"])) for row in rows)


def _is_larger(said: Path, than_bytes: int) -> bool:
    return said.stat().st_size > than_bytes


def test_each_message_comes_once_while_the_owner_is_killed(spark: SparkSession, tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    dice, space, said = random.Random(seed), tmp_path / "space", tmp_path / "said"
    said.touch()
    create(space)
    (space / "queues.toml").write_text('[queues.orders]\nblocks = "one"\n[queues.calls]\n')
    copy = Copy(spark, space, tmp_path)
    copy.start()
    for life in range(KILLS):
        said_bytes = said.stat().st_size
        with said.open("ab") as heard:
            owner = subprocess.Popen([sys.executable, SUPPORT / "plain_child.py", space, str(life)], stdout=heard)
        eventually(partial(_is_larger, said, said_bytes))
        time.sleep(dice.uniform(0.0, 0.5))
        owner.kill()
        owner.wait()
        if life % (KILLS // RESTARTS) == 0:
            copy.stop()
            copy.start()
    with xaqueue.connect(space) as queues:
        there = sorted((queue, one.body) for queue in ("orders", "calls") for one in queues.browse(queue))
    found = copy.all()
    copy.stop()
    assert found == there, seed
    assert {body for _, body in found} >= {line.encode() for line in said.read_text().splitlines()}, seed
    assert len({*found}) == len(found), seed
