"""The ledger: rows in PostgreSQL and messages in a queue agree, though every party is killed while they are written.

A service takes orders and sends them, each in one transaction over both, while the service itself, the queue server
and PostgreSQL's backends get SIGKILL in turn. Nobody repairs anything; at the end the books are compared, order by
order: a row that is taken has its message, a row that was sent has none, and nothing is left open. PASSED or FAILED is
said before anything is removed.

    python -m xaqueue.tools.demo.ledger DSN QUEUE LOG LIFE ORDERS

is the service, until it has taken so many. A taken order is a row in PostgreSQL and a message in the queue; sending it
takes the message and marks the row. It says a line for each: ``taken ID``, ``sent ID``; ``refused ID`` where the
transaction was rolled back, ``unknown ID`` where nobody can tell. Orders are named after the life of the service, so
that no two lives take the same one.
"""

from __future__ import annotations

import faulthandler
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import psycopg

import xaqueue
from xaqueue.errors import Error, HeuristicOutcome, InvalidArgument, OutcomeUnknown
from xaqueue.tools.demo.stage import Expectation, Program, Report, judge, place_for, say, tenths
from xaqueue.tools.postgres import PostgresServer

QUEUE = "orders"
TABLE = (
    "create table if not exists orders "
    "(id text primary key deferrable initially deferred, item text not null, state text not null)"
)
TAKE = "insert into orders values (%s, %s, 'taken')"
SEND = "update orders set state = 'sent' where id = %s and state = 'taken'"
TAKERS = 3
PAUSE_S = 0.1
"""After a failure: what is down may be up again then."""
STUCK_S = 120.0
"""Where no order is taken for so long it ends, and says where each of its threads is."""


Work = Callable[[Any, str], str]
"""What is done in a transaction for an order; returns which order it was."""


class Nothing(Exception):
    """There is no order that can be sent now."""


def manager_of(dsn: str, queue: str, log: str, **options: Any) -> xaqueue.TransactionManager:
    """Over both, whom it first asks what is left open. ``queue``: a URL or a directory."""
    parties: dict[str, Callable[[], Any]] = {
        "ledger": partial(psycopg.connect, dsn),
        "queue": partial(xaqueue.connect, queue),
    }
    return xaqueue.TransactionManager(log, parties, timeout_s=20.0, recovery_interval_s=1.0, **options)


def take(tx: Any, order: str) -> str:
    tx["ledger"].execute(TAKE, (order, f"item of {order}"))
    tx["queue"].enqueue(QUEUE, f"item of {order}".encode(), correlation_id=order)
    return order


def send(tx: Any, _: str) -> str:
    message = tx["queue"].dequeue(QUEUE)
    if message is None:
        raise Nothing
    order: str = message.correlation_id.decode()
    if tx["ledger"].execute(SEND, (order,)).rowcount != 1:
        raise Nothing
    return order


def attempt(manager: xaqueue.TransactionManager, word: str, order: str, work: Work) -> bool:
    """One transaction; whether it is over. It is said which order was done, or that ``order`` was not."""
    try:
        with manager.transaction() as tx:
            done = work(tx, order)
    except Nothing:
        return False
    except (HeuristicOutcome, OutcomeUnknown) as error:
        say("unknown", order)
        sys.stderr.write(f"{order}: {error!r}\n")
        return True
    except (Error, psycopg.Error) as error:
        say("refused", order)
        sys.stderr.write(f"{order}: {error!r}\n")
        return False
    say(word, done)
    return True


def serve(manager: xaqueue.TransactionManager, life: str, orders: int, work: Work = take) -> None:
    """Until so many orders are taken; with every other one an order is sent."""
    numbers = count()

    def turn(number: int) -> None:
        while not attempt(manager, "taken", f"{life}-{next(numbers):05d}", work):
            time.sleep(PAUSE_S)
        faulthandler.dump_traceback_later(STUCK_S, exit=True)
        if number % 2:
            attempt(manager, "sent", "-", send)

    faulthandler.dump_traceback_later(STUCK_S, exit=True)
    with ThreadPoolExecutor(TAKERS) as takers:
        list(takers.map(turn, range(orders)))
    faulthandler.cancel_dump_traceback_later()


# The demo

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
SERVICE = (sys.executable, "-m", "xaqueue.tools.demo.ledger")
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


class QueueServer:
    """``xaqueue serve`` over one space, started again when it was killed."""

    def __init__(self, space: Path, socket: Path, log: Path) -> None:
        self.url = f"xaq+unix://{socket}"
        self._command, self._log = (*SERVE, "--space", str(space), "--unix", str(socket)), log
        self._start()

    def _start(self) -> None:
        self.program = Program("the queue server", self._command, self._log)
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
        with Program("the service", command, scene.place / "service.log") as service:
            for line in service:
                hear(scene.said, line)
                advance(len(taken))
                if kills < len(KILLS) and len(taken) >= due[kills] and _kill(scene, service, KILLS[kills]):
                    report(f"  kill {kills + 1}: {KILLS[kills]} got SIGKILL, with {len(taken):,} orders taken")
                    kills += 1
            if service.was_killed():
                report("  it left {} rows and {} branches in doubt".format(*scene.in_doubt()))
    return kills


def _kill(scene: Scene, service: Program, victim: str) -> bool:
    """False where there is none just now: it is tried again."""
    if victim == VICTIMS[1]:
        return kill_a_backend(scene.dsn, random.choice)
    if victim == VICTIMS[2]:
        service.kill()
    else:
        scene.server.program.kill()
        scene.server.revive()
    return True


if __name__ == "__main__":
    dsn, queue, log, life, orders = sys.argv[1:]
    with manager_of(dsn, queue, log) as manager:
        serve(manager, life, int(orders))
