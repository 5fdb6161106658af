"""Queues as tables: for DuckDB, Polars, pandas and whatever else reads Arrow, without Spark.

    from xaqueue import lake

    orders = lake.scan("data/space", "orders")
    duckdb.sql("select count(*), min(committed_at) from orders")

PyArrow is imported in this folder and in Spark's, and nowhere else in xaqueue.
"""

from __future__ import annotations

try:
    import pyarrow as _pyarrow  # noqa: F401
except ImportError as missing:
    raise ImportError(f"{missing.name} is missing: pip install 'xaqueue[lake]' brings it") from missing

from xaqueue.lake.scan import scan

__all__ = ["scan"]
