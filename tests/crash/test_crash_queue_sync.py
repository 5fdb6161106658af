"""Queues that wait for no sync, beside others: a crash takes the last of their steps, whole and from the end. It takes
nothing that was acknowledged on a queue with the level of the space, nor a branch that was prepared, nor what came
before either.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from support.crash_cases import trees_of
from support.crash_level import CHECKPOINTS, JOURNAL, LAGGING, Level, follow, open_space, ready
from support.crash_story import EMPTY
from support.forgetful import Crashed, ForgetfulFileSystem, Tree
from xaqueue.core.engine.state import Space
from xaqueue.core.model.definitions import Definitions, QueueDefinition
from xaqueue.core.storage.hardening import NOTHING
from xaqueue.errors import ResourceFailed
from xaqueue.features.session import Session
from xaqueue.xa import Flag
from xaqueue.xid import Xid

MIXED = Definitions({"a": QueueDefinition(sync=NOTHING)}, QueueDefinition())
EVERY = 4
"""One call in so many."""
Put = tuple[str, bytes]
STEPS: Sequence[tuple[str, tuple[Put, ...], tuple[str, ...]]] = (
    ("one-phase", (("a", b"1"),), ()),
    ("one-phase", (("a", b"9"),), ()),
    ("two-phase", (("a", b"2"), ("a", b"3")), ()),
    ("one-phase", (("b", b"4"),), ()),
    ("two-phase", (("a", b"5"), ("b", b"6")), ()),
    ("one-phase", (("a", b"7"),), ("a",)),
    ("two-phase", (("b", b"8"),), ("a",)),
    ("rollback", (), ("a",)),
    ("two-phase", (), ("a",)),
    ("one-phase", (("a", b"10"),), ()),
    ("one-phase", (), ("a",)),
    ("one-phase", (("b", b"11"),), ()),
)
"""How each branch ends, what it adds, and from which queues it takes the next message."""


def states() -> list[dict[str, list[bytes]]]:
    """What is committed before the first of them, and behind each."""
    found: list[dict[str, list[bytes]]] = [{"a": [], "b": []}]
    for ends, puts, takes in STEPS:
        after = {queue: list(bodies) for queue, bodies in found[-1].items()}
        if ends != "rollback":
            for queue in takes:
                after[queue].pop(0)
            for queue, body in puts:
                after[queue].append(body)
        found.append(after)
    return found


STATES = states()
KEPT = [
    index
    for index, (ends, puts, takes) in enumerate(STEPS, 1)
    if ends != "one-phase" or "b" in (*takes, *(queue for queue, _ in puts))
]
"""Behind which no crash goes back."""


def play(level: Level, crash_after: int | None = None) -> tuple[ForgetfulFileSystem, int, int, bool]:
    """How many steps were acknowledged, how many were begun, and whether the space was closed."""
    fs = ready(EMPTY, level).open(crash_after)
    done = begun = 0
    closed = False
    try:
        space = open_space(fs, level, goes_on=True, definitions=MIXED)
        for number, step in enumerate(STEPS, 1):
            begun = number
            perform(space, level, number, *step)
            done = number
        space.close()
        closed = True
    except (Crashed, ResourceFailed):
        if not fs.crashed:
            raise
    return fs, done, begun, closed


def perform(space: Space, level: Level, number: int, ends: str, puts: Sequence[Put], takes: Sequence[str]) -> None:
    session, xid = Session(space), Xid(1, b"%d" % number, b"")
    session.start(xid)
    for queue in takes:
        assert session.dequeue(queue) is not None
    for queue, body in puts:
        session.enqueue(queue, body)
    session.end(xid)
    if ends == "one-phase":
        session.commit(xid, Flag.ONEPHASE)
    else:
        session.prepare(xid)
        follow(space, level, "prepare")
        session.rollback(xid) if ends == "rollback" else session.commit(xid)
    follow(space, level, "commit")


def judge(tree: Tree, level: Level, done: int, begun: int, closed: bool) -> int:
    """Which of the states it came to, with what is in doubt committed."""
    space = open_space(tree.open(), level, definitions=MIXED)
    assert len(space.branches) <= 1
    in_doubt = [int(xid.gtrid) for xid in space.branches]
    session = Session(space)
    for xid in list(space.branches):
        session.rollback(xid) if STEPS[int(xid.gtrid) - 1][0] == "rollback" else session.commit(xid)
    found = {queue: [one.body for one in session.browse(queue)] for queue in ("a", "b")}
    assert found in STATES, "each step is whole or gone, and none without those before it"
    came_to = max(index for index, state in enumerate(STATES) if state == found)
    least = done if closed else max([index for index in KEPT if index <= done], default=0)
    assert came_to >= least
    assert min(index for index, state in enumerate(STATES) if state == found) <= begun
    assert all(number <= begun for number in in_doubt)
    return min(came_to, done)


@pytest.mark.crash
@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("level", [LAGGING, JOURNAL, CHECKPOINTS], ids=str)
def test_a_crash_takes_the_last_steps_whole_and_none_that_was_waited_for(level: Level) -> None:
    crash_after, lost = 0, set()
    while True:
        fs, done, begun, closed = play(level, crash_after)
        for tree in (fs.tree_after_kill(), *trees_of(fs, level)):
            lost.add(done - judge(tree, level, done, begun, closed))
        if not fs.crashed:
            break
        crash_after += EVERY
    assert closed
    assert (max(lost) >= 2) == (level is LAGGING), "nobody had waited for the last steps, unless the directories did"
