"""What left a queue that keeps it becomes Parquet, and the queue is one table with it, each message once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed")

from support.archive_space import Space, check, in_parquet
from xaqueue.features.streams import cleanup
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


def test_what_a_stream_consumes_is_kept_and_told(space: Space) -> None:
    """It ends within a block of which somebody else had taken two before; another one goes on."""
    space.put(*(b"%d" % at for at in range(20)), many=True)
    space.put(b"a", b"b", b"c")
    space.take(2)
    for upto in (3, 8, 12):
        space.consume(upto)
        space.settle()
        check(space)
    archive(space.root)
    check(space)
    space.session.release("q")
    check(space)
    assert archive(space.root).messages == 10, "each has a file of its own"
    check(space)
    space.take(2)
    space.consume(21, stream="query#2")
    assert cleanup.clear(space.session.space)
    space.settle()
    check(space)
    archive(space.root)
    check(space)
    assert in_parquet(space.root) == list(range(1, 22))
