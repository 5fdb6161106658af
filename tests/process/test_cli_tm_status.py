"""What an operator sees of a transaction manager, by its log and by what waits at its participants."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import xaqueue
from support.carrying import wait_until_it_carries
from support.doubtful import fails, run
from support.served import Process
from support.tm_left import CONFIG, LAST, LEDGER, leave
from xaqueue.cli.exit_codes import ExitCode
from xaqueue.features.opening import create
from xaqueue.tm import last_resource


def told(tm: Path, *, code: int = ExitCode.OK) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run("tm", "status", tm, "--json", code=code))
    found["participants"] = {one["name"]: one for one in found["participants"]}
    return found


def test_what_a_killed_one_has_left(tmp_path: Path) -> None:
    left = leave(tmp_path, "decided")
    found = told(left.log)
    assert (found["node"], found["epoch"], found["in_use"], found["unfinished"]) == (left.node, 1, False, 1)
    for name in ("queue", "ledger"):
        assert found["participants"][name]["in_doubt"] == 1
        assert 0 < found["participants"][name]["since"] <= found["since"]
    shown = run("tm", "status", left.log)
    assert "unfinished  1 transaction, the oldest " in shown
    assert "not running: start its application" in shown
    with xaqueue.TransactionManager(left.log, {}):
        assert told(left.log)["in_use"]


def test_nothing_is_left(tmp_path: Path) -> None:
    left = leave(tmp_path, "decided")
    run("tm", "recover", left.log)
    found = told(left.log)
    assert (found["unfinished"], found["since"]) == (0, 0)
    assert [one["in_doubt"] for one in found["participants"].values()] == [0, 0]
    assert "unfinished  no decision of the log\n" in run("tm", "status", left.log)


def test_branches_of_others_do_not_count(tmp_path: Path) -> None:
    left = leave(tmp_path, "decide")
    with xaqueue.TransactionManager(tmp_path / "other", {}):
        pass
    (tmp_path / "other" / "participants.toml").write_text((left.log / "participants.toml").read_text())
    assert [one["in_doubt"] for one in told(tmp_path / "other")["participants"].values()] == [0, 0]
    assert [one["in_doubt"] for one in told(left.log)["participants"].values()] == [1, 1]


def test_what_a_database_carries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(last_resource.DecisionRows, "delete", lambda *_: None)
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
        assert (files["in_doubt"], queue["decisions"]) == (None, None)
        with closing(sqlite3.connect(tmp_path / "files.db")) as connection:
            own = f"from {last_resource.TABLE} where gtrid like 'XAQ1{manager.node}_%'"
            (rows,) = connection.execute(f"select count(*) {own}").fetchone()
        assert files["decisions"] == rows > 1, "the first ones prepare"
        assert f"{manager.node}.files carries changes of orders" in run("status", "--space", space)


def test_who_does_not_answer_and_who_is_not_known(tmp_path: Path) -> None:
    left = leave(tmp_path, "decided")
    gone = left.configure('[participants.ledger]\nkind = "sqlite"\npath = "nothing.db"\n')
    found = told(left.log, code=ExitCode.NOTHING)["participants"]
    assert "cannot be asked: unable to open" in found["ledger"]["error"]
    assert found["ledger"]["decisions"] is None
    assert found["queue"]["error"] == "not in participants.toml", "the log waits for it"
    gone.unlink()
    assert "participants are not known" in run("tm", "status", left.log)
    assert "is no decision log" in fails("tm", "status", tmp_path, code=ExitCode.ERROR)


def test_of_postgresql(tmp_path: Path, dsn: str) -> None:
    import psycopg

    with psycopg.connect(dsn) as connection:
        connection.execute("create table ledger (number integer)")
    left = leave(tmp_path, "decided", dsn=dsn)
    ledger = told(left.log)["participants"]["ledger"]
    assert (ledger["in_doubt"], ledger["decisions"]) == (1, 0)
    assert ledger["since"] > 0
    assert "holds back the vacuum" in ledger["note"]
    with psycopg.connect(dsn) as connection:
        connection.execute(f"create table {last_resource.TABLE} (gtrid varchar(64) primary key)")
        connection.commit()
        connection.execute(f"lock table {last_resource.TABLE} in access exclusive mode")
        assert "statement timeout" in told(left.log, code=ExitCode.NOTHING)["participants"]["ledger"]["error"]
        connection.execute(f"drop table {last_resource.TABLE}")
    run("tm", "recover", left.log)
    assert told(left.log)["participants"]["ledger"]["in_doubt"] == 0
    with psycopg.connect(dsn) as connection:
        connection.execute("drop table ledger")


def test_without_a_log_it_says_what_is_missing() -> None:
    assert "'DIR|DSN'" in fails("tm", "status", code=ExitCode.USAGE)


def killed_in_a_transaction(path: Path) -> None:
    """What it leaves is a journal that is to be rolled back."""
    writes = (
        f"import os, sqlite3; c = sqlite3.connect({str(path)!r}); c.execute('pragma cache_size = 1'); "
        "c.executemany('insert into files values (?)', ((n,) for n in range(100_000))); os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", writes], check=True)


def test_a_database_whose_application_was_killed_says_who_repairs_it(tmp_path: Path) -> None:
    left = leave(tmp_path, "committed-last", "files", last="files")
    killed_in_a_transaction(tmp_path / "files.db")
    assert "SQLite repairs that" in told(left.log, code=ExitCode.NOTHING)["participants"]["files"]["error"]
    assert "SQLite repairs that" in run("indoubt", "advise", left.gtrid, "--tm", left.log, code=ExitCode.NOTHING)
    with closing(sqlite3.connect(tmp_path / "files.db")) as connection:
        connection.execute("select * from files").fetchall()
    assert told(left.log)["participants"]["files"]["decisions"] == 1


def test_beside_a_write_ahead_log_nothing_is_made(tmp_path: Path) -> None:
    """What another user made there, its application could not write."""
    left = leave(tmp_path, "committed-last", "files", last="files")
    with closing(sqlite3.connect(tmp_path / "files.db")) as connection:
        connection.execute("pragma journal_mode = wal")
    before = sorted(tmp_path.iterdir())
    assert told(left.log)["participants"]["files"]["decisions"] == 1
    run("indoubt", "advise", left.gtrid, "--tm", left.log)
    assert sorted(tmp_path.iterdir()) == before
    with closing(sqlite3.connect(tmp_path / "files.db")) as connection:
        connection.execute(f"delete from {last_resource.TABLE}")
        connection.commit()
        assert told(left.log)["participants"]["files"]["decisions"] == 0, "what is in the log only is seen"


def test_a_table_of_before_queues_were_carried(tmp_path: Path) -> None:
    left = leave(tmp_path, "committed-last", "files", last="files")
    with closing(sqlite3.connect(tmp_path / "files.db")) as connection:
        connection.execute(f"alter table {last_resource.TABLE} drop column carried")
    assert told(left.log)["participants"]["files"]["decisions"] == 1


def test_a_space_that_is_away_is_not_to_be_made(tmp_path: Path) -> None:
    left = leave(tmp_path, "decided")
    left.queue.rename(tmp_path / "elsewhere")
    said = told(left.log, code=ExitCode.NOTHING)["participants"]["queue"]["error"]
    assert "bring back the disk" in said
    assert "init" not in said
    assert "bring back the disk" in run("indoubt", "advise", left.gtrid, "--tm", left.log)


def test_a_server_that_is_stopped_holds_up_nobody(tmp_path: Path) -> None:
    left = leave(tmp_path, "decided")
    with Process(left.queue) as server:
        served = f'[participants.queue]\nkind = "xaqueue"\nspace = "xaq+unix://{server.path}"\n'
        os.kill(server.pid, signal.SIGSTOP)
        try:
            assert told(left.log)["participants"]["queue"]["in_doubt"] == 1, "its directory is there to read"
            left.configure(served + LEDGER)
            assert "no answer within 5" in told(left.log, code=ExitCode.NOTHING)["participants"]["queue"]["error"]
            assert "no answer within 5" in run("indoubt", "advise", left.gtrid, "--tm", left.log)
        finally:
            os.kill(server.pid, signal.SIGCONT)
        assert told(left.log)["participants"]["queue"]["in_doubt"] == 1


def test_a_damaged_branch_hides_neither_itself_nor_the_age_of_the_others(tmp_path: Path) -> None:
    left = leave(tmp_path, "decided")
    before = told(left.log)["participants"]["queue"]["since"]
    assert before > 0
    with xaqueue.connect(left.queue) as connection:
        connection.close()
    for path in (left.queue / "prepared").rglob("*"):
        if path.is_file():
            path.write_bytes(b"\0" * path.stat().st_size)
    queue = told(left.log)["participants"]["queue"]
    assert queue["in_doubt"] == 1
    assert queue["note"] == f"1 of them damaged: xaqueue indoubt list --space {left.queue}"


def test_a_path_that_is_none(tmp_path: Path) -> None:
    left = leave(tmp_path, "decided")
    left.configure('[participants.ledger]\nkind = "sqlite"\npath = "a\\u0000b"\n')
    assert "is no path" in fails("tm", "status", left.log, code=ExitCode.USAGE)
