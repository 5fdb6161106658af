"""Threads that take turns where nothing is synced: one at a time is in a call that touches files, and nobody hangs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from support.bare_space import DURABLE, BareSpace, bare_space
from xaqueue.core.model.definitions import parse
from xaqueue.core.model.queue import Queue
from xaqueue.core.storage.scheduling import Turns
from xaqueue.errors import QueueFull
from xaqueue.features import session as sessions
from xaqueue.features.session import Session, TurnSession
from xaqueue.xa import Flag
from xaqueue.xid import Xid

X = Xid(1, b"x", b"")
Y = Xid(1, b"y", b"")
LIMIT_S = 30.0
"""When a thread counts as hanging."""


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody goes on without a turn, unless a test says so: who keeps one is found out."""
    monkeypatch.setattr(sessions, "PATIENCE_S", 2 * LIMIT_S)


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[BareSpace]:
    with bare_space(tmp_path / "space", "NONE") as opened:
        yield opened


class Work:
    """A thread that performs a call."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self.came: Any = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.came = self._call()
        except BaseException as error:  # the test looks at it
            self.came = error

    def end(self) -> Any:
        self.thread.join(LIMIT_S)
        assert not self.thread.is_alive(), "it hangs"
        return self.came


class Held:
    """A call of the file system that goes on when it is let go."""

    def __init__(self, bare: BareSpace, call: str, path: str) -> None:
        self.reached, self.let_go = threading.Event(), threading.Event()
        bare.fs.meanwhile[call, path] = self._hold

    def _hold(self) -> None:
        self.reached.set()
        assert self.let_go.wait(LIMIT_S)


def is_free(bare: BareSpace) -> bool:
    """Whether another thread could have its turn now."""
    turn = turn_of(bare)

    def look() -> bool:
        found: bool = turn.acquire(False)
        if found:
            turn.release()
        return found

    return bool(Work(look).end())


def turn_of(bare: BareSpace) -> Any:
    assert bare.space.waiting.turn is not None
    return bare.space.waiting.turn


def _queue(bare: BareSpace) -> Queue:
    with bare.space.lock:
        queue: Queue = bare.space.queue("q")
        return queue


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end, "it never comes"
        time.sleep(0.001)


def put(session: Session, name: bytes, body: bytes) -> None:
    xid = Xid(1, name, b"")
    session.start(xid)
    session.enqueue("q", body)
    session.end(xid)
    session.prepare(xid)
    session.commit(xid)


@pytest.mark.parametrize("level", ["JOURNAL", "FDATASYNC", DURABLE, "DSYNC"])
def test_only_where_nothing_is_synced(tmp_path: Path, level: str) -> None:
    with bare_space(tmp_path / "space", level) as bare:
        assert bare.space.waiting.turn is None
        assert type(Session(bare.space)) is Session


def test_no_turn_is_kept_between_calls(bare: BareSpace) -> None:
    session = Session(bare.space)
    assert type(session) is TurnSession
    for work in (lambda: session.enqueue("q", b"1"), lambda: session.dequeue("q")):
        for call in (
            lambda: session.start(X),
            work,
            lambda: session.end(X),
            lambda: session.prepare(X),
            lambda: session.commit(X),
        ):
            call()
            assert is_free(bare)


@pytest.mark.parametrize(
    ("verb", "call", "path"),
    [
        ("dequeue", "create", "active/"),
        ("prepare", "create", "active/"),
        ("prepare", "rename", "prepared/"),
        ("commit", "rename", "committed/"),
    ],
)
def test_a_call_that_touches_files_is_one_turn(bare: BareSpace, verb: str, call: str, path: str) -> None:
    bare.put("q", b"1")
    session = Session(bare.space)
    verbs: dict[str, Callable[[], object]] = {
        "dequeue": lambda: session.dequeue("q"),
        "prepare": lambda: session.prepare(X),
        "commit": lambda: session.commit(X),
    }
    session.start(X)
    if verb in ("prepare", "commit"):
        session.enqueue("q", b"2")
        session.end(X)
    if verb == "commit":
        session.prepare(X)
    held = Held(bare, call, path)
    work = Work(verbs[verb])
    assert held.reached.wait(LIMIT_S)
    assert not is_free(bare)
    held.let_go.set()
    assert not isinstance(work.end(), BaseException)
    assert is_free(bare)


def test_others_begin_behind_it(bare: BareSpace) -> None:
    one, other = Session(bare.space), Session(bare.space)
    for session, xid in ((one, X), (other, Y)):
        session.start(xid)
        session.enqueue("q", b"1")
        session.end(xid)
    held, began = Held(bare, "create", "active/"), list[bool]()
    first = Work(lambda: one.prepare(X))
    assert held.reached.wait(LIMIT_S)
    bare.fs.meanwhile["create", "active/"] = lambda: began.append(held.let_go.is_set())
    second = Work(lambda: other.prepare(Y))
    second.thread.join(0.1)  # where it takes no turn it is over by now
    held.let_go.set()
    first.end()
    second.end()
    assert began == [True]


def test_a_dequeue_that_waits_gives_its_turn_up(bare: BareSpace) -> None:
    taker = bare.connect()
    waits = Work(lambda: taker.dequeue("q", wait_s=LIMIT_S))
    until(lambda: _queue(bare).takers)
    put(Session(bare.space), b"a", b"1")
    message = waits.end()
    assert message.body == b"1"
    taker.close()
    assert is_free(bare)


def test_an_enqueue_that_waits_for_room_gives_its_turn_up(tmp_path: Path) -> None:
    limited = '[queues.q]\nmax_messages = 1\nwhen_full = "wait"\n'
    with bare_space(tmp_path / "space", "NONE", definitions=parse(limited)) as bare:
        put(Session(bare.space), b"a", b"1")
        waits = Work(lambda: put(Session(bare.space), b"b", b"2"))
        until(lambda: _queue(bare).waiters)
        with bare.connect() as taker:
            assert taker.dequeue("q") is not None
        assert not isinstance(waits.end(), QueueFull)
        assert bare.take("q") == [b"2"]


def test_who_waits_for_a_step_of_the_same_branch_gives_its_turn_up(bare: BareSpace) -> None:
    session = Session(bare.space)
    session.start(X)
    session.enqueue("q", b"1")
    session.end(X)
    with bare.space.lock:
        bare.space.branches[X].busy = True
    waits = Work(lambda: session.prepare(X))
    until(lambda: bare.space.waiters)
    put(Session(bare.space), b"a", b"2")
    with bare.space.lock:
        bare.space.settle_locked(bare.space.branches[X])
    assert not isinstance(waits.end(), BaseException)
    assert is_free(bare)


def test_a_verb_within_a_verb_that_has_waited(bare: BareSpace) -> None:
    """What it took again it gives back, and no more."""
    for body in (b"1", b"2"):
        bare.put("q", body)
    session = Session(bare.space)
    session.start(X)
    taken = session.space.waiting
    assert isinstance(taken, Turns)
    inner = session.dequeue

    def outer() -> list[Any]:
        turn_of(bare).acquire()
        first = inner("q")
        taken.give_up()
        found = [first, inner("q")]
        assert is_free(bare)
        return found

    assert [message.body for message in outer()] == [b"1", b"2"]
    session.end(X)
    session.commit(X, Flag.ONEPHASE)
    assert bare.take("q") == []


def test_whose_call_hangs_keeps_others_for_a_moment_only(bare: BareSpace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "PATIENCE_S", 0.001)
    session = Session(bare.space)
    session.start(X)
    session.enqueue("q", b"late")
    session.end(X)
    held = Held(bare, "create", "active/")
    hangs = Work(lambda: session.prepare(X))
    assert held.reached.wait(LIMIT_S)
    assert Work(lambda: put(Session(bare.space), b"a", b"1")).end() is None
    assert bare.take("q") == [b"1"]  # and gives it back
    held.let_go.set()
    hangs.end()
    assert is_free(bare)
    session.commit(X)
    assert bare.take("q") == [b"1", b"late"]


@pytest.mark.parametrize("verb", ["prepare", "commit"])
def test_an_interrupt_before_its_turn_has_done_nothing(bare: BareSpace, verb: str) -> None:
    session = Session(bare.space)
    session.start(X)
    session.enqueue("q", b"1")
    session.end(X)
    flags = Flag.NOFLAGS if verb == "prepare" else Flag.ONEPHASE
    turns, turn = bare.space.waiting, turn_of(bare)
    turns.turn = cast(Any, _Interrupted(turn))
    with pytest.raises(KeyboardInterrupt):
        getattr(session, verb)(X, flags)
    turns.turn = turn
    assert is_free(bare)
    getattr(session, verb)(X, flags)
    if verb == "prepare":
        session.commit(X)
    assert bare.take("q") == [b"1"]


def test_an_interrupt_behind_its_turn_gives_it_back(bare: BareSpace) -> None:
    bare.put("q", b"1")
    session = Session(bare.space)
    turns, turn = bare.space.waiting, turn_of(bare)
    turns.turn = cast(Any, _Interrupted(turn, late=True))
    session.start(X)
    with pytest.raises(KeyboardInterrupt):
        session.dequeue("q")
    turns.turn = turn
    assert is_free(bare)
    session.enqueue("q", b"2")
    session.end(X)
    session.commit(X, Flag.ONEPHASE)
    assert bare.take("q") == [b"1", b"2"]


class _Interrupted:
    """A turn for which one waits until a Ctrl-C, which may come when it has been got."""

    def __init__(self, turn: Any, *, late: bool = False) -> None:
        self._turn, self._late = turn, late
        self.release = turn.release

    def acquire(self, *_: object) -> None:
        if self._late:
            self._turn.acquire()
        raise KeyboardInterrupt
