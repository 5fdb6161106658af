"""A snapshot takes the place of a space whose queue keeps what leaves it: each message is there once, live or kept."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed")

import xaqueue
from support.archive_space import Space, check, in_parquet, rows
from support.patience import eventually
from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.errors import RetryLater
from xaqueue.features.session import attach
from xaqueue.features.snapshots import store
from xaqueue.features.snapshots.restoring import restore
from xaqueue.features.streams import cleanup
from xaqueue.lake.archive import archive


@pytest.fixture(params=["JOURNAL", "FDATASYNC;DSYNC", "NONE"])
def space(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Space]:
    made = Space(tmp_path / "space", request.param)
    made.put(b"a", b"b", b"c")
    made.put(*(b"%d" % at for at in range(20)), many=True)
    yield made
    made.stop()


def back(space: Space, **options: object) -> None:
    """To the snapshot, with the space opened behind it; what it knows of who took what is from then."""
    before = dict(space.taken)
    space.stop()
    restore(space.root, **options)  # type: ignore[arg-type]
    space.session, space.connection = attach(space.root), xaqueue.connect(space.root)
    live = {message.seq for message in space.connection.browse("q")}
    space.taken = {seq: who for seq, who in before.items() if seq not in live}


def is_taken(space: Space) -> bool:
    try:
        return space.connection.snapshot().number > 1
    except RetryLater:
        return False


def live(space: Space) -> list[int]:
    return [message.seq for message in space.connection.browse("q")]


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("into", ["files", "parquet"])
def test_what_was_taken_since_is_there_again_once(space: Space, into: str, exact: bool) -> None:
    space.take(6)
    space.connection.snapshot()
    space.put(b"d")
    space.take(17 if into == "files" else 18)
    space.settle()
    if into == "parquet":
        archive(space.root)
    back(space, exact=exact)
    if into == "files" and exact:
        del space.bodies[24]  # it was neither there by then, nor taken since
    assert live(space)[:17] == list(range(7, 24))
    check(space)
    space.take(len(live(space)))
    space.settle()
    check(space)
    archive(space.root)
    assert in_parquet(space.root) == list(space.bodies)
    check(space)
    assert not [*space.root.glob("archive/queue=q/range=*/*")]


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("into", ["files", "parquet"])
def test_before_the_first_open_nothing_is_missing(space: Space, into: str, exact: bool) -> None:
    """Of what is kept, numbers above the snapshot's."""
    space.take(6)
    space.connection.snapshot()
    space.put(b"d", b"e")
    space.take(19)
    space.settle()
    if into == "parquet":
        archive(space.root)
    space.stop()
    restore(space.root, exact=exact)
    before = rows(space)
    if into == "parquet":
        assert [row["seq"] for row in before] == list(space.bodies)
    space.session, space.connection = attach(space.root), xaqueue.connect(space.root)
    assert rows(space) == before
    space.put(b"f")
    space.settle()
    *earlier, new = rows(space)
    assert (earlier, new["body"]) == (before, b"f")


def test_what_had_moved_on_by_then_is_not_kept(space: Space) -> None:
    """And what moves only behind it is, once it is taken in its place."""
    space.take(3)
    for _ in range(2):
        message = space.connection.dequeue("q")
        assert message is not None
        space.connection.enqueue("other", message.body, message_id=message.message_id)
        space.connection.commit()
        if not store.listed(DirectoryFileSystem(space.root, keep_unsynced=False)):
            space.connection.snapshot()
    space.take(18)
    space.settle()
    archive(space.root)
    assert in_parquet(space.root) == [seq for seq in range(1, 24) if seq not in (4, 5)]
    back(space)
    assert live(space) == list(range(6, 24)), "5 is where it moved to"


def test_what_a_crash_has_torn_is_in_no_snapshot(space: Space) -> None:
    """Else it would be one with damage, which a restore passes over."""
    space.take(5)
    space.settle()
    told = sorted((space.root / "archive/queue=q/.taken").iterdir())
    told[0].with_name(f"{1 << 40:016x}-{1 << 40:016x}").write_bytes(told[0].read_bytes()[:-1])
    space.connection.snapshot()
    fs = DirectoryFileSystem(space.root, keep_unsynced=False)
    assert list(store.damage(fs, "snapshots/1")) == []
    assert sorted(path.name for path in (space.root / "snapshots/1/archive/queue=q/.taken").iterdir()) == [
        path.name for path in told
    ]


def test_what_a_stream_consumed_since_is_there_again(space: Space) -> None:
    """It had ended inside a block."""
    space.consume(2)
    space.connection.snapshot()
    space.consume(9)
    space.settle()
    space.session.release("q")
    space.settle()
    back(space)
    assert live(space) == list(range(3, 24))
    check(space)
    space.consume(12)
    space.session.release("q")
    space.settle()
    archive(space.root)
    check(space)
    space.take(11)
    space.consume(23, stream="query#2")
    cleanup.clear(space.session.space)
    space.settle()
    archive(space.root)
    check(space)
    assert in_parquet(space.root) == list(range(1, 24))


def test_of_another_space_nothing_is_kept(space: Space, tmp_path: Path) -> None:
    space.take(5)
    space.settle()
    space.connection.snapshot()
    other = Space(tmp_path / "other", "NONE")
    other.put(b"x", b"y")
    other.take(1)
    other.settle()
    other.stop()
    shutil.copytree(space.root / "snapshots", other.root / "snapshots")
    restore(other.root, as_new=True)
    there, then = (root / "archive/queue=q/.taken" for root in (other.root, space.root))
    assert {path.name for path in there.iterdir()} == {path.name for path in then.iterdir()}
    assert [*other.root.glob("removed/*/archive/queue=q/range=*/*")]
    left = [row["seq"] for row in rows(space.at(other.root))]
    assert left == [*range(4, 24)], "the files of three messages are where they were"


@pytest.mark.parametrize("space", ["JOURNAL"], indirect=True)
def test_a_moment_has_what_was_kept_by_then(space: Space) -> None:
    """Also where the archive is lost with the disk."""
    space.stop()
    with (space.root / "queues.toml").open("a") as file:
        file.write("[snapshots]\npoint_in_time = true\n")
    space.session, space.connection = attach(space.root), xaqueue.connect(space.root)
    eventually(lambda: len(store.listed(DirectoryFileSystem(space.root, keep_unsynced=False))) == 1)  # it takes one
    space.take(1)
    eventually(lambda: is_taken(space))
    space.take(4)
    space.settle()
    at_us = time.time_ns() // 1000
    time.sleep(0.01)
    space.take(18)
    space.settle()
    space.stop()
    shutil.rmtree(space.root / "archive")
    restore(space.root, at_us=at_us)
    space.session, space.connection = attach(space.root), xaqueue.connect(space.root)
    assert live(space) == list(range(6, 24))
    kept = [row["seq"] for row in rows(space, "taken_at") if row["taken_at"] is not None]
    assert kept == [2, 3, 4, 5]
