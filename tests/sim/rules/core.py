"""Branches and their work, whatever the queues are: nothing acknowledged is lost or repeated, or in part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from sim import doors
from sim.model import ACTIVE, DONE_BY_HAND, IN_DOUBT, UNDONE_BY_HAND, Known, Model, Rules
from sim.world import BODY, SECOND_US, WAYS, Over, World, id_of, xid_of
from xaqueue.errors import DiskFull, RolledBack
from xaqueue.message import MessageId
from xaqueue.xa import Flag, Vote

THEN = ("commit", "", "", "prepare", "rollback")


class Core(Rules):
    toml = (("queues.plain", ""), ("queues.work", 'order = "priority"'))
    weights: ClassVar = {
        "put": 9,
        "take": 9,
        "finish": 8,
        "by_hand": 2,
        "forget": 1,
        "leave": 1,
        "restart": 1,
        "pause": 3,
    }

    def put(self, world: World) -> None:
        queue = world.dice.choice(("plain", "work", "work"))
        number = world.at_work()
        options: dict[str, Any] = {"priority": world.dice.choice((4, 4, 9))} if queue == "work" else {}
        for each in world.model.rules if queue == "work" else ():
            options |= each.options(world)
        for _ in range(world.dice.choice((1, 1, 2))):
            add(world, number, queue, options)
        then(world, number)

    def take(self, world: World) -> None:
        queue, number = world.dice.choice(("plain", "work", "work")), world.at_work()
        for _ in range(world.dice.choice((1, 1, 3))):
            take(world, number, queue)
        then(world, number)

    def finish(self, world: World) -> None:
        number = world.pick(ACTIVE, IN_DOUBT)
        is_active = world.model.branches[number].state == ACTIVE
        end(
            world, number, world.dice.choice(("prepare", "commit", "rollback") if is_active else ("commit", "rollback"))
        )

    def by_hand(self, world: World) -> None:
        number, commits = world.pick(IN_DOUBT), world.dice.random() < 0.5
        world.attempt(
            lambda: doors.decide(world.space, xid_of(number), commits), lambda model: model.decide(number, commits)
        )

    def forget(self, world: World) -> None:
        number = world.pick(DONE_BY_HAND, UNDONE_BY_HAND)
        world.attempt(lambda: world.seat(number).forget(xid_of(number)), lambda model: model.forget(number))

    def leave(self, world: World) -> None:
        """A session is closed in the middle of its branch."""
        number = world.pick(ACTIVE)
        seat = world.seats.pop(number).manager
        world.attempt(lambda: seat.close(xid_of(number)), lambda model: model.rollback(number), number)

    def restart(self, world: World) -> None:
        world.restart(world.dice.choice(WAYS))

    def pause(self, world: World) -> None:
        """The clock of the wall goes on, or is set back; the directories come up with the journal."""
        what = world.dice.choice(("wait", "wait", "wait", "back", "follow", "checkpoint"))
        if what in ("follow", "checkpoint"):
            world.attempt(lambda: getattr(doors, what)(world.space))
            return
        seconds = world.dice.choice((1, 5, 10, 20)) * (1 if what == "wait" else -1)
        world.model.now_us += seconds * SECOND_US
        world.monotonic_s += abs(seconds)


def add(world: World, number: int, queue: str, options: dict[str, Any]) -> None:
    world.numbers += 1
    one, branch = Known(world.numbers, queue, dict(options)), world.model.branches[number]
    one.due_us = int(options.get("not_before", 0) or 0)
    refused, first = world.model.refusal(branch, "put", queue), world.model.left_out(branch, one)
    expected = id_of(one.number if first is None or not world.seats[number].is_near else first)

    def effect(model: Model) -> None:
        if first is None:
            model.branches[number].adds.append(one)

    def call() -> MessageId:
        return world.seat(number).enqueue(queue, BODY % one.number, message_id=id_of(one.number), **options)

    if refused is not None and first is None:
        refuse(world, number, call, refused)
    assert world.attempt(call, effect, number) == expected


def refuse(world: World, number: int, call: Callable[[], object], refused: type[Exception]) -> None:
    """Raises Over. Who is far is told by the next answer, and its branch is lost."""
    try:
        call()
        world.seat(number).flush()
    except refused:
        raise Over from None
    except RolledBack as error:
        if isinstance(error.__cause__, refused):
            end(world, number, "rollback")
            raise Over from None
        raise
    raise AssertionError(f"{refused.__name__} was to be raised")


def take(world: World, number: int, queue: str) -> None:
    branch = world.model.branches[number]
    refused, wanted = world.model.refusal(branch, "take", queue), world.model.next(queue, branch.takes)
    if refused is not None:
        refuse(world, number, lambda: world.seat(number).dequeue(queue), refused)
    place = None if wanted is None else world.model.known.index(wanted)

    def effect(model: Model) -> None:
        if place is not None:
            model.branches[number].takes.append(model.known[place])

    found = world.attempt(lambda: world.seat(number).dequeue(queue), effect, number)
    assert (found and (found.message_id, found.tries)) == (wanted and (id_of(wanted.number), wanted.tries)), wanted


def then(world: World, number: int) -> None:
    verb = world.dice.choice(THEN)
    if verb:
        end(world, number, verb)


def end(world: World, number: int, verb: str) -> None:
    """Raises Over where its branch is refused, as the model has foreseen."""
    branch, session, xid = world.model.branches[number], world.seat(number), xid_of(number)
    flags = Flag.ONEPHASE if verb == "commit" and branch.state == ACTIVE else Flag.NOFLAGS
    is_refused = verb != "rollback" and branch.state == ACTIVE and not world.model.copy().would_vote(number)

    ends = [session.end] if branch.state == ACTIVE else []

    def call() -> object:
        while ends:
            ends.pop()(xid)
        try:
            return getattr(session, verb)(xid, flags)
        except RolledBack as error:
            if is_refused and not isinstance(error, DiskFull) and not world.server.lost:
                return "refused"
            raise

    found = world.attempt(call, lambda model: getattr(model, verb)(number), number)
    assert is_refused == (found == "refused"), found
    if verb == "prepare" and not is_refused:
        assert (found is Vote.RDONLY) == (number not in world.model.branches), found
    world.seats.pop(number, None)
