"""Branches and their work, whatever the queues are: nothing acknowledged is lost or repeated, or in part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, cast

from sim import doors
from sim.crashes import WAYS, Effect, Over
from sim.model import ACTIVE, CAME_BACK, DONE_BY_HAND, IN_DOUBT, UNDONE_BY_HAND, Branch, Known, Model, Rules
from sim.opened import id_of
from sim.world import SECOND_US, World
from xaqueue.core.engine.state import Space
from xaqueue.errors import DiskFull, RolledBack
from xaqueue.message import MessageId
from xaqueue.xa import Flag, Vote

THEN = ("commit", "", "", "prepare", "rollback")
MOST = 8
"""Messages that one branch takes."""


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
        "decide_early": 1,
        "move": 2,
        "idle": 1,
        "pause": 3,
        "empty": 2,
        "follow": 3,
    }

    def put(self, world: World) -> None:
        queue, number = any_queue(world), world.at_work()
        for _ in range(world.dice.choice((1, 1, 2))):
            add(world, number, (queue,), drawn_options(world, queue))
        then(world, number)

    def take(self, world: World) -> None:
        queue, number = any_queue(world), world.at_work()
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
        number, commits = world.pick(IN_DOUBT, CAME_BACK), world.dice.random() < 0.5
        world.attempt(
            lambda: doors.decide(world.space, world.model.branches[number].xid, commits),
            lambda model: model.decide(number, commits),
        )

    def forget(self, world: World) -> None:
        number = world.pick(DONE_BY_HAND, UNDONE_BY_HAND)
        world.attempt(
            lambda: world.seat(number).forget(world.model.branches[number].xid), lambda model: model.forget(number)
        )

    def leave(self, world: World) -> None:
        """A session is closed in the middle of its branch."""
        number = world.pick(ACTIVE)
        seat, xid = world.seats.pop(number).manager, world.model.branches[number].xid
        world.attempt(lambda: seat.close(xid), lambda model: model.rollback(number), number)

    def restart(self, world: World) -> None:
        world.restart(world.dice.choice(WAYS))

    def idle(self, world: World) -> None:
        """Nobody did anything for too long in the branches that are active: all of them are rolled back."""
        numbers = [number for number, branch in world.model.branches.items() if branch.state == ACTIVE]
        near = [number for number in numbers if world.seats[number].is_near]
        if not numbers or near != numbers:
            raise Over

        def first(count: int) -> Effect:
            return lambda model: list(map(model.rollback, numbers[:count]))

        partly = [first(count) for count in range(1, len(numbers))]
        whole = first(len(numbers))
        found = world.attempt(lambda: doors.end_idle(world.space, world.monotonic_s), whole, None, partly)
        assert found == len(numbers)
        for number in numbers:
            world.seats.pop(number)

    def decide_early(self, world: World) -> None:
        """While a space is opened, before its messages are there."""
        number, commits = world.pick(IN_DOUBT), world.dice.random() < 0.5
        xid, verb = world.model.branches[number].xid, "commit" if commits else "rollback"
        world.attempt_early(
            lambda space: getattr(doors.session(space), verb)(xid),
            lambda model: getattr(model, verb)(number),
        )

    def move(self, world: World) -> None:
        """To where no message of its id is."""
        model = world.model
        ids = {one.number for one in model.known if one.queue == "plain"}
        ids |= {one.number for branch in model.branches.values() for one in branch.adds}
        names = [name for name in model.queues() if model.refusal(Branch(), "take", name) is None]
        found = [
            one for name in names for one in model.shown(name) if one not in model.held() and one.number not in ids
        ]
        if not found:
            raise Over
        number, one = world.at_work(), world.dice.choice(found)
        place, manager = model.known.index(one), world.seat(number)

        def effect(model: Model) -> None:
            branch, moved = model.branches[number], model.known[place]
            branch.takes.append(moved)
            branch.moves.append(moved)
            options = dict(moved.options)
            branch.adds.append(Known(one.number, "plain", options, due_us=options.get("not_before") or 0))

        moved = world.attempt(lambda: manager.move(one.queue, id_of(one.number), "plain"), effect, number)
        assert moved == id_of(one.number)

    def pause(self, world: World) -> None:
        """The clock of the wall goes on, or is set back."""
        seconds = world.dice.choice((1, 5, 10, 20)) * world.dice.choice((1, 1, 1, -1))
        floor_us = max(each.floor_us(world.model) for each in world.model.rules)
        world.model.now_us = max(world.model.now_us + seconds * SECOND_US, floor_us)
        world.monotonic_s += abs(seconds)

    def follow(self, world: World) -> None:
        """The directories come up with the journal."""
        what = world.dice.choice((doors.follow, doors.checkpoint, doors.checkpoint))
        world.attempt(lambda: in_the_background(world, what))
        world.look()

    def empty(self, world: World) -> None:
        """A message comes and goes, and all others of its queue with it: nothing tells of its number but a record."""
        queue, number = any_queue(world), world.at_work()
        if world.dice.random() < 0.7:
            add(world, number, (queue,), drawn_options(world, queue))
            if world.dice.random() < 0.5:
                end(world, number, "prepare")
            if number in world.model.branches:  # else it had no work
                end(world, number, "commit")
            number = world.at_work()
        for _ in range(MOST):
            if world.model.next(queue, world.model.branches[number].takes) is not None:
                take(world, number, queue)
        end(world, number, "commit")
        world.look()


def in_the_background(world: World, call: Callable[[Space], object]) -> None:
    """Where there is no room it is done another time."""
    try:
        call(world.space)
    except OSError:
        if not world.fs.struck:
            raise


def any_queue(world: World) -> str:
    return world.dice.choice(("plain", "work", "work", *(name for each in world.model.rules for name in each.puts)))


def drawn_options(world: World, queue: str) -> dict[str, Any]:
    """Of a message; those that rules are about go into ``work``."""
    options: dict[str, Any] = {}
    if queue == "work":
        options["priority"] = world.dice.choice((4, 4, 9))
        for each in world.model.rules:
            options |= each.options(world)
    return options


def add(
    world: World, number: int, queues: Sequence[str], options: dict[str, Any], call: str = "enqueue", to: Any = None
) -> None:
    """call, to: the verb, and where to, of another one than a plain enqueue."""
    world.numbers += 1
    own, branch, seat = world.numbers, world.model.branches[number], world.seats[number]
    ones = [Known(own, queue, dict(options), due_us=options.get("not_before") or 0) for queue in queues]
    first = next((found for one in ones if (found := world.model.left_out(branch, one)) is not None), None)
    ones = [one for one in ones if world.model.left_out(branch, one) is None]
    refusals = (world.model.refusal(branch, "put", one.queue) for one in ones)
    refused = next((one for one in refusals if one is not None), None)
    expected = id_of(own if ones or first is None else first)

    def put() -> MessageId:
        target = queues[0] if to is None else to
        found = getattr(seat.manager, call)(target, world.body(own), message_id=id_of(own), **options)
        if world.model.is_prompt:
            seat.manager.flush()
        return cast(MessageId, found)

    if refused is not None:
        refuse(world, number, put, refused)
    assert world.attempt(put, lambda model: model.branches[number].adds.extend(ones), number) == expected


def refuse(world: World, number: int, call: Callable[[], object], refused: type[Exception]) -> None:
    """Raises Over. Who is far is told by the next answer, and its branch is lost."""

    def perform() -> str:
        try:
            call()
            world.seat(number).flush()
        except refused:
            return "refused"
        except RolledBack as error:
            if isinstance(error.__cause__, refused):
                return "lost"
            raise
        return "done"

    found = world.attempt(perform, lambda _: None, number)
    assert found != "done", f"{refused.__name__} was to be raised"
    if found == "lost":
        end(world, number, "rollback")
    raise Over


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


def end(world: World, number: int, verb: str, *, ended: bool = False) -> None:
    """Raises Over where its branch is refused, as the model has foreseen."""
    branch, session = world.model.branches[number], world.seat(number)
    xid = branch.xid
    flags = Flag.ONEPHASE if verb == "commit" and branch.state == ACTIVE else Flag.NOFLAGS
    is_refused = verb != "rollback" and branch.state == ACTIVE and not world.model.copy().would_vote(number)

    ends = [session.end] if branch.state == ACTIVE and not ended else []

    def call() -> object:
        while ends:
            ends.pop()(xid)
        try:
            return getattr(session, verb)(xid, flags)
        except RolledBack as error:
            if is_refused and not isinstance(error, DiskFull) and not world.server.lost:
                return "refused"
            raise

    world.strike()
    found = world.attempt(call, lambda model: getattr(model, verb)(number), number)
    assert is_refused == (found == "refused"), found
    if verb == "prepare" and not is_refused:
        assert (found is Vote.RDONLY) == (number not in world.model.branches), found
    world.seats.pop(number, None)
