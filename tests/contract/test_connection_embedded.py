"""The embedded connection keeps the contract of all connections, and shows what only the owner of a space can see."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from support.contract_connection import (
    PATIENCE_S,
    block_files,
    bodies,
    drain,
    put,
)
from support.contract_whole import WholeContract
from support.patience import eventually
from support.served import STRICT, EmbeddedHost
from xaqueue.connection import Connection
from xaqueue.core.engine.state import Space
from xaqueue.core.model import definitions
from xaqueue.core.model.definitions import MANY, ONE
from xaqueue.core.model.layout import COMMITTED, RANGE_SIZE
from xaqueue.errors import DiskFull, OperationalError, ProtocolError, ResourceFailed, RetryLater, RolledBack
from xaqueue.offline.reader import QueueReader


@pytest.fixture
def host(tmp_path: Path) -> Iterator[EmbeddedHost]:
    made = EmbeddedHost(tmp_path / "space")
    yield made
    made.restart()


class TestConnection(WholeContract):
    """At either kind of log, with a file for each message and with many in one."""

    @pytest.fixture(params=[(sync, blocks) for sync in (STRICT, "JOURNAL") for blocks in (ONE, MANY)], ids=" ".join)
    def host(
        self, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[EmbeddedHost]:
        sync, blocks = request.param
        monkeypatch.setattr(definitions, "BLOCKS", blocks)
        made = EmbeddedHost(tmp_path / "space", sync)
        yield made
        made.restart()


def refuse(monkeypatch: pytest.MonkeyPatch, space: Space, call: str, code: int, into: str = "") -> None:
    """The next such call of the space's port, or the next into this directory, fails with this error: the reserve did
    not help it."""
    real = getattr(space.fs, call)
    failed: list[str] = []

    def failing(path: str, *arguments: object) -> object:
        if not failed and (not into or str(arguments[0]).startswith(into)):
            failed.append(path)
            raise OSError(code, os.strerror(code), path)
        return real(path, *arguments)

    if call == "sync_data":  # the log looked it up when it was made
        monkeypatch.setattr(space.log, "_sync_content", failing)
    else:
        monkeypatch.setattr(space.fs, call, failing)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EMFILE])
def test_no_room_for_a_message(host: EmbeddedHost, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """22: the operating system's error, a branch that can only be rolled back, nothing leaked, others go on."""
    connection, other = host.connect(), host.connect()
    put(connection, b"there")
    assert connection.dequeue("orders") is not None
    refuse(monkeypatch, host.space, "create", code)
    with pytest.raises(DiskFull, match=os.strerror(code)):
        connection.enqueue("orders", b"new")
    put(other, b"other's")
    with pytest.raises(RolledBack):
        connection.enqueue("orders", b"again")
    with pytest.raises(RolledBack):
        connection.commit()
    assert bodies(connection) == [b"there", b"other's"]
    assert block_files(host.root) == []
    assert drain(connection) == [b"there", b"other's"]


def test_no_room_for_a_message_after_which_it_is_rolled_back(
    host: EmbeddedHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = host.connect()
    refuse(monkeypatch, host.space, "create", errno.ENOSPC)
    with pytest.raises(DiskFull):
        connection.enqueue("orders", b"new")
    connection.rollback()
    put(connection, b"new")
    assert bodies(connection) == [b"new"]


def test_a_message_is_taken_without_room_for_a_block(host: EmbeddedHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """22: consuming is what makes room."""
    connection = host.connect()
    put(connection, b"there")
    refuse(monkeypatch, host.space, "create", errno.ENOSPC)
    assert connection.dequeue("orders") is not None
    connection.commit()
    host.kill()
    assert drain(host.connect()) == []


@pytest.mark.parametrize("two_phase", [True, False])
def test_a_message_is_taken_without_room_for_a_block_beside_other_work(
    host: EmbeddedHost, monkeypatch: pytest.MonkeyPatch, two_phase: bool
) -> None:
    """22: its block is written when the branch is prepared, if need be from the reserve."""
    connection = host.connect()
    put(connection, b"1", b"2")
    if two_phase:
        connection.tpc_begin(connection.xid(1, "x", ""))
    assert connection.dequeue("orders") is not None
    refuse(monkeypatch, host.space, "create", errno.ENOSPC)
    assert connection.dequeue("orders") is not None
    if two_phase:
        connection.tpc_prepare()
        host.kill()
        connection = host.connect()
        (xid,) = connection.tpc_recover()
        connection.tpc_commit(xid)
    else:
        connection.commit()
    assert block_files(host.root) == []
    host.kill()
    assert drain(host.connect()) == []


@pytest.mark.parametrize("work", ["enqueue", "dequeue"])
def test_a_failed_write_fences(host: EmbeddedHost, monkeypatch: pytest.MonkeyPatch, work: str) -> None:
    """22, crash rule 8: an error of the disk is not a lack of room."""
    connection = host.connect()
    put(connection, b"there")
    refuse(monkeypatch, host.space, "create", errno.EIO)
    arguments = ("orders", b"new") if work == "enqueue" else ("orders",)
    with pytest.raises(ResourceFailed, match="Input/output error"):
        getattr(connection, work)(*arguments)
    with pytest.raises(ResourceFailed):
        connection.commit()
    host.restart()
    assert drain(host.connect()) == [b"there"]


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("two_phase", [True, False])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EMFILE])
def test_a_commit_that_finds_no_room_succeeds_when_it_is_tried_again(
    host: EmbeddedHost, monkeypatch: pytest.MonkeyPatch, count: int, two_phase: bool, code: int
) -> None:
    """27: retryable, and nothing is lost."""
    connection = host.connect()
    if two_phase:
        connection.tpc_begin(connection.xid(1, "x", ""))
    for number in range(count):
        connection.enqueue("orders", b"%d" % number)
    if two_phase:
        connection.tpc_prepare()
    finish = connection.tpc_commit if two_phase else connection.commit
    refuse(monkeypatch, host.space, "make_dir", code)
    with pytest.raises(RetryLater, match="commit again"):
        finish()
    finish()
    assert bodies(connection) == [b"%d" % number for number in range(count)]
    host.kill()
    assert bodies(host.connect()) == [b"%d" % number for number in range(count)]


@pytest.mark.parametrize("count", [1, 3])
def test_a_commit_that_finds_no_room_may_be_rolled_back(
    host: EmbeddedHost, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    connection = host.connect()
    for number in range(count):
        connection.enqueue("orders", b"%d" % number)
    refuse(monkeypatch, host.space, "make_dir", errno.ENOSPC)
    with pytest.raises(RetryLater):
        connection.commit()
    connection.rollback()
    assert bodies(connection) == []
    assert block_files(host.root) == []
    put(connection, b"goes on")


@pytest.mark.parametrize("two_phase", [True, False])
def test_a_commit_that_finds_no_room_behind_its_commit_point_goes_forward_only(
    host: EmbeddedHost, monkeypatch: pytest.MonkeyPatch, two_phase: bool
) -> None:
    """The directory of the queue cannot grow by the names of its messages."""
    connection = host.connect()
    put(connection, b"first")
    begin_at_the_edge(connection, host.space, two_phase=two_phase)
    refuse(monkeypatch, host.space, "rename", errno.ENOSPC, into=COMMITTED)
    with pytest.raises(RetryLater, match="commit again"):
        connection.tpc_commit()
    with pytest.raises(ProtocolError, match="past its commit point"):
        connection.tpc_rollback()
    assert bodies(connection) == [b"first"]
    connection.tpc_commit()
    expected = [b"first", b"0", b"1", b"2", b"3"]
    assert bodies(connection) == expected
    host.kill()
    assert bodies(host.connect()) == expected
    assert block_files(host.root) == []


@pytest.mark.parametrize("two_phase", [True, False])
@pytest.mark.parametrize("verb", ["tpc_commit", "tpc_rollback"])
def test_a_commit_that_finds_no_room_for_a_range_has_not_begun(
    host: EmbeddedHost, monkeypatch: pytest.MonkeyPatch, two_phase: bool, verb: str
) -> None:
    """The branch goes over the edge of a range: the directory of the next one is made before the commit point."""
    connection = host.connect()
    put(connection, b"first")
    begin_at_the_edge(connection, host.space, two_phase=two_phase)
    refuse(monkeypatch, host.space, "make_dir", errno.ENOSPC)
    with pytest.raises(RetryLater, match="commit again"):
        connection.tpc_commit()
    assert bodies(connection) == [b"first"]
    getattr(connection, verb)()
    expected = [b"first", b"0", b"1", b"2", b"3"] if verb == "tpc_commit" else [b"first"]
    assert bodies(connection) == expected
    host.kill()
    assert bodies(host.connect()) == expected
    assert block_files(host.root) == []


def begin_at_the_edge(connection: Connection, space: Space, *, two_phase: bool) -> None:
    """A branch whose messages go over the edge of a range is prepared, or is about to be committed in one phase."""
    space.queues["orders"].last = RANGE_SIZE - 2
    connection.tpc_begin(connection.xid(1, "x", ""))
    for number in range(4):
        connection.enqueue("orders", b"%d" % number)
    if two_phase:
        connection.tpc_prepare()


@pytest.mark.parametrize("call", ["sync_data", "sync_dir"])
def test_a_failed_sync_fences_until_the_space_is_opened_again(
    host: EmbeddedHost, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Crash rule 8."""
    connection, other = host.connect(), host.connect()
    put(other, b"before")
    connection.enqueue("orders", b"uncertain")
    refuse(monkeypatch, host.space, call, errno.EIO)
    with pytest.raises(ResourceFailed, match="Input/output error"):
        connection.commit()
    calls: list[Callable[[], object]] = [connection.rollback, lambda: put(other, b"after"), lambda: drain(other)]
    for call_after in calls:
        with pytest.raises(ResourceFailed):
            call_after()
    host.restart()
    again = host.connect()
    assert bodies(again) in ([b"before"], [b"before", b"uncertain"])
    put(again, b"after")


def test_a_waiter_for_something_else_does_not_swallow_the_wake_up(host: EmbeddedHost) -> None:
    """Two wait at one queue, the first for another correlation id; what is rolled back is for the second."""
    holder = host.connect()
    put(holder, b"x")
    assert holder.dequeue("orders") is not None
    arrived = host.space.queues["orders"].arrived
    done = threading.Event()

    def waiters(count: int) -> bool:
        pause = threading.Event()
        while len(arrived._waiters) < count and not done.is_set():  # type: ignore[attr-defined]
            pause.wait(0.001)
        return True

    with ThreadPoolExecutor(2) as pool:
        picky, any_message = host.connect(), host.connect()
        never = pool.submit(picky.dequeue, "orders", wait_s=PATIENCE_S, correlation_id=b"other")
        assert waiters(1)
        found = pool.submit(any_message.dequeue, "orders", wait_s=PATIENCE_S)
        assert waiters(2)
        holder.rollback()
        try:
            message = found.result(PATIENCE_S / 4)
        finally:
            put(holder, b"for the picky one", correlation_id=b"other")
        assert message is not None
        assert message.body == b"x"
        assert never.result(PATIENCE_S) is not None


def test_a_waiter_is_told_when_the_space_is_fenced(host: EmbeddedHost) -> None:
    connection = host.connect()
    put(connection, b"x")
    assert connection.dequeue("orders") is not None
    arrived = host.space.queues["orders"].arrived
    waiter = host.connect()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(waiter.dequeue, "orders", wait_s=PATIENCE_S)
        pause = threading.Event()
        while not arrived._waiters:  # type: ignore[attr-defined]
            pause.wait(0.001)
        host.space.close()
        with pytest.raises(OperationalError):
            waiting.result(PATIENCE_S)


def test_the_watermark_shows_whole_branches(host: EmbeddedHost) -> None:
    """26: neither does a reader of the directory ever see a strict subset of a branch."""
    size, branches = 100, 5
    producer, reader, done = host.connect(), QueueReader(host.root, "orders"), threading.Event()

    def look() -> list[tuple[int, int]]:
        seen = []
        while not done.is_set():
            upto = reader.watermark()
            seen.append((upto, sum(1 for _ in reader.read(0, upto))))
        return seen

    with ThreadPoolExecutor(1) as pool:
        looking = pool.submit(look)
        try:
            for number in range(branches):
                producer.tpc_begin(producer.xid(1, str(number), ""))
                for message in range(size):
                    producer.enqueue("orders", b"%d" % message)
                producer.tpc_prepare()
                producer.tpc_commit()
        finally:
            done.set()
        assert [(upto, count) for upto, count in looking.result(PATIENCE_S) if upto % size or count != upto] == []
    assert reader.watermark() == size * branches


def test_expired_messages_are_removed_and_never_delivered(host: EmbeddedHost) -> None:
    connection = host.connect()
    put(connection, b"late", ttl=0.05)
    time.sleep(0.06)
    put(connection, b"x")
    assert drain(connection) == [b"x"]
    connection.commit()
    eventually(lambda: not list((host.root / "committed").rglob("*.????????????????????????????????")))


@pytest.mark.parametrize("close_first", [True, False])
def test_close_of_a_fenced_connection_is_quiet(host: EmbeddedHost, close_first: bool) -> None:
    connection, other = host.connect(), host.connect()
    connection.tpc_begin(connection.xid(1, "x", ""))
    connection.enqueue("orders", b"x")
    connection.tpc_end()
    other.enqueue("orders", b"y")
    host.space.log.fail(OSError(errno.EIO, "Input/output error"))
    order: list[Callable[[], None]] = [connection.close, other.close]
    for close in order if close_first else order[::-1]:
        close()
    assert bodies(host.connect()) == []
