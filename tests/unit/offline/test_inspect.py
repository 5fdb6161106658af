"""The offline inspector: what a space is and holds, seen without owning it and while its owner works in it."""

from __future__ import annotations

import os
import threading
import time
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

import xaqueue
from xaqueue.core.engine.heuristics import decide
from xaqueue.core.engine.log import HELD_BYTES
from xaqueue.core.model import layout
from xaqueue.core.owner.definitions_file import write_definitions
from xaqueue.core.storage.ids import fresh_id
from xaqueue.errors import SpaceError, UnknownQueue
from xaqueue.features.opening import create
from xaqueue.features.session import Session, attach
from xaqueue.offline import queue_files
from xaqueue.offline.inspect import UNDEFINED, check_known, queue_list, status
from xaqueue.offline.inspect_branches import in_doubt
from xaqueue.rpc.methods import service
from xaqueue.xid import Xid

XID = Xid(7, b"gtrid", b"bqual")


@pytest.fixture
def space(tmp_path: Path) -> Path:
    root = tmp_path / "space"
    create(root, sync="NONE", any_queue=True)
    return root


def prepare(root: Path, xid: Xid = XID) -> tuple[bytes, bytes]:
    """A branch in doubt that adds a message to replies and holds one of orders: the ids of both."""
    with xaqueue.connect(root) as connection:
        held = connection.enqueue("orders", b"held")
        connection.commit()
        connection.tpc_begin(xid)
        added = connection.enqueue("replies", b"added", message_id=os.urandom(16))
        assert connection.dequeue("orders", message_id=held) is not None
        assert connection.tpc_prepare()
    return added, held


def test_a_new_space(space: Path) -> None:
    found = status(space)
    assert (found.format.name, found.owned, found.owner, found.recovery) == ("space", False, None, "")
    assert (found.sync, found.queues, found.complaint) == ("NONE", [], "")
    assert "power loss" in found.promise
    assert found.free_bytes > 0


def test_what_is_no_space_is_refused(tmp_path: Path) -> None:
    for look in (status, in_doubt, queue_list):
        with pytest.raises(SpaceError):
            look(tmp_path)


def test_the_next_sync_is_that_of_the_environment_before_that_of_the_definitions(
    space: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XAQUEUE_FLAGS", "FSYNC")
    assert status(space).sync == "FSYNC"


@pytest.mark.parametrize(
    ("flags", "level"),
    [
        ("FSYNC;DSYNC", "FSYNC;DSYNC"),
        ("RECON:*:3:100;fdatasync; DSYNC;NOJOIN", "FDATASYNC;DSYNC"),
        ("RECON:*:3:100", "JOURNAL"),
        ("", "JOURNAL"),
    ],
)
def test_what_nothing_else_says_is_taken_from_the_environment_of_enduro_x(
    tmp_path: Path, space: Path, flags: str, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of its flags those of its disk queue; the others are for its transaction manager."""
    monkeypatch.delenv("XAQUEUE_FLAGS", raising=False)
    monkeypatch.setenv("NDRX_XA_FLAGS", flags)
    create(tmp_path / "other", any_queue=True)
    with xaqueue.connect(tmp_path / "other"):
        assert status(tmp_path / "other").sync == level
    assert status(space).sync == "NONE"  # its queues.toml says so
    monkeypatch.setenv("XAQUEUE_FLAGS", "DSYNC")
    assert status(tmp_path / "other").sync == "DSYNC"


def test_an_owned_space_tells_its_owner_and_its_level(space: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with xaqueue.connect(space, sync="FDATASYNC"):
        monkeypatch.setenv("XAQUEUE_FLAGS", "FSYNC")
        found = status(space)
    assert found.owned
    assert found.owner is not None
    assert found.owner.pid == os.getpid()
    assert found.sync == "FDATASYNC"
    after = status(space)
    assert not after.owned
    assert after.owner is not None
    assert after.recovery.startswith("0 messages")


def test_queues_have_order_depth_and_watermark(space: Path) -> None:
    write_definitions(space, '[queues.orders]\norder = "lifo"\ndescription = "in"\n[queues.empty]\n')
    with xaqueue.connect(space) as connection:
        for _ in range(3):
            connection.enqueue("orders", b"x")
        connection.commit()
        connection.dequeue("orders")
        connection.commit()
    found = {queue.name: queue for queue in queue_list(space)}
    assert list(found) == ["empty", "orders"]
    assert (found["orders"].order, found["orders"].description) == ("lifo", "in")
    assert (found["orders"].depth, found["orders"].watermark) == (2, 3)
    assert (found["empty"].order, found["empty"].depth, found["empty"].watermark) == ("fifo", 0, 0)


@pytest.mark.parametrize("sync", ["NONE", "JOURNAL"])
def test_what_a_queue_has_is_told_alike_by_its_owner_and_its_files(tmp_path: Path, sync: str) -> None:
    create(tmp_path / "space", sync=sync, any_queue=True)
    write_definitions(tmp_path / "space", "[queues.orders]\n[queues.limited]\nmax_bytes = 1000000\n")
    with closing(attach(tmp_path / "space")) as session, xaqueue.Connection(session, fresh_id) as connection:
        began = time.time_ns() // 1000
        for queue in ("orders", "limited"):
            connection.enqueue(queue, b"x" * 100)
            connection.commit()
            for delay in (0, 0, 3600):
                connection.enqueue(queue, b"x" * 100, delay=timedelta(seconds=delay))
            connection.commit()
        connection.tpc_begin(XID)
        assert connection.dequeue("orders") is not None
        assert connection.tpc_prepare()
        other = xaqueue.Connection(Session(session.space), fresh_id)
        assert other.dequeue("limited") is not None
        own = {queue.name: queue for queue in service.queue_list(session.space)}
        seen = {queue.name: queue for queue in queue_list(tmp_path / "space")}
        for found in (own, seen):
            orders, limited = found["orders"], found["limited"]
            assert (orders.depth, orders.ready, orders.delayed, orders.held, orders.in_doubt) == (4, 2, 1, 1, 1)
            assert limited.depth == limited.ready + limited.delayed + limited.held == 4
            assert not orders.is_estimated
            assert orders.oldest is not None
            assert began <= orders.oldest <= time.time_ns() // 1000
            assert 4 * 100 < orders.size_bytes < 4 * 300
        other.close()
        assert own["limited"].held == 1
        assert {name: queue.size_bytes for name, queue in own.items()} == {
            name: queue.size_bytes for name, queue in seen.items()
        }


def test_of_very_many_messages_some_are_measured(space: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(attach(space)) as session, xaqueue.Connection(session, fresh_id) as connection:
        for _ in range(10):
            connection.enqueue("orders", b"x" * 100)
        connection.commit()
        exact = queue_list(space)[0].size_bytes
        monkeypatch.setattr(queue_files, "MEASURED", 4)
        for found in (queue_list(space), service.queue_list(session.space)):
            assert (found[0].size_bytes, found[0].is_estimated) == (exact, True)


def test_a_queue_with_messages_and_no_definition(space: Path) -> None:
    with xaqueue.connect(space) as connection:
        connection.enqueue("orders", b"x")
        connection.commit()
    write_definitions(space, "")
    assert queue_list(space)[0].order == UNDEFINED
    assert check_known(space, "orders") == "orders"
    with pytest.raises(UnknownQueue):
        check_known(space, "replies")


def test_an_unreadable_watermark_is_none(space: Path) -> None:
    prepare(space)
    (space / layout.watermark_path("orders")).write_bytes(b"?")
    assert queue_list(space)[0].watermark is None


def test_bad_definitions_are_complained_of(space: Path) -> None:
    (space / layout.QUEUES).write_text("[queues\n")
    assert "no TOML" in status(space).complaint


def test_a_branch_in_doubt_tells_what_it_adds_and_holds(space: Path) -> None:
    added, held = prepare(space)
    (branch,) = in_doubt(space)
    assert (branch.xid, branch.state, branch.damage, branch.decision) == (XID, "in doubt", [], None)
    assert branch.since > 1_600_000_000_000_000
    assert [(c.queue, c.message_id) for c in branch.added] == [("replies", added)]
    assert [(c.queue, c.message_id) for c in branch.held] == [("orders", held)]
    assert branch.added[0].size_bytes is not None
    found = status(space)
    assert (found.active, found.in_doubt, found.damaged, found.heuristic) == (0, 1, 0, 0)


def test_an_active_branch_is_counted_and_not_in_doubt(space: Path) -> None:
    with xaqueue.connect(space) as connection:
        connection.enqueue("orders", b"x")
        assert status(space).active == 0, "that is in memory"
        connection.enqueue("orders", bytes(HELD_BYTES + 1))
        assert status(space).active == 1
        assert in_doubt(space) == []


def test_a_committing_branch_is_told(space: Path) -> None:
    prepare(space)
    first = space / layout.block_path(layout.PREPARED, str(XID), "000")
    first.rename(first.with_suffix(".commit"))
    (branch,) = in_doubt(space)
    assert (branch.state, len(branch.added), len(branch.held)) == ("committing", 1, 1)
    assert (status(space).in_doubt, status(space).committing) == (0, 1)
    (orders,) = queue_list(space)
    assert (orders.ready, orders.held, orders.in_doubt, orders.locked, orders.consumers) == (0, 1, 0, 1, 0)


def test_what_only_the_owner_knows_is_not_told_by_files(space: Path) -> None:
    with xaqueue.connect(space) as connection:
        connection.enqueue("orders", b"x")
        connection.commit()
        assert connection.dequeue("orders") is not None
        (orders,) = queue_list(space)
        assert (orders.ready, orders.held, orders.locked, orders.consumers) == (1, 0, None, None)


def test_an_incomplete_branch_is_promised_to_nobody(space: Path) -> None:
    prepare(space)
    (space / layout.block_path(layout.PREPARED, str(XID), "000")).unlink()
    assert in_doubt(space) == []


@pytest.mark.parametrize("suffix", ["000", "001"])
def test_damage_is_told_before_and_after_quarantine(space: Path, suffix: str) -> None:
    prepare(space)
    path = space / layout.block_path(layout.PREPARED, str(XID), suffix)
    path.write_bytes(path.read_bytes()[:-1])
    (branch,) = in_doubt(space)
    assert [text.partition(":")[0] for text in branch.damage] == [f"prepared/{XID}.{suffix}"]
    attach(space, watch=False).close()
    (branch,) = in_doubt(space)
    assert branch.damage == [f"quarantine/prepared.{XID}.{suffix}"]
    assert status(space).damaged == 1
    assert status(space).quarantined == 1


@pytest.mark.parametrize(("commit", "state"), [(True, "heuristically committed"), (False, "heuristically rolled back")])
def test_a_decision_is_told_until_it_is_forgotten(space: Path, commit: bool, state: str) -> None:
    added, held = prepare(space)
    session = attach(space, watch=False)
    decide(session.space, XID, commit, "me@here")
    (branch,) = in_doubt(space)
    assert branch.state == state
    assert branch.decision is not None
    assert (branch.decision.by, branch.since) == ("me@here", branch.decision.at)
    assert [content.message_id for content in (*branch.added, *branch.held)] == [added, held]
    assert status(space).heuristic == 1
    session.forget(XID)
    session.close()
    assert in_doubt(space) == []


def test_a_damaged_decision_is_told(space: Path) -> None:
    (space / layout.HEURISTIC / str(XID)).write_bytes(b"?")
    (branch,) = in_doubt(space)
    assert branch.state == "decided, and the record is damaged"


def test_a_space_at_work_can_be_looked_at(space: Path) -> None:
    stop = threading.Event()

    def work(number: int) -> None:
        with xaqueue.connect(space) as connection:
            while not stop.is_set():
                connection.tpc_begin(Xid(number, os.urandom(8), b""))
                connection.enqueue("orders", b"x")
                connection.dequeue("orders")
                connection.dequeue("orders")
                connection.tpc_prepare()
                connection.tpc_commit()

    workers = [threading.Thread(target=work, args=(number,)) for number in (1, 2)]
    with xaqueue.connect(space):
        for worker in workers:
            worker.start()
        try:
            for _ in range(30):
                assert status(space).damaged == 0
                assert all(not branch.damage for branch in in_doubt(space))
        finally:
            stop.set()
            for worker in workers:
                worker.join()
