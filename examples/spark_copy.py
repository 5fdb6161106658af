"""A stream moves messages from one space to another, each exactly once, however it is killed: python spark_copy.py

With consume=delete the queue is reserved for this stream, and a message goes once its batch is committed at the far
end. Without it a stream only reads.
Writing is one transaction a batch, remembered in the far space: a batch that is tried again is not written twice.
The checkpoint is what the two go on from, so keep it.

Needs: pip install "xaqueue[spark,java]"
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

import xaqueue
from xaqueue.spark import session


def copy(spark: SparkSession, source: Path, target: Path, checkpoint: Path) -> int:
    """What is there now; the number of messages."""
    orders = (
        spark.readStream.format("xaqueue")
        .option("path", str(source))
        .option("queue", "orders")
        .option("consume", "delete")
        .option("checkpointLocation", str(checkpoint))  # is synced before a message is removed
        .load()
    )
    query = (
        orders.selectExpr("'orders-of-all-shops' AS queue", "body", "correlation_id", "headers")
        .writeStream.format("xaqueue")
        .option("path", str(target))
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)  # or processingTime="10 seconds", and it goes on for ever
        .start()
    )
    query.awaitTermination()
    return sum(progress["numInputRows"] for progress in query.recentProgress)


def bodies(spark: SparkSession, space: Path, queue: str) -> list[str]:
    found = spark.read.format("xaqueue").option("path", str(space)).option("queue", queue).load()
    return sorted(row.body.decode() for row in found.select("body").collect())


def main(directory: Path) -> None:
    shop, headquarters = directory / "shop", directory / "headquarters"
    with xaqueue.connect(headquarters, create=True), xaqueue.connect(shop, create=True) as connection:
        for order in ("two apples", "three pears", "six plums"):
            connection.enqueue("orders", order.encode(), headers={"shop": "Berlin"})
        connection.commit()
    spark = session("copy")
    for _ in range(2):
        print("copied", copy(spark, shop, headquarters, directory / "checkpoint"))
    print("arrived:", bodies(spark, headquarters, "orders-of-all-shops"))
    print("left:", bodies(spark, shop, "orders"))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(Path(sys.argv[1] if len(sys.argv) > 1 else temporary))
