"""Sessions in one branch, and sessions of one space: what one does wrong, the others are told, and nobody hangs."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import pytest

from support.bare_space import DURABLE, BareSpace, bare_space
from support.journal_of import rounds_of
from xaqueue.core.engine import taking
from xaqueue.core.model import layout
from xaqueue.core.model.entry import Entry
from xaqueue.core.storage.fs import Room
from xaqueue.core.storage.group_commit import Step
from xaqueue.errors import DiskLow, Error, ProtocolError, ResourceFailed, RolledBack
from xaqueue.features.session import Session
from xaqueue.xa import Flag, Outcome
from xaqueue.xid import Xid

X = Xid(1, b"x", b"")
Y = Xid(1, b"y", b"")
LIMIT_S = 60.0
"""When a thread counts as hanging."""


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[BareSpace]:
    with bare_space(tmp_path / "space", DURABLE) as opened:
        yield opened


class InterruptedLock:
    """A lock that ends in a Ctrl-C the next time that it is entered."""

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        self._armed = True

    def __enter__(self) -> bool:
        if self._armed:
            self._armed = False
            raise KeyboardInterrupt
        return self._lock.__enter__()

    def __exit__(self, *error: object) -> None:
        self._lock.release()


def begun(call: Callable[[], object]) -> tuple[threading.Thread, list[Error]]:
    """A thread that performs the call, and what it was told."""
    told: list[Error] = []

    def perform() -> None:
        try:
            call()
        except Error as error:
            told.append(error)

    thread = threading.Thread(target=perform, daemon=True)
    thread.start()
    return thread, told


def ends(call: Callable[[], object]) -> list[Error]:
    """Performs the call in a thread, which must not hang."""
    thread, told = begun(call)
    thread.join(LIMIT_S)
    assert not thread.is_alive(), "it hangs"
    return told


def test_closing_leaves_what_another_prepared(bare: BareSpace) -> None:
    first, second = bare.connect(), bare.connect()
    first.tpc_begin(X)
    first.enqueue("q", b"1")
    first.tpc_end()
    second.tpc_begin(X, Flag.JOIN)
    assert second.tpc_prepare()
    first.close()
    second.tpc_commit()
    assert bare.take("q") == [b"1"]


def test_closing_after_a_read_only_vote_leaves_the_next_life_of_the_xid(bare: BareSpace) -> None:
    first, second = bare.connect(), bare.connect()
    first.tpc_begin(X)
    assert not first.tpc_prepare()
    second.tpc_begin(X)
    second.enqueue("q", b"1")
    assert second.tpc_prepare()
    first.close()
    second.tpc_commit()
    assert bare.take("q") == [b"1"]


def test_a_branch_failed_by_one_of_two_is_rolled_back_once_both_have_left(bare: BareSpace) -> None:
    bare.put("q", b"1")
    first, second = Session(bare.space), Session(bare.space)
    first.start(X)
    second.start(X, Flag.JOIN)
    assert second.dequeue("q") is not None
    first.end(X, Flag.FAIL)
    with pytest.raises(ProtocolError):
        first.rollback(X)
    with pytest.raises(RolledBack):
        second.dequeue("q")
    with pytest.raises(RolledBack):
        second.end(X)
    first.rollback(X)
    assert bare.take("q") == [b"1"]
    second.start(Y)
    second.enqueue("q", b"2")
    second.end(Y)
    second.commit(Y, Flag.ONEPHASE)
    assert bare.take("q") == [b"1", b"2"]


def test_a_branch_failed_by_one_gives_back_what_the_other_held_when_it_closes(bare: BareSpace) -> None:
    bare.put("q", b"1")
    first, second = Session(bare.space), Session(bare.space)
    first.start(X)
    second.start(X, Flag.JOIN)
    assert second.dequeue("q") is not None
    first.end(X, Flag.FAIL)
    second.close()
    assert bare.take("q") == [b"1"]
    assert X not in bare.space.branches


def test_closing_on_a_fenced_space_leaves_nobody_waiting(bare: BareSpace) -> None:
    first, second = Session(bare.space), Session(bare.space)
    first.start(X)
    bare.space.fence(OSError("test"))
    first.close()
    assert len(ends(lambda: second.end(X))) == 1


def test_a_fence_ends_a_waiting_dequeue(bare: BareSpace, monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(bare.space)
    session.start(X)
    with bare.space.lock:
        arrived = bare.space.queue("q").arrived
    waits, real = threading.Event(), arrived.wait

    def wait(timeout: float | None = None) -> bool:
        waits.set()
        return real(timeout)

    monkeypatch.setattr(arrived, "wait", wait)
    thread, told = begun(lambda: session.dequeue("q", wait_s=100 * LIMIT_S))
    assert waits.wait(LIMIT_S)
    bare.space.fence(OSError("test"))
    thread.join(LIMIT_S)
    assert [type(error) for error in told] == [ResourceFailed]


def test_an_interruption_before_a_step_has_gathered_is_no_step(
    bare: BareSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = rounds_of(bare.space)
    with monkeypatch.context() as patch:
        patch.setattr(log, "_mutex", InterruptedLock(log._mutex))
        with pytest.raises(KeyboardInterrupt):
            log.perform(lambda: pytest.fail("it is applied"))
    assert ends(lambda: bare.put("q", b"1")) == []
    assert bare.take("q") == [b"1"]


def test_an_interruption_in_a_step_fences_and_leaves_no_lock_held(
    bare: BareSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = rounds_of(bare.space)
    with monkeypatch.context() as patch:
        patch.setattr(log, "_lock", InterruptedLock(bare.space.lock))
        with pytest.raises(KeyboardInterrupt):
            log.perform(lambda: pytest.fail("it is applied"))
    told = ends(lambda: bare.put("q", b"1"))
    assert [type(error) for error in told] == [ResourceFailed]
    assert not bare.space.lock.locked()


def test_an_interrupted_close_leaves_no_other_hanging(bare: BareSpace, monkeypatch: pytest.MonkeyPatch) -> None:
    log = rounds_of(bare.space)
    bare.put("q", b"1", b"2")
    first, second = Session(bare.space), Session(bare.space)
    for session, xid in ((first, X), (second, Y)):
        session.start(xid)
        assert session.dequeue("q") is not None
    with monkeypatch.context() as patch:
        patch.setattr(log, "_mutex", InterruptedLock(log._mutex))
        with pytest.raises(KeyboardInterrupt):
            first.close()
    assert log.failure is not None
    ends(lambda: Session(bare.space).end(X))
    ends(second.close)


def test_an_interrupted_leader_tells_those_who_wait_for_its_round(
    bare: BareSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, sleep, sleeps = bare.space.log, Step.sleep, threading.Event()

    def noted_sleep(step: Step) -> None:
        if step.round is None:
            sleeps.set()
        sleep(step)

    def interrupt() -> None:
        waiting.append(begun(lambda: log.perform(None)))
        assert sleeps.wait(LIMIT_S)
        raise KeyboardInterrupt

    waiting: list[tuple[threading.Thread, list[Error]]] = []
    monkeypatch.setattr(Step, "sleep", noted_sleep)
    with pytest.raises(KeyboardInterrupt):
        log.perform(interrupt)
    ((thread, told),) = waiting
    thread.join(LIMIT_S)
    assert [type(error) for error in told] == [ResourceFailed]
    assert [type(error) for error in ends(lambda: bare.put("q", b"2"))] == [ResourceFailed]


class Interrupts:
    """Ends in a Ctrl-C where this module has made its n-th call, of Python or of C: there one may come."""

    def __init__(self, module: ModuleType, at: int) -> None:
        self._file, self._left = module.__file__, at

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        caller = frame if event == "c_return" else frame.f_back if event == "call" else None
        if caller is not None and caller.f_code.co_filename == self._file:
            self._left -= 1
            if self._left == 0:
                raise KeyboardInterrupt  # which ends the profile, too


@pytest.mark.parametrize("is_plain", [True, False])
def test_an_interrupted_dequeue_leaves_its_message_to_others(bare: BareSpace, is_plain: bool) -> None:
    session = Session(bare.space)
    for at in count(1):
        queue, xid = f"q{at}", Xid(1, b"%d" % at, b"")
        bare.put(queue, b"1")
        (message,) = session.browse(queue)
        session.start(xid)
        try:
            sys.setprofile(Interrupts(taking, at))
            found = session.dequeue(queue, message_id=None if is_plain else message.message_id)
            sys.setprofile(None)
            break
        except KeyboardInterrupt:
            assert bare.take(queue) == [b"1"], f"it is locked for nobody behind call {at}"
        session.end(xid)
        session.commit(xid, Flag.ONEPHASE)
    assert found is not None
    assert at > 10


@pytest.mark.parametrize("phases", [1, 2])
def test_who_asks_for_the_outcome_of_a_step_on_its_way_is_told_what_it_comes_to(
    bare: BareSpace, monkeypatch: pytest.MonkeyPatch, phases: int
) -> None:
    """Not that nothing was committed, when the sync that commits it is under way."""
    session, is_there, let_go = Session(bare.space), threading.Event(), threading.Event()
    session.start(X)
    session.enqueue("orders", b"x")
    session.end(X)
    if phases == 2:
        session.prepare(X)
    real = bare.fs.sync_dir

    def sync(path: str) -> None:
        is_there.set()
        assert let_go.wait(LIMIT_S)
        real(path)

    monkeypatch.setattr(bare.fs, "sync_dir", sync)
    commits, _ = begun(lambda: session.commit(X, Flag.ONEPHASE if phases == 1 else Flag.NOFLAGS))
    assert is_there.wait(LIMIT_S)
    told: list[Outcome] = []
    asks, _ = begun(lambda: told.append(Session(bare.space).outcome(X)))
    asks.join(0.1)
    assert not told
    let_go.set()
    for thread in (commits, asks):
        thread.join(LIMIT_S)
    assert told == [Outcome.COMMITTED]


def test_a_dequeue_that_waits_for_what_never_comes_does_not_spin(
    bare: BareSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session(bare.space)
    session.start(X)
    found = session.enqueue("q", b"1", correlation_id=b"own", not_before=1_700_000_000_000_000)
    session.end(X)
    session.commit(X, Flag.ONEPHASE)
    turns = 0
    index = bare.space.queues["q"].index
    real = index.take

    def take(now: int, **asked: Any) -> Entry | None:
        nonlocal turns
        turns += 1
        return real(now, **asked)

    monkeypatch.setattr(index, "take", take)
    session.start(X)
    assert session.dequeue("q", wait_s=0.3, message_id=found, correlation_id=b"foreign") is None
    assert 1 <= turns <= 5


@pytest.mark.parametrize("sync", ["NONE", DURABLE])
def test_two_that_make_the_first_tries_of_a_queue_fence_nothing(tmp_path: Path, sync: str) -> None:
    """Both find no directory for them, and both make it."""
    with bare_space(tmp_path / "space", sync) as bare:
        bare.put("q", b"1", b"2")
        first, second = bare.connect(), bare.connect()
        assert first.dequeue("q") is not None
        assert second.dequeue("q") is not None
        bare.fs.meanwhile["make_dir", f"{layout.queue_path('q')}/.retries"] = second.rollback
        first.rollback()
        assert not bare.fs.meanwhile
        assert bare.space.failure is None
        assert [entry.tries for entry in bare.space.queues["q"].index.entries(-1)] == [1, 1]


def test_two_that_write_what_a_branch_keeps_in_memory_fence_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Low on disk: whoever enqueues has the blocks of all branches written, that of a session which does so too."""
    with bare_space(tmp_path / "space", "JOURNAL") as bare:
        first, second = Session(bare.space), Session(bare.space)
        first.start(X)
        second.start(Y)
        second.enqueue("q", b"1")
        monkeypatch.setattr(bare.fs, "room", lambda: Room(1 << 20, 1 << 40, 1 << 20, 1 << 21))
        bare.space.room._look_soon()
        calls: list[tuple[threading.Thread, list[Error]]] = []

        def again() -> None:
            calls.append(begun(lambda: second.enqueue("q", b"2")))
            calls[0][0].join(0.2)

        bare.fs.meanwhile["create", layout.ACTIVE] = again
        with pytest.raises(DiskLow):
            first.enqueue("q", b"3")
        ((thread, told),) = calls
        thread.join(LIMIT_S)
        assert bare.space.failure is None
        assert [type(error) for error in told] == [DiskLow]
