"""What is older than its queue allows is given to nobody, whenever it was added, prepared or opened again."""

from __future__ import annotations

from typing import ClassVar

from sim import doors
from sim.model import Branch, Known, Model, Rules
from sim.rules.delays import Delays
from sim.world import SECOND_US, Over, World
from support.crash_level import Level
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
    puts = ("aged",)
    weights: ClassVar = {"clean": 4, "lower": 1, "age": 6}

    def __init__(self) -> None:
        self.limit_s, self.since_us, self.last_us = LIMITS_S[0], dict[int, int](), 0

    @property
    def toml(self) -> tuple[tuple[str, str], ...]:  # type: ignore[override]
        return (("queues.aged", f"max_age_s = {self.limit_s}"),)

    def holds_at(self, level: Level) -> bool:
        """Where a file is there at once: what only the journal has is young, and in this world it may stay so."""
        return not level.hardening.journal

    def is_over(self, model: Model, one: Known) -> bool:
        return one.queue == "aged" and self.since_us[one.number] + self.limit_s * SECOND_US <= model.now_us

    def floor_us(self, model: Model) -> int:
        """What has left may come back with the power, as long as nobody sees it."""
        over = [self.since_us[one.number] + self.limit_s * SECOND_US for one in model.known if self.is_over(model, one)]
        self.last_us = max(self.last_us, *over, 0)
        return self.last_us

    def stays(self, model: Model, one: Known) -> bool:
        return not self.is_over(model, one)

    def is_shown(self, model: Model, one: Known) -> bool:
        return not self.is_over(model, one)

    def committed(self, model: Model, branch: Branch) -> None:
        self.last_us = max(self.last_us, model.now_us)
        self.since_us |= {one.number: model.now_us for one in branch.adds if one.queue == "aged"}

    def clean(self, world: World) -> None:
        if world.model.has(Delays) or not any(self.is_over(world.model, one) for one in world.model.known):
            raise Over
        self.floor_us(world.model)

        def leave() -> None:
            Expire(world.space).run(Turn())
            doors.expire(world.space)

        world.attempt(leave)
        found = doors.files(world.fs, "aged") if not world.fs.crashed else ()
        held = {id(one) for one in world.model.held()}
        gone = {one.number for one in world.model.known if self.is_over(world.model, one) and id(one) not in held}
        assert not gone & {int.from_bytes(message_id, "big") for message_id in found}

    def age(self, world: World) -> None:
        """Until the oldest is too old, or a moment less."""
        ends = [since_us + self.limit_s * SECOND_US for since_us in self.since_us.values()]
        until_us = min((one for one in ends if one > world.model.now_us), default=world.model.now_us)
        world.model.now_us = max(world.model.now_us, until_us - world.dice.choice((0, 0, 1)))

    def lower(self, world: World) -> None:
        self.floor_us(world.model)
        self.limit_s = LIMITS_S[min(LIMITS_S.index(self.limit_s) + 1, len(LIMITS_S) - 1)]
        doors.redefine(world.space, world.defined)
