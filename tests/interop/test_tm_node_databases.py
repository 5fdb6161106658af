"""Transaction managers without a directory over two databases: one of them decides, and the other one prepares."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

pytest.importorskip("sqlalchemy", reason="sqlalchemy is not installed")

from sqlalchemy import NullPool, create_engine, text

import xaqueue
from support.node_child import FAST
from support.patience import eventually
from xaqueue import TransactionManager
from xaqueue.errors import InvalidArgument, RolledBack
from xaqueue.tm import node as node_module
from xaqueue.tm.branch import EnlistedBranch
from xaqueue.tm.driver import run
from xaqueue.tm.gtrid import FORMAT_ID
from xaqueue.tm.node import DatabaseNode
from xaqueue.tm.node_schema import Identity, identity_of
from xaqueue.tm.node_tables import NodeTables
from xaqueue.tm.sweep import Sweep
from xaqueue.tm.voting import Reply
from xaqueue.xa import Code

WAYS = ["psycopg", "engine of psycopg", "engine of pymysql"]
"""How the database is opened that prepares."""


class Killed(BaseException):
    """What comes instead of the end of a process."""


class Scene:
    """SQLite decides, and another database prepares, as does a queue."""

    def __init__(self, request: pytest.FixtureRequest, place: Path, way: str) -> None:
        self.place, self.way = place, way
        self.space = place / "space"
        xaqueue.connect(self.space, create=True).close()
        (self.space / "queues.toml").write_text("[queues.q]\n")
        self.decides: Callable[[], Any] = partial(sqlite3.connect, place / "db", timeout=5)
        self.dsn = ""
        if "psycopg" in way:
            self.dsn = request.getfixturevalue("dsn")
            self.plain: Callable[[], Any] = partial(psycopg.connect, self.dsn)
            words = conninfo_to_dict(self.dsn)
            url = f"postgresql+psycopg://{words['user']}@/{words['dbname']}?host={words['host']}"
        else:
            import pymysql

            socket = request.getfixturevalue("mariadb_socket")
            name = request.getfixturevalue("mariadb_name")
            self.plain = partial(pymysql.connect, unix_socket=socket, user="root", database=name)
            url = f"mysql+pymysql://root@localhost/{name}?unix_socket={socket}"
        self.ledger: Any = self.plain if way == "psycopg" else create_engine(url, poolclass=NullPool)
        self.made: list[TransactionManager] = []
        for connect in (self.decides, self.plain):
            with closing(connect()) as own:
                own.cursor().execute("create table orders (n int)")
                own.commit()

    def make(self, ledger: Any = None, **options: Any) -> TransactionManager:
        parties = {"db": self.decides, "ledger": ledger or self.ledger, "queue": partial(xaqueue.connect, self.space)}
        self.made.append(TransactionManager(parties, decides="db", recovery_interval_s=0.1, **options))
        return self.made[-1]

    def numbers(self, connect: Callable[[], Any]) -> list[int]:
        with closing(connect()) as own:
            found = sorted(n for (n,) in run(own, "SELECT n FROM orders"))
            own.rollback()
            return found

    def agrees(self, *numbers: int) -> bool:
        with xaqueue.connect(self.space) as connection:
            messages = sorted(int(message.body) for message in connection.browse("q"))
        return messages == self.numbers(self.decides) == self.numbers(self.plain) == list(numbers)

    def left(self, table: str) -> int:
        with closing(self.decides()) as own:
            return int(run(own, f"SELECT COUNT(*) FROM xaqueue_{table}")[0][0])

    @property
    def is_in_doubt(self) -> bool:
        with closing(self.plain()) as own:
            own.cursor().execute("rollback")
            if not self.dsn:
                cursor = own.cursor()
                cursor.execute("XA RECOVER")
                return bool(cursor.fetchall())
            return bool(run(own, "SELECT 1 FROM pg_prepared_xacts WHERE database = current_database()"))


@pytest.fixture
def mariadb_name(mariadb_socket: str) -> Iterator[str]:
    from support.mariadb import database

    with database(mariadb_socket) as name:
        yield name


def staged(request: pytest.FixtureRequest, place: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> Iterator[Scene]:
    monkeypatch.setattr("xaqueue.tm.node.Timing", lambda: FAST)
    made = Scene(request, place, way)
    yield made
    for manager in made.made:
        manager.close()


@pytest.fixture(params=WAYS)
def scene(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    yield from staged(request, tmp_path, monkeypatch, request.param)


@pytest.fixture
def on_postgresql(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    yield from staged(request, tmp_path, monkeypatch, "psycopg")


def node_of(manager: TransactionManager) -> DatabaseNode:
    node = manager._log
    assert isinstance(node, DatabaseNode)
    return node


def insert(lent: Any, number: int) -> None:
    statement = f"insert into orders values ({number})"
    if hasattr(lent, "exec_driver_sql"):
        lent.execute(text(statement))
    else:
        run(lent, statement)


def fill(tx: Any, number: int) -> None:
    tx["queue"].enqueue("q", b"%d" % number)
    insert(tx["ledger"], number)
    insert(tx["db"], number)


def add(manager: TransactionManager, number: int) -> None:
    with manager.transaction() as tx:
        fill(tx, number)


def kill(manager: TransactionManager) -> None:
    """Its threads stop, and nothing is said."""
    node_of(manager)._closed.set()
    manager._stopped.set()
    for recovery in manager._recoveries.values():
        recovery.stop(5)


def die_at(scene: Scene, step: str, participant: str) -> None:
    """A process that dies in its transaction with number 2."""

    def die(at: str, gtrid: bytes, name: str) -> None:
        if armed and at == step and name in (participant, "db"):
            raise Killed

    armed: list[bool] = []
    dead = scene.make(on_step=die)
    add(dead, 1)
    armed.append(True)
    with dead.transaction() as tx:
        fill(tx, 2)
        kill(dead)
        with pytest.raises(Killed):
            tx.commit()


def test_rows_and_message_commit_together_and_nothing_is_left(scene: Scene) -> None:
    manager = scene.make()
    for number in (1, 2):
        add(manager, number)
    with suppress(ZeroDivisionError), manager.transaction() as tx:
        fill(tx, 9)
        _ = 1 / 0
    assert scene.agrees(1, 2)
    with manager.transaction() as tx:  # without the one that decides, which gets the decision alone
        tx["queue"].enqueue("q", b"3")
        insert(tx["ledger"], 3)
    with manager.transaction() as tx:  # alone, in one phase
        insert(tx["db"], 3)
    assert scene.agrees(1, 2, 3)
    manager.close()
    assert [scene.left(table) for table in ("nodes", "signs", "ended", "decisions")] == [0, 0, 0, 0]
    assert not scene.is_in_doubt


STEPS = [
    *(("prepare", "ledger"), ("prepared", "ledger"), ("prepared", "queue"), ("commit-last", "db")),
    *(("committed-last", "db"), ("commit", "ledger"), ("committed", "ledger"), ("committed", "queue")),
]


@pytest.mark.parametrize(("step", "participant"), STEPS)
def test_what_a_dead_node_has_left_is_finished_by_another(scene: Scene, step: str, participant: str) -> None:
    die_at(scene, step, participant)
    is_decided = (step, participant) in STEPS[4:]
    other = scene.make()
    eventually(lambda: scene.agrees(1, 2) if is_decided else scene.agrees(1))
    eventually(lambda: not scene.is_in_doubt)
    add(other, 3)
    eventually(lambda: scene.left("nodes") == 1)
    with closing(scene.decides()) as own:
        eventually(lambda: not run(own, "SELECT 1 FROM xaqueue_decisions WHERE decision = 'commit'"))
    assert scene.agrees(1, 2, 3) if is_decided else scene.agrees(1, 3)


def test_a_decision_that_others_have_carried_out_is_no_hazard(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own process finds the branch gone, which the database cannot explain: the row can."""
    other = scene.make()

    def help_first(at: str, gtrid: bytes, name: str) -> None:
        if at == "commit" and name == "ledger":
            if scene.way == "engine of pymysql":  # which lets nobody else end it as long as its session lives
                branch.discard()
                branch.connection, branch._is_usable = branch.source.open(), True
            eventually(lambda: not scene.is_in_doubt)

    manager = scene.make(on_step=help_first)
    with manager.transaction() as tx:
        fill(tx, 1)
        branch: Any = tx.branches["ledger"]
        if scene.way == "engine of pymysql":
            branch.commit = partial(commit_elsewhere, branch)
    assert scene.agrees(1)
    assert not manager.in_doubt()
    assert not other.in_doubt()


def commit_elsewhere(branch: EnlistedBranch) -> Reply:
    try:
        branch.connection.tpc_commit(branch.connection.xid(FORMAT_ID, branch.gtrid.decode(), branch.name))
    except xaqueue.UnknownXid:
        return Reply.UNKNOWN
    return Reply.DONE


@pytest.mark.parametrize("word", ["commit", "rollback"])
def test_gone_without_a_word_of_anybody_is_a_hazard(
    on_postgresql: Scene, monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    """Somebody has ended it by hand."""
    scene = on_postgresql
    monkeypatch.setattr(node_module, "STRUCK_S", 0.1)

    def interfere(at: str, gtrid: bytes, name: str) -> None:
        if at == "commit" and name == "ledger":
            with psycopg.connect(scene.dsn, autocommit=True) as own:
                xids = [xid for xid in own.tpc_recover() if xid.gtrid == gtrid.decode()]
                (own.tpc_commit if word == "commit" else own.tpc_rollback)(xids[0])

    manager = scene.make(on_step=interfere)
    with pytest.raises(xaqueue.HeuristicHazard):
        add(manager, 1)
    (left,) = manager.in_doubt()
    assert [one.participant for one in left.heuristics] == ["ledger"]


def test_a_decision_is_struck_at_the_database_that_has_it(
    on_postgresql: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not at another one under the same name, whose list is without it."""
    scene = on_postgresql
    die_at(scene, "commit", "ledger")
    with psycopg.connect(scene.dsn, autocommit=True) as own:
        own.execute("drop database if exists elsewhere")
        own.execute("create database elsewhere")
    elsewhere = partial(psycopg.connect, make_conninfo(scene.dsn, dbname="elsewhere"))
    try:
        other = scene.make(ledger=elsewhere)
        eventually(lambda: scene.left("ended") == 1)
        for _ in range(3):
            node_of(other)._swept.clear()
            other.recover()
        assert scene.is_in_doubt
        assert scene.left("decisions") >= 1
        other.close()
        scene.make()
        eventually(lambda: scene.agrees(1, 2))
        eventually(lambda: scene.left("decisions") == 0)
    finally:
        with psycopg.connect(scene.dsn, autocommit=True) as own:
            own.execute("drop database elsewhere with (force)")


def test_who_is_led_to_another_database_prepares_nothing_there(on_postgresql: Scene) -> None:
    """Others would look for its branches in the first one."""
    scene = on_postgresql
    with psycopg.connect(scene.dsn, autocommit=True) as own:
        own.execute("create database moved")
    dsns = [scene.dsn]
    try:
        manager = scene.make(ledger=lambda: psycopg.connect(dsns[-1]))
        add(manager, 1)
        dsns.append(make_conninfo(scene.dsn, dbname="moved"))
        with psycopg.connect(dsns[-1], autocommit=True) as own:
            own.execute("create table orders (n int)")
        manager._sources["ledger"].drop_idle()
        with pytest.raises(RolledBack, match="is database") as refused:
            add(manager, 2)
        assert refused.value.code is Code.XA_RBTRANSIENT
        add(manager, 3)
        assert scene.numbers(partial(psycopg.connect, dsns[-1])) == [3]
        manager.close()
    finally:
        with psycopg.connect(scene.dsn, autocommit=True) as own:
            own.execute("drop database moved with (force)")


def test_a_list_of_the_whole_server_is_not_the_databases(on_postgresql: Scene) -> None:
    """PostgreSQL lists what is prepared in all databases, and ends it in its own alone."""
    scene = on_postgresql
    die_at(scene, "commit", "ledger")
    with psycopg.connect(scene.dsn, autocommit=True) as own:
        own.execute("create database neighbour")
    neighbour = partial(psycopg.connect, make_conninfo(scene.dsn, dbname="neighbour"))
    url = "postgresql+psycopg://{user}@/neighbour?host={host}".format(**conninfo_to_dict(scene.dsn))
    engine = create_engine(url, poolclass=NullPool)
    try:
        for ledger in (neighbour, engine):
            other = scene.make(ledger=ledger)
            eventually(lambda: scene.left("ended") >= 1)
            node_of(other)._swept.clear()
            assert other.recover().scans["ledger"].complete
            assert scene.is_in_doubt
            other.close()
    finally:
        with psycopg.connect(scene.dsn, autocommit=True) as own:
            own.execute("drop database neighbour with (force)")


def test_a_database_that_cannot_prepare_is_refused(on_postgresql: Scene) -> None:
    manager = on_postgresql.make(ledger=lambda: sqlite3.connect(on_postgresql.place / "second"))
    with pytest.raises(InvalidArgument, match="has no two-phase commit"):
        add(manager, 1)
    assert on_postgresql.numbers(on_postgresql.decides) == []


def test_a_database_says_the_same_of_itself(scene: Scene) -> None:
    """Whichever way it is opened."""
    said = set()
    for _ in range(2):
        with closing(scene.plain()) as own:
            said.add(identity_of(own, "ledger").answer)
    source = scene.make()._sources["ledger"]
    with source.opened() as connection:
        said.add(identity_of(connection, "ledger").answer)
    (one,) = said
    assert one


def test_what_one_database_has_told_strikes_nothing_of_another(
    on_postgresql: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pooler may lead to another server between two questions."""
    scene = on_postgresql
    die_at(scene, "committed", "ledger")
    with closing(scene.decides()) as own:
        tables = NodeTables.find(own)
        assert tables is not None
        (node,) = tables.signs(own)
        assert tables.end(own, node)
        decided = tables.decided(own)[-1]
        (place,) = [one for one in decided.names() if "/" in one]
    with closing(scene.plain()) as ledger:
        sweep = Sweep(tables, scene.made[0]._sources["db"], "", place, ledger, 1e9)
        with monkeypatch.context() as elsewhere:
            elsewhere.setattr("xaqueue.tm.sweep.identity_of", lambda *_: Identity("", "1/1"))
            sweep.strike([])
        with closing(scene.decides()) as own:
            assert place in tables.decided(own)[-1].names()
        sweep.strike([])
        with closing(scene.decides()) as own:
            assert not any(place in one.names() for one in tables.decided(own))


def test_in_tasks_too(on_postgresql: Scene) -> None:
    """Both databases by async connections; the queue's space is in this process."""
    scene = on_postgresql
    with psycopg.connect(scene.dsn, autocommit=True) as own:
        own.execute("create database deciding")
    dsn = make_conninfo(scene.dsn, dbname="deciding")
    scene.decides = partial(psycopg.connect, dsn)
    with psycopg.connect(dsn, autocommit=True) as own:
        own.execute("create table orders (n int)")

    async def live() -> None:
        parties: dict[str, Any] = {
            "db": partial(psycopg.AsyncConnection.connect, dsn),
            "ledger": partial(psycopg.AsyncConnection.connect, scene.dsn),
            "queue": partial(xaqueue.connect, scene.space),
        }
        async with TransactionManager(parties, decides="db", recovery_interval_s=0.1) as manager:
            for number in (1, 2):
                async with manager.transaction() as tx:
                    for name in ("db", "ledger"):
                        await (await tx.join(name)).execute(f"insert into orders values ({number})")
                    (await tx.join("queue")).enqueue("q", b"%d" % number)
            with suppress(ZeroDivisionError):
                async with manager.transaction() as tx:
                    await (await tx.join("ledger")).execute("insert into orders values (3)")
                    _ = 1 / 0

    try:
        asyncio.run(live())
        assert scene.agrees(1, 2)
        assert not scene.is_in_doubt
        assert [scene.left(table) for table in ("nodes", "ended", "decisions")] == [0, 0, 0]
    finally:
        with psycopg.connect(scene.dsn, autocommit=True) as own:
            own.execute("drop database deciding with (force)")
