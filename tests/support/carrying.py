"""A transaction manager whose database carries what its queue does, from the moment when it may."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from xaqueue import RolledBack, TransactionManager

PATIENCE_S = 60.0
WARMING = "warming"
"""A queue that nobody looks at."""


def small(database: str, queue: str) -> Callable[[Any], object]:
    """What a first transaction does, which leaves a message in a queue that nobody looks at."""

    def work(tx: Any) -> None:
        tx[database].execute("select 1")
        tx[queue].enqueue(WARMING, b"")

    return work


def carries(manager: TransactionManager, database: str = "ledger", queue: str = "queue") -> bool:
    """Whether a transaction over both would have its change carried, if it began now."""
    return manager._coordinator.deciding.is_ready(queue, database)


def wait_until_it_carries(manager: TransactionManager, database: str = "ledger", queue: str = "queue") -> None:
    """The first transactions of a life prepare the queue: small ones, until that is over."""
    until = time.monotonic() + PATIENCE_S
    work = small(database, queue)
    while not carries(manager, database, queue):
        assert time.monotonic() < until, manager._coordinator.trouble
        # What it sees of the database may be from before this life; then it is to be done again.
        with suppress(RolledBack), manager.transaction() as tx:
            work(tx)
        manager.recover(PATIENCE_S)
