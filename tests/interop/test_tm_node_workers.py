"""Forked workers of one service, as gunicorn has them, with and without ``--preload``: no worker is another's node."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

import xaqueue
from support.node_child import FAST
from support.patience import eventually
from support.served import ServerThread
from xaqueue import TransactionManager

WORKERS = 4


class Worker:
    """A forked one. It does what it is given, says what that returns, and lives until it is killed."""

    def __init__(self, work: Callable[[], str]) -> None:
        self._heard, says = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            try:
                os.write(says, work().encode())
                signal.pause()
            finally:
                os.kill(os.getpid(), signal.SIGKILL)
        os.close(says)

    @property
    def said(self) -> str:
        """Empty where it is killed before it says anything."""
        return os.read(self._heard, 100).decode()

    def end(self) -> None:
        os.close(self._heard)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr("xaqueue.tm.node.Timing", lambda: FAST)
    xaqueue.connect(tmp_path / "space", create=True).close()
    (tmp_path / "space" / "queues.toml").write_text("[queues.q]\n")
    server = ServerThread(tmp_path / "space", tmp_path / "socket")
    yield server.url
    server.stop()


@pytest.mark.parametrize("preload", ["not", "preloaded", "used"])
def test_a_killed_worker_is_finished_by_another(dsn: str, url: str, preload: str) -> None:
    """preloaded: the transaction manager is made before the fork, and used: it had a transaction there."""

    def make() -> TransactionManager:
        parties: dict[str, Any] = {"db": partial(psycopg.connect, dsn), "queue": url}
        return TransactionManager(parties, decides="db", recovery_interval_s=0.1, on_step=on_step)

    def on_step(step: str, gtrid: bytes, name: str) -> None:
        if is_armed and step == "prepared":
            os.kill(os.getpid(), signal.SIGKILL)

    def put(manager: TransactionManager, number: int) -> str:
        with manager.transaction() as tx:
            tx["db"].execute("insert into orders values (%s)", (number,))
            tx["queue"].enqueue("q", str(number).encode())
        return manager.node

    def work(number: int) -> str:
        manager = made or make()
        node = put(manager, number)
        if number == WORKERS:
            is_armed.append(True)
            put(manager, 100)
        kept.append(manager)
        return node

    is_armed: list[bool] = []
    kept: list[TransactionManager] = []
    made = None if preload == "not" else make()
    with psycopg.connect(dsn, autocommit=True) as own:
        own.execute("create table orders (n int)")
        nodes = [put(made, 0)] if made is not None and preload == "used" else []
        workers = [Worker(partial(work, number)) for number in range(1, WORKERS + 1)]
        try:
            nodes += [worker.said for worker in workers[:-1]]
            assert len({*nodes}) == len(nodes), "each has a name of its own"
            assert all(nodes)
            assert workers[-1].said == "", "it was killed"
            eventually(lambda: own.execute("select count(*) from xaqueue_ended").fetchone() == (1,))
            with xaqueue.connect(url) as queue:
                eventually(lambda: not queue.tpc_recover())
                rows = sorted(n for (n,) in own.execute("select n from orders"))
                assert sorted(int(message.body) for message in queue.browse("q")) == rows
            assert rows == [*range(preload != "used", WORKERS + 1)]
        finally:
            for worker in workers:
                worker.end()
            if made is not None:
                made.close()
