"""Others come to the same branches while a batch is decided: they wait, and find what became of them."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from support.bare_space import DURABLE, BareSpace, bare_space
from support.batch_scene import three
from support.contract_batches import PATIENCE_S, SCAN, batch, bodies, prepared
from support.patience import eventually
from xaqueue.batch import ONE_SPACE, BatchDecision
from xaqueue.core.engine import commit, heuristics
from xaqueue.core.engine.state import Space
from xaqueue.core.model.branch import Branch
from xaqueue.errors import (
    RolledBack,
    UnknownXid,
)
from xaqueue.features.batches import batch_steps
from xaqueue.features.session import Session
from xaqueue.xid import Xid


@pytest.fixture(params=[DURABLE, "JOURNAL"])
def bare(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[BareSpace]:
    with bare_space(tmp_path / "space", request.param) as opened:
        yield opened


@pytest.fixture
def session(bare: BareSpace) -> Session:
    return Session(bare.space)


class Held:
    """A decision on its way waits here until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached = threading.Event()
        self.go_on = threading.Event()
        self._decide = batch_steps.decide
        monkeypatch.setattr(batch_steps, "decide", self)

    def __call__(self, space: Space, decision: BatchDecision, branches: Sequence[Branch]) -> None:
        self.reached.set()
        assert self.go_on.wait(PATIENCE_S)
        self._decide(space, decision, branches)


def test_who_comes_while_a_batch_is_decided_waits_and_finds_it_done(
    bare: BareSpace, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b, other = three(session)
    late = Xid(ONE_SPACE, batch().gtrid, b"late")
    held = Held(monkeypatch)
    with ThreadPoolExecutor() as pool:
        decision = pool.submit(session.commit_all, batch(), [a, b])
        assert held.reached.wait(PATIENCE_S)
        calls: list[Future[Any]] = [
            pool.submit(Session(bare.space).commit, a),
            pool.submit(Session(bare.space).rollback, other),
            pool.submit(heuristics.decide, bare.space, b, False, "me"),
            pool.submit(prepared, Session(bare.space), "late", batch()),
        ]
        again = pool.submit(Session(bare.space).commit_all, batch(), [])
        eventually(lambda: late in bare.space.branches and bare.space.branches[late].busy)
        assert Session(bare.space).decision(batch()) is None
        assert not any(call.done() for call in (*calls, again))
        held.go_on.set()
        told = [type(call.exception(PATIENCE_S)) for call in calls]
        assert again.result(PATIENCE_S) == decision.result(PATIENCE_S)
    assert told == [UnknownXid, UnknownXid, UnknownXid, RolledBack]
    assert bodies(session) == [b"1", b"2", b"3"]
    assert session.recover(10, SCAN) == []


def test_a_branch_that_is_being_prepared_is_waited_for(
    bare: BareSpace, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = prepared(session, "a", batch())
    reached, go_on, prepare = threading.Event(), threading.Event(), commit.prepare

    def slow(space: Space, branch: Branch) -> None:
        reached.set()
        assert go_on.wait(PATIENCE_S)
        prepare(space, branch)

    monkeypatch.setattr(commit, "prepare", slow)
    with ThreadPoolExecutor() as pool:
        slower = pool.submit(prepared, Session(bare.space), "slow", batch())
        assert reached.wait(PATIENCE_S)
        decision = pool.submit(session.commit_all, batch(), [a])
        beside = pool.submit(session.commit_all, batch(0), [])
        assert beside.result(PATIENCE_S).xids == ()
        assert not decision.done()
        go_on.set()
        assert slower.result(PATIENCE_S)
        assert decision.result(PATIENCE_S).xids == (a,)
    assert session.recover(10, SCAN) == []
    assert bodies(session) == [b"a"]
