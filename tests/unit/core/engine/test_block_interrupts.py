"""An interrupt anywhere in a take of many, or in what follows it, loses nothing of a block, doubles nothing of it, and
leaves nothing locked for nobody.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import count
from linecache import getline
from pathlib import Path
from traceback import walk_tb
from typing import Any
from unittest import mock

import pytest

from support.bare_space import DURABLE, BareSpace
from support.interruption import interrupt
from xaqueue import Connection
from xaqueue.core.engine import session as session_module
from xaqueue.core.engine.log import HELD_BYTES, KEPT_BYTES
from xaqueue.core.model.definitions import MANY, Definitions, QueueDefinition
from xaqueue.errors import Error, ResourceFailed, RolledBack
from xaqueue.features.session import Session
from xaqueue.xa import Flag
from xaqueue.xid import Xid

IS_FULL = os.environ.get("XAQUEUE_CRASH_FULL") == "1"
"""Else where many are taken not at each place."""
BODIES = [b"%02d" % number for number in range(40)]
"""In two blocks, and in a file between."""
X = Xid(1, b"interrupted", b"")


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[BareSpace]:
    definitions = Definitions(default=QueueDefinition(blocks=MANY))
    opened = BareSpace(tmp_path / "space", "JOURNAL", definitions=definitions)
    yield opened
    opened.crash()


def filled(bare: BareSpace, queue: str) -> str:
    connection = bare.connect()
    for begin, end in ((0, 20), (20, 21), (21, 40)):
        connection.enqueue_many(queue, BODIES[begin:end])
        connection.commit()
    return queue


def left(bare: BareSpace, queue: str) -> list[bytes]:
    """What others are given, behind which nothing is left anywhere."""
    connection = bare.connect()
    found = [message.body for message in connection.dequeue_many(queue, 100)]
    connection.commit()
    with bare.space.lock:
        known = bare.space.queues[queue]
        assert (len(known.index), known.index.locked, known.blocks, bare.space.branches) == (0, 0, {}, {})
    return found


Take = Callable[[Any, str], object]


def by_id(session: Any, queue: str) -> None:
    """It is one of those that were taken together, and of no use any more."""
    found = session.dequeue_many(queue, 5)
    assert session.dequeue(queue, message_id=found[3].message_id) is None


def around(session: Any, queue: str) -> None:
    """Some are looked at one by one."""
    session.dequeue(queue)
    session.dequeue_many(queue, 30)


TAKES: dict[str, tuple[Take, int]] = {
    "one": (lambda session, queue: session.dequeue(queue), 1),
    "some": (lambda session, queue: session.dequeue_many(queue, 5), 5),
    "a block": (lambda session, queue: session.dequeue_many(queue, 20), 20),
    "all": (lambda session, queue: session.dequeue_many(queue, 50), 40),
    "twice": (by_id, 5),
    "around": (around, 31),
}
"""With how many they take."""


class Taker:
    def __init__(self, take: Take, session: Session, queue: str) -> None:
        self.got = False
        """Or on the way out of the session, where its messages are about to be the caller's."""
        self._take = partial(take, session, queue)

    def __call__(self) -> None:
        try:
            self._take()
            self.got = True
        except KeyboardInterrupt as error:
            *_, (frame, line), _ = walk_tb(error.__traceback__)  # the last one interrupts
            name = frame.f_code.co_filename
            self.got = name == session_module.__file__ or getline(name, line).strip() == "with self._work() as branch:"
            raise


@pytest.mark.parametrize("name", ["one", "some", "a block", "all"])
def test_an_interrupted_take_leaves_its_messages_to_others(bare: BareSpace, name: str) -> None:
    """A commit of what was done before does not consume what nobody got."""
    take, taken = TAKES[name]
    for at in count(0, 1 if IS_FULL or taken < 10 else 7):
        queue, session = filled(bare, f"q{at}"), Session(bare.space)
        taker = Taker(take, session, queue)
        session.start(X)
        was = interrupt(at, taker)
        session.end(X)
        session.commit(X, Flag.ONEPHASE)
        assert left(bare, queue) in (BODIES, BODIES[taken * taker.got :]), at
        if not was:
            break
    assert at > 50


class Ended(BaseException):
    """The first interrupt, in the last step of a take."""


@pytest.mark.parametrize("name", ["one", "some", "a block", "all"])
def test_who_is_interrupted_twice_in_a_take_consumes_nothing(bare: BareSpace, name: str) -> None:
    """The second time where it gives back what it took: what it keeps can only be rolled back."""
    take, taken = TAKES[name]
    kept = 0
    with mock.patch.object(bare.space.log, "take", side_effect=Ended):
        for at in count(0, 1 if IS_FULL or taken < 10 else 7):
            queue, session = filled(bare, f"q{at}"), Session(bare.space)
            session.start(X)
            session.enqueue("other", b"")
            was = False
            with suppress(Ended):
                was = interrupt(at, partial(take, session, queue))
            try:
                session.end(X)
                session.commit(X, Flag.ONEPHASE)
            except RolledBack:
                session.rollback(X)
                kept += 1
            with bare.space.lock:
                assert (bare.space.queues[queue].index.locked, bare.space.branches) == (0, {}), at
            assert [message.body for message in session.browse(queue)] == BODIES, at
            if not was:
                break
    assert kept > 0


ADDS: dict[str, Callable[[Session], object]] = {
    "put one": lambda session: session.enqueue("q", bytes(HELD_BYTES + 1)),
    "put many": lambda session: session.enqueue_many("q", BODIES),
    "take one": lambda session: session.dequeue("q"),
    "take many": lambda session: session.dequeue_many("q", 5),
}


@pytest.mark.parametrize("name", ADDS)
@pytest.mark.parametrize("sync", ["NONE", DURABLE])
def test_an_interrupt_behind_the_making_of_a_file_leaves_none(tmp_path: Path, sync: str, name: str) -> None:
    """It was in the way of the next branch of its name, and fenced the space."""
    bare = BareSpace(tmp_path / "space", sync, definitions=Definitions(default=QueueDefinition(blocks=MANY)))
    filled(bare, "q")
    session, create = Session(bare.space), bare.space.fs.create

    def interrupted(*given: Any, **options: Any) -> None:
        create(*given, **options)
        raise KeyboardInterrupt

    session.start(X)
    with mock.patch.object(bare.space.fs, "create", interrupted), pytest.raises(KeyboardInterrupt):
        ADDS[name](session)
    session.end(X)
    session.rollback(X)
    assert not [path for path in (bare.root / "active").iterdir() if not path.name.startswith(".")]
    session.start(X)
    ADDS[name](session)
    session.end(X)
    session.commit(X, Flag.ONEPHASE)
    bare.crash()


@pytest.mark.parametrize("name", ["put", "write_early"])
def test_a_file_that_an_interrupt_has_left_is_in_nobodys_way(bare: BareSpace, name: str) -> None:
    """Nor is a block that an earlier branch of its name, which is committed, has there still."""
    session, log, create = Session(bare.space), bare.space.log, bare.space.fs.create

    def interrupted(*given: Any, **options: Any) -> None:
        create(*given, **options)
        raise KeyboardInterrupt

    def work(body: bytes) -> None:
        if name == "put":
            session.enqueue("q", body * (KEPT_BYTES + 1))
        else:
            session.enqueue("q", body)
            log.write_early(bare.space.branches[X])

    kept = []
    for body in (b"1", b"2", b"3"):
        session.start(X)
        with mock.patch.object(bare.space.fs, "create", interrupted), pytest.raises(KeyboardInterrupt):
            work(body)
        session.end(X)
        session.rollback(X)
        session.start(X)
        work(body)
        session.end(X)
        session.commit(X, Flag.ONEPHASE)  # which has not moved when the next one begins
        kept.append(body)
    bare.reopen()
    assert [message.body[:1] for message in Session(bare.space).browse("q")] == kept


def one_phase(take: Take, connection: Connection, queue: str) -> None:
    take(connection, queue)
    connection.commit()


def two_phase(take: Take, connection: Connection, queue: str) -> None:
    connection.tpc_begin(X)
    take(connection, queue)
    connection.tpc_prepare()
    connection.tpc_commit()


def undone(take: Take, connection: Connection, queue: str) -> None:
    take(connection, queue)
    connection.rollback()


@pytest.mark.parametrize("run", [one_phase, two_phase, undone])
@pytest.mark.parametrize("name", TAKES)
def test_an_interrupt_anywhere_loses_nothing_of_a_block(
    bare: BareSpace, name: str, run: Callable[[Take, Connection, str], None]
) -> None:
    take, taken = TAKES[name]
    after = BODIES if run is undone else BODIES[taken:]
    for at in count(taken % 5, 1 if IS_FULL else 7 + 2 * taken):
        queue, connection = filled(bare, f"q{at}"), bare.connect()
        try:
            was = interrupt(at, partial(run, take, connection, queue))
        except ResourceFailed:  # it came in the middle of a round
            was = True
        with suppress(Error, KeyboardInterrupt):
            connection.close()
        connection._manager.close()
        if bare.space.failure is not None:
            bare.reopen()
        with bare.connect() as other:
            for xid in other.tpc_recover():
                other.tpc_commit(xid)
        found = left(bare, queue)
        assert found in (BODIES, after), at
        if not was:
            assert found == after
            break
    assert at > 100
