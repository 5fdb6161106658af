"""What is older than its queue allows is given to nobody, whenever it was added, prepared or opened again."""

from __future__ import annotations

from typing import ClassVar

from sim import doors
from sim.crashes import Over
from sim.model import Branch, Known, Model, Rules
from sim.opened import id_of
from sim.rules.carry import Carry
from sim.rules.delays import Delays
from sim.world import SECOND_US, World
from xaqueue.core.owner.chores import Chores
from xaqueue.features.ages.chores import Expire

LIMITS_S = (20, 12, 5)


class Turn(Chores):
    """In which there is time for all."""

    def __init__(self) -> None:
        pass

    def is_over(self) -> bool:
        return False


class Ages(Rules):
    share = 0.3
    excludes = (Carry,)
    """What a database carries is committed when the space has it itself, which may be again behind a crash."""
    keeps_times = True
    """They say when a message was committed."""
    puts = ("aged",)
    weights: ClassVar = {"clean": 4, "lower": 1, "age": 6}

    def __init__(self) -> None:
        self.limit_s, self.since_us = LIMITS_S[0], dict[int, int]()

    @property
    def toml(self) -> tuple[tuple[str, str], ...]:  # type: ignore[override]
        return (("queues.aged", f"max_age_s = {self.limit_s}"),)

    def is_over(self, model: Model, one: Known) -> bool:
        return one.queue == "aged" and self.since_us[one.number] + self.limit_s * SECOND_US <= model.now_us

    def floor_us(self, model: Model) -> int:
        """Behind a clock that is put back all may be too old later than it should, and what has left may come back."""
        return model.now_us

    def stays(self, model: Model, one: Known) -> bool:
        return not self.is_over(model, one)

    def is_shown(self, model: Model, one: Known) -> bool:
        return not self.is_over(model, one)

    def committed(self, model: Model, branch: Branch) -> None:
        self.since_us |= {one.number: model.now_us for one in branch.adds if one.queue == "aged"}

    def clean(self, world: World) -> None:
        if world.model.has(Delays) or not any(self.is_over(world.model, one) for one in world.model.known):
            raise Over

        def leave() -> None:
            Expire(world.space).run(Turn())
            doors.expire(world.space)

        world.attempt(leave)
        left, held = world.space.queue("aged").index, world.model.held()
        over = [one for one in world.model.known if self.is_over(world.model, one) and one not in held]
        assert not left.has_any(id_of(one.number) for one in over)

    def age(self, world: World) -> None:
        """Until the oldest is too old, or a moment less."""
        ends = [since_us + self.limit_s * SECOND_US for since_us in self.since_us.values()]
        until_us = min((one for one in ends if one > world.model.now_us), default=world.model.now_us)
        world.model.now_us = max(world.model.now_us, until_us - world.dice.choice((0, 0, 1)))

    def lower(self, world: World) -> None:
        self.limit_s = LIMITS_S[min(LIMITS_S.index(self.limit_s) + 1, len(LIMITS_S) - 1)]
        doors.redefine(world.space, world.defined)
