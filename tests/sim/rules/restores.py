"""A snapshot, whenever it is taken, is the space at that moment, and a restore puts that in its place, whole, whoever
dies: what came between is gone, and what came back goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import ClassVar

from sim import doors
from sim.crashes import Over
from sim.model import CAME_BACK, DONE_BY_HAND, IN_DOUBT, UNDONE_BY_HAND, Model, Rules
from sim.rules.carry import Carry
from sim.rules.core import Core
from sim.rules.counts import Counts
from sim.rules.groups import Groups
from sim.rules.limits import Limits
from sim.rules.managed import Managed
from sim.world import SECOND_US, World
from support.forgetful import ForgetfulFileSystem
from xaqueue.errors import OperationalError

PLAIN = (Core, Groups, Limits, Counts)
"""What they know is in the messages alone."""


class Restores(Rules):
    share = 0.3
    excludes = (Carry, Managed)
    """What a database has of a transaction goes back with no space."""
    weights: ClassVar = {"take_snapshot": 4, "restore": 2}

    def __init__(self) -> None:
        self.taken: tuple[int, ...] = ()
        """Snapshots that are there for sure."""
        self.life = doors.FIRST_LIFE
        self.marks = dict[str, int]()
        """What has these numbers, or lower ones, came back."""

    def shows(self, world: World) -> bool:
        """No snapshot is lost, and who gets what came back is told so."""
        there = doors.snapshots(world.fs)
        is_same = there.issuperset(self.taken) and doors.life(world.fs) == self.life
        return is_same and are_marked(world, self.marks)

    def take_snapshot(self, world: World) -> None:
        """What a branch of a batch has come to by then is told by the batch alone."""
        if any(branch.is_of_batch for branch in world.model.branches.values()):
            raise Over
        left = deepcopy(world.model)
        left.of(Restores).taken = ()
        models = world.around.setdefault("snapshots", {})

        def perform() -> int:
            """One that had no room when it had its number by then is there, and the next try has another."""
            models[max(doors.snapshots(world.fs), default=0) + 1] = left
            try:
                return doors.take_snapshot(world.space)
            except OperationalError:  # the space goes on without it
                if not world.fs.failed:
                    raise
                return 0

        if number := world.attempt(perform):
            assert not doors.damage(world.fs, number)
            world.model.of(Restores).taken += (number,)
            world.look()

    def restore(self, world: World) -> None:
        """All that was committed then is there, and nothing else, and what was in doubt is an operator's; or beside it
        all that there was, so that only what was consumed comes back."""
        there = sorted(doors.snapshots(world.fs))
        if not there:
            raise Over
        number = world.dice.choice(there)
        then, exact = world.around["snapshots"][number], world.dice.random() < 0.4
        exact = exact or not all(isinstance(each, (Restores, *PLAIN)) for each in world.model.rules)
        model = came_back(then, world.model) if exact else came_beside(then, world.model)

        def perform(fs: ForgetfulFileSystem) -> None:
            doors.restore(fs, number, model.now_us, exact=exact)

        put_back(world, model, perform, is_closed=not exact or world.dice.random() < 0.5)


def put_back(world: World, model: Model, restore: Callable[[ForgetfulFileSystem], object], *, is_closed: bool) -> None:
    """By this, in whatever pieces: the space becomes this, and another life begins."""
    life = world.model.of(Restores).life

    def perform(fs: ForgetfulFileSystem) -> None:
        if doors.life(fs) in ("", life):  # else the one that was cut off has come to its end
            restore(fs)
        model.of(Restores).life = doors.life(fs)

    world.replace(perform, [model], lambda fs: doors.life(fs) != life, is_closed=is_closed)
    world.model.now_us += SECOND_US
    if doors.life(world.fs) != life:
        world.around.setdefault("lives", []).append(world.model.now_us)
        world.model.now_us += SECOND_US
    world.look()


def came_back(then: Model, now: Model) -> Model:
    """As it was then; the clock, and the numbers, go on."""
    model = then.after("cut")
    model.now_us, model.highest = now.now_us, dict(now.highest)
    for branch in model.branches.values():
        if branch.state == IN_DOUBT:
            branch.state = CAME_BACK
    mine = model.of(Restores)
    mine.life, mine.taken, mine.marks = now.of(Restores).life, now.of(Restores).taken, marks_of(then)
    if model.has(Counts):  # where then nothing was counted yet, what was since stays
        model.of(Counts).most = now.of(Counts).most
    return model


def came_beside(then: Model, now: Model) -> Model:
    """What was moved since is where it is now; a decision of an operator that was forgotten since is told once more."""
    model, then = now.after("cut"), then.after("cut")
    there = {(one.queue, one.seq) for one in now.known}
    before = {(one.queue, one.seq) for one in then.known}
    newer = {one.number for one in now.known if (one.queue, one.seq) not in before}
    model.known += [one for one in then.known if (one.queue, one.seq) not in there and one.number not in newer]
    model.known.sort(key=lambda one: one.seq)
    decided = {number: one for number, one in then.branches.items() if one.state in (DONE_BY_HAND, UNDONE_BY_HAND)}
    model.branches = decided | model.branches
    mine, marks = model.of(Restores), marks_of(then)
    mine.marks = {queue: max(seq, mine.marks.get(queue, 0)) for queue, seq in marks.items()}
    if model.has(Counts):
        model.of(Counts).least = then.of(Counts).least
    return model


def are_marked(world: World, marks: dict[str, int]) -> bool:
    """Who gets what has these numbers, or lower ones, is told that it may have come before."""
    session, queues = doors.session(world.space), marks.keys() & set(world.model.queues())
    marked = [one for queue in queues for one in session.browse(queue) if one.seq <= marks[queue]]
    return all(one.possible_duplicate for one in marked)


def marks_of(then: Model) -> dict[str, int]:
    return {queue: max((one.seq for one in then.queue(queue)), default=0) for queue in then.queues()}
