"""Installed as the module ``pyspark_xaqueue``: that name alone makes Spark register the format by itself.

Spark imports every module of such a name when a query first asks for a format that is not its own. So this one never
fails to be imported, which would take everybody else's formats away, and says only when it is used what is missing.
"""

from __future__ import annotations

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

__all__ = ["DefaultSource"]

try:
    from xaqueue.spark.source import QueueSource as DefaultSource
except ImportError as _error:
    _missing = str(_error)

    class DefaultSource(DataSource):  # type: ignore[no-redef]
        """Stands for the format where PySpark is too old or something is missing."""

        @classmethod
        def name(cls) -> str:
            return "xaqueue"

        def schema(self) -> StructType:
            raise ImportError(_missing)
