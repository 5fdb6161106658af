"""A client of Spark Connect reads a queue and writes to one: spark_connect_child.py SPACE SERVER CHECKPOINT

It has a server of its own, in another process, as any client has one somewhere.
"""

from __future__ import annotations

import json
import sys
import warnings

from pyspark.sql import DataFrame, SparkSession

WITHIN_S = 200


def main(space: str, server: str, checkpoint: str) -> None:
    warnings.simplefilter("ignore", FutureWarning)  # of pandas
    spark = SparkSession.builder.remote("local[2]").getOrCreate()

    def copied() -> int:
        """The stream's, whose checkpoint is the same in each run."""
        orders = spark.readStream.format("xaqueue").option("path", space).option("queue", "orders").load()
        writer = orders.select("body").writeStream.format("xaqueue").option("path", server).option("queue", "copies")
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        if not query.awaitTermination(WITHIN_S):
            raise TimeoutError("the query does not end")
        return queue(server, "copies").count()

    def queue(path: str, name: str) -> DataFrame:
        return spark.read.format("xaqueue").option("path", path).option("queue", name).load()

    said = {"batch": queue(space, "orders").where("seq > 0").count(), "stream": copied(), "twice": copied()}
    spark.stop()
    sys.stdout.write(json.dumps(said))


if __name__ == "__main__":
    main(*sys.argv[1:])
