"""Blocks of many messages over a crash at any call: each step is whole or not at all, and none is given out twice."""

from __future__ import annotations

import pytest

from support.crash_cases import trees_of
from support.crash_level import (
    CHECKPOINTS,
    CYCLING,
    JOURNAL,
    LAGGING,
    MOVING,
    PREPARED_BEFORE,
    Level,
    follow,
    open_space,
    ready,
)
from support.crash_story import EMPTY
from support.forgetful import Crashed, ForgetfulFileSystem, Tree
from xaqueue.core.engine.state import Space
from xaqueue.core.model import layout
from xaqueue.core.model.definitions import MANY, Definitions, QueueDefinition
from xaqueue.errors import ResourceFailed
from xaqueue.features.session import Session
from xaqueue.xa import Flag
from xaqueue.xid import Xid

MANY_EACH = Definitions(default=QueueDefinition(blocks=MANY))
STEPS = (
    *(("one-phase", 20, 0), ("one-phase", 0, 3), ("two-phase", 0, 2), ("two-phase", 16, 4), ("rollback", 17, 5)),
    *(("one-phase", 2, 11), ("two-phase", 0, 10), ("one-phase", 18, 7), ("one-phase", 0, 19)),
)
"""How each branch ends, how many it adds, and how many it takes. Some take the last of a block, some of two."""
EVERY = 3
"""One call in so many."""


def states() -> list[list[bytes]]:
    """What is committed before the first of them, and behind each."""
    found: list[list[bytes]] = [[]]
    for number, (ends, puts, takes) in enumerate(STEPS, 1):
        left = found[-1]
        found.append(left if ends == "rollback" else [*left[takes:], *bodies_of(number, puts)])
    return found


def bodies_of(number: int, count: int) -> list[bytes]:
    return [b"%d of %d" % (one, number) for one in range(count)]


STATES = states()


def play(level: Level, crash_after: int | None = None) -> tuple[ForgetfulFileSystem, int, int]:
    """How many steps were acknowledged, and how many were begun."""
    fs = ready(EMPTY, level).open(crash_after)
    done = begun = 0
    try:
        space = open_space(fs, level, goes_on=True, definitions=MANY_EACH)
        for begun in range(1, len(STEPS) + 1):
            perform(space, level, begun, *STEPS[begun - 1])
            done = begun
        space.close()
    except (Crashed, ResourceFailed):
        if not fs.crashed:
            raise
    return fs, done, begun


def perform(space: Space, level: Level, number: int, ends: str, puts: int, takes: int) -> None:
    session, xid = Session(space), Xid(1, b"%d" % number, b"")
    session.start(xid)
    if takes:
        assert len(session.dequeue_many("q", takes)) == takes
    if puts:
        session.enqueue_many("q", bodies_of(number, puts))
    session.end(xid)
    if ends == "one-phase":
        session.commit(xid, Flag.ONEPHASE)
    else:
        session.prepare(xid)
        follow(space, level, "prepare")
        session.rollback(xid) if ends == "rollback" else session.commit(xid)
    follow(space, level, "commit")


def judge(tree: Tree, level: Level, done: int, begun: int) -> None:
    space = open_space(tree.open(), level, definitions=MANY_EACH)
    assert space.report.quarantined == []
    assert len(space.branches) <= 1
    doubtful = next(iter(space.branches), None)
    session = Session(space)
    if doubtful is not None:
        assert int(doubtful.gtrid) == begun
        session.rollback(doubtful) if STEPS[begun - 1][0] == "rollback" else session.commit(doubtful)
    found = [message.body for message in session.browse("q")]
    wanted = [STATES[begun]] if doubtful is not None else [STATES[done], STATES[begun]]
    assert found in wanted
    taken = drain(space, 4)
    space.log.end(OSError("killed"))
    space = open_space(tree_after(space).open(), level, definitions=MANY_EACH)
    assert taken + drain(space, 1000) == found
    space.close()
    left = [path for path, data in tree_after(space).nodes.items() if data is not None]
    assert {path for path in left if path.startswith(layout.queue_path("q"))} <= {layout.watermark_path("q")}


def tree_after(space: Space) -> Tree:
    assert isinstance(space.fs, ForgetfulFileSystem)
    return space.fs.tree_after_kill()


def drain(space: Space, count: int) -> list[bytes]:
    session, xid = Session(space), Xid(1, b"drain", b"")
    session.start(xid)
    found = [message.body for message in session.dequeue_many("q", count)]
    session.end(xid)
    session.commit(xid, Flag.ONEPHASE)
    return found


@pytest.mark.crash
@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("level", [LAGGING, JOURNAL, CHECKPOINTS, MOVING, CYCLING, PREPARED_BEFORE], ids=str)
def test_each_step_is_whole_or_not_at_all(level: Level) -> None:
    crash_after = 0
    while True:
        fs, done, begun = play(level, crash_after)
        for tree in (fs.tree_after_kill(), *trees_of(fs, level)):
            judge(tree, level, done, begun)
        if not fs.crashed:
            break
        crash_after += EVERY
    assert done == len(STEPS)
