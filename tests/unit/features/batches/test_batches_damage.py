"""A record or a branch that is damaged: what can be known is done, and all else is left to people."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from support.bare_space import DURABLE, BareSpace, bare_space
from support.batch_scene import MOVES, RECORD, flushed, reopened, three
from support.contract_batches import SCAN, batch, bodies, prepared
from xaqueue.core.model import layout
from xaqueue.errors import (
    DamagedBlock,
    ResourceError,
    ResourceFailed,
    RetryLater,
)
from xaqueue.features.batches import record
from xaqueue.features.session import Session
from xaqueue.offline.check import check
from xaqueue.offline.findings import Severity


@pytest.fixture(params=[DURABLE, "JOURNAL"])
def bare(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[BareSpace]:
    with bare_space(tmp_path / "space", request.param) as opened:
        yield opened


@pytest.fixture
def session(bare: BareSpace) -> Session:
    return Session(bare.space)


def spoiled(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


def test_a_damaged_record_leaves_what_is_left_in_doubt_and_its_batch_refused(bare: BareSpace, session: Session) -> None:
    a, b, _ = three(session)
    flushed(bare)
    bare.fs.faults[MOVES] = errno.ENOSPC
    with suppress(RetryLater):
        session.commit_all(batch(), [a, b])
    bare.space.checkpoint()
    bare.fs.faults.clear()
    if bare.sync == "JOURNAL":  # which keeps what it has not passed: the record is made again
        bare.space.log.settle()
    spoiled(bare.root / RECORD)
    session = reopened(bare)
    if bare.sync == "JOURNAL":
        assert bare.quarantined() == []
        assert a not in session.recover(10, SCAN)
        assert sorted(bodies(session)) == [b"1", b"2", b"3"]
        return
    (aside,) = bare.quarantined()
    assert any(RECORD in text for text in bare.space.report.quarantined)
    assert any("stays in doubt" in note for note in bare.space.report.notes)
    left = set(session.recover(10, SCAN))
    assert a in left
    with pytest.raises(ResourceError, match="remove that file"):
        session.commit_all(batch(), [])
    with pytest.raises(ResourceError, match="whether it was committed is unknown"):
        session.rollback_all(batch())
    session = reopened(bare)
    with pytest.raises(ResourceError):
        session.commit_all(batch(), [])
    assert set(session.recover(10, SCAN)) == left
    aside.unlink()
    assert session.rollback_all(batch()) == len(left)


def test_a_record_that_nobody_needed_is_found_damaged_when_it_is(bare: BareSpace, session: Session) -> None:
    a, b, _ = three(session)
    session.commit_all(batch(), [a, b])
    bare.space.checkpoint()
    spoiled(bare.root / RECORD)
    session = reopened(bare)
    assert bare.quarantined() == []
    (finding,) = [found for found in check(bare.root, live=False) if found.severity is Severity.DAMAGE]
    assert finding.path == RECORD
    with pytest.raises(ResourceError, match="quarantine/batches"):
        session.commit_all(batch(), [a, b])
    assert len(bare.quarantined()) == 1
    assert bodies(session) == [b"1", b"2", b"3"]


def test_without_room_a_damaged_record_is_set_aside_later(bare: BareSpace, session: Session) -> None:
    a, b, _ = three(session)
    session.commit_all(batch(), [a, b])
    bare.space.checkpoint()
    session = reopened(bare)
    spoiled(bare.root / RECORD)
    bare.fs.faults["rename", layout.QUARANTINE] = errno.ENOSPC
    with pytest.raises(RetryLater, match="no room to set"):
        session.decision(batch())
    bare.fs.faults.clear()
    with pytest.raises(ResourceError, match="was damaged"):
        session.decision(batch())
    assert bare.space.failure is None


def test_foreign_names_among_the_records(bare: BareSpace) -> None:
    path = record.batch_path(batch(2).key, 2)
    session = Session(bare.space)
    session.commit_all(batch(1), [])
    flushed(bare)
    (bare.root / record.BATCHES / "notes").write_text("?")
    (bare.root / path).write_bytes((bare.root / RECORD).read_bytes())
    making = bare.root / record.BATCHES / f".{batch(3).key}.{3:016x}"
    making.write_bytes(b"half")
    found = {finding.path: finding.problem for finding in check(bare.root, live=False)}
    assert "its name is not" in found["batches/notes"]
    assert "not of the batch that it is named after" in found[path]
    reopened(bare)
    assert not making.exists()
    assert [path.name for path in bare.quarantined()] == ["batches.notes"]


def test_a_damaged_branch_keeps_its_batch_undecided(bare: BareSpace, session: Session) -> None:
    a, b, _ = three(session)
    bare.space.checkpoint()
    flushed(bare)
    spoiled(bare.block(layout.PREPARED, b, "001"))
    session = reopened(bare)
    with pytest.raises(RetryLater, match="nothing of batch 1"):
        session.commit_all(batch(), [a, b])
    assert session.decision(batch()) is None
    again = prepared(session, "again", batch())
    session.commit_all(batch(), [again])
    assert session.recover(10, SCAN) == []
    assert bare.quarantined()[0].name.startswith("resolved.")


def test_a_branch_that_was_damaged_behind_its_decision_is_committed_as_far_as_it_is_there(tmp_path: Path) -> None:
    with bare_space(tmp_path / "space", DURABLE) as bare:
        session = Session(bare.space)
        a, b, _ = three(session)
        bare.fs.faults[MOVES] = errno.EIO
        with pytest.raises(ResourceFailed):
            session.commit_all(batch(), [a, b])
        bare.fs.faults.clear()
        for path in (bare.root / layout.PREPARED).glob(f"{b}.*"):
            if path.suffix in (".000", ".commit", ".002"):
                spoiled(path)
        session = Session(bare.reopen())
        assert sorted(bodies(session)) == [b"1", b"2"]
        assert session.recover(10, SCAN) == []
        assert any("the rest is committed" in note for note in bare.space.report.notes)


def test_a_list_whose_moves_have_begun_goes_forward_even_if_the_record_is_damaged(tmp_path: Path) -> None:
    with bare_space(tmp_path / "space", DURABLE) as bare:
        session = Session(bare.space)
        xid = prepared(session, "a", batch(), b"1", b"2")
        bare.fs.faults[MOVES] = errno.EIO
        with pytest.raises(ResourceFailed):
            session.commit_all(batch(), [xid])
        bare.fs.faults.clear()
        spoiled(bare.root / RECORD)
        assert bodies(Session(bare.reopen())) == [b"1", b"2"]


def test_bytes_that_are_no_decision(tmp_path: Path) -> None:
    with bare_space(tmp_path / "space", DURABLE) as bare:
        session = Session(bare.space)
        prepared(session, "a", batch(), b"1", b"2")
        (first,) = (bare.root / layout.PREPARED).glob("*.000")
        with pytest.raises(DamagedBlock, match="no record of a batch"):
            record.read_decision(bare.fs, f"{layout.PREPARED}/{first.name}")
