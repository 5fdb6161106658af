"""One world: a disk that forgets, a clock, sessions in the space's process and over a wire; and the model of it all.

A run is a seed and the numbers of its steps. Each step has dice of its own, and so has each feature, and each verb
when the next one is drawn: a run of fewer steps is drawn as before, which is how a failure gets short, and so are most
steps where a feature comes or goes. What may go wrong is drawn with the step: the power goes, or the process, at a call
within it or behind it; a sync fails; the disk is full; a request or an answer gets lost.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from sim import doors
from sim.crashes import Crashes, Over
from sim.model import ACTIVE, Branch, Rules
from sim.opened import Seat, dice
from xaqueue.xid import Xid

STEPS = 60
SECOND_US = 1_000_000
LOOKS = 0.15
"""In so many steps it is looked at what a loss of power would leave behind them."""


def xid_of(number: int) -> Xid:
    return Xid(1, b"%d" % number, b"")


@dataclass
class World(Crashes):
    numbers: int = 0
    monotonic_s: float = 1000.0
    around: dict[str, Any] = field(default_factory=dict)
    """What rules have beside the space, and no crash of it takes."""
    rows: list[bytes] = field(default_factory=list)
    """What a database has, which is asked whenever the space is opened."""

    def monotonic(self) -> float:
        return self.monotonic_s

    # What verbs use

    def pick(self, *states: str) -> int:
        """A branch in one of these states. Raises Over where there is none."""
        found, self.server.lose = self.model.among(*states), self.lose
        if not found:
            raise Over
        return self.dice.choice(found)

    def at_work(self) -> int:
        """A branch that is active: one of three, or a new one."""
        found, pick = self.model.among(ACTIVE), self.dice.randrange(3)
        if pick < len(found):
            self.server.lose = self.lose
            return found[pick]
        self.numbers += 1
        number, is_near = self.numbers, self.dice.random() < 0.5
        self.server.lose = None
        seat = Seat(doors.session(self.space) if is_near else self.server.connect(), is_near)
        self.server.lose = self.lose
        self._begin(number, seat, Branch(xid=xid_of(number)))
        return number

    def next_xid(self) -> Xid:
        """Of the branch that begins next."""
        return xid_of(self.numbers + 1)

    def begin(self, branch: Branch) -> int:
        """With a session of its own, here."""
        self.numbers += 1
        self._begin(self.numbers, Seat(doors.session(self.space), True), branch)
        return self.numbers

    def _begin(self, number: int, seat: Seat, branch: Branch) -> None:
        seat.manager.start(branch.xid)
        self.seats[number], self.model.branches[number] = seat, branch

    # Steps

    def step(self, at: int) -> None:
        rules, name = self._drawn(at)
        self.dice = dice(self.seed, at)
        before = {(one.queue, one.number): one.tries for one in self.model.known}
        self._arm()
        self.perform(rules, name)
        self._disarm(before)
        self.check()
        if self.dice.random() < LOOKS:
            self.look()

    def perform(self, rules: Rules, name: str) -> None:
        self.trace.append(f"{name}{f', {self.fault}' if self.fault else ''}")
        with suppress(Over):
            getattr(self.model.of(type(rules)), name)(self)

    def _drawn(self, at: int) -> tuple[Rules, str]:
        """The verb of this step: the likelier a verb, the earlier its turn comes, by dice of its own."""
        turns = {
            (each, name): dice(self.seed, at, type(each).__name__, name).expovariate(weight)
            for each in self.model.rules
            for name, weight in each.weights.items()
        }
        return min(turns, key=turns.__getitem__)
