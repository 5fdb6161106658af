"""What rides on a branch: who holds it, what was decided of it, what was lost, and what its list says."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from xaqueue.core.engine.heuristics import Decided
from xaqueue.core.engine.messages import list_of
from xaqueue.core.model.block import Kind
from xaqueue.core.model.branch import Branch, Call, Damaged, Rider, State, Written
from xaqueue.errors import RetryLater
from xaqueue.message import MessageId
from xaqueue.xid import Xid

XID = Xid(1, b"x", b"")


def written(number: int) -> Written:
    return Written(number, Kind.ENQUEUE, "orders", MessageId(bytes(16)), 0)


def branch(*riders: Rider, base: State = State.PREPARED) -> Branch:
    return Branch(XID, str(XID), [written(1)], base=base, riders=riders)


class Said(Rider):
    holder = b"key"

    def listed(self) -> Mapping[int, bytes]:
        return {1: b"said"}


def test_most_branches_have_none() -> None:
    plain = branch()
    assert (plain.holder, plain.decided, list(plain.damage), plain.is_for_operator) == (None, None, [], False)
    assert not plain.needs_list
    assert plain.state_for(1) is State.PREPARED


def test_the_verbs_answer_as_an_operator_decided() -> None:
    decided = branch(Rider(), Decided(State.HEURISTIC_COMMIT))
    assert decided.decided is State.HEURISTIC_COMMIT
    assert decided.state_for(1) is State.HEURISTIC_COMMIT


def test_what_was_lost_keeps_a_commit_away_and_no_rollback() -> None:
    damaged = branch(Rider(), Damaged(["prepared/x.001"]))
    assert list(damaged.damage) == ["prepared/x.001"]
    with pytest.raises(RetryLater, match=r"lost prepared/x\.001"):
        damaged.riders[1].decide(None, damaged, Call.COMMIT)
    damaged.riders[1].decide(None, damaged, Call.ROLLBACK)


def test_what_is_listed_stands_in_the_list() -> None:
    listed = branch(Rider(), Said(), base=State.ACTIVE)
    assert listed.holder == b"key"
    assert listed.needs_list
    assert [row.key for row in list_of(listed)] == [b"said"]
    assert [row.key for row in list_of(branch())] == [b""]


def test_a_shared_block_is_of_the_first_until_it_has_a_file_of_its_own() -> None:
    first, second = written(1), written(2)
    first.shared = second.shared = first
    shared = Branch(XID, str(XID), [first, second])
    assert (first.original, second.original) == (None, first)
    first.path, second.path = "active/x.001", "active/x.002"
    assert shared.contents == ["active/x.001"]
    second.shared = second
    assert shared.contents == ["active/x.001", "active/x.002"]
