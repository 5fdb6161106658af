"""A snapshot, whenever it is taken, is the space at that moment, and a restore puts that in its place, whole, whoever
dies: what came between is gone, and what came back goes on.
"""

from __future__ import annotations

from copy import deepcopy
from typing import ClassVar

from sim import doors
from sim.model import CAME_BACK, IN_DOUBT, Model, Rules
from sim.rules.carry import Carry
from sim.rules.counts import Counts
from sim.rules.managed import Managed
from sim.world import Over, World
from support.forgetful import ForgetfulFileSystem
from xaqueue.errors import OperationalError


class Restores(Rules):
    share = 0.3
    excludes = (Carry, Managed)
    """What a database has of a transaction goes back with no space."""
    weights: ClassVar = {"take_snapshot": 4, "restore": 2}

    def __init__(self) -> None:
        self.taken: tuple[int, ...] = ()
        """Snapshots that are there for sure."""
        self.marks = dict[str, int]()
        """What has these numbers, or lower ones, came back."""

    def shows(self, world: World) -> bool:
        """No snapshot is lost, and who gets what came back is told so."""
        there = doors.snapshots(world.fs)
        session = doors.session(world.space)
        queues = self.marks.keys() & set(world.model.queues())
        marked = [one for queue in queues for one in session.browse(queue) if one.seq <= self.marks[queue]]
        return there.issuperset(self.taken) and all(one.possible_duplicate for one in marked)

    def take_snapshot(self, world: World) -> None:
        """What a branch of a batch has come to by then is told by the batch alone."""
        if any(branch.is_of_batch for branch in world.model.branches.values()):
            raise Over
        there = doors.snapshots(world.fs)
        number = max(there, default=0) + 1
        left = deepcopy(world.model)
        left.of(Restores).taken = ()
        world.around.setdefault("snapshots", {})[number] = left

        def perform() -> int:
            try:
                return doors.take_snapshot(world.space)
            except OperationalError:  # the space goes on without it
                if not world.fs.failed:
                    raise
                return 0

        if world.attempt(perform):
            assert not doors.damage(world.fs, number)
            world.model.of(Restores).taken += (number,)
            world.look()

    def restore(self, world: World) -> None:
        """All that was committed then is there, and nothing else; what was in doubt is an operator's."""
        there = sorted(doors.snapshots(world.fs))
        if not there:
            raise Over
        number = world.dice.choice(there)
        model = came_back(world.around["snapshots"][number], world.model)

        def perform(fs: ForgetfulFileSystem) -> None:
            doors.restore(fs, number, model.now_us)

        world.replace(perform, model)
        world.look()


def came_back(then: Model, now: Model) -> Model:
    """As it was then; the clock, and the numbers, go on."""
    model = then.after("cut")
    model.now_us, model.highest = now.now_us, dict(now.highest)
    for branch in model.branches.values():
        if branch.state == IN_DOUBT:
            branch.state = CAME_BACK
    mine = model.of(Restores)
    mine.taken = now.of(Restores).taken
    mine.marks = {queue: max((one.seq for one in model.queue(queue)), default=0) for queue in model.queues()}
    if model.has(Counts):  # where then nothing was counted yet, what was since stays
        model.of(Counts).most = now.of(Counts).most
    return model
