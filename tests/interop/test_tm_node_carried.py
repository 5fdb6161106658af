"""A database carries what a queue does for transaction managers without a directory: one carrier for all of them."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

import xaqueue
from support import SUPPORT
from support.carried_child import TABLES, connect_to, put, take
from support.carrying import wait_until_it_carries
from support.doubtful import run as cli
from support.node_child import FAST
from support.patience import eventually
from support.postgres import PATIENCE_S
from support.served import ServerThread
from xaqueue import TransactionManager
from xaqueue.carried import CarrierState, Life
from xaqueue.errors import OperationalError, QueueWaiting, RolledBack
from xaqueue.offline import inspect
from xaqueue.tm.coordinator import TraceStep as Step
from xaqueue.tm.driver import Dialect, run
from xaqueue.tm.gtrid import Gtrid
from xaqueue.tm.last_resource import DecisionRows
from xaqueue.tm.node import DatabaseNode
from xaqueue.tm.node_tables import NodeTables
from xaqueue.tm.sweep import Sweep
from xaqueue.xa import Code

CHILD = SUPPORT / "carried_child.py"
KILLED = -signal.SIGKILL
LONG_US = 660 * 1_000_000


class Place:
    """A space and a database, and processes over both."""

    def __init__(self, root: Path, stack: ExitStack, database: str) -> None:
        self.root, self.space, self.database, self._stack = root, root / "space", database, stack
        xaqueue.connect(self.space, create=True).close()
        with closing(self.connect()) as own:
            for table in TABLES:
                own.cursor().execute(table)
            own.commit()

    def connect(self) -> Any:
        return connect_to(self.database)

    def live(self, *works: str, end: str = "") -> None:
        """A process that does this, and ends so."""
        words = json.dumps([str(self.space), {"": self.database}, [f"/{work}" for work in works], end])
        child = subprocess.run([sys.executable, str(CHILD), words], capture_output=True, text=True, timeout=PATIENCE_S)
        assert child.returncode == (KILLED if end else 0), child.stderr

    def manager(self, queue: str = "", **options: Any) -> TransactionManager:
        parties: dict[str, Any] = {"ledger": self.connect, "queue": partial(xaqueue.connect, queue or self.space)}
        return self._stack.enter_context(TransactionManager(parties, recovery_interval_s=0.1, **options))

    def ask(self, statement: str) -> list[Any]:
        with closing(self.connect()) as own:
            return [row[0] for row in run(own, statement)]

    @property
    def carried(self) -> int:
        return int(self.ask("SELECT COUNT(*) FROM xaqueue_decisions WHERE carried IS NOT NULL")[0])

    @property
    def orders(self) -> list[int]:
        return self.ask("SELECT n FROM orders EXCEPT SELECT n FROM taken ORDER BY 1")

    def messages(self, url: str = "") -> list[int]:
        with xaqueue.connect(url or self.space) as own:
            return sorted(int(message.body) for message in own.browse("orders"))

    def waits(self) -> bool:
        with xaqueue.connect(self.space) as own:
            try:
                list(own.browse("orders"))
            except QueueWaiting:
                return True
            return False


@pytest.fixture(params=["postgresql", "sqlite"])
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Place]:
    monkeypatch.setattr("xaqueue.tm.node.Timing", lambda: FAST)
    database = str(tmp_path / "one.db") if request.param == "sqlite" else request.getfixturevalue("dsn")
    with ExitStack() as stack:
        yield Place(tmp_path, stack, database)


def node_of(manager: TransactionManager) -> DatabaseNode:
    node = manager._log
    assert isinstance(node, DatabaseNode)
    return node


def test_the_row_has_the_message_until_the_space_has_it(place: Place) -> None:
    seen: list[int] = []

    def look(step: str, gtrid: bytes, name: str) -> None:
        if step == "committed-last":
            seen.append(place.carried)

    manager = place.manager(on_step=look)
    wait_until_it_carries(manager)
    seen.clear()
    for number in (1, 2, 3):
        with manager.transaction() as tx:
            put(tx, number)
    with manager.transaction() as tx:
        assert take(tx) == 1
    assert len(seen) == 4
    assert min(seen) > 0
    assert place.messages() == place.orders == [2, 3]
    with xaqueue.connect(place.space) as queue:
        (carrier,) = queue.carriers().carriers
    assert carrier.carrier == f"{node_of(manager).tables.database}.nodes"
    eventually(lambda: not place.carried)
    manager.close()
    assert [place.ask(f"SELECT COUNT(*) FROM xaqueue_{table}") for table in ("nodes", "signs", "ended")] == [[0]] * 3
    (noted,) = inspect.status(place.space).carriers
    assert noted.state is CarrierState.CLOSED


@pytest.mark.parametrize("end", [Step.COMMIT_LAST, Step.COMMITTED_LAST, Step.COMMITTED])
def test_what_a_dead_process_had_carried_reaches_the_next_owner(place: Place, end: str) -> None:
    """Under another name; and its rows go once it is ended."""
    place.live("put/1", "put/2", "take", "put/3", end=end)
    assert place.waits()
    manager = place.manager()
    eventually(lambda: not place.waits())
    wanted = [2] if end == Step.COMMIT_LAST else [2, 3]
    assert place.messages() == place.orders == wanted
    wait_until_it_carries(manager)
    with manager.transaction() as tx:
        put(tx, 5)
    assert place.messages() == place.orders == [*wanted, 5]
    eventually(lambda: not place.carried)
    assert len(place.ask("SELECT node FROM xaqueue_ended")) == 1


def test_crash_after_crash_applies_each_change_once(place: Place) -> None:
    for number in range(3):
        place.live(f"put/{2 * number}", f"put/{2 * number + 1}", end=Step.COMMITTED_LAST)
    place.manager()
    eventually(lambda: not place.waits())
    assert place.messages() == place.orders == list(range(6))
    eventually(lambda: not place.carried)


def test_whoever_has_the_database_hands_it_to_a_server(place: Place) -> None:
    """Several do so at once."""
    place.live("put/1", "put/2", "take", end=Step.COMMITTED_LAST)
    server = ServerThread(place.space, place.root / "socket")
    try:
        managers = [place.manager(server.url) for _ in range(3)]
        with xaqueue.connect(server.url) as queue:
            message = queue.dequeue("orders", wait_s=PATIENCE_S)
            assert message is not None
            assert message.body == b"2"
            queue.rollback()
        for number, manager in enumerate(managers, start=3):
            with manager.transaction() as tx:
                put(tx, number)  # which a client prepares
        assert place.messages(server.url) == place.orders == [2, 3, 4, 5]
        eventually(lambda: not place.carried)
        for manager in managers:
            manager.close()
    finally:
        server.stop()


def test_a_command_hands_it_over(place: Place) -> None:
    """As from cron, ten minutes later: no process of the service comes back."""
    place.live("put/1", "put/2", "take", end=Step.COMMITTED_LAST)
    with closing(place.connect()) as own:
        run(own, f"UPDATE xaqueue_signs SET at = at - {LONG_US}")
        own.commit()
    dsn = f"sqlite:///{place.database}"
    if not place.database.startswith("/"):
        words = conninfo_to_dict(place.database)
        dsn = f"postgresql://{words['user']}@/{words['dbname']}?host={words['host']}"
    assert cli("tm", "recover", dsn, place.space).endswith("0 transactions left\n")
    assert not place.waits()
    assert place.messages() == place.orders == [2]
    assert place.carried == 0


def test_a_row_stays_until_its_space_has_applied_it(place: Place) -> None:
    """It is in no list, and not applied: whoever struck it by the list would lose it."""
    place.live("put/1", "put/2", end=Step.COMMITTED_LAST)
    with closing(place.connect()) as own:
        tables = NodeTables.find(own)
        assert tables is not None
        (node,) = tables.signs(own)
        assert tables.end(own, node)
    before = place.carried
    assert before
    manager = place.manager()
    for recovery in manager._recoveries.values():
        recovery.stop(PATIENCE_S)
    with xaqueue.connect(place.space) as queue:
        if place.waits():
            sweep = Sweep(tables, manager._sources["ledger"], "", queue.space_id, queue, 0.0)
            sweep.strike([])
            assert place.carried >= 1
    place.manager()
    eventually(lambda: not place.waits())
    eventually(lambda: not place.carried)
    assert place.messages() == place.orders == [1, 2]
    assert place.ask("SELECT COUNT(*) FROM xaqueue_ended") == [1]


def test_who_was_taken_for_dead_has_nothing_carried_under_that_name(place: Place) -> None:
    manager = place.manager()
    wait_until_it_carries(manager)
    node = node_of(manager)
    node.turn = lambda: None  # type: ignore[method-assign]  # it is silent
    with pytest.raises(RolledBack) as told:
        put_late(place, manager, 1, lambda own: node.tables.end(own, node.node))
    assert told.value.code is Code.XA_RBTRANSIENT
    with manager.transaction() as tx:
        put(tx, 2)
    assert place.messages() == place.orders == [2]


def test_a_change_of_an_earlier_life_is_refused(place: Place) -> None:
    """Whoever opens the space begins a life in the database, behind which nobody else's commit comes."""
    manager = place.manager()
    wait_until_it_carries(manager)
    with xaqueue.connect(place.space) as queue:
        life = queue.carriers().life
    tables = node_of(manager).tables
    with pytest.raises(RolledBack, match="opened anew"):
        put_late(place, manager, 1, lambda own: tables.begin_life(own, Life(life.space, life.epoch + 1, "another")))
    assert place.messages() == place.orders == []


def put_late(place: Place, manager: TransactionManager, number: int, meanwhile: Callable[[Any], object]) -> None:
    """The other thing is done once the transaction is there, and before its database writes: SQLite has one writer."""
    with manager.transaction() as tx:
        tx["queue"].enqueue("orders", str(number).encode())
        with closing(place.connect()) as own:
            meanwhile(own)
        tx["ledger"].cursor().execute(f"insert into orders values ({number})")


def test_two_that_remove_rows_at_once_lose_no_count(dsn: str) -> None:
    with ExitStack() as stack:
        one, other = (stack.enter_context(closing(psycopg.connect(dsn))) for _ in range(2))
        tables, rows = NodeTables.find(one, make=True), DecisionRows()
        assert tables is not None
        keys = [bytes(Gtrid("a" * 16, 1, number, tables.database)) for number in range(1, 5)]
        space, carrier = "b" * 32, f"{tables.database}.nodes"
        for key in keys:
            one.execute("insert into xaqueue_decisions values (%s, 'commit', 'queue', '')", [key.decode()])
        one.commit()
        gone = {key: (space, carrier, number) for number, key in enumerate(keys, start=1)}
        rows.delete(one, keys[:1], gone)
        one.execute(f"delete from xaqueue_decisions where gtrid = '{keys[1].decode()}'")
        one.execute("update xaqueue_decisions set participants = '2 2' where decision = 'pruned'")
        failed: list[Exception] = []

        def remove() -> None:
            try:
                rows.delete(other, keys[2:3], gone)
            except OperationalError as error:
                failed.append(error)
                other.rollback()

        thread = threading.Thread(target=remove)
        thread.start()
        with closing(psycopg.connect(dsn, autocommit=True)) as own:
            waits = "select 1 from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
            eventually(lambda: own.execute(waits).fetchone())
        one.commit()
        thread.join(PATIENCE_S)
        assert len(failed) == 1
        rows.delete(other, keys[2:], gone)
        assert tables.read_carried(other, "", space, carrier) == ([], (4, 4))
        assert tables.dialect is Dialect.POSTGRESQL


def test_in_tasks_too(dsn: str, tmp_path: Path) -> None:
    place = Place(tmp_path, ExitStack(), dsn)

    async def live() -> list[bool]:
        parties: dict[str, Any] = {
            "ledger": partial(psycopg.AsyncConnection.connect, dsn),
            "queue": partial(xaqueue.connect, place.space),
        }
        are_carried = []
        async with TransactionManager(parties, recovery_interval_s=0.1) as manager:
            for number in range(60):
                async with manager.transaction() as tx:
                    ledger, queue = await tx.join("ledger"), await tx.join("queue")
                    await ledger.execute(f"insert into orders values ({number})")
                    queue.enqueue("orders", str(number).encode())
                    transaction: Any = tx._transaction
                    branch = transaction.branches["queue"]
                are_carried.append(branch.carried is not None)
                await asyncio.sleep(0.02)
        return are_carried

    are_carried = asyncio.run(live())
    assert not are_carried[0]
    assert are_carried[-1]
    assert place.messages() == place.orders == list(range(60))
    assert place.carried == 0


def test_who_does_not_want_it_prepares(place: Place) -> None:
    manager = place.manager(carry=False)
    for number in range(3):
        with manager.transaction() as tx:
            put(tx, number)
        manager.recover()
    with xaqueue.connect(place.space) as queue:
        assert queue.carriers().carriers == ()
