"""What one level left half done, or in doubt, is finished at every other one, and read again at its own."""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress
from itertools import permutations
from pathlib import Path

import pytest

from support.bare_space import DURABLE, BareSpace, bare_space
from support.contract_batches import batch
from xaqueue.batch import ONE_SPACE
from xaqueue.core.engine import heuristics, journal_log
from xaqueue.errors import HeuristicOutcome, RetryLater
from xaqueue.features.session import Session
from xaqueue.xa import Flag
from xaqueue.xid import Xid

LEVELS = ("NONE", DURABLE, "JOURNAL")
LARGE_BYTES = 8 * 1024
LARGE = b"L" * LARGE_BYTES
X = Xid(1, b"x", b"b")
OF_BATCH = [Xid(ONE_SPACE, batch().gtrid, bqual) for bqual in (b"first", b"second")]
ADDED = [("q", b"two"), ("q", LARGE), ("r", b"three")]
LACKING = [(call, "committed/queue=") for call in ("create", "rename")]


def one_phase(bare: BareSpace) -> None:
    session = Session(bare.space)
    session.start(X)
    for queue, body in ADDED:
        session.enqueue(queue, body)
    assert session.dequeue("q") is not None
    session.end(X)
    session.commit(X, Flag.ONEPHASE)


def commit(bare: BareSpace) -> None:
    Session(bare.space).commit(X)


def decide(bare: BareSpace) -> None:
    heuristics.decide(bare.space, X, True, "me")


def commit_batch(bare: BareSpace) -> None:
    Session(bare.space).commit_all(batch(), OF_BATCH)


def several(bare: BareSpace) -> None:
    bare.prepare(X, add=ADDED, take=["q"])


def of_a_batch(bare: BareSpace) -> None:
    bare.prepare(OF_BATCH[0], add=ADDED[:2], take=["q"])
    bare.prepare(OF_BATCH[1], add=ADDED[2:])


Act = Callable[[BareSpace], object]
HALF_DONE: dict[str, tuple[Act, Act]] = {
    "one phase": (lambda bare: None, one_phase),
    "commit": (several, commit),
    "decided": (several, decide),
    "batch": (of_a_batch, commit_batch),
}
every_pair = pytest.mark.parametrize(("left", "opened"), [*permutations(LEVELS, 2)])


@pytest.fixture(autouse=True)
def _low_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a journal, too, the large block is a file in active/."""
    monkeypatch.setattr(journal_log, "KEPT_BYTES", LARGE_BYTES)


def opened_at(bare: BareSpace, sync: str) -> None:
    bare.sync = sync
    bare.reopen()
    assert bare.space.report.notes == []
    assert bare.space.read_only is None


@every_pair
@pytest.mark.parametrize("name", HALF_DONE)
def test_what_found_no_room_is_finished(tmp_path: Path, name: str, left: str, opened: str) -> None:
    """Its record is a file at one level, and in the journal at another, whose directories have not followed."""
    begin, act = HALF_DONE[name]
    with bare_space(tmp_path / "space", left) as bare:
        bare.put("q", b"one")
        bare.put("r", b"one")
        begin(bare)
        bare.space.checkpoint()
        bare.fs.faults = dict.fromkeys(LACKING, errno.ENOSPC)
        with suppress(RetryLater):
            act(bare)
        with suppress(RetryLater):
            bare.space.settle()
        assert bare.fs.struck
        bare.fs.faults.clear()
        for sync in (opened, left, opened):
            opened_at(bare, sync)
            assert bare.take("q") == [b"two", LARGE]
            assert bare.take("r") == [b"one", b"three"]
            if name == "decided":
                assert bare.in_doubt() == [X]
                with pytest.raises(HeuristicOutcome):
                    Session(bare.space).rollback(X)
            else:
                assert bare.in_doubt() == []
            bare.space.checkpoint()


@every_pair
@pytest.mark.parametrize("settled", [True, False])
@pytest.mark.parametrize("there_and_back", [True, False])
def test_what_is_in_doubt_is_decided(
    tmp_path: Path, left: str, opened: str, settled: bool, there_and_back: bool
) -> None:
    """At the other level, or back at its own."""
    with bare_space(tmp_path / "space", left) as bare:
        bare.put("q", b"one", b"kept")
        small = bare.prepare("small", add=[("q", b"small")])
        undone = bare.prepare("undone", add=[("q", LARGE), ("r", b"never")], take=["q"])
        bare.prepare(X, add=ADDED, take=["q"])
        large = bare.prepare("large", add=[("q", LARGE)])
        if settled:
            bare.space.log.settle()
        for sync in (opened, left) if there_and_back else (opened,):
            opened_at(bare, sync)
            assert set(bare.in_doubt()) == {small, undone, X, large}
        session = Session(bare.space)
        for xid in (X, large, small):
            session.commit(xid)
        session.rollback(undone)
        for sync in (bare.sync, left, opened):
            opened_at(bare, sync)
            assert bare.in_doubt() == []
            assert bare.take("q") == [b"one", b"two", LARGE, LARGE, b"small"]
            assert bare.take("r") == [b"three"]
