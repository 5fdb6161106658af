"""A replica, whenever it takes its source's place, is the space as of a moment: all that it has acknowledged, in the
order of its commits, and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from sim import doors, replica
from sim.crashes import Over
from sim.model import CAME_BACK, IN_DOUBT, Model, Rules
from sim.replica import Replica
from sim.rules.carry import Carry
from sim.rules.core import in_the_background
from sim.rules.managed import Managed
from sim.rules.moments import Moments
from sim.rules.restores import Restores, are_marked, marks_of
from sim.rules.takeovers import Takeovers
from sim.world import World
from support.crash_level import Level
from support.failing_disk import FailingFileSystem
from support.forgetful import Crashed, ForgetfulFileSystem
from xaqueue.errors import OperationalError


class Replicas(Rules):
    toml = (("replication", 'acknowledge = "local"'), ("replication", "keep_mib = 0.005"))
    share = 0.2
    excludes = (Carry, Managed, Restores, Moments, Takeovers)
    """What a database has of a transaction goes back with no space."""
    weights: ClassVar = {"replicate": 8, "end_replica": 2, "promote": 2, "prune": 1}

    def __init__(self) -> None:
        self.marks = dict[str, int]()
        """What has these numbers, or lower ones, may have been delivered by the former space."""

    def holds_at(self, level: Level) -> bool:
        return bool(level.hardening.journal)

    def shows(self, world: World) -> bool:
        return are_marked(world, self.marks)

    def attempted(self, world: World, allowed: Sequence[Model]) -> None:
        found: Replica | None = world.around.get("replica")
        if found is not None:
            found.note(world.space, world.model, allowed)

    def replicate(self, world: World) -> None:
        """A few pieces, or all there is; the replica may crash at any call, and go on behind that."""
        there: Replica = world.around.setdefault("replica", Replica(FailingFileSystem()))
        turns, server = world.dice.choice((3, 8, 1000)), world.server
        server.lose = world.lose
        if world.dice.random() < 0.15:
            there.fs.crash_after = there.fs.calls + world.dice.randrange(world.dice.choice((10, 80)))

        def perform() -> None:
            try:
                there.take(server, turns, world.dice, world.model.now_us)
            except Crashed:
                if not there.fs.crashed:
                    raise
            except OperationalError:  # its source goes on without the snapshot
                if not world.fs.failed:
                    raise

        try:
            world.attempt(perform)
        finally:
            there.fs.crash_after = None
            if there.fs.crashed:
                world.trace.append("  the replica has crashed")
                end(world, there)

    def end_replica(self, world: World) -> None:
        end(world, found(world))

    def promote(self, world: World) -> None:
        """Its source ends, however; what it had shipped is there."""
        there = found(world)
        if not there.is_one or any(branch.is_of_batch for branch in world.model.branches.values()):
            raise Over
        self.attempted(world, [world.model])
        if world.dice.random() < 0.5:
            end(world, there)
        now, wanted, way = world.model, list[Model](), world.way

        def perform(fs: ForgetfulFileSystem) -> None:
            replica.take_place(fs, now.now_us, world.defined)
            epoch, place = replica.promoted_at(fs)
            assert place >= there.acknowledged
            world.epoch = epoch - 1
            wanted[:] = [promoted(model, now) for model in there.at(place)]

        world.around.pop("replica")
        world.fs, world.way = there.fs, way
        world.replace(perform, wanted, lambda _: True, is_closed=False)
        for queue, seq in now.highest.items():
            world.model.highest[queue] = max(world.model.highest.get(queue, 0), seq)
        world.look()

    def prune(self, world: World) -> None:
        """Of what is kept of the journal that goes which no replica may want."""
        world.attempt(lambda: in_the_background(world, replica.prune))


def found(world: World) -> Replica:
    there: Replica | None = world.around.get("replica")
    if there is None:
        raise Over
    return there


def end(world: World, there: Replica) -> None:
    """Its process ends, and perhaps the power goes."""
    there.follower = None
    there.fs.survive_kill()
    if world.dice.random() < 0.5:
        trees = [*there.fs.some_trees_after_crash(1, world.dice), there.fs.tree_by_chance(world.dice)]
        there.fs = doors.disk(world.dice.choice(trees), keeps_times=True)


def promoted(then: Model, now: Model) -> Model:
    """As it was then; the clock goes on, and what was in doubt is an operator's."""
    model = then.after("cut")
    model.now_us = now.now_us
    for branch in model.branches.values():
        if branch.state == IN_DOUBT:
            branch.state = CAME_BACK
    model.of(Replicas).marks = marks_of(then)
    return model
