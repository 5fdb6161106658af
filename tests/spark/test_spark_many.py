"""Real Spark queries over many spaces, over a queue that is consumed, in Kafka's words, and over plain files."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import xaqueue
from support.block_space import body_of, put_block
from support.spark_space import FabricatedSpace
from xaqueue.core.owner.open import is_owned
from xaqueue.core.owner.record import read_owner
from xaqueue.offline.reader import QueueReader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamReader

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]

WITHIN_S = 120


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def queue(spark: SparkSession, path: object) -> DataStreamReader:
    return spark.readStream.format("xaqueue").option("path", str(path)).option("queue", "orders")


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Path]:
    """A space that nobody has open, with 30 orders; the server that a job starts for it is ended."""
    root = tmp_path / "served"
    with xaqueue.connect(root, create=True, sync="NONE") as shop:
        for number in range(30):
            shop.enqueue("orders", b"%d" % number)
        shop.commit()
    yield root
    owner = read_owner(root)
    if is_owned(root) and owner is not None:
        os.kill(owner.pid, signal.SIGTERM)
        until(lambda: not is_owned(root))


def test_four_spaces_are_one_stream_whoever_goes_or_joins(spark: SparkSession, tmp_path: Path) -> None:
    spaces = tmp_path / "spaces"
    made = {name: FabricatedSpace(spaces / name) for name in ("a", "b", "c", "d")}
    for space in made.values():
        space.fill("orders", range(1, 101))
    reader = queue(spark, spaces / "*").option("consume", "keep").option("skipMissingSpaces", "true")
    query: StreamingQuery = (
        reader.option("maxMessagesPerTrigger", 90)
        .load()
        .select("space", "seq")
        .writeStream.format("memory")
        .queryName("many")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )

    def counts() -> dict[str, int]:
        counted = spark.sql("SELECT space, count(*) AS n, count(DISTINCT seq) AS d FROM many GROUP BY space").collect()
        assert all(row.n == row.d for row in counted)
        return {row.space.rpartition("/")[2]: row.n for row in counted}

    try:
        query.processAllAvailable()
        assert counts() == {"a": 100, "b": 100, "c": 100, "d": 100}
        (spaces / "b").rename(tmp_path / "away")
        FabricatedSpace(spaces / "e").fill("orders", range(1, 51))
        made["c"].fill("orders", range(101, 111))
        query.processAllAvailable()
        assert counts() == {"a": 100, "b": 100, "c": 110, "d": 100, "e": 50}
        (tmp_path / "away").rename(spaces / "b")
        made["b"].fill("orders", range(101, 104))
        query.processAllAvailable()
        assert counts() == {"a": 100, "b": 103, "c": 110, "d": 100, "e": 50}
        assert query.exception() is None
    finally:
        query.stop()


def test_a_queue_is_consumed_by_a_job_that_starts_its_own_server(
    spark: SparkSession, served: Path, tmp_path: Path
) -> None:
    def run() -> list[int]:
        query = (
            queue(spark, served)
            .option("consume", "delete")
            .option("maxMessagesPerTrigger", 12)
            .load()
            .writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "rows"))
        )
        assert query.awaitTermination(WITHIN_S)
        read = spark.read.parquet(str(tmp_path / "rows")).select("seq").orderBy("seq").collect()
        return [row.seq for row in read]

    assert run() == list(range(1, 31))
    assert QueueReader(served, "orders").consumed() == 30
    owner = read_owner(served)
    assert owner is not None
    with xaqueue.connect(owner.endpoint) as shop:
        assert list(shop.browse("orders")) == []
        shop.enqueue("orders", b"30")
        shop.commit()
        with pytest.raises(xaqueue.QueueReserved, match="spark@"):
            shop.dequeue("orders")
    assert run() == list(range(1, 32))


def test_a_start_that_fails_in_its_sink_leaves_the_queue_as_it_was(
    spark: SparkSession, served: Path, tmp_path: Path
) -> None:
    """Another start, with another checkpoint, is not refused; nor is one of whose batches Spark runs only one."""
    from pyspark.errors import StreamingQueryException

    def start(name: str, sink: str, target: Path, **trigger: bool) -> StreamingQuery:
        frame = queue(spark, served).option("consume", "delete").load().select("body")
        writer = frame.writeStream.format(sink).option("checkpointLocation", str(tmp_path / name))
        return writer.option("path", str(target)).trigger(**trigger).start()

    def ends(query: StreamingQuery) -> None:
        assert query.awaitTermination(WITHIN_S)

    with pytest.raises(StreamingQueryException, match="no queue space"):
        ends(start("one", "xaqueue", tmp_path / "nowhere", availableNow=True))
    assert reservation_of(served) is None
    ends(start("two", "parquet", tmp_path / "rows", once=True))
    assert reservation_of(served) is not None
    assert spark.read.parquet(str(tmp_path / "rows")).count() == 30


def reservation_of(space: Path) -> object:

    return QueueReader(space, "orders").record()


def test_a_kafka_job_ports_by_its_format_in_a_session_that_was_told_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    space = FabricatedSpace(tmp_path / "space")
    space.put("orders", 1, b"v", correlation_id=b"k", headers={"h": "x"})
    space.put("orders", 2, b"w")
    space.publish("orders", 2)
    untold = spark.newSession()
    reader = (
        untold.read.format("xaqueue").option("kafka.bootstrap.servers", "host:9092").option("path", str(space.root))
    )
    frame = reader.option("subscribe", "orders").option("includeHeaders", "true").load()
    columns = "CAST(key AS STRING)", "CAST(value AS STRING)", "topic", "partition", "offset", "headers[0].key AS header"
    assert [tuple(row) for row in frame.selectExpr(*columns).orderBy("offset").collect()] == [
        ("k", "v", "orders", 0, 1, "h"),
        (None, "w", "orders", 0, 2, None),
    ]
    house = untold.read.format("xaqueue").schema("body BINARY, seq LONG").option("queue", "orders")
    assert [tuple(row) for row in house.load(str(space.root)).orderBy("seq").collect()] == [(b"v", 1), (b"w", 2)]


def test_plain_binary_files_are_read_by_partition_and_decoded(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.errors import PythonException

    from xaqueue.spark import decode, messages

    space = FabricatedSpace(tmp_path / "space")
    space.fill("orders", range(1, 11))
    space.fill("bills", [1])
    put_block(space.root, 5, 20, queue="calls", gone=0b1)
    files = spark.read.format("binaryFile").load(str(space.root / "committed"))
    number = "conv(regexp_extract(path, '/([0-9a-f]{16})[^/]*$', 1), 16, 10) + m.index"
    rows = files.select("queue", "path", messages("content").alias("m"))
    calls = rows.where("queue = 'calls'").selectExpr(number, "m.body")
    assert sorted(tuple(row) for row in calls.collect()) == [(seq, body_of(seq)) for seq in range(5, 25)]
    assert rows.where("queue = 'orders'").count() == 10
    files = files.where("queue <> 'calls'")
    rows = files.select("queue", decode("content").alias("m")).selectExpr(
        "queue", "CAST(m.body AS STRING)", "m.priority"
    )
    assert sorted(tuple(row) for row in rows.collect()) == sorted(
        [("bills", "message 1", 4), *(("orders", f"message {seq}", 4) for seq in range(1, 11))]
    )
    damaged = space.path("orders", 3)
    damaged.write_bytes(damaged.read_bytes()[:-1])
    orders = files.where("queue = 'orders'")
    with pytest.raises(PythonException, match="truncated"):
        orders.select(decode("content")).collect()
    left = orders.select(decode("content", damaged_as_null=True).alias("m")).where("m IS NOT NULL")
    assert left.count() == 9
