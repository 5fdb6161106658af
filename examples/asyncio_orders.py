"""Orders in asyncio: a task takes them, another one packs them; each time a row and a message are committed together.

    python examples/asyncio_orders.py DIRECTORY

Needs: pip install xaqueue aiosqlite
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import aiosqlite

import xaqueue


async def take(tm: xaqueue.TransactionManager, number: int, item: str) -> None:
    async with tm.transaction("ledger", "queue") as tx:
        await tx["ledger"].execute("insert into orders values (?, ?, 'taken')", (number, item))
        tx["queue"].enqueue("orders", str(number).encode())


async def pack(tm: xaqueue.TransactionManager) -> bool:
    """One order; False where there is none."""
    async with tm.transaction("ledger", "queue") as tx:
        message = tx["queue"].dequeue("orders")
        if message is None:
            return False
        await tx["ledger"].execute("update orders set state = 'packed' where number = ?", (int(message.body),))
    return True


async def main(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    participants = {
        "ledger": lambda: aiosqlite.connect(directory / "orders.db"),
        "queue": lambda: xaqueue.connect(directory / "space", create=True),
    }
    async with aiosqlite.connect(directory / "orders.db") as database:
        await database.execute("create table if not exists orders (number integer primary key, item text, state text)")
    async with xaqueue.TransactionManager(directory / "decisions", participants) as tm:
        for number, item in enumerate(("two apples", "three pears", "four plums"), start=1):
            await take(tm, number, item)
        try:
            await take(tm, 1, "five figs")
        except aiosqlite.IntegrityError:
            print("number 1 is taken: neither a row nor a message")
        while await pack(tm):
            pass
    async with aiosqlite.connect(directory / "orders.db") as database:
        for row in await database.execute_fetchall("select number, item, state from orders order by number"):
            print(*row)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
