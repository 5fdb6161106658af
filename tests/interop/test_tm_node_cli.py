"""The operator's commands on a database that keeps the decisions: its tables, its nodes, and what they have left."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from typer.testing import CliRunner

import xaqueue
from support.node_child import FAST
from xaqueue import TransactionManager
from xaqueue.cli.main import app
from xaqueue.tm.node_tables import NodeTables

Connect = Callable[[], Any]
HOUR_US = 3_600_000_000


def said(*words: object, fails: bool = False) -> str:
    result = CliRunner().invoke(app, list(map(str, words)))
    assert (result.exit_code != 0) == fails, result.output
    return result.output


class Killed(BaseException):
    """What comes instead of the end of a process."""


@pytest.fixture(params=["postgresql", "sqlite"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, str, Connect]:
    """A configuration, what names the database without it, and how it is opened."""
    monkeypatch.setattr("xaqueue.tm.node.Timing", lambda: FAST)
    xaqueue.connect(tmp_path / "space", create=True).close()
    (tmp_path / "space" / "queues.toml").write_text("[queues.q]\n")
    if request.param == "sqlite":
        where, kind = str(tmp_path / "db"), 'kind = "sqlite"\npath'
        connect: Connect = partial(sqlite3.connect, where)
    else:
        where, kind = request.getfixturevalue("dsn"), 'kind = "postgres"\ndsn'
        connect = partial(psycopg.connect, where)
    (tmp_path / "service.toml").write_text(
        f'decides = "db"\n[participants.db]\n{kind} = {json.dumps(where)}\n'
        '[participants.queue]\nkind = "xaqueue"\nspace = "space"\n'
    )
    with closing(connect()) as own:
        own.cursor().execute("create table orders (n int)")
        own.commit()
    return tmp_path / "service.toml", where, connect


def leave(place: Path, connect: Connect, at: str) -> str:
    """A process that died there, an hour ago; its name."""

    def die(step: str, gtrid: bytes, name: str) -> None:
        if step == at:
            raise Killed

    parties: dict[str, Any] = {"db": connect, "queue": partial(xaqueue.connect, place.parent / "space")}
    manager = TransactionManager(parties, on_step=die)
    tx = manager.transaction()
    tx["queue"].enqueue("q", b"1")
    cursor = tx["db"].cursor()
    cursor.execute("insert into orders values (1)")
    cursor.close()
    with pytest.raises(Killed):
        tx.commit()
    for branch in tx._branches.values():
        branch.discard()
    name = manager.node
    manager._log._closed.set()  # type: ignore[attr-defined]
    manager.close()
    with closing(connect()) as own:
        own.cursor().execute(f"update xaqueue_signs set at = at - {HOUR_US}")
        own.commit()
    return name


@pytest.mark.parametrize(("at", "rows"), [("commit-last", 0), ("committed-last", 1)])
def test_a_cron_job_finishes_what_the_dead_have_left(place: tuple[Path, str, Connect], at: str, rows: int) -> None:
    config, where, connect = place
    name = leave(config, connect, at)
    for named in (config, where):
        told = said("tm", "status", named)
        assert name in told
        assert "silent" in told
        (node,) = json.loads(said("tm", "status", named, "--json"))["nodes"]
        assert (node["node"], node["decisions"], node["is_silent"], node["ended_us"]) == (name, rows, True, 0)
    told = said("tm", "recover", config)
    assert f"node {name}: ended" in told
    with xaqueue.connect(config.parent / "space") as connection:
        assert connection.tpc_recover() == []
        assert len(list(connection.browse("q"))) == rows
    with closing(connect()) as own:
        cursor = own.cursor()
        cursor.execute("select count(*) from orders")
        assert cursor.fetchall()[0][0] == rows
    assert "ended" in said("tm", "status", config)


def test_there_is_no_log_to_look_at(place: tuple[Path, str, Connect]) -> None:
    assert "there is no log" in said("indoubt", "list", "--tm", place[0], fails=True)
    assert "no tables of nodes" in said("tm", "status", place[0], fails=True)


def test_a_copy_gets_an_id_of_its_own(place: tuple[Path, str, Connect]) -> None:
    config, where, connect = place
    leave(config, connect, "commit-last")

    def found() -> NodeTables:
        with closing(connect()) as own:
            tables = NodeTables.find(own)
            assert tables is not None
            return tables

    with closing(connect()) as own:
        own.cursor().execute("update xaqueue_id set place = '1/2'")
        own.commit()
    before = found()
    assert bool(before.trouble) == ("sqlite" not in config.read_text())
    said("tm", "claim", where if Path(where).exists() else config, "--yes")
    assert (found().database, found().trouble) == (before.database, "")
    said("tm", "new-id", config, "--yes")
    assert found().database != before.database


@pytest.mark.parametrize("kind", ["postgresql", "sqlite", "mariadb", "mysql"])
def test_the_tables_for_a_migration(kind: str) -> None:
    told = said("tm", "sql", kind)
    assert told.count("CREATE TABLE") == 6
    assert ("GRANT SELECT, INSERT, UPDATE" in told) == (kind != "sqlite")
    assert "none of PostgreSQL" in said("tm", "sql", "oracle", fails=True)


def test_the_printed_statements_make_what_is_used(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "db")) as connection:
        connection.executescript(said("tm", "sql", "sqlite"))
        assert NodeTables.find(connection) is not None


@pytest.mark.parametrize("more", ['log_dir = "log"\n', 'last_resource = "db"\n', ""])
def test_a_configuration_that_says_two_things_is_refused(tmp_path: Path, more: str) -> None:
    decides = "db" if more else "other"
    (tmp_path / "a.toml").write_text(f'decides = "{decides}"\n{more}[participants.db]\nkind = "postgres"\ndsn = "x"\n')
    assert "goes with neither" in said("tm", "recover", tmp_path / "a.toml", fails=True)
