"""Who waits for somebody else's step hears that the space is fenced, and is interrupted only when all is noted."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from support.bare_space import DURABLE, BareSpace, bare_space
from xaqueue.batch import ONE_SPACE, Batch, key_of
from xaqueue.core.engine import heuristics, state
from xaqueue.core.engine.state import Space
from xaqueue.core.model.layout import ACTIVE, COMMITTED
from xaqueue.errors import ResourceFailed, RolledBack
from xaqueue.features.batches import record
from xaqueue.features.batches.batches import claimed
from xaqueue.features.retries.register import TRIES
from xaqueue.features.session import Session
from xaqueue.xa import Flag, Outcome
from xaqueue.xid import Xid

PATIENCE_S = 30.0
BATCH = b"ab" * 16 + b":1"
DECIDED = Batch("7f3c0b52-9a4e-4a86-9f0e-0d6c6b1a2c3d", 1)


def hold(space: Space, xid: Xid) -> None:
    """Somebody is in everything, and hangs."""
    with space.lock:
        space.branches[xid].busy = True
        space.queue("q").in_hand = True
        record.batches_of(space).claimed.add(key_of(BATCH))


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
def test_who_waits_for_a_branch_hears_of_a_fence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: str, wait: str
) -> None:
    monkeypatch.setattr(state, "LOOK_S", 0.05)
    with bare_space(tmp_path / "s", sync) as bare, ThreadPoolExecutor(1) as pool:
        xid = bare.prepare("x", add=[("q", b"1")])
        hold(bare.space, xid)
        waiting = pool.submit(WAITS[wait], Session(bare.space), xid)
        with pytest.raises(TimeoutError):
            waiting.result(0.1)
        bare.space.log.fail(OSError(5, "Input/output error"))
        with pytest.raises(ResourceFailed):
            waiting.result(PATIENCE_S)


@pytest.mark.parametrize("ended", [False, True])
def test_a_session_closes_beside_a_branch_that_hangs_in_a_fenced_space(tmp_path: Path, *, ended: bool) -> None:
    """In which it is, or which it has ended. The space hears that it is gone: without that nobody opens it again."""
    closed: list[bool] = []
    with bare_space(tmp_path / "s", DURABLE) as bare, ThreadPoolExecutor(1) as pool:
        session, xid = Session(bare.space, on_close=lambda: closed.append(True)), Xid(1, b"mine", b"")
        session.start(xid)
        if ended:
            session.end(xid)
        with bare.space.lock:
            bare.space.branches[xid].busy = True
        closing = pool.submit(session.close, xid if ended else None)
        with pytest.raises(TimeoutError):
            closing.result(0.2)
        bare.space.log.fail(OSError(5, "Input/output error"))
        closing.result(PATIENCE_S)
        assert closed


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


@pytest.mark.parametrize(
    ("sync", "call", "path"),
    [
        *((sync, "read", COMMITTED) for sync in ("NONE", DURABLE, "JOURNAL")),
        *((sync, "create", ACTIVE) for sync in ("NONE", DURABLE)),
        ("JOURNAL", "write_at", TRIES),
    ],
)
def test_an_interrupted_dequeue_takes_nothing(tmp_path: Path, sync: str, call: str, path: str) -> None:
    """Whoever goes on, and commits what was done before, does not consume a message that nobody got."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    with bare_space(tmp_path / "s", sync) as bare:
        bare.put("q", b"1", b"2")
        bare.space.log.settle()
        bare.reopen()
        with closing(bare.connect()) as connection:
            assert connection.dequeue("q") is not None
            bare.fs.meanwhile[call, path] = interrupt
            with pytest.raises(KeyboardInterrupt):
                connection.dequeue("q")
            connection.commit()
        assert bare.take("q") == [b"2"]
        bare.reopen()
        assert bare.take("q") == [b"2"]


def test_a_prepare_that_was_interrupted_before_its_step_ends_with_its_connection(tmp_path: Path) -> None:
    """Nobody else would roll the branch back."""
    with bare_space(tmp_path / "s", DURABLE) as bare:
        bare.put("q", b"1")
        connection, xid = bare.connect(), Xid(1, b"x", b"")
        connection.tpc_begin(xid)
        assert connection.dequeue("q") is not None
        with mock.patch.object(Session, "prepare", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
            connection.tpc_prepare()
        connection.close()
        assert bare.take("q") == [b"1"]
        assert bare.space.outcome(xid) is Outcome.ROLLED_BACK


@pytest.mark.parametrize("sync", ["NONE", DURABLE, "JOURNAL"])
def test_an_interrupted_enqueue_adds_nothing(tmp_path: Path, sync: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is anything of it in the way of a later branch of the same name."""
    xid = Xid(1, b"x", b"")
    with bare_space(tmp_path / "s", sync) as bare, closing(bare.connect()) as connection:
        add = bare.space.log.add

        def interrupted(*arguments: Any, **options: Any) -> None:
            add(*arguments, **options)
            raise KeyboardInterrupt

        connection.tpc_begin(xid)
        with monkeypatch.context() as patch:
            patch.setattr(bare.space.log, "add", interrupted)
            with pytest.raises(KeyboardInterrupt):
                connection.enqueue("q", b"1")
        connection.tpc_rollback()
        connection.tpc_begin(xid)
        connection.enqueue("q", b"2")
        connection.tpc_commit()
        assert bare.take("q") == [b"2"]


class InterruptingLock:
    """A lock behind whose release, the one with this number, an interrupt arrives: the interpreter looks there."""

    def __init__(self, lock: threading.Lock, at: int) -> None:
        self._lock = lock
        self.left = at

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
        self.left -= 1
        if self.left == -1:
            raise KeyboardInterrupt


def begun(session: Session, xid: Xid) -> None:
    session.start(xid)
    session.enqueue("q", b"2")


def ended(session: Session, xid: Xid) -> None:
    begun(session, xid)
    session.end(xid)


def prepared(session: Session, xid: Xid) -> None:
    ended(session, xid)
    session.prepare(xid)


def decided(session: Session, xid: Xid) -> None:
    prepared(session, xid)
    heuristics.decide(session.space, xid, True, "an operator")


def doomed(session: Session, xid: Xid) -> None:
    ended(session, xid)
    session.space.branches[xid].rollback_reason = RolledBack("it took too long")


Verb = Callable[[Session, Xid], object]
VERBS: dict[str, tuple[Verb, Verb]] = {
    "prepare": (ended, lambda session, xid: session.prepare(xid)),
    "commit in one phase": (ended, lambda session, xid: session.commit(xid, Flag.ONEPHASE)),
    "commit": (prepared, lambda session, xid: session.commit(xid)),
    "rollback": (prepared, lambda session, xid: session.rollback(xid)),
    "forget": (decided, lambda session, xid: session.forget(xid)),
    "prepare what is doomed": (doomed, lambda session, xid: session.prepare(xid)),
    "close": (begun, lambda session, _: session.close()),
    "decide": (prepared, lambda session, xid: heuristics.decide(session.space, xid, True, "an operator")),
    "commit a batch": (prepared, lambda session, xid: session.commit_all(DECIDED, [xid])),
    "reserve": (ended, lambda session, _: session.reserve("q", "stream", 0, 0)),
}
ASKED: dict[str, Verb] = {
    "commit a batch": lambda session, _: session.rollback_all(DECIDED),
    "reserve": lambda session, _: session.release("q"),
}
"""Who would wait; where it is not who asks for the outcome of the branch."""


@pytest.mark.parametrize("name", VERBS)
def test_an_interrupt_behind_any_release_of_the_lock_leaves_nobody_waiting(tmp_path: Path, name: str) -> None:
    begin, verb = VERBS[name]
    ask = ASKED.get(name, lambda session, xid: session.outcome(xid))
    xid = Xid(ONE_SPACE, DECIDED.gtrid, b"x") if name == "commit a batch" else Xid(1, b"x", b"")
    for at in count():
        with bare_space(tmp_path / f"{at}") as bare, ThreadPoolExecutor(1) as pool:
            space, session = bare.space, Session(bare.space)
            begin(session, xid)
            lock, space.lock = space.lock, InterruptingLock(space.lock, at)  # type: ignore[assignment]
            with suppress(KeyboardInterrupt, RolledBack):
                verb(session, xid)
            left, space.lock = space.lock.left, lock  # type: ignore[attr-defined]
            asking = pool.submit(ask, Session(space), xid)
            try:
                with suppress(ResourceFailed):
                    asking.result(PATIENCE_S)
            finally:
                space.log.fail(OSError(5, "Input/output error"))
            if left >= 0:
                break
    assert at > 0


def received(session: Session) -> None:
    session.receive("q")


def taken(session: Session) -> None:
    session.dequeue("q")


@pytest.mark.parametrize(("take", "at"), [(taken, 0), (received, 1)])
def test_an_interrupt_behind_the_lock_under_which_a_message_was_taken_leaves_it_to_others(
    tmp_path: Path, take: Callable[[Session], None], at: int
) -> None:
    """Neither does a commit of what was done before consume it."""
    with bare_space(tmp_path / "space", "JOURNAL") as bare:
        bare.put("q", b"1")
        space, session, xid = bare.space, Session(bare.space), Xid(1, b"x", b"")
        if take is taken:
            session.start(xid)
        lock, space.lock = space.lock, InterruptingLock(space.lock, at)  # type: ignore[assignment]
        with pytest.raises(KeyboardInterrupt):
            take(session)
        space.lock = lock
        if take is taken:
            session.end(xid)
            session.commit(xid, Flag.ONEPHASE)
        assert bare.take("q") == [b"1"]
