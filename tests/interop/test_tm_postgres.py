"""The transaction manager over a real PostgreSQL and a queue: both or neither, whoever fails at which step.

PostgreSQL loses its backend in two ways: an administrator ends it, or it is killed and the whole server recovers.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import errors

import xaqueue
from support import SUPPORT
from support.carrying import wait_until_it_carries
from support.patience import eventually
from support.postgres import PATIENCE_S, crash, prepared, reached, terminate
from support.tm_postgres_child import ways
from xaqueue.errors import RolledBack
from xaqueue.tm import last_resource
from xaqueue.tm.coordinator import TraceStep as Step
from xaqueue.tm.log_directory import view_log
from xaqueue.xa import Outcome

CHILD = SUPPORT / "tm_postgres_child.py"
TOLD = (Step.PREPARE, Step.PREPARED, Step.COMMIT, Step.COMMITTED)
LAST = [
    *((step, "queue") for step in TOLD),
    *((step, "ledger") for step in (Step.COMMIT_LAST, Step.COMMITTED_LAST)),
]
STEPS = {
    "two phases": [
        *((step, name) for step in TOLD for name in ("ledger", "queue")),
        *((Step.DECIDE, ""), (Step.DECIDED, "")),
    ],
    "row": LAST,
    "carried": LAST,
}
DECIDED = (Step.DECIDED, Step.COMMITTED_LAST, Step.COMMIT, Step.COMMITTED, Step.DONE)
LOSSES = pytest.mark.parametrize("lose", [terminate, crash])
Lose = Callable[[str, psycopg.Connection], None]


def cases(*more: tuple[Step, str]) -> pytest.MarkDecorator:
    """The steps of every way."""
    every = [(way, *step) for way, steps in STEPS.items() for step in (*steps, *more)]
    ids = [f"{way}-{step}-{name or 'all'}" for way, step, name in every]
    return pytest.mark.parametrize(("shop", "step", "name"), every, indirect=["shop"], ids=ids)


two_phases_only = pytest.mark.parametrize("shop", ["two phases"], indirect=True)


class Shop:
    """A table, a queue, and a way to open transaction managers over both.

    way: whether PostgreSQL prepares, or decides by its own commit and a row; carried: which has the message, too.
    """

    def __init__(self, dsn: str, directory: Path, stack: ExitStack, way: str) -> None:
        self.dsn = dsn
        self.way = way
        self.directory = directory
        self.space = directory / "space"
        self._stack = stack
        self.on_step: Callable[[Step, str], None] = lambda step, name: None
        with psycopg.connect(dsn) as own:
            own.execute("create table orders (id int primary key deferrable initially deferred)")
        xaqueue.connect(self.space, create=True).close()

    def manager(self, log: str = "decisions", *, warm: bool = True, **options: Any) -> xaqueue.TransactionManager:
        """warm: it carries already, where it is to carry."""
        parties = {"ledger": lambda: psycopg.connect(self.dsn), "queue": lambda: xaqueue.connect(self.space)}
        watched: dict[str, Any] = {"on_step": lambda step, gtrid, name: self.on_step(step, name)}
        made = xaqueue.TransactionManager(
            self.directory / log,
            parties,
            **{"recovery_interval_s": 0.1, **ways(self.way), **watched, **options},
        )
        self._stack.enter_context(made)
        if warm and self.way == "carried":
            wait_until_it_carries(made)
            eventually(lambda: not self.decisions())
            with psycopg.connect(self.dsn, autocommit=True) as own:
                own.execute("checkpoint")  # a crash that comes now brings none of those rows back
        return made

    def rows(self) -> list[int]:
        with reached(self.dsn) as own:
            return [row[0] for row in own.execute("select id from orders order by id")]

    def messages(self) -> list[int]:
        with xaqueue.connect(self.space) as own:
            return [int(message.body) for message in own.browse("orders")]

    def doubtful(self) -> int:
        with xaqueue.connect(self.space) as own:
            return len(own.tpc_recover())

    def decisions(self) -> int:
        """Transactions that still need their row."""
        with reached(self.dsn) as own:
            if own.execute("select to_regclass(%s)", (last_resource.TABLE,)).fetchone() == (None,):
                return 0
            rows = own.execute(f"select count(*) from {last_resource.TABLE} where decision = 'commit'")
            return int(rows.fetchone()[0])  # type: ignore[index]

    def rests(self, log: str = "decisions") -> bool:
        open_ones = view_log(self.directory / log).open
        return not (prepared(self.dsn) or self.doubtful() or self.decisions() or open_ones)

    def settle(self, log: str = "decisions") -> None:
        until = time.monotonic() + PATIENCE_S
        while not self.rests(log):
            assert time.monotonic() < until, view_log(self.directory / log).open
            time.sleep(0.02)


@pytest.fixture(params=STEPS)
def shop(dsn: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Shop]:
    with ExitStack() as stack:
        yield Shop(dsn, tmp_path, stack, request.param)


def take(tx: Any, *ids: int) -> None:
    for number in ids:
        tx["ledger"].execute("insert into orders values (%s)", (number,))
        tx["queue"].enqueue("orders", str(number).encode())


# The plain ways


def test_rows_and_messages_are_committed_together(shop: Shop) -> None:
    manager = shop.manager()
    for number in (1, 2, 3):
        with manager.transaction() as tx:
            take(tx, number)
        assert manager.outcome(tx.gtrid) is Outcome.COMMITTED
    assert (shop.rows(), shop.messages()) == ([1, 2, 3], [1, 2, 3])
    shop.settle()


def test_an_exception_rolls_both_back_and_is_raised_as_it_is(shop: Shop) -> None:
    manager = shop.manager()
    tx = manager.transaction()

    def work() -> None:
        with tx:
            take(tx, 1)
            tx["ledger"].execute("select 1/0")

    with pytest.raises(errors.DivisionByZero):
        work()
    assert manager.outcome(tx.gtrid) is Outcome.ROLLED_BACK
    assert (shop.rows(), shop.messages()) == ([], [])
    shop.settle()


def test_what_is_rolled_back_by_hand_is_gone(shop: Shop) -> None:
    with shop.manager().transaction() as tx:
        take(tx, 1)
        tx.rollback()
    assert (shop.rows(), shop.messages()) == ([], [])
    shop.settle()


def test_a_queue_that_had_nothing_takes_no_part_in_the_second_phase(shop: Shop) -> None:
    steps: list[tuple[str, str]] = []
    manager = shop.manager()
    shop.on_step = lambda step, name: steps.append((str(step), name))
    with manager.transaction() as tx:
        assert tx["queue"].dequeue("orders") is None
        tx["ledger"].execute("insert into orders values (1)")
    assert ("commit", "queue") not in steps
    assert ("commit", "ledger") in steps
    assert shop.rows() == [1]
    shop.settle()


def test_one_participant_alone_is_committed_in_one_phase(shop: Shop) -> None:
    steps: list[str] = []
    manager = shop.manager()
    shop.on_step = lambda step, name: steps.append(str(step))
    with manager.transaction() as tx:
        tx["ledger"].execute("insert into orders values (1)")
    assert "prepare" not in steps
    assert "decide" not in steps
    assert shop.rows() == [1]
    shop.settle()


def test_connections_are_used_again(shop: Shop) -> None:
    manager = shop.manager()
    pids = set()
    for number in range(5):
        with manager.transaction() as tx:
            take(tx, number)
            pids.add(tx["ledger"].info.backend_pid)
    assert len(pids) == 1


# Refusals


def test_a_failed_statement_that_nobody_told_of_is_no_commit(shop: Shop) -> None:
    """PostgreSQL would prepare such a transaction by rolling it back, without a word."""
    tx = shop.manager().transaction()
    take(tx, 1)
    with pytest.raises(errors.DivisionByZero):
        tx["ledger"].execute("select 1/0")
    with pytest.raises(RolledBack):
        tx.commit()
    assert (shop.rows(), shop.messages()) == ([], [])
    shop.settle()


def test_nor_is_it_one_in_one_phase(shop: Shop) -> None:
    tx = shop.manager().transaction()
    tx["ledger"].execute("insert into orders values (1)")
    with pytest.raises(errors.DivisionByZero):
        tx["ledger"].execute("select 1/0")
    with pytest.raises(RolledBack):
        tx.commit()
    assert shop.rows() == []
    shop.settle()


def test_a_savepoint_keeps_a_failed_statement_to_itself(shop: Shop) -> None:
    with shop.manager().transaction() as tx:
        take(tx, 1)
        with pytest.raises(errors.DivisionByZero), tx["ledger"].transaction():
            tx["ledger"].execute("select 1/0")
    assert (shop.rows(), shop.messages()) == ([1], [1])
    shop.settle()


def test_a_constraint_that_is_checked_at_prepare_refuses_for_all(shop: Shop) -> None:
    manager = shop.manager()
    with pytest.raises(RolledBack) as caught, manager.transaction() as tx:
        take(tx, 1, 1)
    assert isinstance(caught.value.__cause__, errors.UniqueViolation)
    shop.settle()
    assert (shop.rows(), shop.messages()) == ([], [])
    with manager.transaction() as tx:
        take(tx, 2)
    assert (shop.rows(), shop.messages()) == ([2], [2])
    shop.settle()


def test_a_queue_that_refuses_at_prepare_takes_the_prepared_row_back(shop: Shop) -> None:
    tx = shop.manager().transaction()
    take(tx, 1)
    tx["queue"].tpc_end(flags=xaqueue.Flag.FAIL)
    with pytest.raises(RolledBack):
        tx.commit()
    shop.settle()
    assert (shop.rows(), shop.messages()) == ([], [])


def test_a_refused_serialization_is_told_as_rolled_back(shop: Shop) -> None:
    """Only prepare finds it out."""
    tx = shop.manager().transaction()
    with psycopg.connect(shop.dsn) as other:
        other.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
        tx["ledger"].execute("set transaction isolation level serializable")
        for connection, number in ((tx["ledger"], 1), (other, 2)):
            connection.execute("select sum(id) from orders")
            connection.execute("insert into orders values (%s)", (number,))
        tx["queue"].enqueue("orders", b"1")
        other.commit()
    with pytest.raises(RolledBack) as caught:
        tx.commit()
    assert isinstance(caught.value.__cause__, errors.SerializationFailure)
    shop.settle()
    assert (shop.rows(), shop.messages()) == ([2], [])


# Lost backends


@LOSSES
@cases()
def test_a_backend_lost_at_any_step_tears_nothing_apart(shop: Shop, step: Step, name: str, lose: Lose) -> None:
    manager = shop.manager()
    lost: list[psycopg.Connection] = []

    def strike(now: Step, participant: str) -> None:
        if (now, participant) == (step, name) and not lost:
            lost.append(connection)
            lose(shop.dsn, connection)

    shop.on_step = strike
    try:
        with manager.transaction("ledger", "queue") as tx:
            connection = tx["ledger"]
            take(tx, 1)
    except RolledBack:
        outcome = Outcome.ROLLED_BACK
    else:
        outcome = Outcome.COMMITTED
    assert lost
    shop.settle()
    assert shop.rows() == shop.messages() == ([1] if outcome is Outcome.COMMITTED else [])
    assert manager.outcome(tx.gtrid) is outcome
    if step in DECIDED or (step, name) == (Step.DECIDE, ""):
        assert outcome is Outcome.COMMITTED, "what is prepared does not need its backend"
    with manager.transaction() as tx:
        take(tx, 2)
    assert 2 in shop.rows()


@LOSSES
def test_a_backend_lost_in_the_work_is_told_by_the_driver(shop: Shop, lose: Lose) -> None:
    tx = shop.manager().transaction()
    take(tx, 1)
    lose(shop.dsn, tx["ledger"])
    with pytest.raises(psycopg.OperationalError):
        take(tx, 2)
    tx.rollback()
    shop.settle()
    assert (shop.rows(), shop.messages()) == ([], [])


# A lost transaction manager


@cases((Step.BEGIN, "ledger"), (Step.BEGIN, "queue"), (Step.DONE, ""), (Step.ROLLBACK, "ledger"))
def test_the_next_life_finishes_what_a_killed_one_left(shop: Shop, step: Step, name: str) -> None:
    words = [shop.dsn, str(shop.space), str(shop.directory / "decisions"), shop.way, str(step), name]
    done = subprocess.run(
        [sys.executable, str(CHILD), *words], capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    manager = shop.manager(recovery_interval_s=60.0, warm=False)
    for _ in range(2):
        manager.recover()
    manager.close()
    assert shop.rests()
    committed = [1] if step in DECIDED else []
    assert (shop.rows(), shop.messages()) == (committed, committed)


# Strangers


@two_phases_only
def test_two_managers_on_one_database_never_touch_each_others_work(shop: Shop) -> None:
    """One is killed before its decision, another after it; a third comes and goes, and then they come again."""
    with psycopg.connect(shop.dsn) as own:
        own.execute("alter table orders drop constraint orders_pkey")  # each takes an order 1
    for log, step in {"one": Step.DECIDE, "two": Step.DECIDED}.items():
        arguments = [shop.dsn, str(shop.space), str(shop.directory / log), shop.way, str(step), ""]
        subprocess.run([sys.executable, str(CHILD), *arguments], capture_output=True, check=False, timeout=PATIENCE_S)
    assert (len(prepared(shop.dsn)), shop.doubtful()) == (2, 2)
    shop.manager("three").recover()
    assert (len(prepared(shop.dsn)), shop.doubtful()) == (2, 2)
    shop.manager("one").recover()
    assert (shop.rows(), shop.messages()) == ([], [])
    assert (len(prepared(shop.dsn)), shop.doubtful()) == (1, 1)
    shop.manager("two").recover()
    assert (shop.rows(), shop.messages()) == ([1], [1])
    for log in ("one", "two", "three"):
        shop.settle(log)


def test_what_somebody_else_has_prepared_stays(shop: Shop) -> None:
    with psycopg.connect(shop.dsn) as own:
        own.execute("insert into orders values (7)")
        own.execute("prepare transaction 'somebody elses'")
    with closing(psycopg.connect(shop.dsn)) as other:
        other.tpc_begin(other.xid(1, "another manager", "ledger"))
        other.tpc_prepare()
    before = sorted(prepared(shop.dsn))
    manager = shop.manager()
    with manager.transaction() as tx:
        take(tx, 1)
    assert manager.recover().complete
    assert sorted(prepared(shop.dsn)) == before
    assert shop.rows() == [1]


@two_phases_only
def test_what_an_administrator_has_rolled_back_is_a_hazard_and_said(shop: Shop) -> None:
    """PostgreSQL cannot tell later what became of it."""

    def meddle(step: Step, name: str) -> None:
        if step is Step.DECIDED:
            with reached(shop.dsn, autocommit=True) as other:
                (gid,) = prepared(shop.dsn)
                other.tpc_rollback(gid)

    manager = shop.manager()
    shop.on_step = meddle
    with pytest.raises(xaqueue.HeuristicHazard) as caught, manager.transaction() as tx:
        take(tx, 1)
    assert set(caught.value.parties) == {"ledger", "queue"}
    assert (shop.rows(), shop.messages()) == ([], [1])
    (open_one,) = manager.in_doubt()
    assert open_one.gtrid == tx.gtrid
    manager.forget(tx.gtrid)
    assert manager.in_doubt() == []


def test_a_database_that_is_down_keeps_nobody_from_starting(shop: Shop) -> None:
    down = {"ledger": lambda: psycopg.connect(f"host={shop.directory} connect_timeout=2")}
    with xaqueue.TransactionManager(shop.directory / "other", down, recovery_interval_s=60.0) as manager:
        assert not manager.recover().complete
        with pytest.raises(psycopg.OperationalError), manager.transaction() as tx:
            tx["ledger"].execute("select 1")
