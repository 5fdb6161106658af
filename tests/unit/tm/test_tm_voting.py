"""Every interleaving of votes, failures and crashes of three participants ends the same for all, or is said.

The model below has no connection, log or clock: participants are a state each, the log is one value, and a crash is the
end of the generator. What is left is finished by the same rules that recovery uses.
"""

from __future__ import annotations

import pytest

from support.voting_world import LAST, NAMES, PREPARED, judged, vote
from xaqueue.tm import voting
from xaqueue.tm.voting import (
    DECISION,
    Answer,
    Answers,
    Command,
    Commit,
    CommitLast,
    CommitOnePhase,
    Decide,
    Known,
    Party,
    Prepare,
    Rollback,
    Treatment,
    Verdict,
)
from xaqueue.xa import Code, Outcome


@pytest.mark.parametrize("tells", [True, False])
@pytest.mark.parametrize("names", [NAMES[:1], NAMES[:2]], ids=["one", "two"])
@pytest.mark.parametrize("last", [None, LAST])
def test_every_interleaving_ends_the_same_for_all(names: tuple[str, ...], last: str | None, tells: bool) -> None:
    """Votes, lost requests and answers, people, and a crash before and after each command."""
    together = len(names) > 1 and tells
    assert judged(lambda choices: vote(choices, names, last, tells, crashes=True, together=together)) > 5


def commands(answers: dict[type[Command], Answers], last: str | None = None, together: bool = False) -> list[Command]:
    """What is asked of three participants that answer so."""
    asked: list[Command] = []
    voted = voting.commit(NAMES, last, together=together)
    try:
        asked.append(next(voted))
        while True:
            asked.append(voted.send(answers[type(asked[-1])]))
    except StopIteration:
        return asked


READ_ONLY = dict.fromkeys(NAMES, Answer.READ_ONLY)
DONE = dict.fromkeys((*NAMES, LAST, DECISION), Answer.DONE)


def test_the_whole_of_two_phases_in_the_order_of_the_names() -> None:
    answers: dict[type[Command], Answers] = {Prepare: PREPARED, Decide: DONE, Commit: DONE}
    in_turn = [Prepare(("a",)), Prepare(("b",)), Prepare(("c",))]
    assert commands(answers) == [*in_turn, Decide(NAMES), Commit(NAMES)]
    assert commands(answers, together=True) == [Prepare(NAMES), Decide(NAMES), Commit(NAMES)]


def test_read_only_voters_are_left_out_and_without_any_other_there_is_no_decision() -> None:
    answers: dict[type[Command], Answers] = {
        Prepare: {**PREPARED, "b": Answer.READ_ONLY},
        Decide: DONE,
        Commit: DONE,
    }
    assert commands(answers, together=True)[1:] == [Decide(("a", "c")), Commit(("a", "c"))]
    assert commands({Prepare: READ_ONLY}, together=True) == [Prepare(NAMES)]


def test_one_participant_commits_in_one_phase() -> None:
    voted = voting.commit(["a"])
    assert next(voted) == CommitOnePhase(("a",))


def test_the_last_resource_is_committed_between_the_phases_or_alone() -> None:
    answers: dict[type[Command], Answers] = {
        Prepare: PREPARED,
        Decide: DONE,
        CommitLast: DONE,
        Commit: DONE,
        CommitOnePhase: DONE,
    }
    asked = commands(answers, LAST, together=True)
    assert asked == [Prepare(NAMES), Decide(NAMES, LAST), CommitLast((LAST,)), Commit(NAMES)]
    assert commands({**answers, Prepare: READ_ONLY}, LAST, together=True)[1:] == [CommitOnePhase((LAST,))]
    assert next(voting.commit([], LAST)) == CommitOnePhase((LAST,))


def test_a_refusal_spares_those_that_were_not_asked_yet() -> None:
    """The one that refused has rolled back already; to tell it again would raise false alarms."""
    answers: dict[type[Command], Answers] = {Prepare: {**PREPARED, "b": Answer.REFUSED}, Rollback: DONE}
    assert commands(answers) == [Prepare(("a",)), Prepare(("b",)), Rollback(("a", "c"))]
    lost: dict[type[Command], Answers] = {Prepare: {**PREPARED, "b": Answer.LOST}, Rollback: DONE}
    assert commands(lost)[-1] == Rollback(("a", "b", "c"))


def test_nothing_to_commit() -> None:
    with pytest.raises(StopIteration) as end:
        next(voting.commit([]))
    assert end.value.value == Verdict(Outcome.COMMITTED, {})


@pytest.mark.parametrize(
    ("outcome", "parties", "code"),
    [
        (Outcome.COMMITTED, [Party.COMMITTED, Party.PENDING, Party.READ_ONLY], None),
        (Outcome.COMMITTED, [Party.COMMITTED, Party.HEUR_COMMITTED], None),
        (Outcome.ROLLED_BACK, [Party.ROLLED_BACK, Party.HEUR_ROLLED_BACK], None),
        (Outcome.COMMITTED, [Party.COMMITTED, Party.HEUR_HAZARD], Code.XA_HEURHAZ),
        (Outcome.COMMITTED, [Party.COMMITTED, Party.HEUR_ROLLED_BACK], Code.XA_HEURMIX),
        (Outcome.COMMITTED, [Party.PENDING, Party.HEUR_ROLLED_BACK], Code.XA_HEURMIX),
        (Outcome.COMMITTED, [Party.HEUR_HAZARD, Party.HEUR_ROLLED_BACK], Code.XA_HEURMIX),
        (Outcome.COMMITTED, [Party.READ_ONLY, Party.HEUR_ROLLED_BACK], Code.XA_HEURRB),
        (Outcome.COMMITTED, [Party.HEUR_MIXED], Code.XA_HEURMIX),
        (Outcome.ROLLED_BACK, [Party.HEUR_COMMITTED, Party.HEUR_COMMITTED], Code.XA_HEURCOM),
        (Outcome.ROLLED_BACK, [Party.HEUR_COMMITTED, Party.ROLLED_BACK], Code.XA_HEURMIX),
    ],
)
def test_what_a_caller_is_told_of_heuristics(outcome: Outcome, parties: list[Party], code: Code | None) -> None:
    assert voting.heuristic_code(outcome, dict(zip(NAMES, parties, strict=False))) is code


@pytest.mark.parametrize(
    ("known", "treatment"),
    [
        (Known(own=False, over=False), Treatment.LEAVE),
        (Known(own=False, over=True, decision=Outcome.COMMITTED), Treatment.LEAVE),
        (Known(own=True, over=False), Treatment.LEAVE),
        (Known(own=True, over=False, decision=Outcome.COMMITTED), Treatment.LEAVE),
        (Known(own=True, over=True), Treatment.ROLL_BACK),
        (Known(own=True, over=True, decision=Outcome.COMMITTED), Treatment.COMMIT),
        (Known(own=True, over=True, decision=Outcome.ROLLED_BACK), Treatment.ROLL_BACK),
        (Known(own=True, over=True, decision=Outcome.IN_DOUBT), Treatment.LEAVE),
        (Known(own=True, over=True, decision=Outcome.COMMITTED, noted=Party.HEUR_ROLLED_BACK), Treatment.LEAVE),
        (Known(own=True, over=True, decision=Outcome.COMMITTED, noted=Party.HEUR_HAZARD), Treatment.COMMIT),
    ],
)
def test_what_recovery_does_with_a_branch(known: Known, treatment: Treatment) -> None:
    assert voting.treatment(known) is treatment
