"""A forwarder's batches: how large they are, in which order they go, and what becomes of them where an end is gone."""

from __future__ import annotations

from pathlib import Path

import pytest

import xaqueue
from support.contract_connection import PATIENCE_S, put
from support.patience import eventually
from support.served import ServerThread
from xaqueue.connection import Connection
from xaqueue.core.storage.ids import fresh_id
from xaqueue.rpc.client.manager import remote_manager
from xaqueue.tm.log_directory import PARTICIPANTS, keep_participants
from xaqueue.work import forward, loop
from xaqueue.work.forward import SOURCE, TARGET, Forwarder


@pytest.fixture
def space(tmp_path: Path) -> Path:
    root = tmp_path / "space"
    xaqueue.connect(root, create=True, sync="NONE").close()
    return root


def forwarded(space: Path, *, until_empty: bool = True) -> Forwarder:
    done = Forwarder(str(space), "orders", "archive", until_empty=until_empty).start()
    assert done.join(PATIENCE_S)
    return done


def test_a_batch_ends_with_its_number_or_its_bytes(space: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    succeeded = Forwarder._succeeded

    def noted(self: Forwarder, count: int) -> loop.RunOutcome:
        sizes.append(count)
        return succeeded(self, count)

    monkeypatch.setattr(Forwarder, "_succeeded", noted)
    with xaqueue.connect(space) as connection:
        put(connection, *[b"x"] * 205)
        forwarded(space)
        assert sizes == [100, 100, 5]
        monkeypatch.setattr(forward, "BATCH_BYTES", 15_000)
        put(connection, *[bytes(1_000)] * 45)
        forwarded(space)
        assert sizes[3:] == [20, 20, 5]
        assert len(list(connection.browse("archive"))) == 250


def test_groups_keep_their_order_and_what_is_not_due_stays(space: Path) -> None:
    with xaqueue.connect(space) as connection:
        for number in range(30):
            connection.enqueue("orders", b"%d" % number, group=f"g{number % 3}", priority=number % 10)
        connection.enqueue("orders", b"late", delay=600)
        connection.commit()
        assert connection.dequeue("orders") is not None, "another one has the first of g0"
        with xaqueue.connect(space) as other:
            assert forwarded(space).done == 20
            found = [(one.properties.group, int(one.body)) for one in other.browse("archive")]
            connection.rollback()
            assert forwarded(space).done == 10
            found = [(one.properties.group, int(one.body)) for one in other.browse("archive")]
            assert [one.body for one in other.browse("orders")] == [b"late"]
    for group in ("g0", "g1", "g2"):
        numbers = [number for name, number in found if name == group]
        assert numbers == sorted(numbers)
        assert len(numbers) == 10


def test_what_is_not_persistent_is_not_there_either(space: Path) -> None:
    with xaqueue.connect(space) as connection:
        connection.enqueue("orders", b"quick", persistent=False)
        put(connection, b"kept")
        assert forwarded(space).done == 2
        assert [(one.body, one.persistent) for one in connection.browse("archive")] == [
            (b"quick", False),
            (b"kept", True),
        ]


def test_a_target_that_is_gone_costs_no_try(
    space: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(loop, "PAUSE_S", 0.01)
    xaqueue.connect(tmp_path / "other", create=True, sync="NONE").close()
    server = ServerThread(tmp_path / "other", tmp_path / "socket")
    url = server.url
    participants = {
        SOURCE: lambda: xaqueue.connect(space),
        TARGET: lambda: Connection(remote_manager(url, connect_s=0.0), fresh_id),
    }
    with xaqueue.connect(space) as connection, xaqueue.TransactionManager(tmp_path / "log", participants) as manager:
        with Forwarder("", "orders", "orders", tm=manager) as forwarder:
            put(connection, b"1")
            eventually(lambda: forwarder.done == 1)
            server.stop()
            eventually(lambda: "[worker-waits]" in caplog.text)
            put(connection, b"2")
            server = ServerThread(tmp_path / "other", tmp_path / "socket")
            eventually(lambda: forwarder.done == 2)
        assert forwarder.failed == 0
    with xaqueue.connect(server.url) as other:
        assert [one.body for one in other.browse("orders")] == [b"1", b"2"]
    server.stop()


def mistyped(target: str) -> None:
    with xaqueue.connect(target) as connection:
        put(connection, b"1", b"2")
        forwarder = Forwarder(target, "orders", "archvie", until_empty=True).start()
        with pytest.raises(xaqueue.UnknownQueue, match="xaqueue define archvie"):
            forwarder.join(PATIENCE_S)
        assert {one.tries for one in connection.browse("orders")} == {0}
        assert forwarder.failed == 0


def test_a_queue_that_is_not_there_costs_no_try(space: Path, tmp_path: Path) -> None:
    """Else a name that is mistyped would send all messages to the failure queue."""
    (space / "queues.toml").write_text("[queues.orders]\n")
    mistyped(str(space))
    server = ServerThread(space, tmp_path / "socket")
    mistyped(server.url)
    server.stop()


def test_a_right_that_is_missing_ends_it(space: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: object, __: str, bodies: list[object]) -> None:
        if bodies:
            raise xaqueue.AccessDenied("enqueue of queue 'archive' needs the right to produce")

    with xaqueue.connect(space) as connection:
        put(connection, *[b"x"] * 3)
        monkeypatch.setattr(Connection, "enqueue_many", refused)
        forwarder = Forwarder(str(space), "orders", "archive").start()
        with pytest.raises(xaqueue.AccessDenied):
            forwarder.join(PATIENCE_S)
        assert [one.tries for one in connection.browse("orders")] == [1, 1, 1], "once, and not until none is left"


def test_the_ends_are_written_into_a_log_that_is_to_be_made(space: Path, tmp_path: Path) -> None:
    log = tmp_path / "new" / "log"
    log.mkdir(parents=True)
    (log / f".{PARTICIPANTS}.new").write_text("a crash has left this")
    keep_participants(log, "# its ends\n")
    assert (log / PARTICIPANTS).read_text() == "# its ends\n"
    with xaqueue.TransactionManager(log, {SOURCE: lambda: xaqueue.connect(space)}):
        pass
    with pytest.raises(xaqueue.DecisionLogError, match="of another transaction manager"):
        keep_participants(log, "# others\n")
    with pytest.raises(xaqueue.DecisionLogError, match="other files"):
        keep_participants(space, "# its ends\n")
    assert not (space / PARTICIPANTS).exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(xaqueue.DecisionLogError, match="choose another directory"):
        keep_participants(tmp_path / "file", "# its ends\n")
