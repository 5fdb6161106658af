"""Messages that came in one call are each one's own: some are taken, one by one or many at once, by several branches,
and some stay, whether they lie in a block of many or in a file each.
"""

from __future__ import annotations

from contextlib import suppress
from typing import ClassVar

from sim import doors
from sim.crashes import Effect, Over
from sim.model import ACTIVE, Branch, Known, Model, Rules
from sim.opened import id_of
from sim.rules.core import add, drawn_options, end, in_the_background, refuse, then
from sim.rules.dedup import Dedup
from sim.rules.limits import Limits
from sim.rules.streams import Streams
from sim.world import SECOND_US, World
from xaqueue.delivery import LONGEST_S
from xaqueue.errors import DiskFull, RetryLater
from xaqueue.xa import Flag

COUNTS = (16, 16, 17, 24, 40, 3)
"""Of messages that are put at once; of 16 on they are a block where the space writes such."""
MOST = 60
"""Messages of a queue that gets more."""
PUT_OFF_S = 20
YOUNG_S = 60


class Blocks(Rules):
    """In no world where nobody asks for them, as long as no space of a user writes blocks."""

    toml = (("queues.bulk", ""),)
    puts = ("bulk", "bulk")
    share = 0.0
    writes_blocks = True
    weights: ClassVar = {
        "put_many": 9,
        "put_singly": 9,
        "take_many": 9,
        "take_by_id": 4,
        "between": 5,
        "drain": 2,
        "make_smaller": 3,
        "no_room": 5,
        "receive_many": 3,
        "settle": 4,
    }

    def __init__(self) -> None:
        self.held: dict[bytes, Known] = {}
        """Messages on lease, by it."""

    def crashed(self, model: Model, way: str) -> None:
        for one in self.held.values():
            model.fail(one)
        self.held.clear()

    def put_many(self, world: World) -> None:
        queue, number = batch_queue(world), world.at_work()
        put_many(world, number, queue, world.dice.choice(COUNTS))
        then(world, number)

    def put_singly(self, world: World) -> None:
        """One by one, to a queue or to two: together they may be a block of each from the end of the branch on."""
        queue, number = batch_queue(world), world.at_work()
        if len(world.model.queue(queue)) > MOST:
            raise Over
        drawn, is_for_two = drawn_options(world, queue), world.dice.random() < 0.3
        for _ in range(world.dice.choice(COUNTS)):
            if is_for_two:
                add(world, number, ("bulk", "plain"), {}, "enqueue_to", ["bulk", "plain"])
            else:
                add(world, number, (queue,), world.dice.choice(({}, drawn)))
        if world.dice.random() < 0.7:
            end(world, number, world.dice.choice(("prepare", "commit")))

    def take_many(self, world: World) -> None:
        queue, number = batch_queue(world), world.at_work()
        for _ in range(world.dice.choice((1, 1, 2))):
            take_many(world, number, queue, world.dice.choice((1, 2, 5, 16, 20)))
        then(world, number)

    def take_by_id(self, world: World) -> None:
        """Anywhere in a block."""
        number, free = world.at_work(), free_in(world, "bulk")
        for own in world.dice.sample(free, min(len(free), world.dice.choice((1, 2)))):
            take_by_id(world, number, "bulk", own)
        then(world, number)

    def between(self, world: World) -> None:
        """Two branches take by turns, and end in any order."""
        numbers = [world.at_work(), world.begin(Branch(xid=world.next_xid()))]
        for _ in range(2):
            for number in numbers:
                take_many(world, number, "bulk", world.dice.choice((1, 2, 3, 7)))
        world.dice.shuffle(numbers)
        for number in numbers:
            then(world, number)

    def drain(self, world: World) -> None:
        """All that is left goes at once: blocks end."""
        number = world.at_work()
        take_many(world, number, "bulk", 2 * MOST)
        if world.dice.random() < 0.5:
            end(world, number, "prepare")
        if number in world.model.branches:
            end(world, number, world.dice.choice(("commit", "commit", "rollback")))
        world.look()

    def make_smaller(self, world: World) -> None:
        """Most of it goes; a minute later what is gone has no body any more."""
        number, queue = world.at_work(), batch_queue(world)
        if len(free_in(world, queue)) < COUNTS[0]:
            put_many(world, number, queue, COUNTS[0])
            end(world, number, world.dice.choice(("commit", "commit", "prepare")))
            number = world.begin(Branch(xid=world.next_xid()))
        take_many(world, number, queue, max(len(free_in(world, queue)) - world.dice.choice((1, 2, 3)), 1))
        end(world, number, world.dice.choice(("commit", "commit", "prepare")))
        if world.dice.random() < 0.7:  # and else it is young
            world.model.now_us += YOUNG_S * SECOND_US
            world.monotonic_s += YOUNG_S
        world.strike()
        world.attempt(lambda: in_the_background(world, doors.make_smaller), lambda _: None)
        world.look()

    def no_room(self, world: World) -> None:
        """A commit finds none; others go on, and then it is given up, or comes again."""
        number = world.at_work()
        take_many(world, number, "bulk", world.dice.choice((1, 3, 7, 2 * MOST)))
        if world.dice.random() < 0.5:
            end(world, number, "prepare")
        branch, is_near = world.model.branches.get(number), number not in world.seats or world.seats[number].is_near
        if branch is None or not branch.takes or not is_near:
            raise Over  # nothing would tell what became of it; who is far may be lost with his branch
        session, calls, was_active = world.seat(number), world.dice.randrange(6), branch.state == ACTIVE
        place = world.dice.choice(("", "", "/.gone/", "+"))  # "+" of a block
        if was_active:
            session.end(branch.xid)

        def commit() -> None:
            flags = Flag.ONEPHASE if was_active else Flag.NOFLAGS
            with doors.full_disk(world.fs, 0 if place else calls, place), suppress(RetryLater, DiskFull):
                session.commit(branch.xid, flags)
            if (calls > 2 or place) and doors.is_past_commit(world.space, branch.xid):
                session.commit(branch.xid, flags)  # some of it may be done

        def given_up(model: Model) -> None:
            """It is not committed, and may be."""

        def rolled_back(model: Model) -> None:
            """There was no room for a block without which it has no commit point."""
            for one in model.branches[number].takes:
                one.is_loose = True
            model.rollback(number)

        world.attempt_one_of(commit, [given_up, lambda model: model.commit(number), rolled_back])
        if doors.is_past_commit(world.space, branch.xid):
            end(world, number, "commit", ended=True)
            return
        if was_active and number in world.model.branches:
            session.start(branch.xid, Flag.JOIN)
        self.between(world)
        if number in world.model.branches:
            end(world, number, world.dice.choice(("rollback", "rollback", "commit")))

    def receive_many(self, world: World) -> None:
        """Each is a branch of its own."""
        count = world.dice.choice((2, 5, 16))
        wanted = nexts(world, Branch(), "bulk", count)
        places, session = [world.model.known.index(one) for one in wanted], doors.session(world.space)

        def given(model: Model) -> None:
            """Cut off, some of them were given to somebody who never had an answer: that is a try."""
            model.of(Blocks).held |= {b"%d" % place: cut_off(model.known[place]) for place in places}

        found = world.attempt(lambda: session.receive("bulk", count, LONGEST_S), lambda _: None, None, [given])
        seen = [(one.message_id, one.tries) for _, one in found]
        expected = [(id_of(one.number), one.tries) for one in wanted]
        assert seen == (expected[: len(seen)] if world.fs.struck else expected)
        for (lease, _), place in zip(found, places, strict=False):
            world.model.of(Blocks).held[lease] = world.model.known[place]
        if world.dice.random() < 0.7:  # few are held for long
            for _ in found:
                self.settle(world)

    def settle(self, world: World) -> None:
        held, how = world.model.of(Blocks).held, world.dice.choice(("ack", "ack", "nack"))
        if not held:
            raise Over
        lease = world.dice.choice(list(held))

        def effect(model: Model) -> None:
            one = model.of(Blocks).held.pop(lease)
            if how == "ack":
                model.known.remove(one)
            else:
                one.due_us = model.now_us + PUT_OFF_S * SECOND_US

        detail = PUT_OFF_S * SECOND_US if how == "nack" else None
        world.attempt(lambda: doors.session(world.space).settle("bulk", lease, how, detail), effect)


def batch_queue(world: World) -> str:
    """``work`` where what it is put with, or its limits, are none of each message's own."""
    is_plain = not world.model.has(Dedup) and not any(isinstance(each, Limits) for each in world.model.rules)
    read = "feed" if world.model.has(Streams) else "bulk"
    return world.dice.choice(("bulk", read, "plain", "work" if is_plain else "bulk"))


def put_many(world: World, number: int, queue: str, count: int) -> None:
    if len(world.model.queue(queue)) > MOST:
        raise Over
    first, options, seat = world.numbers + 1, drawn_options(world, queue), world.seats[number]
    world.numbers += count
    numbers = range(first, first + count)
    ids, bodies = [id_of(own) for own in numbers], [world.body(own) for own in numbers]
    ones = [Known(own, queue, dict(options), due_us=options.get("not_before") or 0) for own in numbers]

    def put() -> object:
        with doors.fresh_ids(ids):
            found = seat.manager.enqueue_many(queue, bodies, **options)
        if world.model.is_prompt:
            seat.manager.flush()
        return found

    assert world.attempt(put, lambda model: model.branches[number].adds.extend(ones), number) == ids


def take_many(world: World, number: int, queue: str, count: int) -> None:
    branch, manager = world.model.branches[number], world.seat(number)
    refused = world.model.refusal(branch, "take", queue)
    if refused is not None:
        refuse(world, number, lambda: manager.dequeue_many(queue, count), refused)
    wanted = nexts(world, branch, queue, count)
    effect, places = taking(world, number, wanted), [world.model.known.index(one) for one in wanted]

    def partly(model: Model) -> None:
        model.branches[number].takes += [cut_off(model.known[place]) for place in places]

    found = world.attempt(lambda: manager.dequeue_many(queue, count), effect, number, [partly])
    seen = [(one.message_id, one.tries) for one in found]
    assert seen == [(id_of(one.number), one.tries) for one in wanted], f"{seen}, and not {wanted}"
    for one, message in zip(wanted, found, strict=True):
        assert message.body == world.body(one.number)


def take_by_id(world: World, number: int, queue: str, own: int) -> None:
    manager, one = world.seat(number), next(one for one in world.model.queue(queue) if one.number == own)
    expected, effect = (id_of(own), one.tries, world.body(own)), taking(world, number, [one])
    found = world.attempt(lambda: manager.dequeue(queue, message_id=id_of(own)), effect, number)
    assert (found and (found.message_id, found.tries, found.body)) == expected


def taking(world: World, number: int, wanted: list[Known]) -> Effect:
    places = [world.model.known.index(one) for one in wanted]
    return lambda model: model.branches[number].takes.extend(model.known[place] for place in places)


def nexts(world: World, branch: Branch, queue: str, count: int) -> list[Known]:
    """Those that this branch would be given, one after the other."""
    model, before = world.model, len(branch.takes)
    model.branches[-1] = branch  # so that what was found is held, whoever it is
    while len(branch.takes) < before + count and (one := model.next(queue, branch.takes)) is not None:
        branch.takes.append(one)
    del model.branches[-1]
    found = branch.takes[before:]
    del branch.takes[before:]
    return found


def cut_off(one: Known) -> Known:
    """It may have been taken, or not, when the process was killed among many."""
    one.is_loose = True
    return one


def free_in(world: World, queue: str) -> list[int]:
    """The numbers of messages that nobody holds."""
    model, held = world.model, world.model.held()
    return [one.number for one in model.queue(queue) if one not in held and one.due_us <= model.now_us]
