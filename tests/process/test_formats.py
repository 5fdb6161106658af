"""What an earlier version wrote is read: spaces, replicas, snapshots, what left a queue, decisions. Its clients and
servers are understood."""

from __future__ import annotations

import json
import socket
import sqlite3
import tarfile
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgpack
import pytest
from typer.testing import CliRunner

import xaqueue
from support.replicas import ReplicaThread
from support.served import ServerThread
from support.writing import (
    ALSO,
    DATABASES,
    HELD,
    LEVELS,
    OF_MANAGERS,
    QUEUES,
    WRITTEN,
    exported,
    opened,
    parties,
    parties_in,
    space_for_talk,
    talk,
)
from xaqueue import lake
from xaqueue.cli.main import app
from xaqueue.features.replica.promote import promote
from xaqueue.tm.node_schema import place_of

ADDRESSES = {"postgresql": "dsn", "mysql": "mysql_address"}
VERSIONS = sorted(path.name.removesuffix(".tar.gz") for path in WRITTEN.glob("*.tar.gz"))


@pytest.fixture(params=VERSIONS)
def left(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where that version's spaces and logs are, as its killed processes left them."""
    for place in (WRITTEN, ALSO):
        with tarfile.open(place / f"{request.param}.tar.gz") as archive:
            archive.extractall(tmp_path, filter="data")
    monkeypatch.chdir(tmp_path)
    for name in ("XAQUEUE_SPACE", "XAQUEUE_FLAGS"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def command(*words: str) -> str:
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    return done.stdout


def assert_all_is_told(space: str) -> None:
    """Each message with each property that it had; a later version may tell more of it."""
    for queue in QUEUES:
        then, now = (
            [json.loads(line) for line in text.splitlines()]
            for text in (Path(f"{space}.exported", queue).read_text(), exported(space, queue))
        )
        assert [{key: message.get(key) for key in before} for message, before in zip(now, then, strict=True)] == then


def test_there_is_something_to_read() -> None:
    assert "1.0.0rc1" in VERSIONS


@pytest.mark.parametrize("space", LEVELS)
def test_a_space_of_then(space: str, left: Path) -> None:
    """Read as it was left, opened, and used."""
    assert_all_is_told(space)
    with xaqueue.connect(space) as connection:
        assert_all_is_told(space)
        assert connection.tpc_recover() == [HELD]
        assert connection.outcome(HELD) is xaqueue.Outcome.IN_DOUBT
        connection.tpc_commit(HELD)
        assert [message.body for message in connection.browse("held")] == [b"%d" % n for n in range(3, 20)] + [
            b"in doubt"
        ]
        (failed,) = connection.browse("failed")
        assert failed.origin is not None
        assert "out of ink" in str(failed.origin)
        (once,) = connection.browse("once")
        assert connection.enqueue("once", b"again", dedup_key="k") == once.message_id
    assert "no damage" in command("check", "--space", space)
    kept = lake.scan(space, "kept", ["seq"], archived=True).read_all()["seq"].to_pylist()
    assert sorted(kept) == list(range(1, 21))


def test_a_snapshot_of_then(left: Path) -> None:
    """Restored: what was taken behind it is there again."""
    with xaqueue.connect("synced") as connection:
        assert list(connection.browse("gone")) == []
    command("restore", "--space", "synced", "--yes", "--exact")
    with xaqueue.connect("synced") as connection:
        assert len(list(connection.browse("gone"))) == 20


@pytest.mark.parametrize("kind", OF_MANAGERS)
def test_a_decision_of_then(kind: str, left: Path) -> None:
    """It was made, and nobody was told: the next one tells them."""
    with xaqueue.TransactionManager(*parties(kind)) as manager:
        assert manager.recover().complete
    spaces = [f"{kind}-to", f"{kind}-from"][: OF_MANAGERS[kind]]
    for space in spaces:
        with xaqueue.connect(space) as connection:
            assert [message.body for message in connection.browse("orders")] == [b"42"]
    if kind != "log":
        with closing(sqlite3.connect(f"{kind}.db")) as database:
            assert database.execute("select id from orders").fetchall() == [(42,)]


@pytest.mark.parametrize("is_promoted", [True, False])
def test_a_replica_of_then(is_promoted: bool, left: Path) -> None:
    """It takes its source's place; or it goes on, behind a source of now."""
    bodies = [b"%d" % number for number in range(3, 20)]
    if is_promoted:
        command("promote", "replica", "--yes")
    else:
        source = ServerThread(Path("source"), left / "socket")
        replica = ReplicaThread(Path("replica"), source.url)
        with xaqueue.connect(source.url) as connection:
            connection.enqueue("orders", b"of now")
            connection.commit()
        replica.wait_for(source)
        replica.stop()
        source.stop()
        bodies.append(b"of now")
        promote(Path("replica"), 1)
    with xaqueue.connect("replica") as connection:
        assert [message.body for message in connection.browse("orders")] == bodies
        assert connection.outcome(HELD) is xaqueue.Outcome.IN_DOUBT
    command("indoubt", "commit", str(HELD), "--space", "replica", "--yes", "--reason", "then")
    with xaqueue.connect("replica") as connection:
        assert [message.body for message in connection.browse("orders")] == [*bodies, b"in doubt"]
    assert "no damage" in command("check", "--space", "replica")


@pytest.mark.parametrize("kind", DATABASES)
def test_a_decision_in_tables_of_then(kind: str, left: Path, request: pytest.FixtureRequest) -> None:
    """Of a server that has been there since: its tables are made and filled as they were."""
    address = request.getfixturevalue(ADDRESSES[kind])
    then = json.loads(Path(f"{kind}.json").read_text())
    with closing(opened(kind, address)) as connection, closing(connection.cursor()) as cursor:
        place = place_of(connection, DATABASES[kind])
        for statement in then["made"]:
            cursor.execute(statement)
        for name, table in then["tables"].items():
            for row in table["rows"]:
                values = dict(zip(table["columns"], row, strict=True))
                if "place" in values:
                    values["place"] = place
                cursor.execute(f"insert into {name} values ({', '.join(['%s'] * len(row))})", [*values.values()])
        connection.commit()
    with xaqueue.TransactionManager(parties_in(kind, address)) as manager:
        assert manager.recover().complete
    with xaqueue.connect(f"{kind}-to") as connection:
        assert [message.body for message in connection.browse("orders")] == [b"42"]


@pytest.fixture
def mysql_address(mariadb_socket: str) -> Iterator[str]:
    from support.mariadb import database

    with database(mariadb_socket) as name:
        yield f"{mariadb_socket} {name}"


class Answers:
    """Those of a server, by the number of what they answer."""

    def __init__(self) -> None:
        self.given: dict[int, tuple[Any, Any]] = {}
        self._unpacker = msgpack.Unpacker(raw=False)

    def feed(self, data: bytes) -> None:
        assert data, "the server has hung up"
        self._unpacker.feed(data)
        self.given |= {frame[1]: (frame[2], frame[3]) for frame in self._unpacker if frame[0] == 1}


class ServerOfThen:
    """Gives to each call what that version's server gave to the same one, in turn; another one it does not know."""

    def __init__(self) -> None:
        said, asked, answers = json.loads(Path("talk.json").read_text()), msgpack.Unpacker(raw=False), Answers()
        for who, data in said:
            (asked if who == "client" else answers).feed(bytes.fromhex(data))
        self._left: dict[str, list[tuple[Any, Any]]] = {}
        for frame in asked:
            if frame[0] == 0:
                self._left.setdefault(frame[2], []).append(answers.given[frame[1]])
        self._listening = socket.create_server("of-then", family=socket.AF_UNIX)
        self.url = f"xaq+unix://{Path('of-then').absolute()}"
        self.unknown: list[str] = []
        self._thread = threading.Thread(target=self._answer)
        self._thread.start()

    def _answer(self) -> None:
        client, unpacker = self._listening.accept()[0], msgpack.Unpacker(raw=False)
        with client:
            while data := client.recv(1 << 20):
                unpacker.feed(data)
                for frame in unpacker:
                    if frame[0] == 0:
                        self._give(client, *frame[1:3])

    def _give(self, client: socket.socket, number: int, method: str) -> None:
        if not self._left.get(method):
            self.unknown.append(method)
            client.shutdown(socket.SHUT_RDWR)
            return
        client.sendall(msgpack.packb((1, number, *self._left[method].pop(0))))

    def close(self) -> None:
        self._thread.join(60)
        self._listening.close()


def is_like(now: Any, then: Any) -> bool:
    """Of the same shape, and nothing is missing."""
    if isinstance(then, dict):
        return isinstance(now, dict) and all(key in now and is_like(now[key], then[key]) for key in then)
    if isinstance(then, list | tuple):
        return isinstance(now, list | tuple) and len(now) == len(then) and all(map(is_like, now, then))
    return type(now) is type(then)


def test_a_client_of_then(left: Path) -> None:
    """Its bytes, to a server of now."""
    then, now = Answers(), Answers()
    served = ServerThread(space_for_talk(left), Path("socket"))
    with closing(socket.socket(socket.AF_UNIX)) as client:
        client.settimeout(60)
        client.connect("socket")
        for who, data in json.loads(Path("talk.json").read_text()):
            if who == "client":
                client.sendall(bytes.fromhex(data))
                continue
            then.feed(bytes.fromhex(data))
            while not then.given.keys() <= now.given.keys():
                now.feed(client.recv(1 << 20))
    served.stop()
    assert len(then.given) > 10
    assert {number for number, told in then.given.items() if not is_like(now.given[number], told)} == set()


def test_a_server_of_then(left: Path) -> None:
    """A client of now does with it what one of then did."""
    server = ServerOfThen()
    try:
        talk(server.url)
    finally:
        server.close()
    assert server.unknown == []
