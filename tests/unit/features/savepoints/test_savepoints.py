"""A branch is cut back to a mark at each level, whatever it holds; and when the disk, another session or an interrupt
comes in between."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from support.bare_space import DURABLE, BareSpace
from support.interruption import interrupt
from support.patience import eventually
from xaqueue.core.engine.log import HELD_BYTES
from xaqueue.core.model.definitions import MANY, ONE, Definitions, QueueDefinition, parse
from xaqueue.core.model.layout import ACTIVE
from xaqueue.errors import Error, InvalidArgument, ProtocolError, QueueFull, ResourceFailed, RolledBack
from xaqueue.features.limits.queue_room import room_of
from xaqueue.features.session import Session
from xaqueue.message import Message
from xaqueue.xa import Flag
from xaqueue.xid import Xid

IS_FULL = os.environ.get("XAQUEUE_CRASH_FULL") == "1"
X = Xid(1, b"x", b"")
BODIES = [b"<%02d>" % number for number in range(60)]
"""In two blocks, where messages lie in such."""
LARGE = bytes(200_000)


@pytest.fixture(
    params=[("NONE", MANY), (DURABLE, MANY), ("JOURNAL", MANY), ("JOURNAL", ONE), (DURABLE, ONE)],
    ids=lambda param: "-".join(param),
)
def bare(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BareSpace]:
    level, blocks = request.param
    opened = BareSpace(tmp_path / "space", level, definitions=Definitions(default=QueueDefinition(blocks=blocks)))
    yield opened
    opened.crash()


def fill(bare: BareSpace) -> None:
    with bare.connect() as connection:
        connection.enqueue_many("q", BODIES[:30])
        connection.enqueue_many("q", BODIES[30:])


def shown(bare: BareSpace, queue: str = "q") -> list[tuple[bytes, int]]:
    with bare.connect() as connection:
        return [(message.body, message.tries) for message in connection.browse(queue)]


def bodies(found: list[Message]) -> list[bytes]:
    return [message.body for message in found]


def active(bare: BareSpace) -> list[str]:
    return [name for name in bare.fs.list(ACTIVE) if not name.startswith(".")]


def untried(some: list[bytes]) -> list[tuple[bytes, int]]:
    return [(body, 0) for body in some]


def started(bare: BareSpace, flags: Flag = Flag.NOFLAGS) -> Session:
    session = Session(bare.space)
    session.start(X, flags)
    return session


def work(session: Session) -> None:
    """Of every kind: one by one, many at once, large; runs of a block, and a part of one."""
    for number in range(20):
        session.enqueue("r", b"%d" % number)
    session.enqueue_many("r", [b"many"] * 20)
    session.enqueue_to(["r", "s"], b"shared")
    session.enqueue_to(["r", "s"], LARGE)
    session.enqueue("r", LARGE, headers={"a": "b"})
    session.dequeue("q")
    session.dequeue_many("q", 5)
    session.dequeue_many("q", 40)
    session.remove("q", next(session.browse("s")).message_id) if next(session.browse("s"), None) else None


ENDS = ["commit", "two phases", "two phases and a kill", "rollback", "kill"]


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("held", [0, HELD_BYTES * 200], ids=["small", "spilled"])
def test_what_is_cut_was_never_there(bare: BareSpace, how: str, held: int) -> None:
    fill(bare)
    session = started(bare)
    session.enqueue("r", b"before")
    session.dequeue_many("q", 3)
    if held:
        session.enqueue("s", bytes(held // 2))
    before, files = [*session._current.blocks], active(bare)  # type: ignore[union-attr]
    kept = session._current.kept  # type: ignore[union-attr]
    for _ in range(2):
        mark = session.mark()
        work(session)
        session.cut(mark)
        assert session._current is not None
        assert (session._current.blocks, active(bare), session._current.kept) == (before, files, kept)
    session.enqueue("r", b"behind")
    session.dequeue("q")
    session.end(X)
    if how.startswith("two"):
        session.prepare(X)
    if "kill" in how:
        bare.reopen()
        session = Session(bare.space)
    if how == "rollback":
        session.rollback(X)
    elif how != "kill":
        session.commit(X, Flag.ONEPHASE if how == "commit" else Flag.NOFLAGS)
    is_there = how not in ("rollback", "kill")
    assert [body for body, _ in shown(bare, "r")] == ([b"before", b"behind"] if is_there else [])
    tried = [] if is_there else [(body, 1) for body in BODIES[:4]]
    assert shown(bare) == tried + untried(BODIES[4:])
    assert active(bare) == []
    assert bare.take("q") == BODIES[4:] if is_there else BODIES
    bare.space.settle()


def test_who_else_takes_what_is_back_gets_each_once_and_in_order(bare: BareSpace) -> None:
    fill(bare)
    session, other = started(bare), bare.connect()
    assert bodies(session.dequeue_many("q", 7)) == BODIES[:7]
    mark = session.mark()
    assert bodies(session.dequeue_many("q", 30)) == BODIES[7:37]
    assert bodies(other.dequeue_many("q", 3)) == BODIES[37:40]
    session.cut(mark)
    assert bodies(other.dequeue_many("q", 60)) == BODIES[7:37] + BODIES[40:]
    other.commit()
    session.end(X)
    session.commit(X, Flag.ONEPHASE)
    assert shown(bare) == []


def test_ten_thousand(bare: BareSpace) -> None:
    put = [b"%d" % number for number in range(10_000)]
    session = started(bare)
    session.enqueue_many("r", put)
    session.end(X)
    session.commit(X, Flag.ONEPHASE)
    session.start(X)
    assert bodies(session.dequeue_many("r", 10)) == put[:10]
    mark = session.mark()
    session.enqueue_many("s", put)
    assert bodies(session.dequeue_many("r", 10_000)) == put[10:]
    session.cut(mark)
    session.enqueue("s", b"only")
    session.end(X)
    session.commit(X, Flag.ONEPHASE)
    assert [body for body, _ in shown(bare, "s")] == [b"only"]
    assert shown(bare, "r") == untried(put[10:])


def test_what_is_merged_at_its_end_was_cut_before(bare: BareSpace) -> None:
    session = started(bare)
    for number in range(60):
        mark = session.mark()
        session.enqueue("r", b"%d" % number)
        if number % 3:
            session.cut(mark)
    session.end(X)
    session.commit(X, Flag.ONEPHASE)
    assert [body for body, _ in shown(bare, "r")] == [b"%d" % number for number in range(0, 60, 3)]


def test_room_is_given_back_and_who_waits_for_it_has_it(tmp_path: Path) -> None:
    toml = '[queues.q]\nmax_messages = 5\nmax_bytes = 10000\nwhen_full = "wait"\nfull_wait_s = 60\n'
    bare = BareSpace(tmp_path / "space", "JOURNAL", definitions=parse(toml))
    session, other = started(bare), bare.connect()
    session.enqueue("q", b"1")
    room = room_of(bare.space.queues["q"])
    assert room is not None
    size = room.size_bytes
    mark = session.mark()
    for _ in range(4):
        session.enqueue("q", b"2")
    with pytest.raises(QueueFull):
        session.enqueue("q", b"2")
    waiter = threading.Thread(target=lambda: [other.enqueue("q", b"3"), other.commit()])
    waiter.start()
    eventually(lambda: bool(bare.space.queues["q"].waiters))
    session.cut(mark)
    waiter.join(60)
    assert room.size_bytes == 2 * size
    session.end(X)
    session.commit(X, Flag.ONEPHASE)
    assert [body for body, _ in shown(bare)] == [b"3", b"1"]
    bare.crash()


def test_another_session_in_the_branch_adds_meanwhile(bare: BareSpace) -> None:
    one, two = started(bare), started(bare, Flag.JOIN)
    one.enqueue("r", b"1")
    mark = two.mark()
    one.enqueue("r", b"2")
    two.enqueue("r", b"3")
    two.cut(mark)
    two.enqueue("r", b"4")
    two.end(X, Flag.SUSPEND)
    with pytest.raises(ProtocolError):
        two.cut(mark)
    two.start(X, Flag.RESUME)
    one.cut(mark)
    one.enqueue("r", b"5")
    one.end(X)
    two.end(X)
    one.commit(X, Flag.ONEPHASE)
    assert [body for body, _ in shown(bare, "r")] == [b"1", b"5"]


def test_another_session_at_work_in_the_branch(bare: BareSpace) -> None:
    """What it is about to hand out is nobody's then: the branch can only be rolled back."""
    fill(bare)
    one, two = started(bare), started(bare, Flag.JOIN)
    mark = one.mark()
    refused: list[Error] = []

    def wait() -> None:
        try:
            two.dequeue("s", wait_s=60.0)
        except Error as error:
            refused.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    eventually(lambda: "s" in bare.space.queues and bool(bare.space.queues["s"].waiters))
    one.dequeue_many("q", 9)
    with pytest.raises(RolledBack, match="another session was at work"):
        one.cut(mark)
    waiter.join(60)
    assert [type(error) for error in refused] == [RolledBack]
    for session in (one, two):
        with suppress(RolledBack):
            session.end(X)
    one.rollback(X)
    assert [body for body, _ in shown(bare)] == BODIES


@pytest.mark.parametrize("wrong", [-1, None, True, "1", b"", 1.0])
def test_what_is_no_mark(bare: BareSpace, wrong: Any) -> None:
    session = started(bare)
    session.enqueue("r", b"")
    with pytest.raises(InvalidArgument, match="mark"):
        session.cut(wrong)
    session.end(X)
    session.commit(X, Flag.ONEPHASE)
    for call in (session.mark, lambda: session.cut(0)):
        with pytest.raises(ProtocolError):
            call()


@pytest.mark.parametrize("call", [("unlink", ACTIVE), ("write_at", "tries")], ids=lambda call: call[0])
def test_a_disk_that_fails(bare: BareSpace, call: tuple[str, str]) -> None:
    """The space is fenced, and the next open finds all as it was before the branch."""
    fill(bare)
    session = started(bare)
    session.dequeue("q")
    mark = session.mark()
    session.enqueue("s", bytes(HELD_BYTES * 100))
    session.enqueue("s", bytes(HELD_BYTES * 100))
    work(session)
    bare.fs.faults[call] = errno.EIO
    failing: Callable[[], None] = lambda: session.cut(mark)  # noqa: E731
    if call[0] == "unlink" or bare.sync == "JOURNAL":
        with pytest.raises(ResourceFailed):
            failing()
        with pytest.raises((ResourceFailed, RolledBack)):
            session.enqueue("r", b"")
    bare.fs.faults.clear()
    bare.reopen()
    assert [body for body, _ in shown(bare)] == BODIES
    assert shown(bare, "r") == []


def test_an_interrupt_anywhere_loses_and_locks_nothing(bare: BareSpace) -> None:
    """It is cut as a whole, or not at all, or can only be rolled back."""
    every, outcomes = 3 if IS_FULL else 37, dict[str, int]()
    for at in count(0, every):
        fill(bare)
        connection = bare.connect()
        connection.enqueue("r", b"1")
        connection.dequeue("q")
        savepoint = connection.savepoint()
        work(connection._manager)  # type: ignore[arg-type]
        was = interrupt(at, savepoint.rollback)
        with suppress(RolledBack):
            connection.commit()
        connection.close()
        queues = bare.space.queues
        assert [queues[name].pending for name in "rs"] == [set(), set()], at
        assert (queues["q"].index.locked, active(bare)) == (0, []), at
        with bare.connect() as taker:
            left, added = (bodies(taker.dequeue_many(queue, 100)) for queue in "qr")
            taker.dequeue_many("s", 100)
        how = {0: "rolled back", 1: "cut", 44: "not cut"}[len(added)]
        assert sorted(left) == {"rolled back": BODIES, "cut": BODIES[1:], "not cut": BODIES[47:]}[how], at
        outcomes[how] = at
        if not was:
            break
    assert [*outcomes] == (["not cut", "rolled back", "cut"] if IS_FULL else [*outcomes])
    assert at > 50
