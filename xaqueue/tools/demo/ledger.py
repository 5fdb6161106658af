"""The ledger: rows in PostgreSQL and messages in a queue agree, though every party is killed while they are written.

A service takes orders and sends them, each in one transaction over both, while the service itself, the queue server
and PostgreSQL's backends get SIGKILL in turn. Nobody repairs anything; at the end the books are compared, order by
order: a row that is taken has its message, a row that was sent has none, and nothing is left open. PASSED or FAILED is
said before anything is removed.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

import xaqueue
from xaqueue.errors import InvalidArgument, OperationalError
from xaqueue.space.offline.inspect_branches import in_doubt
from xaqueue.space.owner.open import create
from xaqueue.tm.log_directory import view_log
from xaqueue.tools.demo.ledger_service import QUEUE, TABLE, Addresses
from xaqueue.tools.demo.postgres import PostgresServer
from xaqueue.tools.demo.stage import Deadline, Expectation, Program, Report, judge, place_for, tenths

ORDERS = 1_000
LEAST_ORDERS = 50
VICTIMS = ("the queue server", "a PostgreSQL backend", "the service")
KILLS = VICTIMS * 3
FROM, TO = 0.05, 0.9
"""The shares of the orders between which the kills are spread."""
SHORT_PATH = 80
"""Bytes of a directory's name: a socket in it may have 107."""
WORDS = ("taken", "sent", "refused", "unknown")
COMMAND = (sys.executable, "-c", "from xaqueue.cli.main import main; main()")
SERVICE = (sys.executable, "-m", "xaqueue.tools.demo.ledger_service")
BACKENDS = "select pid from pg_stat_activity where backend_type = 'client backend' and pid <> pg_backend_pid()"


@dataclass(slots=True)
class ServiceLog:
    """How often the service has said what of each order, over all its lives."""

    taken: Counter[str] = field(default_factory=Counter)
    sent: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    unknown: Counter[str] = field(default_factory=Counter)

    def hear(self, lines: Iterable[list[str]]) -> None:
        for word, order in (line for line in lines if len(line) == 2):
            if word in WORDS and order != "-":
                getattr(self, word)[order] += 1


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

    @classmethod
    def read(cls, at: Addresses) -> Books:
        """``at``: whose service does not run."""
        with reached(at.dsn) as ledger:
            prepared = len(ledger.tpc_recover())
        with xaqueue.connect(at.queue) as connection:
            branches = len(connection.tpc_recover())
        found = rows(at)
        return cls(found["taken"], found["sent"], messages(at), prepared, branches, len(view_log(at.log).open))

    def check(self, said: ServiceLog) -> list[Expectation]:
        """Every claim of the ledger, held against what is there."""
        there = (self.taken + self.sent).keys()
        same = f"{self.taken.total():,} rows wait and {self.messages.total():,} messages do: the same orders"
        once = max([*said.taken.values(), *said.sent.values()], default=1) == 1 and said.sent.keys() <= self.sent.keys()
        return [
            Expectation(same, self.taken == self.messages),
            Expectation(f"{self.sent.total():,} orders were sent, each once", once),
            Expectation(f"{len(said.taken):,} orders were confirmed, and each is there", said.taken.keys() <= there),
            Expectation(
                f"{len(said.refused):,} orders were refused, and none is there", not said.refused.keys() & there
            ),
            Expectation(f"nobody was left without an answer ({len(said.unknown)})", not said.unknown),
            Expectation(f"PostgreSQL has {self.prepared} prepared transactions", self.prepared == 0),
            Expectation(f"the queue has {self.branches} branches in doubt", self.branches == 0),
            Expectation(f"the decision log has {self.unfinished} transactions open", self.unfinished == 0),
        ]


def rows(at: Addresses) -> dict[str, Counter[str]]:
    """The orders in PostgreSQL, by state."""
    found: dict[str, Counter[str]] = {"taken": Counter(), "sent": Counter()}
    with reached(at.dsn) as ledger:
        for state, order in ledger.execute("select state, id from orders").fetchall():
            found[state][order] += 1
    return found


def messages(at: Addresses) -> Counter[str]:
    """The orders in the queue."""
    with xaqueue.connect(at.queue) as connection:
        return Counter((message.properties.correlation_id or b"").decode() for message in connection.browse(QUEUE))


class QueueServer(Program):
    """``xaqueue serve`` over one space, started again when it was killed."""

    def __init__(self, space: Path, socket: Path, output: Path) -> None:
        self.url = f"xaq+unix://{socket}"
        super().__init__((*COMMAND, "serve", "--space", str(space), "--unix", str(socket)), output)
        self.wait_for("serving")

    def revive(self) -> bool:
        """Starts it again if it was killed, by whomever; whether it was. Raises OperationalError if it failed."""
        code = self.ended()
        if code is None:
            return False
        if code != -signal.SIGKILL:
            raise OperationalError(f"the queue server ended with code {code}:\n{self.complaint()}")
        self._start()
        self.wait_for("serving")
        return True


def reached(dsn: str) -> psycopg.Connection:
    """A connection, also right after a crash: then the server refuses for as long as it recovers."""
    deadline = Deadline("PostgreSQL refuses")
    while True:
        try:
            return psycopg.connect(dsn, autocommit=True)
        except psycopg.OperationalError:
            deadline.look()


def kill_a_backend(dsn: str, choose: Callable[[Sequence[int]], int]) -> bool:
    """SIGKILL to the backend of somebody else; PostgreSQL then ends all of them and recovers. False: there is none."""
    with reached(dsn) as connection:
        pids = [row[0] for row in connection.execute(BACKENDS)]
        if not pids:
            return False
        os.kill(choose(pids), signal.SIGKILL)
    return True


@dataclass(slots=True)
class Scene:
    """Everything that runs, and what has been said so far."""

    place: Addresses
    space: Path
    server: QueueServer
    output: Path
    orders: int
    report: Report
    said: ServiceLog = field(default_factory=ServiceLog)
    lives: int = 0
    kills: list[str] = field(default_factory=list)

    def program(self) -> Program:
        """The service, in a new life: it takes what is left of the orders."""
        self.lives += 1
        left, at = max(self.orders - len(self.said.taken), 0), self.place
        return Program([*SERVICE, at.dsn, at.queue, str(at.log), f"{self.lives:02d}", str(left)], self.output)

    def come_to_rest(self) -> Books:
        """A last life of the service with nothing to take: what is open is finished as at any start."""
        deadline = Deadline(f"something is still open, see {self.output.with_suffix('.err')},")
        while True:
            self.server.revive()
            with self.program() as program:
                program.wait_for("done")
            if not (books := Books.read(self.place)).open:
                return books
            deadline.look()


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
        with scene_of(place, wanted, report) as scene:
            _take_all(scene)
            books = scene.come_to_rest()
            for line in _table(scene, books):
                report(line)
            kills = Expectation(f"there were {len(scene.kills)} kills", len(scene.kills) >= len(KILLS))
            passed = judge([*books.check(scene.said), kills], report)
        report("PASSED" if passed else "FAILED")
    return passed


@contextmanager
def scene_of(directory: Path, orders: int, report: Report) -> Iterator[Scene]:
    """PostgreSQL and the queue server, started; they end with the block."""
    with ExitStack() as stack:
        ledger = PostgresServer(directory)
        stack.callback(ledger.stop)
        ledger.wait()
        space = directory / "space"
        create(space, name="ledger", any_queue=True)
        server = QueueServer(space, directory / "socket", directory / "server.out")
        stack.callback(server.stop)
        with reached(ledger.dsn) as connection:
            connection.execute(TABLE)
            version = connection.info.server_version // 10_000
        report(
            f"{orders:,} orders: a row each in PostgreSQL {version}, and a message in queue {QUEUE!r} of {server.url}"
        )
        place = Addresses(ledger.dsn, server.url, directory / "decisions")
        yield Scene(place, space, server, directory / "service.out", orders, report)


def _take_all(scene: Scene) -> None:
    """Life after life of the service, until it has taken all orders."""
    advance = tenths(scene.report, "orders taken", scene.orders)
    shares = [FROM + (TO - FROM) * number / (len(KILLS) - 1) for number in range(len(KILLS))]
    due = list(zip(KILLS, shares, strict=True))
    while len(scene.said.taken) < scene.orders:
        before, seen, deadline = len(scene.said.taken), -1, None
        with scene.program() as program:
            while program.ended() is None:
                scene.server.revive()
                taken = before + program.tally()["taken"]
                if taken != seen or deadline is None:
                    seen, deadline = taken, Deadline(f"no order was taken, see {scene.output.with_suffix('.err')},")
                    advance(taken)
                if due and taken >= due[0][1] * scene.orders and _kill(scene, program, due[0][0], taken):
                    due.pop(0)
                deadline.look()
            if program.ended() not in (0, -signal.SIGKILL):
                raise OperationalError(f"the service ended with code {program.ended()}:\n{program.complaint()}")
            scene.said.hear(program.lines())


def _kill(scene: Scene, program: Program, victim: str, taken: int) -> bool:
    """False where there is none just now: it is tried again."""
    left = ""
    if victim == VICTIMS[0]:
        scene.server.kill()
    elif victim == VICTIMS[1]:
        if not kill_a_backend(scene.place.dsn, random.choice):
            return False
    else:
        program.kill()
        left = _left(scene)
    scene.kills.append(victim)
    scene.report(f"  kill {len(scene.kills)}: {victim} got SIGKILL, with {taken:,} orders taken{left}")
    return True


def _left(scene: Scene) -> str:
    """What a service that is gone has left, for its next life to finish."""
    with reached(scene.place.dsn) as ledger:
        row = ledger.execute("select count(*) from pg_prepared_xacts").fetchone()
    decided = len(view_log(scene.place.log).open)
    return f"; in doubt: {row[0] if row else 0} rows, {len(in_doubt(scene.space))} branches, {decided} of them decided"


def _table(scene: Scene, books: Books) -> list[str]:
    lines = (
        ("orders confirmed", len(scene.said.taken)),
        ("  rows that wait to be sent", books.taken.total()),
        ("  messages in the queue", books.messages.total()),
        ("  rows sent", books.sent.total()),
        ("orders refused: rolled back", len(scene.said.refused)),
        ("kills", len(scene.kills)),
        ("lives of the service", scene.lives),
        ("left in doubt", books.open),
    )
    return [f"  {name:<30} {number:>8,}" for name, number in lines]
