"""What an operator decides: why, what it would do, under every name that a branch has, and what stays of it."""

from __future__ import annotations

import getpass
import json
import socket
from contextlib import closing
from pathlib import Path

import pytest

import xaqueue
from support.doubtful import XID, bodies, fails, leave_in_doubt, listed, run
from xaqueue.cli import output
from xaqueue.cli.exit_codes import ExitCode
from xaqueue.core.engine.heuristics import decide
from xaqueue.core.model import layout
from xaqueue.features.session import attach
from xaqueue.xid import Xid

OPERATOR = f"{getpass.getuser()}@{socket.gethostname()}"
GID = "7_Z3RyaWQ=_YnF1YWw="


@pytest.fixture
def space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XAQUEUE_SPACE", str(tmp_path / "space"))
    monkeypatch.setattr(output, "age_s", lambda _: 3.0)  # outputs are compared, however slow the machine is
    return leave_in_doubt(tmp_path / "space")


def table(text: str) -> dict[str, list[str]]:
    """The rows behind the headings of the last table, by their first word."""
    return {words[0]: words[1:] for line in text.splitlines() if (words := line.split())}


@pytest.mark.parametrize("verb", ["commit", "rollback"])
def test_a_reason_is_recorded_and_shown(space: Path, verb: str) -> None:
    run("indoubt", verb, XID, "--reason", "the ledger has it")
    (branch,) = listed()
    assert branch["decision"]["reason"] == "the ledger has it"
    assert (branch["decision"]["outcome"], branch["decision"]["by"]) == (verb, OPERATOR)
    told = table(run("indoubt", "show", XID))
    assert told["reason"] == ["the", "ledger", "has", "it"]
    assert told["by"] == [OPERATOR]
    record = (space / layout.HEURISTIC / str(XID)).read_bytes()
    assert b"the ledger has it" in record


@pytest.mark.parametrize("words", [(), ("--yes",), ("--yes", "--reason", " ")])
@pytest.mark.parametrize("verb", ["commit", "rollback"])
def test_who_is_not_asked_says_why(space: Path, verb: str, words: tuple[str, ...]) -> None:
    assert "write why with --reason TEXT" in fails("indoubt", verb, XID, *words, code=ExitCode.USAGE)
    assert listed()[0]["state"] == "in doubt"
    assert not (space / layout.OPERATORS).exists()


def test_without_a_reason_none_is_shown(space: Path) -> None:
    """As a program may decide, by the protocol."""
    with closing(attach(space, watch=False)) as session:
        decide(session.space, XID, True, "me@here")
    assert listed()[0]["decision"]["reason"] == ""
    assert "reason" not in table(run("indoubt", "show", XID))


@pytest.mark.parametrize("reason", ["x" * 1001, "two\nlines", "\udcff"])
@pytest.mark.parametrize("verb", ["commit", "rollback", "forget"])
def test_a_reason_that_cannot_be_recorded_is_refused_before_anything_is_done(
    space: Path, verb: str, reason: str
) -> None:
    told = fails("indoubt", verb, XID, "--reason", reason, code=ExitCode.USAGE)
    assert "one line of 1000 characters at most" in told
    assert listed()[0]["state"] == "in doubt"


def test_forgetting_is_recorded_with_what_was_decided(space: Path) -> None:
    assert run("indoubt", "list", "--forgotten") == "no decision was forgotten\n"
    run("indoubt", "rollback", XID, "--reason", "the ledger lost it")
    run("indoubt", "forget", XID, "--reason", "told by telephone")
    assert listed() == []
    (line,) = json.loads(run("indoubt", "list", "--forgotten", "--json"))
    assert (line["xid"], line["outcome"], line["by"], line["reason"]) == (
        str(XID),
        "rollback",
        OPERATOR,
        "the ledger lost it",
    )
    assert (line["forgotten_by"], line["forgotten_reason"]) == (OPERATOR, "told by telephone")
    assert line["at"] <= line["forgotten_at"]
    assert table(run("indoubt", "list", "--forgotten"))[str(XID)][:2] == ["rollback", OPERATOR]
    assert run("check") == "no damage\n"


def test_a_dry_run_shows_the_depths_and_does_nothing(space: Path) -> None:
    with xaqueue.connect(space) as connection:
        for queue in ("orders", "orders", "replies", "others"):
            connection.enqueue(queue, b"another")
        connection.commit()
    told = run("indoubt", "commit", XID, "--dry-run")
    assert told.startswith(f"commit of branch {XID} would do this, and nothing is done:\n")
    rows = table(told)
    assert rows["queue"] == ["adds", "holds", "messages", "after", "held", "held", "after"]
    assert rows["orders"] == ["0", "1", "3", "2", "1", "0"]
    assert rows["replies"] == ["1", "0", "1", "2", "0", "0"]
    assert "others" not in rows
    rows = table(run("indoubt", "rollback", XID, "--dry-run"))
    assert rows["orders"] == ["0", "1", "3", "3", "1", "0"]
    assert rows["replies"] == ["1", "0", "1", "1", "0", "0"]
    assert listed()[0]["state"] == "in doubt"
    assert not any((space / layout.HEURISTIC).iterdir())


def test_what_a_dry_run_foretells_happens(space: Path) -> None:
    foretold = table(run("indoubt", "commit", XID, "--dry-run"))
    run("indoubt", "commit", XID, "--reason", "why")
    for queue in ("orders", "replies"):
        assert len(bodies(space, queue)) == int(foretold[queue][3])


def test_a_dry_run_works_while_another_owns_the_space(space: Path) -> None:
    with xaqueue.connect(space):
        assert table(run("indoubt", "commit", XID, "--dry-run"))["orders"] == ["0", "1", "1", "0", "1", "0"]


def test_a_dry_run_refuses_what_the_decision_would(space: Path) -> None:
    first = space / layout.block_path(layout.PREPARED, str(XID), "000")
    first.rename(first.with_suffix(".commit"))
    assert "can only be committed" in fails("indoubt", "rollback", XID, "--dry-run", code=ExitCode.ERROR)
    run("indoubt", "commit", XID, "--dry-run")
    first.with_suffix(".commit").rename(first)
    run("indoubt", "commit", XID, "--reason", "why")
    assert "is heuristically committed already" in fails("indoubt", "commit", XID, "--dry-run", code=ExitCode.ERROR)


def test_a_dry_run_says_that_a_branch_is_damaged(space: Path) -> None:
    (space / layout.block_path(layout.PREPARED, str(XID), "002")).write_bytes(b"")
    assert "the branch is damaged" in run("indoubt", "commit", XID, "--dry-run")


@pytest.mark.parametrize(
    "name",
    [
        str(XID),
        f"'{XID}'",
        f'"{XID}"',
        f"{XID}.000",
        f"{XID}.002",
        f"{XID}.commit",
        f"prepared/{XID}.000",
        f"/data/space/prepared/{XID}.001",
        f"heuristic/{XID}",
        GID,
        f"'{GID}'",
        f'"{GID}"',
        f"  {GID} ",
    ],
)
def test_a_branch_is_known_by_every_name_that_it_has(space: Path, name: str) -> None:
    assert run("indoubt", "show", name) == run("indoubt", "show", XID)


def test_a_gid_may_hold_every_letter_of_base64(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    xid = Xid(7, bytes(range(250, 256)), b"\xff\xfe")
    monkeypatch.setenv("XAQUEUE_SPACE", str(leave_in_doubt(tmp_path / "space", xid)))
    gid = "7_+vv8/f7/_//4="
    assert json.loads(run("indoubt", "show", gid, "--json"))["postgres_gids"] == gid.rpartition("_")[0] + "_"


@pytest.mark.parametrize("name", ["", "8", "7_x", "7_abc_d", "4294967296_YQ==_YQ==", "8.Z3RyaWQ", f"{XID}.x", "a/b"])
def test_what_is_no_name_is_refused(space: Path, name: str) -> None:
    assert " is no" in fails("indoubt", "show", name, code=ExitCode.USAGE)
