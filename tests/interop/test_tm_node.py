"""Transaction managers without a directory: nodes in the PostgreSQL whose commit decides."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

import xaqueue
from support.patience import eventually
from xaqueue.cli.location import Location, reached
from xaqueue.connection import Connection
from xaqueue.core.engine import heuristics
from xaqueue.errors import HeuristicMixed, InvalidArgument, OutcomeUnknown, RolledBack, UnknownXid
from xaqueue.features.session import Session
from xaqueue.tm.branch import EnlistedBranch
from xaqueue.tm.manager import TransactionManager
from xaqueue.tm.node import DatabaseNode
from xaqueue.tm.node_decisions import NodeEnded
from xaqueue.tm.node_schema import Timing
from xaqueue.tm.node_tables import NodeTables
from xaqueue.tm.records import Heuristic
from xaqueue.tm.voting import ParticipantOutcome
from xaqueue.xa import Code, Outcome

FAST = Timing(sign=0.1, silent=3, stale=0.4, sweep=0.2)
Make = Callable[..., TransactionManager]


class Killed(BaseException):
    """What comes instead of the end of a process."""


@pytest.fixture
def space(tmp_path: Path) -> Path:
    xaqueue.connect(tmp_path / "space", create=True).close()
    (tmp_path / "space" / "queues.toml").write_text("[queues.q]\n")
    return tmp_path / "space"


@pytest.fixture
def make(dsn: str, space: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Makes managers over one database and one space, whose clocks go fast."""
    monkeypatch.setattr("xaqueue.tm.node.Timing", lambda: FAST)
    made: list[TransactionManager] = []

    def make(**options: Any) -> TransactionManager:
        made.append(
            TransactionManager(
                {"db": lambda: psycopg.connect(dsn), "queue": lambda: xaqueue.connect(space)},
                recovery_interval_s=0.1,
                carry=False,
                **options,
            )
        )
        return made[-1]

    with psycopg.connect(dsn, autocommit=True) as own:
        own.execute("create table orders (n int)")
    yield make
    for manager in made:
        manager.close()


def node_of(manager: TransactionManager) -> DatabaseNode:
    node = manager._log
    assert isinstance(node, DatabaseNode)
    return node


def kill(manager: TransactionManager) -> None:
    """Its threads stop, and nothing is said."""
    node_of(manager)._closed.set()
    manager._stopped.set()
    for recovery in manager._recoveries.values():
        recovery.stop(5)


def left(dsn: str) -> dict[str, int]:
    with psycopg.connect(dsn, autocommit=True) as own:
        return {
            table: own.execute(f"select count(*) from xaqueue_{table}").fetchone()[0]  # type: ignore[index]
            for table in ("nodes", "signs", "ended", "decisions")
        }


def rows(dsn: str) -> list[int]:
    with psycopg.connect(dsn, autocommit=True) as own:
        return sorted(n for (n,) in own.execute("select n from orders"))


def messages(space: Path) -> list[int]:
    with xaqueue.connect(space) as connection:
        return sorted(int(message.body) for message in connection.browse("q"))


def add(manager: TransactionManager, number: int) -> None:
    with manager.transaction() as tx:
        tx["queue"].enqueue("q", b"%d" % number)
        tx["db"].execute("insert into orders values (%s)", [number])


def test_row_and_message_commit_together_and_nothing_is_left(dsn: str, space: Path, make: Make) -> None:
    manager = make()
    for number in range(5):
        add(manager, number)
    with suppress(ZeroDivisionError), manager.transaction() as tx:
        tx["queue"].enqueue("q", b"9")
        tx["db"].execute("insert into orders values (9)")
        _ = 1 / 0
    assert rows(dsn) == messages(space) == [0, 1, 2, 3, 4]
    assert left(dsn)["nodes"] == 1
    manager.close()
    assert set(left(dsn).values()) == {0}


def die_at(step: str, make: Make, before: Callable[[TransactionManager], object] = lambda _: None) -> None:
    """A process that dies in its transaction with number 2."""

    def die(at: str, gtrid: bytes, name: str) -> None:
        if at == step and armed:
            raise Killed

    armed: list[bool] = []
    dead = make(on_step=die)
    before(dead)
    armed.append(True)
    with dead.transaction() as tx:
        tx["queue"].enqueue("q", b"2")
        tx["db"].execute("insert into orders values (2)")
        kill(dead)
        with pytest.raises(Killed):
            tx.commit()


STEPS = ("prepare", "prepared", "commit-last", "committed-last", "commit", "committed")


@pytest.mark.parametrize("step", STEPS)
def test_what_a_dead_node_has_left_is_finished_by_another(dsn: str, space: Path, make: Make, step: str) -> None:
    die_at(step, make, lambda manager: add(manager, 1))
    other = make()
    eventually(lambda: rows(dsn) == messages(space) and not in_doubt(space))
    assert rows(dsn) == ([1] if step in STEPS[:3] else [1, 2])
    add(other, 3)
    eventually(lambda: left(dsn)["nodes"] == 1)
    eventually(lambda: left(dsn)["ended"] == 1)
    eventually(lambda: left(dsn)["decisions"] <= (step in ("prepared", "commit-last")))
    assert rows(dsn) == messages(space)


def in_doubt(space: Path) -> list[Any]:
    with xaqueue.connect(space) as connection:
        return connection.tpc_recover()


def test_one_that_was_taken_for_dead_goes_on_under_a_new_name(dsn: str, space: Path, make: Make) -> None:
    manager = make()
    add(manager, 1)
    node = node_of(manager)
    name = node.node
    with manager.transaction() as tx:
        tx["queue"].enqueue("q", b"2")
        tx["db"].execute("insert into orders values (2)")
        with psycopg.connect(dsn) as own:
            assert node.tables.end(own, name)
        with pytest.raises(RolledBack) as raised:
            tx.commit()
    assert isinstance(raised.value.__cause__, NodeEnded)
    assert raised.value.code is Code.XA_RBTRANSIENT
    add(manager, 3)
    assert node.node != name
    assert rows(dsn) == messages(space) == [1, 3]


def execute(dsn: str, statement: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as own:
        own.execute(statement)


def test_a_process_that_runs_learns_that_its_database_moved(dsn: str, space: Path, make: Make) -> None:
    die_at("prepared", make)
    other = make()
    eventually(lambda: not in_doubt(space))
    execute(dsn, "update xaqueue_id set place = '1/2'")
    eventually(lambda: "copy" in node_of(other).tables.trouble)
    die_at("prepared", make)
    eventually(lambda: left(dsn)["ended"] == 2)
    assert in_doubt(space)
    with psycopg.connect(dsn) as own:
        node_of(other).tables.claim(own)
    eventually(lambda: not in_doubt(space))
    assert not node_of(other).tables.trouble


def test_a_process_that_runs_takes_the_new_id(
    dsn: str, space: Path, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    manager = make()
    add(manager, 1)
    before = manager.node, node_of(manager).tables.database
    with manager.transaction() as tx:
        tx["queue"].enqueue("q", b"2")
        tx["db"].execute("insert into orders values (2)")
        with psycopg.connect(dsn) as own:
            node_of(manager).tables.claim(own, is_new=True)
        with pytest.raises(RolledBack, match="new name"):
            tx.commit()
    add(manager, 3)
    assert manager.node != before[0]
    assert node_of(manager).tables.database != before[1]
    assert "the database has a new id" in caplog.text
    assert rows(dsn) == messages(space) == [1, 3]


def noted_by(manager: TransactionManager) -> list[tuple[str, Outcome, str]]:
    found = [noted for one in manager.in_doubt() for noted in one.heuristics]
    return [(one.participant, one.decision, one.outcome.value) for one in found]


def test_what_a_queue_did_by_itself_is_known_to_all_and_outlives_its_process(dsn: str, space: Path, make: Make) -> None:
    expected = [("queue", Outcome.COMMITTED, "rolled back by itself")]
    is_done: list[bool] = []

    def roll_back_by_hand(at: str, gtrid: bytes, name: str) -> None:
        if at == "committed-last" and not is_done:
            is_done.append(True)
            with reached(Location(directory=str(space))) as session:
                assert isinstance(session, Session)
                (branch,) = session.space.branches
                heuristics.decide(session.space, branch, False, "somebody", "a test")

    manager = make(on_step=roll_back_by_hand)
    with pytest.raises(HeuristicMixed):
        add(manager, 1)
    gtrid = manager.in_doubt()[0].gtrid
    other = make()
    eventually(lambda: noted_by(other) == expected)
    eventually(lambda: left(dsn)["decisions"] == 0)
    kill(manager)
    eventually(lambda: left(dsn)["ended"] == 1)
    node_of(other).sweep_all()
    other.recover()
    assert noted_by(other) == expected, "whoever asks the queue again"
    (forgotten,) = other.forget(gtrid)
    assert forgotten.detail
    third = make()
    eventually(lambda: third.node)
    third.recover()
    assert not in_doubt(space)
    eventually(lambda: noted_by(other) == noted_by(third) == [])
    with pytest.raises(UnknownXid):
        third.forget(gtrid)


def test_who_may_not_read_what_others_did_ends_the_silent_all_the_same(
    dsn: str, make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> list[Heuristic]:
        raise psycopg.OperationalError("permission denied")

    dead = make()
    add(dead, 1)
    kill(dead)
    monkeypatch.setattr(NodeTables, "heuristics", refuse)
    make()
    eventually(lambda: left(dsn)["ended"] == 1)
    assert caplog.text.count("neither read nor kept: permission denied") <= 2, "once in each process"


def test_what_the_database_does_not_take_at_once_is_kept_there_later(
    dsn: str, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xaqueue.tm.node.LOCK_S", 0.2)
    manager = make()
    add(manager, 1)
    node = node_of(manager)
    gtrid = f"{node.named}{7:016x}".encode()
    with psycopg.connect(dsn) as own:
        own.execute("lock table xaqueue_heuristics in exclusive mode")
        one = Heuristic(gtrid, "a=queue's %", Outcome.COMMITTED, ParticipantOutcome.HEUR_MIXED, 1, "it's 5 % \u00e4")
        assert node.note(one)
        assert not node.note(one)
        assert node._unwritten
    eventually(lambda: not node._unwritten)
    with psycopg.connect(dsn) as own:
        assert node.tables.heuristics(own) == [one]


@pytest.mark.parametrize("is_known", [True, False])
def test_who_slept_through_its_commit_is_told_what_became_of_it(
    dsn: str, space: Path, make: Make, monkeypatch: pytest.MonkeyPatch, is_known: bool
) -> None:
    """It was taken for dead, and others have carried out its decision, and removed it. is_known: what became of the
    branch is, at the queue."""

    def commit_unanswered(self: EnlistedBranch) -> None:
        self.connection.tpc_commit()
        self.connection.close()
        kill(manager)
        make()
        eventually(lambda: left(dsn)["ended"] == 1 and not left(dsn)["decisions"])
        if not is_known:
            monkeypatch.setattr(Connection, "outcome", lambda *_: Outcome.UNKNOWN)
        raise psycopg.OperationalError("its answer was lost")

    manager = make()
    add(manager, 1)
    with monkeypatch.context() as patch, manager.transaction() as tx:
        tx["queue"].enqueue("q", b"2")
        tx["db"].execute("insert into orders values (2)")
        patch.setattr(EnlistedBranch, "_commit_at_once", commit_unanswered)
        if is_known:
            tx.commit()
            assert tx.outcome is Outcome.COMMITTED
        else:
            with pytest.raises(OutcomeUnknown):
                tx.commit()
    assert rows(dsn) == messages(space) == [1, 2]
    assert left(dsn)["decisions"] == 0


def test_a_decision_on_its_way_keeps_the_node_alive(dsn: str, make: Make) -> None:
    manager = make()
    add(manager, 1)
    node = node_of(manager)
    with psycopg.connect(dsn) as deciding, psycopg.connect(dsn) as own:
        deciding.execute(f"select 1 from xaqueue_nodes where node = '{node.node}' for key share")
        assert not node.tables.end(own, node.node)
    with psycopg.connect(dsn) as own:
        assert node.tables.end(own, node.node)
        assert not node.tables.end(own, node.node)


def test_a_transaction_over_queues_alone_is_decided_in_the_database(dsn: str, space: Path, tmp_path: Path) -> None:
    xaqueue.connect(tmp_path / "other", create=True).close()
    (tmp_path / "other" / "queues.toml").write_text("[queues.q]\n")
    steps: list[str] = []
    with TransactionManager(
        {"db": lambda: psycopg.connect(dsn), "a": space, "b": str(tmp_path / "other")},
        on_step=lambda step, _, name: steps.append(f"{step}:{name}"),
    ) as manager:
        with manager.transaction() as tx:
            tx["a"].enqueue("q", b"1")
            tx["b"].enqueue("q", b"1")
        assert "committed-last:db" in steps
    assert messages(space) == messages(tmp_path / "other") == [1]
    assert set(left(dsn).values()) == {0}


def test_a_forked_child_takes_a_name_of_its_own(dsn: str, space: Path, make: Make) -> None:
    manager = make()
    with manager.transaction() as tx:
        tx["db"].execute("insert into orders values (1)")
    parent = node_of(manager).node
    pid = os.fork()
    if not pid:
        code = 1
        try:
            with manager.transaction() as tx:
                tx["db"].execute("insert into orders values (2)")
            code = 0 if node_of(manager).node not in ("", parent) else 2
        finally:
            os.kill(os.getpid(), signal.SIGKILL) if code else os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    with manager.transaction() as tx:
        tx["db"].execute("insert into orders values (3)")
    assert node_of(manager).node == parent
    assert rows(dsn) == [1, 2, 3]


def test_one_over_queues_alone_that_is_late_says_so(dsn: str, space: Path) -> None:
    """And not that its database could not join."""
    with TransactionManager({"db": partial(psycopg.connect, dsn), "a": space, "b": space}) as manager:
        with manager.transaction(timeout_s=1.0) as tx:
            tx["a"].enqueue("q", b"1")
            tx["b"].enqueue("q", b"2")
            eventually(tx._is_expired)
            with pytest.raises(RolledBack) as raised:
                tx.commit()
        assert raised.value.code is Code.XA_RBTIMEOUT
    assert messages(space) == []


def in_a_child(call: Callable[[], object]) -> None:
    pid = os.fork()
    if not pid:
        try:
            call()
            os._exit(0)
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    assert os.waitpid(pid, 0)[1] == 0


def test_a_forked_child_may_recover_close_and_begin_with_many_threads(dsn: str, make: Make) -> None:
    """Whichever of them comes first there."""
    manager = make()
    with manager.transaction() as tx:
        tx["db"].execute("insert into orders values (0)")

    def at_once() -> None:
        def work(number: int) -> None:
            with manager.transaction() as tx:
                tx["db"].execute("insert into orders values (%s)", [number])
            done.append(number)

        done: list[int] = []
        threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 9)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert sorted(done) == [*range(1, 9)]
        manager.close()

    in_a_child(lambda: manager.close())
    in_a_child(lambda: manager.recover(30))
    with node_of(manager)._closed._cond:  # type: ignore[attr-defined]  # as its thread has it for a moment

        def first() -> None:
            signal.alarm(30)
            with manager.transaction() as tx:
                tx["db"].execute("select 1")
            manager.close()

        in_a_child(first)
    in_a_child(at_once)
    assert rows(dsn) == [*range(9)]


def test_more_queues_than_a_row_can_name_are_refused(dsn: str, make: Make) -> None:
    """Without all of their names nobody else could finish what it leaves."""
    manager = make()
    with manager.transaction() as tx:
        tx["db"].execute("insert into orders values (1)")
    node = node_of(manager)
    node._met, node._known = {f"{number:036}": None for number in range(54)}, frozenset()
    with pytest.raises(InvalidArgument, match="55 participants are too many"), manager.transaction() as tx:
        tx["queue"].enqueue("q", b"1")


def test_several_databases_want_to_be_told_which_decides(dsn: str) -> None:
    connect = partial(psycopg.connect, dsn)
    with (
        TransactionManager({"a": connect, "b": connect}) as manager,
        pytest.raises(InvalidArgument, match=r"2 of the participants .* are databases.*decides="),
    ):
        manager.transaction()
    with pytest.raises(InvalidArgument, match="is none of the participants"):
        TransactionManager({"a": connect}, decides="c")


def test_a_copy_is_left_alone(dsn: str, space: Path, make: Make, caplog: pytest.LogCaptureFixture) -> None:
    """A branch whose node this database does not know is of another one."""
    caplog.set_level(logging.WARNING)
    die_at("prepared", make)
    with psycopg.connect(dsn, autocommit=True) as own:
        own.execute("delete from xaqueue_nodes")
        own.execute("delete from xaqueue_signs")
    make().transaction().rollback()
    eventually(lambda: "branch-left" in caplog.text)
    assert len(in_doubt(space)) == 1


def test_who_is_signing_just_now_is_not_ended(dsn: str) -> None:
    """Its tombstone would lack the participant that the sign tells of."""
    node = "a" * 16
    with psycopg.connect(dsn) as own, psycopg.connect(dsn) as other:
        tables = NodeTables.find(own, make=True)
        assert tables is not None
        tables.register(own, node, "one")
        other.execute(f"UPDATE xaqueue_signs SET n = n + 1, participants = 'one two' WHERE node = '{node}'")
        assert not tables.end(own, node)
        other.commit()
        assert tables.end(own, node)
        assert own.execute("SELECT participants FROM xaqueue_ended").fetchall() == [("one two",)]
