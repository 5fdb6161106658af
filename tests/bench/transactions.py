"""The transactions that ``bench.steps`` counts, by the same verbs in a space of this process and through a server."""

from __future__ import annotations

import os
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast

import xaqueue
from bench.served import run
from xaqueue.connection import Connection
from xaqueue.core.engine.state import Space
from xaqueue.features.session import Session
from xaqueue.message import EnqueueOptions
from xaqueue.rpc.server.listeners import ListenConfig
from xaqueue.rpc.server.server import Server

PLACES = ("embedded NONE", "embedded FDATASYNC;DSYNC", "embedded JOURNAL", "served JOURNAL")
BODY = os.urandom(1024)
BATCH = 100
A_MESSAGE = f"a message of {BATCH}"
COUNTED = 12
"""Transactions; of those with 100 messages, a fourth. Half as many go before."""
TURNS = 3
"""Of the loop, until it has done what it has begun."""
PATIENCE_S = 60.0
TOPIC = '\n[topics.events]\n[queues.first]\ntopic = "events"\n[queues.second]\ntopic = "events"\n'

Act = Callable[[], object]


class Verb(NamedTuple):
    name: str
    act: Act
    times: int = COUNTED
    messages: int = 1
    """Through how many of them what it costs is divided."""


@dataclass
class Scene:
    """An open space. ``names``: of the columns that the caller's thread and the server's threads are counted for."""

    names: Mapping[str, str]
    place: str
    """Its directory, or its server's URL."""
    settle: Act = lambda: None
    """Returns once all is done that belongs to the last answer."""


class Ruler(Protocol):
    def measure(self, scene: Scene, verb: Verb) -> None: ...


def play(ruler: Ruler, directory: Path, places: Sequence[str], dsn: str = "") -> None:
    """Measures each verb in each place. ``dsn``: of a PostgreSQL, or empty."""
    for number, place in enumerate(places):
        way, level = place.split()
        root = directory / f"{number}"
        root.mkdir(parents=True)
        fill(root)
        with (embedded if way == "embedded" else served)(root, level) as scene:
            with xaqueue.connect(scene.place) as connection:
                for verb in (*two_phase(connection), *one_phase(connection)):
                    ruler.measure(scene, verb)
            for verb in rows(scene, directory / f"{number}-rows", dsn):
                ruler.measure(scene, verb)
            if way == "embedded" and find_spec("pyspark"):
                with xaqueue.connect(root) as connection:
                    space_of(connection).log.settle()  # all that is read is a file
                ruler.measure(scene, spark(root))


def fill(root: Path) -> None:
    """Its messages are files when it is opened again, and none is in the journal alone."""
    xaqueue.connect(root, create=True, sync="NONE").close()
    with (root / "queues.toml").open("a") as definitions:
        definitions.write(TOPIC)
    with xaqueue.connect(root, sync="NONE") as connection:
        for _ in range(COUNTED):
            connection.enqueue_many("taken", [BODY] * BATCH)
            connection.commit()


def space_of(connection: Connection) -> Space:
    return cast(Session, connection._manager).space


def wait_for_late(space: Space) -> None:
    """What was committed late is recorded, so that each transaction finds the same as the one before. Calls nothing of
    which the steps are counted."""
    deadline = time.monotonic() + PATIENCE_S
    while space.log.deferred and time.monotonic() < deadline:
        time.sleep(0.002)


@contextmanager
def embedded(root: Path, level: str) -> Iterator[Scene]:
    with xaqueue.connect(root, sync=level) as connection:  # keeps it open
        yield Scene({"caller": f"embedded {level}"}, os.fspath(root), partial(wait_for_late, space_of(connection)))


@contextmanager
def served(root: Path, level: str) -> Iterator[Scene]:
    """By a server in a thread of this process, so that its steps are counted, and by themselves."""
    ready, made = threading.Event(), list[Server]()

    async def serve(path: Path) -> None:
        made.append(Server(root, sync=level))
        await made[0].recover()
        await made[0].listen(ListenConfig(unix=(path,)))
        await made[0].serve(ready.set)

    def settle() -> None:
        for _ in range(TURNS):
            turned = threading.Lock()
            turned.acquire()
            made[0].loop.call_soon_threadsafe(turned.release)
            turned.acquire(timeout=PATIENCE_S)
        wait_for_late(made[0].space)

    with tempfile.TemporaryDirectory(prefix="xaqueue-bench-") as sockets:  # a socket's path is 107 bytes at most
        thread = threading.Thread(target=lambda: run(serve(Path(sockets, "socket"))), name="server")
        thread.start()
        try:
            assert ready.wait(PATIENCE_S)
            names = {"server": f"server {level}", "caller": f"client {level}"}
            yield Scene(names, f"xaq+unix://{sockets}/socket", settle)
        finally:
            made[0].loop.call_soon_threadsafe(made[0].stop)
            thread.join()


def two_phase(connection: Connection) -> Iterator[Verb]:
    def through(work: Act) -> None:
        connection.tpc_begin(connection.xid(1, b"steps.%d" % next(numbers), b"b"))
        work()
        connection.tpc_prepare()
        connection.tpc_commit()

    numbers = count()
    yield Verb("enqueue, two phases", partial(through, lambda: connection.enqueue("put", BODY)))
    yield Verb("dequeue, two phases", partial(through, lambda: connection.dequeue("taken")))


def one_phase(connection: Connection) -> Iterator[Verb]:
    def through(work: Act) -> None:
        work()
        connection.commit()

    def lease(count: int) -> None:
        for delivery in connection.receive("taken", count):
            delivery.ack()

    yield Verb("enqueue, commit", partial(through, lambda: connection.enqueue("put", BODY)))
    yield Verb("dequeue, commit", partial(through, lambda: connection.dequeue("taken")))
    consumer = connection.consume("taken")
    yield Verb("consume, commit", partial(through, lambda: next(consumer)))
    yield Verb("receive, ack", partial(lease, 1))
    yield Verb("publish to 2 queues, commit", partial(through, lambda: connection.publish("events", BODY)))
    bodies, own = [BODY] * BATCH, [(BODY, EnqueueOptions(headers={"k": str(number)})) for number in range(BATCH)]
    for name, act in {
        "enqueue_many, commit": partial(through, lambda: connection.enqueue_many("put", bodies)),
        "enqueue_many with headers each, commit": partial(through, lambda: connection.enqueue_many("put", own)),
        "dequeue_many, commit": partial(through, lambda: connection.dequeue_many("taken", BATCH)),
        "receive, ack": partial(lease, BATCH),
    }.items():
        yield Verb(f"{name}: {A_MESSAGE}", act, COUNTED // 4, BATCH)


def rows(scene: Scene, directory: Path, dsn: str) -> Iterator[Verb]:
    """A row and a message by the transaction manager, which has the database decide."""
    directory.mkdir()
    ways: dict[str, Callable[[], Any]] = {"SQLite": lambda: sqlite3.connect(directory / "rows")}
    if dsn:
        import psycopg

        ways["PostgreSQL"] = lambda: psycopg.connect(dsn)
    for name, opened in ways.items():
        with closing(opened()) as database:
            database.execute("create table if not exists steps (number integer)")
            database.commit()
        opens = {"queue": lambda: xaqueue.connect(scene.place), "db": opened}
        with xaqueue.TransactionManager(directory / name, opens) as manager:
            yield Verb(f"{name}'s row and a message", partial(_both, manager))


def _both(manager: xaqueue.TransactionManager) -> None:
    with manager.transaction() as tx:
        tx["db"].execute("insert into steps values (1)")
        tx["queue"].enqueue("put", BODY)


def spark(root: Path) -> Verb:
    """What an executor does for the rows of its task, without Spark."""
    from xaqueue.lake.batches import record_batches
    from xaqueue.lake.columns import Rows
    from xaqueue.offline.reader import QueueReader
    from xaqueue.offline.spans import files
    from xaqueue.spark.source.columns import Columns, schema

    reader, columns = QueueReader(root, "put"), Columns(schema())

    def read() -> None:
        for _ in record_batches(files(reader, 0, BATCH), Rows("put"), columns):
            pass

    return Verb("100 rows of Spark's reader", read, COUNTED // 4)
