"""Installed as the module ``pyspark_xaqueue``: that name alone makes Spark register the format by itself.

Spark imports every module of such a name when a query first asks for a format that is not its own. So this one never
fails to be imported, which would take everybody else's formats away, and says only when it is used what is wrong.
"""

from __future__ import annotations

from typing import NoReturn

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

__all__ = ["DefaultSource"]

try:
    from xaqueue.spark.source.source import SparksSource as DefaultSource
except Exception as _error:  # whatever it is: see above
    _reason = str(_error) if isinstance(_error, ImportError) else f"{type(_error).__name__}: {_error}"

    class DefaultSource(DataSource):  # type: ignore[no-redef]
        """Stands for the format where PySpark is too old, or something is missing or broken."""

        @classmethod
        def name(cls) -> str:
            return "xaqueue"

        def schema(self) -> NoReturn:
            raise ImportError(f"the format xaqueue cannot be used here: {_reason}")

        def writer(self, schema: StructType, overwrite: bool) -> NoReturn:
            self.schema()

        def streamWriter(self, schema: StructType, overwrite: bool) -> NoReturn:
            self.schema()
