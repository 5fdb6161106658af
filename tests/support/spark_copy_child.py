"""One queue is streamed into another: python spark_copy_child.py SOURCE SINKS CHECKPOINT MOST MASTER"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ["XAQUEUE_TEST_GROUP"] = str(os.getpgrp())  # before the JVM is started, which hands it on

from xaqueue.spark import session


def settings(master: str, scratch: Path) -> dict[str, object]:
    """master: Spark's word, or ``cluster``."""
    if master != "cluster":
        return {"spark.master": master, "spark.local.dir": scratch}
    from support import spark_cluster

    return spark_cluster.started(scratch)


def main(source: str, sinks: str, checkpoint: str, most: str, master: str) -> None:
    scratch = Path(checkpoint).with_name("scratch")
    spark = session("crash matrix", cores=2, **settings(master, scratch))
    orders = (
        spark.readStream.format("xaqueue")
        .options(path=source, queue="orders", consume="delete", maxMessagesPerTrigger=most, minPartitions=4)
        .load()
    )
    query = (
        orders.select("body")
        .writeStream.format("xaqueue")
        .options(path=sinks, queue="copies", checkpointLocation=checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    os._exit(0)  # nothing is left to be said, and a session takes its time to stop


if __name__ == "__main__":
    main(*sys.argv[1:])
