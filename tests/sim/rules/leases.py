"""A message on lease is nobody else's until it is settled, once; where its lease ends before, that is a try."""

from __future__ import annotations

from typing import ClassVar

from sim import doors
from sim.crashes import Over
from sim.model import Branch, Known, Model, Rules
from sim.opened import id_of
from sim.rules.core import add, drawn_options, end
from sim.rules.retries import Retries, left
from sim.world import SECOND_US, World
from xaqueue.delivery import LONGEST_S, Detail
from xaqueue.errors import LeaseExpired

PUT_OFF_S = 20


class Leases(Rules):
    weights: ClassVar = {"receive": 5, "settle": 3, "accept": 1, "end_lease": 1}

    def __init__(self) -> None:
        self.held: dict[bytes, Known] = {}
        """By its lease."""

    def crashed(self, model: Model, way: str) -> None:
        for one in self.held.values():
            model.fail(one)
        self.held.clear()

    def receive(self, world: World) -> None:
        if world.model.next("work", []) is None:
            number = world.at_work()
            add(world, number, ("work",), drawn_options(world, "work"))
            end(world, number, "commit")
        wanted = world.model.next("work", [])
        place = None if wanted is None else world.model.known.index(wanted)

        def given(model: Model) -> None:
            """Cut off behind that, or taken over, it was given to somebody who never had an answer: that is a try."""
            model.of(Leases).held[b""] = model.known[place or 0]

        session = doors.session(world.space)
        partly = [] if place is None else [given]
        found = world.attempt(lambda: session.receive("work", 1, LONGEST_S), lambda _: None, None, partly)
        assert [(one.message_id, one.tries) for _, one in found] == (
            [] if wanted is None else [(id_of(wanted.number), wanted.tries)]
        )
        for lease, _ in found if place is not None else ():
            world.model.of(Leases).held[lease] = world.model.known[place or 0]
        if found and world.dice.random() < 0.7:  # few are held for long: each crash ends all
            getattr(self, world.dice.choice(("settle", "settle", "accept", "end_lease")))(world)

    def settle(self, world: World) -> None:
        lease, how = self._any(world), world.dice.choice(("ack", "nack", "reject"))
        if how == "reject" and (not world.model.has(Retries) or world.model.refusal(Branch(), "put", "failed")):
            how = "ack"
        details: dict[str, Detail] = {"nack": PUT_OFF_S * SECOND_US, "reject": "no such customer"}

        def effect(model: Model) -> None:
            one = model.of(Leases).held.pop(lease)
            if how == "nack":
                one.due_us = model.now_us + PUT_OFF_S * SECOND_US
            elif how == "ack":
                model.known.remove(one)
            else:
                left(model, one, "failed")

        world.attempt(lambda: doors.session(world.space).settle("work", lease, how, details.get(how)), effect)

    def accept(self, world: World) -> None:
        lease, number = self._any(world), world.at_work()

        def effect(model: Model) -> None:
            model.branches[number].takes.append(model.of(Leases).held.pop(lease))

        world.attempt(lambda: world.seat(number).accept("work", lease), effect, number)

    def end_lease(self, world: World) -> None:
        lease, session = self._any(world), doors.session(world.space)

        def perform() -> None:
            session.extend("work", lease, 1.0)
            assert doors.end_leases(world.space, world.monotonic_s + 2) == 1

        def effect(model: Model) -> None:
            model.fail(model.of(Leases).held.pop(lease))

        world.attempt(perform, effect)
        try:
            session.settle("work", lease, "ack")
        except LeaseExpired:
            return
        raise AssertionError("a lease that is over was settled")

    def _any(self, world: World) -> bytes:
        held = world.model.of(Leases).held
        if not held:
            raise Over
        return world.dice.choice(list(held))
