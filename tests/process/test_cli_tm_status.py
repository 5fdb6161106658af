"""What an operator sees of a transaction manager, by its log and by what waits at its participants."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import xaqueue
from support.carrying import wait_until_it_carries
from support.doubtful import fails, run
from support.tm_left import CONFIG, LAST, leave
from xaqueue.cli.exit_codes import ExitCode
from xaqueue.space.owner.open import create
from xaqueue.tm import last_resource


def told(tm: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run("tm", "status", tm, "--json"))
    found["participants"] = {one["name"]: one for one in found["participants"]}
    return found


def test_what_a_killed_one_has_left(tmp_path: Path) -> None:
    left = leave(tmp_path, "decided")
    found = told(left.log)
    assert (found["node"], found["epoch"], found["in_use"], found["open"]) == (left.node, 1, False, 1)
    for name in ("queue", "ledger"):
        assert found["participants"][name]["in_doubt"] == 1
        assert 0 < found["participants"][name]["since"] <= found["since"]
    shown = run("tm", "status", left.log)
    assert "open   1 transaction, the oldest of " in shown
    assert "not in use" in shown
    with xaqueue.TransactionManager(left.log, {}):
        assert told(left.log)["in_use"]


def test_nothing_is_left(tmp_path: Path) -> None:
    left = leave(tmp_path, "decided")
    run("indoubt", "commit", left.gtrid, "--tm", left.log)
    found = told(left.log)
    assert (found["open"], found["since"]) == (0, 0)
    assert [one["in_doubt"] for one in found["participants"].values()] == [0, 0]
    assert "open   no decision\n" in run("tm", "status", left.log)


def test_branches_of_others_do_not_count(tmp_path: Path) -> None:
    left = leave(tmp_path, "decide")
    with xaqueue.TransactionManager(tmp_path / "other", {}):
        pass
    (tmp_path / "other" / "participants.toml").write_text((left.log / "participants.toml").read_text())
    assert [one["in_doubt"] for one in told(tmp_path / "other")["participants"].values()] == [0, 0]
    assert [one["in_doubt"] for one in told(left.log)["participants"].values()] == [1, 1]


def test_what_a_database_carries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(last_resource, "delete_rows", lambda *_: None)
    with closing(sqlite3.connect(tmp_path / "files.db")) as connection:
        connection.execute("create table files (number integer)")
    space, log = tmp_path / "queue", tmp_path / "log"
    create(space, any_queue=True)
    opened = {"files": lambda: sqlite3.connect(tmp_path / "files.db"), "queue": lambda: xaqueue.connect(space)}
    with xaqueue.connect(space), xaqueue.TransactionManager(log, opened) as manager:
        wait_until_it_carries(manager, "files")
        with manager.transaction() as tx:
            tx["files"].execute("insert into files values (1)")
            tx["queue"].enqueue("orders", b"order")
        (log / "participants.toml").write_text(CONFIG + LAST)
        found = told(log)
        assert found["decides"] == ["files"]
        files, queue = found["participants"]["files"], found["participants"]["queue"]
        assert (files["carried"], files["in_doubt"]) == (1, 0)
        assert files["rows"] > files["carried"], "the first ones prepare"
        assert queue["says"] == f"{manager.node}.files carries changes of orders"


def test_who_does_not_answer_and_who_is_not_known(tmp_path: Path) -> None:
    left = leave(tmp_path, "decided")
    gone = left.configure('[participants.ledger]\nkind = "sqlite"\npath = "nothing.db"\n')
    assert "cannot be asked: unable to open" in told(left.log)["participants"]["ledger"]["says"]
    gone.unlink()
    assert "participants are not known" in run("tm", "status", left.log)
    assert "is no decision log" in fails("tm", "status", tmp_path, code=ExitCode.ERROR)


def test_of_postgresql(tmp_path: Path, dsn: str) -> None:
    import psycopg

    with psycopg.connect(dsn) as connection:
        connection.execute("create table ledger (number integer)")
    left = leave(tmp_path, "decided", dsn=dsn)
    ledger = told(left.log)["participants"]["ledger"]
    assert (ledger["in_doubt"], ledger["rows"]) == (1, 0)
    assert ledger["since"] > 0
    assert "holds back the vacuum" in ledger["says"]
    run("indoubt", "commit", left.gtrid, "--tm", left.log)
    assert told(left.log)["participants"]["ledger"]["in_doubt"] == 0
    with psycopg.connect(dsn) as connection:
        connection.execute("drop table ledger")


def test_without_a_log_it_says_what_is_missing() -> None:
    assert "'DIR'" in fails("tm", "status", code=ExitCode.USAGE)
