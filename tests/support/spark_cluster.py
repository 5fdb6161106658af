"""A cluster of one process, for what Spark never does in ``local``: a second attempt at a task that is slow.

It is made on another host only, and the workers of ``local-cluster`` have one name. So master and workers are started
here one by one, with an address of the loopback each, in the JVM of the driver, with which they end.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark import SparkConf, SparkContext

from xaqueue.spark import QUICK_START, QUIET_LOGS
from xaqueue.spark.java import java_home

HOSTS = ("127.0.0.2", "127.0.0.3")
MEMORY_MB = 512
SPECULATION = {
    "spark.speculation": True,
    "spark.speculation.interval": "50ms",
    "spark.speculation.minTaskRuntime": "100ms",
    "spark.speculation.multiplier": 1.01,
    "spark.speculation.quantile": 0.1,
    "spark.python.task.killTimeout": "60s",  # so that the slower attempt can be late
}


def started(scratch: Path) -> dict[str, object]:
    """Starts it, with a core a worker; the settings of a session that speculates there."""
    os.environ |= {"JAVA_HOME": str(java_home()), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    options = f'{QUICK_START} "-Dlog4j2.configurationFile={QUIET_LOGS}"'
    SparkContext._ensure_initialized(conf=SparkConf(loadDefaults=False).set("spark.driver.extraJavaOptions", options))
    master = _start(scratch)
    return SPECULATION | {
        "spark.master": master,
        "spark.cores.max": len(HOSTS),
        "spark.executor.memory": f"{MEMORY_MB}m",
        "spark.executor.extraJavaOptions": options,
        "spark.local.dir": scratch,
        "spark.scheduler.minRegisteredResourcesRatio": 1.0,
    }


def _start(scratch: Path) -> str:
    """Returns the master's URL."""
    gateway, jvm = SparkContext._gateway, SparkContext._jvm
    assert gateway is not None
    assert jvm is not None
    deploy, option = jvm.org.apache.spark.deploy, jvm.scala.Option
    settings = jvm.org.apache.spark.SparkConf(False).set("spark.local.dir", str(scratch))
    served = deploy.master.Master.startRpcEnvAndEndpoint("127.0.0.1", 0, 0, settings)
    url = str(served._1().address().toSparkURL())
    masters = gateway.new_array(jvm.String, 1)
    masters[0] = url
    for number, host in enumerate(HOSTS):
        deploy.worker.Worker.startRpcEnvAndEndpoint(
            host, 0, 0, 1, MEMORY_MB, masters, str(scratch / host), option.apply(number), settings, option.empty()
        )
    return url
