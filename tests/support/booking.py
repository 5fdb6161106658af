"""A transaction manager books each message as a row of PostgreSQL, while servers of the queue come and go."""

from __future__ import annotations

import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psycopg

import xaqueue
from support.patience import eventually
from support.postgres import reached
from support.served import PATIENCE_S
from xaqueue.errors import Error
from xaqueue.tm.manager import TransactionManager

QUEUE = "booked"
OTHERS = 1
"""The format of the branches of those who decide by themselves."""


class Booking(threading.Thread):
    """``judge`` once the servers stay."""

    def __init__(self, place: Path, dsn: str, url: str) -> None:
        super().__init__(name="booking")
        self._dsn, self._url = dsn, url
        self.stopped = False
        self.failure: BaseException | None = None
        self.errors: Counter[str] = Counter()
        self.done = 0
        """How many transactions were committed, as their program was told."""
        with reached(dsn) as ledger:
            ledger.execute("create table booked (n int)")
        parties: dict[str, Any] = {
            "ledger": lambda: psycopg.connect(dsn),
            "queue": lambda: xaqueue.connect(url),
        }
        self._tm = TransactionManager(place, parties)

    def run(self) -> None:
        number = 0
        try:
            with self._tm:
                while not self.stopped:
                    number += 1
                    self._book(number)
                self._recover()
        except BaseException as error:
            self.failure = error

    def _book(self, number: int) -> None:
        try:
            with self._tm.transaction("ledger", "queue") as tx:
                tx["ledger"].execute("insert into booked values (%s)", (number,))
                tx["queue"].enqueue(QUEUE, b"%d" % number)
        except (Error, psycopg.Error) as error:
            self.errors[type(error).__name__] += 1
        else:
            self.done = number

    def _recover(self) -> None:
        eventually(lambda: self._tm.recover().complete)

    def wait_for_work(self) -> None:
        """Two transactions are done from now on."""
        before, deadline = self.done, time.monotonic() + PATIENCE_S
        while self.done < before + 2:
            assert self.failure is None
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def judge(self) -> None:
        """It ends; each row has its message and each message its row."""
        self.stopped = True
        self.join(2 * PATIENCE_S)
        assert self.failure is None
        assert not self.is_alive()
        with reached(self._dsn) as ledger:
            rows = sorted(n for (n,) in ledger.execute("select n from booked").fetchall())
        with xaqueue.connect(self._url) as connection:
            assert [xid for xid in connection.tpc_recover() if xid[0] != OTHERS] == []
            assert sorted(int(message.body) for message in connection.browse(QUEUE)) == rows
        assert len(set(rows)) == len(rows)
        assert self.done <= max(rows)
