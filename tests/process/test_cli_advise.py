"""``indoubt advise`` puts everybody's evidence on one table, says the one consistent answer, and touches nothing."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import xaqueue
from support.doubtful import run
from support.served import serving
from support.tm_left import CONFIG, Left, leave
from xaqueue.cli import parameters
from xaqueue.cli.exit_codes import ExitCode
from xaqueue.core.engine.heuristics import decide
from xaqueue.features.session import attach
from xaqueue.rpc.client.manager import remote_manager
from xaqueue.tm.last_resource import DecisionRows
from xaqueue.xa import Outcome
from xaqueue.xid import Xid

ROWS = DecisionRows()


def advised(left: Left, *, code: int = ExitCode.OK) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(run("indoubt", "advise", left.gtrid, "--tm", left.log, "--json", code=code))
    return told


def said(told: dict[str, Any]) -> dict[str, str]:
    return {row["name"]: row["says"] for row in told["participants"]}


def contents(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


@contextmanager
def served(space: Path) -> Iterator[str]:
    """The URL of a server of this space."""
    with serving(space) as thread:
        yield thread.url


def by_hand(left: Left, participant: str, *, commit: bool, forgotten: bool = False) -> None:
    session = attach(left.root / participant, watch=False)
    decide(session.space, left.xid(participant), commit, "me@here", "why")
    if forgotten:
        session.forget_by_hand(left.xid(participant), "me@here")
    session.close()


@pytest.mark.parametrize(("step", "log", "answer"), [("decided", "commit", "commit"), ("decide", "none", "rollback")])
def test_the_log_decides_and_nothing_is_touched(tmp_path: Path, step: str, log: str, answer: str) -> None:
    left = leave(tmp_path, step)
    before = contents(tmp_path)
    told = advised(left)
    assert (told["gtrid"], told["answer"], told["in_doubt"]) == (left.gtrid, answer, ["queue", "ledger"])
    assert told["log"]["says"] == log
    assert said(told) == {"queue": "in doubt", "ledger": "in doubt"}
    shown = run("indoubt", "advise", left.gtrid, "--tm", left.log)
    assert [line.split()[:2] for line in shown.splitlines()[:4]] == [
        ["asked", "says"],
        ["decision", "log"],
        ["queue", "in"],
        ["ledger", "in"],
    ]
    for name in ("queue", "ledger"):
        space = left.root / name
        assert f"  {name}: xaqueue indoubt {answer} {left.xid(name)} --space {space} --reason '...'\n" in shown
    assert contents(tmp_path) == before


def test_following_it_by_hand_leaves_nothing_mixed(tmp_path: Path) -> None:
    left = leave(tmp_path, "decided")
    session = attach(left.ledger, watch=False)
    session.commit(left.xid("ledger"))
    session.close()
    told = advised(left)
    assert (told["answer"], told["in_doubt"]) == ("commit", ["queue"])
    assert said(told) == {"queue": "in doubt", "ledger": "not in doubt"}
    run("indoubt", told["answer"], left.xid("queue"), "--space", left.queue, "--reason", "why")
    assert advised(left)["answer"] == "nothing"
    with xaqueue.connect(left.queue) as queue, xaqueue.connect(left.ledger) as ledger:
        assert [len(list(queue.browse("orders"))), len(list(ledger.browse("rows")))] == [1, 1]


def test_every_participant_has_its_line(tmp_path: Path) -> None:
    """Also one that has carried the decision out, of which the log knows that it was prepared, and one that is gone."""
    left = leave(tmp_path, "decided")
    session = attach(left.ledger, watch=False)
    session.commit(left.xid("ledger"))
    session.close()
    words = ("indoubt", "advise", left.gtrid[:8], "--tm", left.log)
    shown = run(*words)
    assert "the decision names it, so it was prepared: it has carried it out" in shown
    assert "it may never have been" not in shown
    assert f"  queue: xaqueue indoubt commit {left.xid('queue')} --space" in shown
    assert "  ledger: nothing, it is not in doubt\n" in shown
    shutil.rmtree(left.ledger)
    shown = run(*words)
    assert f"once it answers: xaqueue indoubt commit {left.xid('ledger')} --space" in shown


def test_a_participant_that_remembers_its_outcome_proves_it_without_the_log(tmp_path: Path) -> None:
    left = leave(tmp_path, "decided")
    with served(left.ledger) as url:
        ledger = f'[participants.ledger]\nkind = "xaqueue"\nspace = "{url}"\n'
        config = tmp_path / "tm.toml"
        config.write_text('log_dir = "nowhere"\n' + CONFIG.replace("../queue", "queue") + ledger)
        words = ("indoubt", "advise", left.gtrid, "--tm", config, "--json")
        told = json.loads(run(*words, code=ExitCode.NOTHING))
        assert (told["answer"], told["log"]["says"]) == ("cannot know", "unread")
        manager = remote_manager(url)
        manager.commit(left.xid("ledger"))
        manager.close()
        told = json.loads(run(*words))
    assert (told["answer"], told["why"], told["in_doubt"]) == ("commit", "ledger has committed", ["queue"])


@pytest.mark.parametrize("forgotten", [False, True])
def test_what_was_done_by_hand_is_no_proof(tmp_path: Path, forgotten: bool) -> None:
    left = leave(tmp_path, "decided")
    by_hand(left, "ledger", commit=True, forgotten=forgotten)
    assert advised(left)["answer"] == "commit"
    assert said(advised(left))["ledger"] == "committed by hand"
    shutil.move(left.log / "participants.toml", tmp_path / "participants.toml")
    shutil.rmtree(left.log)
    left.log.mkdir()
    shutil.move(tmp_path / "participants.toml", left.log / "participants.toml")
    told = advised(left, code=ExitCode.NOTHING)
    assert (told["answer"], told["log"]["says"]) == ("cannot know", "unread")


def test_a_forgotten_decision_is_not_taken_for_the_coordinators(tmp_path: Path) -> None:
    """Its server answers "committed" for an hour; operators.log knows who did it."""
    left = leave(tmp_path, "decide")
    with served(left.ledger) as url:
        left.configure(CONFIG + f'[participants.ledger]\nkind = "xaqueue"\nspace = "{url}"\n')
        run("indoubt", "commit", left.xid("ledger"), "--space", url, "--reason", "why")
        run("indoubt", "forget", left.xid("ledger"), "--space", url, "--reason", "why")
        told = advised(left, code=ExitCode.NOTHING)
    assert said(told)["ledger"] == "committed by hand"
    assert (told["answer"], told["in_doubt"]) == ("mixed already", ["queue"])


def test_what_is_mixed_already_is_said_and_not_mended(tmp_path: Path) -> None:
    left = leave(tmp_path, "decided")
    by_hand(left, "ledger", commit=False)
    told = advised(left, code=ExitCode.NOTHING)
    assert told["answer"] == "mixed already"
    assert told["why"] == "the decision log says commit, and ledger has rolled back by hand"
    shown = run("indoubt", "advise", left.gtrid, "--tm", left.log, code=ExitCode.NOTHING)
    assert "indoubt commit" not in shown


def test_what_the_log_knows_of_a_participant_counts_when_that_says_nothing(tmp_path: Path) -> None:
    left = leave(tmp_path, "decided")
    by_hand(left, "ledger", commit=False)
    run("tm", "recover", left.log, code=ExitCode.NOTHING)
    session = attach(left.ledger, watch=False)
    session.forget(left.xid("ledger"))
    session.close()
    told = advised(left, code=ExitCode.NOTHING)
    assert said(told) == {"queue": "not in doubt", "ledger": "rolled back by hand"}
    assert told["answer"] == "mixed already"


def test_a_live_transaction_is_left_to_its_transaction_manager(tmp_path: Path) -> None:
    left = leave(tmp_path, "decide")
    seen: list[dict[str, Any]] = []

    def watch(step: str, gtrid: bytes, participant: str) -> None:
        if (str(step), participant) == ("decide", ""):
            live = Left(tmp_path, gtrid.decode())
            seen.append(advised(live, code=ExitCode.NOTHING))
            seen.append(advised(left))

    participants = {name: lambda name=name: xaqueue.connect(tmp_path / name) for name in ("queue", "ledger")}
    with xaqueue.TransactionManager(left.log, {}) as idle:
        assert idle.recover().complete
    with xaqueue.TransactionManager(left.log, participants, recovery_interval_s=600.0, on_step=watch) as manager:
        assert manager.recover().complete
        with manager.transaction("queue", "ledger") as tx:
            tx["queue"].enqueue("orders", b"another")
            tx["ledger"].enqueue("rows", b"another")
    live, earlier = seen
    assert (live["answer"], live["log"]["says"]) == ("cannot know", "live")
    assert "wait for it, or stop it" in live["why"]
    assert earlier["log"]["says"] == "none"


@pytest.mark.parametrize(
    ("step", "answer", "why"),
    [
        ("commit-last", "this will be rolled back", "start the application, or run `xaqueue tm recover`"),
        ("committed-last", "commit", "files has committed"),
    ],
)
def test_the_row_in_the_last_resource_is_the_decision(tmp_path: Path, step: str, answer: str, why: str) -> None:
    left = leave(tmp_path, step, "files", last="files")
    told = advised(left)
    assert (told["answer"], told["log"]["says"]) == (answer, "last")
    assert why in told["why"]
    assert run("tm", "recover", left.log).endswith("0 transactions left\n")
    with xaqueue.connect(left.queue) as queue:
        assert len(list(queue.browse("orders"))) == (1 if answer == "commit" else 0)


def test_a_row_that_says_rollback_tells_of_its_own_database_only(tmp_path: Path) -> None:
    """Two that may have decided in the same life: recovery has ruled it out in one, and the other one has decided."""

    def stop(step: str, gtrid: bytes, participant: str) -> None:
        if (str(step), participant) == ("commit", "queue") and names[-1] == "files":
            raise KeyboardInterrupt

    xaqueue.connect(tmp_path / "queue", create=True).close()
    databases = {name: partial(sqlite3.connect, tmp_path / f"{name}.db") for name in ("files", "other")}
    participants: dict[str, Any] = {"queue": partial(xaqueue.connect, tmp_path / "queue"), **databases}
    names: list[str] = []
    with xaqueue.TransactionManager(tmp_path / "log", participants, recovery_interval_s=600.0, on_step=stop) as manager:
        for name in ("other", "files"):
            names.append(name)
            with suppress(KeyboardInterrupt), manager.transaction("queue", name) as tx:
                tx["queue"].enqueue("orders", b"order")
    with closing(databases["other"]()) as connection:
        assert ROWS.resolve(connection, tx.gtrid).outcome is Outcome.ROLLED_BACK
    left = Left(tmp_path, tx.gtrid.decode())
    sqlite = "".join(f'[participants.{name}]\nkind = "sqlite"\npath = "../{name}.db"\n' for name in databases)
    left.configure('[participants.queue]\nkind = "xaqueue"\nspace = "../queue"\n' + sqlite)
    assert (advised(left)["answer"], said(advised(left))["other"]) == ("commit", "not in doubt")
    (tmp_path / "files.db").rename(tmp_path / "away.db")
    told = advised(left, code=ExitCode.NOTHING)
    assert (told["answer"], said(told)["files"]) == ("cannot know", "does not answer")
    (tmp_path / "away.db").rename(tmp_path / "files.db")
    run("tm", "recover", left.log)
    with xaqueue.connect(left.queue) as queue:
        assert len(list(queue.browse("orders"))) == 2


def test_a_participant_that_cannot_be_asked_says_so(tmp_path: Path) -> None:
    left = leave(tmp_path, "decided")
    left.configure(CONFIG + '[participants.ledger]\nkind = "xaqueue"\nspace = "../gone"\n')
    told = advised(left)
    assert (told["answer"], said(told)["ledger"]) == ("commit", "does not answer")
    assert "ledger does not answer" in told["why"]


def test_a_participant_that_only_the_decision_names_is_not_overlooked(tmp_path: Path) -> None:
    left = leave(tmp_path, "decided")
    left.configure(CONFIG)
    told = advised(left)
    assert said(told) == {"queue": "in doubt", "ledger": "does not answer"}
    assert "the configuration does not" in told["participants"][1]["detail"]


def test_a_branch_under_a_name_that_is_not_configured_is_told(tmp_path: Path) -> None:
    left = leave(tmp_path, "decide")
    left.configure('[participants.renamed]\nkind = "xaqueue"\nspace = "../queue"\n')
    told = advised(left)
    assert said(told) == {"renamed": "not in doubt", "queue": "in doubt"}
    assert told["in_doubt"] == ["queue"]
    assert f"  queue: rollback of {left.xid('queue')}\n" in run("indoubt", "advise", left.gtrid, "--tm", left.log)


def test_postgres_tells_what_is_prepared_and_the_command_works(tmp_path: Path, dsn: str) -> None:
    import psycopg

    with psycopg.connect(dsn) as connection:
        connection.execute("CREATE TABLE ledger (number INTEGER)")
        connection.execute("CREATE TABLE other (number INTEGER)")
    foreign = psycopg.connect(dsn)
    foreign.tpc_begin("another application's")
    foreign.execute("INSERT INTO other VALUES (1)")
    foreign.tpc_prepare()
    foreign.close()
    left = leave(tmp_path, "decided", dsn=dsn)
    told = advised(left)
    assert said(told) == {"queue": "in doubt", "ledger": "in doubt"}
    gid = told["participants"][1]["detail"]
    assert json.loads(run("indoubt", "advise", f"'{gid}'", "--tm", left.log, "--json")) == told
    shown = run("indoubt", "advise", left.gtrid, "--tm", left.log)
    (command,) = [line.partition(": ")[2] for line in shown.splitlines() if line.startswith("  ledger: ")]
    assert command == f"COMMIT PREPARED '{gid}'"
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(command)
        assert connection.execute("SELECT count(*) FROM ledger").fetchone() == (1,)
    told = advised(left)
    assert (told["answer"], told["in_doubt"]) == ("commit", ["queue"])
    assert said(told)["ledger"] == "not in doubt"


def test_a_postgres_that_is_down_says_so(tmp_path: Path) -> None:
    left = leave(tmp_path, "decided")
    left.configure(CONFIG + '[participants.ledger]\nkind = "postgres"\ndsn = "host=/nowhere"\n')
    told = advised(left)
    assert (said(told)["ledger"], told["answer"]) == ("does not answer", "commit")
    assert "/nowhere" in told["participants"][1]["detail"]


def test_a_space_that_is_not_configured_is_asked_too(tmp_path: Path) -> None:
    """By --space, which names its branches by their beginnings, too."""
    left = leave(tmp_path, "decide")
    left.configure('[participants.ledger]\nkind = "xaqueue"\nspace = "../ledger"\n')
    assert advised(left)["in_doubt"] == ["ledger"]
    told = run("indoubt", "advise", left.gtrid[:10], "--tm", left.log, "--space", left.queue, "--json")
    assert (json.loads(told)["answer"], json.loads(told)["in_doubt"]) == ("rollback", ["ledger", "queue"])
    words = ("indoubt", "advise", left.gtrid, "--tm", left.log, "--space", left.ledger, "--json")
    assert json.loads(run(*words)) == advised(left)


FOREIGN = Xid(131077, b"global-7", b"of the queue")


def test_everybody_is_asked_of_another_products_transaction(tmp_path: Path, dsn: str) -> None:
    """Its branches have a bqual each, so that what PostgreSQL has is found by the gtrid alone."""
    import psycopg

    theirs = Xid(131077, b"global-7", b"of the ledger")
    with psycopg.connect(dsn) as connection:
        connection.execute("CREATE TABLE theirs (number INTEGER)")
    with closing(psycopg.connect(dsn)) as connection:
        connection.tpc_begin(connection.xid(131077, "global-7", "of the ledger"))
        connection.execute("INSERT INTO theirs VALUES (1)")
        connection.tpc_prepare()
    gid = parameters.postgres_gid(theirs)
    with xaqueue.connect(tmp_path / "queue", create=True) as queue:
        queue.tpc_begin(FOREIGN)
        queue.enqueue("orders", b"x")
        queue.tpc_prepare()
    with xaqueue.TransactionManager(tmp_path / "log", {}):
        pass
    (tmp_path / "log" / "participants.toml").write_text(
        f'{CONFIG}[participants.ledger]\nkind = "postgres"\ndsn = "{dsn}"\n'
        '[participants.gone]\nkind = "xaqueue"\nspace = "../gone"\n'
    )
    for text in (FOREIGN, gid, "global-7", "global-", f"'{gid}'"):
        words = ("indoubt", "advise", text, "--tm", tmp_path / "log")
        told = json.loads(run(*words, "--json", code=ExitCode.NOTHING))
        assert said(told) == {"queue": "in doubt", "ledger": "in doubt", "gone": "does not answer"}
        assert (told["gtrid"], told["answer"], told["in_doubt"]) == ("global-7", "cannot know", ["queue", "ledger"])
    assert gid in run(*words, code=ExitCode.NOTHING)
    shown = run("indoubt", "show", FOREIGN, "--space", tmp_path / "queue")
    assert f"{parameters.postgres_gid(FOREIGN, whole=False)}..." in shown
    assert parameters.postgres_gid(FOREIGN) not in shown
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"ROLLBACK PREPARED '{gid}'")
    told = json.loads(run(*words, "--json", code=ExitCode.NOTHING))
    assert (said(told)["ledger"], told["in_doubt"]) == ("not in doubt", ["queue"])
