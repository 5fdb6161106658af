"""A step finds no room at any of its calls: it is done later, once and as a whole, and nothing is counted twice."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

from support.bare_space import DURABLE, BareSpace
from support.contract_batches import batch
from support.narrow_disk import NarrowFileSystem, narrow_space
from support.space_scan import scan
from xaqueue.batch import ONE_SPACE
from xaqueue.core.engine import heuristics
from xaqueue.errors import DiskFull, HeuristicOutcome, ResourceFailed, RetryLater, UnknownXid
from xaqueue.features.session import Session
from xaqueue.xa import Flag, Outcome
from xaqueue.xid import Xid

X = Xid(1, b"x", b"")
FIRST, SECOND, FAILED = (Xid(ONE_SPACE, batch().gtrid, bqual) for bqual in (b"first", b"second", b"failed"))
Contents = tuple[list[bytes], list[bytes]]
BEFORE: Contents = [b"one", b"two"], []
AFTER: Contents = [b"two", b"three"], [b"new", b"newer"]
Verb = Callable[[Session], object]


def work(session: Session) -> None:
    """X takes from one queue, adds to it and makes another, and is ended."""
    session.start(X)
    assert session.dequeue("q") is not None
    for queue, body in (("q", b"three"), ("new", b"new"), ("new", b"newer")):
        session.enqueue(queue, body)
    session.end(X)


def commit(session: Session, flags: Flag) -> None:
    """Where there was no room for its list, or to prepare it, the work is done again."""
    try:
        if not flags and session.outcome(X) is not Outcome.IN_DOUBT:
            session.prepare(X)
        session.commit(X, flags)
    except DiskFull as full:
        with suppress(UnknownXid):
            session.rollback(X)
        work(session)
        raise RetryLater("commit that") from full


def active(bare: BareSpace) -> None:
    work(Session(bare.space))


def several(bare: BareSpace) -> None:
    bare.prepare(X, add=[("q", b"three"), ("new", b"new"), ("new", b"newer")], take=["q"])


def of_a_batch(bare: BareSpace) -> None:
    bare.prepare(FIRST, add=[("q", b"three")], take=["q"])
    bare.prepare(SECOND, add=[("new", b"new"), ("new", b"newer")])
    bare.prepare(FAILED, add=[("q", b"never")])


def decide(session: Session, to_commit: bool) -> None:
    with suppress(HeuristicOutcome):  # it is done already, and somebody asks again
        heuristics.decide(session.space, X, to_commit, "me")
    session.forget(X)


STEPS: dict[str, tuple[Callable[[BareSpace], None], Verb]] = {
    "one phase": (active, lambda session: commit(session, Flag.ONEPHASE)),
    "two phases": (active, lambda session: commit(session, Flag.NOFLAGS)),
    "commit": (several, lambda session: session.commit(X)),
    "rollback": (several, lambda session: session.rollback(X)),
    "decide commit": (several, lambda session: decide(session, True)),
    "decide rollback": (several, lambda session: decide(session, False)),
    "commit a batch": (of_a_batch, lambda session: session.commit_all(batch(), [FIRST, SECOND])),
    "roll a batch back": (of_a_batch, lambda session: session.rollback_all(batch())),
}


def contents(bare: BareSpace) -> Contents:
    return bare.take("q"), bare.take("new")


def check_counts(bare: BareSpace) -> None:
    """Whoever removes a range, or consumes one as a stream, goes by its count."""
    for queue in bare.space.queues.values():
        assert sum(queue.ranges.values()) == len(queue.index)


def tried(bare: BareSpace, fs: NarrowFileSystem, verb: Verb) -> bool:
    """Whether it is done. What is over may be left behind where its removal finds no room: that alone fences."""
    try:
        verb(Session(bare.space))
    except RetryLater:
        return False
    except ResourceFailed:
        if fs.struck[0][0] != "unlink":
            raise
        return False
    return True


@pytest.mark.parametrize("killed", [False, True], ids=["again", "killed"])
@pytest.mark.parametrize("sync", ["NONE", DURABLE])
@pytest.mark.parametrize("name", STEPS)
def test_no_room_at_any_call_of_a_step(tmp_path: Path, name: str, sync: str, killed: bool) -> None:
    """Tried twice without room, and again once there is; or the process is killed before that."""
    begin, verb = STEPS[name]
    for at in count():
        with narrow_space(tmp_path / f"{at}", sync) as (bare, fs):
            bare.put("q", b"one", b"two")
            begin(bare)
            fs.fill(at)
            is_done = tried(bare, fs, verb) or (not killed and bare.space.failure is None and tried(bare, fs, verb))
            if not fs.struck:
                break
            fs.free()
            q, new = BEFORE if "roll" in name else AFTER
            if killed or bare.space.failure is not None:
                is_refused = not is_done and bare.space.failure is None
                bare.reopen()
                assert bare.space.report.notes == []
                if "phase" in name and Session(bare.space).outcome(X) is Outcome.UNKNOWN:
                    assert contents(bare) in ([AFTER] if is_done else [BEFORE, AFTER])
                    continue
                if is_refused and name.startswith("roll"):
                    assert bare.in_doubt() != [], "it was said that nothing was done"
                with suppress(UnknownXid):
                    verb(Session(bare.space))
            elif not is_done:
                before = len(q) if "roll" in name or b"three" in bare.take("q") else 1
                bare.put("q", b"between")
                verb(Session(bare.space))
                q = [*q[:before], b"between", *q[before:]]
            check_done(bare, q, new)
    assert at > 5


def check_done(bare: BareSpace, q: list[bytes], new: list[bytes]) -> None:
    """In memory, then on disk."""
    for _ in range(2):
        assert contents(bare) == (q, new)
        assert bare.in_doubt() == []
        check_counts(bare)
        bare.reopen()
        assert bare.space.report.notes == []
    bare.space.close()
    assert scan(bare.root) == []
