"""What reaches the database or the queue behind the end of who has sent it, and a queue that loses what was late."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

import xaqueue
from support.cutting_proxy import Cut, CuttingProxy
from support.late_proxy import LateProxy
from support.node_scene import Killed, Scene, Sweeper, die_in, enter, kill, node_of, put
from support.patience import PATIENCE_S, eventually
from support.served import ServerThread
from xaqueue.connection import Connection
from xaqueue.core.engine.behind import DeferringCommit
from xaqueue.errors import RolledBack
from xaqueue.tm.gtrid import FORMAT_ID

LIMIT_MS = 700
"""So long the database lets somebody stand still between decision and COMMIT."""


@pytest.fixture
def scene(dsn: str, tmp_path: Path) -> Iterator[Scene]:
    with closing(Scene(tmp_path, partial(psycopg.connect, dsn))) as made:
        yield made


@pytest.fixture
def network(dsn: str) -> Iterator[tuple[LateProxy, Callable[[], Any]]]:
    """And how to connect through it."""
    with (
        tempfile.TemporaryDirectory(prefix="xaq-") as short,
        closing(LateProxy(Path(short), Path(str(conninfo_to_dict(dsn)["host"])))) as proxy,
    ):
        through = make_conninfo(dsn, host=short, options=f"-c idle_in_transaction_session_timeout={LIMIT_MS}")
        yield proxy, partial(psycopg.connect, through)


# A COMMIT on its way


@pytest.mark.parametrize("process", ["waits", "lost its connection", "is dead"])
@pytest.mark.parametrize("arrives", [True, False], ids=["in time", "too late"])
def test_a_commit_that_is_on_its_way_for_long(
    scene: Scene, network: tuple[LateProxy, Callable[[], Any]], process: str, arrives: bool
) -> None:
    """Longer than its node may be silent. It holds, or it can never succeed again, whoever asks in between."""
    proxy, through = network
    is_armed = False

    def die(step: str, gtrid: bytes, name: str) -> None:
        if is_armed and process == "is dead" and step == "committed-last":
            raise Killed

    manager, other = scene.make(through, on_step=die), scene.make()
    put(manager, 1)
    put(other, 2)
    proxy.awaited, is_armed = b"values (3)", True
    said: list[BaseException] = []

    def work() -> None:
        try:
            if process == "is dead":
                die_in(manager, 3)
            else:
                put(manager, 3)
        except RolledBack as error:
            said.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    assert proxy.has_come.wait(PATIENCE_S)
    if process == "is dead":
        kill(manager)
    elif process == "lost its connection":
        proxy.hang_up()
    if not arrives:
        with closing(scene.connect()) as own:
            idle = (
                "select count(*) from pg_stat_activity where state = 'idle in transaction' and query like '%xaqueue%'"
            )
            own.autocommit = True
            eventually(lambda: own.execute(idle).fetchall() == [(0,)])
    proxy.let_go.set()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    eventually(lambda: not scene.in_doubt())
    expected = [1, 2, 3] if arrives else [1, 2]
    assert scene.rows == scene.messages() == expected
    assert bool(said) == (not arrives and process != "is dead")


# A prepare on its way


def test_a_prepare_that_reaches_the_queue_behind_a_close_is_rolled_back(scene: Scene, tmp_path: Path) -> None:
    """Nobody has answered it, so the close leaves a tombstone, by which others know what to tell it."""
    with tempfile.TemporaryDirectory(prefix="xaq-") as short:
        server = ServerThread(scene.space, Path(short) / "socket")
        proxy = CuttingProxy(Path(short) / "proxy", server.path)
        try:
            manager = scene.make(space=proxy.url)
            put(manager, 1)
            eventually(lambda: node_of(manager)._swept)
            manager._sources["queue"].drop_idle()
            proxy.arm(Cut("request", 1, "late"))
            tx = manager.transaction()
            enter(tx, 2)
            with pytest.raises(RolledBack):
                tx.commit()
            assert proxy.has_cut.is_set()
            manager.close()
            assert [scene.count(table) for table in ("nodes", "ended")] == [0, 1]
            with xaqueue.connect(server.url) as late:
                late.tpc_begin(late.xid(FORMAT_ID, tx.gtrid, "queue"))
                late.enqueue("q", b"2")
                late.tpc_prepare()
            other = scene.make(space=server.url)
            eventually(lambda: not scene.in_doubt(server.url))
            assert scene.rows == scene.messages(server.url) == [1]
            other.close()
        finally:
            proxy.close()
            server.stop()


# A queue that loses what was late


CALLS = ("tpc_recover", "harden", "carriers", "tpc_commit", "outcome")


@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
def test_a_queue_is_killed_between_a_late_commit_and_its_hardening(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, is_after: bool
) -> None:
    """With a sweeper at work, at whichever of its calls: what was committed in memory alone is in doubt again, and the
    decision still stands, or else it was hardened."""
    monkeypatch.setattr(DeferringCommit, "_harden_deferred", lambda _: None)  # or it would be hardened in a moment
    left = 0
    with tempfile.TemporaryDirectory(prefix="xaq-") as short:
        servers = [ServerThread(scene.space, Path(short) / "socket")]
        url = servers[0].url
        sweeping: list[bool] = []

        def crash() -> None:
            servers.pop().kill()
            servers.append(ServerThread(scene.space, Path(short) / "socket"))

        def watch(name: str) -> None:
            call = getattr(Connection, name)

            def watched(*arguments: Any, **options: Any) -> Any:
                nonlocal left
                if not sweeping:
                    return call(*arguments, **options)
                left -= 1
                is_due = left == 0
                if is_due and not is_after:
                    crash()
                answer = call(*arguments, **options)
                if is_due and is_after:
                    crash()
                return answer

            monkeypatch.setattr(Connection, name, watched)

        for name in CALLS:
            watch(name)
        try:
            for number in count(1):
                scene.dead("committed", number, space=url)
                sweeper = Sweeper(scene, scene.connect, url)
                left = number
                sweeping.append(True)
                with suppress(AssertionError):  # what it met is tried again
                    sweeper.sweep()
                sweeping.clear()
                is_reached = left <= 0
                crash()
                for _ in range(2):
                    Sweeper(scene, scene.connect, url).sweep()
                assert scene.in_doubt(url) == []
                assert scene.rows == scene.messages(url) == list(range(1, number + 1))
                assert scene.count("decisions") == 0
                if not is_reached:
                    break
            assert number > 4
        finally:
            servers.pop().stop()
