"""A transaction whose end is interrupted is over for its manager, wherever that was."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

import xaqueue
from support.interrupts import interrupted_anywhere
from xaqueue.tm.transaction import Transaction

FILES = ("tm/transaction.py", "tm/ending.py", "tm/coordinator.py", "tm/branch.py", "tm/log.py", "tm/deciding.py")


@pytest.fixture
def kept_open() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # in a generator that is collected
@pytest.mark.parametrize("ends", ["commit", "rollback"])
@pytest.mark.parametrize("others", [("queue", "files"), ("queue",), ("queue", "second", "files")])
def test_an_interrupted_end_is_an_end(tmp_path: Path, ends: str, others: tuple[str, ...], kept_open: ExitStack) -> None:
    places = {name: tmp_path / name for name in ("queue", "second")}
    for place in places.values():
        kept_open.enter_context(xaqueue.connect(place, create=True, sync="NONE"))
    database = tmp_path / "files"
    with sqlite3.connect(database) as made:
        made.execute("create table rows (number integer)")
    made.close()
    opens = {name: partial(xaqueue.connect, place, sync="NONE") for name, place in places.items()}
    tried = 0
    with xaqueue.TransactionManager(
        tmp_path / "log", {**opens, "files": lambda: sqlite3.connect(database)}, recovery_interval_s=3600.0
    ) as manager:

        def begin() -> Callable[[], None]:
            tx = manager.transaction()
            for name in others:
                if name == "files":
                    tx[name].execute("insert into rows values (1)")
                else:
                    tx[name].enqueue("q", b"1")
            end: Callable[[], None] = getattr(tx, ends)
            return end

        for where in interrupted_anywhere(begin, *FILES):
            for tx in manager._coordinator.live():
                assert not tx.is_ending, where
                assert isinstance(tx, Transaction)
                tx.rollback()  # its end had not begun
            tried += 1
        manager.recover(60.0)
        assert manager.in_doubt() == []
    assert tried > 20
    counts = []
    for name in others:
        if name == "files":
            with sqlite3.connect(database) as rows:
                counts.append(rows.execute("select count(*) from rows").fetchone()[0])
            rows.close()
        else:
            with xaqueue.connect(places[name]) as connection:
                counts.append(len(list(connection.browse("q"))))
                assert connection.tpc_recover() == []
    assert len(set(counts)) == 1, "all or none"
