"""A delivery that failed is put off; behind its tries a message moves to the failure queue, once, and may come back."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import permutations
from typing import Any, ClassVar

from sim import doors
from sim.crashes import Effect, Over
from sim.model import Known, Model, Rules
from sim.opened import id_of
from sim.rules.core import refuse
from sim.rules.limits import Limits
from sim.world import SECOND_US, World
from xaqueue.errors import RetryLater

TRIES, DELAY_S = 2, 5
MOST = 4
"""Messages that move at once: their order is anybody's."""
KEPT = ("priority", "group")


class Retries(Rules):
    toml = (
        ("queues.work", f"max_tries = {TRIES}\nretry_delay_s = {DELAY_S}\nretry_multiplier = 1\nretry_jitter = 0"),
        ("queues.work", 'failure_queue = "failed"'),
        ("queues.failed", ""),
    )
    weights: ClassVar = {"move": 4, "requeue": 2}

    def stays(self, model: Model, one: Known) -> bool:
        return one.queue != "work" or one.tries < TRIES

    def failed(self, model: Model, one: Known) -> None:
        one.due_us = model.now_us + DELAY_S * SECOND_US if one.queue == "work" else 0

    def move(self, world: World) -> None:
        """As many as the failure queue has room for."""
        model = world.model
        leaving = [one for one in model.queue("work") if one.tries >= TRIES and one not in model.held()]
        room = model.of(Limits).room(model, "failed", []) if model.has(Limits) else MOST
        if not leaving or len(leaving) > MOST:
            raise Over
        move_some(world, leaving, min(max(room, 0), len(leaving)), "failed", lambda: doors.move_exhausted(world.space))

    def requeue(self, world: World) -> None:
        free = [one for one in world.model.shown("failed") if one not in world.model.held()]
        if not free:
            raise Over
        number, one = world.at_work(), world.dice.choice(free)
        place, manager = world.model.known.index(one), world.seat(number)

        def effect(model: Model) -> None:
            branch, moved = model.branches[number], model.known[place]
            branch.takes.append(moved)
            branch.moves.append(moved)
            branch.adds.append(Known(moved.number, "work", came_back(moved.options)))

        refused = world.model.refusal(world.model.branches[number], "put", "work")
        if refused is not None:
            refuse(world, number, lambda: manager.move("failed", id_of(one.number)), refused)
        assert world.attempt(lambda: manager.move("failed", id_of(one.number)), effect, number) == id_of(one.number)


def is_exhausted(model: Model, one: Known) -> bool:
    return model.has(Retries) and not model.of(Retries).stays(model, one)


def came_back(options: dict[str, Any]) -> dict[str, Any]:
    return options | ({"expires_at": options["was"]} if options.get("was") else {})


def left(model: Model, one: Known, target: str) -> None:
    model.known.remove(one)
    kept = {name: value for name, value in one.options.items() if name in KEPT}
    model.known.append(Known(one.number, target, kept | {"was": one.options.get("expires_at")}))


def move_some(world: World, leaving: list[Known], count: int, target: str, call: Any) -> None:
    """So many of them move, in any order; as many as it came to, where a fault comes in between."""
    places = [world.model.known.index(one) for one in leaving]

    def effect(order: Sequence[int]) -> Effect:
        def move(model: Model) -> None:
            for one in [model.known[at] for at in order]:
                left(model, one, target)

        return move

    def perform() -> None:
        try:
            call()
        except RetryLater:
            if count == len(leaving):
                raise
            if world.fs.struck:  # the disk was full, and the queue is: as many as it takes move now
                world.fs.heal()
                with suppress(RetryLater):
                    call()

    whole = [effect(order) for order in permutations(places, count)]
    some = [effect(order) for size in range(count) for order in permutations(places, size)]
    world.attempt_one_of(perform, whole, some)
