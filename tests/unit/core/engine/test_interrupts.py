"""An interrupt anywhere in a transaction loses nothing and doubles nothing, and the space goes on, or is fenced.

Python delivers one (Ctrl-C, a signal handler that raises) between any two of its steps. What a user does then is to end
the connection, or to go on with it behind a rollback.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import NoReturn

import pytest

from support.bare_space import DURABLE, BareSpace, bare_space
from support.interruption import interrupt
from xaqueue import Connection
from xaqueue.core.engine import heuristics
from xaqueue.core.engine.session import Session
from xaqueue.errors import Error, ResourceFailed, UnknownXid
from xaqueue.xid import Xid

EVERY = 1 if os.environ.get("XAQUEUE_CRASH_FULL") == "1" else 5
"""At one place in so many, by turns."""
FULL = b"z" * 80_000
"""More than a prepared branch keeps in memory."""


def two_phase(work: Callable[[Connection], object]) -> Callable[[Connection], None]:
    def run(connection: Connection) -> None:
        connection.tpc_begin(Xid(1, b"interrupted", b""))
        work(connection)
        connection.tpc_prepare()
        connection.tpc_commit()

    return run


def one_phase(work: Callable[[Connection], object]) -> Callable[[Connection], None]:
    def run(connection: Connection) -> None:
        work(connection)
        connection.commit()

    return run


def undone(work: Callable[[Connection], object]) -> Callable[[Connection], None]:
    def run(connection: Connection) -> None:
        work(connection)
        connection.rollback()

    return run


def enqueue(connection: Connection) -> None:
    connection.enqueue("q", b"new")


def enqueue_large(connection: Connection) -> None:
    connection.enqueue("q", b"new" + FULL)


def dequeue(connection: Connection) -> None:
    assert connection.dequeue("q") is not None


def enqueue_many(connection: Connection) -> None:
    connection.enqueue_many("q", MANY)


def dequeue_many(connection: Connection) -> None:
    assert len(connection.dequeue_many("q", 3)) == 2


MANY = [b"new", b"and one"]


def receive(connection: Connection) -> None:
    connection.receive("q")[0].ack()


def receive_many(connection: Connection) -> None:
    for delivery in connection.receive("q", max_messages=5):
        delivery.nack()


Run = Callable[[Connection], None]
GIVEN, TAKEN, ADDED = [b"1", b"2"], [b"2"], [b"1", b"2", b"new"]
RUNS: dict[str, tuple[Run, list[bytes]]] = {
    "enqueue": (one_phase(enqueue), ADDED),
    "enqueue in two phases": (two_phase(enqueue), ADDED),
    "a large one": (two_phase(enqueue_large), [b"1", b"2", b"new" + FULL]),
    "dequeue": (one_phase(dequeue), TAKEN),
    "dequeue in two phases": (two_phase(dequeue), TAKEN),
    "dequeue undone": (undone(dequeue), GIVEN),
    "enqueue undone": (undone(enqueue), GIVEN),
    "receive": (receive, TAKEN),
    "receive many undone": (receive_many, GIVEN),
    "many": (one_phase(enqueue_many), [*GIVEN, *MANY]),
    "dequeue of many": (one_phase(dequeue_many), []),
    "dequeue of many undone": (undone(dequeue_many), GIVEN),
}
"""With what the queue has afterwards."""


def interrupted(bare: BareSpace, run: Run, at: int) -> bool:
    """Whether it was. What the connection had open is over then, or in doubt."""
    connection = bare.connect()
    try:
        return interrupt(at, partial(run, connection))
    except ResourceFailed:  # it came in the middle of a round
        return True
    finally:
        try:
            with suppress(Error):
                connection.close()
        except KeyboardInterrupt:  # one that a round has kept back
            connection.close()
        if bare.space.failure is None:
            connection._manager.close()  # as the collector has it closed, where a call was left in the middle


def settle(bare: BareSpace) -> None:
    """What is in doubt is committed, as a transaction manager would."""
    if bare.space.failure is not None:
        bare.reopen()
    with bare.connect() as connection:
        for xid in connection.tpc_recover():
            connection.tpc_commit(xid)


def ground(bare: BareSpace) -> None:
    while bare.take("q"):
        with bare.connect() as connection:
            connection.dequeue("q")
            connection.commit()
    bare.put("q", *GIVEN)


@pytest.mark.parametrize("sync", ["NONE", DURABLE, "JOURNAL"])
@pytest.mark.parametrize("name", RUNS)
def test_an_interrupt_anywhere_loses_nothing(tmp_path: Path, name: str, sync: str) -> None:
    run, after = RUNS[name]
    first = list(RUNS).index(name) % EVERY
    with bare_space(tmp_path / "space", sync) as bare:
        for at in count(first, EVERY):
            ground(bare)
            was = interrupted(bare, run, at)
            settle(bare)
            found = bare.take("q")
            assert found in (GIVEN, after), at
            with bare.space.lock:
                queue = bare.space.queues["q"]
                assert (queue.index.locked, set(queue.pending), bare.space.branches) == (0, set(), {}), at
            if not was:
                assert found == after
                break
        assert at > 20 * EVERY


def taken(bare: BareSpace) -> Connection:
    connection = bare.connect()
    connection.tpc_begin(Xid(1, b"interrupted", b""))
    dequeue(connection)
    return connection


def test_who_is_interrupted_in_a_prepare_rolls_back_and_goes_on(tmp_path: Path) -> None:
    """Where the space is not fenced: in the first steps, before anything is on its way, and in the last ones."""
    went_on = 0
    with bare_space(tmp_path / "space", "JOURNAL") as bare:
        for at in count():
            ground(bare)
            connection = taken(bare)
            try:
                if not interrupt(at, connection.tpc_prepare):
                    break
            except ResourceFailed:
                pass
            if bare.space.failure is None:
                with suppress(KeyboardInterrupt):  # one that a round has kept back
                    connection.tpc_rollback()
                assert bare.space.branches == {}, at
                dequeue(connection)
                connection.commit()
                assert bare.take("q") == TAKEN, at
                connection.close()
                went_on += 1
            settle(bare)
    assert went_on > 5


@pytest.mark.parametrize("sync", ["NONE", "JOURNAL"])
def test_who_is_interrupted_twice_in_a_take_holds_no_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: str
) -> None:
    """Once in it, and once while it is given back."""

    def interrupted(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    with bare_space(tmp_path, sync) as bare:
        connection = bare.connect()
        connection.enqueue("q", b"1")
        connection.commit()
        with monkeypatch.context() as patch:
            patch.setattr(bare.space.log, "take", interrupted)
            patch.setattr(bare.space.log, "return_untried", interrupted)
            with pytest.raises(KeyboardInterrupt):
                connection.dequeue("q")
        with bare.connect() as other:
            assert other.dequeue("q") is not None


@pytest.mark.parametrize("sync", ["NONE", "JOURNAL"])
def test_an_interrupted_forget_holds_no_branch(tmp_path: Path, sync: str) -> None:
    with bare_space(tmp_path / "space", sync) as bare:
        for at in count():
            xid = Xid(1, b"decided %d" % at, b"")
            session = Session(bare.space)
            session.start(xid)
            session.enqueue("q", b"new")
            session.end(xid)
            session.prepare(xid)
            heuristics.decide(bare.space, xid, True, by="test")
            with suppress(ResourceFailed):  # it came in the middle of a round
                if not interrupt(at, partial(session.forget, xid)):
                    break
            if bare.space.failure is not None:
                bare.reopen()
            assert not any(branch.busy for branch in bare.space.branches.values()), at
            with suppress(UnknownXid):
                Session(bare.space).forget(xid)
        assert at > 20
        assert bare.space.branches == {}
