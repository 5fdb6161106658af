"""A transaction manager and a database that forgets: both have what a transaction did, or neither, whoever dies."""

from __future__ import annotations

from copy import deepcopy
from typing import ClassVar

from sim import doors
from sim.crashes import Effect
from sim.model import Branch, Known, Model, Rules
from sim.opened import id_of
from sim.world import World
from support.forgetful import ForgetfulFileSystem
from support.tm_world import COMMITTED, STARTED, Bank, Rig
from support.tm_world import World as Banks
from xaqueue.connection import Connection


class Managed(Rules):
    weights: ClassVar = {"transact": 5}

    def __init__(self) -> None:
        self.rows: set[int] = set()
        """Of the database: the numbers of transactions."""

    def opened(self, world: World) -> None:
        before = world.around.get("tm") or Manager(STARTED.open(), Banks(), {})
        fs = before.fs
        tree = fs.tree_by_chance(world.dice) if world.way == "cut" else fs.tree_after_kill()
        banks = deepcopy(before.banks) if world.is_looking else before.banks
        world.around["seen" if world.is_looking else "tm"] = now = Manager(tree.open(), banks, before.numbers)
        now.recover(world)

    def shows(self, world: World) -> bool:
        found: Manager = world.around["seen" if world.is_looking else "tm"]
        return found.rows() == self.rows

    def transact(self, world: World) -> None:
        """Of a message and a row."""
        manager: Manager = world.around["tm"]
        world.numbers += 1
        own, taken = world.numbers, world.model.next("plain", []) if world.dice.random() < 0.4 else None
        place = None if taken is None else world.model.known.index(taken)
        if world.dice.random() < 0.3:
            manager.fs.crash_after = manager.fs.calls + world.dice.randrange(8)
        world.fs.heal()

        def perform() -> None:
            with manager.rig.transaction() as tx:
                manager.numbers[tx.gtrid] = own
                if taken is None:
                    tx["space"].enqueue("plain", world.body(own), message_id=id_of(own))
                else:
                    assert tx["space"].dequeue("plain").message_id == id_of(taken.number)
                tx["db"].work()

        def effect(model: Model) -> None:
            if place is None:
                model.branches[own] = Branch(adds=[Known(own, "plain")])
            else:
                model.branches[own] = Branch(takes=[model.known[place]])
            model.commit(own)
            model.of(Managed).rows = model.of(Managed).rows | {own}

        undone: list[Effect] = [] if place is None else [lambda model: model.fail(model.known[place])]
        world.attempt(perform, effect, None, undone)
        manager.fs.crash_after = None


class Manager:
    """Its log, and the database beside it."""

    def __init__(self, fs: ForgetfulFileSystem, banks: Banks, numbers: dict[bytes, int]) -> None:
        self.fs, self.banks, self.numbers = fs, banks, numbers
        if not banks.banks:
            Bank(banks, "db")

    def recover(self, world: World) -> None:
        """All that is in doubt is decided."""
        self.banks.revive()
        ids = iter(range(1 << 30))
        space = lambda: Connection(doors.session(world.space), lambda: b"%016d" % next(ids))  # noqa: E731
        self.rig = Rig(self.fs, {"space": space, "db": self.banks.banks["db"].connect})
        self.rig.recover()

    def rows(self) -> set[int]:
        states = self.banks.banks["db"].branches.items()
        return {self.numbers[xid[1].encode()] for xid, state in states if state == COMMITTED}
