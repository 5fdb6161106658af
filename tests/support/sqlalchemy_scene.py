"""A table, a queue space and transaction managers over both, the table behind an Engine of SQLAlchemy.

Over PostgreSQL, MariaDB and SQLite, where the database decides by a row, or prepares where it can.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, String, create_engine, inspect, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

import xaqueue
from support.patience import eventually
from xaqueue.contrib.sqlalchemy import participant
from xaqueue.tm import last_resource
from xaqueue.tm.coordinator import TraceStep as Step
from xaqueue.tm.log_directory import view_log

ROW, TWO_PHASES = "row", "two phases"
TOLD = (Step.PREPARE, Step.PREPARED, Step.COMMIT, Step.COMMITTED)
STEPS = {
    TWO_PHASES: [*((step, name) for step in TOLD for name in ("db", "queue")), (Step.DECIDE, ""), (Step.DECIDED, "")],
    ROW: [*((step, "queue") for step in TOLD), (Step.COMMIT_LAST, "db"), (Step.COMMITTED_LAST, "db")],
}
DECIDED = (Step.DECIDED, Step.COMMITTED_LAST, Step.COMMIT, Step.COMMITTED, Step.DONE)
WAYS = {"sqlite": [ROW], "postgresql": [ROW, TWO_PHASES], "mariadb": [ROW, TWO_PHASES]}
_PREPARED = {
    "postgresql": "select gid from pg_prepared_xacts where database = current_database()",
    "mariadb": "xa recover",
}
_END = {
    "postgresql": "select pg_terminate_backend(pid, 60000) from pg_stat_activity where pid = {}",
    "mariadb": "kill connection {}",
}
_OWN = {"postgresql": "select pg_backend_pid()", "mariadb": "select connection_id()"}


class Base(DeclarativeBase):
    """Of the tables here."""


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str | None] = mapped_column(String(40))


def manager(
    engine: Engine, space: Path, log: Path, way: str, *, session: Any = True, **options: Any
) -> xaqueue.TransactionManager:
    parties: dict[str, Any] = {"db": participant(engine, session=session), "queue": lambda: xaqueue.connect(space)}
    return xaqueue.TransactionManager(log, parties, two_phase=way == TWO_PHASES, **options)


def take(tx: Any, *ids: int) -> None:
    """Orders, each with its message; a Session has not flushed them."""
    for number in ids:
        tx["db"].add(Order(id=number))
        tx["queue"].enqueue("orders", str(number).encode())


class Shop:
    def __init__(self, kind: str, way: str, url: str, directory: Path, stack: ExitStack) -> None:
        self.kind, self.way, self.url = kind, way, url
        self.space = directory / "space"
        self.directory = directory
        self._stack = stack
        self.engine = self.new_engine()
        self._witness = self.new_engine()
        self.on_step: Callable[[Step, str], None] = lambda step, name: None
        Base.metadata.create_all(self.engine)
        xaqueue.connect(self.space, create=True).close()

    def new_engine(self, **options: Any) -> Engine:
        engine = create_engine(self.url, **options)
        self._stack.callback(engine.dispose)
        return engine

    def manager(self, **options: Any) -> xaqueue.TransactionManager:
        def step(step: Step, gtrid: bytes, name: str) -> None:
            self.on_step(step, name)

        given = {"recovery_interval_s": 0.1, "on_step": step, "engine": self.engine, **options}
        made = manager(given.pop("engine"), self.space, self.directory / "decisions", self.way, **given)
        return self._stack.enter_context(made)

    def own(self, connection: Any) -> int:
        """Its backend's number."""
        return int(connection.execute(text(_OWN[self.kind])).scalar_one())

    def lose(self, backend: int) -> None:
        """Ends a backend, as an administrator does; returns when it is gone."""
        with self._witness.execution_options(isolation_level="AUTOCOMMIT").connect() as other:
            other.execute(text(_END[self.kind].format(backend)))
            alive = text("select count(*) from information_schema.processlist where id = :id")
            while self.kind == "mariadb" and other.execute(alive, {"id": backend}).scalar_one():
                time.sleep(0.005)

    def select(self, statement: str) -> list[Any]:
        """The first column."""
        with self._witness.connect() as other:
            return [row[0] for row in other.execute(text(statement))]

    def rows(self) -> list[int]:
        return self.select("select id from orders order by id")

    def messages(self) -> list[int]:
        with xaqueue.connect(self.space) as own:
            return [int(message.body) for message in own.browse("orders")]

    def rests(self) -> bool:
        """Whether nothing is in doubt and no row of a decision is needed any more."""
        prepared = self.select(_PREPARED[self.kind]) if self.kind in _PREPARED else []
        with xaqueue.connect(self.space) as own:
            doubtful = own.tpc_recover()
        rows = []
        if self.way == ROW and inspect(self._witness).has_table(last_resource.TABLE):
            rows = self.select(f"select gtrid from {last_resource.TABLE} where decision = 'commit'")
        return not (prepared or doubtful or rows or view_log(self.directory / "decisions").open)

    def settle(self) -> None:
        eventually(self.rests)
