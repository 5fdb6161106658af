"""The story of a batch: branches of every kind are prepared for it, some are committed, and all others are undone.

Another batch of its query was decided before, whose record goes with this one's; a branch of somebody else is in doubt
beside them. ``judge`` holds what a crash left to what was promised: the batch is decided as a whole, or not at all, and
what it was made from is known with it, so that no other one is ever taken for it, nor for the one before.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from support.crash_level import Level, follow, open_space
from support.crash_story import FRESH, Became, Contents, Put, Take, do, look, message_id, shown, xid_of
from support.forgetful import Tree
from xaqueue.batch import ONE_SPACE, Batch, BatchDecision, Plan
from xaqueue.core.engine.state import Space
from xaqueue.core.model import layout
from xaqueue.errors import InvalidArgument, RolledBack
from xaqueue.features.batches import record
from xaqueue.features.session import Session
from xaqueue.xa import Flag
from xaqueue.xid import Xid

BEFORE, BATCH = Batch("query", 6), Batch("query", 7)
EARLIER: dict[bytes, tuple[Put | Take, ...]] = {b"e0": (Put("a", 1),)}
LISTED: dict[bytes, tuple[Put | Take, ...]] = {
    b"p0": (Put("a", 2),),
    b"p1": (Put("a", 3), Put("b", 4)),
    b"p2": (Put("c", 5), Take("a", 100)),
    b"p3": (Take("a", 101),),
}
OTHERS: dict[bytes, tuple[Put | Take, ...]] = {
    b"q0": (Put("a", 6),),
    b"q1": (Put("b", 7), Take("b", 102)),
}
BESIDE, CONSUMER = xid_of(9), xid_of(10)
CONSUMED = ("a", 2), ("a", 3), ("c", 5)
"""What is taken as soon as it is there, in this order."""
MESSAGES = 4
EARLIER_PLAN, PLAN, OTHER_PLAN = (Plan(digit * 64, f"offsets {digit}", ("here",)) for digit in "678")

UNDONE: Contents = {("a", 1): False, ("a", 100): False, ("a", 101): False, ("b", 102): False}
UNDECIDED: Contents = {**UNDONE, ("a", 100): True, ("a", 101): True, ("b", 102): True}
DECIDED: Contents = {
    ("a", 1): False,
    **dict.fromkeys((("a", 2), ("a", 3), ("b", 4), ("c", 5), ("b", 102)), False),
}


def xid(bqual: bytes, batch: Batch = BATCH) -> Xid:
    return Xid(ONE_SPACE, batch.gtrid, bqual)


WINNERS = tuple(map(xid, LISTED))
LOSERS = tuple(map(xid, OTHERS))


@dataclass
class Promise:
    """What was acknowledged, and what a reader of the directories could see."""

    decided: bool | None = None
    """None: nobody was told yet."""
    consumed: int = 0
    """How many of CONSUMED."""
    asked: int = 0
    """How many of them were asked for."""
    shown: dict[tuple[str, int], int] = field(default_factory=dict)
    highest: dict[str, int] = field(default_factory=dict)
    """By queue, the highest number that was ever seen: no later message gets it."""

    def key(self) -> object:
        numbers = tuple(sorted(self.shown.items())), tuple(sorted(self.highest.items()))
        return self.decided, self.consumed, self.asked, numbers


def prepare(session: Session, branch: Xid, work: tuple[Put | Take, ...], level: Level) -> None:
    session.start(branch)
    for each in work:
        do(session, each)
    follow(session.space, level, "start")
    session.end(branch)
    session.prepare(branch)
    follow(session.space, level, "prepare")


def show(killed: Tree, promise: Promise) -> None:
    """Notes what a reader sees in this tree and nobody takes."""
    taken = {(each.queue, each.message) for work in LISTED.values() for each in work if isinstance(each, Take)}
    taken.update(CONSUMED)
    promise.shown = {place: seq for place, seq in shown(killed).items() if place not in taken}


def prepared(space: Space, level: Level, promise: Promise) -> Session:
    """Everything before the decision; who makes it."""
    session = Session(space)
    for bqual, work in EARLIER.items():
        prepare(session, xid(bqual, BEFORE), work, level)
    session.commit_all(BEFORE, [xid(bqual, BEFORE) for bqual in EARLIER], plan=EARLIER_PLAN)
    follow(space, level, "commit")
    for bqual, work in (LISTED | OTHERS).items():
        prepare(session, xid(bqual), work, level)
    prepare(session, BESIDE, (Put("a", 8),), level)
    return session


def decide(session: Session, promise: Promise, *, undo: bool) -> None:
    if undo:
        assert session.rollback_all(BATCH) == len(WINNERS) + len(LOSERS)
    else:
        decision = session.commit_all(BATCH, WINNERS, plan=PLAN)
        assert (decision.xids, decision.messages) == (WINNERS, MESSAGES)
        seen = look(session.space, session)
        assert (seen.contents, seen.listed) == (DECIDED, {BESIDE: Became.IN_DOUBT})
        promise.highest = {queue: seq for (queue, _), seq in sorted(seen.seqs.items(), key=lambda item: item[1])}
    promise.decided = not undo


def judge(tree: Tree, promise: Promise, level: Level) -> None:
    """AssertionError unless the tree, opened, keeps the promise, and the same decision can be asked for again."""
    space = open_space(tree.open_for_good(), level)
    decision = found(space, promise)
    session = Session(space)
    _is_told_from_others(session, decision)
    again = session.commit_all(BATCH, WINNERS, plan=PLAN)
    assert decision in (None, again)
    assert (again.xids, again.messages) == (WINNERS, MESSAGES)
    _is_over(space, session, allowed(promise) if decision else [DECIDED], promise.highest)
    if decision is None:
        other = Session(open_space(tree.open_for_good(), level))
        assert other.rollback_all(BATCH) == len(WINNERS) + len(LOSERS)
        assert look(other.space, other).contents == UNDONE
        assert other.decision(BATCH) is None


def _is_told_from_others(session: Session, decision: BatchDecision | None) -> None:
    """The last batch that was decided is not taken for another one, nor is one before it."""
    batch, plan = (BEFORE, EARLIER_PLAN) if decision is None else (BATCH, PLAN)
    assert session.commit_all(batch, [], plan=plan).plan == plan
    with pytest.raises(InvalidArgument, match=f"up to batch {batch.number}"):
        session.commit_all(Batch(batch.query, batch.number - 1), [], plan=plan)
    with pytest.raises(InvalidArgument, match="written before, made from"):
        session.commit_all(batch, [], plan=OTHER_PLAN)


def judge_undone(tree: Tree, promise: Promise, level: Level) -> None:
    """AssertionError unless nothing of the batch is committed, and the rest of it can be rolled back."""
    space = open_space(tree.open_for_good(), level)
    assert not space.report.quarantined
    session = Session(space)
    assert session.decision(BATCH) is None
    seen = look(space, session)
    left = set(seen.listed) - {BESIDE}
    assert left <= set() if promise.decided is False else left <= {*WINNERS, *LOSERS}
    held = {each for bqual, work in (LISTED | OTHERS).items() if xid(bqual) in left for each in work}
    locked = {(each.queue, each.message): True for each in held if isinstance(each, Take)}
    assert seen.contents == UNDONE | locked
    assert session.rollback_all(BATCH) == len(left)
    assert look(space, session).contents == UNDONE
    assert session.decision(BEFORE) is not None


def found(space: Space, promise: Promise) -> BatchDecision | None:
    """What this space says just after its recovery; AssertionError where that is not what was promised."""
    assert not space.report.quarantined, "a mere crash damages nothing"
    session = Session(space)
    decision, seen = session.decision(BATCH), look(space, session)
    assert promise.decided in (None, decision is not None)
    if decision is None:
        assert seen.contents == UNDECIDED
        assert seen.listed == dict.fromkeys((*WINNERS, *LOSERS, BESIDE), Became.IN_DOUBT)
        assert session.decision(BEFORE) is not None
    else:
        assert (decision.batch, decision.xids, decision.messages, decision.plan) == (BATCH, WINNERS, MESSAGES, PLAN)
        assert seen.contents in allowed(promise)
        assert seen.listed == {BESIDE: Became.IN_DOUBT}
    for place, seq in promise.shown.items():
        assert seen.seqs[place] == seq, "what a reader has seen stays"
    numbers = [(queue, seq) for (queue, _), seq in seen.seqs.items()]
    assert len(set(numbers)) == len(numbers)
    return decision


def allowed(promise: Promise) -> list[Contents]:
    """What the queues may hold once the batch is decided."""
    counts = range(promise.consumed, promise.asked + 1)
    return [{place: locked for place, locked in DECIDED.items() if place not in CONSUMED[:n]} for n in counts]


def _is_over(space: Space, session: Session, may_be: list[Contents], highest: dict[str, int]) -> None:
    """All is as if there had been no crash."""
    seen = look(space, session)
    assert seen.contents in may_be
    assert seen.listed == {BESIDE: Became.IN_DOUBT}
    space.log.settle()
    assert [name.partition(".")[2] for name in space.fs.list(record.BATCHES)] == [f"{BATCH.number:016x}"]
    assert {layout.parse_block(name) for name in space.fs.list(layout.PREPARED)} == {(BESIDE, layout.FIRST)}
    assert space.fs.list(layout.ACTIVE) == []
    late = xid(b"late")
    session.start(late)
    with pytest.raises(RolledBack, match="too late"):
        session.end(late)
    session.rollback(late)
    session.start(CONSUMER)
    for queue in highest:
        session.enqueue(queue, b"", message_id=message_id(FRESH))
    session.end(CONSUMER)
    session.commit(CONSUMER, Flag.ONEPHASE)
    seqs = look(space, session).seqs
    assert all(seqs[queue, FRESH] > seq for queue, seq in highest.items())
