"""A message that is put off is given to nobody before, and one that has expired to nobody any more: it moves."""

from __future__ import annotations

from typing import Any, ClassVar

from sim import doors
from sim.crashes import Over
from sim.model import Known, Model, Rules
from sim.opened import id_of
from sim.rules.core import end, then
from sim.rules.retries import MOST, is_exhausted, move_some
from sim.world import SECOND_US, World

PUT_OFF_S, EXPIRES_S = (0, 0, 0, 12), (None, None, 8, 30)
HURRIES_S = 3, 3, 60


class Delays(Rules):
    toml = (("queues.work", 'expiry_queue = "late"'), ("queues.late", ""), ("queues.brief", ""))
    puts = ("brief",)
    weights: ClassVar = {"clean": 3, "hurry": 5}

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

    def hurry(self, world: World) -> None:
        """A message that expires soon, with the id of one that has gone so, where there is one: the later one is it."""
        gone, expires_at = self._gone(world), world.model.now_us + world.dice.choice(HURRIES_S) * SECOND_US
        world.numbers += not gone
        own = gone or world.numbers
        number, body, message_id = world.at_work(), world.body(own), id_of(own)
        manager = world.seat(number)

        def effect(model: Model) -> None:
            model.branches[number].adds.append(Known(own, "brief", {"expires_at": expires_at}))

        world.attempt(
            lambda: manager.enqueue("brief", body, message_id=message_id, expires_at=expires_at), effect, number
        )
        if not gone:
            then(world, number)
        else:
            end(world, number, "commit")
            world.look()

    def _gone(self, world: World) -> int:
        """The number of a message that has expired, and has left the space by now; 0: there is none."""
        over = [one for one in world.model.queue("brief") if is_over(world.model, one)]
        gone = [one.number for one in over if one not in world.model.held()]
        if not gone or world.dice.random() < 0.3:
            return 0
        self.clean(world)
        number = world.dice.choice(gone)
        world.model.known = [one for one in world.model.known if (one.queue, one.number) != ("brief", number)]
        return number


def is_over(model: Model, one: Known) -> bool:
    ends_us = one.options.get("expires_at")
    return ends_us is not None and ends_us <= model.now_us
