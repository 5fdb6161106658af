"""A queue's definition is taken away where the queue is empty, and given back: no number of it is used twice."""

from __future__ import annotations

from typing import ClassVar

from sim import doors
from sim.model import Branch, Model, Rules
from sim.rules.core import add, end, take, then
from sim.world import World
from xaqueue.errors import QueueWaiting, RetryLater, UnknownQueue


class Undefine(Rules):
    weights: ClassVar = {"change": 4, "visit": 6, "leave_it": 4}
    is_prompt = True

    def __init__(self) -> None:
        self.is_defined = True

    @property
    def toml(self) -> tuple[tuple[str, str], ...]:  # type: ignore[override]
        return (("queues.passing", ""),) if self.is_defined else ()

    @property
    def puts(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("passing",) if self.is_defined else ()

    def refuses(self, model: Model, branch: Branch, verb: str, queue: str) -> type[Exception] | None:
        return UnknownQueue if queue == "passing" and not self.is_defined else None

    def visit(self, world: World) -> None:
        """A message is put, whether or not there is the queue."""
        number = world.at_work()
        add(world, number, ("passing",), {})
        then(world, number)

    def leave_it(self, world: World) -> None:
        """All that is there is taken, so that it may be undefined."""
        number = world.at_work()
        for _ in world.model.queue("passing") if self.is_defined else ():
            take(world, number, "passing")
        end(world, number, "commit")

    def change(self, world: World) -> None:
        model, was_defined = world.model, self.is_defined
        adds = [one for branch in model.branches.values() for one in branch.adds]
        is_used = was_defined and any(one.queue == "passing" for one in [*model.known, *adds])
        self.is_defined = not was_defined
        try:
            if was_defined:
                doors.undefine(world.space, "passing", world.defined)
            else:
                doors.redefine(world.space, world.defined)
        except (RetryLater, QueueWaiting):
            self.is_defined = was_defined
            assert is_used, "an empty queue stays defined"
        else:
            assert not is_used, "it had messages"
