"""Another process takes the space over at any call of its owner, or of who is about to be its owner, which goes on: it
acknowledges nothing more that is not there, and what it does late changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar
from unittest import mock

from sim import doors
from sim.crashes import Over
from sim.model import Branch, Known, Model, Rules
from sim.opened import id_of
from sim.rules.core import MOST, end, take
from sim.rules.managed import Managed
from sim.world import World, xid_of
from xaqueue.core.engine.state import Space
from xaqueue.errors import Error, ResourceFailed, SpaceError
from xaqueue.xa import Flag
from xaqueue.xid import Xid

LATE = Xid(4, b"late", b"")
CALLS = ("", "", "create", "write_at", "rename", "link", "unlink")
"""The space is taken over at one of these calls, or at any."""
VERBS = 4
"""Within so many it is taken over, or behind them."""
LIKELY = {"link": ("several", "publish", "finish", "follow"), "write_at": ("follow",), "rename": ("follow",)}
"""Verbs that come to such a call, which are drawn more often then."""


class Takeovers(Rules):
    is_paired = True
    weights: ClassVar = {"interrupt": 7, "overtake": 2}

    def interrupt(self, world: World) -> None:
        """Any verb of the others, of no other fault."""
        calm(world)
        # A manager of transactions ends with the process that is taken over: what it does late is no matter of a space.
        others = [each for each in world.model.rules if not isinstance(each, Takeovers | Managed)]
        verbs = [(each, name) for each in others for name in each.weights]
        rival = Rival(world)
        likely = LIKELY.get(rival.call, ())
        weights = [each.weights[name] * (8 if name in likely else 1) for each, name in verbs]
        for rules, name in world.dice.choices(verbs, weights, k=VERBS + 2 * len(likely)):
            if rival.is_over or not world.is_paired:  # it may be opened at a level without a journal
                break
            world.check()
            rival.first = world.space
            with mock.patch.object(world, "wrapped", rival.wrapped):
                world.perform(rules, name)
        if not rival.is_over:
            if not world.is_paired:
                raise Over
            rival.first = world.space
            rival.take_over([world.model])
        rival.finish()

    def overtake(self, world: World) -> None:
        """Who opens the space behind another one."""
        calm(world)
        rival, allowed = Rival(world), world.stop(world.dice.choice(("killed", "cut")))
        rival.open(allowed)
        if not rival.is_over:
            rival.take_over(allowed)
        rival.finish()


def calm(world: World) -> None:
    """No fault comes to this step but the takeover. Raises Over where owners are of no pair."""
    if not world.is_paired:
        raise Over
    world.fs.heal()
    world.fault, world.fuse, world.lose, world.fs.fail_after = "", None, None, None


class Rival:
    """Who takes the space over, at a call of an attempt of its owner."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.call = world.dice.choice(CALLS)
        self.left = world.dice.randrange(world.dice.choice((1, 2, 6) if self.call else (2, 6, 20)))
        """How many calls of this kind come before."""
        self.first: Space | None = world.space
        self.opens = False
        """It is taken over as it opens the space, where no owner is."""
        self.is_over = False
        self.failure: BaseException | None = None
        self.is_done = False
        """What the owner was about was done when it was taken over."""
        self.files = dict[str, bytes]()
        """Behind the takeover."""

    def wrapped(self, call: Callable[[], Any], allowed: Sequence[Model]) -> Any:
        """Raises Over where the space was taken over within it."""
        found, answered = None, False
        if self.is_over or self.world.space is not self.first:  # who has the space now is another one
            return call()
        try:
            found = self._watched(call, allowed)
            answered = True
        except Exception:
            if not self.is_over:
                raise
        if not self._has_taken_over():
            return found
        assert self.is_done or not answered, "what is not there was acknowledged"
        raise Over

    def open(self, allowed: Sequence[Model]) -> None:
        """The space, as one that may be taken over as soon as it has its lock."""
        self.first, self.opens = None, True
        try:
            self.first = self._watched(self.world.opening, allowed)
        except (ResourceFailed, SpaceError, OSError):
            if not self.is_over:
                raise
        self._has_taken_over()

    def _watched(self, call: Callable[[], Any], allowed: Sequence[Model]) -> Any:
        fs = self.world.fs
        fs.before_call = lambda: self._called(allowed)
        try:
            return call()
        finally:
            fs.before_call = lambda: None

    def _has_taken_over(self) -> bool:
        if self.failure is not None:
            raise self.failure
        if self.is_over:
            self._judge()
        return self.is_over

    def _called(self, allowed: Sequence[Model]) -> None:
        if self.call not in ("", self.world.fs.calling):
            return
        if self.left == 0:
            self.world.fs.before_call = lambda: None
            try:
                self.take_over(allowed)
            except BaseException as error:  # who was interrupted would take it for its own
                self.failure = error
        self.left -= 1

    def take_over(self, allowed: Sequence[Model]) -> None:
        world, self.is_over = self.world, True
        world.trace.append(f"  taken over, {self.call or 'any'}")
        with doors.process():
            world.take_over(allowed if self.opens else [model.after("killed") for model in allowed])
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
            if world.dice.random() < 0.6:
                consume(world)
            if world.dice.random() < 0.5:
                doors.checkpoint(world.space)
            world.check()
        self.files = doors.believed(world.fs)

    def finish(self) -> None:
        """Whatever the former one is asked behind that is refused, and changes nothing, for whoever comes next."""
        if self.first is not None:
            try:
                put(self.first, 0, b"")
            except Error:
                self.first.log.end(OSError("killed"))
            else:
                raise AssertionError("who is the owner no more has committed")
        self._judge()
        if self.world.dice.random() < 0.7:
            self.world.check()
            self.world.restart(self.world.dice.choice(("killed", "cut", "closed")))

    def _judge(self) -> None:
        """What both find to be over may go by either."""
        now, model = doors.believed(self.world.fs), self.world.model
        changed = {path for path, content in now.items() if content != self.files.get(path)}
        assert not changed, f"who is the owner no more has changed {sorted(changed)}"
        added = [one for branch in model.branches.values() for one in branch.adds]
        ids = {id_of(one.number) for one in (*model.known, *added)}
        lost = {path for path in self.files.keys() - now.keys() if doors.message_of(path) in ids}
        assert not lost, f"who is the owner no more has removed {sorted(lost)}"


def is_held(model: Model, one: Known) -> bool:
    return any((held.queue, held.number) == (one.queue, one.number) for held in model.held())


def but_for_tries(model: Model) -> Model:
    """Who was given a message may have it tried in vain: a try that is written late is not counted, as one that the
    disk has not."""
    left = model.after("killed")
    for one in left.known:
        one.least = 0
    return left


def consume(world: World) -> None:
    """A queue, or the first messages of it: what would bring them back would show."""
    queue = world.dice.choice(world.model.queues())
    if world.model.refusal(Branch(), "take", queue) is None:
        number = world.begin(Branch(xid=xid_of(world.numbers + 1)))
        for _ in range(MOST):
            take(world, number, queue)
        end(world, number, "commit")


def put(space: Space, number: int, body: bytes) -> None:
    session = doors.session(space)
    session.start(LATE)
    session.enqueue("plain", body, message_id=id_of(number))
    session.end(LATE)
    session.commit(LATE, Flag.ONEPHASE)
