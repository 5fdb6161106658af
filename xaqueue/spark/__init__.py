"""Spark reads and writes queues: the format ``xaqueue`` is there once the package is installed where Spark runs.

    spark.readStream.format("xaqueue").option("path", "data/space").option("queue", "orders").load()

``session()`` is a ready local session, ``register(spark)`` adds the format where it was not found by itself, and
``decode(content)`` makes columns of message files that were read with ``binaryFile``.

PySpark is imported here and nowhere else in xaqueue.
"""

from __future__ import annotations

import re

try:
    import pyarrow as _pyarrow  # noqa: F401
    import pyspark as _pyspark
except ImportError as missing:
    raise ImportError(f'{missing.name} is missing: pip install "xaqueue[spark]" brings what Spark needs') from missing

OLDEST_PYSPARK = (4, 2)


def _check_version(version: str) -> None:
    """ImportError below PySpark 4.2, the first whose Python sources may limit a batch."""
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    if numbers < OLDEST_PYSPARK:
        raise ImportError(
            f"PySpark {version} is too old, 4.2 or later is needed: "
            'pip install --upgrade "xaqueue[spark]" brings a newer one'
        )


_check_version(_pyspark.__version__)

from xaqueue.spark.decode import decode  # noqa: E402
from xaqueue.spark.runtime.session import register, session  # noqa: E402

__all__ = ["decode", "register", "session"]
