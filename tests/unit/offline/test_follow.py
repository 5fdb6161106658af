"""Following a queue: what is there, what comes, nothing above the watermark, and no ownership."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Queue

import pytest

import xaqueue
from xaqueue.core.model import layout
from xaqueue.core.model.block import decode
from xaqueue.core.model.layout import Watermark
from xaqueue.errors import InvalidArgument, SpaceError
from xaqueue.features.opening import create
from xaqueue.offline.reader import QueueReader, follow, start_after

PATIENCE_S = 60.0


@pytest.fixture
def space(tmp_path: Path) -> Path:
    root = tmp_path / "space"
    create(root, sync="NONE", any_queue=True)
    return root


@contextmanager
def following(space: Path, start: str) -> Iterator[Queue[tuple[int, bytes]]]:
    """What a follower in a thread of its own has seen, as it comes."""
    seen: Queue[tuple[int, bytes]] = Queue()
    stopped = threading.Event()

    def run() -> None:
        for seq, message_id, data in follow(space, "orders", start=start, stopped=stopped):
            block = decode(data)
            assert block.message_id == message_id
            seen.put((seq, block.body))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield seen
    finally:
        stopped.set()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def put(connection: xaqueue.Connection, *bodies: bytes) -> None:
    for body in bodies:
        connection.enqueue("orders", body)
    connection.commit()


def test_what_is_there_and_what_comes(space: Path) -> None:
    with xaqueue.connect(space) as connection:
        put(connection, b"a", b"b")
        with following(space, "earliest") as seen:
            assert [seen.get(timeout=PATIENCE_S) for _ in range(2)] == [(1, b"a"), (2, b"b")]
            put(connection, b"c")
            assert seen.get(timeout=PATIENCE_S) == (3, b"c")
            put(connection, b"d", b"e")
            assert [seen.get(timeout=PATIENCE_S) for _ in range(2)] == [(4, b"d"), (5, b"e")]


def test_a_queue_that_comes_later(space: Path) -> None:
    with following(space, "earliest") as seen, xaqueue.connect(space) as connection:
        put(connection, b"a")
        assert seen.get(timeout=PATIENCE_S) == (1, b"a")


def test_from_a_number(space: Path) -> None:
    with xaqueue.connect(space) as connection:
        put(connection, b"a", b"b", b"c")
        with following(space, "2") as seen:
            assert [seen.get(timeout=PATIENCE_S) for _ in range(2)] == [(2, b"b"), (3, b"c")]


def test_nothing_above_the_watermark(space: Path) -> None:
    with xaqueue.connect(space) as connection:
        put(connection, b"a", b"b")
    watermark = space / layout.watermark_path("orders")
    watermark.write_bytes(layout.format_watermark(Watermark(1, 4095)))
    with following(space, "earliest") as seen:
        assert seen.get(timeout=PATIENCE_S) == (1, b"a")
        assert seen.empty()
        watermark.write_bytes(layout.format_watermark(Watermark(2, 4095)))
        assert seen.get(timeout=PATIENCE_S) == (2, b"b")


def test_where_to_begin(space: Path) -> None:
    with xaqueue.connect(space) as connection:
        put(connection, b"a", b"b")
    reader = QueueReader(space, "orders")
    assert [start_after(reader, start) for start in ("earliest", "latest", "2", "0")] == [0, 2, 1, 0]
    for start in ("last", "-1", "1.5", "9" * 30):
        with pytest.raises(InvalidArgument, match="earliest or latest"):
            start_after(reader, start)


def test_what_is_no_space_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpaceError):
        next(follow(tmp_path, "orders"))


@pytest.mark.parametrize("which", ["another", "older"])
def test_what_comes_under_the_path_is_not_followed(space: Path, which: str) -> None:
    """Its numbers are those of other messages, and none of them is given out."""
    other = space.with_name("other")
    with xaqueue.connect(space) as connection:
        put(connection, b"a")
    if which == "older":
        shutil.copytree(space, other)
    else:
        with xaqueue.connect(other, create=True, sync="NONE") as connection:
            put(connection, b"foreign", b"foreign", b"foreign")
    with xaqueue.connect(space) as connection:
        put(connection, b"b")
    stopped = threading.Event()
    end = threading.Timer(PATIENCE_S, stopped.set)
    end.start()
    followed = follow(space, "orders", start="earliest", stopped=stopped)
    assert [decode(next(followed)[2]).body for _ in range(2)] == [b"a", b"b"]
    space.rename(space.with_name("elsewhere"))
    other.rename(space)
    with pytest.raises(SpaceError, match="became another space, or an older copy"):
        next(followed)
    end.cancel()
