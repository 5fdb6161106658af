"""What was counted, and written, is counted after any crash: no counter goes back, and none counts twice."""

from __future__ import annotations

from typing import ClassVar

from sim import doors
from sim.model import Branch, Model, Rules
from sim.world import World


class Counts(Rules):
    weights: ClassVar = {"write": 4}

    def __init__(self) -> None:
        self.least: tuple[int, ...] = (0, 0)
        """What was written last: of ``plain``, how many came and went."""
        self.most: tuple[int, ...] = (0, 0)
        """How many did."""

    def committed(self, model: Model, branch: Branch) -> None:
        came = sum(one.queue == "plain" for one in branch.adds)
        went = sum(one.queue == "plain" and one not in branch.moves for one in branch.takes)
        self.most = self.most[0] + came, self.most[1] + went

    def write(self, world: World) -> None:
        """A disk that fails, or is full, leaves it unwritten, and nobody is told."""
        found = doors.counted(world.space, "plain")
        world.attempt(lambda: doors.write_counters(world.space))
        if not world.fs.struck and not world.fs.failed:
            world.model.of(Counts).least = found

    def shows(self, world: World) -> bool:
        found = zip(self.least, doors.counted(world.space, "plain"), self.most, strict=True)
        return all(least <= now <= most for least, now, most in found)
