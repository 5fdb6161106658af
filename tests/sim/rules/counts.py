"""What was counted, and written, is counted after any crash: no counter goes back behind that."""

from __future__ import annotations

from typing import ClassVar

from sim import doors
from sim.model import Rules
from sim.world import World


class Counts(Rules):
    weights: ClassVar = {"write": 4}

    def __init__(self) -> None:
        self.least: tuple[int, ...] = (0, 0)
        """What was written last: of ``plain``, how many came and went."""

    def write(self, world: World) -> None:
        """A disk that fails, or is full, leaves it unwritten, and nobody is told."""
        found = doors.counted(world.space, "plain")
        world.attempt(lambda: doors.write_counters(world.space))
        if not world.fs.struck and not world.fs.failed:
            world.model.of(Counts).least = found

    def shows(self, world: World) -> bool:
        found = doors.counted(world.space, "plain")
        return all(now >= least for now, least in zip(found, self.least, strict=True))
