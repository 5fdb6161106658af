"""A space on a disk that forgets: it is opened, again and again, and looked at whether it is what a model says."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from sim import doors
from sim.model import CAME_BACK, DONE_BY_HAND, IN_DOUBT, UNDONE_BY_HAND, Model, Rules
from sim.wire import Server
from support.crash_level import Level
from support.failing_disk import FailingFileSystem
from support.forgetful import Tree
from xaqueue.core.engine.state import Space
from xaqueue.core.model.definitions import Definitions
from xaqueue.core.storage.scheduling import THREADS
from xaqueue.message import MessageId
from xaqueue.resource_manager import ResourceManager
from xaqueue.xa import Flag, Outcome
from xaqueue.xid import Xid

EDGES = 0.6
"""So many queues begin near the edge of a range."""
BECAME = {
    IN_DOUBT: Outcome.IN_DOUBT,
    DONE_BY_HAND: Outcome.COMMITTED,
    UNDONE_BY_HAND: Outcome.ROLLED_BACK,
}
ALL = Flag.STARTRSCAN | Flag.ENDRSCAN


def id_of(number: int) -> MessageId:
    return MessageId(number.to_bytes(16, "big"))


@dataclass
class Seat:
    """The session that works in a branch. is_near: in the process of the space."""

    manager: ResourceManager
    is_near: bool


def dice(*of: object) -> random.Random:
    """Always the same of the same: a seed, and what they are for."""
    return random.Random(" ".join(map(str, of)))


@dataclass
class Opened:
    seed: int
    model: Model
    dice: random.Random = field(init=False)
    """Of the step of now."""
    fs: FailingFileSystem = field(init=False)
    space: Space = field(init=False)
    server: Server = field(init=False)
    level: Level = field(init=False)
    seats: dict[int, Seat] = field(default_factory=dict)
    """The sessions that work in branches."""
    is_new: bool = True
    """The space was opened just now."""
    is_looking: bool = False
    """At what would come of it: the world goes on as if nobody did."""
    epoch: int = 0
    """Of who has opened the space last."""
    former: int = 0
    """The epoch of the last one that was taken over: no earlier one is the owner, either."""
    trace: list[str] = field(default_factory=list)

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

    @property
    def defined(self) -> Definitions:
        return doors.defined(toml_of(self.model.rules))

    @property
    def is_paired(self) -> bool:
        return self.model.is_paired and bool(self.level.hardening.journal)

    def body(self, number: int) -> bytes:
        """Of the message of this number."""
        return (b"body of %d" % number).ljust(max(each.body_bytes for each in self.model.rules))

    def seat(self, number: int) -> ResourceManager:
        """Who works in it, or anybody who knows its name."""
        return self.seats[number].manager if number in self.seats else doors.session(self.space)

    def _disk(self, tree: Tree) -> FailingFileSystem:
        return doors.disk(tree, keeps_times=any(each.keeps_times for each in self.model.rules))

    def opening(self, *, closed_well: bool = False, on_branches: Callable[[Space], object] = lambda _: None) -> Space:
        """Another owner, which the world does not know yet."""
        self.fs.struck.clear()
        self.epoch += 1
        waiting = next((found for each in self.model.rules if (found := each.waiting(self)) is not None), THREADS)

        def begun(space: Space) -> None:
            for each in self.model.rules:
                each.begun(self, space)
            on_branches(space)

        return doors.open_space(
            self.fs,
            replace(self.level, paired=self.is_paired),
            self.defined,
            lambda: self.model.now_us,
            begun,
            closed_well=closed_well,
            epoch=self.epoch,
            lost=partial(self._lost, self.epoch),
            waiting=waiting,
        )

    def _open(self, *, closed_well: bool = False, on_branches: Callable[[Space], object] = lambda _: None) -> None:
        self.space = self.opening(closed_well=closed_well, on_branches=on_branches)
        self.server = Server(self.space)
        self.seats = {}
        self.is_new = True
        self.fs.failed = False
        for each in self.model.rules:
            each.opened(self)

    def _lost(self, epoch: int) -> str:
        return f"of epoch {epoch} no more" if epoch <= self.former else ""

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

    def shows(self, model: Model) -> bool:
        """Whether the space is as this model has it."""
        contents, listed = self._seen()
        return (
            all([*contents[name]] == [one.number for one in model.shown(name)] for name in model.queues())
            and all(one.least <= contents[one.queue][one.number][1] <= one.most for one in model.all_shown())
            and listed == listed_in(model)
            and doors.for_operator(self.space) == {one.xid for one in model.branches.values() if one.state == CAME_BACK}
            and all(one.seq in (0, contents[one.queue][one.number][0]) for one in model.all_shown())
            and all(each.shows(self) for each in model.rules)
        )

    def check(self) -> None:
        self.model.expect()
        self.is_new = False
        assert self.shows(self.model), f"{self._seen()} is not {self._wanted(self.model)}"
        self.adopt()

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

    def _explain(self, allowed: Sequence[Model]) -> None:
        """One of the models shows what the space does."""
        self.model = self._explained(allowed)
        self.adopt()

    def _explained(self, allowed: Sequence[Model]) -> Model:
        explained = next((model for model in allowed if self.shows(model)), None)
        assert explained is not None, f"{self._seen()} is none of {[self._wanted(model) for model in allowed]}"
        return explained

    # What a loss of power would leave

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

    def _trees(self) -> list[Tree]:
        return [*self.fs.some_trees_after_crash(1, self.dice), self.fs.tree_by_chance(self.dice)]


def listed_in(model: Model) -> dict[Xid, Outcome]:
    return {branch.xid: BECAME[branch.state] for branch in model.branches.values() if branch.state in BECAME}


def number_of(message_id: bytes) -> int:
    return int.from_bytes(message_id, "big")


def toml_of(rules: Sequence[Rules]) -> str:
    tables: dict[str, list[str]] = {}
    for each in rules:
        for table, line in each.toml:
            tables.setdefault(table, []).append(line)
    return "".join(f"[{table}]\n" + "".join(f"{line}\n" for line in lines) for table, lines in tables.items())
