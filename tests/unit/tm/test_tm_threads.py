"""Threads of a transaction manager: interrupted, hanging, or side by side; none holds up another."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import xaqueue
from support.tm_scene import Scene
from support.tm_world import ROLLED_BACK, Bank, BankConnection, Rig, World
from xaqueue import TransactionManager
from xaqueue.errors import RolledBack
from xaqueue.tm import manager as manager_of
from xaqueue.tm.coordinator import PARALLEL_CALLS
from xaqueue.tm.participant import Participant
from xaqueue.xa import Outcome

PATIENCE_S = 60.0


@pytest.fixture
def scene() -> Scene:
    return Scene()


# Acknowledged without proof


# The last resource


# Interrupted


def test_a_connection_that_was_interrupted_is_not_used_again() -> None:
    """The interruption may arrive late, in the next transaction's statement."""
    bank = Bank(World(), "a")

    class Cancelled(BankConnection):
        def cancel(self) -> None:
            pass

    scene = Scene()
    rig = Rig(scene.fs, {"a": lambda: Cancelled(bank)})
    tx = rig.transaction("a").__enter__()
    connection = tx["a"]
    tx._is_expired = lambda: True  # type: ignore[method-assign]
    tx.interrupt_if_expired()
    tx.rollback()
    with rig.transaction("a") as tx:
        assert tx["a"] is not connection
    assert connection.closed


# Threads, and children


def test_close_does_not_wait_for_an_interruption_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """psycopg's cancel connects, and nobody may be there."""
    hangs, goes_on = threading.Event(), threading.Event()
    bank = Bank(World(), "a")

    class Hanging(BankConnection):
        def cancel(self) -> None:
            hangs.set()
            assert goes_on.wait(PATIENCE_S)

    monkeypatch.setattr(manager_of, "CLOSE_PATIENCE_S", 0.1)
    manager = TransactionManager(tmp_path / "log", {"a": lambda: Hanging(bank)})
    tx = manager.transaction("a").__enter__()
    tx._deadline = 0.0
    assert hangs.wait(PATIENCE_S)
    closing = threading.Thread(target=manager.close)
    closing.start()
    closing.join(PATIENCE_S)
    closed = not closing.is_alive()
    goes_on.set()
    closing.join()
    assert closed


# Spaces


def test_threads_that_open_a_space_for_the_first_time_make_it_once(tmp_path: Path) -> None:
    """As recovery and the first transaction do."""
    failed: list[Exception] = []
    for number in range(5):
        begin = threading.Barrier(4)

        def connect(begin: threading.Barrier = begin, place: Path = tmp_path / str(number)) -> None:
            begin.wait(PATIENCE_S)
            try:
                xaqueue.connect(place, create=True).close()
            except xaqueue.Error as error:
                failed.append(error)

        threads = [threading.Thread(target=connect) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failed == []


# Side by side


class Slow(BankConnection):
    """Prepares when it may."""

    goes_on: threading.Event
    prepares: threading.Semaphore

    def tpc_prepare(self) -> bool | None:
        self.prepares.release()
        assert self.goes_on.wait(PATIENCE_S)
        return super().tpc_prepare()


def side_by_side(connect: Any) -> Participant:
    return Participant(connect, parallel=True)


def test_transactions_that_hang_hold_up_no_others(tmp_path: Path) -> None:
    world, goes_on, prepares = World(), threading.Event(), threading.Semaphore(0)
    slow = type("Stuck", (Slow,), {"goes_on": goes_on, "prepares": prepares})
    found = {name: Bank(world, name) for name in "abcz"}
    parties = {name: side_by_side(found[name].connect) for name in "abc"}
    parties["z"] = side_by_side(lambda: slow(found["z"]))
    with TransactionManager(tmp_path / "log", parties) as manager:

        def transact(*names: str) -> None:
            with manager.transaction(*names):
                pass

        hanging = [threading.Thread(target=transact, args=("a", "z")) for _ in range(PARALLEL_CALLS + 1)]
        for thread in hanging:
            thread.start()
        try:
            assert all(prepares.acquire(timeout=PATIENCE_S) for _ in hanging)
            transact("b", "c")
        finally:
            goes_on.set()
            for thread in hanging:
                thread.join()


def test_the_end_of_the_manager_rolls_back_those_that_work_side_by_side(tmp_path: Path) -> None:
    found = {name: Bank(World(), name) for name in "ab"}
    manager = TransactionManager(tmp_path / "log", {name: side_by_side(bank.connect) for name, bank in found.items()})
    with manager.transaction("a", "b"):
        pass
    left = manager.transaction("a", "b").__enter__()
    manager.close()
    with pytest.raises(RolledBack, match="closed"):
        left.commit()
    assert left.outcome is Outcome.ROLLED_BACK
    assert found["a"].branches.popitem()[1] == found["b"].branches.popitem()[1] == ROLLED_BACK


# PostgreSQL
