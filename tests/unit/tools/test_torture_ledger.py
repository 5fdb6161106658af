"""The ledger holds what is found to what was said: every kind of fault has its words, and the right space has none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from support.late_ledger import LateLedger
from xaqueue.tools.torture.ledger import Holdings, Ledger, Number, Place, Statement

A: Place = ("red", "t.a")
B: Place = ("blue", "t.b")


def ledger_of(*said: Statement) -> LateLedger:
    ledger = LateLedger()
    for one in said:
        ledger.hear(Statement.parse(one.line()))
    return ledger


def intent(
    tag: str, added: Sequence[Place] = (), taken: Sequence[Place] = (), seen: Sequence[Number] = ()
) -> Statement:
    return Statement("intent", tag, added, taken, seen)


def steps(tag: str, *events: str) -> list[Statement]:
    return [Statement(event, tag) for event in events]


def holding(*places: Place, in_doubt: Sequence[str] = ()) -> Holdings:
    return Holdings(set(in_doubt), Counter(places))


COMMITTED = [intent("t", [A, B]), *steps("t", "prepared", "decided", "acked")]


def test_what_was_committed_is_there_once() -> None:
    ledger = ledger_of(*COMMITTED)
    assert ledger.judge(holding(A, B)) == []
    assert ledger.judge(holding(A)) == ["lost: message t.b of blue"]
    assert ledger.judge(holding(A, A, B)) == ["comes twice: message t.a of red"]
    assert ledger.judge(holding(A, B, ("red", "x"))) == ["from nowhere, or consumed before: message x of red"]


def test_what_was_taken_is_gone() -> None:
    ledger = ledger_of(*COMMITTED, intent("u", [], [A]), *steps("u", "prepared", "decided"))
    assert ledger.decided() == {"t", "u"}
    assert ledger.judge(holding(B)) == []
    assert ledger.judge(holding(A, B)) == ["from nowhere, or consumed before: message t.a of red"]


def test_a_branch_without_a_decision_leaves_nothing() -> None:
    ledger = ledger_of(intent("t", [A]), *steps("t", "prepared", "undecided"))
    assert ledger.decided() == set()
    assert ledger.judge(holding()) == []
    assert ledger.judge(holding(A)) == ["from nowhere, or consumed before: message t.a of red"]


def test_what_was_prepared_is_in_doubt_until_its_end_begins() -> None:
    ledger = ledger_of(intent("t", [A]), *steps("t", "prepared"))
    assert ledger.judge(holding(in_doubt=["t"])) == []
    assert ledger.judge(holding()) == ["prepared branch t is not in doubt"]
    assert ledger.judge(holding(in_doubt=["t", "v"])) == ["branch v is in doubt, and nobody prepared it"]
    ended = ledger_of(*COMMITTED)
    assert ended.judge(holding(A, B, in_doubt=["t"])) == ["finished branch t is in doubt again"]


def test_a_recovery_that_was_cut_off_proves_nothing() -> None:
    ledger = ledger_of(intent("t", [A]), *steps("t", "prepared"), Statement("in doubt", "t"))
    ledger.begin_life()
    ledger.hear(Statement("recovered"))
    assert ledger.faults == ["prepared branch t is not in doubt"]


def test_a_recovery_that_lists_what_was_prepared_is_right() -> None:
    ledger = ledger_of(intent("t", [A]), *steps("t", "prepared"), Statement("in doubt", "t"), Statement("recovered"))
    assert ledger.faults == []


def test_one_phase_without_an_answer_goes_either_way_and_whole() -> None:
    ledger = ledger_of(Statement("maybe", "t", [A, B]))
    assert ledger.judge(holding(A, B)) == []
    assert ledger.judge(holding()) == []
    assert ledger.judge(holding(A)) == ["part of branch t was committed"]
    assert ledger.judge(holding(A, A, B)) == ["comes twice: message t.a of red"]
    taking = ledger_of(*COMMITTED, Statement("maybe", "u", [], [A]))
    assert taking.judge(holding(A, B)) == taking.judge(holding(B)) == []


def test_a_number_is_given_once() -> None:
    seen: Number = ("red", 7, "aa")
    ledger = ledger_of(intent("t", [], [A], [seen]), intent("u", [], [], [("red", 7, "bb")]))
    assert ledger.faults == ["red gave 7 out twice"]
    ledger = ledger_of(*COMMITTED, intent("u", [], [], [seen]))
    found = holding(A, B)
    found.numbers = [("red", 7, "aa"), ("red", 8, "cc"), ("red", 8, "dd")]
    assert ledger.judge(found) == ["red gave 8 out twice"]


def test_a_fault_that_was_said_is_one() -> None:
    assert ledger_of(Statement("fault", "it is broken")).faults == ["it is broken"]
    found = holding()
    found.faults.append("it does not open")
    assert Ledger().judge(found) == ["it does not open"]


def late(ledger: LateLedger, *said: Statement) -> LateLedger:
    ledger.is_late = True
    for one in said:
        ledger.hear(one)
    ledger.is_late = False
    return ledger


@pytest.mark.parametrize("found", [holding(A, B), holding(), holding(in_doubt=["t"])])
def test_a_promise_that_came_too_late_is_none(found: Holdings) -> None:
    ledger = late(ledger_of(intent("t", [A, B])), *steps("t", "prepared", "decided", "acked"))
    assert ledger.decided() == set()
    assert ledger.judge(found) == []
    assert ledger.judge(holding(A)) == ["part of branch t was committed"]


def test_a_decision_holds_however_late() -> None:
    ledger = late(ledger_of(intent("t", [A]), *steps("t", "prepared")), *steps("t", "decided", "acked"))
    assert ledger.decided() == {"t"}
    assert ledger.judge(holding(A, in_doubt=["t"])) == ledger.judge(holding(A)) == []
    assert ledger.judge(holding()) == ["lost: message t.a of red"]


def test_what_a_branch_moved_tells_nothing_of_its_own_messages() -> None:
    moved: Place = ("red", "s.a")
    ledger = ledger_of(intent("s", [moved]), *steps("s", "prepared", "decided", "acked"))
    late(ledger, intent("t", [moved, A, B], [moved]), *steps("t", "prepared"))
    assert ledger.judge(holding(moved)) == ledger.judge(holding(moved, A, B)) == []
    assert ledger.judge(holding(moved, A)) == ["part of branch t was committed"]
