"""One world: a disk that forgets, a clock, sessions in the space's process and over a wire; and the model of it all.

A run is a seed and the numbers of its steps. Each step has dice of its own, and so has each feature, and each verb
when the next one is drawn: a run of fewer steps is drawn as before, which is how a failure gets short, and so are most
steps where a feature comes or goes. What may go wrong is drawn with the step: the power goes, or the process, at a call
within it or behind it; a sync fails; the disk is full; a request or an answer gets lost.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from sim import doors
from sim.model import ACTIVE, DONE_BY_HAND, IN_DOUBT, UNDONE_BY_HAND, Branch, Model, Rules
from sim.wire import Server
from support.crash_level import Level
from support.failing_disk import FailingFileSystem
from support.forgetful import Crashed, ForgetfulFileSystem, Tree
from xaqueue.core.engine.state import Space
from xaqueue.core.model.definitions import Definitions
from xaqueue.errors import ConnectionLost, Error, ResourceFailed, RetryLater, RolledBack
from xaqueue.features.retries.register import TRIES
from xaqueue.message import MessageId
from xaqueue.resource_manager import ResourceManager
from xaqueue.xa import Flag, Outcome
from xaqueue.xid import Xid

STEPS = 60
SECOND_US = 1_000_000
WAYS = ("closed", "killed", "cut", "cut")
FAULTS = ("crash",) * 6 + ("sync fails", "no room", "request", "answer", "answer")
LOOKS = 0.15
"""In so many steps it is looked at what a loss of power would leave behind them."""
EDGES = 0.6
"""So many queues begin near the edge of a range."""
QUIET = 20
"""So many steps of 31 have no fault."""
BECAME = {
    IN_DOUBT: Outcome.IN_DOUBT,
    DONE_BY_HAND: Outcome.COMMITTED,
    UNDONE_BY_HAND: Outcome.ROLLED_BACK,
}
ALL = Flag.STARTRSCAN | Flag.ENDRSCAN

T = TypeVar("T")
Effect = Callable[[Model], object]
Wrapped = Callable[[Callable[[], Any], Sequence[Model]], Any]
"""What performs a call which may come to one of these models: of the first, it has come to nothing."""


class Over(Exception):
    """The step ended in a crash, or its branch did."""


def id_of(number: int) -> MessageId:
    return MessageId(number.to_bytes(16, "big"))


def xid_of(number: int) -> Xid:
    return Xid(1, b"%d" % number, b"")


@dataclass
class Seat:
    """The session that works in a branch. is_near: in the process of the space."""

    manager: ResourceManager
    is_near: bool


def dice(*of: object) -> random.Random:
    """Always the same of the same: a seed, and what they are for."""
    return random.Random(" ".join(map(str, of)))


@dataclass
class World:
    seed: int
    model: Model
    dice: random.Random = field(init=False)
    """Of the step of now."""
    fs: FailingFileSystem = field(init=False)
    space: Space = field(init=False)
    server: Server = field(init=False)
    numbers: int = 0
    monotonic_s: float = 1000.0
    level: Level = field(init=False)
    way: str = "killed"
    """How the process ends if it does in this step."""
    fault: str = ""
    fuse: tuple[int, int] | None = None
    """After so many attempts, and then so many calls, the process of this step ends."""
    lose: str | None = None
    """What the wire is to lose, once there is a session."""
    seats: dict[int, Seat] = field(default_factory=dict)
    """The sessions that work in branches."""
    is_new: bool = True
    """The space was opened just now."""
    is_looking: bool = False
    """At what would come of it: the world goes on as if nobody did."""
    epoch: int = 0
    """Of who has opened the space last."""
    former: set[int] = field(default_factory=set)
    """The epochs of owners that were taken over."""
    around: dict[str, Any] = field(default_factory=dict)
    """What rules have beside the space, and no crash of it takes."""
    wrapped: Wrapped = field(default=lambda call, _: call())
    trace: list[str] = field(default_factory=list)
    rows: list[bytes] = field(default_factory=list)
    """What a database has, which is asked whenever the space is opened."""

    def __post_init__(self) -> None:
        self.dice = dice(self.seed)
        self.level = self.dice.choice(self.levels)
        edges = dice(self.seed, "edges")
        names = [name for name in self.model.queues() if edges.random() < EDGES]
        self.fs = self._disk(doors.new(self.level, {name: edges.randrange(6) for name in names}))
        self._open()

    @property
    def levels(self) -> tuple[Level, ...]:
        """Those at which all rules hold."""
        return tuple(level for level in doors.LEVELS if all(each.holds_at(level) for each in self.model.rules))

    def _disk(self, tree: Tree) -> FailingFileSystem:
        return doors.disk(tree, keeps_times=any(each.keeps_times for each in self.model.rules))

    def monotonic(self) -> float:
        return self.monotonic_s

    @property
    def defined(self) -> Definitions:
        return doors.defined(toml_of(self.model.rules))

    # What verbs use

    def pick(self, *states: str) -> int:
        """A branch in one of these states. Raises Over where there is none."""
        found, self.server.lose = self.model.among(*states), self.lose
        if not found:
            raise Over
        return self.dice.choice(found)

    def at_work(self) -> int:
        """A branch that is active: one of three, or a new one."""
        found, pick = self.model.among(ACTIVE), self.dice.randrange(3)
        if pick < len(found):
            self.server.lose = self.lose
            return found[pick]
        self.numbers += 1
        number, is_near = self.numbers, self.dice.random() < 0.5
        self.server.lose = None
        seat = Seat(doors.session(self.space) if is_near else self.server.connect(), is_near)
        self.server.lose = self.lose
        self._begin(number, seat, Branch(xid=xid_of(number)))
        return number

    def body(self, number: int) -> bytes:
        """Of the message of this number."""
        return (b"body of %d" % number).ljust(max(each.body_bytes for each in self.model.rules))

    def begin(self, branch: Branch) -> int:
        """With a session of its own, here."""
        self.numbers += 1
        self._begin(self.numbers, Seat(doors.session(self.space), True), branch)
        return self.numbers

    def _begin(self, number: int, seat: Seat, branch: Branch) -> None:
        seat.manager.start(branch.xid)
        self.seats[number], self.model.branches[number] = seat, branch

    def seat(self, number: int) -> ResourceManager:
        """Who works in it, or anybody who knows its name."""
        return self.seats[number].manager if number in self.seats else doors.session(self.space)

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

    def _burn(self) -> None:
        """The crash of this step is among the calls of one of its attempts, the later ones as well as the first."""
        if self.fuse is not None:
            attempts, calls = self.fuse
            self.fuse = (attempts - 1, calls) if attempts else None
            self.fs.crash_after = None if attempts else self.fs.calls + calls

    def strike(self) -> None:
        """The crash of this step, where it has one, is in the next attempt rather than in any."""
        if self.fuse is not None and self.dice.random() < 0.5:
            self.fuse = 0, self.fuse[1]

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
            call()
            self.model = after

    def _explain(self, allowed: Sequence[Model]) -> None:
        """One of the models shows what the space does."""
        self.model = self._explained(allowed)
        self.adopt()

    def _explained(self, allowed: Sequence[Model]) -> Model:
        explained = next((model for model in allowed if self._shows(model)), None)
        assert explained is not None, f"{self._seen()} is none of {[self._wanted(model) for model in allowed]}"
        return explained

    def adopt(self) -> None:
        """What numbers they have; how often each was tried, and what it is put off for: with the power, that may go."""
        contents, highest = self._seen()[0], dict(self.model.highest)
        unhardened = doors.unhardened(self.space)
        for one in self.model.all_shown():
            seq, tries = contents[one.queue][one.number]
            if seq < unhardened.get(one.queue, seq + 1):  # else it may be delivered anew, by another number
                assert one.seq or seq > highest.get(one.queue, 0), f"{one} has a number that was another's"
                self.model.highest[one.queue] = max(self.model.highest.get(one.queue, 0), seq)
                one.seq = seq
            one.is_owed = one.is_owed and tries <= one.tries
            one.tries = one.least = one.most = tries
            one.due_us = doors.due_us(self.space, one.queue, id_of(one.number))

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

    def replace(
        self,
        call: Callable[[ForgetfulFileSystem], object],
        after: Model,
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
                after = self.model.after("cut")
                break
        self.fs.crash_after, self.model = None, after
        self._open()
        self._explain([after])

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

    def _trees(self) -> list[Tree]:
        return [*self.fs.some_trees_after_crash(1, self.dice), self.fs.tree_by_chance(self.dice)]

    def look(self) -> None:
        """What a loss of power would leave now."""
        self._look_at(self._trees(), [self.model.after("cut")])

    def _look_at(self, trees: Sequence[Tree], allowed: Sequence[Model]) -> None:
        """What would come of each; the world goes on as if nobody had looked."""
        kept = self.fs, self.space, self.server, self.seats
        self.is_looking = True
        for tree in trees:
            self.fs = self._disk(tree)
            self._open()
            self._explained(allowed)
            for queue in sorted({"plain", *(name for each in self.model.rules for name in each.puts)}):
                self._put_one_more(queue)
        self.fs, self.space, self.server, self.seats = kept
        self.is_looking = self.is_new = False

    def _put_one_more(self, queue: str) -> None:
        """It gets a number that no message of the queue ever had."""
        session, xid = doors.session(self.space), Xid(3, b"one more", b"")
        session.start(xid)
        session.enqueue(queue, b"", message_id=id_of(0))
        session.end(xid)
        session.commit(xid, Flag.ONEPHASE)
        (seq,) = (one.seq for one in session.browse(queue) if one.message_id == id_of(0))
        assert seq > self.model.highest.get(queue, 0), f"{queue} gives the number {seq} again"

    def _open(self, *, closed_well: bool = False, on_branches: Callable[[Space], object] = lambda _: None) -> None:
        self.fs.struck.clear()
        self.epoch += 1
        self.space = doors.open_space(
            self.fs,
            replace(self.level, paired=self.is_paired),
            self.defined,
            lambda: self.model.now_us,
            on_branches,
            closed_well=closed_well,
            epoch=self.epoch,
            lost=partial(self._lost, self.epoch),
        )
        self.server = Server(self.space)
        self.seats = {}
        self.is_new = True
        self.fs.failed = False
        for each in self.model.rules:
            each.opened(self)

    def _lost(self, epoch: int) -> str:
        return f"of epoch {epoch} no more" if epoch in self.former else ""

    @property
    def is_paired(self) -> bool:
        return self.model.is_paired and bool(self.level.hardening.journal)

    def take_over(self, allowed: Sequence[Model]) -> None:
        """Another process has the space from now on; who had it goes on."""
        self.former.add(self.space.epoch)
        self.server.is_dead = True
        self._open()
        self._explain([model.after("killed") for model in allowed])

    # What is seen

    def _seen(self) -> tuple[dict[str, dict[int, tuple[int, int]]], dict[Xid, Outcome]]:
        """Of each queue the messages in the order of their commits, with number and tries; and what is not over."""
        session = doors.session(self.space)
        contents: dict[str, dict[int, tuple[int, int]]] = {}
        for name in self.model.queues():
            found = sorted(session.browse(name), key=lambda message: message.seq)
            contents[name] = {number_of(one.message_id): (one.seq, one.tries) for one in found}
            assert len(contents[name]) == len(found), "a message is there twice"
            for one in found:
                assert one.body == self.body(number_of(one.message_id))
        return contents, {xid: session.outcome(xid) for xid in session.recover(1000, ALL)}

    def _wanted(self, model: Model) -> object:
        return {name: model.shown(name) for name in model.queues()}, listed_in(model)

    def _shows(self, model: Model) -> bool:
        contents, listed = self._seen()
        return (
            all([*contents[name]] == [one.number for one in model.shown(name)] for name in model.queues())
            and all(one.least <= contents[one.queue][one.number][1] <= one.most for one in model.all_shown())
            and listed == listed_in(model)
            and all(one.seq in (0, contents[one.queue][one.number][0]) for one in model.all_shown())
            and all(each.shows(self) for each in model.rules)
        )

    def check(self) -> None:
        self.model.expect()
        self.is_new = False
        assert self._shows(self.model), f"{self._seen()} is not {self._wanted(self.model)}"
        self.adopt()

    # Steps

    def step(self, at: int) -> None:
        rules, name = self._drawn(at)
        self.dice = dice(self.seed, at)
        before = {(one.queue, one.number): one.tries for one in self.model.known}
        self._arm()
        self.perform(rules, name)
        self._disarm(before)
        self.check()
        if self.dice.random() < LOOKS:
            self.look()

    def perform(self, rules: Rules, name: str) -> None:
        self.trace.append(f"{name}{f', {self.fault}' if self.fault else ''}")
        with suppress(Over):
            getattr(self.model.of(type(rules)), name)(self)

    def _drawn(self, at: int) -> tuple[Rules, str]:
        """The verb of this step: the likelier a verb, the earlier its turn comes, by dice of its own."""
        turns = {
            (each, name): dice(self.seed, at, type(each).__name__, name).expovariate(weight)
            for each in self.model.rules
            for name, weight in each.weights.items()
        }
        return min(turns, key=turns.__getitem__)


def listed_in(model: Model) -> dict[Xid, Outcome]:
    return {branch.xid: BECAME[branch.state] for branch in model.branches.values() if branch.state in BECAME}


def _with(model: Model, effect: Effect) -> Model:
    after = model.copy()
    effect(after)
    after.expect()
    return after


def number_of(message_id: bytes) -> int:
    return int.from_bytes(message_id, "big")


def toml_of(rules: Sequence[Rules]) -> str:
    tables: dict[str, list[str]] = {}
    for each in rules:
        for table, line in each.toml:
            tables.setdefault(table, []).append(line)
    return "".join(f"[{table}]\n" + "".join(f"{line}\n" for line in lines) for table, lines in tables.items())
