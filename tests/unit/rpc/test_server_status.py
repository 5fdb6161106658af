"""What a server tells of its space is what its directory tells, with the same keys."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import xaqueue
from support.contract_connection import PATIENCE_S, QUEUES, put
from support.served import ServerThread
from xaqueue.cli.main import app
from xaqueue.connection import Connection
from xaqueue.core.engine import heuristics
from xaqueue.core.model.branch import Branch
from xaqueue.core.owner import definitions_file
from xaqueue.features.counters import counters as counter_files
from xaqueue.features.opening import create
from xaqueue.offline import inspect
from xaqueue.rpc.client.manager import remote_manager
from xaqueue.rpc.methods import service
from xaqueue.rpc.methods.service import queue_list, status_of
from xaqueue.rpc.wire import MalformedFrame
from xaqueue.xid import Xid

MORE = {"sessions", "waiting", "draining", "in_doubt_age"}
CHANGING = {"free_bytes", "free_inodes"}


@pytest.fixture(params=["FDATASYNC;DSYNC", "JOURNAL"])
def served(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[ServerThread]:
    root = tmp_path / "space"
    create(root)
    definitions_file.write_definitions(root, QUEUES)
    made = ServerThread(root, tmp_path / "socket", sync=request.param)
    yield made
    made.stop()


@pytest.fixture
def connection(served: ServerThread) -> Iterator[Connection]:
    with xaqueue.connect(served.url) as made:
        yield made


def told(served: ServerThread) -> dict[str, Any]:
    manager = remote_manager(served.url)
    try:
        return manager.status()
    finally:
        manager.close()


def fill(connection: Connection, served: ServerThread) -> None:
    """Messages, one branch in doubt, one that an operator decided, one at work."""
    put(connection, b"1", b"2", b"3")
    put(connection, b"4", queue="stack")
    for name in (b"in doubt", b"decided"):
        connection.tpc_begin(Xid(1, name, b""))
        connection.enqueue("orders", b"x")
        connection.tpc_prepare()
        if name == b"decided":
            heuristics.decide(served.space, Xid(1, name, b""), True, "test")
        connection.close()
        connection = xaqueue.connect(served.url)
    assert connection.dequeue("orders") is not None
    connection._manager._socket.close()  # type: ignore[attr-defined]


def test_it_is_what_the_directory_tells(served: ServerThread, connection: Connection) -> None:
    fill(connection, served)
    while told(served)["active"]:
        pass  # until it has seen that the last session is gone
    served.space.checkpoint()
    counter_files.write(served.space)
    answered = told(served)
    seen = json.loads(json.dumps(asdict(inspect.status(served.root))))
    assert answered.keys() == seen.keys() | MORE
    assert answered["cache"] is None or sum(answered["cache"]) >= 0
    for status in (answered, seen):
        for name in ("as_of", "hits", "misses"):
            assert status["counting"].pop(name) >= 0
    asked, read = ([queue.pop("consumers") for queue in status["queues"]] for status in (answered, seen))
    assert (asked, read) == ([0] * 4, [None] * 4), "only the owner knows who waits"
    for name in seen.keys() - CHANGING - {"cache"}:
        assert answered[name] == seen[name], name
    assert (answered["in_doubt"], answered["heuristic"], answered["state"]) == (1, 1, "ready")
    assert {queue["name"]: queue["depth"] for queue in answered["queues"]} == {
        "orders": 4,
        "replies": 0,
        "stack": 1,
        "urgent": 0,
    }


def test_it_counts_sessions_and_branches(served: ServerThread, connection: Connection) -> None:
    connection.enqueue("orders", b"x")
    connection.flush()
    first = told(served)
    assert (first["sessions"], first["active"], first["waiting"], first["draining"]) == (2, 1, 0, False)

    def wait() -> None:
        with xaqueue.connect(served.url) as other:
            other.dequeue("replies", wait_s=PATIENCE_S)

    waiting = threading.Thread(target=wait)
    waiting.start()
    while not told(served)["waiting"]:
        pass
    served.space.draining = True
    waiting.join(PATIENCE_S)
    last = told(served)
    assert (last["waiting"], last["draining"]) == (0, True)


def test_a_wrong_edit_of_the_definitions_is_told(served: ServerThread) -> None:
    definitions_file.write_definitions(served.root, "[queues.orders]\norder = 'sideways'\n")
    assert "sideways" in told(served)["complaint"]


def test_it_is_made_a_status_again(served: ServerThread, connection: Connection) -> None:
    put(connection, b"x")
    answered = told(served)
    again = asdict(status_of(answered))
    assert json.loads(json.dumps(again)) == {name: answered[name] for name in answered.keys() - MORE}


@pytest.mark.parametrize("wrong", [{}, {"queues": 1}, {"owner": 3}, {"format": {"a": 1}}, {"journal": []}])
def test_what_is_no_status_is_refused(served: ServerThread, wrong: dict[str, Any]) -> None:
    answered = {**told(served), **wrong} if wrong else {}
    with pytest.raises(MalformedFrame):
        status_of(answered)


def test_the_command_shows_the_same_rows_by_url(served: ServerThread, connection: Connection) -> None:
    put(connection, b"x")
    served.space.log.settle()  # the directory shows what memory does
    shown = CliRunner().invoke(app, ["status", "--space", served.url]).stdout.splitlines()
    assert shown[0].split() == ["server", served.url]
    assert "sessions       2" in shown
    seen = CliRunner().invoke(app, ["status", "--space", str(served.root)]).stdout.splitlines()
    aged, younger = ({re.sub(r" +\d+ s\b", "", line) for line in lines} for lines in (seen, shown))
    assert {line.split("  ")[0] for line in aged ^ younger} <= {"disk free", "cache", "counted"}


def test_the_numbers_of_a_queue_are_of_one_moment(served: ServerThread) -> None:
    """While transactions come and go: what the states count is all that there is, and none is less than nothing."""
    stop = threading.Event()
    failed: list[BaseException] = []

    def work(number: int) -> None:
        try:
            with xaqueue.connect(served.url) as connection:
                turn = 0
                while not stop.is_set():
                    turn += 1
                    connection.tpc_begin(Xid(number, b"%d" % turn, b""))
                    connection.enqueue("orders", b"x")
                    connection.dequeue("orders")
                    connection.tpc_prepare()
                    (connection.tpc_commit if turn % 3 else connection.tpc_rollback)()
        except BaseException as error:
            failed.append(error)

    workers = [threading.Thread(target=work, args=(number,)) for number in (1, 2, 3)]
    for worker in workers:
        worker.start()
    try:
        states, deadline = list[tuple[int, int]](), time.monotonic() + PATIENCE_S
        while len(states) < 200 or len(set(states)) == 1:
            assert time.monotonic() < deadline
            queue = next(one for one in queue_list(served.space) if one.name == "orders")
            assert queue.locked is not None
            assert min(queue.ready, queue.delayed, queue.locked, queue.in_doubt, queue.exhausted) >= 0
            assert queue.depth == queue.ready + queue.delayed + queue.held + queue.exhausted
            states.append((queue.locked, queue.in_doubt))
    finally:
        stop.set()
        for worker in workers:
            worker.join(PATIENCE_S)
    assert failed == []


def test_a_branch_that_ends_during_a_look_holds_nothing(
    served: ServerThread, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(connection, b"x")
    connection.tpc_begin(Xid(1, b"ends", b""))
    assert connection.dequeue("orders") is not None
    connection.tpc_prepare()

    def look(branches: Iterable[Branch]) -> dict[str, list[tuple[Branch, int]]]:
        found = holders(branches)
        connection.tpc_rollback()
        return found

    holders = service._holders
    assert [(q.ready, q.in_doubt, q.locked) for q in queue_list(served.space) if q.name == "orders"] == [(0, 1, 0)]
    monkeypatch.setattr(service, "_holders", look)
    assert [(q.ready, q.in_doubt, q.locked) for q in queue_list(served.space) if q.name == "orders"] == [(1, 0, 0)]
