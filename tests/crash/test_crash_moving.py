"""A retry's record and the move to a failure queue, dead at any call: one copy, in one of the two queues."""

from __future__ import annotations

import pytest

from support.crash_cases import EXTREMES, FULL, trees_of
from support.crash_level import (
    CHECKPOINTS,
    JOURNAL,
    LAGGING,
    NONE,
    NOON_US,
    STRICT,
    Level,
    follow,
    open_space,
    openings,
    ready,
)
from support.crash_story import EMPTY
from support.forgetful import Crashed, ForgetfulFileSystem, Tree
from xaqueue.core.engine.state import Space
from xaqueue.core.model.definitions import Definitions, QueueDefinition
from xaqueue.errors import ResourceFailed
from xaqueue.features.retries import moving
from xaqueue.features.session import Session
from xaqueue.features.streams import cleanup
from xaqueue.xa import Flag
from xaqueue.xid import Xid

WAY = Definitions(default=QueueDefinition(options={"max_tries": 2, "retry_delay_s": 1, "failure_queue": "b"}))
LATER_US = NOON_US + 10_000_000


def opened(fs: ForgetfulFileSystem, level: Level, *, goes_on: bool = False) -> Space:
    return open_space(fs, level, goes_on=goes_on, definitions=WAY)


def work(space: Space, level: Level, name: bytes, *, adds: bool = False, several: bool = False) -> None:
    """Adds a message, or takes it and rolls back; one of a two-phase transaction, one of a local one.

    several: with other blocks before and behind the one that takes it.
    """
    session, xid = Session(space), Xid(1, name, b"")
    session.start(xid)
    if adds:
        session.enqueue("a", b"poison")
        session.end(xid)
        session.commit(xid, Flag.ONEPHASE)
        follow(space, level, "one-phase")
        return
    for queue in ("c", "a", "d") if several else ("a",):
        if queue == "a":
            assert session.dequeue("a") is not None
        else:
            session.enqueue(queue, b"other")
    session.end(xid)
    if name == b"2":
        session.prepare(xid)
        follow(space, level, "prepare")
    session.rollback(xid)
    follow(space, level, "rollback")


def send_back(space: Space, level: Level) -> None:
    """In a two-phase transaction."""
    session, xid = Session(space), Xid(1, b"back", b"")
    session.start(xid)
    (message,) = session.browse("b")
    assert session.move("b", message.message_id) is not None
    session.end(xid)
    session.prepare(xid)
    follow(space, level, "prepare")
    session.commit(xid)
    follow(space, level, "commit")


def play(level: Level, crash_after: int | None = None, *, requeued: bool = False) -> tuple[ForgetfulFileSystem, bool]:
    """Whether the message's commit was acknowledged."""
    fs, committed = ready(EMPTY, level).open(crash_after), False
    try:
        space = opened(fs, level, goes_on=True)
        work(space, level, b"0", adds=True)
        committed = True
        work(space, level, b"1")
        space.now_ns = lambda: LATER_US * 1000
        work(space, level, b"2")
        moving.move_exhausted(space, cleanup.never)
        follow(space, level, "one-phase")
        if requeued:
            send_back(space, level)
        space.close()
    except (Crashed, ResourceFailed):
        if not fs.crashed:
            raise
    return fs, committed


def judge(tree: Tree, level: Level, committed: bool, requeued: bool) -> bool:
    """Whether it was moved in the end: it is where its tries say."""
    fs = tree.open()
    space = opened(fs, level)
    space.now_ns = lambda: 2 * LATER_US * 1000
    for xid in list(space.branches):
        if xid.gtrid == b"back":
            Session(space).commit(xid)
    moving.move_exhausted(space, cleanup.never)
    session = Session(space)
    waiting, moved = list(session.browse("a")), list(session.browse("b"))
    assert [one.body for one in (*waiting, *moved)] == [b"poison"] or (not waiting and not moved and not committed)
    assert all(one.tries < 2 for one in waiting)
    for one in moved:
        assert one.origin is not None
        assert one.origin.tries == 2
        assert (one.origin.queue, one.origin.reason) == ("a", "tries")
        assert one.tries in ((0, 1) if requeued else (0,)), "a killed process was sending it back"
    space.close()
    again = opened(fs.tree_after_kill().open(), level)
    assert [one.body for one in Session(again).browse("b")] == [one.body for one in moved]
    return bool(moved)


@pytest.mark.crash
@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("requeued", [False, True])
@pytest.mark.parametrize("level", [STRICT, LAGGING, JOURNAL, CHECKPOINTS], ids=str)
def test_there_is_one_copy_wherever_it_is_cut_off(level: Level, requeued: bool) -> None:
    every = 1 if FULL else 3
    crash_after, ends = (len(str(level)) + requeued) % every, set()
    while True:
        fs, committed = play(level, crash_after, requeued=requeued)
        for tree in trees_of(fs, level, EXTREMES):
            ends.add(judge(tree, level, committed, requeued))
        ends.add(judge(fs.tree_after_kill(), level, committed, requeued))
        if not fs.crashed:
            break
        crash_after += every
    assert committed
    assert ends == {False, True}


@pytest.mark.crash
@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize("level", [NONE, STRICT, LAGGING, JOURNAL], ids=str)
def test_a_kill_counts_a_delivery_once(level: Level, prepared: bool, several: bool) -> None:
    """At whatever call of its rollback, and again at any call of the opening that counts it."""
    whole, crash_after = False, 0
    while not whole:
        fs, taken = ready(EMPTY, level).open(crash_after), 0
        try:
            space = opened(fs, level, goes_on=True)
            work(space, level, b"0", adds=True)
            taken = 1
            work(space, level, b"2" if prepared else b"1", several=several)
            taken, whole = 2, True
        except (Crashed, ResourceFailed):
            if not fs.crashed:
                raise
        fs = fs.tree_after_kill().open()
        for left, opening in openings(fs, level, 3):
            again = opening or opened(left.tree_after_kill().open(), level)
            for xid in list(again.branches):
                Session(again).rollback(xid)
            found = [message.tries for message in Session(again).browse("a")]
            assert found in ({0: [[], [0]], 1: [[0], [1]], 2: [[1]]}[taken]), crash_after
        crash_after += 1
