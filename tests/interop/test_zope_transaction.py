"""The data manager of the example zope_transaction.py does in every case what Zope's ``transaction`` expects of one."""

from __future__ import annotations

import importlib.util
import logging
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from support import ROOT

pytest.importorskip("transaction", reason="transaction is not installed")
pytest.importorskip("psycopg", reason="psycopg is not installed")

import transaction

import xaqueue
from xaqueue.errors import RolledBack

EXAMPLE = ROOT / "examples" / "postgres" / "zope_transaction.py"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("zope_transaction", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Spaces:
    """Two queue spaces with one transaction manager, and what is in them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name in ("one", "two"):
            xaqueue.connect(root / name, create=True).close()
        parties: dict[str, Callable[[], Any]] = {
            name: lambda name=name: xaqueue.connect(root / name)  # type: ignore[misc]
            for name in ("one", "two")
        }
        self.manager = xaqueue.TransactionManager(root / "decisions", parties)

    def enqueue(self, tx: Any, body: bytes) -> None:
        for name in ("one", "two"):
            tx[name].enqueue("orders", body)

    def bodies(self) -> list[list[bytes]]:
        found = []
        for name in ("one", "two"):
            with xaqueue.connect(self.root / name) as connection:
                found.append([message.body for message in connection.browse("orders")])
        return found


@pytest.fixture
def spaces(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[Spaces]:
    """Whatever ``transaction`` complains of fails the test."""
    made = Spaces(tmp_path)
    with made.manager:
        yield made
    transaction.abort()
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


class Refusing:
    """Another data manager, which votes against, or does not."""

    transaction_manager = transaction.manager

    def __init__(self, refuses: bool) -> None:
        self.refuses = refuses
        self.calls: list[str] = []

    def sortKey(self) -> str:
        return "another"

    def tpc_vote(self, current: Any) -> None:
        self.calls.append("tpc_vote")
        if self.refuses:
            raise sqlite3.IntegrityError("no")

    def __getattr__(self, name: str) -> Any:
        if name not in ("tpc_begin", "commit", "tpc_finish", "abort", "tpc_abort"):
            raise AttributeError(name)
        return lambda current: self.calls.append(name)


def test_it_commits_with_the_transaction(spaces: Spaces, example: ModuleType) -> None:
    with transaction.manager:
        tx = example.joined(spaces.manager)
        assert example.joined(spaces.manager) is tx, "one a transaction"
        spaces.enqueue(tx, b"1")
    assert spaces.bodies() == [[b"1"], [b"1"]]
    with transaction.manager:
        assert example.joined(spaces.manager) is not tx


def test_it_is_rolled_back_with_the_transaction(spaces: Spaces, example: ModuleType) -> None:
    transaction.begin()
    spaces.enqueue(example.joined(spaces.manager), b"1")
    transaction.abort()
    assert spaces.bodies() == [[], []]


def test_it_votes_behind_the_others_and_one_who_refuses_rolls_it_back(spaces: Spaces, example: ModuleType) -> None:
    for refuses, left in ((True, []), (False, [b"1"])):
        transaction.begin()
        other = Refusing(refuses)
        spaces.enqueue(example.joined(spaces.manager), b"1")
        transaction.get().join(other)
        if refuses:
            with pytest.raises(sqlite3.IntegrityError):
                transaction.commit()
            assert other.calls == ["tpc_begin", "commit", "tpc_vote", "abort", "tpc_abort"]
            transaction.abort()
        else:
            transaction.commit()
            assert other.calls == ["tpc_begin", "commit", "tpc_vote", "tpc_finish"]
        assert spaces.bodies() == [left, left]


def test_a_commit_that_fails_rolls_the_others_back_and_may_be_tried_again(spaces: Spaces, example: ModuleType) -> None:
    other = Refusing(refuses=False)
    tries: list[Any] = []
    for attempt in transaction.manager.attempts(2):
        with attempt:
            transaction.get().join(other)
            tx = example.joined(spaces.manager)
            spaces.enqueue(tx, b"1")
            if not tries:
                tx["two"].tpc_end(flags=xaqueue.Flag.FAIL)
            tries.append(tx)
    assert [one.outcome for one in tries] == [xaqueue.Outcome.ROLLED_BACK, xaqueue.Outcome.COMMITTED]
    assert other.calls.count("tpc_abort") == 1
    assert spaces.bodies() == [[b"1"], [b"1"]]
    assert example.Joined(tries[0]).should_retry(RolledBack("again"))
    assert not example.Joined(tries[0]).should_retry(ValueError())
