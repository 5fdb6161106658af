"""A batch that finds no room is decided or not, and if it is it goes forward; one too large for a record follows it."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from support.bare_space import DURABLE, BareSpace, bare_space
from support.batch_scene import MOVES, flushed, reopened, three
from support.contract_batches import SCAN, batch, bodies, prepared
from xaqueue.batch import ONE_SPACE, Batch
from xaqueue.core.engine import heuristics, memory
from xaqueue.core.model.definitions import MANY, Definitions, QueueDefinition
from xaqueue.core.recovery.prepared import Verdict
from xaqueue.errors import (
    InvalidArgument,
    ProtocolError,
    ResourceFailed,
    RetryLater,
)
from xaqueue.features.batches import batch_steps
from xaqueue.features.session import Session
from xaqueue.offline.inspect_branches import in_doubt
from xaqueue.xa import Flag, Outcome
from xaqueue.xid import Xid


@pytest.fixture(params=[DURABLE, "JOURNAL"])
def bare(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[BareSpace]:
    with bare_space(tmp_path / "space", request.param) as opened:
        yield opened


@pytest.fixture
def session(bare: BareSpace) -> Session:
    return Session(bare.space)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_without_room_for_the_record_nothing_is_decided(bare: BareSpace, session: Session, number: int) -> None:
    a, b, _ = three(session)
    flushed(bare)
    call = ("write_at", "journal/") if bare.sync == "JOURNAL" else ("create", "active/")
    bare.fs.faults[call] = number
    with pytest.raises(RetryLater):
        session.commit_all(batch(), [a, b])
    bare.fs.faults.clear()
    assert session.decision(batch()) is None
    assert len(session.recover(10, SCAN)) == 3
    session.commit_all(batch(), [a, b])
    assert bodies(session) == [b"1", b"2", b"3"]


def test_without_room_for_its_name_nothing_is_decided(tmp_path: Path) -> None:
    with bare_space(tmp_path / "space", DURABLE) as bare:
        session = Session(bare.space)
        a, b, _ = three(session)
        bare.fs.faults["rename", "batches/"] = errno.ENOSPC
        with pytest.raises(RetryLater, match="nothing was done"):
            session.commit_all(batch(), [a, b])
        assert session.rollback_all(batch()) == 3


def test_what_finds_no_room_behind_the_decision_can_only_go_forward(strict: BareSpace) -> None:
    session = Session(strict.space)
    a, b, other = three(session)
    strict.fs.faults[MOVES] = errno.ENOSPC
    with pytest.raises(RetryLater, match="commit again"):
        session.commit_all(batch(), [a, b])
    assert session.decision(batch()) is not None
    assert bodies(session) == []
    for xid in (a, b):
        with pytest.raises(ProtocolError, match="past its commit point"):
            session.rollback(xid)
        with pytest.raises(ProtocolError, match="past its commit point"):
            heuristics.decide(strict.space, xid, False, "me")
    with pytest.raises(RetryLater):
        session.commit_all(batch(), [a, b])
    strict.fs.faults.clear()
    assert session.commit_all(batch(), [a, b]).xids == (a, b)
    assert sorted(bodies(session)) == [b"1", b"2", b"3"]
    assert session.outcome(other) is Outcome.ROLLED_BACK
    assert session.recover(10, SCAN) == []
    assert sorted(bodies(reopened(strict))) == [b"1", b"2", b"3"]


def test_after_a_crash_what_found_no_room_is_rolled_forward(strict: BareSpace) -> None:
    session = Session(strict.space)
    a, b, other = three(session)
    strict.fs.faults[MOVES] = errno.ENOSPC
    with pytest.raises(RetryLater):
        session.commit_all(batch(), [a, b])
    strict.fs.faults.clear()
    told = {branch.xid: branch.state for branch in in_doubt(strict.root)}
    assert told.get(a) == Verdict.COMMITTING.value
    session = reopened(strict)
    assert sorted(bodies(session)) == [b"1", b"2", b"3"]
    assert session.recover(10, SCAN) == []
    assert [session.outcome(xid) for xid in (a, b, other)] == [Outcome.COMMITTED] * 2 + [Outcome.ROLLED_BACK]
    assert session.commit_all(batch(), [a, b]).messages == 3


def test_in_a_journal_it_waits_for_room_and_is_there_all_the_same(tmp_path: Path) -> None:
    with bare_space(tmp_path / "space", "JOURNAL") as bare:
        session = Session(bare.space)
        a, b, other = three(session)
        flushed(bare)
        bare.fs.faults[MOVES] = errno.ENOSPC
        assert session.commit_all(batch(), [a, b]) == session.commit_all(batch(), [a, b]) == session.decision(batch())
        assert session.outcome(other) is Outcome.ROLLED_BACK
        assert sorted(bodies(session)) == [b"1", b"2", b"3"]
        with pytest.raises(OSError, match="No space"):
            flushed(bare)
        bare.fs.faults.clear()
        session = Session(bare.reopen())
        assert sorted(bodies(session)) == [b"1", b"2", b"3"]
        assert session.commit_all(batch(), [a, b]).messages == 3


def test_what_became_of_a_batch_is_told_from_its_record(
    bare: BareSpace, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever that is: a journal may have it before the directories do."""
    a, b, other = three(session)
    session.commit_all(batch(), [a, b])
    monkeypatch.setattr(memory, "FINISHED_SECONDS", -1.0)
    for _ in range(2):
        assert [session.outcome(xid) for xid in (a, b, other)] == [Outcome.COMMITTED] * 2 + [Outcome.ROLLED_BACK]
        assert session.decision(batch()) == session.commit_all(batch(), [a, b])
        flushed(bare)


def test_one_that_only_takes_finds_no_room_and_says_commit(strict: BareSpace) -> None:
    """Whether its branches add anything or not: it is decided, and a commit completes it."""
    session = Session(strict.space)
    strict.put("orders", b"1")
    xid = Xid(ONE_SPACE, batch().gtrid, b"a")
    session.start(xid)
    assert session.dequeue("orders") is not None
    session.end(xid)
    session.prepare(xid)
    strict.fs.faults["unlink", "committed/queue=orders/range="] = errno.ENOSPC
    with pytest.raises(RetryLater, match="free some and commit again"):
        session.commit_all(batch(), [xid])
    strict.fs.faults.clear()
    session.commit_all(batch(), [xid])
    assert strict.messages("orders") == []


def test_a_branch_that_waits_for_room_is_finished_by_a_commit_of_its_own(strict: BareSpace) -> None:
    session = Session(strict.space)
    a, b, _ = three(session)
    strict.fs.faults[MOVES] = errno.ENOSPC
    with pytest.raises(RetryLater):
        session.commit_all(batch(), [a, b])
    strict.fs.faults.clear()
    session.commit(b)
    assert bodies(session) == [b"2", b"3"]
    session.commit_all(batch(), [a, b])
    assert sorted(bodies(session)) == [b"1", b"2", b"3"]


def test_the_next_is_not_decided_before_the_last_is_carried_out(strict: BareSpace) -> None:
    session = Session(strict.space)
    a, b, other = three(session)
    strict.fs.faults[MOVES] = errno.ENOSPC
    for number in (1, 2, 2):
        with pytest.raises(RetryLater, match="commit again"):
            session.commit_all(batch(number), [a, b] if number == 1 else [])
    assert [one and one.batch.number for one in map(session.decision, map(batch, range(3)))] == [1, 1, None]
    strict.fs.faults.clear()
    session.commit_all(batch(2), [])
    assert (sorted(bodies(session)), session.outcome(other)) == ([b"1", b"2", b"3"], Outcome.ROLLED_BACK)
    for number in (0, 1):
        with pytest.raises(InvalidArgument, match="up to batch 2"):
            session.commit_all(batch(number), [])
    session = reopened(strict)
    assert [one and one.batch.number for one in map(session.decision, map(batch, range(4)))] == [2, 2, 2, None]
    assert sorted(bodies(session)) == [b"1", b"2", b"3"]


def test_a_record_that_cannot_be_read_now_is_asked_for_again(bare: BareSpace, session: Session) -> None:
    a, b, other = three(session)
    session.commit_all(batch(), [a, b])
    flushed(bare)
    bare.reopen()
    session = Session(bare.space)
    bare.fs.faults["read", "batches/"] = errno.EMFILE
    with pytest.raises(RetryLater, match="cannot be read now"):
        session.decision(batch())
    with pytest.raises(RetryLater, match="cannot be read now"):
        session.commit_all(batch(), [a, b])
    with pytest.raises(RetryLater, match="cannot be read now"):
        session.outcome(other)
    bare.fs.faults.clear()
    assert session.commit_all(batch(), [a, b]).xids == (a, b)


def test_a_branch_of_a_batch_is_not_committed_alone(session: Session) -> None:
    """Its batch would be written again, as one that lost a branch."""
    a, b, _ = three(session)
    with pytest.raises(ProtocolError, match="commit_all"):
        session.commit(a)
    xid = active(session, batch(2))
    with pytest.raises(ProtocolError, match="commit_all"):
        session.commit(xid, Flag.ONEPHASE)
    assert session.commit_all(batch(), [a, b]).messages == 3


def active(session: Session, of: Batch) -> Xid:
    xid = Xid(ONE_SPACE, of.gtrid, b"active")
    session.start(xid)
    session.enqueue("orders", b"active")
    session.end(xid)
    return xid


def test_a_failed_step_fences_and_the_next_open_knows(bare: BareSpace, session: Session) -> None:
    a, b, _ = three(session)
    flushed(bare)
    bare.fs.faults[MOVES] = errno.EIO
    for step in (lambda: session.commit_all(batch(), [a, b]), bare.space.checkpoint):
        with suppress(ResourceFailed):
            step()
    assert bare.space.failure is not None
    bare.fs.faults.clear()
    session = Session(bare.reopen())
    assert session.decision(batch()) is not None
    assert sorted(bodies(session)) == [b"1", b"2", b"3"]
    assert session.recover(10, SCAN) == []


@pytest.mark.parametrize(
    ("sync", "limit", "value"),
    [("JOURNAL", "STEP_BLOCKS", 1), (DURABLE, "STEP_BLOCKS", 1)],
)
def test_a_batch_that_no_record_takes_is_decided_first_and_follows_in_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: str, limit: str, value: int
) -> None:
    monkeypatch.setattr(batch_steps, limit, value)
    with bare_space(tmp_path / "space", sync) as bare:
        session = Session(bare.space)
        listed = [prepared(session, f"{n}", batch(), b"%d" % n, b"+") for n in range(5)]
        for n in range(5):
            prepared(session, f"failed {n}", batch())
        steps = bare.space.log.steps
        session.commit_all(batch(), listed)
        assert bare.space.log.steps - steps > 5
        assert len(bodies(session)) == 10
        assert session.recover(10, SCAN) == []
        assert len(bodies(Session(bare.reopen()))) == 10


@pytest.mark.parametrize("sync", ["JOURNAL", DURABLE, "NONE"])
def test_what_a_batch_takes_of_a_block_of_many_is_gone(tmp_path: Path, sync: str) -> None:
    """Of two branches that are committed in one step, over a kill."""
    bodies_put = [b"%d" % place for place in range(20)]
    many_each = Definitions(default=QueueDefinition(blocks=MANY))
    with bare_space(tmp_path / "space", sync, definitions=many_each) as bare:
        connection = bare.connect()
        connection.enqueue_many("orders", bodies_put)
        connection.commit()
        session = Session(bare.space)
        xids = [Xid(ONE_SPACE, batch().gtrid, name) for name in (b"0", b"1")]
        for xid in xids:
            session.start(xid)
            assert [session.dequeue("orders") is not None for _ in range(3)] == [True] * 3
            session.enqueue("others", xid.bqual)
            session.end(xid)
            session.prepare(xid)
        session.commit_all(batch(), xids)
        assert bodies(reopened(bare)) == bodies_put[6:]
