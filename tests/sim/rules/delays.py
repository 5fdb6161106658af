"""A message that is put off is given to nobody before, and one that has expired to nobody any more: it moves."""

from __future__ import annotations

from typing import Any, ClassVar

from sim import doors
from sim.model import Known, Model, Rules
from sim.rules.retries import MOST, is_exhausted, move_some
from sim.world import SECOND_US, Over, World

PUT_OFF_S, EXPIRES_S = (0, 0, 0, 12), (None, None, 8, 30)


class Delays(Rules):
    toml = (("queues.work", 'expiry_queue = "late"'), ("queues.late", ""))
    weights: ClassVar = {"clean": 3}

    def __init__(self) -> None:
        self.last_us = 0
        """When the last one of those that are gone has expired."""

    def floor_us(self, model: Model) -> int:
        """What has expired, and was removed, may come back with the power, as long as nobody sees it."""
        over = [one.options["expires_at"] for one in model.known if is_over(model, one)]
        self.last_us = max(self.last_us, *over, 0)
        return self.last_us

    def options(self, world: World) -> dict[str, Any]:
        now_us, off_s, left_s = world.model.now_us, world.dice.choice(PUT_OFF_S), world.dice.choice(EXPIRES_S)
        return {
            "not_before": now_us + off_s * SECOND_US if off_s else None,
            "expires_at": now_us + left_s * SECOND_US if left_s else None,
        }

    def stays(self, model: Model, one: Known) -> bool:
        return not is_over(model, one)

    def is_shown(self, model: Model, one: Known) -> bool:
        return not is_over(model, one)

    def clean(self, world: World) -> None:
        model = world.model
        self.floor_us(model)
        over = [one for one in model.known if is_over(model, one) and one not in model.held()]
        leaving = [one for one in over if one.queue == "work" and not is_exhausted(model, one)]
        if not over or len(leaving) > MOST:
            raise Over
        move_some(world, leaving, len(leaving), "late", lambda: doors.expire(world.space))


def is_over(model: Model, one: Known) -> bool:
    ends_us = one.options.get("expires_at")
    return ends_us is not None and ends_us <= model.now_us
