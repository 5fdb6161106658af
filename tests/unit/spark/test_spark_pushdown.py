"""A batch read that is told the query's filters leaves out what no row passes, and never a row that one passes."""

from __future__ import annotations

import os
import pickle
from datetime import UTC, datetime, timedelta
from operator import ge, gt, le, lt
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.spark_space import FabricatedSpace

pytest.importorskip("pyspark", reason="pyspark is not installed")
pytest.importorskip("pyarrow", reason="pyarrow is not installed")

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from xaqueue.errors import InvalidArgument
from xaqueue.spark.source import columns
from xaqueue.spark.source.options import parse
from xaqueue.spark.source.source import BatchReader, FilteredReader, QueueSource

BEGUN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
COUNT = 12
COMPARED = {GreaterThan: gt, GreaterThanOrEqual: ge, LessThan: lt, LessThanOrEqual: le}


def committed_at(seq: int) -> datetime:
    """Three messages share a millisecond, and two of these a moment."""
    return BEGUN + timedelta(milliseconds=seq // 3, microseconds=700 * (seq % 3 // 2))


@pytest.fixture(scope="module")
def spaces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two, each with two queues; a few messages are gone."""
    root = tmp_path_factory.mktemp("spaces")
    for name in ("a", "b"):
        space = FabricatedSpace(root / name)
        for queue in ("bills", "orders"):
            space.fill(queue, range(1, COUNT + 1))
            for seq in range(1, COUNT + 1):
                ns = (committed_at(seq) - datetime.fromtimestamp(0, UTC)) // timedelta(microseconds=1) * 1_000
                os.utime(space.path(queue, seq), ns=(0, ns))
            space.consume(queue, (4, 7))
    return root


def rows(root: Path, filters: list[Filter], *, kafka: bool = False) -> list[dict[str, Any]]:
    """What is read, before Spark filters it."""
    options = {"path": f"{root}/a, {root}/b", "subscribe" if kafka else "queue": "bills,orders"}
    reader = FilteredReader(parse(options), columns.schema(kafka=kafka))
    assert reader.pushFilters(filters) is filters
    tasks = pickle.loads(pickle.dumps(reader.partitions()))
    executor: BatchReader = pickle.loads(pickle.dumps(reader))
    return [row for task in tasks for batch in executor.read(task) for row in batch.to_pylist()]


def passes(one: Filter, row: dict[str, Any]) -> bool:
    """What Spark makes of it; nothing here is null."""
    if isinstance(one, Not):
        return not passes(one.child, row)
    if isinstance(one, IsNotNull):
        return True
    value = row[one.attribute[0]]  # type: ignore[attr-defined]
    if isinstance(one, In):
        return value in one.value
    compared = COMPARED.get(type(one))
    return bool(compared(value, one.value) if compared else value == one.value)  # type: ignore[attr-defined]


NUMBERS = st.integers(-2, COUNT + 3)
TIMES = st.builds(
    lambda seq, more: committed_at(seq) + timedelta(microseconds=more), NUMBERS, st.integers(-1_500, 1_500)
)
LONG_AGO = st.just(datetime(1960, 1, 1, tzinfo=UTC))
OF_NUMBERS = st.tuples(st.just("seq"), NUMBERS)
OF_TIMES = st.tuples(st.just("committed_at"), TIMES | LONG_AGO)
OF_NAMES = st.tuples(st.just("queue"), st.sampled_from(["bills", "orders", "others"]))
KINDS = [EqualTo, EqualNullSafe, *COMPARED]


@st.composite
def filters(draw: st.DrawFn) -> Filter:
    name, value = draw(OF_NUMBERS | OF_TIMES | OF_NAMES)
    kind = draw(st.sampled_from([*KINDS, In, IsNotNull]))
    if kind is IsNotNull:
        return IsNotNull((name,))
    others = draw(st.lists({int: NUMBERS, str: st.just("orders")}.get(type(value), TIMES), max_size=2))
    made: Filter = In((name,), (value, *others)) if kind is In else kind((name,), value)
    return Not(made) if draw(st.booleans()) else made


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(asked=st.lists(filters(), max_size=3))
def test_no_row_that_passes_is_left_out(spaces: Path, asked: list[Filter]) -> None:
    everything, read = rows(spaces, []), rows(spaces, asked)
    wanted = [row for row in everything if all(passes(one, row) for one in asked)]
    assert [row for row in read if all(passes(one, row) for one in asked)] == wanted
    assert all(row in everything for row in read)


HELD = [seq for seq in range(1, COUNT + 1) if seq not in (4, 7)]


@pytest.mark.parametrize(
    ("asked", "left"),
    [
        ([], HELD * 4),
        ([EqualTo(("queue",), "orders")], HELD * 2),
        ([Not(EqualTo(("queue",), "orders"))], HELD * 2),
        ([In(("queue",), ("bills", "other"))], HELD * 2),
        ([EqualTo(("space",), "elsewhere")], []),
        ([EqualTo(("seq",), 6), EqualTo(("queue",), "bills")], [6, 6]),
        ([GreaterThanOrEqual(("seq",), 10), LessThan(("seq",), 12), EqualTo(("queue",), "bills")], [10, 11, 12] * 2),
        ([In(("seq",), (3, 6)), EqualTo(("queue",), "bills")], [3, 5, 6] * 2),
        ([GreaterThan(("committed_at",), committed_at(9)), EqualTo(("queue",), "bills")], [9, 10, 11, 12] * 2),
        ([LessThanOrEqual(("committed_at",), committed_at(4)), EqualTo(("queue",), "bills")], [1, 2, 3, 5] * 2),
        ([LessThan(("committed_at",), datetime(1960, 1, 1, tzinfo=UTC))], []),
        ([GreaterThan(("priority",), 9), StringStartsWith(("queue",), "x")], HELD * 4),
        ([GreaterThan(("queue",), "x"), EqualTo(("seq",), None), In(("seq",), (None,))], HELD * 4),
    ],
)
def test_queue_number_and_time_leave_no_more_than_this(spaces: Path, asked: list[Filter], left: list[int]) -> None:
    assert [row["seq"] for row in rows(spaces, asked)] == left


def test_in_kafkas_words_it_is_the_same(spaces: Path) -> None:
    asked = [EqualTo(("topic",), "orders"), EqualTo(("partition",), 1), GreaterThan(("offset",), 10)]
    assert [(row["topic"], row["partition"], row["offset"]) for row in rows(spaces, asked, kafka=True)] == [
        ("orders", 1, seq) for seq in (10, 11, 12)
    ]


def test_a_reader_has_it_only_where_it_is_asked_for(spaces: Path) -> None:
    """Spark refuses one that has it where a setting is off."""
    options = {"path": f"{spaces}/a", "queue": "orders"}
    assert type(QueueSource(options).reader(columns.schema())) is BatchReader
    asked = QueueSource({**options, "pushFilters": "true"})
    assert type(asked.reader(columns.schema())) is FilteredReader
    with pytest.raises(InvalidArgument, match='"pushFilters" is for'):
        asked.streamReader(columns.schema())
