"""Who waits for somebody else's step hears that the space is fenced, and is interrupted only when all is noted."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from support.bare_space import DURABLE, BareSpace, bare_space
from xaqueue.batch import key_of
from xaqueue.errors import ResourceFailed
from xaqueue.space.engine import heuristics
from xaqueue.space.engine.batches import claimed
from xaqueue.space.engine.session import Session
from xaqueue.space.engine.state import Space
from xaqueue.xa import Flag, Outcome
from xaqueue.xid import Xid

PATIENCE_S = 30.0
BATCH = b"ab" * 16 + b":1"


def hold(space: Space, xid: Xid) -> None:
    """Somebody is in everything, and hangs."""
    with space.lock:
        space.branches[xid].busy = True
        space.queue("q").in_hand = True
        space.batches.claimed.add(key_of(BATCH))


def claim(space: Space) -> None:
    with claimed(space, BATCH):
        pass


WAITS: dict[str, Callable[[Session, Xid], object]] = {
    "commit": lambda session, xid: session.commit(xid),
    "rollback": lambda session, xid: session.rollback(xid),
    "forget": lambda session, xid: session.forget(xid),
    "start": lambda session, xid: session.start(xid, Flag.JOIN),
    "decide": lambda session, xid: heuristics.decide(session.space, xid, True, "an operator"),
    "reserve": lambda session, _: session.reserve("q", "stream", 0, 0),
    "consume": lambda session, _: session.consume("q", "stream", 0),
    "release": lambda session, _: session.release("q"),
    "batch": lambda session, _: claim(session.space),
}


@pytest.mark.parametrize("sync", ["NONE", DURABLE])
@pytest.mark.parametrize("wait", WAITS)
def test_who_waits_for_a_branch_hears_of_a_fence(tmp_path: Path, sync: str, wait: str) -> None:
    with bare_space(tmp_path / "s", sync) as bare, ThreadPoolExecutor(1) as pool:
        xid = bare.prepare("x", add=[("q", b"1")])
        hold(bare.space, xid)
        waiting = pool.submit(WAITS[wait], Session(bare.space), xid)
        with pytest.raises(TimeoutError):
            waiting.result(0.2)
        bare.space.log.fail(OSError(5, "Input/output error"))
        with pytest.raises(ResourceFailed):
            waiting.result(PATIENCE_S)


def test_a_session_closes_beside_a_branch_that_hangs_in_a_fenced_space(tmp_path: Path) -> None:
    with bare_space(tmp_path / "s", DURABLE) as bare, ThreadPoolExecutor(1) as pool:
        session, xid = Session(bare.space), Xid(1, b"mine", b"")
        session.start(xid)
        with bare.space.lock:
            bare.space.branches[xid].busy = True
        closing = pool.submit(session.close)
        with pytest.raises(TimeoutError):
            closing.result(0.2)
        bare.space.log.fail(OSError(5, "Input/output error"))
        closing.result(PATIENCE_S)


def interrupted(bare: BareSpace, call: Callable[[Session, Xid], object], xid: Xid) -> None:
    session = Session(bare.space)
    bare.space.log.interrupts[threading.get_ident()] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        call(session, xid)


@pytest.mark.parametrize(
    ("wait", "outcome"),
    [("commit", Outcome.COMMITTED), ("rollback", Outcome.ROLLED_BACK), ("decide", Outcome.COMMITTED)],
)
def test_an_interrupt_while_a_step_was_waited_for_leaves_it_done_and_fences_nothing(
    tmp_path: Path, wait: str, outcome: Outcome
) -> None:
    with bare_space(tmp_path / "s", DURABLE) as bare:
        xid = bare.prepare("x", add=[("q", b"1")])
        interrupted(bare, WAITS[wait], xid)
        assert bare.space.outcome(xid) is outcome
        bare.put("q", b"2")
        assert bare.take("q") == ([b"1", b"2"] if outcome is Outcome.COMMITTED else [b"2"])
