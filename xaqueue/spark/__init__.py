"""Spark reads and writes queues: the format ``xaqueue`` is there once the package is installed where Spark runs.

    spark.readStream.format("xaqueue").option("path", "data/space").option("queue", "orders").load()

``session()`` is a ready local session, ``register(spark)`` adds the format where it was not found by itself, and
``messages(content)`` makes rows of message files that were read with ``binaryFile``, ``decode(content)`` columns.

PySpark is imported in this folder and nowhere else in xaqueue.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import pyarrow as _pyarrow  # noqa: F401
    import pyspark as _pyspark
except ImportError as missing:
    raise ImportError(f"{missing.name} is missing: pip install 'xaqueue[spark]' brings what Spark needs") from missing

OLDEST_PYSPARK = (4, 2)


def _check_version(version: str) -> None:
    """ImportError below PySpark 4.2, the first whose Python sources may limit a batch."""
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    if numbers < OLDEST_PYSPARK:
        raise ImportError(
            f"PySpark {version} is too old, 4.2 or later is needed: "
            "pip install --upgrade 'xaqueue[spark]' brings a newer one"
        )


_check_version(_pyspark.__version__)

from pyspark.errors import PySparkException  # noqa: E402
from pyspark.sql import SparkSession  # noqa: E402

from xaqueue.spark.java import java_home, worker_python  # noqa: E402
from xaqueue.spark.last_line import say_last  # noqa: E402
from xaqueue.spark.source.columns import decode, messages  # noqa: E402
from xaqueue.spark.source.plan import MOST_ON_ALL_CORES, Tasks  # noqa: E402
from xaqueue.spark.source.source import SparksSource  # noqa: E402

__all__ = ["decode", "messages", "register", "session"]

QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""A local session lives for minutes: the second compiler and the parallel collector cost more than they bring back."""

QUIET_LOGS = Path(__file__).with_name("log4j2.properties")


def session(app_name: str = "xaqueue", *, cores: int = 2, **config: object) -> SparkSession:
    """A local session on ``cores`` cores that knows the format ``xaqueue``; one that is active already, as it is.

    ``config``: Spark's own settings by their names, ``session(**{"spark.driver.memory": "4g"})``; they win over the
    defaults. It changes the process's environment (JAVA_HOME, PYSPARK_PYTHON, SPARK_LOCAL_IP), where Spark's launcher
    looks, and only before the first session. Raises OperationalError where no Java 17 or later is found.
    """
    spark = SparkSession.getActiveSession()
    if spark is None:
        os.environ["JAVA_HOME"] = str(java_home())
        os.environ["PYSPARK_PYTHON"] = worker_python()
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
        defaults: dict[str, object] = {
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
        builder = SparkSession.builder.appName(app_name)
        for name, value in (defaults | config).items():
            builder = builder.config(name, str(value).lower() if isinstance(value, bool) else str(value))
        with no_pandas_warning():
            spark = builder.getOrCreate()
    register(spark)
    return spark


def register(spark: SparkSession) -> None:
    """Makes ``spark.read.format("xaqueue")`` and ``spark.readStream.format("xaqueue")`` known to a session.

    They are without it, where the package is installed; but Spark tells a source nothing of the cluster, and this does:
    by the cores that there are now, and a cluster may get more. The client of a server knows nothing of them.
    Where xaqueue refuses a query, and nobody catches that, the last line that is printed says why.
    """
    try:
        context = spark.sparkContext
    except PySparkException:
        by_default = Tasks()
    else:
        is_local = str(context.master).startswith("local")
        by_default = (
            Tasks(context.defaultParallelism, MOST_ON_ALL_CORES) if is_local else Tasks(context.defaultParallelism)
        )

    class SizedSource(SparksSource):
        tasks = by_default

    spark.dataSource.register(SizedSource)
    say_last()


@contextmanager
def no_pandas_warning() -> Iterator[None]:
    """Spark looks at pandas here and there, and warns of its version, which concerns nobody who doesn't use pandas."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
        yield
