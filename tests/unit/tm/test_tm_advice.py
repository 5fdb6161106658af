"""Advice is what the transaction manager itself would do: held against every small world that the protocol allows.

A world is how a transaction of up to three participants really stands: how far its coordinator came, what each branch
is, and who meddled by hand. What is seen of it is less: logs are lost or another's, participants do not answer, do not
remember, or can only tell what is in doubt.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import NamedTuple

import pytest

from xaqueue.tm.advice import Advised, advise
from xaqueue.tm.advice import LogStatus as Log
from xaqueue.tm.advice import ParticipantStatus as Says
from xaqueue.tm.gtrid import Gtrid
from xaqueue.tm.log_directory import LogView
from xaqueue.tm.records import DecisionTable, Heuristic, OpenDecision
from xaqueue.tm.voting import ParticipantOutcome
from xaqueue.xa import Outcome

NAMES = ("a", "b", "c")
HANDS = ("hand commit", "hand rollback", "hand mixed")


class World(NamedTuple):
    """decision: what the coordinator has decided or will decide for want of a record; "open" while it may do either."""

    decision: str
    log: Log
    branches: tuple[str, ...]

    @property
    def in_doubt(self) -> bool:
        return "prepared" in self.branches

    @property
    def mixed(self) -> bool:
        """Whether some of it is committed and some rolled back, or was by hand against what is decided."""
        ends = {branch.removeprefix("hand ") for branch in self.branches if branch in (*HANDS, "commit", "rollback")}
        return "mixed" in ends or {"commit", "rollback"} <= ends | {self.decision}


def worlds(count: int) -> Iterator[World]:
    voting = ("working", "prepared", "read-only", *HANDS)
    undone = ("gone", "prepared", "read-only", "rollback", *HANDS)
    decided = ("prepared", "commit", "read-only", *HANDS)
    over = ("commit", "read-only", *HANDS)
    for stage, states, decision, logs in (
        ("voting", voting, "open", (Log.LIVE,)),
        ("undone", undone, "rollback", (Log.LIVE, Log.NONE)),
        ("told of a rollback that somebody had forestalled", undone, "rollback", (Log.ROLLBACK,)),
        ("decided", decided, "commit", (Log.COMMIT,)),
        ("over", over, "commit", (Log.LIVE, Log.NONE, Log.COMMIT)),
    ):
        for branches in product(states, repeat=count):
            if stage in ("decided", "over") and set(branches) == {"read-only"}:
                continue  # then there is nothing to decide
            for log in logs:
                yield World(decision, log, branches)


def seen(branch: str) -> tuple[Says, ...]:
    """Everything that a participant may say of it: those that tell outcomes, those that only list what is in doubt."""
    if branch == "prepared":
        return Says.IN_DOUBT, Says.UNREACHABLE
    told = {
        "commit": Says.COMMITTED,
        "rollback": Says.ROLLED_BACK,
        "hand commit": Says.BY_HAND_COMMITTED,
        "hand rollback": Says.BY_HAND_ROLLED_BACK,
        "hand mixed": Says.BY_HAND_MIXED,
    }.get(branch)
    unsaid = (Says.ABSENT, Says.UNREACHABLE)
    return (told, *unsaid) if told is not None else unsaid


def evidence(count: int) -> dict[tuple[Log, tuple[Says, ...]], list[World]]:
    """All that can be seen, with the worlds in which it can."""
    found: dict[tuple[Log, tuple[Says, ...]], list[World]] = {}
    for world in worlds(count):
        for log in (world.log, Log.FOREIGN, Log.UNREAD, Log.OLDER, Log.ELSEWHERE):
            for says in product(*(seen(branch) for branch in world.branches)):
                found.setdefault((log, says), []).append(world)
    return found


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_advice_holds_in_every_world_that_looks_so(count: int) -> None:
    answers = set()
    for (log, says), possible in evidence(count).items():
        advice = advise(log, dict(zip(NAMES, says, strict=False)))
        where = (log, says, advice)
        answers.add(advice.answer)
        waiting = [world for world in possible if world.in_doubt]
        decisions = {world.decision for world in waiting}
        if advice.answer is Advised.COMMIT:
            assert decisions <= {"commit"}, where
        if advice.answer is Advised.ROLLBACK:
            assert decisions <= {"rollback"}, where
        if advice.answer is Advised.NOTHING:
            assert not waiting, where
        if advice.answer is Advised.MIXED:
            assert all(world.mixed for world in possible), where
        if advice.answer in (Advised.COMMIT, Advised.ROLLBACK):
            outcomes = {said for said in says if said is not Says.IN_DOUBT}
            wrong = (Says.ROLLED_BACK, Says.BY_HAND_ROLLED_BACK, Says.COMMITTED, Says.BY_HAND_COMMITTED)
            assert not outcomes & set(wrong[:2] if advice.answer is Advised.COMMIT else wrong[2:]), where
        assert set(advice.in_doubt) == {name for name, said in zip(NAMES, says, strict=False) if said is Says.IN_DOUBT}
    assert answers == set(Advised) - {Advised.RECOVER}  # which lasts tell, below


@pytest.mark.parametrize("count", [1, 2, 3])
def test_what_can_be_known_is_said(count: int) -> None:
    """Where every world that looks so has one decision, and none is mixed, that is the answer."""
    asked = 0
    for (log, says), possible in evidence(count).items():
        waiting = [world for world in possible if world.in_doubt]
        decisions = {world.decision for world in waiting}
        if Says.IN_DOUBT not in says or len(decisions) != 1 or decisions == {"open"}:
            continue
        if any(said.name.startswith("BY_HAND") for said in says):
            continue  # an operator is told what clashes, below
        asked += 1
        advice = advise(log, dict(zip(NAMES, says, strict=False)))
        assert advice.answer.value == decisions.pop(), (log, says, advice)
    assert asked


def test_nothing_is_advised_against_what_somebody_has_done_for_good() -> None:
    """Also where the protocol was not kept: a log that was tampered with, a person who acted as the coordinator."""
    for log, *says in product(Log, Says, Says, Says):
        advice = advise(log, dict(zip(NAMES, says, strict=True)))
        done = {said.name.removeprefix("BY_HAND_") for said in says}
        if "MIXED" in done or {"COMMITTED", "ROLLED_BACK"} <= done:
            assert advice.answer is Advised.MIXED, (log, says)
        elif "COMMITTED" in done:
            assert advice.answer is not Advised.ROLLBACK, (log, says)
        elif "ROLLED_BACK" in done:
            assert advice.answer is not Advised.COMMIT, (log, says)
        assert advice.why


@pytest.mark.parametrize(
    ("log", "queue", "ledger", "answer", "why"),
    [
        (Log.COMMIT, Says.IN_DOUBT, Says.ABSENT, Advised.COMMIT, "the decision log says commit"),
        (Log.COMMIT, Says.IN_DOUBT, Says.UNREACHABLE, Advised.COMMIT, "ledger does not answer"),
        (Log.UNREAD, Says.IN_DOUBT, Says.COMMITTED, Advised.COMMIT, "ledger has committed"),
        (Log.LAST, Says.IN_DOUBT, Says.COMMITTED, Advised.COMMIT, "ledger has committed"),
        (Log.LAST, Says.IN_DOUBT, Says.ABSENT, Advised.UNKNOWN, "a participant's database, which does not tell it"),
        (Log.NONE, Says.IN_DOUBT, Says.COMMITTED, Advised.COMMIT, "ledger has committed"),
        (Log.ROLLBACK, Says.IN_DOUBT, Says.COMMITTED, Advised.MIXED, "the decision log says rollback, and ledger has"),
        (Log.COMMIT, Says.IN_DOUBT, Says.ROLLED_BACK, Advised.MIXED, "the decision log says commit, and ledger has"),
        (Log.NONE, Says.IN_DOUBT, Says.ABSENT, Advised.ROLLBACK, "has no decision, and nobody can make one"),
        (Log.FOREIGN, Says.IN_DOUBT, Says.ROLLED_BACK, Advised.ROLLBACK, "ledger has rolled back"),
        (Log.FOREIGN, Says.IN_DOUBT, Says.ABSENT, Advised.UNKNOWN, "begun by another node"),
        (Log.FOREIGN, Says.IN_DOUBT, Says.BY_HAND_COMMITTED, Advised.UNKNOWN, "begun by another node"),
        (Log.LIVE, Says.IN_DOUBT, Says.IN_DOUBT, Advised.UNKNOWN, "wait for it, or stop it"),
        (Log.COMMIT, Says.IN_DOUBT, Says.BY_HAND_ROLLED_BACK, Advised.MIXED, "ledger has rolled back by hand"),
        (Log.NONE, Says.IN_DOUBT, Says.BY_HAND_COMMITTED, Advised.MIXED, "ledger has committed by hand"),
        (Log.NONE, Says.UNREACHABLE, Says.BY_HAND_COMMITTED, Advised.UNKNOWN, "ask again when all answer"),
        (Log.COMMIT, Says.COMMITTED, Says.ABSENT, Advised.NOTHING, "no branch is in doubt; queue has committed"),
        (Log.NONE, Says.ABSENT, Says.ABSENT, Advised.NOTHING, "no branch is in doubt"),
    ],
)
def test_cases(log: Log, queue: Says, ledger: Says, answer: Advised, why: str) -> None:
    advice = advise(log, {"queue": queue, "ledger": ledger})
    assert advice.answer is answer
    assert why in advice.why


@pytest.mark.parametrize(
    ("lasts", "queue", "ledger", "answer"),
    [
        (("ledger",), Says.IN_DOUBT, Says.ABSENT, Advised.RECOVER),
        (("ledger",), Says.UNREACHABLE, Says.ABSENT, Advised.RECOVER),
        (("ledger",), Says.ABSENT, Says.ABSENT, Advised.NOTHING),
        (("ledger",), Says.IN_DOUBT, Says.UNREACHABLE, Advised.UNKNOWN),
        (("ledger", "other"), Says.IN_DOUBT, Says.ABSENT, Advised.UNKNOWN),
        (("ledger",), Says.IN_DOUBT, Says.COMMITTED, Advised.COMMIT),
        (("ledger",), Says.BY_HAND_COMMITTED, Says.ABSENT, Advised.MIXED),
        ((), Says.IN_DOUBT, Says.ABSENT, Advised.UNKNOWN),
    ],
)
def test_where_no_database_has_a_row(lasts: tuple[str, ...], queue: Says, ledger: Says, answer: Advised) -> None:
    """Only where each that may have decided was asked, and the advice says what ends it."""
    advice = advise(Log.LAST, {"queue": queue, "ledger": ledger}, lasts)
    assert advice.answer is answer
    assert ("start the application, or run `xaqueue tm recover`" in advice.why) == (answer is Advised.RECOVER)


NODE, OTHER = "0123456789abcdef", "f" * 16


def said(
    gtrid: Gtrid,
    in_use: bool,
    decision: Outcome | None = None,
    lasts: dict[str, tuple[int, int]] | None = None,
    is_elsewhere: bool = False,
) -> Log:
    """By a log of its fifth boot."""
    table, key = DecisionTable(lasts=lasts or {}), bytes(gtrid)
    if decision is Outcome.COMMITTED:
        table.add(OpenDecision(key, ("a",), 0))
    elif decision is not None:
        table.note(Heuristic(key, "a", decision, ParticipantOutcome.HEUR_COMMITTED, 0))
    return LogView(NODE, 5, table, Path(), in_use, [], is_elsewhere).status(gtrid)


@pytest.mark.parametrize(
    ("epoch", "in_use", "decision", "says"),
    [
        (4, False, None, Log.NONE),
        (5, False, None, Log.NONE),
        (4, True, None, Log.NONE),
        (5, True, None, Log.LIVE),
        (6, False, None, Log.OLDER),
        (6, True, None, Log.OLDER),
        (5, True, Outcome.COMMITTED, Log.COMMIT),
        (4, False, Outcome.COMMITTED, Log.COMMIT),
        (4, False, Outcome.ROLLED_BACK, Log.ROLLBACK),
    ],
)
def test_what_a_log_of_its_fifth_boot_says(epoch: int, in_use: bool, decision: Outcome | None, says: Log) -> None:
    assert said(Gtrid(NODE, epoch, 7), in_use, decision) is says
    assert said(Gtrid(OTHER, epoch, 7), in_use, decision) is Log.FOREIGN


@pytest.mark.parametrize(
    ("epoch", "in_use", "says"),
    [(4, False, Log.NONE), (5, False, Log.ELSEWHERE), (5, True, Log.LIVE), (6, False, Log.OLDER)],
)
def test_what_a_copy_says(epoch: int, in_use: bool, says: Log) -> None:
    """Of the boot in which it was made: a later one of the log ended those before it."""
    gtrid = Gtrid(NODE, epoch, 7)
    assert said(gtrid, in_use, is_elsewhere=True) is says
    assert said(gtrid, in_use, Outcome.COMMITTED, is_elsewhere=True) is Log.COMMIT


@pytest.mark.parametrize(
    ("epoch", "in_use", "says"), [(4, False, Log.LAST), (5, True, Log.LAST), (6, False, Log.OLDER)]
)
def test_what_a_log_says_of_a_decision_that_it_does_not_have(epoch: int, in_use: bool, says: Log) -> None:
    gtrid = Gtrid(NODE, epoch, 7)
    assert said(gtrid, in_use, lasts={"a": (4, 6)}) is says
