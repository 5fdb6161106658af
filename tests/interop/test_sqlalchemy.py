"""What an Engine's participant promises beside the commit: its pool, its Session, and who may end what."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import product
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sqlalchemy", reason="sqlalchemy is not installed")

from sqlalchemy import create_engine, event, text
from sqlalchemy import exc as sa
from sqlalchemy.orm import Session, object_session, sessionmaker
from sqlalchemy.orm.exc import DetachedInstanceError
from sqlalchemy.pool import StaticPool

import xaqueue
from support.sqlalchemy_scene import ROW, TWO_PHASES, WAYS, Order, Shop, manager, take
from xaqueue.contrib.sqlalchemy import participant
from xaqueue.errors import InvalidArgument, ProtocolError, RolledBack

EVERY = [(kind, way) for kind, ways in WAYS.items() for way in ways]
SOME = [("sqlite", ROW), ("postgresql", TWO_PHASES), ("mariadb", ROW)]
PREPARES = [one for one in EVERY if one[1] == TWO_PHASES]


def over(*kinds: tuple[str, str]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("sql_shop", kinds, indirect=True, ids=["-".join(kind) for kind in kinds])


def pooled(shop: Shop) -> tuple[int, int]:
    """Connections of the pool that are out, and those that wait."""
    pool: Any = shop.engine.pool
    return pool.checkedout(), pool.checkedin()


def perform(tm: xaqueue.TransactionManager, *works: Callable[[Any], object]) -> None:
    """In one transaction."""
    with tm.transaction() as tx:
        for work in works:
            work(tx)


def fail(tx: Any) -> None:
    raise ZeroDivisionError


def insert(number: int) -> Callable[[Any], object]:
    return lambda tx: tx["db"].execute(text("insert into orders (id) values (:id)"), {"id": number})


def add(*numbers: int) -> Callable[[Any], object]:
    return lambda tx: take(tx, *numbers)


def flush(tx: Any) -> None:
    tx["db"].flush()


def send(tx: Any) -> None:
    tx["queue"].enqueue("orders", b"1")


@over(*PREPARES)
def test_branches_of_one_connection_do_not_bear_on_each_other(sql_shop: Shop) -> None:
    """Prepared, in one phase, and rolled back, by the methods of PEP 249: a Session's objects are written in each."""
    connection = participant(sql_shop.engine, session=True).connect()
    ends = (("tpc_prepare", "tpc_commit"), ("tpc_commit",), ("tpc_prepare", "tpc_rollback"), ("tpc_rollback",))
    for number, calls in enumerate((*ends, *ends), 1):
        connection.tpc_begin(connection.xid(1, f"branch {number}", "db"))
        connection.lent.add(Order(id=number))
        for call in calls:
            getattr(connection, call)()
    assert sql_shop.rows() == [1, 2, 5, 6]
    assert connection.tpc_recover() == []
    connection.close()
    assert pooled(sql_shop)[0] == 0


@over(*EVERY)
def test_a_connection_is_lent_without_a_session(sql_shop: Shop) -> None:
    tm = sql_shop.manager(session=False, recovery_interval_s=60.0)
    for number in (1, 2):
        with tm.transaction() as tx:
            insert(number)(tx)
            with tx["db"].begin_nested() as savepoint:
                tx["db"].execute(text("insert into orders (id) values (9)"))
                savepoint.rollback()
            tx["queue"].enqueue("orders", str(number).encode())
    with pytest.raises(ZeroDivisionError):
        perform(tm, insert(3), send, fail)
    with pytest.raises(sa.IntegrityError):
        perform(tm, send, insert(1))
    assert sql_shop.rows() == sql_shop.messages() == [1, 2]
    tm.close()
    assert pooled(sql_shop)[0] == 0


@over(*EVERY)
def test_a_flush_that_fails_rolls_all_back_and_is_the_cause(sql_shop: Shop) -> None:
    tm = sql_shop.manager(recovery_interval_s=60.0)
    with tm.transaction() as tx:
        take(tx, 1)
    for more in ([send], []):
        with pytest.raises(RolledBack) as caught:
            perform(tm, lambda tx: tx["db"].add(Order(id=1)), *more)
        assert isinstance(caught.value.__cause__, sa.IntegrityError)
    with tm.transaction() as tx:
        take(tx, 2)
    assert sql_shop.rows() == sql_shop.messages() == [1, 2]
    tm.close()
    assert pooled(sql_shop)[0] == 0


@over(*EVERY)
def test_a_session_cannot_end_the_transaction(sql_shop: Shop) -> None:
    """What it does to its own objects is noticed, whether they were flushed or not."""
    tm = sql_shop.manager(recovery_interval_s=60.0)
    for before, end in product(([flush], []), ("commit", "rollback", "close")):
        with pytest.raises((ProtocolError, RolledBack)) as caught:
            perform(tm, add(1), *before, lambda tx: getattr(tx["db"], end)())  # noqa: B023
        assert isinstance(caught.value.__cause__ or caught.value, ProtocolError)
    with pytest.raises((ProtocolError, RolledBack)):
        perform(tm, add(1), flush, lambda tx: tx["db"].rollback(), add(2), flush)
    assert sql_shop.rows() == sql_shop.messages() == []
    with tm.transaction() as tx:
        take(tx, 3)
    assert sql_shop.rows() == [3]


@over(*SOME)
def test_nor_can_a_connection(sql_shop: Shop) -> None:
    tm = sql_shop.manager(session=False, recovery_interval_s=60.0)
    for end in ("commit", "rollback", "close"):
        with pytest.raises((ProtocolError, RolledBack)):
            perform(tm, send, insert(1), lambda tx: getattr(tx["db"], end)())  # noqa: B023
    with pytest.raises((ProtocolError, RolledBack)):
        perform(tm, send, lambda tx: tx["db"].rollback(), insert(1))
    assert sql_shop.rows() == sql_shop.messages() == []
    with tm.transaction() as tx:
        tx["db"].execute(text("insert into orders (id) values (2)"))
    assert sql_shop.rows() == [2]


@over(("sqlite", ROW))
def test_objects_are_as_after_a_commit_of_their_session(sql_shop: Shop) -> None:
    heard: list[str] = []

    class Own(Session):
        """Of the application."""

    for moment in ("before_commit", "after_commit", "after_rollback"):
        event.listen(Own, moment, lambda session, moment=moment: heard.append(moment))
    expiring = sql_shop.manager(session=Own, recovery_interval_s=60.0)
    with expiring.transaction() as tx:
        order = Order(id=1)
        tx["db"].add(order)
    with pytest.raises(DetachedInstanceError):
        _ = order.item
    assert heard == ["before_commit", "after_commit"]
    lost = Order(id=2)
    with pytest.raises(ZeroDivisionError):
        perform(expiring, lambda tx: tx["db"].add(lost), flush, fail)
    assert object_session(lost) is None
    assert heard[2:] == ["after_rollback"]
    expiring.close()
    keeping = sql_shop.manager(session=sessionmaker(expire_on_commit=False), recovery_interval_s=60.0)
    with keeping.transaction() as tx:
        order = Order(id=3, item="pears")
        tx["db"].add(order)
    assert order.item == "pears"


@over(("sqlite", ROW))
def test_a_hook_that_fails_decides_only_before_the_commit(sql_shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    """Before it nothing was sent, so that the outcome is known; after it there is nothing to undo."""
    before, after = (type(name, (Session,), {}) for name in ("Before", "After"))
    event.listen(before, "before_commit", fail)
    event.listen(after, "after_commit", fail)
    tm = sql_shop.manager(session=before, recovery_interval_s=60.0)
    for works in ([add(1)], [lambda tx: tx["db"].add(Order(id=1))]):
        with pytest.raises(RolledBack) as caught:
            perform(tm, *works)
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
    tm.close()
    perform(sql_shop.manager(session=after, recovery_interval_s=60.0), add(2))
    assert "[hook-failed]" in caplog.text
    assert sql_shop.rows() == sql_shop.messages() == [2]


@over(*SOME)
def test_what_was_lent_is_of_no_use_afterwards(sql_shop: Shop) -> None:
    for given in (True, False):
        tm = sql_shop.manager(session=given, recovery_interval_s=60.0)
        with tm.transaction() as tx:
            lent = tx["db"]
            lent.execute(text("select 1"))
        with pytest.raises(sa.InvalidRequestError, match="closed"):
            lent.execute(text("select 1"))
        tm.close()


@over(*PREPARES)
def test_a_pooled_connection_that_its_server_ended_is_replaced(sql_shop: Shop) -> None:
    tm = sql_shop.manager(recovery_interval_s=60.0)
    backends = []
    for number in (1, 2):
        with tm.transaction() as tx:
            backends.append(sql_shop.own(tx["db"]))
            take(tx, number)
        if number == 1:
            time.sleep(0.02)
            sql_shop.lose(backends[0])
    assert backends[0] != backends[1]
    assert sql_shop.rows() == [1, 2]


@over(*PREPARES)
def test_a_branch_that_only_read_is_finished_without_its_backend(sql_shop: Shop) -> None:
    """MariaDB rolls such a branch back with its connection, though it was prepared."""
    tm = sql_shop.manager()
    backends: list[int] = []
    sql_shop.on_step = lambda step, name: sql_shop.lose(backends[0]) if step == "decided" else None
    with tm.transaction() as tx:
        backends.append(sql_shop.own(tx["db"]))
        tx["queue"].enqueue("orders", b"1")
    sql_shop.settle()
    assert sql_shop.messages() == [1]
    assert tm.in_doubt() == []


@over(*PREPARES)
def test_branches_of_others_stay(sql_shop: Shop) -> None:
    """Also one whose name is no text."""
    tm = sql_shop.manager(recovery_interval_s=60.0)
    foreign = {
        "postgresql": "prepare transaction 'somebody elses'",
        "mariadb": "xa start X'ff00fe',X'80',7; xa end X'ff00fe',X'80',7; xa prepare X'ff00fe',X'80',7",
    }[sql_shop.kind]
    with sql_shop.new_engine().connect() as other:
        other.begin()
        if sql_shop.kind == "postgresql":
            other.execute(text("insert into orders (id) values (7)"))
        for statement in foreign.split("; "):
            other.exec_driver_sql(statement)
        other.invalidate()
    with tm.transaction() as tx:
        take(tx, 1)
    recovered = tm.recover()
    assert recovered.complete
    assert recovered.rolled_back == 0
    assert sql_shop.rows() == [1]
    if sql_shop.kind == "postgresql":
        with sql_shop.new_engine().execution_options(isolation_level="AUTOCOMMIT").connect() as other:
            other.exec_driver_sql("rollback prepared 'somebody elses'")


@over(*SOME)
def test_autocommit_is_refused(sql_shop: Shop) -> None:
    engines = [
        sql_shop.new_engine(isolation_level="AUTOCOMMIT"),
        sql_shop.engine.execution_options(isolation_level="AUTOCOMMIT"),
    ]
    if sql_shop.kind == "sqlite":  # which has an attribute of its own from Python 3.12 on
        factory = type("Autocommitting", (sqlite3.Connection,), {"autocommit": True})
        engines.append(sql_shop.new_engine(connect_args={"factory": factory}))
    for engine in engines:
        tm = sql_shop.manager(engine=engine, recovery_interval_s=60.0)
        with pytest.raises(InvalidArgument, match="AUTOCOMMIT"), tm.transaction("queue", "db") as tx:
            tx["queue"].enqueue("orders", b"1")
        assert sql_shop.messages() == []
        tm.close()


def test_sqlite_may_say_begin_itself_and_its_commit_is_a_durable_one(tmp_path: Path) -> None:
    """SQLAlchemy's own recipe, and a lower ``synchronous``, as many set it with WAL."""
    engine = create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    seen: list[int] = []

    @event.listens_for(engine, "connect")
    def connect(connection: sqlite3.Connection, _: Any) -> None:
        connection.isolation_level = None
        connection.execute("pragma journal_mode=wal")
        connection.execute("pragma synchronous=normal")

    @event.listens_for(engine, "begin")
    def begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN")

    @event.listens_for(engine, "commit")
    def commit(connection: Any) -> None:
        seen.append(connection.exec_driver_sql("pragma synchronous").scalar())

    Order.metadata.create_all(engine)
    seen.clear()
    xaqueue.connect(tmp_path / "space", create=True).close()
    with manager(engine, tmp_path / "space", tmp_path / "log", ROW) as tm:
        with tm.transaction() as tx:
            take(tx, 1)
        with pytest.raises(ZeroDivisionError):
            perform(tm, add(2), flush, fail)
    assert set(seen) == {2}
    with Session(engine) as session:
        assert [order.id for order in session.query(Order)] == [1]
    engine.dispose()


def test_in_sqlite_nobody_writes_between_what_is_read_and_what_is_written(tmp_path: Path) -> None:
    """Nor may who removes rows of decisions: the second would be refused at once."""
    engine = create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    Order.metadata.create_all(engine)
    xaqueue.connect(tmp_path / "space", create=True).close()
    tm = manager(engine, tmp_path / "space", tmp_path / "log", ROW)
    with tm, tm.transaction() as tx, closing(sqlite3.connect(tmp_path / "shop.db", timeout=0)) as other:
        assert tx["db"].execute(text("select count(*) from orders")).scalar() == 0
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            other.execute("begin immediate")
        take(tx, 1)
    engine.dispose()


@over(*EVERY)
def test_a_first_transaction_wants_one_connection(sql_shop: Shop) -> None:
    """As many of them at once as the pool has connections would wait for one another."""
    engine = sql_shop.new_engine(pool_size=1, max_overflow=0, pool_timeout=10)
    with sql_shop.manager(engine=engine, recovery_interval_s=60.0) as tm, ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda number: perform(tm, add(number)), range(1, 9)))
    assert sql_shop.rows() == sorted(sql_shop.messages()) == [*range(1, 9)]


def test_a_pool_that_shares_one_connection_is_refused() -> None:
    for engine in (create_engine("sqlite://"), create_engine("sqlite:///a.db", poolclass=StaticPool)):
        with pytest.raises(InvalidArgument, match="QueuePool"):
            participant(engine)
        engine.dispose()


def test_what_is_no_engine_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="create_engine"):
        participant("sqlite:///a.db")  # type: ignore[arg-type]


@over(*SOME)
@pytest.mark.parametrize("statement", ["COMMIT", "  end;", "rollback work"])
def test_a_statement_that_ends_is_refused(sql_shop: Shop, statement: str) -> None:
    """Before it is sent: nothing is committed."""
    with sql_shop.manager() as tm:
        with pytest.raises(ProtocolError, match="own commit"):
            perform(tm, send, insert(1), lambda tx: tx["db"].execute(text(statement)))
        assert (sql_shop.rows(), sql_shop.messages()) == ([], [])


@over(("sqlite", ROW))
@pytest.mark.parametrize("first", ["nested", "with one (n) as (select 1) insert into orders (id) select n from one"])
def test_what_comes_first_is_in_the_transaction(sql_shop: Shop, first: str) -> None:
    """pysqlite begins before some statements only: a savepoint before them was a transaction, and its end a commit."""

    def work(tx: Any) -> None:
        if first == "nested":
            with tx["db"].begin_nested():
                insert(1)(tx)
        else:
            tx["db"].execute(text(first))

    with sql_shop.manager() as tm:
        with pytest.raises(ZeroDivisionError):
            perform(tm, work, fail)
        assert sql_shop.rows() == []
        perform(tm, work)
    assert sql_shop.rows() == [1]


@over(("sqlite", ROW))
@pytest.mark.parametrize("wrap", [lambda engine: engine, lambda engine: xaqueue.Participant(engine, sort_key="z")])
def test_an_engine_is_a_participant(sql_shop: Shop, tmp_path: Path, wrap: Callable[[Any], Any]) -> None:
    parties = {"db": wrap(sql_shop.engine), "queue": sql_shop.space}
    with xaqueue.TransactionManager(tmp_path / "own log", parties) as tm:
        perform(tm, insert(1), send)
        with pytest.raises(ZeroDivisionError):
            perform(tm, insert(2), send, fail)
    assert (sql_shop.rows(), sql_shop.messages()) == ([1], [1])
