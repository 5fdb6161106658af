"""The ledger: rows in PostgreSQL and messages in a queue agree, though every party is killed while they are written.

A service takes orders and sends them, each in one transaction over both, while the service itself, the queue server
and PostgreSQL's backends get SIGKILL in turn. Nobody repairs anything; at the end the books are compared, order by
order. PASSED or FAILED is said before anything is removed.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from xaqueue.demo import answer, ledger_audit
from xaqueue.demo.ledger_audit import Books, Said
from xaqueue.demo.ledger_parties import (
    Patience,
    Program,
    QueueServer,
    kill_a_backend,
    make_table,
    reached,
    service,
    tally,
)
from xaqueue.demo.ledger_service import QUEUE, Place
from xaqueue.demo.postgres import Server
from xaqueue.demo.progress import Progress
from xaqueue.errors import InvalidArgument, OperationalError
from xaqueue.space.offline.inspect_branches import in_doubt
from xaqueue.space.owner.open import create
from xaqueue.tm.look import look

ORDERS = 1_000
LEAST_ORDERS = 50
VICTIMS = ("the queue server", "a PostgreSQL backend", "the service")
KILLS = VICTIMS * 3
FROM, TO = 0.05, 0.9
"""The shares of the orders between which the kills are spread."""
SHORT_PATH = 80
"""Bytes of a directory's name: a socket in it may have 107."""

Report = Callable[[str], None]


@dataclass(slots=True)
class Scene:
    """Everything that runs, and what has been said so far."""

    place: Place
    space: Path
    server: QueueServer
    output: Path
    orders: int
    report: Report
    said: Said = field(default_factory=Said)
    lives: int = 0
    kills: list[str] = field(default_factory=list)

    def program(self) -> Program:
        """The service, in a new life: it takes what is left of the orders."""
        self.lives += 1
        left = max(self.orders - len(self.said.taken), 0)
        return service(self.place, f"{self.lives:02d}", left, self.output)


def run(orders: int | None, directory: Path | None, report: Report, *, keep: bool = False) -> bool:
    """Runs the demo and tells ``report`` about it, line by line. Returns whether the books agree.

    directory: where everything goes, and stays; None means a temporary one, removed at the end unless ``keep``.
    Raises InvalidArgument, OperationalError (something is missing, or a part failed or got stuck).
    """
    wanted = ORDERS if orders is None else orders
    if wanted < LEAST_ORDERS:
        raise InvalidArgument(f"{wanted:,} orders are too few to be killed in: {LEAST_ORDERS:,} or more are wanted")
    place = directory if directory is not None else Path(tempfile.mkdtemp(prefix="xaqueue-ledger-"))
    if directory is None:
        place.chmod(0o711)  # PostgreSQL may be another user
    try:
        passed = _run(_checked(place.absolute()), wanted, report)
        report("PASSED" if passed else "FAILED")
    finally:
        if directory is None and not keep:
            shutil.rmtree(place, ignore_errors=True)
        else:
            report(f"Everything is in {place}")
    return passed


def _checked(directory: Path) -> Path:
    if directory.exists() and any(directory.iterdir()):
        raise InvalidArgument(f"{directory} is not empty: the demo wants a new directory, or an empty one")
    if len(os.fsencode(directory)) > SHORT_PATH:
        raise InvalidArgument(f"{directory} is too long for a socket in it: choose a shorter --directory")
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def _run(directory: Path, orders: int, report: Report) -> bool:
    with scene_of(directory, orders, report) as scene:
        with Progress(report).task("orders taken", orders) as advance:
            _take_all(scene, advance)
        come_to_rest(scene)
        books = ledger_audit.read(scene.place)
        for line in _table(scene, books):
            report(line)
        findings = ledger_audit.check(scene.said, books)
        told = answer.Finding(f"there were {len(scene.kills)} kills", len(scene.kills) >= len(KILLS))
    report("The check:")
    for finding in (*findings, told):
        report(str(finding))
    return answer.passed((*findings, told))


@contextmanager
def scene_of(directory: Path, orders: int, report: Report) -> Iterator[Scene]:
    """PostgreSQL and the queue server, started; they end with the block."""
    with ExitStack() as stack:
        ledger = Server(directory)
        stack.callback(ledger.stop)
        ledger.wait()
        make_table(ledger.dsn)
        space = directory / "space"
        create(space, name="ledger", any_queue=True)
        server = QueueServer(space, directory / "socket", directory / "server.out")
        stack.callback(server.stop)
        place = Place(ledger.dsn, server.url, directory / "decisions")
        with reached(ledger.dsn) as connection:
            version = connection.info.server_version // 10_000
        report(
            f"{orders:,} orders: a row each in PostgreSQL {version}, and a message in queue {QUEUE!r} of {server.url}"
        )
        yield Scene(place, space, server, directory / "service.out", orders, report)


def _take_all(scene: Scene, advance: Callable[[int], None]) -> None:
    """Life after life of the service, until it has taken all orders."""
    shares = [FROM + (TO - FROM) * number / (len(KILLS) - 1) for number in range(len(KILLS))]
    due = list(zip(KILLS, shares, strict=True))
    while len(scene.said.taken) < scene.orders:
        with scene.program() as program:
            _live(scene, program, due, advance)
            scene.said.hear(program.lines())


def _live(scene: Scene, program: Program, due: list[tuple[str, float]], advance: Callable[[int], None]) -> None:
    """Until the service has ended, by itself or not."""
    before, patience = len(scene.said.taken), None
    seen = -1
    while program.ended() is None:
        scene.server.revive()
        taken = before + tally(program)["taken"]
        if taken != seen or patience is None:
            seen, patience = taken, Patience(f"no order was taken, see {scene.output.with_suffix('.err')},")
            advance(min(taken, scene.orders))
        if due and taken >= due[0][1] * scene.orders and _kill(scene, program, due[0][0], taken):
            due.pop(0)
        patience.look()
    if program.ended() not in (0, -9):
        raise OperationalError(f"the service ended with code {program.ended()}:\n{program.complaint()}")


def _kill(scene: Scene, program: Program, victim: str, taken: int) -> bool:
    """False where there is none just now: it is tried again."""
    if victim == VICTIMS[0]:
        scene.server.kill()
    elif victim == VICTIMS[1]:
        if not kill_a_backend(scene.place.dsn, random.choice):
            return False
    else:
        program.kill()
    scene.kills.append(victim)
    told = _open(scene) if victim == VICTIMS[2] else ""
    scene.report(f"  kill {len(scene.kills)}: {victim} got SIGKILL, with {taken:,} orders taken{told}")
    return True


def _open(scene: Scene) -> str:
    """What a service that is gone has left, for its next life to finish."""
    with reached(scene.place.dsn) as ledger:
        row = ledger.execute("select count(*) from pg_prepared_xacts").fetchone()
    decided = len(look(scene.place.log).open)
    return f"; in doubt: {row[0] if row else 0} rows, {len(in_doubt(scene.space))} branches, {decided} of them decided"


def come_to_rest(scene: Scene) -> None:
    """A last life of the service with nothing to take: what is open is finished as at any start."""
    patience = Patience(f"something is still open, see {scene.output.with_suffix('.err')},")
    while True:
        scene.server.revive()
        with scene.program() as program:
            program.wait_for("done")
        if not ledger_audit.read(scene.place).open:
            return
        patience.look()


def _table(scene: Scene, books: Books) -> Sequence[str]:
    rows = (
        ("orders confirmed", len(scene.said.taken)),
        ("  rows that wait to be sent", books.taken.total()),
        ("  messages in the queue", books.messages.total()),
        ("  rows sent", books.sent.total()),
        ("orders refused: rolled back", len(scene.said.refused)),
        ("kills", len(scene.kills)),
        ("lives of the service", scene.lives),
        ("left in doubt", books.open),
    )
    return [f"  {name:<30} {number:>8,}" for name, number in rows]
