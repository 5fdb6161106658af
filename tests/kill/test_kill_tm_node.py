"""Processes whose transaction managers have no directory, killed and stopped at each step: another one ends them.

Real processes over one real database and one server of a queue. The model is the database's own table: each row has
its message, nothing else is in the queue, and nothing stays in doubt, though no process comes back under its old name.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict

import xaqueue
from support import SUPPORT
from support.doubtful import run as cli
from support.node_child import FAST, QUEUE, TABLE, connect_to, ledger_at
from support.patience import PATIENCE_S, eventually
from support.served import ServerThread
from xaqueue import TransactionManager
from xaqueue.tm.driver import run
from xaqueue.tm.gtrid import FORMAT_ID, Gtrid

CHILD = SUPPORT / "node_child.py"
FULL = os.environ.get("XAQUEUE_CRASH_FULL") == "1"
LONG_US = 660 * 1_000_000
UNDECIDED = ("prepare", "prepared", "commit-last")
DECIDED = ("committed-last", "commit", "committed")


class Child:
    """A process of the service."""

    def __init__(self, *arguments: str | int) -> None:
        self.said: list[str] = []
        self._process = subprocess.Popen(
            [sys.executable, str(CHILD), json.dumps(arguments)], stdout=subprocess.PIPE, text=True
        )
        self._reader = threading.Thread(target=self._hear)
        self._reader.start()

    def _hear(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.said.append(line.rstrip("\n"))

    def has_said(self, words: str) -> bool:
        return any(line.startswith(words) for line in self.said)

    def signal(self, which: int) -> None:
        self._process.send_signal(which)

    def end(self) -> int:
        status = self._process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        assert self._process.stdout is not None
        self._process.stdout.close()
        return status

    def kill(self) -> None:
        self._process.kill()
        self.end()

    @property
    def done(self) -> set[int]:
        return {int(line.split()[1]) for line in self.said if line.startswith("done")}


class Place:
    def __init__(self, address: str, url: str, ledger: str = "") -> None:
        """ledger: where a second database is, which prepares; "": there is none."""
        self.address, self.url, self.ledger = address, url, ledger
        self.execute(TABLE)
        if ledger:
            self.execute(TABLE, ledger)

    def execute(self, statement: str, address: str = "") -> list[Any]:
        with closing(connect_to(address or self.address)) as connection:
            found = run(connection, statement)
            connection.commit()
            return found

    def start(self, first: int, end: str) -> Child:
        return Child(self.address, self.url, first, end, self.ledger)

    @property
    def dsn(self) -> str:
        """The database, as the command line takes it."""
        kind, _, where = self.address.partition(" ")
        if kind == "sqlite":
            return f"sqlite:///{where}"
        if kind == "postgresql":
            words = conninfo_to_dict(where)
            return f"postgresql://{words['user']}@/{words['dbname']}?host={words['host']}"
        socket, name = where.split()
        return f"mariadb://root@localhost/{name}?unix_socket={socket}"

    @contextmanager
    def survivor(self) -> Iterator[TransactionManager]:
        parties = {"db": lambda: connect_to(self.address), "queue": lambda: xaqueue.connect(self.url)}
        if self.ledger:
            parties["ledger"] = ledger_at(self.ledger)
        with TransactionManager(parties, decides="db", recovery_interval_s=0.1) as manager:
            yield manager

    @property
    def rows(self) -> set[int]:
        return {n for (n,) in self.execute("SELECT n FROM orders")}

    @property
    def messages(self) -> list[int]:
        with xaqueue.connect(self.url) as connection:
            return sorted(int(message.body) for message in connection.browse(QUEUE))

    @property
    def in_doubt(self) -> list[Any]:
        with xaqueue.connect(self.url) as connection:
            return connection.tpc_recover()

    @property
    def ledger_in_doubt(self) -> list[Any]:
        if not self.ledger:
            return []
        if self.ledger.startswith("postgresql"):
            return self.execute("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()", self.ledger)
        with closing(connect_to(self.ledger)) as connection, connection.cursor() as cursor:
            cursor.execute("XA RECOVER")
            return list(cursor.fetchall())

    def count(self, table: str) -> int:
        ((count,),) = self.execute(f"SELECT COUNT(*) FROM xaqueue_{table}")
        return int(count)

    def judge(self, *children: Child) -> None:
        """What was told is so, nothing is in doubt, and no decision is kept for anybody."""
        eventually(lambda: not self.in_doubt)
        eventually(lambda: not self.ledger_in_doubt)
        eventually(lambda: not self.execute("SELECT gtrid FROM xaqueue_decisions WHERE decision = 'commit'"))
        assert self.messages == sorted(self.rows)
        if self.ledger:
            assert {n for (n,) in self.execute("SELECT n FROM orders", self.ledger)} == self.rows
        for child in children:
            assert child.done <= self.rows


KINDS = ["postgresql", "sqlite", "mariadb"]


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setattr("xaqueue.tm.node.Timing", lambda: FAST)
    kind, _, second = request.param.partition(" and ")
    ledger_of = address_of(request, second, tmp_path) if second else nullcontext("")
    with served(tmp_path) as url, address_of(request, kind, tmp_path) as address, ledger_of as ledger:
        yield Place(address, url, ledger)


@contextmanager
def served(place: Path) -> Iterator[str]:
    xaqueue.connect(place / "space", create=True).close()
    (place / "space" / "queues.toml").write_text(f"[queues.{QUEUE}]\n")
    server = ServerThread(place / "space", place / "socket")
    try:
        yield server.url
    finally:
        server.stop()


@contextmanager
def address_of(request: pytest.FixtureRequest, kind: str, place: Path) -> Iterator[str]:
    if kind == "sqlite":
        yield f"sqlite {place / 'db'}"
    elif kind == "postgresql":
        yield f"postgresql {request.getfixturevalue('dsn')}"
    else:
        from support.mariadb import database

        socket = request.getfixturevalue("mariadb_socket")
        with database(socket) as name:
            yield f"mariadb {socket} {name}"


@pytest.mark.parametrize("step", [*UNDECIDED, "decided", *DECIDED])
def test_killed(place: Place, step: str) -> None:
    """And the one that finishes it comes later, as after a deploy."""
    child = place.start(10, f"kill:{step}")
    assert child.end() == -signal.SIGKILL
    with place.survivor():
        eventually(lambda: (place.count("nodes"), place.count("ended")) == (1, 1))  # the other one is registered
        place.judge(child)
        assert place.rows == ({10, 11} if step in DECIDED else {10})
    assert place.count("nodes") == place.count("signs") - 1 == 0


PAIRS = ["sqlite and postgresql", "postgresql and mariadb", "mariadb and postgresql"]
"""One that decides, and one that prepares."""


@pytest.mark.parametrize("place", PAIRS, indirect=True)
@pytest.mark.parametrize("step", [*UNDECIDED, "decided", *DECIDED])
def test_killed_over_two_databases(place: Place, step: str) -> None:
    test_killed(place, step)


@pytest.mark.parametrize("place", PAIRS[:1] + PAIRS[2:], indirect=True)
@pytest.mark.parametrize("step", DECIDED)
def test_stopped_over_two_databases(place: Place, step: str) -> None:
    """Another one commits what it has decided; it finds that gone when it goes on, and the row says why."""
    test_stopped_and_it_goes_on_when_it_was_ended(place, step)


@pytest.mark.parametrize("step", ["prepare", "prepared", "decided", "committed-last"])
def test_killed_and_finished_by_a_command_alone(place: Place, step: str) -> None:
    """As from cron, ten minutes later: no process of the service comes back."""
    child = place.start(10, f"kill:{step}")
    assert child.end() == -signal.SIGKILL
    assert "0 transactions left" in cli("tm", "recover", place.dsn, place.url), "nobody is ended so early"
    assert place.count("nodes") == 1
    place.execute(f"UPDATE xaqueue_signs SET at = at - {LONG_US}")
    assert ": ended, it gave no sign for 10 minutes" in cli("tm", "recover", place.dsn, place.url)
    assert not place.in_doubt
    place.judge(child)
    assert place.rows == ({10, 11} if step in DECIDED else {10})
    assert [place.count(table) for table in ("nodes", "signs", "ended")] == [0, 1, 1]
    found = json.loads(cli("tm", "status", place.dsn, "--json"))
    assert [one["ended_us"] > 0 for one in found["nodes"]] == [True]
    assert found["decisions"] == []


STOPPED = [
    (kind, step)
    for kind in KINDS
    for step in (*UNDECIDED, "decided", *DECIDED)
    if kind != "sqlite" or step in DECIDED  # else nobody writes there
]


@pytest.mark.parametrize(("place", "step"), STOPPED, indirect=["place"])
def test_stopped_and_it_goes_on_when_it_was_ended(place: Place, step: str) -> None:
    """What it did not decide by then it decides no more, is told so, and does it again under a new name."""
    child = place.start(10, f"stop:{step}")
    try:
        with place.survivor():
            eventually(lambda: child.has_said("at "))
            eventually(lambda: place.count("ended"))
            eventually(lambda: not place.in_doubt)
            if step == "decided":  # the database has ended its session
                assert place.rows == {10}
            child.signal(signal.SIGCONT)
            assert child.end() == 0
            place.judge(child)
        assert child.has_said("not 11 XA_RB") or step in DECIDED
        assert place.rows == {10, 11, 12, 13}
        assert place.count("nodes") == 0
    finally:
        child.kill()


def test_a_prepare_that_arrives_behind_the_sweep_is_rolled_back_too(place: Place) -> None:
    """It was on its way when its process was killed."""
    child = place.start(10, "kill:prepare")
    assert child.end() == -signal.SIGKILL
    ((node,),) = place.execute("SELECT node FROM xaqueue_nodes")
    ((database,),) = place.execute("SELECT id FROM xaqueue_id")
    with place.survivor():
        eventually(lambda: place.count("ended") == 1)
        time.sleep(2 * FAST.sweep)
        with xaqueue.connect(place.url) as late:
            late.tpc_begin(late.xid(FORMAT_ID, bytes(Gtrid(node, 1, 99, database)), "queue"))
            late.enqueue(QUEUE, b"99")
            late.tpc_prepare()
        place.judge(child)
        assert place.rows == {10}


@pytest.mark.parametrize("seed", range(20 if FULL else 1))
def test_killed_at_any_moment(place: Place, seed: int) -> None:
    """Four at a time, one after another; where none survives, the next one finishes."""
    dice = random.Random(seed)
    children: list[Child] = []
    running: list[Child] = []
    for turn in range(30 if FULL else 8):
        running.append(place.start(1000 * (turn + 1), "go:900"))
        children.append(running[-1])
        if len(running) == 4:
            eventually(lambda: any(child.done for child in running))
            time.sleep(dice.uniform(0.0, 0.4))
            running.pop(dice.randrange(4)).kill()
    for child in running:
        child.kill()
    with place.survivor():
        eventually(lambda: place.count("nodes") == 1)
        place.judge(*children)
        assert place.count("ended") >= len([child for child in children if child.done])
