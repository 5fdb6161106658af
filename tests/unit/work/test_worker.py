"""Workers as a part of a program: what a handler does and the end of its message are one, whatever happens."""

from __future__ import annotations

import errno
import gc
import logging
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest

import xaqueue
from support.bare_space import DURABLE, FaultyFileSystem, bare_space
from support.contract_connection import PATIENCE_S, bodies, put
from support.patience import eventually
from support.served import ServerThread
from xaqueue.connection import Connection
from xaqueue.core.model import layout
from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.core.storage.ids import fresh_id
from xaqueue.errors import ConnectionLost, RetryLater
from xaqueue.features.session import Session
from xaqueue.rpc.client import reach
from xaqueue.transaction import Transaction
from xaqueue.work import loop


@pytest.fixture
def space(tmp_path: Path) -> Path:
    root = tmp_path / "space"
    with xaqueue.connect(root, create=True, sync="NONE") as connection:
        connection.define("failed")
        connection.define("orders", max_tries=2, failure_queue="failed")
    return root


def fill(space: Path, *bodies: bytes) -> None:
    with xaqueue.connect(space) as connection:
        put(connection, *bodies)


def left(space: Path, queue: str = "orders") -> list[bytes]:
    with xaqueue.connect(space) as connection:
        return bodies(connection, queue)


def pack(message: xaqueue.Message, tx: Any) -> None:
    tx.enqueue("parcels", message.body)
    if message.body == b"poison":
        raise ValueError("no such product")


@pytest.mark.parametrize("way", ["embedded", "served"])
@pytest.mark.parametrize("threads", [1, 3])
def test_each_message_is_handled_once_and_a_failure_undoes_all(
    space: Path, tmp_path: Path, way: str, threads: int, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = [b"%d" % number for number in range(20)]
    fill(space, *wanted[:10], b"poison", *wanted[10:])
    server = ServerThread(space, tmp_path / "socket") if way == "served" else None
    try:
        with xaqueue.connect(space), xaqueue.Worker(space, "orders", pack, threads=threads) as worker:
            eventually(lambda: len(left(space, "failed")) == 1 and worker.done == len(wanted))
        assert (worker.done, worker.failed) == (len(wanted), 2)
        assert sorted(left(space, "parcels")) == sorted(wanted)
        assert left(space) == []
        with xaqueue.connect(space) as connection:
            (failed,) = connection.browse("failed")
    finally:
        if server is not None:
            server.stop()
    told = [record for record in caplog.records if failed.message_id.hex() in record.getMessage()]
    assert len(told) == 2, "each delivery that failed is told once"
    assert all(record.exc_info is not None for record in told)
    assert failed.origin is not None
    assert failed.origin.detail == "ValueError: no such product"


def test_what_runs_is_finished_and_nothing_more_is_taken(space: Path) -> None:
    fill(space, b"1", b"2")
    running, go_on = threading.Event(), threading.Event()

    def handle(message: xaqueue.Message, tx: xaqueue.Connection) -> None:
        running.set()
        assert go_on.wait(PATIENCE_S)

    worker = xaqueue.Worker(space, "orders", handle).start()
    assert running.wait(PATIENCE_S)
    assert not worker.stop(grace_s=0.01), "it runs still"
    go_on.set()
    assert worker.stop()
    assert worker.join()
    assert left(space) == [b"2"]
    with pytest.raises(xaqueue.InterfaceError, match="make another one"):
        worker.start()


def test_threads_that_wait_for_a_message_end(space: Path) -> None:
    with xaqueue.connect(space) as connection:
        queue = connection._manager.space.queue("orders")  # type: ignore[attr-defined]
        worker = xaqueue.Worker(space, "orders", pack, threads=4).start()
        eventually(lambda: queue.waiters == 4)
        assert worker.stop(PATIENCE_S)
    assert worker.done == 0


def test_until_empty_takes_what_is_there_and_ends_at_what_fails_again(space: Path) -> None:
    with xaqueue.connect(space) as connection:
        connection.define("endless")
        put(connection, b"1", b"poison", b"2", queue="endless")
        for queue in ("orders", "endless"):
            worker = xaqueue.Worker(space, queue, pack, until_empty=True).start()
            assert worker.join(PATIENCE_S)
            assert (worker.done, worker.failed) == ((0, 0) if queue == "orders" else (1, 2))
        assert bodies(connection, "endless") == [b"poison", b"2"], "nothing but the poisoned one would come next"


def test_a_poisoned_message_without_a_policy_is_not_tried_in_a_hot_loop(
    space: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with xaqueue.connect(space) as connection:
        connection.define("endless")
        put(connection, b"poison", queue="endless")
    monkeypatch.setattr(loop, "PAUSE_S", PATIENCE_S)
    worker = xaqueue.Worker(space, "endless", pack).start()
    eventually(lambda: worker.failed == 2)
    assert worker.stop(PATIENCE_S), "a pause ends with it"
    assert worker.failed == 2


def test_what_ends_a_worker_is_raised(space: Path) -> None:
    def leave(message: xaqueue.Message, tx: xaqueue.Connection) -> None:
        raise SystemExit(3)

    worker = xaqueue.Worker(space, "nowhere", pack)
    with xaqueue.connect(space) as connection:
        (space / "queues.toml").write_text('[queues.orders]\n[queues."other"]\n')
        eventually(lambda: not accepts(connection, "nowhere"))
        with pytest.raises(xaqueue.UnknownQueue):
            worker.start().join(PATIENCE_S)
    fill(space, b"1")
    with pytest.raises(SystemExit):
        xaqueue.Worker(space, "orders", leave).start().join(PATIENCE_S)
    assert left(space) == [b"1"]
    with pytest.raises(xaqueue.SpaceError), xaqueue.Worker(space.parent / "no-space", "orders", pack):
        pass


def accepts(connection: xaqueue.Connection, queue: str) -> bool:
    try:
        connection.enqueue(queue, b"x")
    except xaqueue.UnknownQueue:
        return False
    finally:
        connection.rollback()
    return True


def test_a_server_that_goes_is_waited_for(
    space: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "PAUSE_S", 0.01)
    monkeypatch.setattr("xaqueue.rpc.client.link.CONNECT_S", 0.0)
    server = ServerThread(space, tmp_path / "socket")
    with xaqueue.Worker(server.url, "orders", pack) as worker:
        fill(space, b"1")
        eventually(lambda: worker.done == 1)
        server.stop()
        eventually(lambda: "[worker-waits]" in caplog.text)
        server = ServerThread(space, tmp_path / "socket")
        fill(space, b"2")
        eventually(lambda: worker.done == 2)
    server.stop()
    assert left(space, "parcels") == [b"1", b"2"]


def test_a_fenced_space_ends_the_worker(space: Path) -> None:
    with xaqueue.connect(space) as connection:
        worker = xaqueue.Worker(space, "orders", pack).start()
        connection._manager.space.fence(OSError(5, "Input/output error"))  # type: ignore[attr-defined]
        with pytest.raises(xaqueue.ResourceFailed):
            worker.join(PATIENCE_S)


class StarvedFileSystem(FaultyFileSystem):
    """It can lack the descriptor of a directory, too."""

    def hold_dir(self, path: str) -> None:
        self.strike("hold_dir", path)
        DirectoryFileSystem.hold_dir(self, path)


@pytest.mark.parametrize(
    ("call", "queue"), [("hold_dir", "orders"), ("make_dir", "parcels")], ids=["past its commit point", "before it"]
)
def test_a_commit_that_finds_no_room_is_completed_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, call: str, queue: str
) -> None:
    """And no message is handled again for it, or has failed."""
    monkeypatch.setattr("support.bare_space.FaultyFileSystem", StarvedFileSystem)
    monkeypatch.setattr(loop, "PAUSE_S", 0.01)
    with bare_space(tmp_path / "space", DURABLE) as bare:
        bare.put("orders", b"1")
        bare.put("orders", b"2")
        bare.fs.faults[call, layout.queue_path(queue)] = errno.ENOSPC
        monkeypatch.setattr(reach, "connect", lambda _, **__: Connection(Session(bare.space), fresh_id))
        with xaqueue.Worker("anywhere", "orders", pack) as worker:
            eventually(lambda: "a commit of queue orders waits" in caplog.text)
            assert worker.done == 0
            bare.fs.faults.clear()
            eventually(lambda: worker.done == 2)
        assert worker.failed == 0
        assert bare.space.branches == {}
        for _ in range(2):
            assert (bare.take("orders"), bare.take("parcels")) == ([], [b"1", b"2"])
            bare.reopen()


def test_a_commit_that_waits_for_room_is_given_up_with_the_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with bare_space(tmp_path / "space", DURABLE) as bare:
        bare.put("orders", b"1")
        bare.fs.faults["make_dir", layout.queue_path("parcels")] = errno.ENOSPC
        monkeypatch.setattr(reach, "connect", lambda _, **__: Connection(Session(bare.space), fresh_id))
        worker = xaqueue.Worker("anywhere", "orders", pack).start()
        eventually(lambda: "a commit of queue orders waits" in caplog.text)
        assert worker.stop(PATIENCE_S)
        assert worker.join()
        assert (worker.done, worker.failed) == (0, 1)
        bare.fs.faults.clear()
        assert (bare.take("orders"), bare.take("parcels")) == ([b"1"], [])


@pytest.mark.parametrize("wrong", [None, "pack", lambda message: None, lambda: None])
def test_what_is_no_handler(space: Path, wrong: Any) -> None:
    with pytest.raises(xaqueue.InvalidArgument, match="handler"):
        xaqueue.Worker(space, "orders", wrong)


def test_an_async_function_is_refused_and_so_is_what_returns_one(space: Path) -> None:
    async def handle(message: xaqueue.Message, tx: xaqueue.Connection) -> None:
        pass

    with pytest.raises(xaqueue.InvalidArgument, match="async function"):
        xaqueue.Worker(space, "orders", handle)
    fill(space, b"1")
    worker = xaqueue.Worker(space, "orders", lambda *both: handle(*both), until_empty=True)
    with pytest.warns(RuntimeWarning, match="never awaited"):
        assert worker.start().join(PATIENCE_S)
    assert (worker.done, worker.failed) == (0, 2)
    for threads in (0, True, "2"):
        with pytest.raises(xaqueue.InvalidArgument, match="threads"):
            xaqueue.Worker(space, "orders", pack, threads=threads)  # type: ignore[arg-type]


def test_a_worker_of_a_transaction_manager(space: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "xaqueue")  # until its end
    other = tmp_path / "other"
    with xaqueue.connect(other, create=True, sync="NONE"):
        fill(space, b"1", b"poison", b"2")

        def copy(message: xaqueue.Message, tx: Any) -> None:
            pack(message, tx["away"])

        participants = {"queue": lambda: xaqueue.connect(space), "away": lambda: xaqueue.connect(other)}
        with xaqueue.TransactionManager(tmp_path / "log", participants) as manager:
            worker = xaqueue.Worker("queue", "orders", copy, threads=2, tm=manager, until_empty=True).start()
            assert worker.join(PATIENCE_S)
            assert worker.failed == 2
            assert sorted(left(other, "parcels")) == [b"1", b"2"]
            eventually(lambda: left(space) == [])  # it moves to the failure queue in its own time
            with xaqueue.connect(space) as connection:
                (failed,) = connection.browse("failed")
            assert (failed.body, failed.origin and failed.origin.detail) == (b"poison", "ValueError: no such product")
            eventually(lambda: "[messages-moved]" in caplog.text)  # it is said behind that
            (said,) = (one for one in caplog.messages if "[messages-moved]" in one)
            assert said.endswith("the last one had failed last with: ValueError: no such product")
            with pytest.raises(xaqueue.InvalidArgument, match="no participant"):
                xaqueue.Worker("ledger", "orders", copy, tm=manager).start().join(PATIENCE_S)


def test_a_connection_that_is_lost_is_not_kept(space: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often the server goes away."""
    known: list[weakref.ref[Connection]] = []

    def outcome(self: loop.Loop, connection: Connection) -> loop.RunOutcome:
        known.append(weakref.ref(connection))
        if len(known) < 4:
            raise ConnectionLost("the server is gone")
        self._stopping.set()
        gc.collect()
        assert [one() is not None for one in known] == [False, False, False, True]
        return loop.RunOutcome.DONE

    monkeypatch.setattr(xaqueue.Worker, "_run_once", outcome)
    monkeypatch.setattr(loop.log, "warning", lambda *_: None)  # which would keep the error, and so the connection
    with xaqueue.Worker(space, "orders", pack) as worker:
        assert worker.join(PATIENCE_S)
    assert len(known) == 4


def test_what_could_not_be_rolled_back_is_not_committed_at_the_end(
    space: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(space, b"1")

    def refused(*_: object) -> None:
        raise RetryLater("there is no room")

    def handle(message: xaqueue.Message, tx: Any) -> None:
        tx.enqueue("failed", message.body)
        worker._stopping.set()
        raise ValueError("no such product")

    monkeypatch.setattr(Transaction, "give_up", refused)
    worker = xaqueue.Worker(space, "orders", handle)
    with worker, pytest.warns(ResourceWarning, match="closed with work undone"):
        assert worker.join(PATIENCE_S)
    assert (left(space), left(space, "failed")) == ([b"1"], [])
