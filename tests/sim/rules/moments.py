"""A space goes back to any moment since a snapshot: exactly what was committed by then is there."""

from __future__ import annotations

from typing import ClassVar

from sim import doors
from sim.crashes import Over
from sim.model import Model, Rules
from sim.rules.counts import Counts
from sim.rules.restores import Restores, came_back, put_back
from sim.world import SECOND_US, World
from support.crash_level import Level
from support.forgetful import ForgetfulFileSystem


class Moments(Rules):
    toml = (("snapshots", "point_in_time = true"),)
    share = 0.2
    needs = (Restores,)
    weights: ClassVar = {"note": 6, "go_back": 3}

    def holds_at(self, level: Level) -> bool:
        """Elsewhere there is no journal that is kept."""
        return bool(level.hardening.journal)

    def floor_us(self, model: Model) -> int:
        """Where the clock is set back, nobody can tell what was before a moment."""
        return model.now_us

    def note(self, world: World) -> None:
        """Nothing is done in the second that this is in the middle of, of which there is what a restore goes by."""
        model = world.model
        if not doors.snapshots(world.fs) or any(branch.is_of_batch for branch in model.branches.values()):
            raise Over
        world.around.setdefault("moments", []).append((model.now_us + SECOND_US // 2, model.copy()))
        model.now_us += SECOND_US

    def go_back(self, world: World) -> None:
        """To one since which the space had no other life than that of its newest snapshot before it; and that only
        where no disk was full: a journal that was not kept then is told of, and nothing is changed."""
        found = [(at_us, then) for at_us, then in world.around.get("moments", ()) if is_reached(world, at_us)]
        if not found:
            raise Over
        at_us, then = world.dice.choice(found)
        model = came_back(then, world.model)
        if model.has(Counts):  # they are as the snapshot has them
            model.of(Counts).least = 0, 0

        def perform(fs: ForgetfulFileSystem) -> None:
            doors.go_back(fs, at_us, model.now_us)

        put_back(world, model, perform, is_closed=world.dice.random() < 0.5)


def is_reached(world: World, at_us: int) -> bool:
    """Whether the newest snapshot before it is of the same life."""
    taken = max((time_us for time_us in doors.snapshot_times(world.fs) if time_us <= at_us), default=0)
    return taken > max((time_us for time_us in world.around.get("lives", ()) if time_us <= at_us), default=0)
