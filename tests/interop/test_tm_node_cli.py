"""The operator's commands on a database that keeps the decisions: its tables, its nodes, and what they have left."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from typer.testing import CliRunner

import xaqueue
from support.mariadb import database
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
    manager = TransactionManager(parties, on_step=die, carry=False)
    tx = manager.transaction()
    tx["queue"].enqueue("q", b"1")
    cursor = tx["db"].cursor()
    cursor.execute("insert into orders values (1)")
    cursor.close()
    with pytest.raises(Killed):
        tx.commit()
    for branch in tx.branches.values():
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


def leave_two(place: Path, dsn: str, at: str) -> Path:
    """SQLite decides, a PostgreSQL and a queue have prepared, and the process died there; its configuration."""
    xaqueue.connect(place / "space", create=True).close()
    (place / "space" / "queues.toml").write_text("[queues.q]\n")
    with psycopg.connect(dsn) as own, closing(sqlite3.connect(place / "db")) as other:
        for each in (own, other):
            each.execute("create table orders (n int)")
    (place / "service.toml").write_text(
        'decides = "db"\n[participants.db]\nkind = "sqlite"\npath = "db"\n'
        f'[participants.ledger]\nkind = "postgres"\ndsn = "{dsn}"\n'
        '[participants.queue]\nkind = "xaqueue"\nspace = "space"\n'
    )

    def die(step: str, gtrid: bytes, name: str) -> None:
        if step == at:
            raise Killed

    parties: dict[str, Any] = {
        "db": partial(sqlite3.connect, place / "db"),
        "ledger": partial(psycopg.connect, dsn),
        "queue": str(place / "space"),
    }
    manager = TransactionManager(parties, decides="db", on_step=die)
    tx = manager.transaction()
    tx["queue"].enqueue("q", b"1")
    for name in ("ledger", "db"):
        tx[name].execute("insert into orders values (1)")
    manager._log._closed.set()  # type: ignore[attr-defined]
    for recovery in manager._recoveries.values():
        recovery.stop(5)
    with pytest.raises(Killed):
        tx.commit()
    for branch in tx.branches.values():
        branch.discard()
    manager.close()
    with closing(sqlite3.connect(place / "db")) as other, other:
        other.execute(f"update xaqueue_signs set at = at - {HOUR_US}")
    return place / "service.toml"


@pytest.mark.parametrize(("at", "comes"), [("commit-last", 0), ("committed-last", 1)])
@pytest.mark.parametrize("is_named", [True, False])
def test_a_database_that_prepares_is_finished_too(
    dsn: str, tmp_path: Path, at: str, comes: int, is_named: bool
) -> None:
    config = leave_two(tmp_path, dsn, at)
    others = [config] if is_named else [tmp_path / "db", tmp_path / "space", dsn]
    told = said("tm", "recover", *others)
    done = "1 committed, 0 rolled back" if comes else "0 committed, 1 rolled back"
    assert told.count(done) == 2
    assert ("ledger: " if is_named else "postgres database: ") in told
    assert dsn not in told
    with psycopg.connect(dsn) as own, xaqueue.connect(tmp_path / "space") as queue:
        assert own.execute("select count(*) from orders").fetchone() == (comes,)
        assert own.execute("select 1 from pg_prepared_xacts where database = current_database()").fetchall() == []
        assert (len(list(queue.browse("q"))), queue.tpc_recover()) == (comes, [])


def test_what_a_database_has_prepared_that_nobody_knows_is_named(dsn: str, tmp_path: Path) -> None:
    config = leave_two(tmp_path, dsn, "commit-last")
    said("tm", "claim", "--new-id", config, "--yes")
    (found,) = json.loads(said("indoubt", "list", "--space", tmp_path / "space", "--json"))
    gtrid = found["coordinator"]["gtrid"]
    told = json.loads(said("indoubt", "advise", gtrid, "--tm", config, "--json", fails=True))
    assert (told["log"]["says"], told["in_doubt"]) == ("foreign", ["ledger", "queue"])
    (gid,) = [one["detail"] for one in told["participants"] if one["name"] == "ledger"]
    with psycopg.connect(dsn, autocommit=True) as own:
        own.execute(f"ROLLBACK PREPARED '{gid}'")
    assert json.loads(said("indoubt", "advise", gtrid, "--tm", config, "--json", fails=True))["in_doubt"] == ["queue"]


@pytest.fixture
def in_mariadb(mariadb_socket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, Connect]]:
    """A configuration, and how its database is opened."""
    import pymysql

    monkeypatch.setattr("xaqueue.tm.node.Timing", lambda: FAST)
    xaqueue.connect(tmp_path / "space", create=True).close()
    (tmp_path / "space" / "queues.toml").write_text("[queues.q]\n")
    with database(mariadb_socket) as name:
        dsn = f"mariadb://root@localhost/{name}?unix_socket={mariadb_socket}&connect_timeout=5"
        (tmp_path / "service.toml").write_text(
            f'decides = "db"\n[participants.db]\nkind = "mysql"\ndsn = "{dsn}"\n'
            '[participants.queue]\nkind = "xaqueue"\nspace = "space"\n'
        )
        connect = partial(pymysql.connect, unix_socket=mariadb_socket, user="root", database=name)
        with closing(connect()) as own:
            own.cursor().execute("create table orders (n int)")
        yield tmp_path / "service.toml", connect


def test_mysql_is_named_in_a_configuration(in_mariadb: tuple[Path, Connect]) -> None:
    config, connect = in_mariadb
    name = leave(config, connect, "committed-last")
    (node,) = json.loads(said("tm", "status", config, "--json"))["nodes"]
    assert (node["node"], node["is_silent"]) == (name, True)
    assert f"node {name}: ended" in said("tm", "recover", config)
    with xaqueue.connect(config.parent / "space") as connection:
        assert len(list(connection.browse("q"))) == 1


def test_who_stands_still_behind_a_decision_is_named_with_its_kill(
    in_mariadb: tuple[Path, Connect], monkeypatch: pytest.MonkeyPatch
) -> None:
    config, connect = in_mariadb
    name = leave(config, connect, "commit-last")
    monkeypatch.setattr("xaqueue.cli.tm_nodes.STILL_S", 0)
    with closing(connect()) as still, closing(connect()) as reading:
        cursor = still.cursor()
        cursor.execute(
            "insert into xaqueue_decisions (gtrid, decision, participants) "
            f"select 'x', 'commit', '' from xaqueue_nodes where node = '{name}' lock in share mode"
        )
        reading.cursor().execute("select * from orders")
        cursor.execute("select connection_id()")
        ((session,),) = cursor.fetchall()
        assert f"node {name}: ended" not in said("tm", "recover", config)
        found = json.loads(said("tm", "status", config, "--json"))
        assert [(one["session"], one["end"]) for one in found["sessions"]] == [(session, f"KILL {session}")]
        assert f"`KILL {session}` ends it" in found["notes"][0]
        assert f"`KILL {session}` ends it" in said("tm", "status", config)
        with closing(connect()) as own:
            own.cursor().execute(found["sessions"][0]["end"])
        assert f"node {name}: ended" in said("tm", "recover", config)
    assert json.loads(said("tm", "status", config, "--json"))["notes"] == []


def test_who_may_not_look_at_sessions_is_told(in_mariadb: tuple[Path, Connect]) -> None:
    config, connect = in_mariadb
    leave(config, connect, "commit-last")
    with closing(connect()) as own:
        cursor = own.cursor()
        cursor.execute("select database()")
        ((name,),) = cursor.fetchall()
        cursor.execute(f"create user {name}@localhost")
        cursor.execute(f"grant all on {name}.* to {name}@localhost")
    config.write_text(config.read_text().replace("root@", f"{name}@"))
    found = json.loads(said("tm", "status", config, "--json"))
    assert found["sessions"] is None
    assert "the right PROCESS" in found["notes"][0]


def test_mysql_beside_a_log(in_mariadb: tuple[Path, Connect], tmp_path: Path) -> None:
    config, connect = in_mariadb
    parties: dict[str, Any] = {"db": connect, "queue": str(tmp_path / "space")}
    with TransactionManager(tmp_path / "log", parties) as manager, manager.transaction() as tx:
        tx["queue"].enqueue("q", b"1")
        tx["db"].cursor().execute("insert into orders values (1)")
    (tmp_path / "log" / "participants.toml").write_text(
        config.read_text().replace('decides = "db"\n', "").replace('"space"', '"../space"')
    )
    found = json.loads(said("tm", "status", tmp_path / "log", "--json"))
    assert {one["name"]: one["error"] for one in found["participants"]} == {"db": "", "queue": ""}
    assert "db: recovered" in said("tm", "recover", tmp_path / "log")
    gtrid = f"XAQ1{found['node']}{1:08x}{1:016x}"
    assert "no row in xaqueue_decisions" in said("indoubt", "advise", gtrid, "--tm", tmp_path / "log")


def test_there_is_no_log_to_look_at(place: tuple[Path, str, Connect]) -> None:
    assert "there is no log" in said("tm", "release", place[0], "a" * 32, fails=True)
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
    said("tm", "claim", "--new-id", config, "--yes")
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
