"""Copies queues on a cluster, one query a case, and says how each ended: odd_child.py MASTER EXECUTORS CASES

CASES: JSON of options by the name of the case; with ``to`` where the rows go and ``checkpoint``.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from xaqueue.spark import session
from xaqueue.spark.last_line import said

WITHIN_S = 240


def run(spark: SparkSession, options: dict[str, str]) -> dict[str, Any]:
    to, checkpoint = options.pop("to"), options.pop("checkpoint")
    frame = spark.readStream.format("xaqueue").options(queue="orders", minPartitions="4", **options).load()
    writer = frame.selectExpr("CAST(body AS STRING) AS body").writeStream.option("checkpointLocation", checkpoint)
    why = None
    try:
        writer.format("parquet").trigger(availableNow=True).start(to).awaitTermination(WITHIN_S)
    except PySparkException as error:
        why = said(error) or str(error)
    try:
        rows = [row.body for row in spark.read.schema("body STRING").parquet(to).collect()]
    except PySparkException:  # nothing was ever written there
        rows = []
    return {"why": why, "rows": sorted(rows)}


def main(master: str, executors: str, cases: str) -> None:
    once: dict[str, object] = {"spark.task.maxFailures": 1, "spark.executor.memory": "512m"}
    spark = session("odd", cores=2, **{"spark.master": master, **once})
    tracker = spark.sparkContext._jsc.sc().statusTracker()
    deadline = time.monotonic() + WITHIN_S
    while len(tracker.getExecutorInfos()) <= int(executors) and time.monotonic() < deadline:  # the driver counts, too
        time.sleep(0.1)
    found = {name: run(spark, options) for name, options in json.loads(cases).items()}
    spark.stop()
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
