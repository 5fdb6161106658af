"""``session()`` is a local Spark that is ready to read queues: the right Java, this Python, quiet, and quick to start.

It changes the process's environment (JAVA_HOME, PYSPARK_PYTHON, SPARK_LOCAL_IP), because that is where Spark's launcher
looks, and only before the first session: a Spark that runs already is returned as it is, with the source registered.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from xaqueue.spark.runtime.java import java_home, worker_python
from xaqueue.spark.source.plan import MOST_ON_ALL_CORES, Tasks
from xaqueue.spark.source.source import QueueSource

QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""A local session lives for minutes: the second compiler and the parallel collector cost more than they bring back."""

QUIET_LOGS = Path(__file__).with_name("log4j2.properties")


def session(app_name: str = "xaqueue", *, cores: int = 2, **config: object) -> SparkSession:
    """A local session on ``cores`` cores that knows the format ``xaqueue``; one that is active already, as it is.

    ``config``: Spark's own settings by their names, ``session(**{"spark.driver.memory": "4g"})``; they win over the
    defaults. Raises OperationalError where no Java 17 or later is found.
    """
    spark = SparkSession.getActiveSession() or _start(app_name, _defaults(cores) | config)
    register(spark)
    return spark


def register(spark: SparkSession) -> None:
    """Makes ``spark.read.format("xaqueue")`` and ``spark.readStream.format("xaqueue")`` known to a session.

    They are without it, where the package is installed; but Spark tells a source nothing of the cluster, and this does.
    """

    class SizedSource(QueueSource):
        tasks = _tasks(spark)

    spark.dataSource.register(SizedSource)


def _tasks(spark: SparkSession) -> Tasks:
    """By the cores that there are now; a cluster may get more. The client of a server knows nothing of them."""
    try:
        context = spark.sparkContext
    except PySparkException:
        return Tasks()
    if str(context.master).startswith("local"):
        return Tasks(context.defaultParallelism, MOST_ON_ALL_CORES)
    return Tasks(context.defaultParallelism)


def _start(app_name: str, config: Mapping[str, object]) -> SparkSession:
    os.environ["JAVA_HOME"] = str(java_home())
    os.environ["PYSPARK_PYTHON"] = worker_python()
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder = SparkSession.builder.appName(app_name)
    for name, value in config.items():
        builder = builder.config(name, str(value).lower() if isinstance(value, bool) else str(value))
    with no_pandas_warning():
        return builder.getOrCreate()


@contextmanager
def no_pandas_warning() -> Iterator[None]:
    """Spark looks at pandas here and there, and warns of its version, which concerns nobody who doesn't use pandas."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
        yield


def _defaults(cores: int) -> dict[str, object]:
    return {
        "spark.master": f"local[{cores}]",
        "spark.driver.extraJavaOptions": f'{QUICK_START} "-Dlog4j2.configurationFile={QUIET_LOGS}"',
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": False,
        "spark.ui.showConsoleProgress": False,
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": cores,
        "spark.sql.catalogImplementation": "in-memory",
    }
