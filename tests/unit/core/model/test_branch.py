"""Every call in every state of a branch answers as the XA specification says, through real sessions and a space."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.xa_table import CASES, PINNED, STATES, Stage, X, Y, answer_of, bring_to, call_on, code_of
from xaqueue import errors
from xaqueue.core.model.branch import State, check_flags
from xaqueue.errors import InvalidArgument, RolledBack
from xaqueue.features.session import attach
from xaqueue.xa import Code, Flag, Outcome, Vote
from xaqueue.xid import LOCAL_FORMAT_ID, Xid


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    sessions = [attach(tmp_path / "space", create_missing=True, sync="NONE", watch=False) for _ in range(2)]
    made = Stage(sessions[0], sessions[1], tmp_path / "space")
    seed = Xid(1, b"seed", b"")
    made.caller.start(seed)
    for number in range(3):
        made.caller.enqueue("orders", b"%d" % number)
    made.caller.end(seed)
    made.caller.commit(seed, Flag.ONEPHASE)
    yield made
    for session in sessions:
        session.close()


# The table


def test_the_table_is_whole_and_the_pins_are_of_its_open_cases() -> None:
    assert len(CASES) == len({(case["call"], case["state"]) for case in CASES}) == 13 * 10
    assert {(case["call"], case["state"]) for case in CASES if len(case["expect"]) > 1} == set(PINNED)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['call']}-{case['state']}")
def test_call_in_state(stage: Stage, case: dict[str, Any]) -> None:
    bring_to(stage, case["state"])
    expected = answer_of(case)
    if case["call"] == "recover lists it":
        assert (X in stage.listed()) == (expected["rc"] == "yes")
        assert stage.state() == expected["to"]
        return
    code = code_of(call_on(stage.caller, case["call"]))
    if expected["rc"] == "RB":
        assert 100 <= code <= 107
        assert code is Code.XA_RBTIMEOUT
    else:
        assert code == expected["val"]
        assert code.name.endswith(expected["rc"])
    assert stage.state() == expected["to"]


def test_a_timeout_that_passes_in_idle_is_b2r_by_itself(stage: Stage) -> None:
    """So that the state in the table is one that comes about and not one that a test sets."""
    for text in ("start(JOIN)", "prepare()", "commit(ONEPHASE)"):
        xid = Xid(1, text.encode(), b"")
        stage.idle(xid)
        stage.expire(xid)
        assert code_of(call_on(stage.caller, text, xid)) is Code.XA_RBTIMEOUT
        assert stage.state(xid) == ("B4" if text == "start(JOIN)" else "B0")
        assert stage.caller.outcome(xid) is (Outcome.UNKNOWN if text == "start(JOIN)" else Outcome.ROLLED_BACK)


# Side cases: votes and heuristics


def test_prepare_without_work_votes_read_only_and_touches_no_file(stage: Stage) -> None:
    """Black-box behaviour 36."""
    before = stage.files()
    stage.start()
    assert stage.caller.dequeue("empty") is None
    stage.caller.end(X)
    assert stage.caller.prepare(X) is Vote.RDONLY
    assert stage.files() == before
    assert stage.state() == "B0"
    assert X not in stage.listed()
    assert code_of(lambda: stage.caller.commit(X)) is Code.XAER_NOTA


def test_one_phase_commit_without_work_touches_no_file(stage: Stage) -> None:
    before = stage.files()
    stage.start()
    stage.caller.end(X)
    stage.caller.commit(X, Flag.ONEPHASE)
    assert stage.files() == before
    assert stage.caller.outcome(X) is Outcome.COMMITTED


@pytest.mark.parametrize(
    ("state", "code"),
    [(State.HEURISTIC_MIXED, Code.XA_HEURMIX), (State.HEURISTIC_HAZARD, Code.XA_HEURHAZ)],
)
def test_mixed_and_hazard_are_told_until_forget(stage: Stage, state: State, code: Code) -> None:
    stage.prepared()
    stage.decide(commit=True)
    stage.caller.space.branches[X].base = state
    for verb in (stage.caller.commit, stage.other.rollback, stage.other.commit):
        with pytest.raises(errors.HeuristicOutcome, match="forget ends this answer") as told:
            verb(X)
        assert told.value.code is code
    assert stage.listed() == [X]
    stage.caller.forget(X)
    assert code_of(lambda: stage.caller.commit(X)) is Code.XAER_NOTA


@pytest.mark.parametrize("commit", [True, False])
def test_a_decision_is_told_by_any_session_until_forget(stage: Stage, commit: bool) -> None:
    """Black-box behaviour 32."""
    stage.prepared()
    stage.decide(commit)
    expected = Code.XA_HEURCOM if commit else Code.XA_HEURRB
    assert code_of(lambda: stage.other.commit(X)) is expected
    assert code_of(lambda: stage.other.rollback(X)) is expected
    assert stage.caller.outcome(X) is (Outcome.COMMITTED if commit else Outcome.ROLLED_BACK)
    assert code_of(lambda: stage.decide(not commit)) is expected
    stage.other.forget(X)
    assert stage.listed() == []
    assert code_of(lambda: stage.caller.forget(X)) is Code.XAER_NOTA
    assert stage.caller.outcome(X) is (Outcome.COMMITTED if commit else Outcome.ROLLED_BACK)


@pytest.mark.parametrize("state", ["B0", "B1", "B2", "B4"])
def test_only_what_is_in_doubt_can_be_decided(stage: Stage, state: str) -> None:
    bring_to(stage, state)
    assert code_of(lambda: stage.decide(commit=True)) is Code.XAER_NOTA
    assert stage.state() == state


# Side cases: association


def test_a_migrating_branch_is_resumed_by_another_session(stage: Stage) -> None:
    stage.start()
    stage.caller.end(X, Flag.SUSPEND | Flag.MIGRATE)
    stage.other.start(X, Flag.RESUME)
    stage.other.enqueue("orders", b"elsewhere")
    assert stage.state() == "B1o"
    stage.other.end(X)
    stage.caller.commit(X, Flag.ONEPHASE)


def test_without_migrate_another_session_may_not_resume(stage: Stage) -> None:
    stage.start()
    stage.caller.end(X, Flag.SUSPEND)
    assert code_of(lambda: stage.other.start(X, Flag.RESUME)) is Code.XAER_PROTO
    stage.caller.start(X, Flag.RESUME)


@pytest.mark.parametrize("text", ["prepare()", "commit(ONEPHASE)", "rollback()", "end(SUCCESS)"])
def test_a_branch_that_another_session_suspended_is_not_idle(stage: Stage, text: str) -> None:
    stage.start()
    stage.work()
    stage.caller.end(X, Flag.SUSPEND)
    assert code_of(call_on(stage.other, text)) is Code.XAER_PROTO
    assert stage.state() == "B1s"


def test_end_of_a_suspended_branch_needs_no_resume(stage: Stage) -> None:
    stage.start()
    stage.caller.end(X, Flag.SUSPEND)
    stage.caller.end(X)
    assert stage.state() == "B2"


def test_a_session_suspends_one_branch_and_works_in_another(stage: Stage) -> None:
    stage.start()
    stage.caller.end(X, Flag.SUSPEND)
    stage.idle(Y)
    stage.caller.commit(Y, Flag.ONEPHASE)
    stage.caller.start(X, Flag.RESUME)
    assert stage.state() == "B1"


def test_a_caller_in_another_branch_is_out_of_order(stage: Stage) -> None:
    stage.start()
    for flags in (Flag.NOFLAGS, Flag.JOIN, Flag.RESUME):
        assert code_of(lambda flags=flags: stage.caller.start(Y, flags)) is Code.XAER_PROTO  # type: ignore[misc]
    assert (stage.state(), stage.state(Y)) == ("B1", "B0")


def test_a_caller_with_a_local_transaction_is_outside(stage: Stage) -> None:
    local = Xid(LOCAL_FORMAT_ID, b"local", b"")
    stage.start(local)
    assert code_of(stage.start) is Code.XAER_OUTSIDE
    stage.caller.end(local)
    stage.start()


def test_two_sessions_join_one_branch_and_it_is_idle_when_both_have_left(stage: Stage) -> None:
    stage.start()
    stage.other.start(X, Flag.JOIN)
    stage.caller.enqueue("orders", b"one")
    stage.other.enqueue("orders", b"two")
    stage.caller.end(X)
    assert stage.state() == "B1o"
    assert code_of(lambda: stage.caller.prepare(X)) is Code.XAER_PROTO
    stage.other.end(X)
    assert stage.caller.prepare(X) is Vote.OK
    stage.other.commit(X)
    assert [message.body for message in stage.caller.browse("orders")][-2:] == [b"one", b"two"]


def test_the_same_gtrid_with_another_bqual_is_another_branch(stage: Stage) -> None:
    stage.prepared(X)
    stage.prepared(Y)
    stage.caller.rollback(X)
    assert stage.listed() == [Y]


def test_work_without_a_branch_is_out_of_order(stage: Stage) -> None:
    assert code_of(lambda: stage.caller.enqueue("orders", b"")) is Code.XAER_PROTO
    assert code_of(lambda: stage.caller.dequeue("orders")) is Code.XAER_PROTO


# Side cases: flags


@pytest.mark.parametrize(
    ("verb", "flags"),
    [
        ("start", Flag.SUCCESS),
        ("start", Flag.ONEPHASE),
        ("end", Flag.NOFLAGS),
        ("end", Flag.SUCCESS | Flag.FAIL),
        ("end", Flag.SUSPEND | Flag.FAIL),
        ("end", Flag.MIGRATE),
        ("end", Flag.SUCCESS | Flag.MIGRATE),
        ("prepare", Flag.ONEPHASE),
        ("commit", Flag.JOIN),
        ("rollback", Flag.NOWAIT),
        ("rollback", Flag.ONEPHASE),
        ("forget", Flag.JOIN),
    ],
)
@pytest.mark.parametrize("state", ["B0", "B1", "B3"])
def test_flags_that_a_verb_does_not_take(stage: Stage, verb: str, flags: Flag, state: str) -> None:
    bring_to(stage, state)
    assert code_of(lambda: getattr(stage.caller, verb)(X, flags)) is Code.XAER_INVAL
    assert stage.state() == state


@pytest.mark.parametrize("verb", ["start", "end", "prepare", "commit", "rollback", "forget"])
def test_async_is_not_supported(stage: Stage, verb: str) -> None:
    assert code_of(lambda: getattr(stage.caller, verb)(X, Flag.ASYNC)) is Code.XAER_ASYNC
    assert code_of(lambda: stage.caller.recover(1, Flag.ASYNC | Flag.STARTRSCAN)) is Code.XAER_ASYNC
    assert stage.state() == "B0"


def test_nowait_changes_nothing_where_nothing_waits(stage: Stage) -> None:
    stage.caller.start(X, Flag.NOWAIT)
    stage.work()
    stage.caller.end(X)
    stage.caller.start(X, Flag.JOIN | Flag.NOWAIT)
    stage.caller.end(X)
    stage.caller.commit(X, Flag.ONEPHASE | Flag.NOWAIT)
    stage.prepared(Y)
    stage.caller.commit(Y, Flag.NOWAIT)


def test_the_null_xid_cannot_be_made() -> None:
    assert code_of(lambda: Xid(-1, b"", b"")) is Code.XAER_INVAL


def test_every_verb_has_legal_flags_and_multiple_is_none_of_them() -> None:
    for verb in ("start", "end", "prepare", "commit", "rollback", "forget", "recover"):
        with pytest.raises(InvalidArgument, match=f"{verb} does not take"):
            check_flags(verb, Flag.MULTIPLE)


# Side cases: recover


def many(stage: Stage, count: int) -> list[Xid]:
    xids = [Xid(2, b"%d" % number, b"") for number in range(count)]
    for xid in xids:
        stage.caller.start(xid)
        stage.caller.enqueue("orders", b"x")
        stage.caller.end(xid)
        stage.caller.prepare(xid)
    return xids


def test_recover_pages_and_each_xid_comes_once(stage: Stage) -> None:
    """Black-box behaviour 31."""
    xids = many(stage, 5)
    pages = [stage.caller.recover(2, Flag.STARTRSCAN), stage.caller.recover(2), stage.caller.recover(2)]
    assert [len(page) for page in pages] == [2, 2, 1]
    assert sorted((xid for page in pages for xid in page), key=str) == sorted(xids, key=str)
    assert stage.caller.recover(2) == []


def test_startrscan_restarts_an_open_scan(stage: Stage) -> None:
    many(stage, 3)
    first = stage.caller.recover(2, Flag.STARTRSCAN)
    assert stage.caller.recover(2, Flag.STARTRSCAN) == first
    assert len(stage.caller.recover(2)) == 1


def test_endrscan_closes_the_scan_even_if_more_remain(stage: Stage) -> None:
    many(stage, 3)
    assert len(stage.caller.recover(2, Flag.STARTRSCAN | Flag.ENDRSCAN)) == 2
    assert code_of(lambda: stage.caller.recover(2)) is Code.XAER_INVAL


def test_recover_without_a_scan_or_with_a_negative_count_is_refused(stage: Stage) -> None:
    assert code_of(lambda: stage.caller.recover(1)) is Code.XAER_INVAL
    assert code_of(lambda: stage.caller.recover(1, Flag.ENDRSCAN)) is Code.XAER_INVAL
    assert code_of(lambda: stage.caller.recover(-1, Flag.STARTRSCAN)) is Code.XAER_INVAL
    assert code_of(lambda: stage.caller.recover(1, Flag.JOIN)) is Code.XAER_INVAL


def test_the_cursor_belongs_to_its_session(stage: Stage) -> None:
    many(stage, 3)
    assert len(stage.caller.recover(2, Flag.STARTRSCAN)) == 2
    assert code_of(lambda: stage.other.recover(2)) is Code.XAER_INVAL
    assert len(stage.other.recover(3, Flag.STARTRSCAN)) == 3
    assert len(stage.caller.recover(2)) == 1


# Side cases: idempotence and losses


@pytest.mark.parametrize("finish", ["commit", "rollback"])
@pytest.mark.parametrize("again", ["commit", "rollback", "prepare", "forget"])
def test_a_second_call_on_a_finished_xid_is_nota(stage: Stage, finish: str, again: str) -> None:
    stage.prepared()
    getattr(stage.caller, finish)(X)
    assert code_of(lambda: getattr(stage.other, again)(X)) is Code.XAER_NOTA
    assert stage.caller.outcome(X) is (Outcome.COMMITTED if finish == "commit" else Outcome.ROLLED_BACK)


def test_a_nota_on_one_xid_does_not_disturb_the_sessions_other_branch(stage: Stage) -> None:
    stage.start()
    stage.work()
    for verb in ("end", "prepare", "commit", "rollback", "forget"):
        call = getattr(stage.caller, verb)
        assert code_of(lambda call=call: call(Y)) is Code.XAER_NOTA  # type: ignore[misc]
    assert stage.state() == "B1"
    stage.work()
    stage.caller.end(X)
    assert stage.caller.prepare(X) is Vote.OK


def test_end_after_the_timeout_tells_and_leaves_the_branch_rollback_only(stage: Stage) -> None:
    """Black-box behaviour 21, as far as the verbs go: work reports it, and so does end."""
    stage.start(timeout_s=0.0)
    with pytest.raises(RolledBack, match="timeout"):
        stage.caller.enqueue("orders", b"late")
    assert code_of(lambda: stage.caller.end(X)) is Code.XA_RBTIMEOUT
    assert stage.state() == "B4"
    stage.caller.rollback(X)
    assert stage.state() == "B0"


def test_session_loss_in_s1_rolls_back(stage: Stage) -> None:
    stage.start(session=stage.other)
    stage.work(stage.other)
    stage.other.close()
    assert stage.state() == "B0"
    assert [message.body for message in stage.caller.browse("orders")] == [b"0", b"1", b"2"]
    assert list((stage.root / "active").iterdir()) == []


def test_session_loss_while_suspended_rolls_back_unless_it_migrates(stage: Stage) -> None:
    for xid, flags in ((X, Flag.SUSPEND), (Y, Flag.SUSPEND | Flag.MIGRATE)):
        stage.start(xid, stage.other)
        stage.other.enqueue("orders", b"x")
        stage.other.end(xid, flags)
    stage.other.close()
    assert (stage.state(X), stage.state(Y)) == ("B0", "B1s")
    stage.caller.start(Y, Flag.RESUME)


def test_session_loss_beside_another_session_dooms_the_branch(stage: Stage) -> None:
    stage.start()
    stage.work()
    stage.other.start(X, Flag.JOIN)
    stage.other.close()
    assert code_of(lambda: stage.caller.enqueue("orders", b"x")) is Code.XA_RBCOMMFAIL
    assert code_of(lambda: stage.caller.end(X)) is Code.XA_RBCOMMFAIL
    stage.caller.rollback(X)


@pytest.mark.parametrize("state", ["B3", "B5c", "B5r"])
def test_session_loss_in_s3_and_s5_changes_nothing(stage: Stage, state: str) -> None:
    bring_to(stage, state)
    files = stage.files()
    stage.caller.close()
    branch = stage.other.space.branches[X]
    assert STATES[branch.base] == state
    assert stage.files() == files
    assert stage.other.recover(9, Flag.STARTRSCAN) == [X]


def test_a_closed_session_answers_nothing(stage: Stage) -> None:
    stage.other.close()
    stage.other.close()
    for verb in ("start", "end", "prepare", "commit", "rollback", "forget", "outcome"):
        with pytest.raises(errors.InterfaceError):
            getattr(stage.other, verb)(X)
    with pytest.raises(errors.InterfaceError):
        stage.other.recover(1, Flag.STARTRSCAN)
