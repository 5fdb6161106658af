"""Handles what ``fastapi_service.py`` takes: the message goes and the row says so, both or neither; see there."""

from __future__ import annotations

import time

from fastapi_service import Order, manager
from sqlalchemy.exc import SQLAlchemyError

import xaqueue


def handle(tm: xaqueue.TransactionManager) -> None:
    with tm.transaction() as tx:
        message = tx["queue"].dequeue("orders", wait_s=5.0)
        if message is not None:
            tx["db"].get(Order, int(message.body)).handled += 1


def main() -> None:
    with manager("worker-decisions") as tm:
        while True:
            try:
                handle(tm)
            except (xaqueue.Error, SQLAlchemyError) as error:  # one is away or busy; what was begun is rolled back
                print("again in a second:", error)
                time.sleep(1.0)


if __name__ == "__main__":
    main()
