"""What a query's filters leave of its queues: what cannot be among its rows is not read.

Only where option ``pushFilters`` asks for it. Spark 4.1 to 4.3 keep what they have planned for one filter for every use
of the same DataFrame, and answer ``frame.where(one).union(frame.where(other))`` wrongly; 4.1 is the first that tells
filters, and it refuses a reader that wants to be told while ``spark.sql.python.filterPushdown.enabled`` is false.

All filters are given back, and Spark applies them to what was read: here they need only be a coarse sieve.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import datasource as spark

from xaqueue.core.model.layout import LAST_SEQ

SEQ = ("seq", "offset")
TIME = ("committed_at", "timestamp")

_MORE = spark.GreaterThan | spark.GreaterThanOrEqual
_LESS = spark.LessThan | spark.LessThanOrEqual
_EPOCH = datetime.fromtimestamp(0, UTC)
_MS = timedelta(milliseconds=1)


def may_have(filters: Iterable[spark.Filter], values: Mapping[str, object]) -> bool:
    """Whether there may be such a row. values: of columns in which all rows of a queue have the same."""
    for one in filters:
        is_not = isinstance(one, spark.Not)
        column, equal = _equal(one.child if isinstance(one, spark.Not) else one)
        if column in values and (values[column] in equal) is is_not:
            return False
    return True


def least_and_most(filters: Iterable[spark.Filter], columns: tuple[str, ...]) -> tuple[int, int]:
    """Whole numbers, or milliseconds of times, below and above which no row has these columns."""
    least, most = 0, LAST_SEQ
    for one in filters:
        column, equal = _equal(one)
        if isinstance(one, _MORE | _LESS):
            column, equal = one.attribute[0], [one.value]
        if column in columns and equal:
            numbers = [*map(_number, equal)]
            least = max(least, min(numbers)) if not isinstance(one, _LESS) else least
            most = min(most, max(numbers)) if not isinstance(one, _MORE) else most
    return least, most


def _equal(one: spark.Filter) -> tuple[str, list[Any]]:
    """The column that is to have one of these values; no column where the filter says anything else."""
    if isinstance(one, spark.In):
        return one.attribute[0], [value for value in one.value if value is not None]
    if isinstance(one, spark.EqualTo | spark.EqualNullSafe):
        return one.attribute[0], [one.value] if one.value is not None else []
    return "", []


def _number(value: Any) -> int:
    return (value - _EPOCH) // _MS if isinstance(value, datetime) else int(value)
