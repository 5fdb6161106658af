"""What nodes tell each other in a database, on each kind of it that may decide: who may decide, and what stands."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.doubtful import run as cli
from xaqueue.errors import InvalidArgument, OperationalError
from xaqueue.tm import driver, guard
from xaqueue.tm.driver import run
from xaqueue.tm.gtrid import Gtrid
from xaqueue.tm.last_resource import DecisionRow, RowGone
from xaqueue.tm.node_decisions import IDLE_S, NodeEnded
from xaqueue.tm.node_schema import statements
from xaqueue.tm.node_tables import BranchState, NodeTables
from xaqueue.tm.records import Heuristic
from xaqueue.tm.voting import ParticipantOutcome
from xaqueue.xa import Outcome

NODE, OTHER = "a" * 16, "b" * 16
SPACE, ELSEWHERE = "0000-1111", "2222-3333"
COMMITTED, ROLLED_BACK = Outcome.COMMITTED, Outcome.ROLLED_BACK
CLOCK_S = 1.5
"""Some clocks count seconds."""
HASTY_S = 0.2


class Scene:
    """A database, and as many connections to it as are asked for."""

    def __init__(self, kind: str, connect: Callable[[], Any]) -> None:
        self.kind, self._connect = kind, connect
        self._opened: list[Any] = []
        self.own = self.connect()
        self.tables = self.found()
        self.tables.register(self.own, NODE, SPACE)

    def connect(self) -> Any:
        self._opened.append(self._connect())
        return self._opened[-1]

    def close(self) -> None:
        for connection in self._opened:
            connection.close()

    def found(self, *, make: bool = True) -> NodeTables:
        found = NodeTables.find(self.own, make=make)
        assert found is not None
        return found

    def gtrid(self, counter: int, node: str = NODE, sign: int = 1) -> bytes:
        return bytes(Gtrid(node, sign, counter, self.tables.database))

    def begun(self) -> Any:
        """A connection in an application's transaction."""
        connection = self.connect()
        if self.kind == "sqlite":
            connection.execute("BEGIN IMMEDIATE")
        guard.mark(connection, self.tables.dialect)
        return connection

    def decide(self, connection: Any, counter: int, node: str = NODE, **spaces: str) -> bool:
        row = DecisionRow(self.gtrid(counter, node), COMMITTED, tuple(spaces), spaces=spaces)
        return self.tables.insert(connection, row, self.tables.dialect)

    def decided(self, counter: int, node: str = NODE, **spaces: str) -> bytes:
        connection = self.begun()
        assert self.decide(connection, counter, node, **spaces)
        connection.commit()
        return self.gtrid(counter, node)

    def state(self, counter: int, node: str = NODE) -> BranchState:
        return self.tables.state_of(self.own, self.gtrid(counter, node))

    def rows(self, table: str, what: str = "*") -> list[Any]:
        found = run(self.own, f"SELECT {what} FROM {table}")
        self.own.rollback()
        return found

    @property
    def is_sqlite(self) -> bool:
        return self.kind == "sqlite"


SERVERS = ["postgresql", "mariadb"]
"""Where several write at a time."""


@pytest.fixture(params=[*SERVERS, "sqlite"])
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scene]:
    def sqlite() -> Any:
        return sqlite3.connect(tmp_path / "db", timeout=HASTY_S)

    if request.param == "postgresql":
        import psycopg

        dsn = request.getfixturevalue("dsn")
        connect: Callable[[], Any] = lambda: psycopg.connect(dsn)  # noqa: E731
    elif request.param == "mariadb":
        connect = request.getfixturevalue("mariadb")
    else:
        connect = sqlite
    with closing(Scene(request.param, connect)) as made:
        yield made


@pytest.fixture
def mariadb(mariadb_socket: str) -> Iterator[Callable[[], Any]]:
    import pymysql

    from support.mariadb import database

    with database(mariadb_socket) as name:
        yield lambda: pymysql.connect(unix_socket=mariadb_socket, user="root", database=name)


@pytest.fixture
def on_postgresql(dsn: str) -> Iterator[Scene]:
    import psycopg

    with closing(Scene("postgresql", lambda: psycopg.connect(dsn))) as made:
        yield made


# Names and signs


def test_the_tables_are_made_once(scene: Scene) -> None:
    assert scene.found(make=False) == scene.tables == scene.found()
    assert len(scene.tables.database) == 16
    assert scene.tables.trouble == ""
    assert NodeTables.find(scene.connect()) == scene.tables


def test_who_only_looks_makes_none(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "other")) as connection:
        assert NodeTables.find(connection) is None
        assert run(connection, "SELECT name FROM sqlite_master") == []


def test_another_kind_of_database_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="give TransactionManager one for its decisions"):
        statements(driver.Dialect.OTHER)


def test_a_sign_goes_in_behind_the_last_one_only(scene: Scene) -> None:
    """A copied machine has the same name, and gives a sign that is not the last one any more."""
    assert scene.tables.sign(scene.own, NODE, 1, SPACE)
    assert not scene.tables.sign(scene.own, NODE, 1, SPACE)
    assert scene.tables.sign(scene.own, NODE, 2, f"{SPACE} {ELSEWHERE}")
    assert not scene.tables.sign(scene.own, OTHER, 1, SPACE)
    assert scene.tables.signs(scene.own) == {NODE: 3}
    assert scene.rows("xaqueue_signs", "participants") == [(f"{SPACE} {ELSEWHERE}",)]


def test_a_close_leaves_nothing(scene: Scene) -> None:
    scene.tables.resolve(scene.own, scene.gtrid(1))
    scene.tables.close(scene.own, NODE)
    assert scene.tables.signs(scene.own) == {}
    for table in ("nodes", "signs", "ended", "decisions"):
        assert scene.rows(f"xaqueue_{table}") == []


# Who may decide


def test_a_decision_stands_with_who_has_voted(scene: Scene) -> None:
    connection = scene.begun()
    assert scene.decide(connection, 1, queue=SPACE, other=ELSEWHERE)
    if not scene.is_sqlite:
        assert scene.state(1) == (None, 1, True, False)
    connection.commit()
    assert scene.state(1) == (COMMITTED, 1, True, False)
    row = scene.tables.resolve(scene.own, scene.gtrid(1))
    assert (row.outcome, row.participants) == (COMMITTED, ("queue", "other"))
    assert row.spaces == {"queue": SPACE, "other": ELSEWHERE}


@pytest.mark.parametrize("scene", SERVERS, indirect=True)
def test_who_is_deciding_is_not_ended_and_nobody_waits(scene: Scene) -> None:
    """However many sessions of it overlap; once they are over it may be."""
    deciding = scene.begun()
    for counter in range(1, 9):
        assert scene.decide(deciding, counter, queue=SPACE)
        next_one = scene.begun()
        assert not scene.tables.end(scene.own, NODE)
        assert scene.decide(next_one, 100 + counter, queue=SPACE)
        deciding.commit()
        assert not scene.tables.end(scene.own, NODE)
        deciding.rollback()
        deciding, _ = scene.begun(), next_one.commit()
    assert scene.tables.end(scene.own, NODE)


def test_a_decision_for_more_than_a_row_can_name_is_refused(scene: Scene) -> None:
    deciding = scene.begun()
    with pytest.raises(InvalidArgument, match="40 participants are too many"):
        scene.decide(deciding, 1, **{f"queue{number}": f"{number:036}-{number:036}" for number in range(40)})
    deciding.rollback()
    assert scene.state(1).decision is None


@pytest.mark.parametrize("scene", ["sqlite"], indirect=True)
def test_sqlite_ends_nobody_while_somebody_writes(scene: Scene) -> None:
    deciding = scene.begun()
    assert scene.decide(deciding, 1, queue=SPACE)
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        scene.tables.end(scene.own, NODE)
    deciding.commit()
    assert scene.tables.end(scene.own, NODE)


def test_an_ended_node_decides_nothing_more(scene: Scene) -> None:
    late = scene.begun()  # before its end
    if scene.is_sqlite:
        late.rollback()
    assert scene.tables.end(scene.own, NODE)
    assert not scene.tables.end(scene.own, NODE)
    with pytest.raises(NodeEnded):
        scene.decide(scene.begun() if scene.is_sqlite else late, 1, queue=SPACE)
    assert scene.tables.signs(scene.own) == {}
    assert scene.rows("xaqueue_ended", "node, participants") == [(NODE, SPACE)]
    assert scene.rows("xaqueue_signs", "n") == [(1,)]
    for connection in scene._opened:
        connection.rollback()
    assert scene.state(1) == (None, 1, False, True)


@pytest.mark.parametrize("scene", SERVERS, indirect=True)
def test_a_decision_in_a_transaction_that_is_over_adds_nothing(scene: Scene) -> None:
    connection = scene.begun()
    connection.commit()
    assert not scene.decide(connection, 1, queue=SPACE)
    connection.rollback()
    assert scene.rows("xaqueue_decisions") == []


def test_forced_it_is_rolled_back_for_good(scene: Scene) -> None:
    """The second guard: also where the node's end was lost, as after a failover."""
    assert scene.tables.resolve(scene.own, scene.gtrid(1)).outcome is ROLLED_BACK
    assert scene.tables.resolve(scene.own, scene.gtrid(1)).outcome is ROLLED_BACK
    late = scene.begun()
    with pytest.raises(Exception, match=r"(?i)duplicate|unique"):
        scene.decide(late, 1, queue=SPACE)
    late.rollback()
    assert scene.state(1) == (ROLLED_BACK, 1, True, False)


def test_a_node_that_was_ended_learns_nothing_from_a_row_that_is_not_there(scene: Scene) -> None:
    """It may have said commit, and be struck by now."""
    assert scene.tables.resolve_own(scene.own, scene.gtrid(1)).outcome is ROLLED_BACK
    scene.decided(2, queue=SPACE)
    scene.decided(3, queue=SPACE)
    assert scene.tables.end(scene.own, NODE)
    for row in scene.tables.of_ended(scene.own, SPACE):
        if row.key == scene.gtrid(3).decode():
            scene.tables.strike(scene.own, row, SPACE)
    for _ in range(2):
        assert scene.tables.resolve_own(scene.own, scene.gtrid(1)).outcome is ROLLED_BACK
        assert scene.tables.resolve_own(scene.own, scene.gtrid(2)).outcome is COMMITTED
        with pytest.raises(RowGone):
            scene.tables.resolve_own(scene.own, scene.gtrid(3))
    assert scene.tables.resolve(scene.own, scene.gtrid(4)).outcome is ROLLED_BACK


def test_who_forces_waits_for_a_commit_and_not_for_ever(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xaqueue.tm.node_decisions.LOCK_S", 1)
    deciding = scene.begun()
    assert scene.decide(deciding, 1, queue=SPACE)
    with pytest.raises(Exception, match=r"(?i)lock"):
        scene.tables.resolve(scene.own, scene.gtrid(1))
    deciding.commit()
    assert scene.tables.resolve(scene.own, scene.gtrid(1)).outcome is COMMITTED


# What ended nodes have left


def test_what_participants_did_by_themselves_stands_until_it_is_forgotten(scene: Scene) -> None:
    tables, own, gtrid = scene.tables, scene.own, scene.gtrid(1)
    first = Heuristic(gtrid, "a=queue's%", COMMITTED, ParticipantOutcome.HEUR_HAZARD, 2, "it's 5 % \\ :x \u00e4\n")
    second = Heuristic(gtrid, "b", COMMITTED, ParticipantOutcome.HEUR_MIXED, 1)
    other = Heuristic(scene.gtrid(2), "b", ROLLED_BACK, ParticipantOutcome.HEUR_COMMITTED, 3)
    for one in (first, second, other):
        tables.note(own, one)
    assert tables.heuristics(own) == [second, first, other]
    assert (scene.state(1).decision, scene.state(2).decision, scene.state(3).decision) == (COMMITTED, ROLLED_BACK, None)
    again = replace(first, outcome=ParticipantOutcome.HEUR_ROLLED_BACK)
    tables.note(own, again)
    assert tables.heuristics(own) == [second, again, other]
    tables.forget(own, gtrid)
    assert tables.heuristics(own) == [other]
    tables.claim(own, is_new=True)
    assert scene.found().heuristics(own) == [], "another one's"


def test_tables_of_an_earlier_version_get_what_they_lack_where_they_are(on_postgresql: Scene) -> None:
    scene = on_postgresql
    for statement in ("drop table xaqueue_heuristics", "create schema mine", "set search_path = mine, public"):
        run(scene.own, statement)
    scene.own.commit()
    looked = scene.found(make=False)
    assert (looked.schema, looked.is_whole, looked.heuristics(scene.own)) == ("public.", False, [])
    assert looked.state_of(scene.own, scene.gtrid(1)) == (None, 1, True, False)
    made = scene.found()
    assert (made.schema, made.is_whole, made.heuristics(scene.own)) == ("public.", True, [])
    assert scene.rows("pg_class", "relnamespace = 'mine'::regnamespace").count((True,)) == 0


def test_a_decision_goes_with_the_last_one_that_has_carried_it_out(scene: Scene) -> None:
    gtrid = scene.decided(1, queue=SPACE, other=ELSEWHERE)
    scene.decided(2, queue=ELSEWHERE)
    scene.tables.resolve(scene.own, scene.gtrid(3))
    assert scene.tables.of_ended(scene.own, SPACE) == []  # its node lives
    scene.tables.end(scene.own, NODE)
    (first,) = scene.tables.of_ended(scene.own, SPACE)
    assert first.names() == {SPACE: "queue", ELSEWHERE: "other"}
    scene.tables.strike(scene.own, first, SPACE)
    scene.tables.strike(scene.own, first, ELSEWHERE)  # as it was read it is there no more
    assert scene.tables.of_ended(scene.own, SPACE) == []
    assert scene.state(1).decision is COMMITTED
    for one in scene.tables.of_ended(scene.own, ELSEWHERE):
        scene.tables.strike(scene.own, one, ELSEWHERE)
    assert scene.state(1).decision is scene.state(2).decision is None
    assert scene.state(3).decision is ROLLED_BACK
    assert gtrid not in [row[0] for row in scene.rows("xaqueue_decisions", "gtrid")]


def test_a_tombstone_goes_when_nothing_can_ask_for_it(scene: Scene) -> None:
    tables = scene.tables
    tables.sign(scene.own, NODE, 1, f"{SPACE} {ELSEWHERE}")
    scene.decided(1, queue=SPACE)
    tables.resolve(scene.own, scene.gtrid(2))
    tables.end(scene.own, NODE)
    assert tables.tombstones(scene.own, 3600.0) == []
    assert tables.tombstones(scene.own, -CLOCK_S) == []  # it has a decision
    (left,) = tables.of_ended(scene.own, SPACE)
    tables.strike(scene.own, left, SPACE)
    (tombstone,) = tables.tombstones(scene.own, -CLOCK_S)
    assert set(tombstone.names()) == {SPACE, ELSEWHERE}
    tables.bury(scene.own, tombstone, SPACE)
    tables.bury(scene.own, tombstone, ELSEWHERE)  # nor so
    (tombstone,) = tables.tombstones(scene.own, -CLOCK_S)
    assert set(tombstone.names()) == {ELSEWHERE}
    assert scene.state(2) == (ROLLED_BACK, 2, False, True)
    tables.bury(scene.own, tombstone, ELSEWHERE)
    assert scene.state(2) == (None, 0, False, False)
    for table in ("nodes", "signs", "ended", "decisions"):
        assert scene.rows(f"xaqueue_{table}") == []


def test_who_never_prepared_anything_leaves_a_tombstone_that_goes(scene: Scene) -> None:
    scene.tables.register(scene.own, OTHER, "")
    scene.tables.end(scene.own, OTHER)
    (tombstone,) = scene.tables.tombstones(scene.own, -CLOCK_S)
    assert tombstone.names() == {}
    scene.tables.bury(scene.own, tombstone, SPACE)
    assert scene.rows("xaqueue_ended") == []
    assert scene.rows("xaqueue_signs", "node") == [(NODE,)]


def test_silent_by_the_clock_of_the_database(scene: Scene) -> None:
    assert scene.tables.silent(scene.own, 600.0) == []
    assert scene.tables.silent(scene.own, -CLOCK_S) == [NODE]
    scene.tables.end(scene.own, NODE)
    assert scene.tables.silent(scene.own, -CLOCK_S) == []


# The database's ways


@pytest.mark.parametrize("scene", SERVERS, indirect=True)
@pytest.mark.parametrize("level", ["read committed", "repeatable read", "serializable"])
def test_whatever_an_application_reads_at_nobody_decides_for_an_ended_node(scene: Scene, level: str) -> None:
    """Its snapshot may be from before the end."""
    late = scene.connect()
    run(late, f"SET {'SESSION ' * (scene.kind == 'mariadb')}TRANSACTION ISOLATION LEVEL {level}")
    guard.mark(late, scene.tables.dialect)
    run(late, "SELECT COUNT(*) FROM xaqueue_id")
    assert scene.tables.end(scene.own, NODE)
    with pytest.raises(Exception, match=r"silent|serialize|changed since"):
        scene.decide(late, 1, queue=SPACE)
    late.rollback()
    assert scene.state(1) == (None, 1, False, True)


@pytest.mark.parametrize("scene", SERVERS, indirect=True)
@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_the_level_of_a_role_is_not_the_transaction_managers(scene: Scene, level: str) -> None:
    if scene.kind == "mariadb":
        run(scene.own, f"SET SESSION TRANSACTION ISOLATION LEVEL {level}")
    else:
        run(scene.own, f"SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL {level}")
        scene.own.commit()
    tables = scene.tables
    scene.decided(1, queue=SPACE)
    gone = scene.gtrid(2)
    tables.delete(scene.own, [gone])
    assert tables.sign(scene.own, NODE, 1, SPACE)
    assert tables.resolve(scene.own, scene.gtrid(3)).outcome is ROLLED_BACK
    assert tables.end(scene.own, NODE)
    (left,) = tables.of_ended(scene.own, SPACE)
    tables.strike(scene.own, left, SPACE)


@pytest.mark.parametrize("verb", ["register", "sign", "end", "force", "close"])
def test_what_nodes_say_survives_a_crash_of_the_database(dsn: str, verb: str) -> None:
    """Of a role at synchronous_commit = off."""
    import psycopg

    from support.postgres import crash, reached

    scene = Scene("postgresql", lambda: psycopg.connect(dsn, options="-c synchronous_commit=off"))
    tables, own = scene.tables, scene.own
    if verb == "register":
        tables.register(own, OTHER, SPACE)
    elif verb == "sign":
        assert tables.sign(own, NODE, 1, SPACE)
    elif verb == "end":
        assert tables.end(own, NODE)
    elif verb == "force":
        tables.resolve(own, scene.gtrid(1))
    else:
        tables.close(own, NODE)
    crash(dsn, own)
    scene.close()
    with reached(dsn) as again:
        state, signs = tables.state_of(again, scene.gtrid(1)), tables.signs(again)
    assert signs == {"register": {NODE: 1, OTHER: 1}, "sign": {NODE: 2}, "force": {NODE: 1}}.get(verb, {})
    assert state.is_ended == (verb == "end")
    assert (state.decision is ROLLED_BACK) == (verb == "force")


@pytest.mark.parametrize(("given", "deciding"), [("off", "on"), ("local", "on"), ("remote_apply", "remote_apply")])
def test_a_decision_waits_for_the_disk_and_for_what_copies_it(on_postgresql: Scene, given: str, deciding: str) -> None:
    connection = on_postgresql.begun()
    connection.rollback()
    connection.execute(f"set synchronous_commit = {given}")
    connection.commit()
    guard.mark(connection, on_postgresql.tables.dialect)
    assert on_postgresql.decide(connection, 1, queue=SPACE)
    assert connection.execute("show synchronous_commit").fetchall() == [(deciding,)]
    connection.commit()
    assert connection.execute("show synchronous_commit").fetchall() == [(given,)]


@pytest.mark.parametrize(
    ("given", "deciding"), [("0", "60s"), ("5s", "5s"), ("1h", "60s"), ("250ms", "250ms"), ("1min", "1min")]
)
def test_who_stands_still_behind_its_decision_is_ended_by_the_database(
    on_postgresql: Scene, given: str, deciding: str
) -> None:
    connection = on_postgresql.connect()
    connection.execute(f"set idle_in_transaction_session_timeout = '{given}'")
    connection.commit()
    guard.mark(connection, on_postgresql.tables.dialect)
    assert on_postgresql.decide(connection, 1, queue=SPACE)
    ((found,),) = connection.execute("select current_setting('idle_in_transaction_session_timeout')::interval")
    ((wanted,),) = on_postgresql.own.execute("select %s::interval", [deciding])
    assert found == wanted


@pytest.mark.parametrize(("given", "deciding"), [(0, IDLE_S), (5, 5), (3600, IDLE_S), (IDLE_S, IDLE_S)])
def test_mariadb_ends_who_stands_still_too(mariadb: Callable[[], Any], given: int, deciding: int) -> None:
    with closing(Scene("mariadb", mariadb)) as scene:
        connection = scene.connect()
        run(connection, f"SET SESSION idle_write_transaction_timeout = {given}")
        guard.mark(connection, scene.tables.dialect)
        assert scene.decide(connection, 1, queue=SPACE)
        assert run(connection, "SELECT @@idle_write_transaction_timeout") == [(deciding,)]


def test_a_schema_that_was_cloned_with_the_tables_is_not_looked_at(on_postgresql: Scene) -> None:
    """A tenant's, which the application's search path names first."""
    own = on_postgresql.own
    own.execute("create schema tenant")
    for table in ("id", "nodes", "signs", "ended", "decisions"):
        own.execute(f"create table tenant.xaqueue_{table} (like public.xaqueue_{table} including all)")
    own.commit()
    connection = on_postgresql.connect()
    connection.execute("set search_path = tenant, public")
    guard.mark(connection, on_postgresql.tables.dialect)
    assert on_postgresql.decide(connection, 1, queue=SPACE)
    connection.commit()
    assert on_postgresql.state(1).decision is COMMITTED
    assert own.execute("select count(*) from tenant.xaqueue_decisions").fetchall() == [(0,)]


def test_a_copy_of_the_database_touches_nobody(on_postgresql: Scene, dsn: str) -> None:
    import psycopg
    from psycopg.conninfo import conninfo_to_dict, make_conninfo

    name = f"{conninfo_to_dict(dsn)['dbname']}"
    on_postgresql.close()
    with psycopg.connect(make_conninfo(dsn, dbname="postgres"), autocommit=True) as plain:
        plain.execute(f"create database {name}_copy template {name}")
        try:
            with psycopg.connect(make_conninfo(dsn, dbname=f"{name}_copy")) as copied:
                found = NodeTables.find(copied)
                assert found is not None
                assert "it is a copy" in found.trouble
                assert found.database == on_postgresql.tables.database
                found.claim(copied, is_new=True)
                again = NodeTables.find(copied)
                assert again is not None
                assert again.trouble == ""
                assert again.database != on_postgresql.tables.database
        finally:
            plain.execute(f"drop database {name}_copy")


def test_a_role_that_may_make_no_tables(dsn: str) -> None:
    import psycopg

    with psycopg.connect(dsn) as connection:
        connection.execute("create role clerk login")
        connection.commit()
        try:
            with psycopg.connect(dsn, user="clerk") as own, pytest.raises(OperationalError, match="CREATE TABLE"):
                NodeTables.find(own, make=True)
            connection.execute(cli("tm", "sql", "postgresql", "--role", "clerk"))
            connection.commit()
            scene = Scene("postgresql", lambda: psycopg.connect(dsn, user="clerk"))
            scene.decided(1, queue=SPACE)
            scene.tables.resolve(scene.own, scene.gtrid(2))
            scene.tables.end(scene.own, NODE)
            scene.close()
        finally:
            connection.execute("drop owned by clerk")
            connection.execute("drop role clerk")


def test_a_galera_cluster_is_refused(mariadb: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a lock of one server keeps out nobody at the others."""
    with closing(mariadb()) as connection:
        answered = run

        def ask(connection: Any, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
            return [("1",)] if "wsrep_on" in statement else answered(connection, statement, *parameters)

        monkeypatch.setattr("xaqueue.tm.node_schema.run", ask)
        with pytest.raises(InvalidArgument, match="Galera"):
            NodeTables.find(connection, make=True)
