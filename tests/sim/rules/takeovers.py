"""Another process takes the space over at any call of its owner, which goes on: it acknowledges nothing more that is
not there, and what it does late harms nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar
from unittest import mock

from sim import doors
from sim.crashes import Over
from sim.model import Branch, Known, Model, Rules
from sim.opened import id_of
from sim.rules.managed import Managed
from sim.world import World
from xaqueue.core.engine.state import Space
from xaqueue.errors import Error
from xaqueue.xa import Flag
from xaqueue.xid import Xid

LATE = Xid(4, b"late", b"")


class Takeovers(Rules):
    is_paired = True
    weights: ClassVar = {"interrupt": 7}

    def interrupt(self, world: World) -> None:
        """Any verb of the others, of no other fault."""
        if not world.is_paired:
            raise Over
        world.fs.heal()
        world.fault, world.fuse, world.lose, world.fs.fail_after = "", None, None, None
        # A manager of transactions ends with the process that is taken over: what it does late is no matter of a space.
        others = [each for each in world.model.rules if not isinstance(each, Takeovers | Managed)]
        verbs = [(each, name) for each in others for name in each.weights]
        rules, name = world.dice.choices(verbs, [each.weights[name] for each, name in verbs])[0]
        rival = Rival(world, world.dice.randrange(world.dice.choice((2, 6, 20))))
        with mock.patch.object(world, "wrapped", rival.wrapped):
            world.perform(rules, name)
        if not rival.is_over:
            rival.take_over([world.model])
        rival.refuse()
        if world.dice.random() < 0.7:
            world.check()
            world.restart(world.dice.choice(("killed", "cut", "closed")))


class Rival:
    """Who takes the space over, after so many calls of attempts of its owner."""

    def __init__(self, world: World, left: int) -> None:
        self.world, self.left = world, left
        self.first: Space = world.space
        self.is_over = False
        self.failure: BaseException | None = None
        self.is_done = False
        """What the owner was about was done when it was taken over."""

    def wrapped(self, call: Callable[[], Any], allowed: Sequence[Model]) -> Any:
        """Raises Over where the space was taken over within it."""
        fs, found, answered = self.world.fs, None, False
        if self.is_over or self.world.space is not self.first:  # who has the space now is another one
            return call()
        fs.before_call = lambda: self._called(allowed)
        try:
            found = call()
            answered = True
        except Exception:
            if not self.is_over:
                raise
        finally:
            fs.before_call = lambda: None
        if not self._has_taken_over():
            return found
        assert self.is_done or not answered, "what is not there was acknowledged"
        raise Over

    def _has_taken_over(self) -> bool:
        if self.failure is not None:
            raise self.failure
        return self.is_over

    def _called(self, allowed: Sequence[Model]) -> None:
        if self.left == 0:
            self.world.fs.before_call = lambda: None
            try:
                self.take_over(allowed)
            except BaseException as error:  # who was interrupted would take it for its own
                self.failure = error
        self.left -= 1

    def take_over(self, allowed: Sequence[Model]) -> None:
        world, self.is_over = self.world, True
        self.first = world.space
        world.trace.append("  taken over")
        with doors.process():
            world.take_over(allowed)
            self.is_done = any(world.shows(but_for_tries(model)) for model in allowed[1:])
            for one in world.model.known:
                # Who has it from the former owner has it in vain: that is a try, which no opening has seen by now.
                is_given = any(is_held(model, one) for model in allowed[1:]) and not is_held(allowed[0], one)
                one.is_owed = one.is_owed or is_given
            if world.model.refusal(Branch(), "put", "plain") is None:
                world.numbers += 1
                put(world.space, world.numbers, world.body(world.numbers))
                world.model.branches[world.numbers] = Branch(adds=[Known(world.numbers, "plain")])
                world.model.commit(world.numbers)
            if world.dice.random() < 0.5:
                doors.checkpoint(world.space)
            world.check()

    def refuse(self) -> None:
        """Whatever the former one is asked behind that."""
        try:
            put(self.first, 0, b"")
        except Error:
            self.first.log.end(OSError("killed"))
            return
        raise AssertionError("who is the owner no more has committed")


def is_held(model: Model, one: Known) -> bool:
    return any((held.queue, held.number) == (one.queue, one.number) for held in model.held())


def but_for_tries(model: Model) -> Model:
    """Who was given a message may have it tried in vain: a try that is written late is not counted, as one is that the
    disk has not."""
    left = model.after("killed")
    for one in left.known:
        one.least = 0
    return left


def put(space: Space, number: int, body: bytes) -> None:
    session = doors.session(space)
    session.start(LATE)
    session.enqueue("plain", body, message_id=id_of(number))
    session.end(LATE)
    session.commit(LATE, Flag.ONEPHASE)
