"""A stream of messages is joined with a table that is kept as files: python spark_join.py

The table is Parquet. With Delta installed it can be a Delta table that others update meanwhile: start the session with
Delta's settings, write and read it with format("delta"), and each batch sees the table as it is then.

Needs: pip install "xaqueue[spark,java]"
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import xaqueue
from xaqueue.spark import session

PRICES = {"apple": 30, "pear": 45, "plum": 10}
ORDERS = [("apple", 2), ("pear", 3), ("fig", 1), ("plum", 12)]


def main(directory: Path) -> None:
    with xaqueue.connect(directory / "shop", create=True) as connection:
        for fruit, count in ORDERS:
            connection.enqueue("orders", json.dumps({"fruit": fruit, "count": count}).encode())
        connection.commit()
    (directory / "prices").mkdir()
    pq.write_table(pa.table({"fruit": list(PRICES), "cents": list(PRICES.values())}), directory / "prices/1.parquet")

    spark = session("join")
    prices = spark.read.parquet(str(directory / "prices"))
    orders = spark.readStream.format("xaqueue").option("path", str(directory / "shop")).option("queue", "orders")
    orders = orders.option("consume", "keep")  # as without it: the orders stay in their queue
    order = "from_json(string(body), 'fruit STRING, count INT') AS order"
    bills = (
        orders.load()
        .selectExpr("seq", order)
        .selectExpr("seq", "order.*")
        .join(prices, "fruit", "left")  # an order for what has no price stays, without one
        .selectExpr("seq", "fruit", "count * cents AS cents")
    )
    query = (
        bills.writeStream.format("parquet")
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(directory / "bills"))
    )
    query.awaitTermination()
    for bill in spark.read.parquet(str(directory / "bills")).orderBy("seq").collect():
        print(bill.fruit, "no price" if bill.cents is None else f"{bill.cents / 100:.2f}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(Path(sys.argv[1] if len(sys.argv) > 1 else temporary))
