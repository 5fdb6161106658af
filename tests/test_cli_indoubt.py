"""The operator's verbs: what is in doubt is shown, decided, recorded, told and forgotten."""

from __future__ import annotations

import getpass
import json
import os
import pty
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import xaqueue
from xaqueue.cli.exits import ExitCode
from xaqueue.cli.main import app
from xaqueue.errors import HeuristicOutcome
from xaqueue.space import layout
from xaqueue.space.attach import create
from xaqueue.xa import Code
from xaqueue.xid import Xid

XID = Xid(7, b"gtrid", b"bqual")
RUN = [sys.executable, "-c", "from xaqueue.cli.main import main; main()"]
PATIENCE_S = 60.0
CHILD = """
import os, sys, xaqueue
connection = xaqueue.connect(sys.argv[1])
connection.enqueue("orders", b"held")
connection.commit()
connection.tpc_begin(connection.xid(7, b"gtrid", b"bqual"))
connection.enqueue("replies", b"added")
connection.dequeue("orders")
connection.tpc_prepare()
os._exit(0)  # as if it were killed
"""


@pytest.fixture
def space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A space whose owner died with a branch in doubt that adds a message to replies and holds one of orders."""
    root = tmp_path / "space"
    create(root, sync="NONE", any_queue=True)
    subprocess.run([sys.executable, "-c", CHILD, str(root)], check=True)
    monkeypatch.setenv("XAQUEUE_SPACE", str(root))
    return root


def run(*words: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == code, (result.output, result.exception)
    return result.stdout


def fails(*words: object, code: int) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == code, (result.output, result.exception)
    assert result.stderr.startswith("xaqueue: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


def bodies(space: Path, queue: str) -> list[bytes]:
    with xaqueue.connect(space) as connection:
        return [message.body for message in connection.browse(queue)]


def listed() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(run("indoubt", "list", "--json"))
    return found


def test_list_shows_the_branch(space: Path) -> None:
    heading, row = run("indoubt", "list").splitlines()
    assert heading.split() == ["xid", "state", "since", "adds", "holds", "damage"]
    assert row.startswith(f"{XID}  in doubt  20")
    assert row.split()[-3:] == ["1", "1", "0"]


def test_list_of_nothing(space: Path) -> None:
    run("indoubt", "rollback", XID)
    run("indoubt", "forget", XID)
    assert run("indoubt", "list") == "no branch is in doubt\n"
    assert listed() == []


def test_show_lists_what_is_added_and_held(space: Path) -> None:
    told = run("indoubt", "show", XID)
    assert "state     in doubt" in told
    assert "gtrid     b'gtrid'" in told
    assert [line.split()[:2] for line in told.splitlines()[-2:]] == [["adds", "replies"], ["holds", "orders"]]
    parsed = json.loads(run("indoubt", "show", XID, "--json"))
    assert (parsed["xid"], parsed["state"], parsed["decision"]) == (str(XID), "in doubt", None)
    assert (parsed["added"][0]["queue"], parsed["held"][0]["queue"]) == ("replies", "orders")


def test_list_and_show_need_no_ownership(space: Path) -> None:
    with xaqueue.connect(space):
        assert len(listed()) == 1
        run("indoubt", "show", XID)


def test_commit_is_done_recorded_and_told_to_the_transaction_manager(space: Path) -> None:
    operator = f"{getpass.getuser()}@{socket.gethostname()}"
    told = run("indoubt", "commit", XID)
    assert f"branch {XID} committed: 1 message added, 1 message removed" in told
    assert f"recorded as a decision by {operator}" in told
    assert bodies(space, "replies") == [b"added"]
    assert bodies(space, "orders") == []
    (branch,) = listed()
    assert (branch["state"], branch["decision"]["by"]) == ("heuristically committed", operator)
    assert "decided  " in run("indoubt", "show", XID)
    with xaqueue.connect(space) as connection:
        assert connection.tpc_recover() == [XID]
        with pytest.raises(HeuristicOutcome) as told_to_tm:
            connection.tpc_rollback(XID)
    assert told_to_tm.value.code is Code.XA_HEURCOM


def test_rollback_gives_back_what_was_held(space: Path) -> None:
    assert "rolled back: 1 message dropped, 1 message back in place" in run("indoubt", "rollback", XID)
    assert bodies(space, "orders") == [b"held"]
    assert bodies(space, "replies") == []


def test_a_damaged_branch_is_committed_in_part(space: Path) -> None:
    (space / layout.block_path(layout.PREPARED, str(XID), "002")).write_bytes(b"")
    assert "damage    prepared/" in run("indoubt", "show", XID)
    assert "committed in part, for it was damaged" in run("indoubt", "commit", XID)
    assert bodies(space, "replies") == [b"added"]
    assert listed()[0]["state"] == "heuristically mixed"


def test_forget_ends_the_record(space: Path) -> None:
    fails("indoubt", "forget", XID, code=ExitCode.ERROR)
    run("indoubt", "commit", XID)
    assert "forgotten" in run("indoubt", "forget", XID)
    assert not any((space / layout.HEURISTIC).iterdir())
    assert "is not in doubt" in fails("indoubt", "forget", XID, code=ExitCode.ERROR)


def test_a_second_decision_is_refused(space: Path) -> None:
    run("indoubt", "commit", XID)
    assert "heuristically committed already" in fails("indoubt", "rollback", XID, code=ExitCode.ERROR)


@pytest.mark.parametrize("verb", ["show", "commit", "rollback", "forget"])
def test_what_is_no_branch_in_doubt_is_refused(space: Path, verb: str) -> None:
    assert "is not in doubt: list those that are" in fails("indoubt", verb, Xid(1, b"a", b"b"), code=ExitCode.ERROR)
    assert "is no xid" in fails("indoubt", verb, "what", code=ExitCode.USAGE)


def test_a_space_in_use_is_not_decided_upon(space: Path) -> None:
    with xaqueue.connect(space):
        done = subprocess.run([*RUN, "indoubt", "commit", str(XID)], capture_output=True, text=True, check=False)
    assert done.returncode == ExitCode.SPACE
    assert f"is in use by process {os.getpid()} on {socket.gethostname()} since 20" in done.stderr
    assert done.stderr.count("\n") == 1
    assert listed()[0]["state"] == "in doubt"


@pytest.mark.parametrize(
    ("answer", "code", "state"),
    [(b"n\n", ExitCode.NOTHING, "in doubt"), (b"y\n", ExitCode.OK, "heuristically committed")],
)
def test_on_a_terminal_the_operator_is_asked(space: Path, answer: bytes, code: int, state: str) -> None:
    terminal, side = pty.openpty()
    try:
        with subprocess.Popen(
            [*RUN, "indoubt", "commit", str(XID)], stdin=side, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as deciding:
            os.write(terminal, answer)
            _, asked = deciding.communicate(timeout=PATIENCE_S)
    finally:
        os.close(terminal)
        os.close(side)
    assert b"adds 1 message and holds 1 message: commit it without its transaction manager?" in asked
    assert deciding.returncode == code
    assert listed()[0]["state"] == state


def test_with_yes_nobody_is_asked(space: Path) -> None:
    terminal, side = pty.openpty()
    try:
        done = subprocess.run(
            [*RUN, "indoubt", "rollback", str(XID), "--yes"], stdin=side, capture_output=True, check=True
        )
    finally:
        os.close(terminal)
        os.close(side)
    assert done.stderr == b""
