"""What Structured Streaming does with a stream it does with a queue: state, windows, joins, batches of one's own."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import xaqueue
from support.served import serving
from support.spark_space import FabricatedSpace, body
from xaqueue.features.opening import create

pyspark = pytest.importorskip("pyspark", reason="pyspark is not installed")

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.state import GroupState

pytestmark = [
    pytest.mark.spark,
    pytest.mark.xdist_group("spark"),
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]

WITHIN_S = 120
NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
STORE = "spark.sql.streaming.stateStore.providerClass"
ROCKS = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


class Clocked(FabricatedSpace):
    """A space whose messages are committed at a minute past noon."""

    def at(self, queue: str, seq: int, minute: int, content: bytes = b"", **properties: Any) -> None:
        path = self.put(queue, seq, content, **properties)
        ns = (NOON + timedelta(minutes=minute) - datetime.fromtimestamp(0, UTC)) // timedelta(microseconds=1) * 1_000
        os.utime(path, ns=(ns, ns))
        self.publish(queue, seq)


@pytest.fixture
def space(tmp_path: Path) -> Clocked:
    return Clocked(tmp_path / "spaces" / "one")


def stream(spark: SparkSession, path: object, queue: str = "orders", **options: object) -> DataFrame:
    reader = spark.readStream.format("xaqueue").option("path", str(path)).option("queue", queue)
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load()


def start(
    frame: DataFrame, checkpoint: Path, batch: Callable[[DataFrame, int], None], mode: str = "append"
) -> StreamingQuery:
    writer = frame.writeStream.foreachBatch(batch).outputMode(mode).option("checkpointLocation", str(checkpoint))
    return writer.trigger(availableNow=True).start()


def run(frame: DataFrame, checkpoint: Path, mode: str = "append") -> list[Row]:
    """All that is available, and what came out of it."""
    found: list[Row] = []
    query = start(frame, checkpoint, lambda rows, _: found.extend(rows.collect()), mode)
    assert query.awaitTermination(WITHIN_S)
    return found


def minutes(moment: datetime) -> int:
    return (moment.replace(tzinfo=UTC) - NOON) // timedelta(minutes=1)


def windows(spark: SparkSession, space: Clocked, tmp_path: Path) -> None:
    """A space that joins behind the watermark is read, and Spark drops what is late there."""
    from pyspark.sql.functions import window

    def counts() -> list[tuple[int, int]]:
        read = stream(spark, space.root.parent / "*").withWatermark("committed_at", "2 minutes")
        counted = read.groupBy(window("committed_at", "10 minutes")).count()
        rows = run(counted, tmp_path / "checkpoint")
        return sorted((minutes(row.window.start), row["count"]) for row in rows)

    for minute in range(1, 26):
        space.at("orders", minute, minute)
    assert counts() == [(0, 9), (10, 10)]
    late = Clocked(space.root.parent / "two")
    late.at("orders", 1, 3)
    late.at("orders", 2, 27)
    for minute in range(26, 46):
        space.at("orders", minute, minute)
    assert counts() == [(20, 11), (30, 10)]


def joined_queues(spark: SparkSession, space: Clocked, tmp_path: Path) -> None:
    """What has no partner comes alone once the watermark has passed it."""

    def joined() -> list[tuple[int, str | None]]:
        orders = stream(spark, space.root).withWatermark("committed_at", "1 minute").alias("o")
        bills = stream(spark, space.root, "bills").withWatermark("committed_at", "1 minute").alias("b")
        is_pair = "o.correlation_id = b.correlation_id AND b.committed_at BETWEEN o.committed_at AND o.committed_at + "
        pairs = orders.join(bills, _expr(is_pair + "INTERVAL 10 MINUTES"), "leftOuter")
        rows = run(pairs.selectExpr("o.seq", "CAST(b.body AS STRING) AS bill"), tmp_path / "checkpoint")
        return sorted((row.seq, row.bill) for row in rows)

    for seq in range(1, 7):
        space.at("orders", seq, seq, correlation_id=b"%d" % seq)
    for seq, order in enumerate((1, 3, 5), 1):
        space.at("bills", seq, 6, b"of %d" % order, correlation_id=b"%d" % order)
    assert joined() == [(1, "of 1"), (3, "of 3"), (5, "of 5")]
    space.at("bills", 4, 9, b"of 2", correlation_id=b"2")
    space.at("orders", 7, 60, correlation_id=b"7")
    space.at("bills", 5, 60, b"of 7", correlation_id=b"7")
    assert joined() == [(2, "of 2"), (4, None), (6, None), (7, "of 7")]


def _expr(text: str) -> Any:
    from pyspark.sql.functions import expr

    return expr(text)


def amounts(space: Clocked, *given: tuple[str, int]) -> None:
    last = getattr(space, "last", 0)
    for seq, (who, amount) in enumerate(given, last + 1):
        space.at("orders", seq, seq, b"%d" % amount, correlation_id=who.encode())
    space.last = last + len(given)  # type: ignore[attr-defined]


OF_WHOM = "CAST(correlation_id AS STRING) AS who", "CAST(CAST(body AS STRING) AS LONG) AS amount"


def state_in_pandas(spark: SparkSession, space: Clocked, tmp_path: Path) -> None:
    from pyspark.sql.streaming.state import GroupStateTimeout

    def add(key: tuple[str], frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        import pandas as pd

        total = (state.get[0] if state.exists else 0) + sum(int(frame.amount.sum()) for frame in frames)
        state.update((total,))
        yield pd.DataFrame({"who": [key[0]], "total": [total]})

    def totals() -> list[tuple[str, int]]:
        grouped = stream(spark, space.root).selectExpr(*OF_WHOM).groupBy("who")
        kept = grouped.applyInPandasWithState(
            add, "who STRING, total LONG", "total LONG", "update", GroupStateTimeout.NoTimeout
        )
        return sorted((row.who, row.total) for row in run(kept, tmp_path / "checkpoint", "update"))

    amounts(space, ("ann", 1), ("bob", 10), ("ann", 2))
    assert totals() == [("ann", 3), ("bob", 10)]
    amounts(space, ("ann", 4))
    assert totals() == [("ann", 7)]


def transformed_with_state(spark: SparkSession, space: Clocked, tmp_path: Path) -> None:
    from pyspark.sql import Row

    pytest.importorskip("google.protobuf", reason="protobuf is not installed")
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
    from pyspark.sql.types import LongType, StringType, StructField, StructType

    class Total(StatefulProcessor):
        def init(self, handle: StatefulProcessorHandle) -> None:
            self._total = handle.getValueState("total", StructType([StructField("total", LongType())]))

        def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
            known = self._total.get()
            total = (known[0] if known else 0) + sum(row.amount for row in rows)
            self._total.update((total,))
            yield Row(who=key[0], total=total)

        def close(self) -> None:
            pass

    made = StructType([StructField("who", StringType()), StructField("total", LongType())])

    def totals() -> list[tuple[str, int]]:
        grouped = stream(spark, space.root).selectExpr(*OF_WHOM).groupBy("who")
        kept = grouped.transformWithState(Total(), made, "Update", "None")
        return sorted((row.who, row.total) for row in run(kept, tmp_path / "checkpoint", "update"))

    before = spark.conf.get(STORE)
    spark.conf.set(STORE, ROCKS)
    try:
        amounts(space, ("ann", 1), ("bob", 10), ("ann", 2))
        assert totals() == [("ann", 3), ("bob", 10)]
        amounts(space, ("ann", 4))
        assert totals() == [("ann", 7)]
    finally:
        spark.conf.set(STORE, str(before))


def batch_and_transaction(spark: SparkSession, space: Clocked, tmp_path: Path) -> None:
    """Rows, messages, and that the batch was done, have one decision; Spark does the batch again that failed."""
    space.fill("orders", range(1, 8))
    for dies in ("before", "within", "behind"):
        home = tmp_path / dies
        home.mkdir()
        _batch_and_transaction(stream(spark, space.root, maxMessagesPerTrigger=3), home, dies)


def _batch_and_transaction(orders: DataFrame, home: Path, dies: str) -> None:
    from pyspark.errors import StreamingQueryException

    def database() -> sqlite3.Connection:
        return sqlite3.connect(home / "shop.db")

    with database() as db:
        db.execute("CREATE TABLE batches (query TEXT, batch INT, PRIMARY KEY (query, batch))")
        db.execute("CREATE TABLE orders (seq INT PRIMARY KEY)")
    participants = {"db": database, "queue": lambda: xaqueue.connect(home / "target", create=True)}
    failing = [1]

    with xaqueue.TransactionManager(home / "decisions", participants) as tm:

        def write(rows: DataFrame, number: int) -> None:
            fails = number in failing
            if fails and dies == "before":
                raise RuntimeError(dies)
            with tm.transaction() as tx:
                done = tx["db"].execute("SELECT 1 FROM batches WHERE query = 'bills' AND batch = ?", [number])
                if done.fetchone() is None:
                    tx["db"].execute("INSERT INTO batches VALUES ('bills', ?)", [number])
                    for row in rows.select("seq").collect():
                        tx["db"].execute("INSERT INTO orders VALUES (?)", [row.seq])
                        tx["queue"].enqueue("bills", b"%d" % row.seq)
                if fails and dies == "within":
                    raise RuntimeError(dies)
            if fails:
                raise RuntimeError(dies)

        with pytest.raises(StreamingQueryException, match=dies):
            start(orders, home / "checkpoint", write).awaitTermination()
        failing.clear()
        assert start(orders, home / "checkpoint", write).awaitTermination(WITHIN_S)
    with database() as db:
        assert [seq for (seq,) in db.execute("SELECT seq FROM orders ORDER BY seq")] == [*range(1, 8)]
    with xaqueue.connect(home / "target") as bills:
        assert sorted(int(message.body) for message in bills.browse("bills")) == [*range(1, 8)]


def new_fields(spark: SparkSession, space: Clocked, tmp_path: Path) -> None:
    """What a body lacks is null, and what the schema lacks is passed over; the table is read with the later one."""

    def ingest(schema: str) -> None:
        order = f"from_json(CAST(body AS STRING), '{schema}') AS o"
        rows = stream(spark, space.root).selectExpr("seq", order).select("seq", "o.*")
        writer = rows.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
        assert writer.trigger(availableNow=True).start(str(tmp_path / "rows")).awaitTermination(WITHIN_S)

    space.fill("orders", [1], b'{"item": "apples"}')
    space.fill("orders", [2], b'{"item": "pears", "count": 2}')
    ingest("item STRING")
    space.fill("orders", [3], b'{"item": "plums", "count": 3}')
    space.fill("orders", [4], b'{"count": 4}')
    ingest("item STRING, count INT")
    read = spark.read.option("mergeSchema", "true").parquet(str(tmp_path / "rows")).orderBy("seq")
    assert [(row.seq, row.item, row["count"]) for row in read.collect()] == [
        (1, "apples", None),
        (2, "pears", None),
        (3, "plums", 3),
        (4, None, 4),
    ]


def sizes(query: StreamingQuery) -> list[int]:
    return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]


LIMITS: list[tuple[dict[str, object], list[int]]] = [
    ({"maxMessagesPerTrigger": 8}, [8, 8, 4]),
    ({"maxOffsetsPerTrigger": 20, "minOffsetsPerTrigger": 15}, [20]),
    ({"maxBytesPerTrigger": "4k"}, [6, 6, 6, 2]),
    ({"maxBytesPerTrigger": "4k", "maxMessagesPerTrigger": 5}, [5, 5, 5, 5]),
]


def limits(spark: SparkSession, space: Clocked, tmp_path: Path) -> None:
    """Of both queues as many, as far as they go."""
    for queue, count in (("orders", 16), ("bills", 4)):
        space.fill(queue, range(1, count + 1), bytes(500))
    for number, (limit, wanted) in enumerate(LIMITS):
        seen: list[tuple[str, int]] = []

        def note(rows: DataFrame, _: int, seen: list[tuple[str, int]] = seen) -> None:
            seen.extend((row.queue, row.seq) for row in rows.select("queue", "seq").collect())

        query = start(stream(spark, space.root, "orders,bills", **limit), tmp_path / str(number), note)
        assert query.awaitTermination(WITHIN_S)
        assert (limit, sizes(query)) == (limit, wanted)
        assert sorted(seen) == [("bills", seq) for seq in range(1, 5)] + [("orders", seq) for seq in range(1, 17)]


def available_now(spark: SparkSession, space: Clocked, tmp_path: Path) -> None:
    """A trigger of what is available ends, however much comes while it runs."""
    space.fill("orders", range(1, 6))

    def seqs(more: Iterable[int]) -> list[int]:
        read: list[int] = []
        coming = iter(more)

        def note(rows: DataFrame, _: int) -> None:
            read.extend(row.seq for row in rows.select("seq").collect())
            space.fill("orders", [next(coming)])

        query = start(stream(spark, space.root, maxMessagesPerTrigger=2), tmp_path / "checkpoint", note)
        assert query.awaitTermination(WITHIN_S)
        return read

    assert seqs(range(6, 100)) == [1, 2, 3, 4, 5]
    assert seqs(range(9, 100)) == [6, 7, 8]


def several_queries(spark: SparkSession, _: Clocked, tmp_path: Path) -> None:
    """Each that keeps has all; a second that would consume is refused, by the name of the first."""
    from pyspark.errors import StreamingQueryException

    create(tmp_path / "space", any_queue=True)
    with serving(tmp_path / "space") as server:
        with xaqueue.connect(server.url) as queues:
            for number in range(20):
                queues.enqueue("orders", b"%d" % number)
            queues.commit()
        seen: dict[str, list[int]] = {"one": [], "two": [], "taker": []}

        def begin(name: str, **options: object) -> StreamingQuery:
            def note(rows: DataFrame, _: int) -> None:
                seen[name].extend(int(bytes(row.body)) for row in rows.select("body").collect())

            given = {"server": server.url, "maxMessagesPerTrigger": 6, **options}
            frame = stream(spark, tmp_path / "space", "orders", **given)
            return start(frame, tmp_path / name, note)

        readers = [begin("one"), begin("two")]
        for query in readers:
            assert query.awaitTermination(WITHIN_S)
        assert begin("taker", consume="delete", streamName="nightly").awaitTermination(WITHIN_S)
        assert {name: sorted(numbers) for name, numbers in seen.items()} == {key: [*range(20)] for key in seen}
        with xaqueue.connect(server.url) as queues:
            assert list(queues.browse("orders")) == []
            queues.enqueue("orders", b"20")
            queues.commit()
        with pytest.raises(StreamingQueryException, match="is reserved for stream nightly#"):
            begin("thief", consume="delete").awaitTermination()
        assert begin("taker", consume="delete", streamName="nightly").awaitTermination(WITHIN_S)
        assert sorted(seen["taker"]) == [*range(21)]


def filters(spark: SparkSession, space: Clocked, _: Path) -> None:
    """What is damaged and left out is not looked at."""
    for queue in ("orders", "bills"):
        for seq in range(1, 11):
            space.at(queue, seq, seq)
        space.path(queue, 3).write_bytes(b"damaged")
        os.utime(space.path(queue, 3), ns=(0, (int(NOON.timestamp()) + 180) * 1_000_000_000))
    reader = spark.read.format("xaqueue").option("path", str(space.root)).option("queue", "*")
    reader = reader.option("pushFilters", "true")
    setting = "spark.sql.python.filterPushdown.enabled"
    with pytest.raises(Exception, match=setting):
        reader.load().count()
    spark.conf.set(setting, "true")
    try:
        for asked, count in (
            ("seq > 4", 12),
            ("queue = 'orders' AND seq IN (1, 2)", 2),
            ("queue = 'none'", 0),
            ("committed_at >= '2026-01-02T12:08:30Z'", 4),
            ("committed_at < '2026-01-02T12:02:30Z' AND body IS NOT NULL", 4),
        ):
            assert reader.load().where(asked).count() == count
        with pytest.raises(Exception, match="DamagedBlock"):
            reader.load().where("seq >= 3").count()
    finally:
        spark.conf.set(setting, "false")


SERVER = Path(__file__).parents[1] / "support" / "spark_connect_child.py"
PIPELINE = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()

@dp.table
def orders():
    return spark.readStream.format("xaqueue").option("path", {source!r}).option("queue", "orders").load()

dp.create_sink("copies", "xaqueue", {{"path": {target!r}, "queue": "copies"}})

@dp.append_flow(target="copies", name="copy")
def copy():
    return spark.readStream.table("orders").select("body")
"""


def of_a_process(cwd: Path, *words: object) -> str:
    """What it says; this process has a session of another kind."""
    pytest.importorskip("grpc", reason="grpcio is not installed")
    from xaqueue.spark.java import java_home, worker_python

    python = {"PYSPARK_PYTHON": worker_python(), "PYSPARK_DRIVER_PYTHON": worker_python()}
    env = os.environ | python | {"JAVA_HOME": str(java_home()), "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        [*map(str, words)], cwd=cwd, env=env, capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def connect(_: SparkSession, space: Clocked, tmp_path: Path) -> None:
    """A client that knows nothing of the format reads and writes; the server finds it by itself."""
    space.fill("orders", range(1, 11))
    create(tmp_path / "target", any_queue=True)
    with serving(tmp_path / "target") as target:
        said = of_a_process(tmp_path, sys.executable, SERVER, space.root, target.url, tmp_path / "checkpoint")
        assert json.loads(said.splitlines()[-1]) == {"batch": 10, "stream": 10, "twice": 10}


def pipelines(_: SparkSession, space: Clocked, tmp_path: Path) -> None:
    """A table that reads a queue, and a sink that is one."""
    space.fill("orders", range(1, 11))
    create(tmp_path / "target", any_queue=True)
    with serving(tmp_path / "target") as target:
        home = tmp_path / "pipeline"
        home.mkdir()
        (home / "flows.py").write_text(PIPELINE.format(source=str(space.root), target=target.url))
        spec = f"name: shop\nstorage: file://{home}/storage\nlibraries: [{{glob: {{include: flows.py}}}}]\n"
        (home / "spark-pipeline.yml").write_text(spec)
        of_a_process(home, Path(pyspark.__file__).parent / "bin" / "spark-pipelines", "run")
        with xaqueue.connect(target.url) as copies:
            assert sorted(message.body for message in copies.browse("copies")) == sorted(map(body, range(1, 11)))


FEATURES: dict[str, Callable[[SparkSession, Clocked, Path], None]] = {
    "watermark and windows": windows,
    "stream-stream join": joined_queues,
    "applyInPandasWithState": state_in_pandas,
    "transformWithState": transformed_with_state,
    "foreachBatch with a transaction": batch_and_transaction,
    "schema evolution": new_fields,
    "rate limits": limits,
    "AvailableNow": available_now,
    "several queries on one queue": several_queries,
    "pushFilters": filters,
    "Spark Connect": connect,
    "Declarative Pipelines": pipelines,
}
"""In the words of the guide's page of Spark's versions."""


@pytest.mark.parametrize("feature", FEATURES)
def test_structured_streaming(feature: str, spark: SparkSession, space: Clocked, tmp_path: Path) -> None:
    FEATURES[feature](spark, space, tmp_path)
