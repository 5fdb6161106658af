"""What a row of a database says of a branch is done exactly if the row was committed: each opening asks for it."""

from __future__ import annotations

from typing import ClassVar

from sim import doors
from sim.model import CARRIED, Branch, Model, Rules
from sim.rules.core import add, any_queue, drawn_options, end, take
from sim.world import World, xid_of
from support.crash_level import Level
from xaqueue.xa import Flag

CARRIER = f"{1:016x}.ledger"


class Carry(Rules):
    weights: ClassVar = {"carry": 5}

    def holds_at(self, level: Level) -> bool:
        return level.hardening.journal

    def opened(self, world: World) -> None:
        session = doors.session(world.space)
        assert session.deliver(CARRIER, session.carriers().secret, world.rows, 0, 0)

    def crashed(self, model: Model, way: str) -> None:
        """The first opening gets a message behind the counting of tries; the next one has it from the beginning."""
        for one in model.known:
            one.is_owed = one.is_owed or one.is_loose

    def carry(self, world: World) -> None:
        number = world.begin(Branch(xid=xid_of(world.numbers + 1)))
        for _ in range(world.dice.choice((1, 1, 2))):
            queue = any_queue(world)
            if world.dice.random() < 0.4:
                take(world, number, queue)
            else:
                options = drawn_options(world, queue)
                options.pop("dedup_key", None)  # its window begins anew when the message is delivered
                add(world, number, (queue,), options)
        session, xid = doors.session(world.space), xid_of(number)
        world.seats[number].manager.end(xid)
        change = world.attempt(lambda: session.carry(xid, CARRIER))
        if change is None:  # it has to be prepared
            end(world, number, world.dice.choice(("prepare", "commit")), ended=True)
            return
        assert world.model.would_vote(number)
        world.model.branches[number].state = CARRIED
        if world.dice.random() < 0.3:
            world.attempt(lambda: session.rollback(xid), lambda model: model.rollback(number), number)
            return
        world.rows.append(change.encode())
        for one in world.model.branches[number].adds:
            one.is_loose = True  # once it is delivered anew, nobody knows that somebody had it
        world.model.commit(number)
        world.attempt(lambda: session.commit(xid, Flag.LATE))
        if world.dice.random() < 0.5:
            world.attempt(session.harden)
