"""A database, a queue's space, and transaction managers without a directory over them, whose clocks go fast.

A process that dies is one whose threads stop, and which says nothing any more.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psycopg
import pytest

import xaqueue
from support.node_child import FAST
from xaqueue import TransactionManager
from xaqueue.tm.node import DatabaseNode
from xaqueue.tm.node_schema import Timing
from xaqueue.tm.recovery import RecoveryThread

Connect = Callable[..., Any]


class Killed(BaseException):
    """What comes instead of the end of a process."""


class Scene:
    """A database, a space, and managers over them whose clocks go fast."""

    def __init__(self, place: Path, connect: Connect, timing: Timing = FAST) -> None:
        # A place that nobody had: who has "died" in this process may have a space open whose directory is gone by now.
        self.place, self.connect, self.timing = Path(tempfile.mkdtemp(dir=place)), connect, timing
        self.is_down = False
        self.made: list[TransactionManager] = []
        self.space = self.new_space("space")
        with closing(connect()) as own:
            own.cursor().execute("create table orders (n int)")
            own.commit()

    def new_space(self, name: str) -> Path:
        xaqueue.connect(self.place / name, create=True).close()
        (self.place / name / "queues.toml").write_text("[queues.q]\n")
        return self.place / name

    def reach(self) -> Any:
        if self.is_down:
            raise psycopg.OperationalError("the database is away")
        return self.connect()

    def make(
        self, connect: Connect | None = None, space: Path | str | None = None, **options: Any
    ) -> TransactionManager:
        return self.manage(
            {"db": connect or self.reach, "queue": partial(xaqueue.connect, space or self.space)}, **options
        )

    def manage(self, parties: dict[str, Any], **options: Any) -> TransactionManager:
        with patch("xaqueue.tm.node.Timing", lambda: self.timing):
            self.made.append(TransactionManager(parties, recovery_interval_s=0.1, carry=False, **options))
        return self.made[-1]

    def dead(self, step: str, number: int, **options: Any) -> TransactionManager:
        """A process that died there in its transaction."""

        def die(at: str, gtrid: bytes, name: str) -> None:
            if at == step:
                raise Killed

        manager = self.make(on_step=die, **options)
        die_in(manager, number, before=lambda: kill(manager))
        return manager

    def select(self, what: str, connect: Connect | None = None) -> list[tuple[Any, ...]]:
        with closing((connect or self.connect)()) as own:
            cursor = own.cursor()
            cursor.execute(f"select {what}")
            return [tuple(row) for row in cursor.fetchall()]

    def execute(self, statement: str) -> None:
        with closing(self.connect()) as own:
            own.cursor().execute(statement)
            own.commit()

    @property
    def rows(self) -> list[int]:
        return sorted(n for (n,) in self.select("n from orders"))

    def messages(self, space: Path | str | None = None) -> list[int]:
        with xaqueue.connect(space or self.space) as connection:
            return sorted(int(message.body) for message in connection.browse("q"))

    def in_doubt(self, space: Path | str | None = None) -> list[Any]:
        with xaqueue.connect(space or self.space) as connection:
            return connection.tpc_recover()

    def count(self, table: str) -> int:
        return int(self.select(f"count(*) from xaqueue_{table}")[0][0])

    def close(self) -> None:
        for manager in self.made:
            manager.close()


def enter(tx: Any, number: int) -> None:
    tx["queue"].enqueue("q", b"%d" % number)
    cursor = tx["db"].cursor()
    cursor.execute(f"insert into orders values ({number})")
    cursor.close()


def die_in(manager: TransactionManager, number: int, before: Callable[[], object] = lambda: None) -> None:
    """With its connections."""
    tx = manager.transaction()
    enter(tx, number)
    before()
    with pytest.raises(Killed):
        tx.commit()
    for branch in tx.branches.values():
        branch.discard()


def put(manager: TransactionManager, number: int) -> None:
    with manager.transaction() as tx:
        enter(tx, number)


def node_of(manager: TransactionManager) -> DatabaseNode:
    node = manager._log
    assert isinstance(node, DatabaseNode)
    return node


def kill(manager: TransactionManager) -> None:
    """Its threads stop, and nothing is said."""
    node_of(manager)._closed.set()
    manager._stopped.set()
    for recovery in manager._recoveries.values():
        recovery.stop(5)


def die() -> None:
    raise Killed


class Sweeper:
    """Another process that ends whoever gives no sign, and sweeps, once."""

    def __init__(self, scene: Scene, connect: Connect, space: str | None = None) -> None:
        self._opened: list[Any] = []

        def opened() -> Any:
            self._opened.append(connect())
            return self._opened[-1]

        self._manager = scene.make(opened, space)
        self._manager.transaction().rollback()
        kill(self._manager)

    def sweep(self, meets: str = "") -> None:
        """meets: what may stop it."""
        node_of(self._manager).end_silent(-1.0)
        node_of(self._manager)._swept.clear()
        one = RecoveryThread(self._manager._coordinator, self._manager._sources["queue"], 60.0)
        try:
            error = one.run_once().error
            assert not error or (meets and meets in error), error
        finally:
            one._drop()

    def die(self) -> None:
        while self._opened:
            self._opened.pop().close()
