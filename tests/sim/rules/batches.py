"""What a query writes at once is decided once: all branches of its batch, or none; asked again, it happens once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import combinations, permutations
from typing import ClassVar

from sim import doors
from sim.crashes import Effect, Over
from sim.model import ACTIVE, IN_DOUBT, Branch, Model, Rules
from sim.rules.core import add, end, take
from sim.world import World
from xaqueue.batch import ONE_SPACE, Batch
from xaqueue.xid import Xid

MOST = 4
"""Branches of a batch: what comes forward at an opening does so in any order of them."""


class Batches(Rules):
    weights: ClassVar = {"write": 4, "again": 3, "undo": 1}

    def __init__(self) -> None:
        self.number = 0
        """Of the batch that is not decided."""
        self.last: tuple[Batch, list[Xid]] | None = None
        """That was committed, with its branches."""

    def shows(self, world: World) -> bool:
        """The last one is known to be decided, and the next one is not."""
        session, following = doors.session(world.space), Batch("query", self.number)
        decided = session.decision(following)
        if self.last is not None and session.decision(self.last[0]) is None:
            return False
        return decided is None or decided.batch.number != self.number

    def write(self, world: World) -> None:
        """With what its query has prepared before, if it was cut off there."""
        batch = Batch("query", self.number)
        if len(branches_of(world.model, IN_DOUBT)) > 1:
            raise Over
        for _ in range(world.dice.choice((1, 2, 3))):
            xid = Xid(ONE_SPACE, batch.gtrid, b"%d" % world.numbers)
            number = world.begin(Branch(xid=xid, is_of_batch=True))
            if world.dice.random() < 0.3:
                take(world, number, "plain")
            for _ in range(world.dice.choice((1, 1, 2))):
                add(world, number, (world.dice.choice(("plain", "plain", "work")),), {})
            end(world, number, "prepare")
        self._commit(world, batch)
        if world.dice.random() < 0.4:
            number = world.at_work()
            take(world, number, "plain")
            end(world, number, "commit")

    def again(self, world: World) -> None:
        """Whose answer was lost, perhaps."""
        if self.last is not None:
            batch, xids = self.last
            world.attempt(lambda: doors.session(world.space).commit_all(batch, xids))
        elif branches_of(world.model, IN_DOUBT):
            self._commit(world, Batch("query", self.number))

    def undo(self, world: World) -> None:
        batch = Batch("query", self.number)
        for number in branches_of(world.model, ACTIVE):
            end(world, number, "rollback")
        mine = branches_of(world.model, IN_DOUBT)
        # Nothing decides that it is undone: cut off, it has come to some of its branches.
        some = [partial(roll_back, chosen) for size in range(1, len(mine)) for chosen in combinations(mine, size)]
        world.attempt(lambda: doors.session(world.space).rollback_all(batch), partial(roll_back, mine), None, some)

    def _commit(self, world: World, batch: Batch) -> None:
        for number in branches_of(world.model, ACTIVE):
            end(world, number, "rollback")
        mine = branches_of(world.model, IN_DOUBT)
        xids = [world.model.branches[number].xid for number in mine]

        def effect(order: Sequence[int]) -> Effect:
            def commit(model: Model) -> None:
                for number in order:
                    model.commit(number)
                known = model.of(Batches)
                known.number, known.last = batch.number + 1, (batch, xids)

            return commit

        world.strike()
        orders = [effect(order) for order in permutations(mine)]
        world.attempt(lambda: doors.session(world.space).commit_all(batch, xids), orders[0], None, orders[1:])


def roll_back(numbers: Sequence[int], model: Model) -> None:
    for number in numbers:
        model.rollback(number)


def branches_of(model: Model, state: str) -> list[int]:
    return [number for number, branch in model.branches.items() if branch.is_of_batch and branch.state == state]
