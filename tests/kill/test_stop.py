"""A server that is told to stop answers what it is at, rolls back what is active, and keeps what is prepared."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import msgpack
import pytest

import xaqueue
from support.contract_connection import PATIENCE_S, QUEUES, block_files, bodies, put
from support.journal_of import journal_of, show_writes
from support.served import ServerThread
from xaqueue.connection import Connection
from xaqueue.core.owner import definitions_file
from xaqueue.core.owner import open as attach_room
from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.errors import ConnectionLost, Error, OutcomeUnknown, RolledBack
from xaqueue.features.opening import create
from xaqueue.rpc import wire
from xaqueue.rpc.server.peer import Limits
from xaqueue.xa import Code, Outcome
from xaqueue.xid import Xid

RUN = [sys.executable, "-c", "from xaqueue.cli.main import main; main()"]
PREPARED = Xid(1, b"prepared", b"")
ACTIVE = Xid(1, b"active", b"")


class Process:
    """``xaqueue serve`` in a process of its own."""

    def __init__(self, root: Path, *words: str, environment: Mapping[str, str] = os.environ) -> None:
        self.root = root
        self.path = root.with_name("socket")
        self.url = f"xaq+unix://{self.path}"
        command = [*RUN, "serve", "--space", str(root), "--unix", str(self.path), *words]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(environment)
        )
        assert self.process.stdout is not None
        if not self.process.stdout.readline().startswith("serving"):
            raise AssertionError(self.process.communicate()[1])

    def end(self, *signals: int) -> int:
        """The exit code."""
        for number in signals:
            self.process.send_signal(number)
        self.said = self.process.communicate(timeout=PATIENCE_S)
        sys.stdout.write(self.said[1])
        return self.process.returncode


Start = Callable[..., Process]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path / "space"
    create(made)
    definitions_file.write_definitions(made, QUEUES)
    return made


@pytest.fixture
def start(root: Path) -> Iterator[Start]:
    made: list[Process] = []

    def begin(*words: str, environment: Mapping[str, str] = os.environ) -> Process:
        made.append(Process(root, *words, environment=environment))
        return made[-1]

    yield begin
    for process in made:
        process.process.kill()
        process.process.communicate()


class Scene:
    """One session that is idle, one at work, one that waits for a message, and one that has prepared."""

    def __init__(self, url: str) -> None:
        self.idle, self.active, self.waiting, self.prepared = (xaqueue.connect(url) for _ in range(4))
        put(self.idle, b"there", b"taken")
        self.prepared.tpc_begin(PREPARED)
        self.prepared.enqueue("orders", b"in doubt")
        self.prepared.tpc_prepare()
        self.active.tpc_begin(ACTIVE)
        assert self.active.dequeue("orders") is not None
        self.active.enqueue("orders", b"lost")
        self.active.flush()
        self.told: Error | None = None
        self._thread = threading.Thread(target=self._wait)
        self._thread.start()
        while not self.idle._manager.status()["waiting"]:  # type: ignore[attr-defined]
            pass

    def _wait(self) -> None:
        try:
            self.waiting.enqueue("replies", b"lost, too")
            self.waiting.flush()
            self.waiting.dequeue("replies", wait_s=PATIENCE_S)
        except Error as error:
            self.told = error

    def end(self) -> None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        for connection in (self.idle, self.active, self.waiting, self.prepared):
            connection._manager._connect_s = 0  # type: ignore[attr-defined]
            with suppress(ConnectionLost):
                connection.close()


def recovered(connection: Connection) -> None:
    """What there is after the scene, whatever ended it."""
    assert connection.tpc_recover() == [PREPARED]
    assert connection.outcome(ACTIVE) is Outcome.UNKNOWN
    assert bodies(connection) == [b"there", b"taken"]
    assert bodies(connection, "replies") == []
    connection.tpc_commit(PREPARED)
    assert bodies(connection) == [b"there", b"taken", b"in doubt"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stopped_it_rolls_back_what_is_active_and_keeps_what_is_prepared(start: Start, root: Path, number: int) -> None:
    server = start()
    scene = Scene(server.url)
    assert server.end(number) == 0
    scene.end()
    assert isinstance(scene.told, RolledBack)
    assert scene.told.code is Code.XA_RBCOMMFAIL
    assert "the server was stopped" in str(scene.told)
    assert [name.split(".")[1] for name in block_files(root)] == [str(PREPARED).split(".")[1]]
    assert not attach_room.is_owned(root)
    with xaqueue.connect(start().url) as connection:
        recovered(connection)


def test_killed_it_comes_back_the_same(start: Start) -> None:
    """The socket that it left is taken over."""
    server = start()
    scene = Scene(server.url)
    assert server.end(signal.SIGKILL) == -signal.SIGKILL
    scene.end()
    assert isinstance(scene.told, ConnectionLost)
    with xaqueue.connect(start().url) as connection:
        recovered(connection)


def test_told_twice_it_ends_as_well(start: Start) -> None:
    server = start()
    scene = Scene(server.url)
    assert server.end(signal.SIGTERM, signal.SIGTERM) == 0
    scene.end()
    with xaqueue.connect(start().url) as connection:
        recovered(connection)


def test_systemd_is_told(start: Start, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(PATIENCE_S)
        asked = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "20000"}
        server = start("--notify", environment={**os.environ, **asked})
        ready = systemd.recv(4096).decode().splitlines()
        assert ready == ["READY=1", f"STATUS=serving {server.root} at {server.url}"]
        with xaqueue.connect(server.url) as connection:
            assert connection.tpc_recover() == []
        for _ in range(3):
            assert systemd.recv(64) == b"WATCHDOG=1"
        assert server.end(signal.SIGTERM) == 0
        while (told := systemd.recv(4096)) == b"WATCHDOG=1":
            pass
        assert told.startswith(b"STOPPING=1\nSTATUS=")


def test_a_server_that_is_not_asked_to_tells_nobody(start: Start, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        server = start(environment={**os.environ, "NOTIFY_SOCKET": str(tmp_path / "notify")})
        assert server.end(signal.SIGTERM) == 0
        systemd.setblocking(False)
        with pytest.raises(BlockingIOError):
            systemd.recv(64)


class Producer(threading.Thread):
    """Commits one message after the other until the server is gone."""

    def __init__(self, url: str, number: int) -> None:
        super().__init__()
        self.url = url
        self.number = number
        self.done: list[bytes] = []
        self.refused: list[bytes] = []
        self.unknown: list[bytes] = []

    def run(self) -> None:
        connection = xaqueue.connect(self.url)
        connection._manager._connect_s = 0  # type: ignore[attr-defined]
        for count in range(1_000_000):
            body = b"%d.%d" % (self.number, count)
            try:
                connection.enqueue("orders", body)
                connection.commit()
            except OutcomeUnknown:
                self.unknown.append(body)
                break
            except Error:
                self.refused.append(body)
                break
            self.done.append(body)
        with suppress(ConnectionLost):
            connection.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_what_was_acknowledged_is_there_and_what_was_refused_is_not(start: Start, number: int) -> None:
    server = start()
    producers = [Producer(server.url, count) for count in range(4)]
    for producer in producers:
        producer.start()
    while not all(len(producer.done) > 20 for producer in producers):
        pass
    assert server.end(number) == (0 if number == signal.SIGTERM else -number)
    for producer in producers:
        producer.join(PATIENCE_S)
    with xaqueue.connect(start().url) as connection:
        found = bodies(connection)
    assert len(found) == len({*found})
    for producer in producers:
        assert {*producer.done} <= {*found}
        assert not {*producer.refused} & {*found}
    assert {*found} <= {body for producer in producers for body in producer.done + producer.unknown}


# In this process


def ask_until_nobody_reads(deaf: socket.socket) -> None:
    """Sends requests and reads no answer, until the server takes no more."""
    deaf.settimeout(0.2)
    with suppress(TimeoutError):
        while True:
            deaf.sendall(msgpack.packb([wire.REQUEST, 1, "echo", [b"x" * 100_000]]))


@pytest.mark.parametrize("sync", ["FDATASYNC;DSYNC", "JOURNAL"])
def test_a_commit_that_is_under_way_is_answered(
    root: Path, tmp_path: Path, sync: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = ServerThread(root, tmp_path / "socket", sync=sync)
    held, go_on = threading.Event(), threading.Event()
    name = "write_synced" if sync == "JOURNAL" else "sync_data"
    harden = getattr(DirectoryFileSystem, name)

    def hold(*arguments: object) -> object:
        held.set()
        assert go_on.wait(PATIENCE_S)
        return harden(*arguments)

    committing = xaqueue.connect(served.url)
    told: list[Error] = []

    def commit() -> None:
        committing.enqueue("orders", b"x")
        try:
            committing.commit()
        except Error as error:
            told.append(error)

    if sync == "JOURNAL":
        show_writes(monkeypatch, journal_of(served.space).journal)
    monkeypatch.setattr(DirectoryFileSystem, name, hold)
    thread = threading.Thread(target=commit)
    thread.start()
    assert held.wait(PATIENCE_S)
    stopping = threading.Thread(target=served.call, args=[served.server.stop])
    stopping.start()  # as a signal, which is heard behind the round: a loop that syncs does nothing else meanwhile
    go_on.set()
    thread.join(PATIENCE_S)
    stopping.join(PATIENCE_S)
    served.stop()
    committing.close()
    assert told == []
    with xaqueue.connect(root) as connection:
        assert bodies(connection) == [b"x"]


def test_who_does_not_read_answers_is_waited_for_only_once(root: Path, tmp_path: Path) -> None:
    served = ServerThread(root, tmp_path / "socket", sync="NONE", limits=Limits(stop_s=2 * PATIENCE_S))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as deaf:
        deaf.connect(str(tmp_path / "socket"))
        ask_until_nobody_reads(deaf)
        served.call(served.server.stop)
        served.call(lambda: None)
        assert len(served.server.sessions) == 1
        served.stop()
        assert not served.server.sessions


def test_who_does_not_read_answers_is_cut_off_after_a_time(root: Path, tmp_path: Path) -> None:
    served = ServerThread(root, tmp_path / "socket", sync="NONE", limits=Limits(stop_s=0.05))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as deaf:
        deaf.connect(str(tmp_path / "socket"))
        ask_until_nobody_reads(deaf)
        served.stop()


def test_calls_that_were_not_begun_are_not_done(root: Path, tmp_path: Path) -> None:
    """A pipelined enqueue behind a call that waits, and its commit."""
    served = ServerThread(root, tmp_path / "socket", sync="NONE")
    xid = (1, b"pipelined", b"")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.connect(str(tmp_path / "socket"))
        client.settimeout(PATIENCE_S)
        calls = [
            msgpack.packb([wire.NOTIFICATION, "start", [xid]]),
            msgpack.packb([wire.REQUEST, 1, "echo", []]),
            msgpack.packb([wire.REQUEST, 2, "dequeue", ["orders", {"wait_s": PATIENCE_S}]]),
            msgpack.packb([wire.NOTIFICATION, "enqueue", ["orders", b"x"]]),
            msgpack.packb([wire.NOTIFICATION, "end", [xid]]),
            msgpack.packb([wire.REQUEST, 3, "commit", [xid, 0x40000000]]),
        ]
        client.sendall(b"".join(calls))
        unpacker = wire.unpacker(2**20)
        unpacker.feed(client.recv(4096))
        assert [number for _, number, *_ in unpacker] == [1]
        served.stop()
        while data := client.recv(4096):
            unpacker.feed(data)
        ((_, number, error, _),) = unpacker
        assert number == 2
        assert error["name"] == "XA_RBCOMMFAIL"
    with xaqueue.connect(root) as connection:
        assert bodies(connection) == []
        assert block_files(root) == []
