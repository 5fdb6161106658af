"""A publish to five subscriptions, dead at any call: the message is in all five queues or in none, and once in each."""

from __future__ import annotations

import pytest

from support.crash_cases import EXTREMES, FULL, trees_of
from support.crash_level import CHECKPOINTS, JOURNAL, LAGGING, STRICT, Level, follow, open_space, ready
from support.crash_story import EMPTY
from support.forgetful import Crashed, ForgetfulFileSystem, Tree
from xaqueue.core.engine import journal_log
from xaqueue.core.engine.state import Space
from xaqueue.core.model.definitions import Definitions, QueueDefinition
from xaqueue.errors import ResourceFailed
from xaqueue.features.session import Session
from xaqueue.xa import Flag
from xaqueue.xid import Xid

QUEUES = ["a", "b", "c", "d", "e"]
WAY = Definitions({name: QueueDefinition(options={"topic": "t"}) for name in QUEUES}, tables={"topics": {"t": {}}})
BODY = b"news" * 500


def opened(fs: ForgetfulFileSystem, level: Level, *, goes_on: bool = False) -> Space:
    return open_space(fs, level, goes_on=goes_on, definitions=WAY)


def publish(space: Space, level: Level, number: int, *, prepared: bool) -> None:
    session, xid = Session(space), Xid(1, b"%d" % number, b"")
    session.start(xid)
    session.publish("t", b"%d" % number + BODY)
    session.end(xid)
    if prepared:
        session.prepare(xid)
        follow(space, level, "prepare")
    session.commit(xid, Flag.NOFLAGS if prepared else Flag.ONEPHASE)
    follow(space, level, "commit" if prepared else "one-phase")


def take(space: Space, level: Level, queue: str) -> None:
    session, xid = Session(space), Xid(1, b"take", b"")
    session.start(xid)
    assert session.dequeue(queue) is not None
    session.end(xid)
    session.commit(xid, Flag.ONEPHASE)
    follow(space, level, "one-phase")


def play(level: Level, crash_after: int | None = None, *, prepared: bool) -> tuple[ForgetfulFileSystem, int]:
    """How many calls were acknowledged: two publications, and then one subscriber takes the first."""
    fs, done = ready(EMPTY, level).open(crash_after), 0
    try:
        space = opened(fs, level, goes_on=True)
        for number in (1, 2):
            publish(space, level, number, prepared=prepared)
            done += 1
        take(space, level, "b")
        done += 1
        space.close()
    except (Crashed, ResourceFailed):
        if not fs.crashed:
            raise
    return fs, done


def judge(tree: Tree, level: Level, done: int) -> None:
    fs = tree.open()
    space = opened(fs, level)
    for xid in list(space.branches):
        Session(space).commit(xid)
    found = {queue: [one.body[:1] for one in Session(space).browse(queue)] for queue in QUEUES}
    untouched = {tuple(found[queue]) for queue in QUEUES if queue != "b"}
    assert len(untouched) == 1, found
    (there,) = untouched
    assert there in [(b"1", b"2")[:count] for count in range(min(done, 2), 3)]
    assert found["b"] == list(there) or (done >= 2 and found["b"] == [b"2"])
    assert done < 3 or found["b"] == [b"2"]
    assert all(one.queue == one.properties.queue == "d" for one in Session(space).browse("d"))
    space.close()
    again = opened(fs.tree_after_kill().open(), level)
    assert {queue: [one.body[:1] for one in Session(again).browse(queue)] for queue in QUEUES} == found


def play_all(level: Level, prepared: bool, every: int = 1 if FULL else 10) -> None:
    """Cut off at every call, or at a sample of them, which begins elsewhere at each level."""
    crash_after = 0 if FULL else len(str(level)) % every
    while True:
        fs, done = play(level, crash_after, prepared=prepared)
        for tree in trees_of(fs, level, EXTREMES):
            judge(tree, level, done)
        judge(fs.tree_after_kill(), level, done)
        if not fs.crashed:
            break
        crash_after += every
    assert done == 3


@pytest.mark.crash
@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize("level", [STRICT, LAGGING, JOURNAL, CHECKPOINTS], ids=str)
def test_it_is_in_all_queues_or_in_none(level: Level, prepared: bool) -> None:
    play_all(level, prepared)


@pytest.mark.crash
@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize(("level", "kept_bytes"), [(LAGGING, 1000), (JOURNAL, 1000), (LAGGING, 5000)], ids=str)
def test_it_is_where_its_blocks_were_files_already(
    level: Level, kept_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or become such with one of its later queues."""
    monkeypatch.setattr(journal_log, "KEPT_BYTES", kept_bytes)
    play_all(level, prepared=True)
