"""Real Spark queries into a queue, through a server that they start themselves: each row once, whatever fails."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.patience import eventually
from xaqueue.core.owner.open import is_owned
from xaqueue.core.owner.record import read_owner
from xaqueue.features.opening import create
from xaqueue.message import Message
from xaqueue.xa import Flag

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]

WITHIN_S = 120


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """A space that nobody serves yet."""
    made = tmp_path / "space"
    create(made, any_queue=True)
    yield made
    owner = read_owner(made)
    if owner is not None and is_owned(made):
        os.kill(owner.pid, signal.SIGTERM)
    eventually(lambda: not is_owned(made))


def messages(root: Path, queue: str) -> list[Message]:
    from xaqueue.rpc.client.server_launcher import reach

    with closing(reach(root)) as manager:
        return list(manager.browse(queue))


def bodies(root: Path, queue: str) -> list[int]:
    return sorted(int(message.body) for message in messages(root, queue))


def in_doubt(root: Path) -> int:
    from xaqueue.rpc.client.server_launcher import reach

    with closing(reach(root)) as manager:
        return len(manager.recover(1000, Flag.STARTRSCAN | Flag.ENDRSCAN))


def numbers(spark: SparkSession, count: int) -> DataFrame:
    return spark.range(0, count, 1, 2).selectExpr("cast(id as string) as body")


def write(frame: DataFrame, root: Path, queue: str, **options: str) -> None:
    frame.write.format("xaqueue").options(path=str(root), queue=queue, **options).mode("append").save()


def copy(frame: DataFrame, root: Path, checkpoint: Path, **options: str) -> StreamingQuery:
    """Everything that is available goes into the queue ``copy``; the query, which has ended."""
    query = (
        frame.writeStream.format("xaqueue")
        .options(path=str(root), queue="copy", checkpointLocation=str(checkpoint), **options)
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(WITHIN_S)
    return query


def orders(spark: SparkSession, root: Path, **options: str) -> DataFrame:
    return spark.readStream.format("xaqueue").options(path=str(root), queue="orders", consume="keep", **options).load()


def test_a_batch_and_then_a_copy_of_it_and_a_batch_that_spark_does_again(
    spark: SparkSession, root: Path, tmp_path: Path
) -> None:
    frame = numbers(spark, 500).selectExpr("body", "map('k', body) as headers", "7 as priority", "body as group")
    write(frame, root, "orders")
    assert bodies(root, "orders") == list(range(500))
    copy(orders(spark, root), root, tmp_path / "checkpoint")
    assert bodies(root, "copy") == list(range(500))
    for message in messages(root, "copy")[:10]:
        text = message.body.decode()
        assert (message.headers, message.properties.priority) == ({"k": text}, 7)
    assert in_doubt(root) == 0
    for ended in (tmp_path / "checkpoint" / "commits").glob("*0*"):
        ended.unlink()  # as if Spark had died before it wrote down that the batch is done
    write(numbers(spark, 10), root, "orders")
    copy(orders(spark, root), root, tmp_path / "checkpoint")
    assert bodies(root, "copy") == sorted([*range(500), *range(10)])
    assert in_doubt(root) == 0


Rows = Callable[[Iterable["pa.RecordBatch"]], Iterator["pa.RecordBatch"]]


def failing(attempts: int) -> Rows:
    """Gives all its rows and fails then, in so many attempts. Made here, so that workers need not import this."""

    def give(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        yield from batches
        context = TaskContext.get()
        assert context is not None
        if context.attemptNumber() < attempts:
            raise RuntimeError(f"attempt {context.attemptNumber()} fails")

    return give


@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
def test_tasks_that_fail_once_and_for_good(spark: SparkSession, root: Path, tmp_path: Path) -> None:
    write(numbers(spark, 5_000), root, "orders")
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 1_000)
    try:
        with pytest.raises(Exception, match="attempt 2 fails"):
            copy(orders(spark, root).mapInArrow(failing(attempts=3), ROWS), root, tmp_path / "checkpoint")
        assert messages(root, "copy") == []  # what a killed task has prepared behind the abort is rolled back below
        copy(orders(spark, root).mapInArrow(failing(attempts=1), ROWS), root, tmp_path / "checkpoint")
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert bodies(root, "copy") == list(range(5_000))
    assert in_doubt(root) == 0


ROWS = (
    "seq long, message_id binary, queue string, body binary, correlation_id binary, priority int, "
    "enqueued_at timestamp, headers map<string,string>, content_type string, tries int, space string, "
    "committed_at timestamp"
)


def test_what_is_refused_says_what_is_right(spark: SparkSession, root: Path) -> None:
    frame: Any = numbers(spark, 1).write.format("xaqueue").options(path=str(root), queue="orders")
    with pytest.raises(Exception, match=r'mode "overwrite" is refused: .* use .mode\("append"\)'):
        frame.mode("overwrite").save()
    with pytest.raises(Exception, match="column 'surplus' says nothing of a message"):
        write(numbers(spark, 1).selectExpr("body", "1 as surplus"), root, "orders")
    assert not is_owned(root)


def test_foreach_batch_with_a_name_and_number(spark: SparkSession, root: Path, tmp_path: Path) -> None:
    write(numbers(spark, 100), root, "orders")

    def twice(frame: DataFrame, number: int) -> None:
        for _ in range(2):
            write(frame, root, "copy", txnAppId="pipeline", txnVersion=str(number))

    query = (
        orders(spark, root)
        .writeStream.foreachBatch(twice)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(WITHIN_S)
    assert bodies(root, "copy") == list(range(100))
