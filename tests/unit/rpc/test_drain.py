"""A drained space begins no new branch, and lets those that are there be finished."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import xaqueue
from support.contract_connection import PATIENCE_S, QUEUES, bodies, put
from support.served import ServerThread
from xaqueue.cli.exit_codes import ExitCode
from xaqueue.cli.main import app
from xaqueue.connection import Connection
from xaqueue.core.owner import definitions_file
from xaqueue.errors import DuplicateXid, InvalidArgument, RolledBack
from xaqueue.features.opening import create
from xaqueue.message import Message
from xaqueue.rpc.client.manager import RemoteManager, remote_manager
from xaqueue.xa import Code, Flag
from xaqueue.xid import Xid

XID = Xid(1, b"drained", b"")
OTHER = Xid(1, b"other", b"")


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServerThread]:
    root = tmp_path / "space"
    create(root)
    definitions_file.write_definitions(root, QUEUES)
    made = ServerThread(root, tmp_path / "socket", sync="NONE")
    yield made
    made.stop()


@pytest.fixture
def connection(served: ServerThread) -> Iterator[Connection]:
    with xaqueue.connect(served.url) as made:
        yield made


@pytest.fixture
def manager(served: ServerThread) -> Iterator[RemoteManager]:
    made = remote_manager(served.url)
    yield made
    made.close()


def drain(served: ServerThread, *words: str, code: ExitCode = ExitCode.OK) -> str:
    """What the command says."""
    result = CliRunner().invoke(app, ["drain", "--space", served.url, *words])
    assert result.exit_code == code, (result.output, result.exception)
    return result.stdout


def test_new_branches_are_refused_as_what_may_be_done_again(connection: Connection, manager: RemoteManager) -> None:
    manager.call("drain", True)
    for finish in (connection.commit, connection.flush):
        connection.enqueue("orders", b"x")
        with pytest.raises(RolledBack, match="drain --resume") as told:
            finish()
        assert told.value.code is Code.XA_RBTRANSIENT
        connection.rollback()
    for method in ("tpc_prepare", "tpc_commit"):
        connection.tpc_begin(XID)
        with pytest.raises(RolledBack) as told:
            getattr(connection, method)()
        assert told.value.code is Code.XA_RBTRANSIENT
    manager.call("drain", False)
    put(connection, b"x")
    assert bodies(connection) == [b"x"]


def test_what_is_there_goes_on(served: ServerThread, connection: Connection, manager: RemoteManager) -> None:
    put(connection, b"there")
    connection.tpc_begin(XID)
    connection.flush()
    manager.call("drain", True)
    connection.enqueue("orders", b"x")
    assert connection.dequeue("orders") is not None
    connection.tpc_end(flags=Flag.SUSPEND | Flag.MIGRATE)
    with xaqueue.connect(served.url) as other:
        other.tpc_begin(XID)
        with pytest.raises(DuplicateXid):
            other.flush()
        other.tpc_begin(XID, Flag.RESUME)
        other.enqueue("orders", b"y")
        assert other.tpc_prepare()
        assert other.tpc_recover() == [XID]
    connection.tpc_commit(XID)
    assert bodies(connection) == [b"x", b"y"]


def test_it_tells_what_is_left(connection: Connection, manager: RemoteManager) -> None:
    connection.tpc_begin(XID)
    connection.enqueue("orders", b"x")
    connection.tpc_prepare()
    manager.start(OTHER)
    told = manager.call("drain")
    assert (told["draining"], told["active"], told["in_doubt"]) == (False, 1, 1)
    assert [(branch["xid"], branch["state"]) for branch in told["left"]] == [
        ([*XID], "in doubt"),
        ([*OTHER], "active"),
    ]
    assert all(branch["since"] > 0 for branch in told["left"])
    manager.end(OTHER)
    manager.rollback(OTHER)
    connection.tpc_commit()
    assert manager.call("drain", True) == {"draining": True, "active": 0, "in_doubt": 0, "left": []}


def test_who_waits_for_a_message_does_not_hold_it_up(served: ServerThread, manager: RemoteManager) -> None:
    got: list[Message | None] = []

    def consume() -> None:
        with xaqueue.connect(served.url) as consumer:
            got.append(consumer.dequeue("orders", wait_s=PATIENCE_S))

    waiting = threading.Thread(target=consume)
    waiting.start()
    while not manager.call("drain")["active"]:
        pass
    manager.call("drain", True)
    waiting.join(PATIENCE_S)
    assert got == [None]


@pytest.mark.parametrize("given", [1, "on", []])
def test_a_wrong_value_changes_nothing(manager: RemoteManager, given: Any) -> None:
    with pytest.raises(InvalidArgument):
        manager.call("drain", given)
    assert manager.call("drain")["draining"] is False


# The command


def test_the_command_drains_and_resumes(served: ServerThread, connection: Connection) -> None:
    put(connection, b"x")
    assert "is drained: nothing is active or in doubt" in drain(served)
    assert served.space.draining
    connection.enqueue("orders", b"y")
    with pytest.raises(RolledBack):
        connection.commit()
    assert "takes new branches again" in drain(served, "--resume")
    put(connection, b"z")
    assert json.loads(drain(served, "--json")) == {
        "draining": True,
        "active": 0,
        "in_doubt": 0,
        "left": [],
        "drained": True,
    }
    assert json.loads(drain(served, "--resume", "--json"))["draining"] is False


def test_the_command_says_what_is_left_when_its_time_is_over(served: ServerThread, connection: Connection) -> None:
    connection.tpc_begin(XID)
    connection.enqueue("orders", b"x")
    connection.tpc_prepare()
    told = drain(served, "--timeout", "0", code=ExitCode.NOTHING).splitlines()
    assert told[0] == "0 branches are active, 1 in doubt"
    assert told[1].split() == ["xid", "state", "age"]
    assert told[2].startswith(f"{XID}  in doubt  ")
    assert "--resume" in told[-1]
    assert served.space.draining
    parsed = json.loads(drain(served, "--timeout", "0", "--json", code=ExitCode.NOTHING))
    assert (parsed["drained"], parsed["in_doubt"]) == (False, 1)
    assert [(branch["xid"], branch["state"]) for branch in parsed["left"]] == [(str(XID), "in doubt")]


def test_the_command_waits(served: ServerThread, connection: Connection) -> None:
    connection.tpc_begin(XID)
    connection.enqueue("orders", b"x")
    connection.flush()
    said: list[str] = []
    waiting = threading.Thread(target=lambda: said.append(drain(served, "--timeout", str(PATIENCE_S))))
    waiting.start()
    while not served.space.draining:
        pass
    connection.tpc_prepare()
    connection.tpc_commit()
    waiting.join(PATIENCE_S)
    assert not waiting.is_alive()
    assert "is drained" in said[0]
    assert bodies(connection) == [b"x"]


def test_the_command_finds_the_server_of_a_directory(served: ServerThread) -> None:
    result = CliRunner().invoke(app, ["drain", "--space", str(served.root)])
    assert (result.exit_code, served.space.draining) == (ExitCode.OK, True), result.output


def test_a_directory_that_nobody_serves_cannot_be_drained(tmp_path: Path) -> None:
    create(tmp_path / "space")
    result = CliRunner().invoke(app, ["drain", "--space", str(tmp_path / "space")])
    assert result.exit_code == ExitCode.USAGE
    assert "is not being served" in result.stderr
