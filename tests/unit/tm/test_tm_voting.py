"""Every interleaving of votes, failures and crashes of one and two participants ends the same for all, or is said.

Those of three are in ``tests/crash/test_tm_interleaving.py``.

The model below has no connection, log or clock: participants are a state each, the log is one value, and a crash is the
end of the generator. What is left is finished by the same rules that recovery uses.
"""

from __future__ import annotations

import pytest

from support.voting_world import (
    LAST,
    NAMES,
    PREPARED,
    Commit,
    CommitLast,
    CommitOnePhase,
    Decide,
    Prepare,
    Rollback,
    judged,
    vote,
)
from xaqueue.tm import voting
from xaqueue.tm.coordinator import LogSnapshot
from xaqueue.tm.gtrid import Gtrid
from xaqueue.tm.voting import (
    DECISION,
    Command,
    Replies,
    Reply,
    TransactionResult,
    XaVerb,
    heuristic_code,
)
from xaqueue.tm.voting import ParticipantOutcome as Ended
from xaqueue.xa import Code, Outcome


@pytest.mark.parametrize("tells", [True, False])
@pytest.mark.parametrize("names", [NAMES[:1], NAMES[:2]], ids=["one", "two"])
@pytest.mark.parametrize("last", [None, LAST])
def test_every_interleaving_ends_the_same_for_all(names: tuple[str, ...], last: str | None, tells: bool) -> None:
    """Votes, lost requests and answers, people, and a crash before and after each command."""
    is_parallel = len(names) > 1 and tells
    assert judged(lambda choices: vote(choices, names, last, tells, crashes=True, is_parallel=is_parallel)) > 5


def commands(answers: dict[XaVerb, Replies], last: str | None = None, is_parallel: bool = False) -> list[Command]:
    """What is asked of three participants that answer so."""
    asked: list[Command] = []
    voted = voting.commit(NAMES, last, is_parallel=is_parallel)
    try:
        asked.append(next(voted))
        while True:
            asked.append(voted.send(answers[asked[-1].verb]))
    except StopIteration:
        return asked


READ_ONLY = dict.fromkeys(NAMES, Reply.READ_ONLY)
DONE = dict.fromkeys((*NAMES, LAST, DECISION), Reply.DONE)


def test_the_whole_of_two_phases_in_the_order_of_the_names() -> None:
    answers: dict[XaVerb, Replies] = {XaVerb.PREPARE: PREPARED, XaVerb.DECIDE: DONE, XaVerb.COMMIT: DONE}
    in_turn = [Prepare(("a",)), Prepare(("b",)), Prepare(("c",))]
    assert commands(answers) == [*in_turn, Decide(NAMES), Commit(NAMES)]
    assert commands(answers, is_parallel=True) == [
        Prepare(NAMES),
        Decide(NAMES),
        Commit(NAMES),
    ]


def test_read_only_voters_are_left_out_and_without_any_other_there_is_no_decision() -> None:
    answers: dict[XaVerb, Replies] = {
        XaVerb.PREPARE: {**PREPARED, "b": Reply.READ_ONLY},
        XaVerb.DECIDE: DONE,
        XaVerb.COMMIT: DONE,
    }
    assert commands(answers, is_parallel=True)[1:] == [Decide(("a", "c")), Commit(("a", "c"))]
    assert commands({XaVerb.PREPARE: READ_ONLY}, is_parallel=True) == [Prepare(NAMES)]


def test_one_participant_commits_in_one_phase() -> None:
    voted = voting.commit(["a"])
    assert next(voted) == CommitOnePhase(("a",))


def test_the_last_resource_is_committed_between_the_phases_or_alone() -> None:
    answers: dict[XaVerb, Replies] = {
        XaVerb.PREPARE: PREPARED,
        XaVerb.COMMIT_LAST: DONE,
        XaVerb.COMMIT: DONE,
        XaVerb.COMMIT_ONE_PHASE: DONE,
    }
    asked = commands(answers, LAST, is_parallel=True)
    assert asked == [
        Prepare(NAMES),
        CommitLast(NAMES, LAST),
        Commit(NAMES),
    ]
    assert commands({**answers, XaVerb.PREPARE: READ_ONLY}, LAST, is_parallel=True)[1:] == [CommitOnePhase((LAST,))]
    assert next(voting.commit([], LAST)) == CommitOnePhase((LAST,))


def test_a_refusal_spares_those_that_were_not_asked_yet() -> None:
    """The one that refused has rolled back already; to tell it again would raise false alarms."""
    answers: dict[XaVerb, Replies] = {XaVerb.PREPARE: {**PREPARED, "b": Reply.REFUSED}, XaVerb.ROLLBACK: DONE}
    assert commands(answers) == [
        Prepare(("a",)),
        Prepare(("b",)),
        Rollback(("a", "c")),
    ]
    lost: dict[XaVerb, Replies] = {XaVerb.PREPARE: {**PREPARED, "b": Reply.LOST}, XaVerb.ROLLBACK: DONE}
    assert commands(lost)[-1] == Rollback(("a", "b", "c"))


def test_nothing_to_commit() -> None:
    with pytest.raises(StopIteration) as end:
        next(voting.commit([]))
    assert end.value.value == TransactionResult(Outcome.COMMITTED, {})


@pytest.mark.parametrize(
    ("outcome", "parties", "code"),
    [
        (Outcome.COMMITTED, [Ended.COMMITTED, Ended.PENDING, Ended.READ_ONLY], None),
        (Outcome.COMMITTED, [Ended.COMMITTED, Ended.HEUR_COMMITTED], None),
        (Outcome.ROLLED_BACK, [Ended.ROLLED_BACK, Ended.HEUR_ROLLED_BACK], None),
        (Outcome.COMMITTED, [Ended.COMMITTED, Ended.HEUR_HAZARD], Code.XA_HEURHAZ),
        (Outcome.COMMITTED, [Ended.COMMITTED, Ended.HEUR_ROLLED_BACK], Code.XA_HEURMIX),
        (Outcome.COMMITTED, [Ended.PENDING, Ended.HEUR_ROLLED_BACK], Code.XA_HEURMIX),
        (Outcome.COMMITTED, [Ended.HEUR_HAZARD, Ended.HEUR_ROLLED_BACK], Code.XA_HEURMIX),
        (Outcome.COMMITTED, [Ended.READ_ONLY, Ended.HEUR_ROLLED_BACK], Code.XA_HEURRB),
        (Outcome.COMMITTED, [Ended.HEUR_MIXED], Code.XA_HEURMIX),
        (Outcome.ROLLED_BACK, [Ended.HEUR_COMMITTED, Ended.HEUR_COMMITTED], Code.XA_HEURCOM),
        (Outcome.ROLLED_BACK, [Ended.HEUR_COMMITTED, Ended.ROLLED_BACK], Code.XA_HEURMIX),
    ],
)
def test_what_a_caller_is_told_of_heuristics(outcome: Outcome, parties: list[Ended], code: Code | None) -> None:
    assert heuristic_code(outcome, dict(zip(NAMES, parties, strict=False))) is code


@pytest.mark.parametrize(
    ("is_over", "decision", "noted", "action"),
    [
        (False, None, None, None),
        (False, Outcome.COMMITTED, None, None),
        (True, None, None, Outcome.ROLLED_BACK),
        (True, Outcome.COMMITTED, None, Outcome.COMMITTED),
        (True, Outcome.ROLLED_BACK, None, Outcome.ROLLED_BACK),
        (True, Outcome.IN_DOUBT, None, None),
        (True, Outcome.COMMITTED, Ended.HEUR_ROLLED_BACK, None),
        (True, Outcome.COMMITTED, Ended.HEUR_HAZARD, Outcome.COMMITTED),
    ],
)
def test_what_recovery_does_with_a_branch(
    is_over: bool, decision: Outcome | None, noted: Ended | None, action: Outcome | None
) -> None:
    assert voting.recovery_action(is_over, decision, noted) is action


def test_whose_transaction_is_over() -> None:
    """Own ones that were named and are not live; nobody else's, and none of a later life."""

    def name(epoch: int, counter: int, node: str = "0123456789abcdef") -> bytes:
        return bytes(Gtrid(node, epoch, counter))

    snapshot = LogSnapshot(name(5, 7), frozenset([name(5, 6)]))
    assert all(map(snapshot.is_over, (name(5, 7), name(5, 1), name(4, 9))))
    assert not any(map(snapshot.is_over, (name(5, 6), name(5, 8), name(6, 1), name(4, 9, "0123456789abcdee"))))
