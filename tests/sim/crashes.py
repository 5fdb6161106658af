"""What goes wrong with a space, at a call within a step or behind it, and what may be left then.

The power goes, or the process; a sync fails; the disk is full; a request or an answer gets lost; another process has
the space. An attempt has come to something or to nothing, and what is seen afterwards is one of both.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sim import doors
from sim.model import ACTIVE, Model
from sim.opened import Opened
from support.forgetful import Crashed, ForgetfulFileSystem
from xaqueue.core.engine.state import Space
from xaqueue.errors import ConnectionLost, Error, ResourceFailed, RetryLater, RolledBack
from xaqueue.features.retries.register import TRIES

WAYS = ("closed", "killed", "cut", "cut")
FAULTS = ("crash",) * 6 + ("sync fails", "no room", "request", "answer", "answer")
QUIET = 20
"""So many steps of 31 have no fault."""

T = TypeVar("T")
Effect = Callable[[Model], object]
Wrapped = Callable[[Callable[[], Any], Sequence[Model]], Any]
"""What performs a call which may come to one of these models: of the first, it has come to nothing."""


class Over(Exception):
    """The step ended in a crash, or its branch did."""


@dataclass
class Crashes(Opened):
    way: str = "killed"
    """How the process ends if it does in this step."""
    fault: str = ""
    fuse: tuple[int, int] | None = None
    """After so many attempts, and then so many calls, the process of this step ends."""
    lose: str | None = None
    """What the wire is to lose, once there is a session."""
    wrapped: Wrapped = field(default=lambda call, _: call())

    def attempt(
        self,
        call: Callable[[], T],
        effect: Effect = lambda _: None,
        number: int | None = None,
        partly: Sequence[Effect] = (),
    ) -> T:
        """Does what has this effect, or none if the fault of this step comes in between. number: of its branch. partly:
        what it may have come to then beside these.

        Raises Over where it did, and the model is as the space is then.
        """
        after = _with(self.model, effect)
        self._burn()
        allowed = [self.model, after, *(_with(self.model, one) for one in partly)]
        for each in self.model.rules:
            each.attempted(self, allowed)
        try:
            found: T = self.wrapped(call, allowed)
        except (Crashed, ResourceFailed, ConnectionLost, RetryLater, RolledBack) as error:
            self._survive(error, allowed, call, number)
            raise Over from None
        self.model = after
        return found

    def attempt_one_of(self, call: Callable[[], T], effects: Sequence[Effect], partly: Sequence[Effect] = ()) -> T:
        """Where nobody can foresee which of them it has."""
        before = self.model
        found = self.attempt(call, effects[0], None, [*effects[1:], *partly])
        allowed = [_with(before, effect) for effect in effects]
        try:
            self._explain(allowed)
        except (Crashed, ResourceFailed):  # who looks may have to wait for the directories
            self._reopen([model.after(self.way) for model in allowed])
            raise Over from None
        return found

    def attempt_early(self, call: Callable[[Space], object], effect: Effect) -> None:
        """As soon as the branches of a space are known that is opened after a kill."""
        self.restart("killed")
        self.space.log.end(OSError("killed"))
        before, done = self.model.after("killed"), list[Model]()

        def perform(space: Space) -> None:
            call(space)
            done.append(_with(before, effect))

        self.fs.crash_after = self.fs.calls + self.dice.randrange(60)
        try:
            self._open(on_branches=perform)
        except (Crashed, ResourceFailed):
            assert self.fs.crashed
            self._reopen([model.after(self.way) for model in done or [before, _with(before, effect)]])
        else:
            self.fs.crash_after = None
            self._explain(done)

    def strike(self) -> None:
        """The crash of this step, where it has one, is in the next attempt rather than in any."""
        if self.fuse is not None and self.dice.random() < 0.5:
            self.fuse = 0, self.fuse[1]

    def _burn(self) -> None:
        """The crash of this step is among the calls of one of its attempts, the later ones as well as the first."""
        if self.fuse is not None:
            attempts, calls = self.fuse
            self.fuse = (attempts - 1, calls) if attempts else None
            self.fs.crash_after = None if attempts else self.fs.calls + calls

    def _survive(
        self,
        error: BaseException,
        allowed: Sequence[Model],
        call: Callable[[], object],
        number: int | None,
    ) -> None:
        self.trace.append(f"  {type(error).__name__}")
        is_down = self.fs.crashed or self.fs.failed or isinstance(error, Crashed)
        if is_down or (isinstance(error, ResourceFailed) and self.fs.struck):
            self._reopen([model.after(self.way) for model in allowed])
        elif self.server.lost and not isinstance(error, ResourceFailed):
            self._lose(allowed[1], number)
        elif self.fs.struck:
            self._make_room(error, allowed[1], call, number)
        else:
            raise error

    def _lose(self, after: Model, number: int | None) -> None:
        """The connection of a branch is lost: it was done, or the branch is rolled back, or it is as before."""
        self.server.lost = False
        before = self.model.copy()
        for model in (before, after):
            if number in model.branches and model.branches[number].state == ACTIVE:
                model.rollback(number)
            model.expect()
        if number is not None:
            self.seats.pop(number, None)
        self._explain([before, after])

    def _make_room(self, error: BaseException, after: Model, call: Callable[[], object], number: int | None) -> None:
        """There is room again: what was not done is done now, unless its branch is rolled back."""
        self.fs.heal()
        if isinstance(error, RolledBack) and number is not None:
            for verb in ("end", "rollback"):
                with suppress(Error):
                    getattr(self.seat(number), verb)(self.model.branches[number].xid)
            self.seats.pop(number, None)
            for one in self.model.branches[number].takes:
                one.is_loose = True
            self.model.rollback(number)
        else:
            before = self.model
            try:
                call()
            except ResourceFailed:  # of a space that waits for somebody who is away
                self._reopen([model.after(self.way) for model in (before, after)])
            else:
                self.model = after

    # Crashes

    def _arm(self) -> None:
        """The fault of this step, at one of its next calls."""
        self.fault, calls = "", self.dice.randrange(self.dice.choice((3, 12, 40)))
        self.way, self.fs.failed = self.dice.choice(WAYS), False
        if self.dice.randrange(QUIET + len(FAULTS)) >= len(FAULTS):
            return
        self.fault = self.dice.choice(FAULTS)
        if self.fault == "crash":
            self.fuse = self.dice.randrange(self.dice.choice((1, 4, 10))), calls
        elif self.fault == "sync fails":
            self.fs.fail_after, self.fs.fail_number = self.fs.calls + calls // 4, errno.EIO
        elif self.fault == "no room":
            self.fs.fail(calls // 2, errno.ENOSPC)
        else:
            self.lose = self.fault

    def _disarm(self, before: dict[tuple[str, int], int]) -> None:
        """A crash comes behind the step, if not before. before: how often each message was tried before the step."""
        self.fs.heal()
        # What is handed back counts as a try, where it found no room to be written down.
        is_unwritten = any(path == TRIES for _, path in self.fs.struck)
        for one in self.model.known if self.fs.struck else ():
            is_tried = one.tries > before.get((one.queue, one.number), 0) or one in self.model.held() or is_unwritten
            one.is_loose = one.is_loose or is_tried
        self.fs.struck.clear()
        self.server.lose, self.server.lost, self.lose, self.fs.fail_after = None, False, None, None
        if self.fuse is not None or self.fs.crash_after is not None or self.fs.crashed or self.fs.failed:
            self._reopen([self.model.after(self.way)])

    def restart(self, way: str) -> None:
        """The process ends so, and another one opens the space."""
        self.way = way
        self._reopen([self.model.after(way)])

    def stop(self, way: str) -> list[Model]:
        """The process ends so, and nobody opens the space yet. What it may be then."""
        allowed, self.fuse = [self.model.after(way)], None
        self._end(way)
        if way == "cut":
            self._cut(allowed)
        return allowed

    def replace(
        self,
        call: Callable[[ForgetfulFileSystem], object],
        afters: Sequence[Model],
        is_begun: Callable[[ForgetfulFileSystem], bool],
        *,
        is_closed: bool,
    ) -> None:
        """The process ends, and who has the space then does this, which may be cut off and done again, or given up as
        long as it is not begun. is_closed: somebody has closed the space before, if not this one."""
        way, self.fuse = "closed" if is_closed else "killed", None
        if not self._end(way) and is_closed:
            self._open()
            self._end(way)
        while True:
            self.fs.crash_after = self.fs.calls + self.dice.randrange(self.dice.choice((60, 120)))
            try:
                call(self.fs)
                break
            except Crashed:
                self.trace.append("  Crashed")
            self.fs.survive_kill()
            if self.dice.random() < 0.7:
                self.fs = self._disk(self.dice.choice(self._trees()))
            if self.dice.random() < 0.3 and not is_begun(self.fs):
                afters = [self.model.after("cut")]
                break
            if is_closed and not is_begun(self.fs) and not doors.is_cut_off(self.fs):
                self._open()
                self._end(way)
        self.fs.crash_after, self.model = None, afters[0]
        self._open()
        self._explain(afters)

    def take_over(self, allowed: Sequence[Model]) -> None:
        """Another process has the space from now on, which is one of these; who had it goes on."""
        self.former = self.epoch
        self.server.is_dead = True
        self._open()
        self._explain(allowed)

    def _reopen(self, allowed: list[Model]) -> None:
        """Which is cut off in turn, sometimes."""
        way, again, self.fuse = self.way, self.dice.random() < 0.2, None
        is_closed = self._end(way)
        if way == "cut" and self.dice.random() < 0.3:  # not before the next one recovers
            again = True
        elif way == "cut":
            self._cut(allowed)
        while again:
            self.fs.crash_after = self.fs.calls + self.dice.randrange(40)
            try:
                self._open(closed_well=is_closed)
            except (Crashed, ResourceFailed):
                assert self.fs.crashed
            self.fs.survive_kill()
            is_closed, again = False, self.dice.random() < 0.3
            if way == "cut" and self.dice.random() < 0.7:
                self._cut(allowed)
        if self.level.hardening.journal == (level := self.dice.choice(self.levels)).hardening.journal or is_closed:
            self.level = level
        self._open(closed_well=is_closed)
        self._explain(allowed)
        if way == "killed":
            self._look_at(self._trees(), [self.model.after("cut")])

    def _end(self, way: str) -> bool:
        """The process does; whether it could close the space."""
        is_closed = way == "closed" and not self.fs.crashed and not self.fs.failed
        self.fs.crash_after, self.fs.fail_after = None, None
        self.fs.heal()
        if is_closed:
            self.space.close()
        self.server.is_dead = True
        self.fs.survive_kill()
        return is_closed

    def _cut(self, allowed: Sequence[Model]) -> None:
        """The world goes on from one of the trees that this may leave, and some others are looked at."""
        trees = self._trees()
        self.dice.shuffle(trees)
        self._look_at(trees[1:], allowed)
        self.fs = self._disk(trees[0])


def _with(model: Model, effect: Effect) -> Model:
    after = model.copy()
    effect(after)
    after.expect()
    return after
