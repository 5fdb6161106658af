"""The service of the ledger that test_kill_ledger kills: at a named step somebody gets SIGKILL, then at the next one.

Arguments: those of ``ledger_service``; strikes in JSON, each ``[victim, step, participant, number]``
with victim ``service``, ``server`` or ``backend``; the queue space; ``two phases`` where PostgreSQL prepares, or
``row`` or ``carried``; ``careless`` or nothing. A strike is armed when orders have been taken since the one before it,
and when they are carried, where they are to be. Now and then
PostgreSQL refuses to prepare, or to commit, so that there is something to roll back.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import ledger_service
import xaqueue
from ledger_demo import kill_a_backend
from ledger_service import manager_of, serve, take
from support.careless_manager import CarelessManager
from support.carrying import carries
from xaqueue.core.owner.record import read_owner
from xaqueue.tools.demo.stage import say

CALM = 4
"""So many orders are taken between two strikes, so that everybody has got over the last one."""
DOUBLED = 7
"""Every so many orders one is written twice, which PostgreSQL finds out at its prepare."""


class Strike(NamedTuple):
    victim: str
    step: str
    participant: str
    number: int
    """It falls when the step comes for the n-th time."""


class Fate:
    """Counts the steps of the transaction manager, and kills when it is time."""

    def __init__(self, strikes: Sequence[Strike], dsn: str, space: Path) -> None:
        self._strikes = list(strikes)
        self._dsn = dsn
        self._space = space
        self._seen = 0
        self._calm = 0
        self.is_carried: Callable[[], bool] = lambda: True
        """Whether orders are carried by now, where they are to be."""
        self._mutex = threading.Lock()

    def taken(self) -> None:
        self._calm += 1

    def on_step(self, step: str, gtrid: bytes, participant: str) -> None:
        with self._mutex:
            if not self._strikes or self._calm < CALM or not self.is_carried():
                return
            strike = self._strikes[0]
            if (strike.step, strike.participant) != (str(step), participant):
                return
            self._seen += 1
            if self._seen < strike.number:
                return
            self._strikes.pop(0)
            self._seen = self._calm = 0
            self._strike(strike)

    def _strike(self, strike: Strike) -> None:
        say("struck", "/".join((strike.victim, strike.step, strike.participant)))
        if strike.victim == "backend":
            kill_a_backend(self._dsn, lambda pids: pids[-1])
        elif strike.victim == "server":
            owner = read_owner(self._space)
            assert owner is not None
            os.kill(owner.pid, signal.SIGKILL)
        else:
            os.kill(os.getpid(), signal.SIGKILL)


def doubling(tx: Any, order: str) -> str:
    """Some orders are refused by PostgreSQL's prepare, while the queue prepares."""
    take(tx, order)
    if int(order.rpartition("-")[2]) % DOUBLED == DOUBLED - 1:
        take(tx, order)
    return order


def main(arguments: Sequence[str]) -> None:
    dsn, queue, log, life, orders, strikes, space, way, careless = arguments
    fate = Fate([Strike(*strike) for strike in json.loads(strikes)], dsn, Path(space))

    def say_and_tell(word: str, what: object) -> None:
        say(word, what)
        if word == "taken":
            fate.taken()

    ledger_service.say = say_and_tell  # type: ignore[attr-defined]
    if careless:
        xaqueue.TransactionManager = CarelessManager  # type: ignore[assignment,misc]
    how = {"two_phase": way == "two phases"} | ({} if careless else {"carry": way == "carried"})
    with manager_of(dsn, queue, log, on_step=fate.on_step, **how) as manager:
        if way == "carried":
            fate.is_carried = partial(carries, manager)
        serve(manager, life, int(orders), doubling)


if __name__ == "__main__":
    main(sys.argv[1:])
