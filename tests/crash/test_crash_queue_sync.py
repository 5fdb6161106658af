"""Queues that wait for no sync, beside others: a crash takes the last of their steps, whole and from the end. It takes
nothing that was acknowledged on a queue with the level of the space, nor a branch that was prepared, nor what came
before either. And queues whose messages need not outlive the owner: the next one gives out none of them.
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
VOLATILE = Definitions({"a": QueueDefinition(persistent=False)}, QueueDefinition())
EVERY = 4
"""One call in so many."""
TAKES = Xid(1, b"takes", b"")
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


def play(level: Level, definitions: Definitions, crash_after: int) -> tuple[ForgetfulFileSystem, int, int, bool]:
    """How many steps were acknowledged, how many were begun, and whether the space was closed."""
    fs = ready(EMPTY, level).open(crash_after)
    done = begun = 0
    closed = False
    try:
        space = open_space(fs, level, goes_on=True, definitions=definitions)
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
        message = session.dequeue(queue)
        assert message is not None
        assert message.body == STATES[number - 1][queue][0], "each once, in their order"
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


def judge(tree: Tree, level: Level, definitions: Definitions, done: int, begun: int, closed: bool) -> int:
    """Which of the states it came to, with what is in doubt committed."""
    space = open_space(tree.open(), level, definitions=definitions)
    assert len(space.branches) <= 1
    in_doubt = [int(xid.gtrid) for xid in space.branches]
    session, lives = Session(space), definitions is MIXED
    session.start(TAKES)
    assert lives or session.dequeue("a") is None
    session.end(TAKES)
    session.rollback(TAKES)
    for xid in list(space.branches):
        session.rollback(xid) if STEPS[int(xid.gtrid) - 1][0] == "rollback" else session.commit(xid)
    found = {queue: [one.body for one in session.browse(queue)] for queue in ("a", "b")}
    if not lives:
        decided = [STEPS[number - 1] for number in in_doubt]
        assert found["a"] == [
            body for ends, puts, _ in decided if ends != "rollback" for queue, body in puts if queue == "a"
        ]
    reached = [index for index, state in enumerate(STATES) if (state if lives else state | {"a": found["a"]}) == found]
    assert reached, "each step is whole or gone, and none without those before it"
    came_to = max(reached)
    least = done if closed else max([index for index in KEPT if index <= done], default=0)
    assert came_to >= least
    assert min(reached) <= begun
    assert all(number <= begun for number in in_doubt)
    return min(came_to, done)


@pytest.mark.crash
@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("definitions", [MIXED, VOLATILE], ids=["no sync", "not persistent"])
@pytest.mark.parametrize("level", [LAGGING, JOURNAL, CHECKPOINTS], ids=str)
def test_a_crash_takes_the_last_steps_whole_and_none_that_was_waited_for(
    level: Level, definitions: Definitions
) -> None:
    crash_after, lost = 0, set()
    while True:
        fs, done, begun, closed = play(level, definitions, crash_after)
        for tree in (fs.tree_after_kill(), *trees_of(fs, level)):
            lost.add(done - judge(tree, level, definitions, done, begun, closed))
        if not fs.crashed:
            break
        crash_after += EVERY
    assert closed
    assert definitions is VOLATILE or (max(lost) >= 2) == (level is LAGGING), (
        "nobody had waited for the last steps, unless the directories did"
    )
