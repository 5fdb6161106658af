"""A FastAPI service takes orders: the row and the message, both or neither. Try:

    xaqueue init queue --default fifo
    xaqueue serve --space queue &
    xaqueue health --wait 10 --space queue
    uvicorn fastapi_service:app &
    python fastapi_worker.py &
    curl -s --retry 9 --retry-delay 1 --retry-connrefused -X PUT "localhost:8000/orders/1?item=two+apples"
    sleep 1; curl -s localhost:8000/orders/1

``fastapi_worker.py`` handles what it takes. Kill any of them at any moment, start it again, and send what got no answer
once more: each order is a row, and is handled once. SHOP_DATABASE is another database's URL for SQLAlchemy, SHOP_QUEUE
the queue space's directory or URL. Each process has decisions of its own.

Needs: pip install "xaqueue[server,sqlalchemy]" fastapi uvicorn
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException
from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

import xaqueue
from xaqueue.contrib.sqlalchemy import participant


class Base(DeclarativeBase):
    """Of the shop's tables."""


class Order(Base):
    __tablename__ = "orders"
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    item: Mapped[str]
    handled: Mapped[int] = mapped_column(default=0)
    """How often: once, in the end."""


def manager(name: str) -> xaqueue.TransactionManager:
    """A transaction manager over the database and the queue, with decisions in a directory of that name."""
    engine = create_engine(os.environ.get("SHOP_DATABASE", "sqlite:///shop.db"))
    Base.metadata.create_all(engine)
    queue = os.environ.get("SHOP_QUEUE", "queue")
    return xaqueue.TransactionManager(
        name, {"db": participant(engine, session=True), "queue": lambda: xaqueue.connect(queue)}
    )


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    with manager("service-decisions") as app.state.manager:
        yield


app = FastAPI(lifespan=lifespan)


@app.put("/orders/{number}")
def take(number: int, item: str) -> dict[str, int]:
    """May be sent again: an order that is there is not taken twice."""
    with app.state.manager.transaction() as tx:
        if tx["db"].get(Order, number) is None:
            tx["db"].add(Order(number=number, item=item))
            tx["queue"].enqueue("orders", str(number).encode())
    return {"number": number}


@app.get("/orders/{number}")
def look(number: int) -> dict[str, int | str]:
    with app.state.manager.transaction() as tx:
        order = tx["db"].get(Order, number)
        if order is None:
            raise HTTPException(404)
        return {"number": number, "item": order.item, "handled": order.handled}
