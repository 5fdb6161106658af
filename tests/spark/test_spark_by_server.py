"""Real Spark queries that have no directory: a server reads for them, and a space goes into another one through two."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import xaqueue
from support.patience import eventually
from support.served import serving
from xaqueue.features.opening import create
from xaqueue.offline.reader import QueueReader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]

WITHIN_S = 120
COUNT = 3_000


def test_a_queue_is_consumed_into_another_space_without_a_directory(spark: SparkSession, tmp_path: Path) -> None:
    for name in ("one", "two"):
        create(tmp_path / name, any_queue=True)
    with serving(tmp_path / "one") as one, serving(tmp_path / "two") as two:
        with xaqueue.connect(one.url) as queues:
            for first in range(0, COUNT, 500):
                queues.enqueue_many("orders", [b"%d" % number for number in range(first, first + 500)])
                queues.commit()
        eventually(lambda: QueueReader(tmp_path / "one", "orders").watermark() == COUNT)
        frame = spark.readStream.format("xaqueue").option("path", one.url).option("queue", "orders")
        frame = frame.option("consume", "delete").option("maxMessagesPerTrigger", 700)
        writer = frame.load().writeStream.format("xaqueue").option("server", two.url).option("queue", "copies")
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        assert query.awaitTermination(WITHIN_S)
        reader = QueueReader(tmp_path / "two", "copies")
        eventually(lambda: reader.watermark() == COUNT)
        table = spark.read.format("xaqueue").option("path", two.url).option("queue", "copies").load()
        assert sorted(int(bytes(row.body)) for row in table.select("body").collect()) == list(range(COUNT))
        assert spark.read.format("xaqueue").option("path", one.url).option("queue", "orders").load().count() == 0
