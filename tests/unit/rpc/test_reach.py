"""Who was led to a server stays its client: a directory is left alone as long as its server is to come back."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from typer.testing import CliRunner

import xaqueue
from support.awaited import Held
from support.contract_connection import PATIENCE_S
from support.served import ServerThread
from xaqueue.cli import location
from xaqueue.cli.exit_codes import ExitCode
from xaqueue.cli.main import app
from xaqueue.connection import Connection
from xaqueue.core.model import layout
from xaqueue.core.owner import open as attach_room
from xaqueue.core.owner.record import READY, RECOVERING, format_owner, in_use, read_owner
from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.core.storage.fs import replace_file
from xaqueue.core.storage.owner_file import OwnerFile, is_owned
from xaqueue.delivery import Delivery
from xaqueue.errors import ConnectionLost, InvalidArgument, SpaceInUse
from xaqueue.features.opening import create
from xaqueue.features.session import Session, attach
from xaqueue.rpc.client import link, manager, reach, server_launcher
from xaqueue.rpc.server.peer import Limits
from xaqueue.work import loop

SHORT_S, LONG_S = 0.05, 600.0


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Its servers are threads of this process, and taken for other processes."""
    create(tmp_path / "s", sync="NONE", any_queue=True)
    monkeypatch.setattr(reach, "is_attached", lambda _: False)
    monkeypatch.setattr(reach, "_is_own", lambda _: False)
    yield tmp_path / "s"
    reach._led.clear()


class Outage:
    """The pause of who waits: after some of them, in which the directory is nobody's, there is a server again."""

    def __init__(self, root: Path, socket: str = "second") -> None:
        self.root, self.socket = root, root.with_name(socket)
        self.pauses = 0
        self.server: ServerThread | None = None

    def __call__(self, _: float) -> None:
        self.pauses += 1
        if self.server is None:
            assert not is_owned(self.root)
            if self.pauses > 3:
                self.server = ServerThread(self.root, self.socket)

    def __enter__(self) -> Outage:
        return self

    def __exit__(self, *_: object) -> None:
        if self.server is not None:
            self.server.stop()


def never(_: float) -> None:
    raise AssertionError("there is nobody to be waited for")


def served(root: Path, **options: Any) -> ServerThread:
    return ServerThread(root, root.with_name("first"), **options)


def forget() -> None:
    """As a process that is started now."""
    reach._led.clear()


def end_well(server: ServerThread) -> None:
    server.stop()


def be_killed(server: ServerThread) -> None:
    server.kill()
    forget()


@pytest.mark.parametrize("end", [end_well, be_killed])
def test_a_connect_waits_for_the_server(root: Path, end: Callable[[ServerThread], None]) -> None:
    """One that this process has found; and one that was killed, also by who has never found it."""
    server = served(root)
    xaqueue.connect(root).close()
    end(server)
    with Outage(root) as outage, reach.connect(str(root), server_s=LONG_S, pause=outage) as connection:
        assert not connection.is_embedded
        connection.enqueue("orders", b"x")
    assert outage.pauses > 3


def test_a_connection_goes_on_at_another_socket(root: Path) -> None:
    server, outage = served(root), Outage(root)
    with outage, reach.connect(str(root), server_s=LONG_S, pause=outage) as connection:
        connection.enqueue("orders", b"1")
        connection.commit()
        server.stop()
        connection.enqueue("orders", b"2")
        connection.commit()
        assert outage.pauses > 3


@pytest.mark.parametrize("end", [end_well, be_killed])
def test_behind_its_time_the_directory_is_opened(root: Path, end: Callable[[ServerThread], None]) -> None:
    """And the next one finds that nobody is to be waited for any more."""
    server = served(root)
    xaqueue.connect(root).close()
    end(server)
    with xaqueue.connect(root, server_s=SHORT_S) as connection:
        assert connection.is_embedded
    with reach.connect(str(root), pause=never) as connection:
        assert connection.is_embedded


def test_nobody_waits_for_one_that_ended_by_itself(root: Path) -> None:
    """Whoever wants it starts it; and who was never at a server that was stopped knows nothing of it."""
    server = served(root, limits=Limits(idle_exit_s=LONG_S))
    xaqueue.connect(root).close()
    server.kill()
    with reach.connect(str(root), pause=never) as connection:
        assert connection.is_embedded
    served(root).stop()
    with reach.connect(str(root), pause=never) as connection:
        assert connection.is_embedded


def leased(connection: Connection) -> Delivery:
    connection.enqueue("orders", b"x")
    connection.commit()
    (found,) = connection.receive("orders")
    return found


CALLS: dict[str, Callable[[Connection, Delivery], object]] = {
    "enqueue": lambda connection, _: connection.enqueue("orders", b"x"),
    "dequeue": lambda connection, _: connection.dequeue("orders"),
    "enqueue_many": lambda connection, _: connection.enqueue_many("orders", [b"x"]),
    "tpc_begin": lambda connection, _: connection.tpc_begin(connection.xid(1, "g", "b")),
    "tpc_recover": lambda connection, _: connection.tpc_recover(),
    "ack": lambda _, delivery: delivery.ack(),
    "extend": lambda _, delivery: delivery.extend(1.0),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_waits_once(root: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """For ``server_s``, and says what can be done: each of its tries, and what it undid behind them, waited anew."""
    waits, connect = [], link.Link._connect

    def connecting(self: link.Link) -> None:
        waits.append(self)
        connect(self)

    server = served(root)
    with xaqueue.connect(root, server_s=SHORT_S) as connection:
        delivery = leased(connection)
        server.stop()
        monkeypatch.setattr(link.Link, "_connect", connecting)
        with pytest.raises(ConnectionLost, match=rf"no server has .* a connect opens .* after {SHORT_S} s without one"):
            CALLS[name](connection, delivery)
        assert len(waits) == 1
        assert not connection.in_transaction


def test_a_server_that_was_killed_while_it_opened_is_waited_for(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that was killed before, whose space it is to open: the next process that began took the directory."""
    be_killed(served(root))

    def killed(*_: object, **__: object) -> None:
        raise SystemExit

    with monkeypatch.context() as within:
        within.setattr(attach_room, "open_space", killed)
        with pytest.raises(SystemExit):
            attach(root)
    assert reach.is_awaited(root)
    with xaqueue.connect(root, server_s=0) as connection:
        assert connection.is_embedded
        assert not reach.is_awaited(root), "it is open in a program"


def waits_for_other(root: Path, state: str) -> None:
    """For another process that has the space open and serves nobody, and for the server that comes when it ends."""
    served(root).stop()
    found = read_owner(root)
    assert found is not None
    lock = OwnerFile(root)
    assert lock.acquire()
    other = replace(found, pid=os.getpid() + 1, host=socket.gethostname(), endpoint="", state=state)
    replace_file(DirectoryFileSystem(root), layout.OWNER, format_owner(other))
    outage = Outage(root)
    outage.pauses = 3

    def pause(pause_s: float) -> None:
        lock.release()
        outage(pause_s)

    with outage, reach.connect(str(root), server_s=LONG_S, pause=pause) as connection:
        assert not connection.is_embedded
    assert outage.server is not None


def test_one_that_opens_the_space_is_waited_for(root: Path) -> None:
    """It may be a server: SpaceInUse was too early."""
    waits_for_other(root, RECOVERING)


def test_a_server_that_hangs_takes_no_longer_than_is_wanted(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def in_other_process() -> Session:
        raise SpaceInUse("by its server")

    monkeypatch.setattr(manager, "HELLO_S", SHORT_S)
    server = served(root)
    with Held(server), pytest.raises(ConnectionLost, match=rf"no answer within {SHORT_S} s"):
        reach.session(str(root), in_other_process, SHORT_S)
    server.stop()


def test_a_worker_that_is_stopped_while_it_waits_leaves_the_directory_alone(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the server that comes back finds it in use."""
    be_killed(served(root))
    before, waits, wait = read_owner(root), Event(), loop.Loop._wait_for_server

    def waiting(self: loop.Loop, pause_s: float) -> None:
        waits.set()
        wait(self, pause_s)

    monkeypatch.setattr(loop.Loop, "_wait_for_server", waiting)
    with xaqueue.Worker(root, "orders", lambda _message, _tx: None):
        assert waits.wait(PATIENCE_S)
    assert read_owner(root) == before


def test_an_owner_that_serves_nobody_is_told_of(root: Path) -> None:
    session = attach(root, watch=False)
    found = read_owner(root)
    assert found is not None
    who = rf"process {os.getpid()} on .* since .* \({found.program}\), which "
    with closing(session), pytest.raises(SpaceInUse, match=who + "opened the directory itself: stop it, start `xaqu"):
        raise in_use(root, found)
    with pytest.raises(SpaceInUse, match=who + "is opening it: try again once it has"):
        raise in_use(root, replace(found, state=RECOVERING))


@pytest.mark.parametrize(
    ("words", "program"),
    [
        (["/srv/shop/worker.py", "--token=secret"], "shop/worker.py"),
        (["/usr/lib/xaqueue/__main__.py", "serve"], "xaqueue/__main__.py"),
        (["-c"], "-c"),
        ([""], ""),
        ([], ""),
    ],
)
def test_an_owner_says_what_it_was_started_as(
    root: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], program: str
) -> None:
    monkeypatch.setattr(sys, "argv", words)
    attach(root, watch=False).close()
    found = read_owner(root)
    assert found is not None
    assert found.program == program
    assert found.who == f"process {os.getpid()} on {found.host} since {found.since}" + (
        f" ({program})" if program else ""
    )


def test_who_has_it_open_stays_its_owner(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its other connections wait for nobody, and one that was at the server says what has become of that."""
    server = served(root)
    with xaqueue.connect(root, server_s=SHORT_S) as lost:
        server.stop()
        with xaqueue.connect(root, server_s=0) as first:
            assert first.is_embedded
            monkeypatch.undo()
            with reach.connect(str(root), pause=never) as second:
                assert second.is_embedded
            with pytest.raises(SpaceInUse, match="which opened the directory itself"):
                lost.dequeue("orders")


# served_only


@pytest.fixture
def only(root: Path) -> Path:
    text = (root / layout.QUEUES).read_text().replace("[space]\n", "[space]\nserved_only = true\n")
    (root / layout.QUEUES).write_text(text)
    return root


def test_nobody_but_serve_opens_it(only: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(location, "SERVER_S", SHORT_S)
    for server_s in (0, SHORT_S):
        with pytest.raises(
            ConnectionLost, match=r"no server has .*: start it again, `xaqueue serve --space .*served_only"
        ):
            xaqueue.connect(only, server_s=server_s)
    with xaqueue.Worker(only, "orders", lambda _message, _tx: None):
        for words in (["put", "orders", "x"], ["get", "orders"], ["snapshot", "take"]):
            done = CliRunner().invoke(app, [*words, "--space", str(only)])
            assert done.exit_code == ExitCode.SPACE
            assert "`[space] served_only` in queues.toml" in done.stderr
    for words in (["check"], ["status"], ["browse", "orders"], ["indoubt", "list"], ["define", "orders"]):
        assert CliRunner().invoke(app, [*words, "--space", str(only)]).exit_code == ExitCode.OK
    tm = xaqueue.TransactionManager(only.with_name("tm"), {"queue": partial(xaqueue.connect, only, server_s=SHORT_S)})
    with closing(tm), pytest.raises(ConnectionLost, match="served_only"), tm.transaction() as tx:
        tx["queue"].enqueue("orders", b"x")
    with pytest.raises(ConnectionLost, match="no server has"):
        server_launcher._Finder(only).dial()
    assert read_owner(only) is None, "somebody has opened it"
    with Outage(only) as outage, reach.connect(str(only), server_s=None, pause=outage) as connection:
        assert not connection.is_embedded


def test_one_that_has_it_open_leaves_it_to_a_server(only: Path) -> None:
    """Nobody looks whether it is free, and finds it so since that one has just ended."""
    waits_for_other(only, READY)


def test_what_served_only_may_say(root: Path) -> None:
    (root / layout.QUEUES).write_text("[default]\n[space]\nserved_only = 1\n")
    with pytest.raises(InvalidArgument, match=r"\[space\] served_only = 1: true or false is wanted"):
        xaqueue.connect(root)


@pytest.mark.parametrize("server_s", [-1, True, float("nan"), "60", [60], 1j])
def test_seconds_are_wanted(root: Path, server_s: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"server_s=.* is refused: seconds from 0 are wanted, or None"):
        xaqueue.connect(root, server_s=server_s)
    with pytest.raises(InvalidArgument, match="server_s= are for a directory"):
        xaqueue.connect("xaq://127.0.0.1:1", server_s=1)


# Spark, which starts a server where there is none


def test_spark_starts_no_server_beside_one_that_is_to_come_back(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Path] = []

    def start(root: Path) -> bool:
        started.append(root)
        return True

    monkeypatch.setattr(server_launcher, "start", start)
    server = served(root)
    finder = server_launcher._Finder(root)
    finder.dial().close()
    server.kill()
    with pytest.raises(ConnectionLost, match="no server has"):
        finder.dial()
    assert started == []
    monkeypatch.setattr(server_launcher, "SERVER_S", 0.0)
    with suppress(ConnectionLost):
        finder.dial()
    assert started == [root]
