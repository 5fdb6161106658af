"""A disk that is full or fails in the way of a stream: it is told so, and what it was promised holds."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from support.bare_space import DURABLE, BareSpace, bare_space
from support.served import PATIENCE_S, ServerThread
from xaqueue import connect
from xaqueue.core.engine.redo import make_dirs
from xaqueue.core.model import layout
from xaqueue.core.owner.chores import Chores
from xaqueue.core.storage.fs import FileSystem
from xaqueue.errors import InvalidArgument, QueueReserved, ResourceFailed, RetryLater
from xaqueue.features import opening
from xaqueue.features.session import Session
from xaqueue.features.streams import cleanup
from xaqueue.features.streams.record import STREAMS
from xaqueue.rpc.client.manager import remote_manager
from xaqueue.rpc.server import scheduler

STREAM = "query#1"
RECORDING = [("create", layout.ACTIVE), ("write_at", layout.JOURNAL)]
"""Where the record of a stream is written first."""
HARDENING = [("rename", STREAMS), ("sync_data", layout.JOURNAL)]
"""What makes it last."""


@pytest.fixture(params=["JOURNAL", DURABLE])
def bare(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[BareSpace]:
    made = BareSpace(tmp_path / "space", request.param)
    put(made, 5)
    yield made
    made.fs.faults.clear()
    made.crash()


def put(bare: BareSpace, count: int) -> None:
    with closing(bare.connect()) as connection:
        for number in range(count):
            connection.enqueue("orders", b"%d" % number)
        connection.commit()


def seqs(session: Session) -> list[int]:
    return [message.seq for message in session.browse("orders")]


def files(bare: BareSpace, directory: str) -> list[int]:
    return sorted(int(path.name[:16], 16) for path in (bare.root / directory).glob("queue=orders/range=*/*"))


def test_without_room_for_the_record_nothing_is_reserved_and_nothing_consumed(bare: BareSpace) -> None:
    session = Session(bare.space)
    full = dict.fromkeys(RECORDING, errno.ENOSPC)
    bare.fs.faults = dict(full)
    with pytest.raises(RetryLater, match="no room"):
        session.reserve("orders", STREAM, 0, 3)
    assert session.reservations() == []
    with closing(bare.connect()) as connection:
        assert connection.dequeue("orders") is not None
        connection.rollback()
    bare.fs.faults.clear()
    session.reserve("orders", STREAM, 0, 3)
    bare.fs.faults = dict(full)
    with pytest.raises(RetryLater, match="no room"):
        session.consume("orders", STREAM, 3)
    assert seqs(session) == [1, 2, 3, 4, 5]
    bare.fs.faults.clear()
    assert session.consume("orders", STREAM, 3).consumed == 3
    assert seqs(session) == [4, 5]


def test_a_record_that_cannot_be_hardened_fences_the_space(bare: BareSpace) -> None:
    session = Session(bare.space)
    session.reserve("orders", STREAM, 0, 3)
    bare.fs.faults = dict.fromkeys(HARDENING, errno.EIO)
    with pytest.raises(ResourceFailed):
        session.consume("orders", STREAM, 3)
    bare.fs.faults.clear()
    again = Session(bare.reopen())
    assert again.reservations()[0].consumed in (0, 3)
    assert seqs(again) == [seq for seq in range(1, 6) if seq > again.reservations()[0].consumed]


def test_a_file_that_cannot_be_removed_fences_the_space_and_is_no_message_any_more(bare: BareSpace) -> None:
    session = Session(bare.space)
    session.reserve("orders", STREAM, 0, 3)
    session.consume("orders", STREAM, 3)
    bare.fs.faults = {("unlink", layout.COMMITTED): errno.EIO}
    with pytest.raises(ResourceFailed):
        cleanup.clear(bare.space)
    bare.fs.faults.clear()
    space = bare.reopen()
    assert seqs(Session(space)) == [4, 5]
    assert cleanup.clear(space)
    assert files(bare, layout.COMMITTED) == [4, 5]


def test_an_archive_without_room_is_filled_later(bare: BareSpace) -> None:
    session = Session(bare.space)
    session.reserve("orders", STREAM, 0, 3)
    session.consume("orders", STREAM, 3, archive=True)
    for call in ("make_dir", "rename"):
        bare.fs.faults = {(call, layout.ARCHIVE): errno.ENOSPC}
        with pytest.raises(RetryLater, match="no room to clear"):
            cleanup.clear(bare.space)
        assert seqs(session) == [4, 5]
    bare.fs.faults = {("rename", layout.ARCHIVE): errno.ENOSPC}
    with pytest.raises(RetryLater, match="no room to clear"):
        session.release("orders")
    assert session.reservations()[0].stream == STREAM
    bare.fs.faults.clear()
    assert session.release("orders") is not None
    assert (files(bare, layout.ARCHIVE), files(bare, layout.COMMITTED)) == ([1, 2, 3], [4, 5])


@pytest.mark.parametrize("call", ["list", "unlink"])
def test_tries_that_cannot_be_cleared_now_are_cleared_later(bare: BareSpace, call: str) -> None:
    """For want of a descriptor, or of room."""
    with closing(bare.connect()) as connection:
        assert connection.dequeue("orders") is not None
        connection.rollback()
    bare.space.log.settle()
    session = Session(bare.space)
    session.reserve("orders", STREAM, 0, 3)
    session.consume("orders", STREAM, 3)
    bare.fs.faults = {(call, layout.retries_path("orders")): errno.EMFILE}
    with pytest.raises(RetryLater, match="no room to clear"):
        cleanup.clear(bare.space)
    bare.fs.faults.clear()
    assert cleanup.clear(bare.space)
    assert bare.fs.list(layout.retries_path("orders")) == []


@pytest.mark.parametrize("bare", [DURABLE], indirect=True)
def test_what_is_past_its_commit_point_and_waits_for_room_comes_above_what_was_read(bare: BareSpace) -> None:
    """Else it would come below what a stream has read, and be consumed unread."""
    session, late = Session(bare.space), bare.connect()
    session.reserve("orders", STREAM, 0, 9)
    for _ in range(2):
        late.enqueue("orders", b"late")
    for seq, latest in ((6, 8), (9, 11)):
        bare.fs.faults = {("rename", layout.range_path("orders", seq) + f"/{seq:016x}"): errno.ENOSPC}
        with pytest.raises(RetryLater):
            late.commit()
        put(bare, 1)
        assert session.reservations()[0].latest == latest
    assert seqs(session) == [1, 2, 3, 4, 5, 8, 11]
    with pytest.raises(InvalidArgument, match="published up to 11"):
        session.consume("orders", STREAM, 12)
    assert session.consume("orders", STREAM, 11).consumed == 11
    bare.fs.faults.clear()
    late.commit()
    assert session.reservations()[0].latest == 13
    assert seqs(session) == [12, 13]
    late.close()
    assert seqs(Session(bare.reopen())) == [12, 13]


@pytest.mark.parametrize("bare", ["JOURNAL"], indirect=True)
def test_what_waits_for_room_in_the_directories_is_above_their_watermark(bare: BareSpace) -> None:
    """Who reads the directories goes as far as that says; the owner's own sessions read what the journal has."""
    session = Session(bare.space)
    session.reserve("orders", STREAM, 0, 9)
    bare.space.log.settle()
    path = bare.root / layout.watermark_path("orders")
    before = path.read_bytes()
    bare.fs.faults = {("rename", layout.COMMITTED): errno.ENOSPC}
    put(bare, 2)
    for _ in range(2):
        with pytest.raises(OSError, match="No space left"):
            bare.space.log.settle()
        assert path.read_bytes() == before
    assert seqs(session) == [1, 2, 3, 4, 5, 6, 7]
    bare.fs.faults.clear()
    bare.space.log.settle()
    watermark = layout.parse_watermark(path.read_bytes())
    assert watermark is not None
    assert watermark.published == 7
    assert files(bare, layout.COMMITTED) == [1, 2, 3, 4, 5, 6, 7]


def test_an_archive_without_room_keeps_nobody_from_making_some(bare: BareSpace) -> None:
    bare.put("removed", b"", b"")
    session = Session(bare.space)
    for queue, archive in (("orders", True), ("removed", False)):
        session.reserve(queue, STREAM, 0, 2)
        session.consume(queue, STREAM, 2, archive)
    bare.space.log.settle()  # what is recorded is where it belongs
    bare.fs.faults = {("rename", layout.ARCHIVE): errno.ENOSPC}
    with pytest.raises(RetryLater, match="no room to clear"):
        cleanup.clear(bare.space)
    assert list((bare.root / layout.queue_path("removed")).glob("range=*/*")) == []


def test_whoever_waits_for_the_archive_keeps_no_thread_from_those_who_harden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "SLOW_CALLS", 1)
    begun = threading.Event()

    def slow(fs: FileSystem, directory: str) -> None:
        begun.set()
        time.sleep(0.1)  # until somebody leads a round
        make_dirs(fs, directory)

    monkeypatch.setattr(cleanup, "make_dirs", slow)
    monkeypatch.setattr(cleanup.Clear, "wake", lambda _: None)  # so that release has it all to do
    opening.create(tmp_path / "space", sync="JOURNAL", any_queue=True)
    server = ServerThread(tmp_path / "space", tmp_path / "socket")
    manager, released = remote_manager(server.url), threading.Event()

    def trade() -> None:
        with connect(server.url) as connection:
            begun.wait(PATIENCE_S)
            while not released.is_set():
                connection.enqueue("other", b"")
                connection.commit()

    with connect(server.url) as connection:
        for _ in range(5):
            connection.enqueue("orders", b"")
        connection.commit()
    manager.reserve("orders", STREAM, 0, 5)
    manager.consume("orders", STREAM, 5, archive=True)
    trader = threading.Thread(target=trade, daemon=True)
    trader.start()
    releasing = threading.Thread(target=manager.release, args=["orders"], daemon=True)
    releasing.start()
    releasing.join(PATIENCE_S)
    released.set()
    assert not releasing.is_alive()
    trader.join(PATIENCE_S)
    manager.close()
    server.stop()
    assert len(list((tmp_path / "space" / layout.ARCHIVE).glob("queue=orders/range=*/*"))) == 5


@pytest.mark.parametrize("bare", [DURABLE], indirect=True)
def test_a_branch_that_a_power_loss_brought_back_takes_nothing_of_a_reserved_queue(bare: BareSpace) -> None:
    """It was rolled back, its removal was not synced, and so it is rolled back once more.

    With a journal it has no file.
    """
    connection = bare.connect()
    assert connection.dequeue("orders") is not None
    block = next((bare.root / layout.ACTIVE).iterdir())
    content = block.read_bytes()
    with pytest.raises(QueueReserved):
        Session(bare.space).reserve("orders", STREAM, 0, 3)
    connection.rollback()
    session = Session(bare.space)
    session.reserve("orders", STREAM, 0, 3)
    session.consume("orders", STREAM, 1)
    bare.crash()
    block.write_bytes(content)
    again = Session(bare.reopen())
    assert seqs(again) == [2, 3, 4, 5]
    assert [one.stream for one in again.reservations()] == [STREAM]
    assert list((bare.root / layout.ACTIVE).iterdir()) == []


@pytest.mark.parametrize("result", [True, False, RetryLater("no room")])
def test_who_asks_while_it_is_cleared_is_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, result: bool | RetryLater
) -> None:
    with bare_space(tmp_path / "space") as bare:
        chore = cleanup.Clear(bare.space)
        turn = Chores(bare.space, [])

        def work(*_: object) -> bool:
            bare.space.wakes.consumed.wake()
            if isinstance(result, RetryLater):
                raise result
            return result

        assert chore.left_s() > 0
        assert chore.run(turn) == 0
        assert chore.left_s() > 0
        monkeypatch.setattr(cleanup, "expire", work)
        assert chore.run(turn) == (cleanup.RETRY_S if isinstance(result, RetryLater) else 0)
        assert chore.left_s() == 0
