"""Real Spark queries over a fabricated space: every message once, in batches as asked, and on from a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.spark_space import FabricatedSpace, body, message_id

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]

WITHIN_S = 120


@pytest.fixture
def space(tmp_path: Path) -> FabricatedSpace:
    return FabricatedSpace(tmp_path / "space")


def stream(spark: SparkSession, space: FabricatedSpace, **options: object) -> DataFrame:
    reader = spark.readStream.format("xaqueue").option("path", str(space.root)).option("queue", "orders")
    reader = reader.option("consume", "keep")
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load()


def ingest(frame: DataFrame, target: Path) -> StreamingQuery:
    """Everything that is available goes into Parquet below ``target``; the query, which has ended."""
    query = (
        frame.writeStream.format("parquet")
        .option("checkpointLocation", str(target / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(target / "rows"))
    )
    assert query.awaitTermination(WITHIN_S)
    return query


def ingested(spark: SparkSession, target: Path) -> list[int]:
    return [row.seq for row in spark.read.parquet(str(target / "rows")).select("seq").orderBy("seq").collect()]


def ended(offset: str) -> int:
    """The number in an offset of one queue in one space."""
    ((_, queues),) = json.loads(offset)["spaces"].items()
    return int(queues["orders"])


def batch_ends(query: StreamingQuery) -> Sequence[tuple[int, Any]]:
    return [
        (progress["numInputRows"], ended(progress["sources"][0]["endOffset"]))
        for progress in query.recentProgress
        if progress["numInputRows"]
    ]


def test_a_queue_goes_into_parquet_whole(spark: SparkSession, space: FabricatedSpace, tmp_path: Path) -> None:
    space.put(
        "orders", 1, b"\x00\xff", correlation_id=b"c", priority=7, headers={"k": "v"}, content_type="a/b", tries=2
    )
    space.fill("orders", range(2, 5_001))
    space.put("orders", 5_001)
    query = ingest(stream(spark, space), tmp_path / "out")
    assert batch_ends(query) == [(5_000, 5_000)]
    assert ingested(spark, tmp_path / "out") == list(range(1, 5_001))
    first, second = spark.read.parquet(str(tmp_path / "out" / "rows")).orderBy("seq").limit(2).collect()
    assert (bytes(first.message_id), first.queue, bytes(first.body)) == (bytes(message_id(1)), "orders", b"\x00\xff")
    assert (bytes(first.correlation_id), first.priority, first.headers) == (b"c", 7, {"k": "v"})
    assert (first.content_type, first.tries) == ("a/b", 2)
    assert (bytes(second.body), second.correlation_id, second.headers) == (body(2), None, {})


def test_a_limit_makes_small_batches(spark: SparkSession, space: FabricatedSpace, tmp_path: Path) -> None:
    space.fill("orders", range(1, 26))
    query = ingest(stream(spark, space, maxMessagesPerTrigger=10), tmp_path / "out")
    assert batch_ends(query) == [(10, 10), (10, 20), (5, 25)]
    assert ingested(spark, tmp_path / "out") == list(range(1, 26))


def test_a_restart_goes_on_where_the_checkpoint_ends(
    spark: SparkSession, space: FabricatedSpace, tmp_path: Path
) -> None:
    space.fill("orders", range(1, 11))
    assert batch_ends(ingest(stream(spark, space), tmp_path / "out")) == [(10, 10)]
    assert batch_ends(ingest(stream(spark, space), tmp_path / "out")) == []
    space.consume("orders", range(1, 9))
    space.fill("orders", range(11, 16))
    assert batch_ends(ingest(stream(spark, space, minPartitions=3), tmp_path / "out")) == [(5, 15)]
    assert ingested(spark, tmp_path / "out") == list(range(1, 16))


def test_a_batch_that_failed_is_read_again_exactly(spark: SparkSession, space: FabricatedSpace, tmp_path: Path) -> None:
    from pyspark.errors import StreamingQueryException

    space.fill("orders", range(1, 11))
    damaged = space.path("orders", 7)
    sound = damaged.read_bytes()
    damaged.write_bytes(sound[:-1])
    with pytest.raises(StreamingQueryException, match=f"DamagedBlock: {damaged}"):
        ingest(stream(spark, space), tmp_path / "out")
    damaged.write_bytes(sound)
    space.fill("orders", range(11, 14))
    assert batch_ends(ingest(stream(spark, space), tmp_path / "out")) == [(10, 10), (3, 13)]
    assert ingested(spark, tmp_path / "out") == list(range(1, 14))


def test_a_running_stream_sees_what_is_published(spark: SparkSession, space: FabricatedSpace, tmp_path: Path) -> None:
    space.fill("orders", [1, 2])
    frame = stream(spark, space, startingOffsets="latest")
    query = (
        frame.writeStream.format("memory")
        .queryName("seen")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        query.processAllAvailable()
        space.put("orders", 3)
        query.processAllAvailable()
        assert spark.table("seen").count() == 0
        space.publish("orders", 3)
        query.processAllAvailable()
        assert [row.seq for row in spark.table("seen").collect()] == [3]
    finally:
        query.stop()


def test_a_batch_read_takes_a_part_of_the_queue(spark: SparkSession, space: FabricatedSpace) -> None:
    space.fill("orders", range(1, 101))
    reader = spark.read.format("xaqueue").option("queue", "orders")
    assert reader.load(str(space.root)).count() == 100
    part = reader.option("startingOffsets", 10).option("endingOffsets", 20).load(str(space.root))
    assert [row.seq for row in part.select("seq").orderBy("seq").collect()] == list(range(11, 21))


def test_a_wrong_queue_fails_before_the_query_runs(spark: SparkSession, space: FabricatedSpace) -> None:
    from pyspark.errors import AnalysisException

    space.fill("orders", [1])
    reader = spark.read.format("xaqueue").option("queue", "order")
    with pytest.raises(AnalysisException, match=r"has no queue 'order': did you mean 'orders'"):
        reader.load(str(space.root)).count()


def test_in_sql_a_queue_is_a_view_and_no_table(spark: SparkSession, space: FabricatedSpace) -> None:
    from pyspark.errors import PySparkException

    space.fill("orders", [1, 2, 3])
    using = f"USING xaqueue OPTIONS (path '{space.root}', queue 'orders')"
    with pytest.raises(PySparkException, match="use CREATE TEMPORARY VIEW name USING xaqueue"):
        spark.sql(f"CREATE TABLE orders_table {using}")
    spark.sql(f"CREATE TEMPORARY VIEW orders_view {using}")
    assert spark.sql("SELECT count(*) FROM orders_view WHERE seq > 1").collect()[0][0] == 2
    spark.catalog.dropTempView("orders_view")


def test_a_session_that_runs_is_returned_as_it_is(spark: SparkSession) -> None:
    from xaqueue.spark import session

    assert session("another", cores=7) is spark
    assert spark.sparkContext.appName == "xaqueue tests"
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
