"""The operator's verbs: what is in doubt is shown, decided, recorded, told and forgotten."""

from __future__ import annotations

import getpass
import json
import socket
from pathlib import Path

import pytest

import xaqueue
from support.doubtful import XID, bodies, fails, leave_in_doubt, listed, run
from xaqueue.cli.exit_codes import ExitCode
from xaqueue.core.model import layout
from xaqueue.errors import HeuristicOutcome
from xaqueue.tm.gtrid import FORMAT_ID, Gtrid
from xaqueue.xa import Code
from xaqueue.xid import Xid

OURS = Gtrid("0123456789abcdef", 3, 42)


@pytest.fixture
def space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XAQUEUE_SPACE", str(tmp_path / "space"))
    return leave_in_doubt(tmp_path / "space")


def test_list_shows_the_branch(space: Path) -> None:
    heading, row = run("indoubt", "list").splitlines()
    assert heading.split() == ["xid", "state", "age", "coordinator", "queues", "damage"]
    assert row.startswith(f"{XID}  in doubt  ")
    assert row.split()[-7:] == ["s", "foreign", "orders", "-1,", "replies", "+1", "0"]


def test_the_coordinator_of_a_branch_is_told_by_its_xid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    xid = Xid(FORMAT_ID, bytes(OURS), b"queue")
    monkeypatch.setenv("XAQUEUE_SPACE", str(leave_in_doubt(tmp_path / "space", xid)))
    assert "  0123456789abcdef  " in run("indoubt", "list")
    (branch,) = listed()
    assert branch["coordinator"] == {"gtrid": str(OURS), "node": "0123456789abcdef", "epoch": 3, "counter": 42}
    assert (branch["participant"], branch["xid"]) == ("queue", str(xid))
    told = run("indoubt", "show", xid)
    assert "coordinator   node 0123456789abcdef, epoch 3, transaction 42, here as queue\n" in told
    assert f"`xaqueue indoubt advise {OURS} --tm DIR`" in told


def test_list_of_nothing(space: Path) -> None:
    run("indoubt", "rollback", XID, "--reason", "why")
    run("indoubt", "forget", XID)
    assert run("indoubt", "list") == "no branch is in doubt\n"
    assert listed() == []


def test_show_lists_what_is_added_and_held(space: Path) -> None:
    told = run("indoubt", "show", XID)
    lines = [line.split() for line in told.splitlines()]
    assert ["state", "in", "doubt"] in lines
    assert ["gtrid", "gtrid"] in lines
    assert ["postgres", "gid", "7_Z3RyaWQ=_..."] in lines
    assert ["orders", "0", "1"] in lines
    assert ["replies", "1", "0"] in lines
    assert [line[:2] for line in lines[-2:]] == [["adds", "replies"], ["holds", "orders"]]
    parsed = json.loads(run("indoubt", "show", XID, "--json"))
    assert (parsed["xid"], parsed["state"], parsed["decision"]) == (str(XID), "in doubt", None)
    assert (parsed["postgres_gids"], parsed["coordinator"]) == ("7_Z3RyaWQ=_", None)
    assert (parsed["added"][0]["queue"], parsed["held"][0]["queue"]) == ("replies", "orders")
    assert parsed["queues"] == {"orders": {"adds": 0, "holds": 1}, "replies": {"adds": 1, "holds": 0}}
    assert parsed["age_s"] >= 0


def test_list_and_show_need_no_ownership(space: Path) -> None:
    with xaqueue.connect(space):
        assert len(listed()) == 1
        run("indoubt", "show", XID)


def test_commit_is_done_recorded_and_told_to_the_transaction_manager(space: Path) -> None:
    operator = f"{getpass.getuser()}@{socket.gethostname()}"
    told = run("indoubt", "commit", XID, "--reason", "why")
    assert f"branch {XID} committed: 1 message added, 1 message removed" in told
    assert f"recorded as a decision by {operator}" in told
    assert bodies(space, "replies") == [b"added"]
    assert bodies(space, "orders") == []
    (branch,) = listed()
    assert (branch["state"], branch["decision"]["by"]) == ("heuristically committed", operator)
    assert "\ndecided  " in run("indoubt", "show", XID)
    with xaqueue.connect(space) as connection:
        assert connection.tpc_recover() == [XID]
        with pytest.raises(HeuristicOutcome) as told_to_tm:
            connection.tpc_rollback(XID)
    assert told_to_tm.value.code is Code.XA_HEURCOM


def test_rollback_gives_back_what_was_held(space: Path) -> None:
    assert "rolled back: 1 message dropped, 1 message back in place" in run(
        "indoubt", "rollback", XID, "--reason", "why"
    )
    assert bodies(space, "orders") == [b"held"]
    assert bodies(space, "replies") == []


def test_a_damaged_branch_is_committed_in_part(space: Path) -> None:
    (space / layout.block_path(layout.PREPARED, str(XID), "002")).write_bytes(b"")
    assert "damage    prepared/" in run("indoubt", "show", XID)
    assert "committed in part, for it was damaged" in run("indoubt", "commit", XID, "--reason", "why")
    assert bodies(space, "replies") == [b"added"]
    assert listed()[0]["state"] == "heuristically mixed"


def test_forget_ends_the_record(space: Path) -> None:
    fails("indoubt", "forget", XID, code=ExitCode.ERROR)
    run("indoubt", "commit", XID, "--reason", "why")
    assert "forgotten" in run("indoubt", "forget", XID)
    assert not any((space / layout.HEURISTIC).iterdir())
    assert "is not in doubt" in fails("indoubt", "forget", XID, code=ExitCode.ERROR)


def test_a_second_decision_is_refused(space: Path) -> None:
    run("indoubt", "commit", XID, "--reason", "why")
    assert "heuristically committed already" in fails(
        "indoubt", "rollback", XID, "--reason", "why", code=ExitCode.ERROR
    )


@pytest.mark.parametrize("verb", ["show", "commit", "rollback", "forget"])
def test_what_is_no_branch_in_doubt_is_refused(space: Path, verb: str) -> None:
    words = () if verb == "show" else ("--reason", "why")
    none = Xid(1, b"a", b"b")
    assert "is not in doubt: list those that are" in fails("indoubt", verb, none, *words, code=ExitCode.ERROR)
    assert "is no xid" in fails("indoubt", verb, "what", *words, code=ExitCode.USAGE)
