"""What a stream has consumed never comes back, and nobody else takes from its queue until that is released."""

from __future__ import annotations

from typing import ClassVar

from sim import doors
from sim.crashes import Over
from sim.model import Branch, Model, Rules
from sim.opened import number_of
from sim.rules.core import in_the_background
from sim.world import World
from xaqueue.core.model import layout
from xaqueue.errors import QueueReserved


class Streams(Rules):
    toml = (("queues.feed", ""),)
    puts = ("feed", "feed")
    weights: ClassVar = {"reserve": 3, "consume": 4, "release": 1, "clear": 3}

    def __init__(self) -> None:
        self.archived: list[int] = []
        """Messages that were to be kept."""
        self.taken: list[int] = []
        """Messages that sessions took."""
        self.stream = ""
        """That has the queue."""

    def refuses(self, model: Model, branch: Branch, verb: str, queue: str) -> type[Exception] | None:
        return QueueReserved if verb == "take" and queue == "feed" and self.stream else None

    def opened(self, world: World) -> None:
        kept = set(map(number_of, doors.files(world.fs, "feed", layout.ARCHIVE)))
        there = set(map(number_of, doors.files(world.fs, "feed", layout.COMMITTED)))
        assert set(self.archived) <= kept | there, "what was to be kept is gone"
        lost = set(self.taken).difference(self.archived, (one.number for one in world.model.queue("feed")))
        assert not kept & lost, "what somebody else took is kept"

    def committed(self, model: Model, branch: Branch) -> None:
        self.taken += [one.number for one in branch.takes if one.queue == "feed"]

    def reserve(self, world: World) -> None:
        world.numbers += 1
        name, session = self.stream or f"query#{world.numbers}", doors.session(world.space)

        def effect(model: Model) -> None:
            model.of(Streams).stream = name

        def perform() -> None:
            session.reserve("feed", name, 0, 0)

        if any(one.queue == "feed" for one in world.model.held()):
            try:
                perform()
            except QueueReserved:
                return
            raise AssertionError("a queue was reserved that branches have messages of")
        world.attempt(perform, effect)
        try:
            session.reserve("feed", "another#1", 0, 0)
        except QueueReserved:
            return
        raise AssertionError("a queue was reserved twice")

    def consume(self, world: World) -> None:
        archives, session = world.dice.random() < 0.4, doors.session(world.space)
        if not self.stream or not world.model.queue("feed"):
            raise Over
        world.attempt(session.harden)
        world.adopt()
        there, stream = world.model.queue("feed"), world.model.of(Streams).stream
        upto = world.dice.choice(there).seq

        def effect(model: Model) -> None:
            mine = model.of(Streams)
            mine.archived = mine.archived + [one.number for one in there if one.seq <= upto] * archives
            model.known = [one for one in model.known if one.queue != "feed" or one.seq > upto]

        world.strike()
        world.attempt(lambda: session.consume("feed", stream, upto, archives), effect)

    def release(self, world: World) -> None:
        def effect(model: Model) -> None:
            model.of(Streams).stream = ""

        found = world.attempt(lambda: doors.session(world.space).release("feed"), effect)
        assert (found is not None) == bool(self.stream)

    def clear(self, world: World) -> None:
        world.strike()
        world.attempt(lambda: in_the_background(world, doors.clear))
        world.look()

    def shows(self, world: World) -> bool:
        found = doors.session(world.space).reservations()
        return [one.stream for one in found] == [self.stream] * bool(self.stream)
