"""Branches that are late end without a call where no server looks after the space; nobody is woken where none is."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from support.bare_space import ANY_QUEUE, DURABLE, BareSpace, bare_space
from support.patience import eventually
from xaqueue.connection import Connection
from xaqueue.core.engine import timeouts
from xaqueue.core.engine.state import Space
from xaqueue.core.model.branch import State
from xaqueue.core.owner.chores import Chores
from xaqueue.core.owner.threads import TimeLimits
from xaqueue.errors import RetryLater, RolledBack
from xaqueue.features.session import Session, attach
from xaqueue.xa import Code
from xaqueue.xid import Xid

X, Y = Xid(1, b"x", b""), Xid(1, b"y", b"")
SHORT_S, PATIENCE_S = 0.05, 30.0


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[BareSpace]:
    with bare_space(tmp_path / "space", DURABLE) as opened:
        opened.put("q", b"message")
        yield opened


@pytest.fixture
def keeper(bare: BareSpace) -> Iterator[Chores]:
    with keeping_time(bare) as made:
        yield made


@contextmanager
def keeping_time(bare: BareSpace) -> Iterator[Chores]:
    made = Chores(bare.space, [TimeLimits(bare.space)])
    yield made
    made.stop()


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "xaqueue-timeouts"]


def is_back(session: Session) -> Callable[[], bool]:
    return lambda: session.dequeue("q") is not None


@pytest.mark.usefixtures("keeper")
def test_a_deadline_holds_without_a_call(bare: BareSpace) -> None:
    session, other = Session(bare.space), Session(bare.space)
    session.start(X, timeout_s=SHORT_S)
    assert session.dequeue("q") is not None
    other.start(Y)
    eventually(is_back(other))
    with pytest.raises(RolledBack) as told:
        session.end(X)
    assert told.value.code is Code.XA_RBTIMEOUT
    session.rollback(X)


@pytest.mark.usefixtures("keeper")
def test_an_earlier_deadline_wakes_who_sleeps(bare: BareSpace) -> None:
    sessions = [Session(bare.space) for _ in range(2)]
    sessions[0].start(X, timeout_s=3600)
    eventually(lambda: bare.space.looks_at < float("inf"))
    sessions[1].start(Y, timeout_s=SHORT_S)
    eventually(lambda: bare.space.branches[Y].base is State.UNDONE)
    assert bare.space.branches[X].base is State.ACTIVE


def test_nothing_late_begins_no_thread(bare: BareSpace, keeper: Chores) -> None:
    session = Session(bare.space)
    session.start(X)
    session.dequeue("q")
    assert (threads(), bare.space.looks_at) == ([], float("inf"))
    session.end(X)
    session.start(Y, timeout_s=3600)
    assert threads() == ["xaqueue-timeouts"]
    keeper.stop()
    assert threads() == []


def test_it_sleeps_where_nothing_becomes_late(bare: BareSpace, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = list[float]()
    real = timeouts.expire

    def expire(space: Space, now: float, *limits: float) -> int:
        looks.append(now)
        return real(space, now, *limits)

    monkeypatch.setattr(timeouts, "expire", expire)
    with keeping_time(bare):
        session = Session(bare.space)
        session.start(X, timeout_s=SHORT_S)
        session.end(X)
        session.rollback(X)
        eventually(lambda: bare.space.looks_at == float("inf"))
        before = len(looks)
        session.start(Y)
        session.dequeue("q")
        session.end(Y)
        session.rollback(Y)
        assert (len(looks), bare.space.looks_at) == (before, float("inf"))


@pytest.mark.usefixtures("keeper")
def test_idle_branches_end_where_a_limit_is_set(bare: BareSpace) -> None:
    session, other = Session(bare.space), Session(bare.space)
    session.start(X)
    session.dequeue("q")
    other.start(Y)
    assert other.dequeue("q") is None
    other.end(Y)
    other.rollback(Y)
    bare.space.branches[X].progress -= 1
    bare.space.redefine(replace(ANY_QUEUE, branch_idle_s=1))
    eventually(lambda: bare.space.branches[X].base is State.UNDONE)
    bare.space.redefine(ANY_QUEUE)
    other.start(Y)
    assert is_back(other)()
    with pytest.raises(RolledBack, match="did nothing for"):
        session.end(X)


def test_what_is_past_its_commit_point_is_completed(bare: BareSpace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who commits it again is told that it is committed."""
    monkeypatch.setattr(timeouts, "LEFT_S", SHORT_S)
    with keeping_time(bare), closing(Connection(Session(bare.space), lambda: os.urandom(16))) as user:
        user.enqueue("out", b"1")
        user.enqueue("out", b"2")
        bare.fs.faults["rename", "committed/"] = errno.ENOSPC
        with pytest.raises(RetryLater):
            user.commit()
        bare.fs.faults.clear()
        eventually(lambda: not bare.space.branches)
        user.commit()
        assert not user.in_transaction
    assert bare.take("out") == [b"1", b"2"]


def test_an_open_space_keeps_its_own_time(tmp_path: Path) -> None:
    with closing(attach(tmp_path / "space", create_missing=True, sync="NONE")) as session:
        session.start(X, timeout_s=SHORT_S)
        session.enqueue("q", b"never")
        eventually(lambda: session.space.branches[X].base is State.UNDONE)
    assert threads() == []
