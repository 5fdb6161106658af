"""A server says who is connected to it: since when, what each waits for, and which branches it holds."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import xaqueue
from support.contract_connection import PATIENCE_S, QUEUES, put
from support.patience import eventually
from support.served import ServerThread
from xaqueue.access import Identity
from xaqueue.connection import Connection
from xaqueue.core.owner.definitions_file import write_definitions
from xaqueue.errors import UnknownQueue
from xaqueue.features.opening import create
from xaqueue.features.session import Session
from xaqueue.rpc import wire
from xaqueue.rpc.client.manager import remote_manager
from xaqueue.rpc.methods import sessions
from xaqueue.rpc.methods.service import RemoteOperator
from xaqueue.rpc.methods.sessions import SessionStatus
from xaqueue.xa import Vote
from xaqueue.xid import Xid

SHORT = "\n[queues.short]\nmax_messages = 1\nwhen_full = 'wait'\n"


@pytest.fixture(params=["FDATASYNC;DSYNC", "JOURNAL"])
def server(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[ServerThread]:
    create(tmp_path / "space")
    write_definitions(tmp_path / "space", QUEUES + SHORT)
    made = ServerThread(tmp_path / "space", tmp_path / "socket", sync=request.param)
    yield made
    made.stop()


@pytest.fixture
def operator(server: ServerThread) -> Iterator[RemoteOperator]:
    manager = remote_manager(server.url)
    yield RemoteOperator(manager)
    manager.close()


@pytest.fixture
def user(server: ServerThread, operator: RemoteOperator) -> Iterator[Connection]:
    """Connected after the operator."""
    operator.sessions()
    with xaqueue.connect(server.url) as connection:
        yield connection


def seen(operator: RemoteOperator, wanted: Callable[[SessionStatus], bool]) -> SessionStatus:
    """That of the user, as soon as it is as wanted."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        found = operator.sessions()
        if len(found) == 2 and wanted(found[1]):
            return found[1]
        assert time.monotonic() < deadline, found


def in_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_who_is_connected_and_since_when(operator: RemoteOperator, user: Connection) -> None:
    began = time.time_ns() // 1000
    list(user.browse("orders"))
    own, other = operator.sessions()
    assert own.since < other.since
    assert abs(other.since - began) < PATIENCE_S * 1e6
    assert (other.who, other.address, other.transport, other.protocol) == (own.who, "", "unix", wire.PROTOCOL)
    assert own.who.startswith("user:")
    assert (own.asks, other.asks, own.pid, other.pid) == (True, False, os.getpid(), os.getpid())
    assert 0 < own.number < other.number
    assert own.heard >= other.heard >= other.since
    assert (other.waits_for, other.waits_since, other.holds, other.branches) == ("", 0, 0, [])
    list(user.browse("orders"))
    assert operator.sessions()[1].calls == other.calls + 1
    user.close()
    while len(operator.sessions()) == 2:
        pass


@pytest.mark.parametrize("receives", [False, True])
def test_who_waits_for_a_message(
    server: ServerThread, operator: RemoteOperator, user: Connection, receives: bool
) -> None:
    """A wait before is over, and nothing of it is told."""
    assert user.dequeue("replies", wait_s=0.01) is None
    user.rollback()
    began = time.time_ns() // 1000
    waiting = in_thread(
        lambda: user.receive("orders", wait_s=PATIENCE_S) if receives else user.dequeue("orders", wait_s=PATIENCE_S)
    )
    found = seen(operator, lambda one: bool(one.waits_for))
    assert found.waits_for == "orders"
    assert began <= found.waits_since <= time.time_ns() // 1000
    seen(operator, lambda one: bool(one.waits_for) and one.heard > found.heard)  # it is not idle while it waits
    with xaqueue.connect(server.url) as other:
        put(other, b"x")
    waiting.join(PATIENCE_S)
    found = seen(operator, lambda one: not one.waits_for and any(branch.messages for branch in one.branches))
    assert found.waits_since == 0
    assert ("on lease" in [branch.state for branch in found.branches]) is receives


def test_who_waits_for_room(server: ServerThread, operator: RemoteOperator, user: Connection) -> None:
    put(user, b"x", queue="short")

    def add() -> None:
        user.enqueue("short", b"y")
        user.commit()

    waiting = in_thread(add)
    assert seen(operator, lambda one: bool(one.waits_for)).waits_since > 0
    with xaqueue.connect(server.url) as other:
        assert other.dequeue("short") is not None
        other.commit()
    waiting.join(PATIENCE_S)
    assert not seen(operator, lambda one: not one.waits_for).waits_since


def test_which_branches_a_session_holds(
    operator: RemoteOperator, user: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "LISTED", 2)
    began = time.time_ns() // 1000
    manager = user._manager
    for number in range(4):
        xid = Xid(7, b"%d" % number, b"b")
        manager.start(xid)
        for _ in range(number + 1):
            manager.enqueue("orders", b"x")
        if number < 3:
            manager.end(xid)
            assert manager.prepare(xid) is Vote.OK
    manager.flush()
    found = seen(operator, lambda one: one.holds == 4)
    assert [(one.xid.gtrid, one.state, one.messages) for one in found.branches] == [
        (b"0", "in doubt", 1),
        (b"1", "in doubt", 2),
    ]
    assert began <= found.branches[0].since <= found.branches[1].since
    monkeypatch.undo()
    held = seen(operator, lambda one: True).branches
    assert [one.state for one in held] == ["in doubt"] * 3 + ["active"]


@pytest.mark.parametrize("prepares", [False, True])
def test_a_branch_has_each_message_that_lies_in_a_block(
    operator: RemoteOperator, user: Connection, prepares: bool
) -> None:
    """Come together, or taken together."""
    user.define("orders", blocks="many")
    user.enqueue_many("orders", [b"x"] * 30)
    user.commit()
    manager: Any = user._manager
    xid = Xid(7, b"1", b"b")
    manager.start(xid)
    manager.enqueue_many("orders", [b"y"] * 20)
    manager.enqueue("orders", b"z")
    assert len(manager.dequeue_many("orders", 10)) == 10
    if prepares:
        manager.end(xid)
        assert manager.prepare(xid) is Vote.OK
    (branch,) = seen(operator, lambda one: one.holds == 1).branches
    assert branch.messages == 31
    if prepares:
        assert [one["in_doubt"] for one in manager.status()["queues"] if one["name"] == "orders"] == [10]


def test_of_very_many_branches_each_is_that_of_whoever_holds_it(
    server: ServerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A branch that nobody connected holds is nobody's. They are looked at in pieces."""
    monkeypatch.setattr(sessions, "PIECE", 1)
    space = server.space
    one, other = Session(space), Session(space)
    one.start(Xid(7, b"one", b"b"))
    other.start(Xid(7, b"other", b"b"))
    status = SessionStatus(str(Identity()), "", "unix", 1, 2, 3)
    (found,) = server.call(lambda: sessions.with_work(space, [(status, one)]))
    assert [branch.xid.gtrid for branch in found.branches] == [b"one"]
    one.close()
    other.close()


def test_a_session_that_has_said_goodbye_is_not_called_lost(
    server: ServerThread, operator: RemoteOperator, caplog: pytest.LogCaptureFixture
) -> None:
    """A queue that was misspelled made a warning in the server's log; who hangs up in the middle does."""
    manager = remote_manager(server.url)
    manager.start(Xid(1, b"lost", b""))
    manager.enqueue("orders", b"x")
    manager.flush()
    seen(operator, lambda one: bool(one.branches))
    manager.drop()
    with pytest.raises(UnknownQueue), xaqueue.connect(server.url) as connection:
        connection.enqueue("odrers", b"x")
    eventually(lambda: len(operator.sessions()) <= 1)
    (told,) = [record.getMessage() for record in caplog.records if "[session-lost]" in record.getMessage()]
    assert str(Xid(1, b"lost", b"")) in told
