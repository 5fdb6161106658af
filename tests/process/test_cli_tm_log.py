"""A transaction manager's log in an operator's hands: shown while it runs, carried out as decided, never against it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import xaqueue
from support.doubtful import bodies, fails, run
from support.tm_left import Left, leave
from xaqueue.cli import advise
from xaqueue.cli.exit_codes import ExitCode
from xaqueue.cli.tm_config import named
from xaqueue.core.engine.heuristics import decide
from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.features.session import attach
from xaqueue.tm.advice import LogStatus
from xaqueue.tm.gtrid import Gtrid
from xaqueue.tm.log_directory import OPERATOR_LOG


@pytest.fixture
def decided(tmp_path: Path) -> Left:
    """Killed when its decision was hardened, and nobody had heard of it."""
    return leave(tmp_path, "decided")


@pytest.fixture
def undecided(tmp_path: Path) -> Left:
    """Killed when all had voted, and nothing was decided."""
    return leave(tmp_path, "decide")


def decide_by_hand(left: Left, participant: str, *, commit: bool) -> None:
    session = attach(left.root / participant, watch=False)
    decide(session.space, left.xid(participant), commit, "me@here")
    session.close()


@pytest.fixture
def mixed(decided: Left) -> Left:
    """The ledger was rolled back by hand, and the transaction manager has noticed."""
    decide_by_hand(decided, "ledger", commit=False)
    told = run("tm", "recover", decided.log, code=ExitCode.NOTHING)
    assert f"transaction {decided.gtrid}: heuristic, ledger was rolled back by itself\n1 transaction left\n" in told
    return decided


def transactions(log: Path, *, code: int = ExitCode.OK) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(run("tm", "status", log, "--json", code=code))["transactions"]
    return found


def test_what_is_not_over_is_shown(decided: Left) -> None:
    shown = run("tm", "status", decided.log)
    (heading,) = [line for line in shown.splitlines() if line.startswith("gtrid")]
    assert heading.split() == ["gtrid", "state", "age", "participants", "outstanding"]
    (row,) = [line for line in shown.splitlines() if line.startswith(decided.gtrid)]
    assert row.startswith(f"{decided.gtrid}  committing  ")
    assert row.split()[-4:] == ["ledger", "queue", "ledger", "queue"]
    assert f"node        {decided.node}, epoch 1\n" in shown
    (one,) = transactions(decided.log)
    assert (one["gtrid"], one["node"], one["state"]) == (decided.gtrid, decided.node, "committing")
    assert (one["epoch"], one["counter"]) == (1, 1)
    assert (one["participants"], one["outstanding"]) == (["ledger", "queue"], ["ledger", "queue"])


def test_a_log_is_hardened_once_whatever_is_asked_of_it(decided: Left, monkeypatch: pytest.MonkeyPatch) -> None:
    synced, sync = list[str](), DirectoryFileSystem.sync_data

    def count(fs: DirectoryFileSystem, path: str) -> None:
        synced.append(path)
        sync(fs, path)

    monkeypatch.setattr(DirectoryFileSystem, "sync_data", count)
    gtrid = Gtrid.parse(decided.gtrid)
    assert gtrid is not None
    assert advise._decisions(named(str(decided.log)), [gtrid] * 3)[gtrid].status is LogStatus.COMMIT
    assert synced
    assert len(synced) == len(set(synced))


@pytest.mark.parametrize("form", [str, lambda xid: f"prepared/{xid}.000"])
def test_a_transaction_is_known_by_the_xid_of_a_branch(decided: Left, form: object) -> None:
    assert callable(form)
    name = form(decided.xid("queue"))
    assert run("indoubt", "advise", name, "--tm", decided.log) == run(
        "indoubt", "advise", decided.gtrid, "--tm", decided.log
    )


def test_the_configuration_may_lie_anywhere(decided: Left, tmp_path: Path) -> None:
    other = tmp_path / "tm.toml"
    other.write_text('log_dir = "log"\n')
    assert decided.gtrid in run("tm", "status", other)


def test_looking_works_while_the_transaction_manager_runs(decided: Left) -> None:
    with xaqueue.TransactionManager(decided.log, {}):
        assert decided.gtrid in run("tm", "status", decided.log)
        told = fails("tm", "recover", decided.log, code=ExitCode.ERROR)
        assert "is in use: its transaction manager does this by itself" in told


def test_what_was_decided_is_carried_out(decided: Left) -> None:
    told = run("tm", "recover", decided.log)
    assert told == "queue: recovered\nledger: recovered\n0 transactions left\n"
    assert bodies(decided.queue, "orders") == [b"order"]
    assert bodies(decided.ledger, "rows") == [b"row"]
    assert transactions(decided.log) == []


def test_without_a_decision_it_is_rolled_back(undecided: Left) -> None:
    assert transactions(undecided.log) == []
    assert "presumed rollback" in run("indoubt", "advise", undecided.gtrid, "--tm", undecided.log)
    assert len(json.loads(run("indoubt", "list", "--json", "--space", undecided.queue))) == 1
    assert "0 transactions left\n" in run("tm", "recover", undecided.log)
    assert json.loads(run("indoubt", "list", "--json", "--space", undecided.queue)) == []
    assert bodies(undecided.queue, "orders") == []


def test_a_transaction_of_another_node_is_left(decided: Left) -> None:
    other = decided.gtrid.replace(decided.node, "f" * 16)
    told = run("indoubt", "advise", other, "--tm", decided.log)
    assert "begun by another node" in told
    assert "has no heuristics here" in fails("tm", "forget", decided.log, other, code=ExitCode.ERROR)


def test_without_participants_nothing_can_be_carried_out(decided: Left) -> None:
    (decided.log / "participants.toml").unlink()
    assert "participants.toml" in fails("tm", "recover", decided.log, code=ExitCode.USAGE)


def test_nodes_are_ended_in_a_database(decided: Left) -> None:
    assert "goes with a DSN" in fails("tm", "recover", decided.log, "--end-node", decided.node, code=ExitCode.USAGE)
    assert len(transactions(decided.log)) == 1


def test_a_participant_that_is_down_is_told(decided: Left) -> None:
    with xaqueue.connect(decided.ledger):
        (decided.log / "participants.toml").write_text(
            (decided.log / "participants.toml").read_text().replace("../ledger", "../gone")
        )
        told = run("tm", "recover", decided.log, code=ExitCode.NOTHING)
    assert "is no queue space" in told
    assert f"transaction {decided.gtrid}: committing, outstanding: ledger\n" in told
    assert bodies(decided.queue, "orders") == [b"order"]


def test_a_heuristic_is_shown(mixed: Left) -> None:
    shown = run("tm", "status", mixed.log)
    assert f"{mixed.gtrid}  ledger       committed  rolled back by itself" in shown
    (one,) = transactions(mixed.log)
    assert [(h["participant"], h["decision"], h["party"]) for h in one["heuristics"]] == [
        ("ledger", "committed", "rolled back by itself")
    ]


def forgotten(log: Path, *, code: int = ExitCode.OK) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(run("tm", "status", log, "--json", code=code))["forgotten"]
    return found


@pytest.mark.parametrize("configured", [True, False])
def test_forget_is_recorded_and_told_to_those_that_are_configured(mixed: Left, configured: bool) -> None:
    if not configured:
        (mixed.log / "participants.toml").unlink()
    assert forgotten(mixed.log) == []
    told = run("tm", "forget", mixed.log, mixed.gtrid, "--reason", "paid in cash")
    assert "its heuristics are forgotten, recorded in operators.log" in told
    assert ("ledger was not told" in told) is not configured
    assert transactions(mixed.log) == []
    (line,) = forgotten(mixed.log)
    assert (line["gtrid"], line["participant"], line["forgotten_reason"]) == (mixed.gtrid, "ledger", "paid in cash")
    left = json.loads(run("indoubt", "list", "--json", "--space", mixed.ledger))
    assert len(left) == (0 if configured else 1)


def test_forget_of_a_decision_is_refused(decided: Left) -> None:
    told = fails("tm", "forget", decided.log, decided.gtrid, code=ExitCode.ERROR)
    assert "has no heuristics here, and only those are forgotten" in told
    assert not (decided.log / OPERATOR_LOG).exists()
    assert len(transactions(decided.log)) == 1


def test_forget_needs_the_lock(mixed: Left) -> None:
    with xaqueue.TransactionManager(mixed.log, {}):
        told = fails("tm", "forget", mixed.log, mixed.gtrid, code=ExitCode.ERROR)
    assert "stop its transaction manager first" in told
    assert not (mixed.log / OPERATOR_LOG).exists()


def test_what_is_no_log_is_refused(tmp_path: Path) -> None:
    told = fails("tm", "forget", tmp_path, "XAQ1" + "0" * 15 + "1" * 25, code=ExitCode.ERROR)
    assert "is no decision log: name the log_dir of a TransactionManager" in told


def test_what_names_no_transaction_is_refused(decided: Left) -> None:
    for name in ("XAQ2", "7.Z3RyaWQ.YnF1YWw", "?"):
        told = fails("tm", "forget", decided.log, name, code=ExitCode.USAGE)
        assert "names no transaction of a transaction manager" in told


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[participants.queue]\nkind = 'oracle'", "needs kind = one of xaqueue, postgres, mysql, sqlite"),
        ("[participants.queue]\nkind = 'xaqueue'", "takes space = TEXT and nothing else"),
        ("[participants.queue]\nkind = 'xaqueue'\nspace = ''", "takes space = TEXT"),
        ("[participants.queue]\nkind = 'postgres'\ndsn = 'x'\nport = 1", "takes dsn = TEXT and nothing else"),
        (
            "last_resource = 'other'\n[participants.other]\nkind = 'sqlite'\npath = 'y'\n"
            "[participants.files]\nkind = 'sqlite'\npath = 'x'",
            "make it the last_resource",
        ),
        ("last_resource = 'files'", "is none of the participants"),
        ("log = 'x'", "'log' is no key of it"),
        ("participants = 1", "are wanted"),
        ("[participants.'a b']\nkind = 'xaqueue'\nspace = 'x'", "participant name 'a b' is refused"),
        ("[", "is no TOML"),
    ],
)
def test_a_configuration_that_is_wrong_says_where(decided: Left, text: str, why: str) -> None:
    decided.configure(text)
    assert why in fails("tm", "status", decided.log, code=ExitCode.USAGE)


def test_a_log_may_begin_beside_its_configuration(tmp_path: Path) -> None:
    (tmp_path / "participants.toml").write_text("")
    with xaqueue.TransactionManager(tmp_path, {}) as manager:
        shown = run("tm", "status", tmp_path)
        assert f"{manager.node}, epoch 1" in shown
        assert "unfinished  no decision of the log\n" in shown
