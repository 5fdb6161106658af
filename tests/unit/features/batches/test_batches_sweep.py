"""What a query left that is dead is rolled back by its age, and only where nobody may have decided otherwise."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from support.bare_space import ANY_QUEUE, DURABLE, BareSpace, bare_space, wall_clock
from support.contract_batches import SCAN, batch, prepared
from support.patience import eventually
from support.served import ServerThread
from xaqueue.batch import MANY_SPACES, ONE_SPACE, Batch, Plan
from xaqueue.core.model import layout
from xaqueue.core.model.definitions import Definitions, parse
from xaqueue.core.owner import open as attach_room
from xaqueue.core.owner.chores import Chores
from xaqueue.errors import InvalidArgument, RetryLater
from xaqueue.features.batches import record
from xaqueue.features.batches.options import SWEEP_AFTER_S
from xaqueue.features.batches.sweep import FORGET_EVERY_US, Sweep, sweep
from xaqueue.features.session import Session
from xaqueue.rpc.client.manager import remote_manager
from xaqueue.rpc.server import server as served
from xaqueue.xa import Outcome
from xaqueue.xid import Xid

DAY_S = 24 * 3600


class Clock:
    """The wall clock, which a test puts forward."""

    def __init__(self) -> None:
        self.ahead_s = 0

    def __call__(self) -> int:
        return wall_clock() + self.ahead_s * 1_000_000


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=[DURABLE, "JOURNAL"])
def bare(tmp_path: Path, request: pytest.FixtureRequest, clock: Clock) -> Iterator[BareSpace]:
    with bare_space(tmp_path / "space", request.param, clock) as opened:
        yield opened


def test_what_is_old_and_not_decided_goes(bare: BareSpace, clock: Clock) -> None:
    session = Session(bare.space)
    old = [prepared(session, bqual, batch(1)) for bqual in ("a", "b")]
    kept = [prepared(session, "a", batch(2), format_id=MANY_SPACES), prepared(session, "a", batch(1), format_id=7)]
    clock.ahead_s = 6 * DAY_S
    assert sweep(bare.space) == 0
    young = prepared(session, "young", batch(3))
    clock.ahead_s = 8 * DAY_S
    assert sweep(bare.space) == 2
    assert set(session.recover(10, SCAN)) == {*kept, young}
    assert {session.outcome(xid) for xid in old} == {Outcome.ROLLED_BACK}
    assert session.decision(batch(1)) is None
    assert sweep(bare.space) == 0


def test_a_batch_that_somebody_works_at_is_left_alone(bare: BareSpace, clock: Clock) -> None:
    session, other = Session(bare.space), Session(bare.space)
    old = [prepared(session, "old", batch(n)) for n in (1, 2)]
    other.start(Xid(ONE_SPACE, batch(1).gtrid, b"at work"))
    clock.ahead_s = 8 * DAY_S
    prepared(session, "young", batch(2))
    assert sweep(bare.space) == 0
    assert set(old) <= set(session.recover(10, SCAN))
    other.close()
    assert sweep(bare.space) == 1


def test_opening_sweeps_too(bare: BareSpace, clock: Clock) -> None:
    session = Session(bare.space)
    old = prepared(session, "old", batch(1))
    several = prepared(session, "several", batch(4), format_id=MANY_SPACES)
    decided = [prepared(session, "kept", batch(2))]
    session.commit_all(batch(2), decided)
    bare.space.checkpoint()
    session = Session(bare.reopen())
    assert set(session.recover(10, SCAN)) == {old, several}
    clock.ahead_s = 8 * DAY_S
    prepared(Session(bare.space), "young", batch(3))
    session = Session(bare.reopen())
    assert session.outcome(old) is Outcome.ROLLED_BACK
    assert several in session.recover(10, SCAN)


def test_only_a_query_with_one_batch_is_forgotten(bare: BareSpace, clock: Clock) -> None:
    """All others may come back, however late, and what they wrote would be written again."""
    session = Session(bare.space)
    once, first, stream = Batch("once", 0), Batch("first", 0), Batch("stream", 0)
    for each in (once, first, stream):
        session.commit_all(each, [prepared(session, each.query, each)], plan=Plan(once=each is once))
    session.commit_all(Batch("stream", 1), [])
    bare.space.log.settle()
    clock.ahead_s = 29 * DAY_S
    sweep(bare.space)
    assert session.decision(once) is not None
    for _ in ("by a look now and then", "after a crash"):
        clock.ahead_s = 100 * DAY_S
        sweep(bare.space)
        assert session.decision(once) is None
        assert [each.batch.number for each in map(session.decision, (first, stream)) if each] == [0, 1]
        bare.space.checkpoint()
        session = Session(bare.reopen())
    kept = {path.name for path in (bare.root / record.BATCHES).iterdir()}
    assert kept == {record.batch_path(key, n).rpartition("/")[2] for key, n in ((first.key, 0), (stream.key, 1))}
    with pytest.raises(InvalidArgument, match="up to batch 1"):
        session.commit_all(stream, [])


def test_decisions_are_looked_for_now_and_then(tmp_path: Path, clock: Clock) -> None:
    with bare_space(tmp_path / "space", DURABLE, clock, replace(ANY_QUEUE, options={"forget_after_s": 1})) as bare:
        session = Session(bare.space)
        session.commit_all(batch(0), [], plan=Plan(once=True))
        clock.ahead_s = 60
        sweep(bare.space)
        assert session.decision(batch(0)) is not None
        clock.ahead_s = FORGET_EVERY_US // 1_000_000 + 1
        sweep(bare.space)
        assert session.decision(batch(0)) is None


def test_a_query_with_branches_that_are_not_finished_is_not_forgotten(bare: BareSpace, clock: Clock) -> None:
    session = Session(bare.space)
    xid = prepared(session, "a", batch(0))
    bare.space.log.settle()
    bare.fs.faults["rename", "committed/queue=orders/range="] = errno.ENOSPC
    with suppress(RetryLater):
        session.commit_all(batch(0), [xid], plan=Plan(once=True))
    bare.fs.faults.clear()
    clock.ahead_s = 100 * DAY_S
    sweep(bare.space)
    assert session.commit_all(batch(0), [xid]).xids == (xid,)


def test_damage_is_for_operators(tmp_path: Path, clock: Clock) -> None:
    with bare_space(tmp_path / "space", DURABLE, clock) as bare:
        session = Session(bare.space)
        xid = prepared(session, "a", batch(), b"1", b"2")
        path = bare.block(layout.PREPARED, xid, "001")
        path.write_bytes(path.read_bytes()[:-1])
        clock.ahead_s = 8 * DAY_S
        session = Session(bare.reopen())
        assert session.recover(10, SCAN) == [xid]
        assert sweep(bare.space) == 0


def test_its_age_is_defined(tmp_path: Path, clock: Clock) -> None:
    assert SWEEP_AFTER_S.of(Definitions()) == 7 * DAY_S
    assert SWEEP_AFTER_S.of(parse("[space]\nsweep_after_s = 60")) == 60
    with pytest.raises(InvalidArgument, match="number of seconds from 1"):
        parse("[space]\nsweep_after_s = 0")
    with bare_space(tmp_path / "space", DURABLE, clock, replace(ANY_QUEUE, options={"sweep_after_s": 60})) as bare:
        session = Session(bare.space)
        prepared(session, "a", batch())
        clock.ahead_s = 61
        assert sweep(bare.space) == 1
        bare.space.close()
        assert sweep(bare.space) == 0


def test_without_a_server_it_is_a_chore(tmp_path: Path) -> None:
    """Of a branch that was prepared so long ago that its query is taken for dead."""
    with bare_space(tmp_path / "space", definitions=replace(ANY_QUEUE, options={"sweep_after_s": 1})) as bare:
        session, xid = Session(bare.space), prepared(Session(bare.space), "a", batch())
        bare.space.branches[xid].prepared_at = 1
        chore = Sweep(bare.space)
        assert 0 < chore.left_s() <= 1, "the open has swept"
        chores = Chores(bare.space, [chore])
        eventually(lambda: session.outcome(xid) is Outcome.ROLLED_BACK)
        chores.stop()


def test_a_server_sweeps_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served, "SWEEP_S", 0.0)
    attach_room.create(tmp_path / "space", any_queue=True)
    server = ServerThread(tmp_path / "space", tmp_path / "socket")
    try:
        manager = remote_manager(server.url)
        xid = prepared(manager, "a", batch())
        server.space.definitions = replace(server.space.definitions, options={"sweep_after_s": -1})
        eventually(lambda: manager.outcome(xid) is Outcome.ROLLED_BACK)
        manager.close()
    finally:
        server.stop()
