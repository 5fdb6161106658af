"""Which airline is the latest, while flights still come in: a running answer over a queue: python spark_flights.py [N]

The sums of a stream are state that Spark keeps beside its checkpoint and changes batch by batch, with each message
counted once. ``flights.py`` has the same question with a sender that is killed. N: how many flights, 3,000 without it.
Needs: pip install "xaqueue[demo]"
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

import xaqueue
from xaqueue.spark import session
from xaqueue.tools.demo import records

FLIGHT = "from_json(string(body), 'carrier STRING, dep_delay INT') AS flight"


def send(space: Path, count: int) -> None:
    with xaqueue.connect(space, create=True) as connection:
        for row in records.rows(count):
            connection.enqueue("flights", records.body(row))
        connection.commit()


def main(directory: Path, count: int) -> bool:
    send(directory / "space", count)
    found: dict[str, records.Delay] = {}

    def tell(sums: DataFrame, batch: int) -> None:
        found.clear()  # the whole answer comes each time: outputMode("complete")
        found.update({row[0]: records.Delay(row[1], row[2], row[3] or 0) for row in sums.collect()})
        carrier, delay = records.ranked(found)[0]
        flights = sum(one.flights for one in found.values())
        print(f"batch {batch}: {flights:,} flights, the latest is {carrier} with {delay.mean:.1f} minutes")

    spark = session("running answer")
    queue = spark.readStream.format("xaqueue").option("path", str(directory / "space")).option("queue", "flights")
    query = (
        queue.option("maxMessagesPerTrigger", count // 3 + 1)
        .option("consume", "keep")  # as without it: the flights stay in their queue
        .load()
        .selectExpr(FLIGHT)
        .groupBy("flight.carrier")
        .agg(f.count("*"), f.count("flight.dep_delay"), f.sum("flight.dep_delay"))
        .writeStream.foreachBatch(tell)
        .outputMode("complete")
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return found == records.delays(count)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        same = main(Path(temporary), int(sys.argv[1]) if len(sys.argv) > 1 else 3000)
    print("PASSED" if same else "FAILED")
    sys.exit(not same)
