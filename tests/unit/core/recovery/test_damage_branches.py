"""A branch that lost a block to damage stays in doubt and says so, until it is rolled back or an operator decides.

What is past its commit point commits what is left; what was never prepared is rolled back (rules 4, 5 and 9).
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from support.bare_space import A_FILE_EACH, BareSpace, bare_space
from support.damages import Damage, check_set_aside, damaged, fingerprint, flip, harm
from xaqueue.core.engine import heuristics
from xaqueue.core.model import layout
from xaqueue.errors import HeuristicOutcome, ResourceFailed, RetryLater
from xaqueue.xa import Code, Outcome
from xaqueue.xid import Xid


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[BareSpace]:
    with bare_space(tmp_path / "space") as opened:
        yield opened


# prepared/


def resolve_lost(bare: BareSpace, xid: Xid) -> None:
    """A branch that lost a block is in doubt over restarts, says so, and refuses the TM until it is rolled back."""
    for _ in range(3):
        assert bare.in_doubt() == [xid]
        assert any(f"branch {xid} is in doubt and lost " in note for note in bare.space.report.notes)
        with closing(bare.connect()) as connection, pytest.raises(RetryLater, match="an operator decides"):
            connection.tpc_commit(xid)
        assert bare.take("orders") == [b"first", b"second"]
        assert bare.take("bills") == []
        bare.reopen()
    with closing(bare.connect()) as connection:
        connection.tpc_rollback(xid)
        assert connection.outcome(xid) is Outcome.ROLLED_BACK
    for _ in range(2):
        assert bare.in_doubt() == []
        assert bare.quarantined()
        assert bare.take("orders") == [b"first", b"second"]
        assert bare.take("bills") == []
        bare.reopen()


@damaged
@pytest.mark.parametrize("suffix", ["000", "001", "002", "only"])
def test_a_branch_that_lost_a_block_stays_in_doubt_until_it_is_rolled_back(
    bare: BareSpace, damage: Damage, suffix: str
) -> None:
    bare.put("orders", b"first", b"second")
    if suffix == "only":
        xid, suffix = bare.prepare("single", add=[("bills", b"bill")]), "000"
    else:
        xid = bare.prepare("several", add=[("bills", b"bill"), ("orders", b"third")])
    path = bare.block("prepared", xid, suffix)
    was = harm(bare, path, damage)
    bare.reopen()
    check_set_aside(bare, path, was)
    resolve_lost(bare, xid)


def test_a_branch_with_an_unreadable_block_stays_in_doubt(bare: BareSpace) -> None:
    bare.put("orders", b"first", b"second")
    xid = bare.prepare("several", add=[("bills", b"bill"), ("orders", b"third")])
    path = bare.block("prepared", xid, "001")
    was = fingerprint(path)
    bare.fs.faults["read", str(path.relative_to(bare.root))] = errno.EIO
    bare.reopen()
    check_set_aside(bare, path, was)
    resolve_lost(bare, xid)


@damaged
@pytest.mark.parametrize("suffix", ["000", "001"])
def test_an_operator_commits_what_damage_left_and_that_is_mixed(bare: BareSpace, damage: Damage, suffix: str) -> None:
    xid = bare.prepare("several", add=[("bills", b"bill"), ("orders", b"order")])
    harm(bare, bare.block("prepared", xid, suffix), damage)
    bare.reopen()
    assert heuristics.decide(bare.space, xid, True, "operator").outcome == "mixed"
    for _ in range(2):
        assert bare.take("orders") == [b"order"]
        assert bare.take("bills") == ([b"bill"] if suffix == "000" else [])
        with closing(bare.connect()) as connection:
            assert connection.tpc_recover() == [xid]
            with pytest.raises(HeuristicOutcome) as answer:
                connection.tpc_commit(xid)
        assert answer.value.code is Code.XA_HEURMIX
        bare.reopen()
    with closing(bare.connect()) as connection:
        connection.tpc_forget(xid)
    bare.reopen()
    assert bare.in_doubt() == []
    assert bare.take("orders") == [b"order"]
    assert bare.quarantined()


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_decision_behind_which_quarantine_cannot_be_read(bare: BareSpace, is_damaged: bool) -> None:
    """Of a branch that lost nothing nothing is looked for there; else the space is opened again, and the decision
    stands."""
    xid = bare.prepare("several", add=[("bills", b"bill"), ("orders", b"order")])
    if is_damaged:
        flip(bare.block("prepared", xid, "001"), 60)
    bare.reopen()
    bare.fs.faults["list", layout.QUARANTINE] = errno.EMFILE
    if is_damaged:
        with pytest.raises(ResourceFailed):
            heuristics.decide(bare.space, xid, True, "operator")
    else:
        heuristics.decide(bare.space, xid, True, "operator")
        assert bare.take("bills") == [b"bill"]
    bare.fs.faults.clear()
    bare.reopen()
    assert bare.take("orders") == [b"order"]
    with closing(bare.connect()) as connection:
        connection.tpc_forget(xid)
    bare.reopen()
    assert bare.in_doubt() == []


@pytest.mark.parametrize("damaged_queue", ["a", "b"])
def test_what_one_of_its_queues_lost_of_a_message_no_other_one_did(bare: BareSpace, damaged_queue: str) -> None:
    """A crash brings the block of a dequeue back whose commit was answered."""
    with bare.connect() as connection:
        connection.enqueue_to(["a", "b"], b"message")
        connection.commit()
    xid = bare.prepare("done", take=["a"])
    block = bare.block("prepared", xid, "000")
    content = block.read_bytes()
    if damaged_queue == "b":
        flip(bare.messages("b")[0], 60)
        assert bare.take("b") == []
        with closing(bare.connect()) as connection:
            connection.tpc_commit(xid)
        block.write_bytes(content)
    else:
        flip(bare.messages("a")[0], 3)
    bare.reopen()
    assert len(bare.quarantined()) == 1
    assert bare.in_doubt() == ([xid] if damaged_queue == "a" else [])


@damaged
@pytest.mark.parametrize("suffix", ["commit", "001", "002"])
def test_a_committed_branch_that_lost_a_block_commits_the_others(bare: BareSpace, damage: Damage, suffix: str) -> None:
    bare.put("orders", b"first", b"second")
    xid = bare.prepare("several", add=[("bills", b"bill"), ("orders", b"third")])
    bare.crash()
    bare.block("prepared", xid, "000").rename(bare.block("prepared", xid, "commit"))
    path = bare.block("prepared", xid, suffix)
    was = harm(bare, path, damage)
    bare.reopen()
    check_set_aside(bare, path, was)
    assert bare.space.report.rolled_forward == 1
    assert any(
        f"branch {xid} is committed, but" in n or "list of blocks is damaged" in n for n in bare.space.report.notes
    )
    for _ in range(2):
        assert bare.in_doubt() == []
        assert bare.take("bills") == ([] if suffix == "001" else [b"bill"])
        assert bare.take("orders") == [b"first", b"second"] + ([] if suffix == "002" else [b"third"])
        bare.reopen()


@damaged
def test_a_branch_whose_message_is_damaged_stays_in_doubt(bare: BareSpace, damage: Damage) -> None:
    bare.put("orders", b"first", b"second")
    xid = bare.prepare("taker", take=["orders"])
    path = bare.message_file("orders", b"first")
    was = harm(bare, path, damage)
    bare.reopen()
    check_set_aside(bare, path, was)
    for _ in range(2):
        assert bare.in_doubt() == [xid]
        assert any("dequeues, is in quarantine" in note for note in bare.space.report.notes)
        with closing(bare.connect()) as connection, pytest.raises(RetryLater):
            connection.tpc_commit(xid)
        bare.reopen()
    with closing(bare.connect()) as connection:
        connection.tpc_rollback(xid)
    bare.reopen()
    assert bare.in_doubt() == []
    assert bare.take("orders") == [b"second"]


def test_a_name_that_holds_what_looks_like_a_number_is_not_taken_for_one(bare: BareSpace) -> None:
    whole = Xid(1, b"\xd3\x4d\x34", b"b")
    assert ".000" in str(whole)
    with closing(bare.connect()) as connection:
        connection.tpc_begin(whole)
        for number in range(3):
            connection.enqueue("orders", b"%d" % number)
        connection.tpc_prepare()
    bare.crash()
    bare.block("prepared", whole, "002").write_bytes(b"")
    bare.reopen()
    assert bare.in_doubt() == [whole]
    bare.crash()
    bare.block("prepared", whole, "000").unlink()
    bare.reopen()
    assert bare.in_doubt() == [], "without .000 it was promised to nobody"


def test_a_large_list_of_blocks_with_aflipped_bit_leaves_the_branch_in_doubt(tmp_path: Path) -> None:
    """The list is longer than what is read and verified as a head."""
    with bare_space(tmp_path / "space", definitions=A_FILE_EACH) as bare:
        xid = bare.prepare("many", add=[("orders", b"x")] * 2200)
        path = bare.block("prepared", xid, "000")
        assert path.stat().st_size > 70_000
        was = harm(bare, path, lambda large: flip(large, -1))
        bare.reopen()
        check_set_aside(bare, path, was)
        assert bare.in_doubt() == [xid]


# active/ and heuristic/


@damaged
@pytest.mark.parametrize("suffix", ["000", "001"])
def test_a_damaged_block_of_an_active_branch_is_rolled_back_with_it(
    bare: BareSpace, damage: Damage, suffix: str
) -> None:
    """It was promised to nobody, and a crash leaves such files: presumed rollback (rule 4)."""
    bare.put("orders", b"first")
    xid = bare.prepare("several", add=[("bills", b"bill"), ("orders", b"third")])
    bare.crash()
    for name in ("000", "001", "002"):
        bare.block("prepared", xid, name).rename(bare.block("active", xid, name))
    path = bare.block("active", xid, suffix)
    was = harm(bare, path, damage)
    bare.reopen()
    if isinstance(was, list):
        check_set_aside(bare, path, was)
    assert list((bare.root / "active").iterdir()) == []
    assert bare.in_doubt() == []
    assert bare.space.report.rolled_back == 1
    assert bare.take("orders") == [b"first"]


@damaged
def test_a_damaged_decision_is_set_aside_and_said(bare: BareSpace, damage: Damage) -> None:
    bare.put("orders", b"first")
    xid = bare.prepare("decided", add=[("bills", b"bill")])
    heuristics.decide(bare.space, xid, True, "operator")
    path = bare.root / layout.HEURISTIC / str(xid)
    was = harm(bare, path, damage)
    bare.reopen()
    check_set_aside(bare, path, was)
    assert any(f"the decision on branch {xid} was damaged" in note for note in bare.space.report.notes)
    assert bare.take("bills") == [b"bill"]
    assert bare.in_doubt() == []
