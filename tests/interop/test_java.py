"""A transaction manager that nobody here wrote, Bitronix in Java, drives a space and PostgreSQL: ``examples/java/``.

It needs a JDK, and Debian's packages libbtm-java, libgeronimo-jta-1.2-spec-java, libmsgpack-java,
libpostgresql-jdbc-java and libslf4j-java.
"""

from __future__ import annotations

import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

import xaqueue
from embedded_postgres import USER, PostgresServer
from support import ROOT
from support.patience import eventually
from support.postgres import HASTY

JARS = [
    Path("/usr/share/java", f"{name}.jar")
    for name in ("btm", "geronimo-jta-1.2-spec", "msgpack-core", "postgresql", "slf4j-api", "slf4j-nop")
]
ROUNDS = 10 if os.environ.get("XAQUEUE_CRASH_FULL") == "1" else 2
"""In each the server is killed twice, and then the Java program."""
LEAST = 20
"""Orders before each kill."""


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The class path."""
    missing = [str(jar) for jar in JARS if not jar.exists()]
    if missing or not shutil.which("javac"):
        pytest.skip(f"no Java transaction manager: {', '.join(missing) or 'javac'} is missing")
    made = tmp_path_factory.mktemp("classes")
    sources = map(str, sorted((ROOT / "examples" / "java").glob("*.java")))
    path = ":".join(map(str, JARS))
    subprocess.run(["javac", "-d", str(made), "-cp", path, *sources], check=True)
    return f"{made}:{path}"


@pytest.fixture
def postgres() -> Iterator[tuple[str, str]]:
    """A DSN, and a URL for Java, which speaks no Unix sockets to it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {**HASTY, "listen_addresses": "127.0.0.1", "port": str(port)}
    with tempfile.TemporaryDirectory(prefix="xaqueue-test-") as name:
        Path(name).chmod(0o711)
        with PostgresServer(Path(name), 50, settings=settings) as server:
            dsn = make_conninfo(server.dsn, port=port)
            with psycopg.connect(dsn) as own:
                own.execute("create table orders (id text)")
            yield dsn, f"jdbc:postgresql://127.0.0.1:{port}/postgres?user={USER}"


class Scene:
    def __init__(self, directory: Path, classes: str, database: str) -> None:
        self.space, self.socket, self.log = directory / "space", directory / "socket", directory / "journal"
        self.said = directory / "said"
        self._classes, self._database = classes, database
        self.log.mkdir()
        xaqueue.connect(self.space, create=True).close()
        self._server = self._served()

    def _served(self) -> subprocess.Popen[bytes]:
        """It takes sessions: a recovery that found none would be over."""
        words = ["serve", "--space", str(self.space), "--unix", str(self.socket)]
        server = subprocess.Popen([sys.executable, "-m", "xaqueue", *words], stdout=subprocess.PIPE)
        assert server.stdout is not None
        server.stdout.readline()
        return server

    def kill_server(self) -> None:
        self.end_server()
        self._server = self._served()

    def end_server(self) -> None:
        self._server.kill()
        self._server.communicate()

    @contextmanager
    def orders(self, seconds: int) -> Iterator[subprocess.Popen[bytes]]:
        """The Java program, past its recovery; it is killed at the end of the block."""
        words = ["Orders", str(self.socket), self._database, str(self.log), str(seconds)]
        java = ["java", "-XX:TieredStopAtLevel=1", "-cp", self._classes, *words]
        with self.said.open("w") as said, subprocess.Popen(java, stdout=said, stderr=said) as program:
            try:
                eventually(lambda: program.poll() is not None or "recovered\n" in self.said.read_text())
                yield program
            finally:
                program.kill()

    def left(self, dsn: str) -> tuple[list[str], list[str]]:
        with psycopg.connect(dsn) as own, xaqueue.connect(f"xaq+unix://{self.socket}") as queue:
            assert own.execute("select gid from pg_prepared_xacts").fetchall() == []
            assert queue.tpc_recover() == []
            rows = own.execute("select id from orders").fetchall()
            return sorted(row for (row,) in rows), sorted(message.body.decode() for message in queue.browse("orders"))


def test_rows_are_messages_whoever_is_killed(tmp_path: Path, classes: str, postgres: tuple[str, str]) -> None:
    dsn, url = postgres
    chance = random.Random(1)
    scene = Scene(tmp_path, classes, url)
    try:
        for _ in range(ROUNDS):
            with scene.orders(3600), psycopg.connect(dsn, autocommit=True) as own:
                for kills in (2, 1, 0):
                    eventually(_more(own))
                    time.sleep(chance.random() / 2)
                    if kills:
                        scene.kill_server()
        with scene.orders(0) as program:
            assert program.wait(60.0) == 0
        rows, messages = scene.left(dsn)
    finally:
        scene.end_server()
    assert rows == messages


def test_rows_are_messages(tmp_path: Path, classes: str, postgres: tuple[str, str]) -> None:
    """For a second, and nobody is killed."""
    dsn, url = postgres
    scene = Scene(tmp_path, classes, url)
    try:
        with scene.orders(1) as program:
            assert program.wait(60.0) == 0
        rows, messages = scene.left(dsn)
    finally:
        scene.end_server()
    assert rows == messages != []


def _more(own: psycopg.Connection) -> Callable[[], bool]:
    """Whether orders were taken since."""

    def counted() -> int:
        found = own.execute("select count(*) from orders").fetchone()
        assert found is not None
        return int(found[0])

    least = counted() + LEAST
    return lambda: counted() >= least
