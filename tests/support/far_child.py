"""Copies what there is by servers alone: python far_child.py MASTER SOURCES SINKS CHECKPOINT [OPTION=VALUE...]"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from support.spark_cluster import SPECULATION
from xaqueue.spark import QUICK_START, QUIET_LOGS, session


def main(master: str, sources: str, sinks: str, checkpoint: str, *options: str) -> None:
    quiet = f'{QUICK_START} "-Dlog4j2.configurationFile={QUIET_LOGS}"'
    given = dict(option.split("=", 1) for option in options)
    most = given.pop("most", "5000")
    config: dict[str, object] = {
        "spark.master": master,
        "spark.cores.max": 2,
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": quiet,
        "spark.local.dir": str(Path(checkpoint).with_name("scratch")),
        "spark.scheduler.minRegisteredResourcesRatio": 1.0,
        "spark.task.maxFailures": 20,
        "spark.excludeOnFailure.enabled": False,
        "spark.eventLog.enabled": True,
        "spark.eventLog.compress": False,
        **SPECULATION,
        **given,
    }
    spark = session("far", cores=2, **config)
    frame = spark.readStream.format("xaqueue").options(
        path=sources, queue="orders", consume="delete", maxMessagesPerTrigger=most, minPartitions=8
    )
    writer = frame.load().select("body").writeStream.format("xaqueue")
    query = writer.options(path=sinks, queue="copies", checkpointLocation=checkpoint)
    query.trigger(availableNow=True).start().awaitTermination()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
