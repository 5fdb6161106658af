"""A transaction manager's log in an operator's hands: shown while it runs, carried out as decided, never against it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import xaqueue
from support.doubtful import bodies, fails, run
from support.tm_left import Left, leave
from xaqueue.cli.exit_codes import ExitCode
from xaqueue.core.engine.heuristics import decide
from xaqueue.features.session import attach
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
    told = run("indoubt", "commit", decided.gtrid, "--tm", decided.log)
    assert "ledger: was rolled back by itself\n" in told
    assert f"transaction {decided.gtrid} is heuristic\n" in told
    return decided


def test_list_and_show(decided: Left) -> None:
    heading, row = run("indoubt", "list", "--tm", decided.log).splitlines()
    assert heading.split() == ["gtrid", "state", "age", "participants", "outstanding", "heuristics"]
    assert row.startswith(f"{decided.gtrid}  committing  ")
    assert row.split()[-5:] == ["ledger", "queue", "ledger", "queue", "0"]
    (one,) = json.loads(run("indoubt", "list", "--tm", decided.log, "--json"))
    assert (one["gtrid"], one["node"], one["state"]) == (decided.gtrid, decided.node, "committing")
    assert (one["participants"], one["outstanding"]) == (["ledger", "queue"], ["ledger", "queue"])
    assert one == json.loads(run("indoubt", "show", decided.gtrid, "--tm", decided.log, "--json"))
    shown = run("indoubt", "show", decided.gtrid, "--tm", decided.log)
    assert f"coordinator   node {decided.node}, epoch 1, transaction 1\n" in shown
    assert "outstanding   ledger queue\n" in shown


@pytest.mark.parametrize("form", [str, lambda xid: f"prepared/{xid}.000"])
def test_a_transaction_is_known_by_the_xid_of_a_branch(decided: Left, form: object) -> None:
    assert callable(form)
    name = form(decided.xid("queue"))
    assert run("indoubt", "show", name, "--tm", decided.log, "--json") == run(
        "indoubt", "show", decided.gtrid, "--tm", decided.log, "--json"
    )


def test_the_configuration_may_lie_anywhere(decided: Left, tmp_path: Path) -> None:
    other = tmp_path / "tm.toml"
    other.write_text('log_dir = "log"\n')
    assert decided.gtrid in run("indoubt", "list", "--tm", other)


def test_looking_works_while_the_transaction_manager_runs(decided: Left) -> None:
    with xaqueue.TransactionManager(decided.log, {}):
        assert decided.gtrid in run("indoubt", "list", "--tm", decided.log)
        assert "outstanding" in run("indoubt", "show", decided.gtrid, "--tm", decided.log)
        run("indoubt", "commit", decided.gtrid, "--tm", decided.log, "--dry-run")
        told = fails("indoubt", "commit", decided.gtrid, "--tm", decided.log, code=ExitCode.ERROR)
        assert "is in use: its transaction manager does this by itself" in told


def test_commit_carries_out_what_was_decided(decided: Left) -> None:
    told = run("indoubt", "commit", decided.gtrid, "--tm", decided.log)
    assert f"transaction {decided.gtrid} is over\n" in told
    assert bodies(decided.queue, "orders") == [b"order"]
    assert bodies(decided.ledger, "rows") == [b"row"]
    assert run("indoubt", "list", "--tm", decided.log) == f"no transaction of node {decided.node} is in doubt\n"


def test_rollback_of_what_was_decided_is_refused(decided: Left) -> None:
    for words in ((), ("--dry-run",)):
        told = fails("indoubt", "rollback", decided.gtrid, "--tm", decided.log, *words, code=ExitCode.ERROR)
        assert "is refused, of which the log says: commit is decided" in told
    assert json.loads(run("indoubt", "list", "--tm", decided.log, "--json"))[0]["outstanding"] == ["ledger", "queue"]


def test_without_a_decision_it_is_rolled_back_and_never_committed(undecided: Left) -> None:
    told = fails("indoubt", "commit", undecided.gtrid, "--tm", undecided.log, code=ExitCode.ERROR)
    assert "presumed rollback" in told
    assert "is not in doubt here" in fails(
        "indoubt", "show", undecided.gtrid, "--tm", undecided.log, code=ExitCode.ERROR
    )
    assert "nothing is done" in run("indoubt", "rollback", undecided.gtrid, "--tm", undecided.log, "--dry-run")
    assert len(json.loads(run("indoubt", "list", "--json", "--space", undecided.queue))) == 1
    run("indoubt", "rollback", undecided.gtrid, "--tm", undecided.log)
    assert json.loads(run("indoubt", "list", "--json", "--space", undecided.queue)) == []
    assert bodies(undecided.queue, "orders") == []


def test_a_transaction_of_another_node_is_refused(decided: Left) -> None:
    other = decided.gtrid.replace(decided.node, "f" * 16)
    for verb in ("commit", "rollback"):
        told = fails("indoubt", verb, other, "--tm", decided.log, code=ExitCode.ERROR)
        assert "begun by another node" in told
    assert "is of node ffffffffffffffff" in fails("indoubt", "show", other, "--tm", decided.log, code=ExitCode.ERROR)


def test_without_participants_nothing_can_be_carried_out(decided: Left) -> None:
    (decided.log / "participants.toml").unlink()
    told = fails("indoubt", "commit", decided.gtrid, "--tm", decided.log, code=ExitCode.USAGE)
    assert "participants.toml" in told


def test_a_participant_that_is_down_is_told(decided: Left) -> None:
    with xaqueue.connect(decided.ledger):
        (decided.log / "participants.toml").write_text(
            (decided.log / "participants.toml").read_text().replace("../ledger", "../gone")
        )
        told = run("indoubt", "commit", decided.gtrid, "--tm", decided.log)
    assert "is no queue space" in told
    assert f"transaction {decided.gtrid} is committing, outstanding: ledger\n" in told
    assert bodies(decided.queue, "orders") == [b"order"]


def test_a_heuristic_is_shown(mixed: Left) -> None:
    shown = run("indoubt", "show", mixed.gtrid, "--tm", mixed.log)
    assert "ledger       committed  rolled back by itself" in shown
    (one,) = json.loads(run("indoubt", "list", "--tm", mixed.log, "--json"))
    assert [(h["participant"], h["decision"], h["party"]) for h in one["heuristics"]] == [
        ("ledger", "committed", "rolled back by itself")
    ]


@pytest.mark.parametrize("configured", [True, False])
def test_forget_is_recorded_and_told_to_those_that_are_configured(mixed: Left, configured: bool) -> None:
    if not configured:
        (mixed.log / "participants.toml").unlink()
    assert run("indoubt", "list", "--forgotten", "--tm", mixed.log) == "no heuristic was forgotten\n"
    told = run("indoubt", "forget", mixed.gtrid, "--tm", mixed.log, "--reason", "paid in cash")
    assert "its heuristics are forgotten" in told
    assert ("ledger was not told" in told) is not configured
    assert run("indoubt", "list", "--tm", mixed.log).startswith("no transaction")
    (line,) = json.loads(run("indoubt", "list", "--forgotten", "--tm", mixed.log, "--json"))
    assert (line["gtrid"], line["participant"], line["forgotten_reason"]) == (mixed.gtrid, "ledger", "paid in cash")
    assert mixed.gtrid in run("indoubt", "list", "--forgotten", "--tm", mixed.log)
    left = json.loads(run("indoubt", "list", "--json", "--space", mixed.ledger))
    assert len(left) == (0 if configured else 1)


def test_forget_of_a_decision_is_refused(decided: Left) -> None:
    told = fails("indoubt", "forget", decided.gtrid, "--tm", decided.log, code=ExitCode.ERROR)
    assert "without its decision the rest would be rolled back" in told
    assert not (decided.log / OPERATOR_LOG).exists()


def test_forget_needs_the_lock(mixed: Left) -> None:
    with xaqueue.TransactionManager(mixed.log, {}):
        told = fails("indoubt", "forget", mixed.gtrid, "--tm", mixed.log, code=ExitCode.ERROR)
    assert "stop its transaction manager first" in told
    assert not (mixed.log / OPERATOR_LOG).exists()


@pytest.mark.parametrize("verb", [("list",), ("show", "XAQ1" + "0" * 15 + "1" * 25)])
def test_what_is_no_log_is_refused(tmp_path: Path, verb: tuple[str, ...]) -> None:
    told = fails("indoubt", *verb, "--tm", tmp_path, code=ExitCode.ERROR)
    assert "is no decision log: name the log_dir of a TransactionManager" in told


def test_what_names_no_transaction_is_refused(decided: Left) -> None:
    for name in ("XAQ2", "7.Z3RyaWQ.YnF1YWw", "?"):
        told = fails("indoubt", "show", name, "--tm", decided.log, code=ExitCode.USAGE)
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
    assert why in fails("indoubt", "list", "--tm", decided.log, code=ExitCode.USAGE)


def test_a_log_may_begin_beside_its_configuration(tmp_path: Path) -> None:
    (tmp_path / "participants.toml").write_text("")
    with xaqueue.TransactionManager(tmp_path, {}) as manager:
        assert run("indoubt", "list", "--tm", tmp_path) == f"no transaction of node {manager.node} is in doubt\n"


@pytest.mark.parametrize("verb", ["commit", "rollback"])
def test_a_reason_has_no_place_where_nothing_is_decided(decided: Left, verb: str) -> None:
    told = fails("indoubt", verb, decided.gtrid, "--tm", decided.log, "--reason", "why", code=ExitCode.USAGE)
    assert "leave it out" in told
