"""Spaces, a decision log and databases with something of everything in them, as this version leaves them: killed.

    cd tests && python -m support.writing VERSION

writes ``support/written/VERSION.tar.gz``, with what each queue exported then, and what a client and a server said; and
``support/written/also/VERSION.tar.gz``, with a replica, and decisions in tables of PostgreSQL and MariaDB. A release
adds its own and changes none: test_formats holds every later version against all of them.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer.testing import CliRunner

import xaqueue
from support.replicas import ReplicaThread, made
from support.served import ServerThread
from xaqueue.cli.main import app
from xaqueue.core.owner.record import read_owner
from xaqueue.tm.driver import Dialect
from xaqueue.tm.node_schema import statements

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WRITTEN = Path(__file__).with_name("written")
ALSO = WRITTEN / "also"
LEVELS = {"journal": "JOURNAL", "synced": "FSYNC;DSYNC"}
QUEUES = (
    *("plain", "lifo", "urgent", "alone", "grouped", "once", "kept", "tried", "failed", "one", "other"),
    *("held", "gone"),
)
DEFINITIONS = """
[space]
sync = "{sync}"
journal_segment_bytes = 1048576
[queues.plain]
[queues.lifo]
order = "lifo"
[queues.urgent]
order = "priority"
[queues.alone]
blocks = "one"
[queues.grouped]
[queues.once]
dedup_window_s = 31536000
[queues.kept]
archive = "parquet"
[queues.tried]
max_tries = 2
failure_queue = "failed"
[queues.failed]
[topics.events]
[queues.one]
topic = "events"
[queues.other]
topic = "events"
match = {{kind = "paid"}}
[queues.held]
[queues.gone]
"""
HELD = xaqueue.Xid(7, b"transfer-7", b"space")
OF_MANAGERS = {"log": 2, "carried": 1, "node": 1}
"""Messages that a manager has decided to commit, by where its decision lies."""
DATABASES = {"postgresql": Dialect.POSTGRESQL, "mysql": Dialect.MYSQL}
TABLES = ("xaqueue_decisions", "xaqueue_id", "xaqueue_nodes", "xaqueue_signs", "xaqueue_heuristics", "xaqueue_ended")


def write(name: str, sync: str) -> None:
    """A space. The process is killed at its end, with a branch prepared and one at work."""
    xaqueue.connect(name, create=True).close()
    Path(name, "queues.toml").write_text(DEFINITIONS.format(sync=sync))
    with xaqueue.connect(name) as connection:
        properties: dict[str, Any] = {"correlation_id": b"7", "headers": {"from": "ann"}, "content_type": "text/plain"}
        connection.enqueue("plain", b"with properties", reply_queue="plain", **properties)
        connection.enqueue("plain", b"later", delay=timedelta(days=36_500), ttl=timedelta(days=40_000))
        for queue in ("lifo", "urgent", "alone", "grouped"):
            for number in range(3):
                connection.enqueue(queue, b"%d" % number, priority=number, group="g" if queue == "grouped" else None)
        connection.enqueue("once", b"once", dedup_key="k")
        connection.publish("events", b"to one")
        connection.publish("events", b"to both", headers={"kind": "paid"})
        for queue in ("kept", "tried", "held", "gone"):
            connection.enqueue_many(queue, [b"%d" % number for number in range(20)])
    with xaqueue.connect(name) as connection:
        connection.dequeue_many("kept", 5)
    connection = xaqueue.connect(name)
    for _ in range(2):
        connection.dequeue("tried")
        connection.explain_rollback("the press is out of ink")
        connection.rollback()
    connection.snapshot()
    connection.dequeue_many("gone", 20)
    connection.commit()
    connection.tpc_begin(HELD)
    connection.enqueue("held", b"in doubt")
    connection.dequeue_many("held", 3)
    connection.tpc_prepare()
    at_work = xaqueue.connect(name)
    at_work.enqueue("plain", b"of a branch that was at work")
    at_work.flush()
    _die()


def decide(kind: str) -> None:
    """A transaction manager that is killed when it has decided, and has told nobody."""

    def on_step(step: str, gtrid: bytes, participant: str) -> None:
        if step in ("decided", "committed-last"):
            _die()

    for space in ("from", "to"):
        xaqueue.connect(f"{kind}-{space}", create=True).close()
    with sqlite3.connect(f"{kind}.db") as database:
        database.execute("create table orders (id int)")
    with xaqueue.TransactionManager(*parties(kind), on_step=on_step) as manager, manager.transaction() as tx:
        if kind != "log":
            tx["db"].execute("insert into orders values (42)")
        else:
            tx["from"].enqueue("orders", b"42")
        tx["to"].enqueue("orders", b"42")


def parties(kind: str) -> tuple[Any, ...]:
    """What its transaction manager is opened with, in the directory where it was."""
    spaces = {space: f"{kind}-{space}" for space in (("from", "to") if kind == "log" else ("to",))}
    database: dict[str, Any] = {"db": lambda: sqlite3.connect(f"{kind}.db")} if kind != "log" else {}
    return ({**database, **spaces},) if kind == "node" else (f"{kind}-decisions", {**database, **spaces})


def decide_in(kind: str, address: str) -> None:
    """The same, of a node whose database is a server's."""

    def on_step(step: str, gtrid: bytes, participant: str) -> None:
        if step == "committed-last":
            _die()

    xaqueue.connect(f"{kind}-to", create=True).close()
    with closing(opened(kind, address)) as connection, closing(connection.cursor()) as cursor:
        cursor.execute("create table orders (id int)")
        connection.commit()
    with xaqueue.TransactionManager(parties_in(kind, address), on_step=on_step) as manager, manager.transaction() as tx:
        tx["db"].cursor().execute("insert into orders values (42)")
        tx["to"].enqueue("orders", b"42")


def parties_in(kind: str, address: str) -> dict[str, Any]:
    return {"db": lambda: opened(kind, address), "to": f"{kind}-to"}


def opened(kind: str, address: str) -> Any:
    if kind == "mysql":
        import pymysql

        socket, _, name = address.partition(" ")
        return pymysql.connect(unix_socket=socket, user="root", database=name)
    import psycopg

    return psycopg.connect(address)


@contextmanager
def databases() -> Iterator[dict[str, str]]:
    """Their addresses, by kind."""
    from support import mariadb, postgres

    with ExitStack() as stack:
        dsn = stack.enter_context(postgres.database(stack.enter_context(postgres.started())))
        socket = stack.enter_context(mariadb.started())
        yield {"postgresql": dsn, "mysql": f"{socket} {stack.enter_context(mariadb.database(socket))}"}


def tables(kind: str, address: str) -> dict[str, Any]:
    """What makes those of the decisions, and their rows."""
    rows = {}
    with closing(opened(kind, address)) as connection, closing(connection.cursor()) as cursor:
        for table in TABLES:
            cursor.execute(f"select * from {table}")
            found = [[one.hex() if isinstance(one, bytes) else one for one in row] for row in cursor.fetchall()]
            rows[table] = {"columns": [column[0] for column in cursor.description], "rows": found}
    return {"made": statements(DATABASES[kind]), "tables": rows}


def replicate() -> None:
    """A space and its replica, which has what was there before it began, and what came since. Both are killed."""
    source = ServerThread(made(Path("source")), Path.cwd() / "socket")
    with xaqueue.connect(source.url) as connection:
        connection.enqueue_many("orders", [b"%d" % number for number in range(10)])
        connection.commit()
        replica = ReplicaThread(Path("replica"), source.url)
        connection.enqueue_many("orders", [b"%d" % number for number in range(10, 20)])
        connection.dequeue_many("orders", 3)
        connection.commit()
        connection.tpc_begin(HELD)
        connection.enqueue("orders", b"in doubt")
        connection.tpc_prepare()
        replica.wait_for(source)
        _die()


def stream() -> None:
    """A stream of Spark has moved messages from one space to another, and others have come since. All are killed."""
    from xaqueue.spark import session

    for space in ("streamed", "sunk"):
        xaqueue.connect(space, create=True, sync="FSYNC").close()
    with xaqueue.connect("streamed", sync="FSYNC") as connection:
        connection.enqueue_many("orders", [b"%d" % number for number in range(20)])
        connection.enqueue("orders", b"20")
    Path("place").write_text(str(Path.cwd()))
    run_stream(session(), Path.cwd())
    with xaqueue.connect("streamed") as connection:
        connection.enqueue_many("orders", [b"21", b"22"])
    for space in ("streamed", "sunk"):
        owner = read_owner(Path(space))
        assert owner is not None
        os.kill(owner.pid, signal.SIGKILL)
    _die()


def run_stream(spark: SparkSession, place: Path) -> None:
    checkpoint = str(place / "checkpoint")
    source = {"path": str(place / "streamed"), "queue": "orders", "consume": "delete", "maxMessagesPerTrigger": "15"}
    orders = spark.readStream.format("xaqueue").options(**source, checkpointLocation=checkpoint).load()
    copy = orders.selectExpr("body", "'orders' AS queue").writeStream.format("xaqueue").trigger(availableNow=True)
    copy.options(path=str(place / "sunk"), checkpointLocation=checkpoint).start().awaitTermination()


def record(place: Path) -> list[tuple[str, str]]:
    """What a client and a server say to each other, in hexadecimal; who speaks is "client" or "server"."""
    heard: list[tuple[str, str]] = []

    def pass_on(listening: socket.socket) -> None:
        client, server = listening.accept()[0], socket.socket(socket.AF_UNIX)
        with client, server:
            server.connect(f"{place}/socket")
            while True:
                for end in select.select([client, server], [], [])[0]:
                    if not (data := end.recv(1 << 20)):
                        return
                    (server if end is client else client).sendall(data)
                    heard.append(("client" if end is client else "server", data.hex()))

    served = ServerThread(space_for_talk(place), place / "socket")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"{place}/heard")
        listening.listen()
        between = threading.Thread(target=pass_on, args=(listening,))
        between.start()
        talk(f"xaq+unix://{place}/heard")
        between.join()
    served.stop()
    return heard


def space_for_talk(place: Path) -> Path:
    xaqueue.connect(place / "talked", create=True).close()
    (place / "talked" / "queues.toml").write_text(DEFINITIONS.format(sync="JOURNAL"))
    return place / "talked"


def talk(url: str) -> None:
    """Calls that name nothing which a server has made up, so that another one can be asked the same."""
    with xaqueue.connect(url) as connection:
        connection.enqueue("plain", b"one", headers={"from": "ann"}, correlation_id=b"7")
        connection.commit()
        connection.enqueue_many("plain", [b"%d" % number for number in range(20)])
        connection.publish("events", b"to both", headers={"kind": "paid"})
        connection.commit()
        connection.dequeue("plain", correlation_id=b"7")
        connection.rollback()
        assert len(connection.dequeue_many("plain", 5)) == 5
        connection.commit()
        assert len(list(connection.browse("plain"))) == 16
        assert len(connection.receive("plain", 2, 30)) == 2
        connection.tpc_begin(HELD)
        connection.enqueue("held", b"in doubt")
        connection.tpc_prepare()
        assert connection.tpc_recover() == [HELD]
        connection.tpc_commit()
        assert connection.dequeue("failed", wait_s=0.1) is None


def exported(space: str, queue: str) -> str:
    done = CliRunner().invoke(app, ["export", queue, "--space", space])
    assert done.exit_code == 0, done.output
    return done.stdout


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def run(place: str, call: str) -> None:
    """In a process that is killed at its end."""
    script = f"from support.writing import decide, decide_in, replicate, stream, write; {call}"
    tests = WRITTEN.parent.parent
    path = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (tests, tests.parent)))}
    done = subprocess.run([sys.executable, "-c", script], cwd=place, env=path, check=False)
    assert done.returncode == -signal.SIGKILL, call


def archive(place: str, made: Path) -> None:
    for kept in Path(place).glob("*/reserve/*"):
        kept.write_bytes(bytes(kept.stat().st_size))  # it is random, and only takes room
    with tarfile.open(made, "x:gz") as packed:
        packed.add(place, ".")


def main(version: str) -> None:
    with tempfile.TemporaryDirectory() as place:
        calls = [f"write({name!r}, {sync!r})" for name, sync in LEVELS.items()]
        calls += [*(f"decide({kind!r})" for kind in OF_MANAGERS), "stream()"]
        for call in calls:
            run(place, call)
        for name in LEVELS:
            Path(place, f"{name}.exported").mkdir()
            for queue in QUEUES:
                Path(place, f"{name}.exported", queue).write_text(exported(f"{place}/{name}", queue))
        Path(place, "talk.json").write_text(json.dumps(record(Path(place))))
        shutil.rmtree(f"{place}/talked")
        archive(place, WRITTEN / f"{version}.tar.gz")
    write_also(version)


def write_also(version: str) -> None:
    with tempfile.TemporaryDirectory() as place, databases() as addresses:
        run(place, "replicate()")
        for kind, address in addresses.items():
            run(place, f"decide_in({kind!r}, {address!r})")
            Path(place, f"{kind}.json").write_text(json.dumps(tables(kind, address)))
        for served in Path(place).glob("**/socket"):
            served.unlink()
        ALSO.mkdir(exist_ok=True)
        archive(place, ALSO / f"{version}.tar.gz")


if __name__ == "__main__":
    main(*sys.argv[1:])
