"""A replica, whenever it takes its source's place, is the space as of a moment: all that it has acknowledged, in the
order of its commits, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar
from unittest import mock

from sim import doors, replica
from sim.crashes import Over
from sim.model import CAME_BACK, IN_DOUBT, Model, Rules
from sim.replica import Near, Replica, Turning
from sim.rules.carry import Carry
from sim.rules.core import in_the_background
from sim.rules.counts import Counts
from sim.rules.managed import Managed
from sim.rules.moments import Moments
from sim.rules.restores import Restores, are_marked, marks_of
from sim.rules.streams import Streams
from sim.rules.takeovers import Takeovers
from sim.world import World
from support.crash_level import Level
from support.failing_disk import FailingFileSystem
from support.forgetful import Crashed, ForgetfulFileSystem
from xaqueue.core.engine.state import Space
from xaqueue.errors import ConnectionLost, OperationalError


class Replicas(Rules):
    toml = (("replication", "keep_mib = 0.005"),)
    share = 0.2
    excludes = (Carry, Managed, Restores, Moments, Takeovers)
    """What a database has of a transaction goes back with no space."""
    weights: ClassVar = {"replicate": 8, "end_replica": 2, "promote": 2, "lose_source": 2, "prune": 1}

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
        frighten(world, there, 0.15)

        def perform() -> None:
            try:
                there.take(world.space, server.connect, turns, world.dice, world.model.now_us)
            except Crashed:
                if not there.fs.crashed:
                    raise
            except ConnectionLost:
                if server.lost:
                    raise
            except OperationalError:  # its source goes on without the snapshot
                if not world.fs.failed:
                    raise

        try:
            world.attempt(perform)
        finally:
            calm(world, there)

    def end_replica(self, world: World) -> None:
        there = found(world)
        there.is_away = True
        end(world, there)

    def promote(self, world: World) -> None:
        """Its source ends, however; what it had shipped is there."""
        there = whole(world)
        self.attempted(world, [world.model])
        if world.dice.random() < 0.5:
            end(world, there)
            whole(world)  # not where the copy that had just been made was not on disk yet
        take_place(world, there, [world.model])

    def lose_source(self, world: World) -> None:
        """It ends at any call of any verb of the others."""
        there, fs, space = whole(world), world.fs, world.space
        left = world.dice.randrange(world.dice.choice((6, 20, 60)))
        verbs = [
            (each, name)
            for each in world.model.rules
            for name in each.weights
            if name not in ("promote", "lose_source", "end_replica")
        ]
        rules, name = world.dice.choices(verbs, [each.weights[name] for each, name in verbs])[0]
        fs.heal()
        world.fault, world.fuse, world.lose, fs.fail_after = "", None, None, None

        def until_it_ends(call: Callable[[], Any], allowed: Sequence[Model]) -> Any:
            nonlocal left
            if world.space is not space:
                return call()
            before = fs.calls
            fs.crash_after = fs.calls + left
            try:
                found = call()
            except BaseException:
                if not fs.crashed:
                    raise
                world.trace.append("  its source ends")
                take_place(world, there, allowed)
                raise Over from None
            left, fs.crash_after = left - (fs.calls - before), None
            return found

        with mock.patch.object(world, "wrapped", until_it_ends):
            world.perform(rules, name)

    def prune(self, world: World) -> None:
        """Of what is kept of the journal that goes which no replica may want."""
        world.attempt(lambda: in_the_background(world, replica.prune))


class Waits(Rules):
    """Nothing is acknowledged that the replica does not have. Without one for too long the space is fenced, and waits
    for it when it is opened again."""

    toml = (("replication", 'acknowledge = "replica"'),)
    share = 0.1
    needs = (Replicas,)

    def waiting(self, world: World) -> Turning:
        turning = Turning(partial(take_turn, world, is_look=world.is_looking))
        world.around["turning"] = turning
        return turning

    def begun(self, world: World, space: Space) -> None:
        world.around["turning"].space = space


def take_turn(world: World, space: Space, limit_s: float, *, is_look: bool) -> None:
    """Of the replica, while its source waits for it; where it is away, the time goes by."""
    shipping = replica.shipping_of(space)
    if is_look:
        shipping.next(*shipping.end, 0, 0.0)
        return
    there: Replica = world.around.setdefault("replica", Replica(FailingFileSystem()))
    is_opening = bool(shipping.refusal)
    there.is_away = there.is_away and not is_opening
    frighten(world, there, 0.02)
    try:
        if not there.is_away and (is_opening or there.is_one):
            there.take(space, lambda hello: Near(space, may_copy=is_opening), 1000, world.dice, world.model.now_us)
    except Crashed:
        if not there.fs.crashed:
            raise
    except ConnectionLost:
        there.is_away = True
    finally:
        calm(world, there)
    if limit_s and not is_opening:
        world.monotonic_s += limit_s
        world.fs.failed = world.fs.failed or shipping._has < shipping.end


def frighten(world: World, there: Replica, chance: float) -> None:
    """By chance it crashes at one of its next calls."""
    if world.dice.random() < chance:
        there.fs.crash_after = there.fs.calls + world.dice.randrange(world.dice.choice((10, 80)))


def calm(world: World, there: Replica) -> None:
    there.fs.crash_after = None
    if there.fs.crashed:
        world.trace.append("  the replica has crashed")
        end(world, there)


def whole(world: World) -> Replica:
    """Raises Over where no replica is one that may be promoted. What a branch of a batch comes to, its batch alone
    tells."""
    there = found(world)
    if not there.is_one or any(one.is_of_batch for model in there.later() for one in model.branches.values()):
        raise Over
    return there


def take_place(world: World, there: Replica, allowed: Sequence[Model]) -> None:
    """Of its source, which may have come to one of these, of which it has all that was acknowledged."""
    now, wanted, way = world.model, list[Model](), world.way
    before = list[int]()

    def perform(fs: ForgetfulFileSystem) -> None:
        copied = replica.copied_at(fs)
        if copied is not None and now.has(Streams):
            before.extend(one for model in there.at(copied) for one in model.of(Streams).archived)
        replica.take_place(fs, now.now_us, world.defined)
        epoch, place = replica.promoted_at(fs)
        assert place >= there.acknowledged
        world.epoch = epoch - 1
        wanted[:] = [promoted(model, now, before) for model in (allowed if now.has(Waits) else there.at(place))]

    world.around.pop("replica")
    world.fs, world.way = there.fs, way
    world.replace(perform, wanted, lambda _: True, is_closed=False)
    for queue, seq in now.highest.items():
        world.model.highest[queue] = max(world.model.highest.get(queue, 0), seq)
    world.look()


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


def promoted(then: Model, now: Model, before: list[int]) -> Model:
    """As it was then; the clock goes on, and what was in doubt is an operator's, unless it is known to be so still.
    before: what was archived when the replica began, which it has no copy of."""
    model = then.after("cut")
    model.now_us = now.now_us
    if model.has(Counts):
        model.of(Counts).least = (0, 0)  # it has those of its copy
    if model.has(Streams):
        model.of(Streams).archived = [one for one in model.of(Streams).archived if one not in before]
    if not model.has(Waits):
        for branch in model.branches.values():
            if branch.state == IN_DOUBT:
                branch.state = CAME_BACK
        model.of(Replicas).marks = marks_of(then)
    return model
