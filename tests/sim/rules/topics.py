"""What is published is in all queues that want it just then, or in none; what is added to several is in all of them."""

from __future__ import annotations

from typing import ClassVar

from sim import doors
from sim.model import Rules
from sim.rules.core import add, drawn_options, then
from sim.world import World

WANTED = {"hot": "hot*", "any": "*"}


class Topics(Rules):
    weights: ClassVar = {"publish": 4, "several": 2, "subscribe": 1}

    def __init__(self) -> None:
        self.work = "hot"

    @property
    def toml(self) -> tuple[tuple[str, str], ...]:  # type: ignore[override]
        match = f'topic = "news"\nmatch = {{kind = "{WANTED[self.work]}"}}'
        return ("queues.work", match), ("queues.other", 'topic = "news"'), ("topics.news", "")

    def publish(self, world: World) -> None:
        kind = world.dice.choice(("hot", "hotter", "cold"))
        wants = self.work == "any" or kind != "cold"
        options = drawn_options(world, "work") | {"headers": {"kind": kind}}
        number = world.at_work()
        add(world, number, ("other", "work") if wants else ("other",), options, "publish", "news")
        then(world, number)

    def several(self, world: World) -> None:
        number = world.at_work()
        add(world, number, ("other", "work"), drawn_options(world, "work"), "enqueue_to", ["other", "work"])
        then(world, number)

    def subscribe(self, world: World) -> None:
        self.work = world.dice.choice(list(WANTED))
        doors.redefine(world.space, world.defined)
