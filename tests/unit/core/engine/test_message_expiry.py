"""A message that has expired is never given out, and its file goes in the background: in pieces, with no lock held."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import xaqueue
from support.bare_space import A_FILE_EACH, BareSpace, bare_space, wall_clock
from support.crash_level import NOON_US
from support.patience import eventually
from support.served import ServerThread
from support.woken import Woken
from xaqueue.core.model import layout
from xaqueue.core.model.change import Change
from xaqueue.errors import QueueReserved
from xaqueue.features import opening
from xaqueue.features.session import Session
from xaqueue.features.streams import cleanup
from xaqueue.offline.reader import QueueReader
from xaqueue.rpc.methods.service import queue_list
from xaqueue.xa import Flag
from xaqueue.xid import Xid

PATIENCE_S = 60.0
LEVELS = ["NONE", "FDATASYNC", "FSYNC;DSYNC", "JOURNAL"]
SOON_US = 300_000


def files(root: Path) -> list[str]:
    return sorted(path.name for path in root.glob("committed/queue=q/range=*/*"))


def make(root: Path, sync: str, interval_s: int = 1) -> None:
    opening.create(root)
    text = f'[default]\n[space]\nsync = "{sync}"\ncleanup_interval_s = {interval_s}\n'
    (root / layout.QUEUES).write_text(text)


@pytest.mark.parametrize("sync", LEVELS)
@pytest.mark.parametrize("way", ["embedded", "served"])
def test_what_expired_goes_where_nobody_dequeues(tmp_path: Path, sync: str, way: str) -> None:
    make(tmp_path / "s", sync)
    server = ServerThread(tmp_path / "s", tmp_path / "socket") if way == "served" else None
    try:
        with xaqueue.connect(server.url if server is not None else tmp_path / "s") as connection:
            for number in range(5):
                connection.enqueue("q", b"%d" % number, expires_at=wall_clock() + SOON_US)
            stays = connection.enqueue("q", b"stays")
            connection.commit()
            eventually(lambda: [name[17:] for name in files(tmp_path / "s")] == [stays.hex()])
            assert [message.body for message in connection.browse("q")] == [b"stays"]
    finally:
        if server is not None:
            server.stop()


@pytest.mark.parametrize("sync", LEVELS)
def test_what_expired_goes_when_the_space_is_opened(tmp_path: Path, sync: str) -> None:
    make(tmp_path / "s", sync, 3600)
    with xaqueue.connect(tmp_path / "s") as connection:
        connection.enqueue("q", b"late", expires_at=wall_clock() + SOON_US)
        stays = connection.enqueue("q", b"stays")
        connection.commit()
    time.sleep(SOON_US / 1e6)
    with xaqueue.connect(tmp_path / "s"):
        eventually(lambda: [name[17:] for name in files(tmp_path / "s")] == [stays.hex()])


def test_a_dequeue_passes_over_what_expired_and_has_it_removed(tmp_path: Path) -> None:
    make(tmp_path / "s", "JOURNAL", 3600)
    with xaqueue.connect(tmp_path / "s") as connection:
        for number in range(100):
            connection.enqueue("q", b"%d" % number, expires_at=wall_clock() + SOON_US)
        connection.enqueue("q", b"stays")
        connection.commit()
        time.sleep(SOON_US / 1e6)
        message = connection.dequeue("q")
        assert message is not None
        assert message.body == b"stays"
        eventually(lambda: len(files(tmp_path / "s")) <= 1)
        connection.rollback()


class Later:
    now_us = NOON_US

    def __call__(self) -> int:
        return self.now_us


def expiring(bare: BareSpace, count: int) -> None:
    """By the space's own clock, of which a connection knows nothing."""
    session, xid = Session(bare.space), Xid(1, b"expiring", b"")
    session.start(xid)
    for number in range(count):
        session.enqueue("q", b"%d" % number, expires_at=NOON_US + 10)
    session.enqueue("q", b"stays")
    session.end(xid)
    session.commit(xid, Flag.ONEPHASE)
    session.close()


@pytest.mark.parametrize("sync", ["NONE", "FDATASYNC;DSYNC", "JOURNAL"])
def test_nothing_is_removed_by_a_dequeue_or_with_the_lock_held(
    tmp_path: Path, sync: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, count = Later(), 2 * cleanup.PIECE + 1
    with bare_space(tmp_path / "s", sync, clock, A_FILE_EACH) as bare:
        expiring(bare, count)
        bare.space.settle()  # what comes and goes before that has no file
        clock.now_us += 10
        removed: list[bool] = []
        real = bare.space.fs.unlink

        def unlink(path: str) -> None:
            if path.startswith(layout.COMMITTED):
                removed.append(bare.space.lock.locked())
            real(path)

        monkeypatch.setattr(bare.space.fs, "unlink", unlink)
        assert bare.take("q") == [b"stays"]
        assert removed == []
        assert cleanup.expire(bare.space)
        bare.space.sync_all()
        assert removed == [False] * count
        assert len(bare.space.queues["q"].index) == 1
        assert cleanup.expire(bare.space)
        assert len(removed) == count


def test_one_that_a_branch_holds_goes_when_that_gives_it_back(tmp_path: Path) -> None:
    clock = Later()
    with bare_space(tmp_path / "s", "NONE", clock) as bare:
        expiring(bare, 1)
        with bare.connect() as connection:
            assert connection.dequeue("q") is not None
            clock.now_us += 10
            assert cleanup.expire(bare.space)
            assert len(files(tmp_path / "s")) == 2
            connection.rollback()
        assert cleanup.expire(bare.space)
        assert len(files(tmp_path / "s")) == 1
        assert bare.take("q") == [b"stays"]


def test_it_stops_between_two_pieces_and_goes_on(tmp_path: Path) -> None:
    clock = Later()
    with bare_space(tmp_path / "s", "NONE", clock, definitions=A_FILE_EACH) as bare:
        expiring(bare, 3 * cleanup.PIECE)
        clock.now_us += 10
        assert not cleanup.expire(bare.space, lambda: True)
        assert len(files(tmp_path / "s")) == 2 * cleanup.PIECE + 1
        assert cleanup.expire(bare.space)
        assert len(files(tmp_path / "s")) == 1


@pytest.mark.parametrize("sync", ["JOURNAL", "NONE"])
def test_a_stream_that_comes_while_they_go_waits_for_a_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: str
) -> None:
    """What is being removed is held by no branch: the status says so, and the queue can be reserved."""
    monkeypatch.setattr(cleanup, "PIECE", 2)
    clock = Later()
    with bare_space(tmp_path / "s", sync, clock) as bare:
        expiring(bare, 5)
        clock.now_us += 10
        reserved, in_the_middle = threading.Event(), threading.Event()

        def reserve() -> None:
            Session(bare.space).reserve("q", "stream", 0, 0)
            reserved.set()

        real = bare.space.log.perform
        thread = threading.Thread(target=reserve)

        def perform(change: Change, publish: Callable[[], None] = lambda: None) -> None:
            if not in_the_middle.is_set():
                in_the_middle.set()
                (queue,) = queue_list(bare.space)
                assert (queue.depth, queue.held) == (4, 0)
                thread.start()
                assert not reserved.wait(0.3)
            real(change, publish)

        monkeypatch.setattr(bare.space.log, "perform", perform)
        cleanup.expire(bare.space)
        thread.join(PATIENCE_S)
        assert reserved.is_set()
        assert bare.space.queues["q"].index.locked == 0
        bare.space.sync_all()
        assert len(files(tmp_path / "s")) == 4, "the stream takes the others"


def test_the_sweep_goes_on_behind_a_stream_that_is_refused(tmp_path: Path) -> None:
    clock, woken = Later(), []
    with bare_space(tmp_path / "s", "NONE", clock) as bare:
        expiring(bare, 2)
        clock.now_us += 10
        holder = Session(bare.space)
        holder.start(Xid(1, b"holder", b""))
        assert holder.dequeue("q") is not None
        bare.space.wakes.consumed = Woken(lambda: woken.append(len(bare.space.queues["q"].index.expired)))
        with pytest.raises(QueueReserved, match="1 of its messages"):
            Session(bare.space).reserve("q", "stream", 0, 0)
        assert woken == [2], "which wait for it still"


def test_what_a_stream_is_to_consume_stays(tmp_path: Path) -> None:
    clock = Later()
    with bare_space(tmp_path / "s", "NONE", clock) as bare:
        expiring(bare, 2)
        clock.now_us += 10
        assert bare.take("q") == [b"stays"]
        session = Session(bare.space)
        session.reserve("q", "stream", 0, 0)
        assert cleanup.expire(bare.space)
        assert len(files(tmp_path / "s")) == 3
        session.consume("q", "stream", QueueReader(tmp_path / "s", "q").watermark())
        assert cleanup.clear(bare.space)
        assert files(tmp_path / "s") == []


# A crash at every call


def test_without_room_it_is_done_later(tmp_path: Path) -> None:

    clock = Later()
    with bare_space(tmp_path / "s", "NONE", clock) as bare:
        expiring(bare, 1)
        clock.now_us += 10
        bare.fs.faults["unlink", "committed"] = errno.ENOSPC
        with pytest.raises(xaqueue.RetryLater):
            cleanup.expire(bare.space)
        bare.fs.faults.clear()
        assert cleanup.expire(bare.space)
        assert len(files(tmp_path / "s")) == 1
