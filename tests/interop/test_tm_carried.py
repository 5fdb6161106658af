"""A database carries what a queue does: what a crash, an old copy, or somebody else at the wrong moment makes of it.

The queue's space is in this process, or in one that was killed; the database is PostgreSQL, and SQLite where that is
another case.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import sqlite3
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
from psycopg import IsolationLevel

import xaqueue
from support import SUPPORT
from support.carried_child import TABLES, connect_to, put, take
from support.carrying import carries, small, wait_until_it_carries
from support.doubtful import fails, run
from support.patience import eventually
from support.postgres import PATIENCE_S, reached
from support.served import Process
from xaqueue import TransactionManager
from xaqueue.carried import CarrierState, Life
from xaqueue.errors import QueueWaiting, RolledBack
from xaqueue.offline import inspect
from xaqueue.tm import guard, last_resource
from xaqueue.tm.coordinator import TraceStep as Step
from xaqueue.tm.driver import Dialect
from xaqueue.tm.gtrid import Gtrid
from xaqueue.tm.last_resource import DecisionRows, LifeOver
from xaqueue.tm.log_directory import take_over
from xaqueue.xa import Outcome

ROWS = DecisionRows()

CHILD = SUPPORT / "carried_child.py"
KILLED = -signal.SIGKILL
CARRIED = f"select count(*) from {last_resource.TABLE} where carried is not null"
BLOCKED = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
LARGE = bytes(17 * 1024)
NODE = "0123456789abcdef"


class Place:
    """A space with its databases, and transaction managers over them, here or in a process that ends as it is told."""

    def __init__(self, root: Path, stack: ExitStack, databases: dict[str, str]) -> None:
        """databases: by the name of the directory of the log of their transaction manager."""
        self.root = root
        self.space = root / "space"
        self.databases = databases
        self._stack = stack
        self.steps: list[tuple[Step, bytes, str]] = []
        self.rows: list[int] = []
        """How many rows carried something when a commit that decided was through."""
        xaqueue.connect(self.space, create=True).close()
        for database in databases.values():
            with closing(connect_to(database)) as own:
                for table in TABLES:
                    own.cursor().execute(table)
                own.commit()

    def begin(self, *works: str, end: str = "") -> subprocess.Popen[str]:
        words = json.dumps([str(self.space), self.databases, works, end])
        child = subprocess.Popen([sys.executable, str(CHILD), words], stdout=subprocess.PIPE, text=True)
        self._stack.callback(_ended, child)
        return child

    def live(self, *works: str, end: str = "") -> str:
        """What a process said that does this, and ends so."""
        child = self.begin(*works, end=end)
        said, _ = child.communicate(timeout=PATIENCE_S)
        assert child.returncode == (KILLED if end else 0), said
        return said

    def manager(self, log: str = "one", database: str = "", **options: Any) -> TransactionManager:
        parties = {
            "ledger": options.pop("ledger", partial(connect_to, database or self.databases[log])),
            "queue": options.pop("queue", partial(xaqueue.connect, self.space)),
            **options.pop("others", {}),
        }
        given = {"recovery_interval_s": 0.1, "on_step": self.on_step, **options}
        return self._stack.enter_context(TransactionManager(self.root / log, parties, **given))

    def on_step(self, step: Step, gtrid: bytes, name: str) -> None:
        self.steps.append((step, gtrid, name))
        if step is Step.COMMITTED_LAST:
            self.rows.append(self.carried())

    def ask(self, statement: str, log: str = "one") -> list[Any]:
        with closing(connect_to(self.databases[log])) as own:
            cursor = own.cursor()
            cursor.execute(statement)
            return [row[0] for row in cursor.fetchall()]

    def carried(self, log: str = "one") -> int:
        return int(self.ask(CARRIED, log)[0])

    def orders(self, log: str = "one") -> list[int]:
        """Those whose messages are to be there."""
        return self.ask("select n from orders except select n from taken order by 1", log)

    def messages(self) -> list[int]:
        with xaqueue.connect(self.space) as own:
            return sorted(int(message.body) for message in own.browse("orders"))

    def waits(self, queue: str = "orders") -> bool:
        """Whether the queue hands nothing out."""
        with xaqueue.connect(self.space) as own:
            try:
                own.dequeue(queue)
            except QueueWaiting:
                return True
            own.rollback()
            return False

    def names(self) -> list[str]:
        """Carriers whose notes say that something may be open."""
        found = inspect.status(self.space).carriers
        return [one.carrier for one in found if one.state is CarrierState.OPEN]


def _ended(child: subprocess.Popen[str]) -> None:
    child.kill()
    child.wait(PATIENCE_S)
    assert child.stdout is not None
    child.stdout.close()


def trouble_of(manager: TransactionManager, name: str = "queue") -> str:
    """Why it cannot go on there, once that is known."""
    eventually(lambda: manager._coordinator.trouble.get(name))
    return manager._coordinator.trouble[name]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


@pytest.fixture(params=["postgresql", "sqlite"])
def place(tmp_path: Path, stack: ExitStack, request: pytest.FixtureRequest) -> Place:
    if request.param == "sqlite":
        return Place(tmp_path, stack, {"one": str(tmp_path / "one.db")})
    return Place(tmp_path, stack, {"one": request.getfixturevalue("dsn")})


@pytest.fixture
def shop(dsn: str, tmp_path: Path, stack: ExitStack) -> Place:
    """With PostgreSQL."""
    return Place(tmp_path, stack, {"one": dsn})


@pytest.fixture
def files(tmp_path: Path, stack: ExitStack) -> Place:
    """With SQLite."""
    return Place(tmp_path, stack, {"one": str(tmp_path / "one.db")})


# What is carried


def test_the_row_has_the_message_until_the_space_has_it(place: Place) -> None:
    manager = place.manager()
    wait_until_it_carries(manager)
    for number in (1, 2, 3):
        place.rows.clear()
        with manager.transaction() as tx:
            put(tx, number)
        assert place.rows[0] >= 1
    with manager.transaction() as tx:
        assert take(tx) == 1
    assert place.messages() == place.orders() == [2, 3]
    with xaqueue.connect(place.space) as queue:
        (carrier,) = queue.carriers().carriers
    assert (carrier.carrier, carrier.state) == (f"{manager.node}.ledger", CarrierState.OPEN)
    assert (carrier.pending, "orders" in carrier.queues, carrier.open) == (False, True, ())
    eventually(lambda: not place.carried())
    assert manager.in_doubt() == []


def test_a_clean_close_leaves_no_row_and_a_closed_note(place: Place) -> None:
    place.live("one/put/1", "one/put/2", "one/take")
    assert place.carried() == 0
    (carrier,) = inspect.status(place.space).carriers
    assert (carrier.state, carrier.pending, carrier.open) == (CarrierState.CLOSED, False, ())
    assert "carrier" not in run("status", "--space", place.space)
    assert not place.waits()
    assert place.messages() == [2]


def test_what_is_rolled_back_leaves_its_number_void(shop: Place) -> None:
    manager = shop.manager()
    wait_until_it_carries(manager)
    with psycopg.connect(shop.databases["one"]) as own:
        own.execute("alter table orders add unique (n) deferrable initially deferred")
    tx = manager.transaction()
    put(tx, 1)
    put(tx, 1)
    with pytest.raises(RolledBack, match="duplicate key"):
        tx.commit()
    with xaqueue.connect(shop.space) as queue:
        (carrier,) = queue.carriers().carriers
    assert carrier.open == ()
    with manager.transaction() as tx:
        put(tx, 2)
    assert shop.messages() == [2]


# A crash


@pytest.mark.parametrize("end", [Step.COMMIT_LAST, Step.COMMITTED_LAST, Step.COMMITTED])
def test_a_queue_waits_after_a_crash_until_its_database_was_asked(place: Place, end: str) -> None:
    place.live("one/put/1", "one/put/2", "one/take", "one/put/3", end=end)
    with xaqueue.connect(place.space) as queue:
        with pytest.raises(QueueWaiting, match="transaction manager") as told:
            queue.dequeue("orders")
        assert place.names()[0] in str(told.value)
        with pytest.raises(QueueWaiting):
            list(queue.browse("orders"))
        queue.enqueue("orders", b"4")  # which is no matter of the database
        queue.commit()
        assert queue.dequeue("others") is None
    manager = place.manager()
    eventually(lambda: not place.waits())
    wanted = [2] if end == Step.COMMIT_LAST else [2, 3]
    assert place.orders() == wanted
    assert place.messages() == [*wanted, 4]
    wait_until_it_carries(manager)
    with manager.transaction() as tx:
        put(tx, 5)
    assert place.messages() == [*wanted, 4, 5]
    eventually(lambda: not place.carried())
    manager.close()
    assert place.names() == []


def is_handed_out(queue: xaqueue.Connection) -> bool:
    """Without a try."""
    try:
        return bool(list(queue.browse("orders")))
    except QueueWaiting:
        return False


def test_a_message_that_a_carried_change_takes_is_no_failed_one(files: Place) -> None:
    """The killed process counts as its last try; only its database knows that it was handled."""
    with xaqueue.connect(files.space) as queue:
        queue.define("failed")
        queue.define("orders", max_tries=1, failure_queue="failed", expiry_queue="failed")
    files.live("one/put/1", "one/put/2", "harden", "one/take", end=Step.COMMITTED_LAST)
    with xaqueue.connect(files.space) as queue:
        with pytest.raises(QueueWaiting):
            queue.dequeue("orders", wait_s=0.3)
        queue.rollback()
        assert list(queue.browse("failed")) == []
        files.manager()
        eventually(lambda: is_handed_out(queue))
        assert files.messages() == files.orders() == [2]
        assert list(queue.browse("failed")) == []


def test_crash_after_crash_applies_each_change_once(place: Place) -> None:
    """What was delivered is delivered again where the row outlived that, and is not done twice."""
    for life in range(3):
        place.live(f"one/put/{2 * life}", f"one/put/{2 * life + 1}", "one/take", end=Step.COMMITTED_LAST)
    manager = place.manager()
    eventually(lambda: not place.waits())
    assert place.messages() == place.orders() == [3, 4, 5]
    assert manager.recover().complete


def test_a_dequeue_waits_for_the_database_and_then_for_its_message(place: Place) -> None:
    place.live("one/put/1", end=Step.COMMITTED_LAST)
    found: list[Any] = []
    with xaqueue.connect(place.space) as queue:
        with pytest.raises(QueueWaiting):
            queue.dequeue("orders", wait_s=0.05)
        queue.rollback()
        waiting = threading.Thread(target=lambda: found.append(queue.dequeue("orders", wait_s=PATIENCE_S)))
        waiting.start()
        place.manager()
        waiting.join(PATIENCE_S)
    assert [message.body for message in found] == [b"1"]


def test_a_database_that_is_away_delays_its_queues_and_no_others(place: Place) -> None:
    place.live("one/put/1", end=Step.COMMITTED_LAST)
    away = [True]

    def connect() -> Any:
        if away:
            raise OSError("it is away")
        return connect_to(place.databases["one"])

    manager = place.manager(ledger=connect)
    assert "it is away" in trouble_of(manager, "ledger")
    with xaqueue.connect(place.space) as queue:
        queue.enqueue("others", b"here")
        queue.commit()
        message = queue.dequeue("others")
        assert message is not None
        queue.commit()
        assert place.waits()
        assert not manager.recover().complete
        away.clear()
        message = queue.dequeue("orders", wait_s=PATIENCE_S)
        assert message is not None
        assert message.body == b"1"
        queue.rollback()


# A commit that is late


@pytest.mark.parametrize("arrives", [True, False])
def test_a_commit_on_its_way_is_waited_for_by_the_next_owner(shop: Place, arrives: bool) -> None:
    """Its backend stands still with COMMIT in its socket, and goes on, or is killed, when others ask already."""
    said = shop.live("one/put/1", "one/put/2", end="sent")
    backend = int(said.split()[-1])
    released = False
    try:
        shop.manager()
        eventually(lambda: shop.ask(BLOCKED)[0])
        assert shop.waits()
        os.kill(backend, signal.SIGCONT if arrives else signal.SIGKILL)
        released = True
        if not arrives:
            reached(shop.databases["one"]).close()
        eventually(lambda: not shop.waits())
    finally:
        if not released:
            os.kill(backend, signal.SIGKILL)
    assert shop.messages() == shop.orders() == ([1, 2] if arrives else [1])


def test_an_owner_that_wakes_up_too_late_commits_nothing(shop: Place) -> None:
    """It stood still before its commit, and an open copy of its space has become the space."""
    place = shop
    child = place.begin("one/put/1", "one/put/2", end="frozen")
    assert child.stdout is not None
    assert child.stdout.readline() == "frozen\n"
    with ExitStack() as stack:
        copied = Place.__new__(Place)
        copied.__dict__.update(place.__dict__, space=place.root / "copy" / "space", root=place.root / "copy")
        copied._stack = stack
        shutil.copytree(place.space, copied.space)
        shutil.copytree(place.root / "one", copied.root / "one")
        take_over(copied.root / "one")
        copied.manager()
        eventually(lambda: not copied.waits())
        assert copied.messages() == [1]
        child.send_signal(signal.SIGCONT)
        assert "was opened anew since" in child.stdout.readline()
        assert child.wait(PATIENCE_S) == 0
        assert copied.messages() == place.orders() == [1]


@pytest.mark.parametrize("level", [IsolationLevel.READ_COMMITTED, *IsolationLevel][-3:])
@pytest.mark.parametrize("commits", [True, False])
def test_a_change_of_a_life_that_ends_meanwhile_is_refused(dsn: str, level: IsolationLevel, commits: bool) -> None:
    """Whatever the session sees: the row of the life is locked, and not just read."""
    old, new = Life("5" * 32, 1, "one"), Life("5" * 32, 2, "two")
    row = last_resource.DecisionRow(bytes(Gtrid(NODE, 1, 1)), Outcome.COMMITTED, ("queue",), b"change")
    with psycopg.connect(dsn) as late, psycopg.connect(dsn) as next_one:
        ROWS.make_ready(next_one, NODE, is_known=False)
        ROWS.begin_life(next_one, old)
        late.isolation_level = level
        guard.mark(late, Dialect.POSTGRESQL)
        late.execute("select 1")
        late.execute(f"select count(*) from {last_resource.TABLE}")  # what it sees from here on
        if commits:
            ROWS.begin_life(next_one, new)
            with pytest.raises((LifeOver, psycopg.errors.SerializationFailure)):
                ROWS.insert_carried(late, row, old, Dialect.POSTGRESQL)
            return
        ROWS.insert_carried(late, row, old, Dialect.POSTGRESQL)
        ends = threading.Thread(target=ROWS.begin_life, args=(next_one, new))
        ends.start()
        with psycopg.connect(dsn, autocommit=True) as witness:
            eventually(lambda: witness.execute(BLOCKED).fetchone() == (1,))
        assert ends.is_alive()
        late.commit()
        ends.join(PATIENCE_S)
        assert [found.carried for found in ROWS.read(next_one, NODE, 2)] == [b"change"]


@pytest.mark.parametrize("level", [IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE])
def test_sessions_of_any_isolation_are_carried(shop: Place, level: IsolationLevel) -> None:
    """Also those of recovery, which come from the same place."""

    def connect() -> psycopg.Connection:
        connection = psycopg.connect(shop.databases["one"])
        connection.isolation_level = level
        return connection

    shop.live("one/put/1", end=Step.COMMITTED_LAST)
    manager = shop.manager(ledger=connect)
    wait_until_it_carries(manager)
    shop.rows.clear()
    for number in range(2, 10):
        with manager.transaction() as tx:
            put(tx, number)
    assert min(shop.rows) >= 1
    assert shop.messages() == shop.orders() == list(range(1, 10))
    eventually(lambda: not shop.carried())


# Old copies


def copied(place: Place, what: str = "space") -> Path:
    """Of the space as it is now, beside it."""
    return Path(shutil.copytree(place.root / what, place.root / f"old {what}", dirs_exist_ok=True))


def put_back(place: Place, what: str = "space") -> None:
    shutil.rmtree(place.root / what)
    shutil.move(place.root / f"old {what}", place.root / what)


def release(place: Place) -> str:
    (name,) = place.names()
    return run("release", "--carrier", name, "--space", place.space)


def test_an_old_copy_of_a_closed_space_carries_no_more(place: Place) -> None:
    """It knows nothing of what it lacks, but its database does; what the copy has is not doubled."""
    place.live("one/put/1")
    copied(place)
    place.live("one/put/2", "one/put/3", end=Step.COMMITTED_LAST)
    put_back(place)
    manager = place.manager()
    left = place.carried()
    with manager.transaction() as tx:
        put(tx, 4)
    assert "is an old copy" in trouble_of(manager)
    with manager.transaction() as tx:
        put(tx, 5)
    assert place.rows == [left, left]
    assert not carries(manager)
    assert place.messages() == [1, 4, 5]


def test_an_old_copy_that_was_opened_often_is_known_by_its_numbers(place: Place) -> None:
    """Its opening looks newer than those that its database knows, and what stands there is none of its business."""
    place.live("one/put/1")
    copied(place)
    place.live("one/put/2", "one/put/3", end=Step.COMMITTED_LAST)
    put_back(place)
    for _ in range(5):
        xaqueue.connect(place.space).close()
    manager = place.manager()
    with manager.transaction() as tx:
        small("ledger", "queue")(tx)
    manager.recover()
    assert not carries(manager)
    assert "the space is an old copy" in trouble_of(manager)
    assert place.messages() == [1]


def test_an_old_copy_of_an_open_space_is_refused_and_an_operator_goes_on(place: Place) -> None:
    """Rows that its database had are gone, since the space that is missing had what they said."""
    child = place.begin("one/put/1", "harden", "one/put/2", end="frozen")
    assert child.stdout is not None
    assert child.stdout.readline() == "frozen\n"
    copied(place)
    _ended(child)
    place.live("one/put/3", "one/put/4", "harden", "one/put/5", "one/put/6")
    put_back(place)
    for _ in range(3):
        xaqueue.connect(place.space).close()
    manager = place.manager()
    assert "the space is an old copy" in trouble_of(manager)
    assert place.waits()
    (name,) = place.names()
    manager.close()
    said = release(place)
    assert f"carrier {name} is released: orders wait for it no more" in said.replace(", warming", "")
    assert not place.waits()
    assert place.messages() == [1]
    manager = place.manager()
    wait_until_it_carries(manager)
    with manager.transaction() as tx:
        put(tx, 7)
    assert place.messages() == [1, 7]


def test_an_open_copy_with_all_that_it_lacks_in_rows_is_the_space(place: Place) -> None:
    """As after a crash: the database has the rest."""
    child = place.begin("one/put/1", "one/put/2", end="frozen")
    assert child.stdout is not None
    assert child.stdout.readline() == "frozen\n"
    copied(place)
    child.send_signal(signal.SIGKILL)
    child.wait(PATIENCE_S)
    put_back(place)
    place.manager()
    eventually(lambda: not place.waits())
    assert place.messages() == place.orders() == [1]


def _move(source: Path, target: Path) -> None:
    shutil.move(source, target)


def saved(place: Place) -> Callable[[], None]:
    """The database as it is now; calls of what is returned put it back."""
    if place.databases["one"].startswith("/"):
        source, target = Path(place.databases["one"]), place.root / "old.db"
        with closing(sqlite3.connect(source)) as one, closing(sqlite3.connect(target)) as other:
            one.backup(other)
        return partial(_move, target, source)
    tables = (last_resource.TABLE, "orders", "taken")
    with psycopg.connect(place.databases["one"]) as own:
        for table in tables:
            own.execute(f"create table old_{table} as select * from {table}")

    def back() -> None:
        with psycopg.connect(place.databases["one"]) as own:
            for table in tables:
                own.execute(f"delete from {table}")
                own.execute(f"insert into {table} select * from old_{table}")

    return back


@pytest.mark.parametrize("end", ["", Step.COMMITTED_LAST])
def test_an_old_copy_of_the_database_is_refused_and_an_operator_goes_on(place: Place, end: str) -> None:
    place.live("one/put/1")
    back = saved(place)
    place.live("one/put/2", "one/put/3", "one/take", "harden", "one/put/4", end=end)
    back()
    manager = place.manager()
    if not end:  # then the space waits for nobody, and finds it out before anything is carried
        with manager.transaction() as tx:
            small("ledger", "queue")(tx)
    told = trouble_of(manager)
    assert "database of carrier" in told
    assert "is an old copy" in told
    assert not carries(manager)
    assert place.orders() == [1]
    if end:
        assert place.waits()
        manager.close()
        assert "applied up to change" in release(place)
    assert place.messages() == ([2, 3] if end else [2, 3, 4])


# Two carriers


@pytest.mark.parametrize("first", ["one", "two"])
@pytest.mark.parametrize("end", [Step.COMMIT_LAST, Step.COMMITTED_LAST])
def test_two_carriers_of_a_queue_are_waited_for_together(
    dsn: str, tmp_path: Path, stack: ExitStack, first: str, end: str
) -> None:
    """Each takes what the other put: whoever comes back first, nothing is done before the other is there."""
    place = Place(tmp_path, stack, {"one": dsn, "two": str(tmp_path / "two.db")})
    works = ("one/put/1", "two/put/2", "two/take", "one/take", "two/put/3", "one/put/4", "two/take")
    place.live(*works, end=end)
    second = {"one": "two", "two": "one"}[first]
    manager = place.manager(first)
    manager.recover()
    assert place.waits()
    assert "it has not" not in str(manager.recover().scans["queue"].error)
    other = place.manager(second)
    eventually(lambda: not place.waits())
    wanted = [3, 4] if end == Step.COMMIT_LAST else [4]
    assert place.messages() == wanted
    there = [n for log in ("one", "two") for n in place.ask("select n from orders", log)]
    gone = [n for log in ("one", "two") for n in place.ask("select n from taken", log)]
    assert sorted(set(there) - set(gone)) == wanted
    for one in (manager, other):
        wait_until_it_carries(one)
    eventually(lambda: not place.carried("one") + place.carried("two"))


def test_an_operator_releases_one_of_two_carriers(dsn: str, tmp_path: Path, stack: ExitStack) -> None:
    """What it took is there again, what it put is lost, and the other one goes on."""
    place = Place(tmp_path, stack, {"one": dsn, "two": str(tmp_path / "two.db")})
    place.live("one/put/1", "harden", "two/put/2", "two/take", "one/put/3", end=Step.COMMITTED_LAST)
    manager = place.manager()
    manager.recover()
    assert place.waits()
    status = {one.carrier: one for one in inspect.status(place.space).carriers}
    (lost,) = (name for name in status if not name.startswith(manager.node))
    assert "is released: orders" in run("release", "--carrier", lost, "--space", place.space)
    eventually(lambda: not place.waits())
    assert set(place.messages()) >= {3}


# A server


def test_a_server_that_has_the_space_first_waits_and_is_told_over_rpc(place: Place) -> None:
    place.live("one/put/1", "one/put/2", end=Step.COMMITTED_LAST)
    with Process(place.space) as server:
        url = f"xaq+unix://{server.path}"
        with xaqueue.connect(url) as queue:
            with pytest.raises(QueueWaiting, match="release --carrier"):
                queue.dequeue("orders")
            told = run("status", "--space", url).replace(", warming", "")
            assert "is waited for by orders: open its transaction manager with that database" in told
            manager = place.manager()
            message = queue.dequeue("orders", wait_s=PATIENCE_S)
            assert message is not None
            assert message.body == b"1"
            queue.rollback()
            assert [message.body for message in queue.browse("orders")] == [b"1", b"2"]
            eventually(lambda: not place.carried())
            place.rows.clear()
            for number in (3, 4):
                with manager.transaction() as tx:
                    put(tx, number)
                manager.recover()
            assert place.rows == [0, 0], "the space is not open in this process"
            assert [message.body for message in queue.browse("orders")] == [b"1", b"2", b"3", b"4"]
            manager.close()


def test_an_operator_releases_a_carrier_of_a_served_space(shop: Place) -> None:
    shop.live("one/put/1", "harden", "one/put/2", end=Step.COMMITTED_LAST)
    (name,) = shop.names()
    with Process(shop.space) as server:
        url = f"xaq+unix://{server.path}"
        said = run("release", "--carrier", name, "--space", url)
        assert "orders wait for it no more" in said.replace(", warming", "")
        assert f"{name}, released: what it has is taken when its transaction manager is open" in run(
            "status", "--space", url
        )
        assert "is not waited for" in run("release", "--carrier", name, "--space", url, code=1)
        with xaqueue.connect(url) as queue:
            assert [message.body for message in queue.browse("orders")] == [b"1"]
            manager = shop.manager()
            eventually(lambda: len(list(queue.browse("orders"))) == 2)
            manager.close()


# Where the queue has to prepare


def test_what_is_not_for_a_database_is_prepared(place: Place) -> None:
    """A large body, and a second queue; then all is as before."""
    xaqueue.connect(place.root / "other", create=True).close()
    manager = place.manager(others={"more": partial(xaqueue.connect, place.root / "other")})
    wait_until_it_carries(manager)
    eventually(lambda: not place.carried())
    place.rows.clear()
    with manager.transaction() as tx:
        put(tx, 1)
        tx["queue"].enqueue("large", LARGE)
    with manager.transaction() as tx:
        put(tx, 2)
        tx["more"].enqueue("orders", b"2")
    assert place.rows == [0, 0]
    with manager.transaction() as tx:
        put(tx, 3)
    assert place.rows[-1] == 1
    assert place.messages() == place.orders() == [1, 2, 3]


@pytest.mark.parametrize("option", [{"carry": False}, {"two_phase": True}])
def test_who_does_not_want_it_is_not_carried(shop: Place, option: dict[str, Any]) -> None:
    manager = shop.manager(**option)
    for number in range(4):
        with manager.transaction() as tx:
            put(tx, number)
        manager.recover()
    assert not any(shop.rows)
    assert shop.messages() == [0, 1, 2, 3]
    manager.close()
    assert inspect.status(shop.space).carriers == []


def test_a_space_with_another_level_is_prepared(place: Place) -> None:
    manager = place.manager(queue=partial(xaqueue.connect, place.space, sync="FSYNC"))
    for number in range(4):
        with manager.transaction() as tx:
            put(tx, number)
        manager.recover()
    assert not any(place.rows)
    with xaqueue.connect(place.space, sync="FSYNC") as own:
        assert len(list(own.browse("orders"))) == 4


def test_a_space_that_comes_back_with_another_level_says_so(place: Place) -> None:
    """It cannot take what stands in the database; with its own level it can."""
    place.live("one/put/1", end=Step.COMMITTED_LAST)
    manager = place.manager(queue=partial(xaqueue.connect, place.space, sync="FSYNC"))
    assert "open it with JOURNAL" in trouble_of(manager)
    manager.close()
    place.manager()
    eventually(lambda: not place.waits())
    assert place.messages() == [1]


def test_a_role_that_may_not_update_prepares_and_it_is_said(shop: Place, caplog: pytest.LogCaptureFixture) -> None:
    dsn = shop.databases["one"]
    with psycopg.connect(dsn) as own:
        own.execute(last_resource.create_statement(Dialect.POSTGRESQL))
        own.execute("create role teller login")
        own.execute(f"grant select, insert, delete on {last_resource.TABLE} to teller")
        own.execute("grant all on orders, taken to teller")
    try:
        with caplog.at_level(logging.WARNING, logger="xaqueue"):
            manager = shop.manager(ledger=partial(psycopg.connect, dsn, user="teller"))
            with manager.transaction() as tx:
                put(tx, 1)
            assert "permission denied" in trouble_of(manager)
            with manager.transaction() as tx:
                put(tx, 2)
        assert any("permission denied" in record.getMessage() for record in caplog.records)
        assert not any(shop.rows)
        assert shop.messages() == shop.orders() == [1, 2]
        with psycopg.connect(dsn) as own:
            own.execute(f"grant update on {last_resource.TABLE} to teller")
        wait_until_it_carries(manager)
        manager.close()
    finally:
        with psycopg.connect(dsn) as own:
            own.execute("drop owned by teller")
            own.execute("drop role teller")


# What is said


def test_what_status_and_release_say(place: Place) -> None:
    place.live("one/put/1", "one/put/2", end=Step.COMMITTED_LAST)
    (name,) = place.names()
    waited = f"{name} is waited for by orders: open its transaction manager with that database"
    assert waited in run("status", "--space", place.space).replace(", warming", "")
    found = json.loads(run("status", "--json", "--space", place.space))
    assert [one["carrier"] for one in found["carriers"]] == [name]
    assert "orders wait until its database was asked" in run("check", "--space", place.space).replace(", warming", "")
    assert "QUEUE, or --carrier NAME" in fails("release", "--space", place.space, code=2)
    assert "QUEUE, or --carrier NAME" in fails("release", "orders", "--carrier", name, "--space", place.space, code=2)
    assert "<node>.<participant> is wanted" in fails("release", "--carrier", "x", "--space", place.space, code=2)
    said = json.loads(run("release", "--carrier", name, "--json", "--space", place.space))
    assert (said["carrier"], said["state"]) == (name, "open")
    assert run("release", "--carrier", name, "--json", "--space", place.space, code=1) == "null\n"
