"""Branches that take too long are rolled back without their session, which is told; nothing else ever is."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

import pytest

from support.bare_space import DURABLE, BareSpace, bare_space
from support.patience import eventually
from xaqueue.core.engine import commit as steps
from xaqueue.core.engine import heuristics
from xaqueue.core.engine.timeouts import expire
from xaqueue.core.model.branch import State
from xaqueue.errors import ProtocolError, ResourceFailed, RetryLater, RolledBack, UnknownXid
from xaqueue.features.session import Session
from xaqueue.xa import Code, Flag, Outcome
from xaqueue.xid import Xid

X, Y = Xid(1, b"x", b""), Xid(1, b"y", b"")
IDLE_S = 180.0
PATIENCE_S = 60.0


class Clock:
    """What ``time.monotonic`` says to the engine, and to nobody else."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("xaqueue.core.engine.association.time", made)
    monkeypatch.setattr("xaqueue.core.engine.session.time", made)
    monkeypatch.setattr("xaqueue.core.engine.state.time", made)
    return made


@pytest.fixture(params=[DURABLE, "JOURNAL"])
def bare(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[BareSpace]:
    with bare_space(tmp_path / "space", request.param) as opened:
        opened.put("q", b"1", b"2")
        yield opened


@pytest.fixture
def session(bare: BareSpace, clock: Clock) -> Session:
    return Session(bare.space)


def work_in(session: Session, xid: Xid = X) -> None:
    """Takes a message and puts one."""
    session.start(xid)
    assert session.dequeue("q") is not None
    session.enqueue("q", b"new")


def passes(bare: BareSpace, clock: Clock, seconds: float = IDLE_S + 1) -> int:
    clock.now += seconds
    return expire(bare.space, clock.now, IDLE_S)


def is_clean(bare: BareSpace) -> bool:
    """Whether nothing is left of the branch: all messages are back, and no block is in active/."""
    bare.space.log.settle()
    return bare.take("q") == [b"1", b"2"] and list((bare.root / "active").iterdir()) == []


def told_by(call: Callable[[], object]) -> Code:
    with pytest.raises(RolledBack) as told:
        call()
    return told.value.code


def in_thread(call: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    heard: list[object] = []

    def run() -> None:
        try:
            heard.append(call())
        except BaseException as error:
            heard.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, heard


# Who is told what


def test_an_idle_branch_gives_back_what_it_held_at_once(bare: BareSpace, session: Session, clock: Clock) -> None:
    work_in(session)
    assert passes(bare, clock, IDLE_S - 1) == 0
    assert bare.take("q") == [b"2"]
    assert passes(bare, clock, 2) == 1
    assert is_clean(bare)


def test_its_session_is_told_and_then_there_is_no_such_branch(bare: BareSpace, session: Session, clock: Clock) -> None:
    work_in(session)
    passes(bare, clock)
    assert told_by(lambda: session.enqueue("q", b"more")) is Code.XA_RBTIMEOUT
    assert told_by(lambda: session.dequeue("q")) is Code.XA_RBTIMEOUT
    assert told_by(lambda: session.end(X)) is Code.XA_RBTIMEOUT
    session.rollback(X)
    for verb in (session.rollback, session.prepare, session.commit, session.end):
        with pytest.raises(UnknownXid):
            verb(X)
    assert is_clean(bare)


@pytest.mark.parametrize("verb", ["prepare", "commit"])
def test_a_branch_that_nobody_is_in_tells_who_comes(bare: BareSpace, session: Session, clock: Clock, verb: str) -> None:
    work_in(session)
    session.end(X)
    passes(bare, clock)
    other = Session(bare.space)
    calls: dict[str, Callable[[], object]] = {
        "prepare": lambda: other.prepare(X),
        "commit": lambda: other.commit(X, Flag.ONEPHASE),
    }
    assert told_by(calls[verb]) is Code.XA_RBTIMEOUT
    with pytest.raises(UnknownXid):
        calls[verb]()
    assert is_clean(bare)


def test_a_join_is_told(bare: BareSpace, session: Session, clock: Clock) -> None:
    work_in(session)
    session.end(X)
    passes(bare, clock)
    assert told_by(lambda: session.start(X, Flag.JOIN)) is Code.XA_RBTIMEOUT
    session.rollback(X)
    session.start(X)
    session.end(X)


def test_the_rollback_of_what_was_rolled_back_is_no_error(bare: BareSpace, session: Session, clock: Clock) -> None:
    work_in(session)
    session.end(X)
    passes(bare, clock)
    session.rollback(X)
    assert session.outcome(X) is Outcome.ROLLED_BACK
    assert is_clean(bare)


def test_all_sessions_in_it_are_told(bare: BareSpace, session: Session, clock: Clock) -> None:
    work_in(session)
    second, third = Session(bare.space), Session(bare.space)
    second.start(X, Flag.JOIN)
    third.start(X, Flag.JOIN)
    third.end(X, Flag.SUSPEND)
    passes(bare, clock)
    assert is_clean(bare)
    assert told_by(lambda: session.end(X)) is Code.XA_RBTIMEOUT
    third.start(X, Flag.RESUME)
    assert told_by(lambda: third.enqueue("q", b"more")) is Code.XA_RBTIMEOUT
    assert told_by(lambda: third.end(X)) is Code.XA_RBTIMEOUT
    assert told_by(lambda: second.end(X)) is Code.XA_RBTIMEOUT
    second.rollback(X)
    assert X not in bare.space.branches


def test_a_suspended_branch_is_idle(bare: BareSpace, session: Session, clock: Clock) -> None:
    work_in(session)
    session.end(X, Flag.SUSPEND)
    assert passes(bare, clock) == 1
    assert is_clean(bare)
    assert told_by(lambda: session.end(X)) is Code.XA_RBTIMEOUT


def test_a_branch_that_was_failed_is_rolled_back_too(bare: BareSpace, session: Session, clock: Clock) -> None:
    work_in(session)
    session.end(X, Flag.FAIL)
    assert passes(bare, clock) == 1
    assert is_clean(bare)
    session.rollback(X)
    with pytest.raises(UnknownXid):
        session.rollback(X)


def test_why_a_branch_was_doomed_before_is_not_forgotten(bare: BareSpace, session: Session, clock: Clock) -> None:
    work_in(session)
    bare.space.branches[X].rollback_reason = RolledBack("something else", Code.XA_RBOTHER)
    passes(bare, clock)
    assert is_clean(bare)
    assert told_by(lambda: session.end(X)) is Code.XA_RBOTHER


def test_the_outcome_is_known(bare: BareSpace, session: Session, clock: Clock) -> None:
    work_in(session)
    assert session.outcome(X) is Outcome.UNKNOWN
    passes(bare, clock)
    assert session.outcome(X) is Outcome.ROLLED_BACK
    session.close()
    assert Session(bare.space).outcome(X) is Outcome.ROLLED_BACK


def test_a_connection_goes_on_after_it(bare: BareSpace, clock: Clock) -> None:
    with closing(bare.connect()) as connection:
        assert connection.dequeue("q") is not None
        passes(bare, clock)
        assert told_by(lambda: connection.enqueue("q", b"more")) is Code.XA_RBTIMEOUT
        connection.rollback()
        message = connection.dequeue("q")
        assert message is not None
        assert message.tries == 1
        passes(bare, clock)
        assert told_by(connection.commit) is Code.XA_RBTIMEOUT
        connection.enqueue("q", b"3")
        connection.commit()
    assert bare.take("q") == [b"1", b"2", b"3"]


# What is progress


@pytest.mark.parametrize("verb", ["start", "end", "enqueue", "dequeue", "join"])
def test_every_call_is_progress(bare: BareSpace, session: Session, clock: Clock, verb: str) -> None:
    session.start(X)
    calls: dict[str, Callable[[], object]] = {
        "start": lambda: None,
        "end": lambda: session.end(X),
        "enqueue": lambda: session.enqueue("q", b"new"),
        "dequeue": lambda: session.dequeue("none"),
        "join": lambda: Session(bare.space).start(X, Flag.JOIN),
    }
    if verb != "start":
        clock.now += IDLE_S - 1
    calls[verb]()
    assert passes(bare, clock, IDLE_S - 1) == 0
    assert passes(bare, clock, 2) == 1


def test_a_commit_that_was_refused_is_progress(
    bare: BareSpace, session: Session, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    work_in(session)
    session.end(X)
    clock.now += IDLE_S - 1

    def full(*_: object) -> None:
        raise RetryLater("no room")

    with monkeypatch.context() as patch:
        patch.setattr(steps, "prepare", full)
        with pytest.raises(RetryLater):
            session.prepare(X)
    assert passes(bare, clock, 2) == 0
    session.prepare(X)
    session.rollback(X)


def test_a_dequeue_that_waits_is_not_idle(bare: BareSpace, session: Session, clock: Clock) -> None:
    session.start(X)
    thread, heard = in_thread(lambda: session.dequeue("later", wait_s=PATIENCE_S))
    eventually(lambda: bool(bare.space.branches[X].working))
    assert passes(bare, clock, 100 * IDLE_S) == 0
    bare.put("later", b"it comes")
    thread.join(PATIENCE_S)
    assert [getattr(message, "body", message) for message in heard] == [b"it comes"]
    assert expire(bare.space, clock.now + IDLE_S - 1, IDLE_S) == 0
    session.end(X)
    session.commit(X, Flag.ONEPHASE)


# Deadlines


def test_a_deadline_is_noticed_before_the_next_call(bare: BareSpace, session: Session, clock: Clock) -> None:
    session.start(X, timeout_s=5.0)
    assert session.dequeue("q") is not None
    assert passes(bare, clock, 4) == 0
    assert passes(bare, clock, 2) == 1
    assert is_clean(bare)
    assert told_by(lambda: session.end(X)) is Code.XA_RBTIMEOUT


def test_a_deadline_ends_a_dequeue_that_waits(bare: BareSpace, session: Session, clock: Clock) -> None:
    session.start(X, timeout_s=5.0)
    assert session.dequeue("q") is not None
    thread, heard = in_thread(lambda: session.dequeue("later", wait_s=100 * PATIENCE_S))
    eventually(lambda: bool(bare.space.branches[X].working))
    assert passes(bare, clock, 6) == 0
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert [getattr(error, "code", error) for error in heard] == [Code.XA_RBTIMEOUT]
    assert passes(bare, clock, 1) == 1
    assert is_clean(bare)


def test_a_deadline_does_not_bind_what_was_prepared(bare: BareSpace, session: Session, clock: Clock) -> None:
    session.start(X, timeout_s=5.0)
    session.enqueue("q", b"3")
    session.end(X)
    session.prepare(X)
    assert passes(bare, clock, 100 * IDLE_S) == 0
    session.commit(X)
    assert bare.take("q") == [b"1", b"2", b"3"]


# What is never touched


def test_what_is_prepared_stays(bare: BareSpace, session: Session, clock: Clock) -> None:
    bare.prepare("p", add=[("q", b"3")], take=["q"])
    assert passes(bare, clock, 1000 * IDLE_S) == 0
    (xid,) = bare.in_doubt()
    session.commit(xid)
    assert bare.take("q") == [b"2", b"3"]


@pytest.mark.parametrize("commit", [True, False])
def test_what_an_operator_decided_stays(bare: BareSpace, session: Session, clock: Clock, commit: bool) -> None:
    xid = bare.prepare("p", add=[("q", b"3")])
    heuristics.decide(bare.space, xid, commit, "me")
    assert passes(bare, clock, 1000 * IDLE_S) == 0
    session.forget(xid)


@pytest.mark.parametrize(
    ("field", "value", "before"), [("busy", True, False), ("base", State.COMMITTING, State.ACTIVE)]
)
def test_what_is_on_its_way_is_left_alone(
    bare: BareSpace, session: Session, clock: Clock, field: str, value: object, before: object
) -> None:
    work_in(session)
    session.end(X)
    setattr(bare.space.branches[X], field, value)
    assert passes(bare, clock) == 0
    setattr(bare.space.branches[X], field, before)
    assert expire(bare.space, clock.now, IDLE_S) == 1


def test_a_space_that_failed_says_so(bare: BareSpace, session: Session, clock: Clock) -> None:
    work_in(session)
    bare.space.fence(OSError("test"))
    with pytest.raises(ResourceFailed):
        passes(bare, clock)
    bare.space.closed = True
    assert passes(bare, clock) == 0


# What is left behind


def test_a_branch_that_nobody_comes_for_is_forgotten(bare: BareSpace, session: Session, clock: Clock) -> None:
    work_in(session)
    session.end(X)
    assert passes(bare, clock) == 1
    assert passes(bare, clock, IDLE_S - 1) == 0
    assert X in bare.space.branches
    assert passes(bare, clock, 2) == 0
    assert X not in bare.space.branches
    assert session.outcome(X) is Outcome.ROLLED_BACK
    with pytest.raises(UnknownXid):
        session.prepare(X)
    session.start(X)


def test_a_session_in_it_is_told_however_late(bare: BareSpace, session: Session, clock: Clock) -> None:
    work_in(session)
    for _ in range(5):
        passes(bare, clock)
    assert told_by(lambda: session.end(X)) is Code.XA_RBTIMEOUT


def test_a_closed_session_leaves_nothing_of_it(bare: BareSpace, session: Session, clock: Clock) -> None:
    work_in(session)
    passes(bare, clock)
    session.close()
    assert X not in bare.space.branches
    assert is_clean(bare)


def test_one_that_was_suspended_to_migrate_is_forgotten(bare: BareSpace, session: Session, clock: Clock) -> None:
    work_in(session)
    session.end(X, Flag.SUSPEND | Flag.MIGRATE)
    session.close()
    assert passes(bare, clock) == 1
    passes(bare, clock)
    assert X not in bare.space.branches


def test_without_room_it_is_rolled_back_later(
    bare: BareSpace, session: Session, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    work_in(session)

    def full(*_: object) -> None:
        raise RetryLater("no room")

    with monkeypatch.context() as patch:
        patch.setattr(steps, "undo", full)
        assert passes(bare, clock) == 0
    assert told_by(lambda: session.enqueue("q", b"more")) is Code.XA_RBTIMEOUT
    assert passes(bare, clock) == 1
    assert is_clean(bare)


# Races


@pytest.mark.parametrize("bare", [DURABLE], indirect=True)
def test_what_its_client_left_past_its_commit_point_is_completed(
    bare: BareSpace, session: Session, clock: Clock
) -> None:
    """A record of the journal has no such point: it is committed with all that it says."""
    with closing(bare.connect()) as connection:
        for _ in range(2):
            connection.enqueue("q", b"large")
        bare.fs.faults["rename", "committed/"] = errno.ENOSPC
        with pytest.raises(RetryLater):
            connection.commit()
    assert passes(bare, clock) == 0
    assert len(list(session.browse("q"))) == 2
    bare.fs.faults.clear()
    assert expire(bare.space, clock.now, IDLE_S) == 0, "it was tried just now"
    assert len(list(session.browse("q"))) == 2
    assert passes(bare, clock) == 0
    assert len(list(session.browse("q"))) == 4
    assert bare.space.branches == {}


def test_a_call_waits_until_the_branch_is_rolled_back(
    bare: BareSpace, session: Session, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    work_in(session)
    session.end(X)
    entered, leave, real = threading.Event(), threading.Event(), steps.undo

    def slow(*arguments: object) -> None:
        entered.set()
        assert leave.wait(PATIENCE_S)
        real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(steps, "undo", slow)
    clock.now += IDLE_S + 1
    expiring, rolled_back = in_thread(lambda: expire(bare.space, clock.now, IDLE_S))
    assert entered.wait(PATIENCE_S)
    asking, heard = in_thread(lambda: Session(bare.space).prepare(X))
    leave.set()
    for thread in (expiring, asking):
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    assert rolled_back == [1]
    assert [getattr(error, "code", error) for error in heard] == [Code.XA_RBTIMEOUT]
    assert is_clean(bare)


def test_a_session_that_closes_meanwhile_gives_back_once(
    bare: BareSpace, session: Session, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    work_in(session)
    entered, leave, real = threading.Event(), threading.Event(), steps.undo

    def slow(*arguments: object) -> None:
        entered.set()
        assert leave.wait(PATIENCE_S)
        real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(steps, "undo", slow)
    clock.now += IDLE_S + 1
    expiring, _ = in_thread(lambda: expire(bare.space, clock.now, IDLE_S))
    assert entered.wait(PATIENCE_S)
    ending, heard = in_thread(session.close)
    eventually(lambda: session._closed)
    assert heard == []
    leave.set()
    for thread in (expiring, ending):
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    assert X not in bare.space.branches
    with closing(bare.connect()) as connection:
        assert [message.tries for message in connection.browse("q")] == [1, 0]
    assert is_clean(bare)


def rotate(bare: BareSpace, worker: int, committed: list[bytes]) -> None:
    """Takes a message and puts it back at the end, and three more elsewhere, in one transaction, again and again."""
    with closing(bare.connect()) as connection:
        for number in range(3000):
            if number >= 30 and committed:
                break
            body = b"%d.%d" % (worker, number)
            try:
                taken = connection.dequeue("q")
                if taken is not None:
                    connection.enqueue("q", taken.body)
                for _ in range(3):
                    connection.enqueue("work", body)
                    time.sleep(0.0003)
                connection.commit()
                committed.append(body)
            except (RolledBack, UnknownXid):  # the second one is told once it was forgotten, too
                with suppress(UnknownXid):
                    connection.rollback()


@pytest.mark.usefixtures("quiet")
def test_sessions_that_work_beside_it_lose_and_double_nothing(bare: BareSpace) -> None:
    """Real time, and no patience: branches expire in the middle of everything; in pauses that grow some commit."""
    stop = threading.Event()
    committed: list[bytes] = []
    expired = [0]

    def timer() -> None:
        pause_s = 0.005
        while not stop.wait(pause_s):
            pause_s *= 1.5
            end = time.monotonic() + 0.02
            while time.monotonic() < end:
                expired[0] += expire(bare.space, time.monotonic(), 0.0005)

    ticking, ended = in_thread(timer)
    workers = [in_thread(partial(rotate, bare, worker, committed)) for worker in range(3)]
    for thread, _ in workers:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    stop.set()
    ticking.join(PATIENCE_S)
    assert [heard for _, heard in workers] == [[None]] * 3
    assert ended == [None]
    assert sorted(bare.take("q")) == [b"1", b"2"]
    assert sorted(bare.take("work")) == sorted(3 * committed)
    assert bare.space.branches == {}
    assert committed
    assert expired[0] > 0


def test_the_wrong_order_is_still_the_callers_mistake(bare: BareSpace, session: Session, clock: Clock) -> None:
    work_in(session)
    passes(bare, clock)
    with pytest.raises(ProtocolError):
        session.prepare(X)
