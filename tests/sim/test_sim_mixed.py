"""All policies of queues at once against one small model, under any order of work, kills, power cuts and levels.

``work`` has priorities, groups, retries, a failure queue, keys against repeated messages, a limit, and subscribes to
what is hot; ``other`` gets all that is published. The failure queue has room for one. A failure says its seed;
``XAQUEUE_SIM_SEED`` replays it, ``XAQUEUE_CRASH_FULL=1`` plays far longer.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from support.crash_level import FILLING, LAGGING, NOON_US, STRICT, Level, level_of, open_space, ready
from support.crash_story import EMPTY
from support.forgetful import Crashed
from support.simulating import simulate
from xaqueue.core.engine import timeouts
from xaqueue.core.model.definitions import Definitions, QueueDefinition
from xaqueue.core.model.order import Order
from xaqueue.errors import LeaseExpired, QueueFull, ResourceFailed, RetryLater, RolledBack
from xaqueue.features.dedup import dedup
from xaqueue.features.retries import moving
from xaqueue.features.session import Session
from xaqueue.features.streams import cleanup
from xaqueue.message import MessageId
from xaqueue.xa import Code, Flag
from xaqueue.xid import Xid

TRIES, DELAY_US, WINDOW_US, SECOND_US = 2, 5_000_000, 20_000_000, 1_000_000
ROOM = {"work": 6, "failed": 1, "other": 1000}
DEFINED = Definitions(
    {
        "work": QueueDefinition(
            Order.PRIORITY,
            options={
                "max_tries": TRIES,
                "retry_delay_s": DELAY_US / 1e6,
                "retry_multiplier": 1,
                "failure_queue": "failed",
                "dedup_window_s": WINDOW_US / 1e6,
                "max_messages": ROOM["work"],
                "topic": "news",
                "match": {"kind": "hot*"},
            },
        ),
        "failed": QueueDefinition(options={"max_messages": ROOM["failed"]}),
        "other": QueueDefinition(options={"topic": "news"}),
    },
    tables={"topics": {"news": {}}},
)
LEVELS = (STRICT, level_of("FSYNC;DSYNC"), LAGGING, FILLING)
TO = {"enqueue": ("work",), "several": ("other", "work"), "hot": ("other", "work"), "cold": ("other",)}
PICK = st.integers(0, 3)
WAYS = st.sampled_from(["closed", "killed", "cut"])
DICE = st.integers(0, 2**32)
THEN = st.sampled_from(["commit", "", "", "prepare", "rollback"])
GOES_ON = ("move", "wait", "move", "move", "move", "clear", "follow", "checkpoint", "restart", "restart")


@dataclass(eq=False)
class Known:
    """A message, as the model has it. least, most: tries that it may have, since the power was cut."""

    number: int
    queue: str
    group: str | None = None
    priority: int = 4
    due_us: int = 0
    key: str | None = None
    tries: int = 0
    least: int = 0
    most: int = 0

    @property
    def leaves(self) -> bool:
        return self.queue == "work" and self.tries >= TRIES


@dataclass
class Branch:
    adds: list[Known] = field(default_factory=list)
    takes: list[Known] = field(default_factory=list)
    moves: list[Known] = field(default_factory=list)
    """Of what it takes, that of which no delivery fails."""
    is_prepared: bool = False


@dataclass
class Model:
    """Messages in the order of their commits, branches by number, leases, and keys with their message and its end."""

    now_us: int = NOON_US
    known: list[Known] = field(default_factory=list)
    branches: dict[int, Branch] = field(default_factory=dict)
    leases: dict[bytes, Known] = field(default_factory=dict)
    seen: dict[str, tuple[int, int]] = field(default_factory=dict)

    def held(self) -> list[Known]:
        return [*self.leases.values(), *(one for branch in self.branches.values() for one in branch.takes)]

    def next(self, queue: str, own: list[Known]) -> Known | None:
        held = [one for one in self.held() if one.queue == queue]
        groups = {one.group for one in held if one not in own} - {None}
        here = [one for one in self.known if one.queue == queue and not one.leaves and one not in held]
        first = {one.group: one for one in reversed(here)}
        due = [one for one in here if one.due_us <= self.now_us and one.group not in groups]
        due = [one for one in due if one.group is None or first[one.group] is one]
        return min(due, key=lambda one: -one.priority if queue == "work" else 0, default=None)

    def room(self, queue: str, branch: Branch) -> int:
        held = [*self.known, *(one for each in self.branches.values() for one in each.adds)]
        counted = sum(one.queue == queue for one in held) - sum(one.queue == queue for one in branch.takes)
        return ROOM[queue] - counted

    def first_of(self, key: str | None) -> int | None:
        number, until_us = self.seen.get(key or "", (0, 0))
        return number if until_us > self.now_us else None

    def is_undecided(self, branch: Branch) -> bool:
        claimed = {one.key for other in self.branches.values() if other.is_prepared for one in other.adds} - {None}
        return any(one.key in claimed and self.first_of(one.key) is None for one in branch.adds)

    def prepare(self, number: int) -> None:
        branch = self.branches[number]
        if self.is_undecided(branch):
            self.rollback(number)
            return
        branch.adds = [one for one in branch.adds if self.first_of(one.key) is None]
        branch.is_prepared = True
        if not branch.adds and not branch.takes:
            del self.branches[number]

    def commit(self, number: int) -> None:
        if not self.branches[number].is_prepared:
            self.prepare(number)
        branch = self.branches.pop(number, Branch())
        self.known = [one for one in self.known if one not in branch.takes] + branch.adds
        self.seen |= {one.key: (one.number, self.now_us + WINDOW_US) for one in branch.adds if one.key is not None}

    def rollback(self, number: int) -> None:
        branch = self.branches.pop(number)
        for one in branch.takes:
            if one not in branch.moves:
                self.fail(one)

    def fail(self, one: Known) -> None:
        one.tries, one.due_us = one.tries + 1, self.now_us + DELAY_US if one.queue == "work" else 0

    def after(self, way: str) -> Model:
        """What has not prepared is rolled back. With the power tries may go, and one handed back may count as one."""
        left = deepcopy(self)
        for number in [number for number, branch in left.branches.items() if not branch.is_prepared]:
            left.rollback(number)
        for one in left.leases.values():
            left.fail(one)
        left.leases.clear()
        for one in left.known:
            one.least, one.most = (0, one.tries + 1) if way == "cut" else (one.tries, one.tries)
        return left


class Machine(RuleBasedStateMachine):
    level: Level

    def __init__(self) -> None:
        super().__init__()
        self.fs, self.model, self.numbers = ready(EMPTY, self.level).open(), Model(), 0
        self._open()

    def _open(self) -> None:
        self.space = open_space(self.fs, self.level, definitions=DEFINED, now_us=lambda: self.model.now_us)
        self.sessions: dict[int, Session] = {}

    def _at_work(self, pick: int) -> tuple[Session, Branch, int]:
        """One of those that are not prepared, or a new one."""
        found = [number for number, branch in self.model.branches.items() if not branch.is_prepared]
        if pick >= len(found):
            self.numbers += 1
            found, pick = [self.numbers], 0
            self.sessions[self.numbers], self.model.branches[self.numbers] = Session(self.space), Branch()
            self.sessions[self.numbers].start(_xid(self.numbers))
        return self.sessions[found[pick]], self.model.branches[found[pick]], found[pick]

    def _then(self, number: int, verb: str) -> None:
        if verb:
            after = deepcopy(self.model)
            getattr(after, verb)(number)
            self._end(number, verb)
            self.model = after

    @rule(
        pick=PICK,
        how=st.sampled_from([*TO, "enqueue"]),
        group=st.sampled_from([None, "a", "a", "b"]),
        priority=st.sampled_from([4, 4, 9]),
        delay_s=st.sampled_from([0, 0, 0, 12]),
        key=st.sampled_from([None, "k", "k", "l"]),
        then=THEN,
    )
    def put(
        self, pick: int, how: str, group: str | None, priority: int, delay_s: int, key: str | None, then: str
    ) -> None:
        session, branch, at = self._at_work(pick)
        self.numbers += 1
        number, due_us = self.numbers, self.model.now_us + delay_s * SECOND_US
        own = next((one.number for one in branch.adds if key is not None and one.key == key), None)
        first = self.model.first_of(key) or own
        queues = [queue for queue in TO[how] if queue != "work" or first is None]
        put: Callable[..., MessageId] = session.enqueue if how == "enqueue" else session.enqueue_to
        to: object = "work" if how == "enqueue" else list(TO[how])
        if how in ("hot", "cold"):
            put, to = session.publish, "news"
        options = {"headers": {"kind": how}, "group": group, "priority": priority, "dedup_key": key}
        try:
            found = put(to, b"body", message_id=_id(number), not_before=due_us if delay_s else None, **options)
        except QueueFull:
            assert min(self.model.room(queue, branch) for queue in queues) < 1
            return
        assert all(self.model.room(queue, branch) > 0 for queue in queues)
        assert found == _id(number if queues else first or 0)
        for queue in queues:
            branch.adds.append(Known(number, queue, group, priority, due_us, key if queue == "work" else None))
        self._then(at, then)

    @precondition(lambda self: self.model.known)
    @rule(
        pick=PICK,
        queue=st.sampled_from(["work", "work", "work", "other"]),
        count=st.integers(1, 3),
        then=THEN | st.just("rollback"),
    )
    def take(self, pick: int, queue: str, count: int, then: str) -> None:
        session, branch, at = self._at_work(pick)
        for _ in range(count):
            wanted, found = self.model.next(queue, branch.takes), session.dequeue(queue)
            assert (found and (found.message_id, found.tries)) == (wanted and (_id(wanted.number), wanted.tries))
            if wanted is not None:
                branch.takes.append(wanted)
        self._then(at, then)

    @precondition(lambda self: any(one.queue == "failed" for one in self.model.known))
    @rule(pick=PICK, which=PICK)
    def requeue(self, pick: int, which: int) -> None:
        free = [one for one in self.model.known if one.queue == "failed" and one not in self.model.held()]
        if not free:
            return
        (session, branch, _), one = self._at_work(pick), free[which % len(free)]
        if self.model.room("work", branch) < 1:
            with pytest.raises(QueueFull):
                session.move("failed", _id(one.number))
            return
        assert session.move("failed", _id(one.number)) == _id(one.number)
        branch.takes.append(one)
        branch.moves.append(one)
        branch.adds.append(Known(one.number, "work", one.group, one.priority))

    @precondition(lambda self: self.model.known)
    @rule(count=st.integers(1, 3))
    def receive(self, count: int) -> None:
        found = Session(self.space).receive("work", count)
        for lease, message in found:
            wanted = self.model.next("work", [])
            assert wanted is not None
            assert (message.message_id, message.tries) == (_id(wanted.number), wanted.tries)
            self.model.leases[lease] = wanted
        assert len(found) == count or self.model.next("work", []) is None

    @precondition(lambda self: self.model.leases)
    @rule(pick=PICK, how=st.sampled_from(["ack", "nack", "reject", "late", "accept"]), which=PICK)
    def settle(self, pick: int, how: str, which: int) -> None:
        lease = list(self.model.leases)[which % len(self.model.leases)]
        one, session = self.model.leases.pop(lease), Session(self.space)
        if how == "accept":
            session, branch, _ = self._at_work(pick)
            session.accept("work", lease)
            branch.takes.append(one)
        elif how == "late":
            session.extend("work", lease, 1.0)
            assert timeouts.expire(self.space, time.monotonic() + 2, float("inf")) == 1
            self.model.fail(one)
            with pytest.raises(LeaseExpired):
                session.settle("work", lease, "ack")
        elif how == "reject" and self.model.room("failed", Branch()) < 1:
            with pytest.raises(QueueFull):
                session.settle("work", lease, how, "no")
            self.model.leases[lease] = one
        else:
            session.settle("work", lease, how, "no" if how == "reject" else None)
            if how == "nack":
                one.due_us = self.model.now_us + DELAY_US
                return
            self.model.known.remove(one)
            if how == "reject":
                self.model.known.append(Known(one.number, "failed", one.group, one.priority))

    @precondition(lambda self: self.model.branches)
    @rule(pick=PICK, how=st.integers(0, 5), crash_after=st.integers(-90, 30), way=WAYS, dice=DICE)
    def finish(self, pick: int, how: int, crash_after: int, way: str, dice: int) -> None:
        """A crash comes within the verb, or behind it; or none."""
        number = list(self.model.branches)[pick % len(self.model.branches)]
        verbs = ("commit", "rollback") if self.model.branches[number].is_prepared else ("prepare", "commit", "rollback")
        verb = verbs[how % len(verbs)]
        if crash_after < 0:
            self._then(number, verb)
            return
        before, after = self.model.after(way), deepcopy(self.model)
        getattr(after, verb)(number)
        self.fs.crash_after = self.fs.calls + crash_after
        try:
            self._end(number, verb)
            before = after.after(way)
        except (Crashed, ResourceFailed):
            assert self.fs.crashed
        self._reopen([before, after.after(way)], way, self.level, dice)

    def _end(self, number: int, verb: str) -> None:
        branch, session = self.model.branches[number], self.sessions.pop(number, None) or Session(self.space)
        if not branch.is_prepared:
            session.end(_xid(number))
        flags = Flag.ONEPHASE if verb == "commit" and not branch.is_prepared else Flag.NOFLAGS
        try:
            getattr(session, verb)(_xid(number), flags)
        except RolledBack as refused:
            if refused.code is not Code.XA_RBTRANSIENT or not self.model.is_undecided(branch):
                raise
        else:
            assert verb == "rollback" or branch.is_prepared or not self.model.is_undecided(branch)

    def _reopen(self, allowed: list[Model], way: str, level: Level, dice: int) -> None:
        self.fs.crash_after = None
        if way == "closed" and not self.fs.crashed:
            self.space.close()
        self.fs.survive_kill()
        self.level = level
        if way == "cut":
            self.fs = self.fs.tree_by_chance(random.Random(dice)).open()
        self._open()
        explained = [model for model in allowed if self._shows(model)]
        assert explained, f"{self._seen()}, allowed {allowed}"
        self.model = explained[0]
        for one in self.model.known:
            entry = self.space.queue(one.queue).index.find(_id(one.number))
            assert entry is not None
            one.tries, one.due_us = entry.tries, entry.not_before or 0

    @rule(
        what=st.sampled_from(GOES_ON),
        seconds=st.sampled_from([5, 10, 20]),
        way=WAYS,
        level=st.sampled_from(LEVELS),
        dice=DICE,
    )
    def go_on(self, what: str, seconds: int, way: str, level: Level, dice: int) -> None:
        """One rule, so that most steps are those of branches."""
        if what == "clear":
            dedup.clear(self.space, cleanup.never)
            assert len(self.space.queue("work").keys.ends) == sum(map(bool, map(self.model.first_of, self.model.seen)))
        elif what == "move" and any(one.leaves for one in self.model.known):
            self._move()
        elif what == "restart":
            self._reopen([self.model.after(way)], way, level, dice)
        elif what in ("follow", "checkpoint"):
            (self.space.log.settle if what == "follow" else self.space.checkpoint)()
        else:
            self.model.now_us += seconds * SECOND_US

    def _move(self) -> None:
        """As many as the failure queue has room for."""
        leaving = {one.number: one for one in self.model.known if one.leaves and one not in self.model.held()}
        room, before = max(self.model.room("failed", Branch()), 0), set(self._seen()[0]["failed"])
        try:
            moving.move_exhausted(self.space, cleanup.never)
            assert len(leaving) <= room
        except RetryLater:
            assert len(leaving) > room
        moved = [number for number in self._seen()[0]["failed"] if number not in before]
        assert len(moved) == min(len(leaving), room)
        for one in [leaving[number] for number in moved]:
            self.model.known.remove(one)
            self.model.known.append(Known(one.number, "failed", one.group, one.priority))

    def _seen(self) -> tuple[dict[str, dict[int, int]], set[Xid], dict[str, int]]:
        """By queue, in the order of commits, the tries of each; what is in doubt; how much is pending."""
        queues = {name: self.space.queue(name) for name in ROOM}
        found = {name: sorted(queue.index.entries(0), key=lambda entry: entry.seq) for name, queue in queues.items()}
        contents = {name: {int.from_bytes(e.message_id, "big"): e.tries for e in found[name]} for name in ROOM}
        in_doubt = Session(self.space).recover(1000, Flag.STARTRSCAN | Flag.ENDRSCAN)
        return contents, set(in_doubt), {name: len(queue.pending) for name, queue in queues.items()}

    def _shows(self, model: Model) -> bool:
        contents, in_doubt, pending = self._seen()
        branches = model.branches.values()
        return (
            all([*contents[name]] == [one.number for one in model.known if one.queue == name] for name in ROOM)
            and all(one.least <= contents[one.queue][one.number] <= one.most for one in model.known)
            and in_doubt == {_xid(number) for number, branch in model.branches.items() if branch.is_prepared}
            and all(sum(one.queue == name for b in branches for one in b.adds) == pending[name] for name in ROOM)
        )

    @invariant()
    def the_model_explains_what_is_seen(self) -> None:
        for one in self.model.known:
            one.least = one.most = one.tries
        assert self._shows(self.model), f"{self._seen()} is not {self.model}"


def _id(number: int) -> MessageId:
    return MessageId(number.to_bytes(16, "big"))


def _xid(number: int) -> Xid:
    return Xid(1, b"%d" % number, b"")


@pytest.mark.crash
@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("level", [STRICT, LAGGING, FILLING], ids=str)
def test_any_order_of_all_of_it(level: Level) -> None:
    machine = type("OfThisLevel", (Machine,), {"level": level})
    simulate(machine, sample=35, steps=60)
