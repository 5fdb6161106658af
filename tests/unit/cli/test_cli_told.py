"""What the command line says of what it does not give, and names that people copy and type."""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import xaqueue
from support.doubtful import XID, fails, leave_in_doubt, listed, run
from support.served import ServerThread, serving
from xaqueue.cli import output
from xaqueue.cli.exit_codes import ExitCode
from xaqueue.core.owner.definitions_file import write_definitions
from xaqueue.features.opening import create
from xaqueue.offline import inspect_branches
from xaqueue.rpc.methods.service import RemoteOperator
from xaqueue.xid import Xid

LONG = Xid(1480676162, b"7f3c0b529a4e4a869f0e0d6c6b1a2c3d-of-a-long-name", b"a-participant-of-a-long-name")
QUEUES = '[queues.a]\n[queues.urgent]\norder = "priority"\n[queues.stack]\norder = "lifo"\n[space]\nsync = "JOURNAL"\n'


@pytest.fixture
def root(tmp_path: Path) -> Path:
    create(tmp_path / "space")
    write_definitions(tmp_path / "space", QUEUES)
    return tmp_path / "space"


@pytest.fixture
def server(root: Path) -> Iterator[ServerThread]:
    with serving(root) as thread:
        yield thread


def test_why_nothing_is_given(root: Path, server: ServerThread) -> None:
    """Each message that a get passes over is counted, whoever it asks."""
    with xaqueue.connect(server.url) as connection, xaqueue.connect(server.url) as other:
        connection.enqueue("a", b"later", not_before=time.time_ns() // 1000 + 3_600_000_000)
        for body in (b"in doubt", b"at work"):
            connection.enqueue("a", body)
        connection.commit()
        connection.tpc_begin(XID)
        connection.dequeue("a")
        connection.tpc_prepare()
        other.dequeue("a")
        told = fails("get", "a", "--space", server.url, code=ExitCode.NOTHING)
        assert "nothing to take now of its 3 messages: 1 held by branches in doubt" in told
        assert "1 held by transactions at work, 1 not due yet" in told
        told = fails("get", "a", "--correlation-id", "x", "--space", server.url, code=ExitCode.NOTHING)
        assert "no such message now; it has 3 messages" in told
        other.rollback()
    assert "urgent is empty" in fails("get", "urgent", "--space", server.url, code=ExitCode.NOTHING)
    server.stop()
    run("get", "a", "--space", root)
    told = fails("get", "a", "--space", root, code=ExitCode.NOTHING)
    assert "of its 2 messages: 1 held by branches in doubt (`xaqueue indoubt list`), 1 not due yet" in told


def test_a_get_without_a_message_is_no_lost_session(server: ServerThread, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        fails("get", "a", "--space", server.url, code=ExitCode.NOTHING)
        fails("get", "a", "--wait", "0.1", "--space", server.url, code=ExitCode.NOTHING)
        server.stop()
    assert [record.getMessage() for record in caplog.records if "lost" in record.getMessage()] == []


@pytest.mark.parametrize("queue", ["a", "urgent", "stack"])
def test_browse_has_the_order_of_delivery_everywhere(root: Path, server: ServerThread, queue: str) -> None:
    for body, priority in (("low", 1), ("high", 9), ("middle", 5), ("high too", 9)):
        run("put", queue, body, "--priority", priority, "--space", server.url)

    def bodies(space: object) -> list[str]:
        return [json.loads(line)["body"] for line in run("browse", queue, "--json", "--space", space).splitlines()]

    shown = bodies(server.url)
    assert bodies(root) == shown
    server.stop()
    assert bodies(root) == shown
    assert [run("get", queue, "--space", root) for _ in shown] == shown


def test_lines_are_written_as_they_are_read(root: Path, tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    lines.write_bytes(b"one\n\ntw\ro\nthree\n")
    run("put", "a", "--lines", "--file", lines, "--space", root)
    run("get", "a", "--lines", "--count", 9, "--output", tmp_path / "back", "--space", root)
    assert (tmp_path / "back").read_bytes() == lines.read_bytes()
    for body in ("two\nlines", "ends so\r"):
        run("put", "a", body, "--space", root)
        assert "is not one line: it stays in a" in fails("get", "a", "--lines", "--space", root, code=ExitCode.USAGE)
        assert run("get", "a", "--space", root) == body


def test_other_columns_give_way(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    output.table(("message id", "body"), [("f" * 32, "word " * 40)])
    lines = re.sub(r"\x1b\[\d*m", "", capsys.readouterr().out).splitlines()
    assert max(map(len, lines)) <= 80
    assert any(line.strip().startswith("f" * 32) for line in lines)


def test_a_branch_is_known_by_its_beginning_and_its_gtrid(tmp_path: Path) -> None:
    root = leave_in_doubt(tmp_path / "space", LONG)
    for name in (b"order-1", b"order-2"):
        with xaqueue.connect(root) as connection:
            connection.tpc_begin(Xid(7, name, b"queue"))
            connection.enqueue("replies", b"x")
            connection.tpc_prepare()
    for text in (str(LONG)[:14], "7f3c0b529a4e", LONG.gtrid.hex()[:20], str(Xid(7, b"order-1", b"queue")), "order-1"):
        assert "in doubt" in run("indoubt", "show", text, "--space", root)
    told = fails("indoubt", "commit", "order-", "--reason", "why", "--yes", "--space", root, code=ExitCode.USAGE)
    assert "names 2 branches: 7." in told
    assert "no branch in doubt begins so" in fails("indoubt", "show", " ", "--space", root, code=ExitCode.USAGE)
    assert "no branch in doubt begins so" in fails("indoubt", "show", "nobody", "--space", root, code=ExitCode.USAGE)
    assert "is not in doubt" in fails("indoubt", "show", "7.YQ.Yg", "--space", root, code=ExitCode.ERROR)
    with xaqueue.connect(root) as connection:
        connection.tpc_begin(Xid(7, b"order-10", b"queue"))
        connection.enqueue("replies", b"x")
        connection.tpc_prepare()
    assert "order-1 " in run("indoubt", "show", "order-1", "--space", root).replace("\n", " "), "not order-10"
    short = str(Xid(7, b"order-10", b"queue"))[:12]
    for verb in ("commit", "rollback", "forget"):
        for yes in (["--yes"], []):  # a script is asked nothing without it, either
            told = fails("indoubt", verb, short, "--reason", "why", *yes, "--space", root, code=ExitCode.USAGE)
            assert f"{short!r} is only the beginning of branch {Xid(7, b'order-10', b'queue')}" in told
    assert "would do this" in run("indoubt", "rollback", short, "--dry-run", "--space", root)
    run("indoubt", "rollback", "order-10", "--reason", "why", "--yes", "--space", root)
    run("indoubt", "forget", "order-10", "--yes", "--space", root)
    run("indoubt", "rollback", "order-2", "--reason", "why", "--yes", "--space", root)
    run("indoubt", "forget", "order-2", "--yes", "--space", root)
    assert len(listed("--space", root)) == 2


def test_a_long_list_of_branches_comes_in_pages(server: ServerThread, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for all of it: between two pages others have their turn."""
    monkeypatch.setattr(inspect_branches, "PAGE", 7)
    from xaqueue.rpc.client.manager import remote_manager

    xids = {Xid(7, f"{number}".encode(), b"b") for number in range(20)}
    for xid in xids:
        with xaqueue.connect(server.url) as connection:
            connection.tpc_begin(xid)
            connection.enqueue("a", b"1")
            connection.tpc_prepare()
    manager = remote_manager(server.url)
    try:
        before = manager.requests
        found = RemoteOperator(manager).in_doubt()
        assert manager.requests - before >= 5
    finally:
        manager.close()
    assert [branch.xid for branch in found] == [b.xid for b in inspect_branches.in_doubt(server.root)]
    assert {branch.xid for branch in found} == xids


def test_nothing_destructive_is_suggested(root: Path) -> None:
    told = fails("delete", "a", "--space", root, code=ExitCode.USAGE)
    assert "release" not in told
    assert "Did you mean 'browse'" in fails("browze", "a", "--space", root, code=ExitCode.USAGE)
