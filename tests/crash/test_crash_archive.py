"""The process that brings what left a queue into Parquet is killed between any two of its calls."""

from __future__ import annotations

from pathlib import Path
from shutil import copytree

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed")

from support.archive_space import Cut, Killed, Space, check, in_parquet, spread
from xaqueue.lake import archive as archiving
from xaqueue.lake.archive import archive

CALLS = 70
"""More than it makes."""


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Space:
    """Files of three days are to be brought in, two each to become one; of a block some messages are there still."""
    space = Space(tmp_path_factory.mktemp("left") / "space", "JOURNAL")
    for at in range(2):
        space.put(*(b"%d/%d" % (at, one) for one in range(6)))
        space.put(*(b"%d/%d" % (at, one) for one in range(6, 26)), many=True)
    for taken in (5, 30):
        space.take(taken)
        space.settle()
        if taken == 5:
            spread(space.root)
            archive(space.root)
    space.stop()
    spread(space.root)
    return space


@pytest.mark.parametrize("calls", range(CALLS))
def test_nothing_is_lost_or_doubled(left: Space, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: int) -> None:
    monkeypatch.setattr(archiving, "MOST_SMALL", 1)
    space = left.at(tmp_path / "space")
    copytree(left.root, space.root)
    try:
        archive(space.root, fs=Cut(space.root, calls))
        assert len(list(space.root.glob("archive/parquet/queue=q/day=*/*"))) == 3
    except Killed:
        assert calls < CALLS - 1
        check(space)
    archive(space.root)
    assert in_parquet(space.root) == [seq for seq in space.taken if seq <= 32]
    check(space)
