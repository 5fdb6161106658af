"""Rows and messages agree although every party is killed, at every named step of the two phases and at any moment.

The ledger of ``xaqueue demo --ledger``: a service with a transaction manager, over a real PostgreSQL and a real queue
server. Nobody helps: what was killed is started again, and at the end everything has come to rest by itself.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from support import SUPPORT
from support.ledger_child import Strike

pytest.importorskip("psycopg", reason="psycopg is not installed")

from xaqueue.tools.demo import postgres
from xaqueue.tools.demo.ledger import Scene, kill_a_backend, messages, rows, scene_of
from xaqueue.tools.demo.stage import Deadline, Program

CHILD = SUPPORT / "ledger_child.py"
FULL = os.environ.get("XAQUEUE_CRASH_FULL") == "1"
ORDERS = 2_000 if FULL else 200
LIVES = None if FULL else 5
SUDDEN = 8 if FULL else 1
"""Kills of each party at random moments."""
LEAST_KILLS = 20
VICTIMS = ("service", "server", "backend")
OF_EACH = ("begin", "prepare", "prepared", "commit", "committed", "rollback", "rolled-back")
OF_ALL = ("decide", "decided", "done")
STEPS = [(step, name) for step in OF_EACH for name in ("ledger", "queue")] + [(step, "") for step in OF_ALL]
ENDLESS = 1_000_000
NEWBORN = "newborn"


@dataclass(frozen=True, slots=True)
class Life:
    """What happens in one life of the service: kills at steps, then kills at random moments; the last is its own."""

    strikes: tuple[Strike, ...]
    sudden: tuple[str, ...] = ()


def lives_of(rng: random.Random) -> Iterator[Life]:
    """Every party is killed at every step; each life of the service ends with its own."""
    at = {victim: [Strike(victim, *step, rng.randint(1, 4)) for step in STEPS] for victim in VICTIMS}
    for strikes in at.values():
        rng.shuffle(strikes)
    for others in zip(*(at[victim] for victim in VICTIMS), strict=True):
        own, *rest = others
        rng.shuffle(rest)
        yield Life((*rest, own))


class Campaign:
    """Lives of the service, one after the other, over one scene."""

    def __init__(self, scene: Scene, rng: random.Random, *, careless: bool = False) -> None:
        self.scene = scene
        self.struck: Counter[str] = Counter()
        self.sudden: Counter[str] = Counter()
        self._rng = rng
        self._careless = careless

    def live(self, life: Life, orders: int = ENDLESS) -> None:
        """Until the service has ended, as the life wants it."""
        with self._program(life, orders) as program:
            self._until_struck(program, life)
            for victim in life.sudden:
                self._kill_suddenly(program, victim)
            deadline = Deadline("the service does not end")
            while program.ended() is None:
                self.scene.server.revive()
                deadline.look()
            assert program.ended() in (0, -9), program.complaint()
            lines = program.lines()
        self.scene.said.hear(lines)
        self.struck.update(line[1] for line in lines if line[0] == "struck")

    def _program(self, life: Life, orders: int) -> Program:
        self.scene.lives += 1
        place = self.scene.place
        arguments = [place.dsn, place.queue, str(place.log), f"{self.scene.lives:03d}", str(orders)]
        fate = [json.dumps(life.strikes), str(self.scene.space), "careless" if self._careless else ""]
        return Program([sys.executable, str(CHILD), *arguments, *fate], self.scene.output)

    def _until_struck(self, program: Program, life: Life) -> None:
        deadline = Deadline(f"of {life} only {self._said(program)} fell")
        while program.ended() is None and self._said(program) < len(life.strikes):
            self.scene.server.revive()
            deadline.look()

    def _kill_suddenly(self, program: Program, victim: str) -> None:
        """Some moments after orders are taken again; a newborn service in the middle of its start."""
        if victim == NEWBORN:
            time.sleep(self._rng.uniform(0.05, 1.0))
            program.kill()
            self.sudden["service"] += 1
            return
        deadline, before = Deadline("no order is taken"), program.tally()["taken"]
        while program.ended() is None and program.tally()["taken"] <= before:
            self.scene.server.revive()
            deadline.look()
        time.sleep(self._rng.uniform(0, 0.3))
        if victim == "server":
            self.scene.server.kill()
        elif victim == "service":
            program.kill()
        elif not kill_a_backend(self.scene.place.dsn, self._rng.choice):
            return
        self.sudden[victim] += 1

    @staticmethod
    def _said(program: Program) -> int:
        return program.tally()["struck"]


@pytest.fixture
def scene() -> Iterator[Scene]:
    if not any(postgres.directories()):
        pytest.skip(postgres.MISSING)
    with tempfile.TemporaryDirectory(prefix="xaqueue-test-") as name:
        Path(name).chmod(0o711)
        with scene_of(Path(name), ORDERS, lambda line: None) as made:
            yield made


@pytest.mark.crash
def test_rows_and_messages_agree_whoever_is_killed_and_when(scene: Scene) -> None:
    seed = os.environ.get("XAQUEUE_KILL_SEED") or str(random.SystemRandom().randrange(10**9))
    sys.stdout.write(f"seed: XAQUEUE_KILL_SEED={seed}\n")
    rng = random.Random(seed)
    campaign = Campaign(scene, rng)
    lives = list(lives_of(rng))[:LIVES]
    lives += [Life((), ("server", "backend", "service")), Life((), (NEWBORN,))] * SUDDEN
    for life in lives:
        sys.stdout.write(f"{life}\n")
        campaign.live(life)
    campaign.live(Life(()), max(ORDERS - len(scene.said.taken), 1))
    claims = scene.come_to_rest().check(scene.said)
    sys.stdout.write("".join(f"{claim}\n" for claim in claims))
    assert [str(claim) for claim in claims if not claim.holds] == []
    assert len(scene.said.taken) >= ORDERS
    assert campaign.struck == Counter("/".join(strike[:3]) for life in lives for strike in life.strikes)
    kills = Counter(strike.partition("/")[0] for strike in campaign.struck.elements()) + campaign.sudden
    sys.stdout.write(f"kills: {dict(kills)}\n")
    assert not FULL or min(kills[victim] for victim in VICTIMS) >= LEAST_KILLS


@pytest.mark.crash
def test_a_careless_manager_is_found_out(scene: Scene) -> None:
    """The ring itself: without a decision log, a service that is killed between its commits tears orders apart."""
    campaign = Campaign(scene, random.Random(1), careless=True)
    campaign.live(Life((Strike("service", "committed", "ledger", 1),)))
    campaign.live(Life(()), 1)
    campaign.live(Life(()), 0)
    assert rows(scene.place)["taken"] != messages(scene.place)
