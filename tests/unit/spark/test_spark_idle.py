"""A poll looks at the times of watermarks where nothing has come; what comes, goes or hangs is seen all the same."""

from __future__ import annotations

import os
import shutil
import threading
import time
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from support.spark_space import FabricatedSpace, keep
from xaqueue.core.model import layout
from xaqueue.errors import SpaceError

pytest.importorskip("pyspark", reason="pyspark is not installed")
pytest.importorskip("pyarrow", reason="pyarrow is not installed")

from support.spark_reading import Query, stream
from xaqueue.spark.source import snapshot
from xaqueue.spark.source.snapshot import Spaces

COUNT = 5


@pytest.fixture
def spaces(tmp_path: Path) -> list[FabricatedSpace]:
    made = [FabricatedSpace(tmp_path / f"s{number}") for number in range(COUNT)]
    for one in made:
        one.fill("orders", [1, 2])
    return made


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The spaces that were looked at, by name."""
    monkeypatch.setattr(snapshot, "SETTLED_S", 0.0)
    found: list[str] = []
    look_at = Spaces._look_at

    def look(self: Spaces, path: str, *rest: Any) -> Any:
        found.append(Path(path).name)
        return look_at(self, path, *rest)

    monkeypatch.setattr(Spaces, "_look_at", look)
    return found


def settled(path: object, looked: list[str], queue: str = "orders", **options: object) -> Query:
    """A query that has read all there is, and whose next poll finds nothing."""
    query = Query(stream(path, queue, **options))
    query.all()
    for _ in range(2):
        assert query.batch() is None
    looked.clear()
    assert query.batch() is None
    assert looked == []
    return query


def seqs(found: list[dict[str, Any]] | None) -> list[tuple[str, int]]:
    return [(Path(row["space"]).name, row["seq"]) for row in found or []]


@pytest.mark.parametrize("queue", ["orders", "*"])
def test_only_where_something_has_come_is_looked_at(
    spaces: list[FabricatedSpace], looked: list[str], queue: str
) -> None:
    query = settled(spaces[0].root.parent / "*", looked, queue)
    spaces[3].fill("orders", [3])
    assert seqs(query.batch()) == [("s3", 3)]
    assert set(looked) == {"s3"}
    assert query.batch() is None


def test_a_queue_that_appears_is_read(spaces: list[FabricatedSpace], looked: list[str]) -> None:
    query = settled(spaces[0].root.parent / "*", looked, "*")
    spaces[1].fill("others", [1])
    assert seqs(query.batch()) == [("s1", 1)]


def test_a_queue_by_name_that_appears_is_read(spaces: list[FabricatedSpace], looked: list[str]) -> None:
    shutil.rmtree(spaces[2].root / "committed" / "queue=orders")
    query = settled(spaces[0].root.parent / "*", looked)
    spaces[2].fill("orders", [1])
    assert seqs(query.batch()) == [("s2", 1)]


def test_a_space_that_appears_or_goes_is_seen(spaces: list[FabricatedSpace], looked: list[str]) -> None:
    query = settled(spaces[0].root.parent / "*", looked)
    late = FabricatedSpace(spaces[0].root.parent / "late")
    late.fill("orders", [1])
    assert seqs(query.batch()) == [("late", 1)]
    shutil.rmtree(spaces[4].root)
    with pytest.raises(SpaceError, match="s4"):
        query.batch()


def test_another_space_under_the_path_is_seen(spaces: list[FabricatedSpace], looked: list[str]) -> None:
    query = settled(spaces[0].root.parent / "*", looked)
    away = spaces[4].root.rename(spaces[4].root.parent.parent / "away")
    other = FabricatedSpace(spaces[4].root)
    other.fill("orders", [1, 2])
    (other.root / layout.FORMAT).write_text(f"xaqueue 1 other {UUID(int=1 << 127)}\n")
    with pytest.raises(SpaceError, match="another space"):
        query.batch()
    assert away.exists()


def test_what_is_written_in_the_same_instant_is_seen(
    spaces: list[FabricatedSpace], looked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a file system tells it whose clock ticks slowly: the first look that finds a time does not rely on it."""
    query = settled(spaces[0].root.parent / "*", looked)
    monkeypatch.setattr(snapshot, "SETTLED_S", 3600.0)
    now = time.time_ns()
    path = spaces[2].root / layout.watermark_path("orders")
    spaces[2].fill("orders", [3])
    os.utime(path, ns=(now, now))
    assert seqs(query.batch()) == [("s2", 3)]
    spaces[2].fill("orders", [4])
    os.utime(path, ns=(now, now))
    assert seqs(query.batch()) == [("s2", 4)]


def test_what_another_stream_consumed_is_known_when_a_batch_is_planned(
    spaces: list[FabricatedSpace], looked: list[str]
) -> None:
    query = settled(spaces[0].root.parent / "*", looked)
    keep(spaces[1].root, "orders", "other", consumed=3)
    spaces[1].fill("orders", [3, 4])
    with pytest.raises(SpaceError, match="consumed to 3"):
        query.batch()


def test_marks_that_hang_do_not_hang_the_query(
    spaces: list[FabricatedSpace], looked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    query = settled(spaces[0].root.parent / "*", looked, spaceTimeout=1)
    answers = threading.Event()
    marks = snapshot._marks_of

    def hangs(paths: Any) -> Any:
        answers.wait()
        return marks(paths)

    monkeypatch.setattr(snapshot, "_marks_of", hangs)
    try:
        with pytest.raises(SpaceError, match="does not answer"):
            query.batch()
    finally:
        answers.set()
