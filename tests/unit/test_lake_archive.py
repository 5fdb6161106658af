"""What left a queue that keeps it becomes Parquet, and the queue is one table with it, each message once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed")

from support.archive_space import Space, check, in_parquet
from xaqueue.lake.archive import archive

LEVELS = ["JOURNAL", "FDATASYNC;DSYNC", "NONE"]


@pytest.fixture(params=LEVELS)
def space(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Space]:
    made = Space(tmp_path / "space", request.param)
    yield made
    made.stop()


def test_what_was_taken_is_parquet_and_the_queue_one_table(space: Space) -> None:
    space.put(b"a", b"b", b"c")
    space.put(*(b"%d" % at for at in range(20)), many=True)
    space.take(2)
    space.settle()
    check(space)
    assert archive(space.root).messages == 2
    check(space)
    space.take(9)
    space.settle()
    check(space)
    assert archive(space.root).messages == 1, "a block stays until all of it was taken"
    check(space)
    space.take(12)
    space.settle()
    check(space)
    assert archive(space.root).messages == 20
    check(space)
    assert in_parquet(space.root) == list(space.bodies)
    assert [path.name for path in (space.root / "archive/queue=q/.taken").iterdir()] == []
    assert archive(space.root).messages == 0
