"""An operator's decision holds from its record on: for every verb, at every moment, over every lack and restart."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from support.bare_space import DURABLE, BareSpace, bare_space
from xaqueue.core.engine import heuristics
from xaqueue.core.model import layout
from xaqueue.core.model.block import decode, encode
from xaqueue.core.model.branch import State
from xaqueue.core.model.change import CoreStep
from xaqueue.core.storage.journal import Journal
from xaqueue.core.storage.journal_format import Entry
from xaqueue.errors import DuplicateXid, Error, HeuristicOutcome, ProtocolError, RetryLater
from xaqueue.features.session import Session
from xaqueue.xa import Code, Flag
from xaqueue.xid import Xid

OUT = ("make_dir", layout.queue_path("out"))


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[BareSpace]:
    with bare_space(tmp_path / "space", DURABLE) as opened:
        yield opened


@pytest.fixture
def decided(bare: BareSpace) -> Xid:
    """A branch whose commit was decided, and there was no room to carry it out."""
    xid = bare.prepare("x", add=[("out", b"message")])
    bare.fs.faults[OUT] = errno.ENOSPC
    with pytest.raises(RetryLater):
        heuristics.decide(bare.space, xid, True, by="test")
    return xid


def answer(call: Callable[[], object]) -> Error | None:
    try:
        call()
    except Error as error:
        return error
    return None


def check_answers(bare: BareSpace, xid: Xid) -> None:
    """Every verb answers with the decision, and changes nothing."""
    session = Session(bare.space)
    for verb in (session.commit, session.rollback):
        with pytest.raises(HeuristicOutcome) as told:
            verb(xid)
        assert told.value.code is Code.XA_HEURCOM
    with pytest.raises(DuplicateXid):
        session.start(xid)
    assert session.recover(10, Flag.STARTRSCAN | Flag.ENDRSCAN) == [xid]


def check_carried_out(bare: BareSpace, xid: Xid) -> None:
    check_answers(bare, xid)
    assert bare.take("out") == [b"message"]
    bare.space.settle()
    assert list((bare.root / layout.PREPARED).iterdir()) == []
    Session(bare.space).forget(xid)
    bare.space.settle()
    assert bare.in_doubt() == []
    assert list((bare.root / layout.HEURISTIC).iterdir()) == []


def test_a_decision_without_room_binds_the_verbs(bare: BareSpace, decided: Xid) -> None:
    check_answers(bare, decided)
    with pytest.raises(ProtocolError, match="not carried out yet"):
        Session(bare.space).forget(decided)
    assert bare.block(layout.PREPARED, decided, layout.FIRST).exists()


def test_a_second_decide_carries_out_the_first(bare: BareSpace, decided: Xid) -> None:
    bare.fs.faults.clear()
    assert heuristics.decide(bare.space, decided, False, by="another").by == "test"
    check_carried_out(bare, decided)


def test_a_reopen_with_room_carries_it_out(bare: BareSpace, decided: Xid) -> None:
    bare.fs.faults.clear()
    bare.reopen()
    check_carried_out(bare, decided)


def test_a_reopen_without_room_notes_it_and_serves_the_rest(bare: BareSpace, decided: Xid) -> None:
    report = bare.reopen().report
    assert any(f"{decided} is not carried out yet" in note for note in report.notes)
    bare.put("other", b"1")
    assert bare.take("other") == [b"1"]
    check_answers(bare, decided)
    with pytest.raises(ProtocolError, match="not carried out yet"):
        Session(bare.space).forget(decided)
    bare.fs.faults.clear()
    heuristics.decide(bare.space, decided, True, by="test")
    check_carried_out(bare, decided)


@pytest.mark.parametrize("then", ["decide", "follow and decide", "reopen"])
def test_a_decision_that_only_the_journal_has_holds_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    """It had room for the record, and for nothing more."""
    write = Journal.write

    def write_decisions(
        journal: Journal, entries: Sequence[Entry], syncing: Callable[[int], None] | None = None
    ) -> int:
        if any(entry.kind != CoreStep.DECISION for entry in entries):
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(journal, entries, syncing)

    with bare_space(tmp_path / "space", "JOURNAL") as bare:
        xid = bare.prepare("x", add=[("out", b"message")])
        with monkeypatch.context() as full:
            full.setattr(Journal, "write", write_decisions)
            for by in ("test", "another"):
                with pytest.raises(RetryLater):
                    heuristics.decide(bare.space, xid, by == "test", by=by)
                check_answers(bare, xid)
                with pytest.raises(ProtocolError, match="not carried out yet"):
                    Session(bare.space).forget_by_hand(xid, "me")
            assert list((bare.root / layout.HEURISTIC).iterdir()) == []
        if then == "reopen":
            bare.reopen()
        else:
            if then == "follow and decide":
                bare.space.settle()
            decision = heuristics.decide(bare.space, xid, False, by="another")
            assert (decision.outcome, decision.by) == ("commit", "test")
        check_carried_out(bare, xid)


@pytest.mark.parametrize("commit", [True, False])
def test_while_it_is_carried_out_the_xid_is_never_unknown(
    bare: BareSpace, monkeypatch: pytest.MonkeyPatch, commit: bool
) -> None:
    xid = bare.prepare("x", add=[("out", b"1"), ("out", b"2")])
    (bare.root / layout.block_path(layout.PREPARED, str(xid), "001")).write_bytes(b"damaged")
    bare.reopen()
    manager = Session(bare.space)
    known: list[bool] = []
    answers: list[Error | None] = []
    real = bare.fs.sync_dir

    def sync_dir(path: str) -> None:
        known.append(xid in bare.space.branches)
        branch = bare.space.branches.get(xid)
        if path == layout.QUARANTINE and branch is not None and not branch.busy:  # the last step: its files are gone
            answers.extend((answer(lambda: manager.commit(xid)), answer(lambda: manager.start(xid))))
        real(path)

    monkeypatch.setattr(bare.fs, "sync_dir", sync_dir)
    heuristics.decide(bare.space, xid, commit, by="test")
    assert known
    assert all(known)
    assert [type(told) for told in answers] == [HeuristicOutcome, DuplicateXid]
    assert bare.space.branches[xid].base is (State.HEURISTIC_MIXED if commit else State.HEURISTIC_ROLLBACK)
    assert bare.space.queues["out"].pending == set()


def test_a_record_from_before_there_were_reasons_is_read(bare: BareSpace) -> None:
    xid = bare.prepare("x", add=[("out", b"message")])
    heuristics.decide(bare.space, xid, True, by="test", reason="why")
    path = f"{layout.HEURISTIC}/{xid}"
    block = decode(bare.fs.read(path))
    old = replace(block, properties=replace(block.properties, headers={"decision": "commit", "by": "test"}))
    (bare.root / path).write_bytes(b"".join(encode(old)))
    assert heuristics.read(bare.fs, path) == heuristics.Decision("commit", "test", block.properties.enqueued_at)
    bare.reopen()
    check_carried_out(bare, xid)


def test_a_decision_that_was_not_carried_out_keeps_its_reason(bare: BareSpace) -> None:
    xid = bare.prepare("x", add=[("out", b"message")])
    bare.fs.faults[OUT] = errno.ENOSPC
    with pytest.raises(RetryLater):
        heuristics.decide(bare.space, xid, True, "test", "the first word")
    bare.fs.faults.clear()
    assert heuristics.decide(bare.space, xid, False, "another", "the second").reason == "the first word"
    check_carried_out(bare, xid)


def test_a_record_that_cannot_be_read_now_is_asked_for_again(bare: BareSpace, decided: Xid) -> None:
    """For want of a descriptor; nothing is decided anew, and nothing forgotten."""
    bare.fs.faults = {("read", layout.HEURISTIC): errno.EMFILE}
    with pytest.raises(RetryLater, match="cannot be read now"):
        heuristics.decide(bare.space, decided, False, by="another")
    bare.fs.faults.clear()
    assert heuristics.decide(bare.space, decided, False, by="another").outcome == "commit"
    bare.fs.faults = {("read", layout.HEURISTIC): errno.EMFILE}
    with pytest.raises(RetryLater, match="cannot be read now"):
        Session(bare.space).forget_by_hand(decided, "another", "done")
    bare.fs.faults.clear()
    check_carried_out(bare, decided)
