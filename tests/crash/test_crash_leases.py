"""A message on lease, dead at any call of what settles it: there is one copy, or it is handled, and answers hold."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cache

import pytest

from support.crash_cases import EXTREMES, trees_of
from support.crash_level import CHECKPOINTS, JOURNAL, LAGGING, NOON_US, STRICT, Level, follow, open_space, ready
from support.crash_story import EMPTY
from support.forgetful import Crashed, ForgetfulFileSystem, Tree
from xaqueue.core.engine import timeouts
from xaqueue.core.engine.state import Space
from xaqueue.core.model.definitions import Definitions, QueueDefinition
from xaqueue.delivery import Detail
from xaqueue.errors import ResourceFailed
from xaqueue.features.retries import tries
from xaqueue.features.session import Session
from xaqueue.xa import Flag
from xaqueue.xid import Xid

HOUR_US = 3_600_000_000
DETAILS: dict[str, Detail] = {"nack": HOUR_US, "reject": "no such customer"}
WAY = Definitions(default=QueueDefinition(options={"max_tries": 9, "retry_delay_s": 1, "failure_queue": "b"}))
X, PUT = Xid(1, b"x", b""), Xid(1, b"put", b"")


@dataclass
class Told:
    """What was answered before the crash."""

    received: bool = False
    prepared: bool = False
    done: bool = False


def opened(fs: ForgetfulFileSystem, level: Level, *, goes_on: bool = False) -> Space:
    return open_space(fs, level, goes_on=goes_on, definitions=WAY)


@cache
def given(level: Level) -> Tree:
    """A message that is committed, by an owner that was killed."""
    fs = ready(EMPTY, level).open()
    space = opened(fs, level, goes_on=True)
    session = Session(space)
    session.start(PUT)
    session.enqueue("a", b"message")
    session.end(PUT)
    session.commit(PUT, Flag.ONEPHASE)
    follow(space, level, "one-phase")
    return fs.tree_after_kill()


def settle(space: Space, level: Level, how: str, told: Told) -> None:
    session = Session(space)
    ((lease, _),) = session.receive("a", lease_s=3600)
    told.received = True
    if how == "accept":
        session.start(X)
        session.enqueue("c", b"effect")
        session.accept("a", lease)
        session.end(X)
        session.prepare(X)
        told.prepared = True
        follow(space, level, "prepare")
        session.commit(X)
    elif how == "expire":
        assert timeouts.expire(space, time.monotonic() + 3601, float("inf")) == 1
    else:
        session.settle("a", lease, how, DETAILS.get(how))
    told.done = True
    follow(space, level, "rollback" if how in ("nack", "expire") else "commit")


def play(level: Level, how: str, crash_after: int | None) -> tuple[ForgetfulFileSystem, Told]:
    fs, told = given(level).open(crash_after), Told()
    try:
        space = opened(fs, level)
        settle(space, level, how, told)
        space.close()
    except (Crashed, ResourceFailed):
        if not fs.crashed:
            raise
    return fs, told


def judge(tree: Tree, level: Level, how: str, told: Told, *, killed: bool) -> str:
    """Where the message is in the end."""
    space = opened(tree.open(), level)
    in_doubt = [branch.xid for branch in space.branches.values()]
    assert in_doubt in ([], [X])
    for xid in in_doubt:
        Session(space).commit(xid)
    waiting, moved, effects = (list(Session(space).browse(queue)) for queue in "abc")
    assert len(waiting) + len(moved) <= 1
    assert not told.prepared or in_doubt or effects
    most = 1 if level.hardening.journal and killed else 2  # the block of a try may outlive its record
    assert all(one.tries <= most for one in waiting)
    if how == "reject":
        assert len(waiting) + len(moved) == 1
        assert [one.origin.detail for one in moved if one.origin] == ["no such customer"] * len(moved)
        assert moved or not told.done
        return "moved" if moved else "waits"
    if how in ("ack", "accept"):
        assert not moved
        assert waiting or told.received
        assert not waiting or not told.done
        assert len(effects) == (how == "accept" and not waiting)
        return "waits" if waiting else "gone"
    assert waiting
    entry = space.queues["a"].index.find(waiting[0].message_id)
    assert entry is not None
    is_put_off = (entry.not_before or 0) >= NOON_US + HOUR_US
    if how == "nack" and told.done:
        assert is_put_off
        assert not entry.tries or (level.hardening.journal and not killed)
    if how == "expire" and told.done:
        assert entry.tries >= 1
        assert entry.retry is not None
        assert entry.retry.reason in ("lease expired", tries.KILLED)
    return "put off" if is_put_off else f"tried {min(entry.tries, 1)}"


ENDS = {
    "ack": {"waits", "gone"},
    "accept": {"waits", "gone"},
    "reject": {"waits", "moved"},
    "nack": {"tried 0", "tried 1", "put off"},
    "expire": {"tried 0", "tried 1"},
}


@pytest.mark.crash
@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("level", [STRICT, LAGGING, JOURNAL, CHECKPOINTS], ids=str)
def test_it_is_there_once_or_handled_wherever_it_is_cut_off(level: Level, how: str) -> None:
    crash_after, ends = 0, set()
    while True:
        fs, told = play(level, how, crash_after)
        for tree in trees_of(fs, level, EXTREMES):
            ends.add(judge(tree, level, how, told, killed=False))
        ends.add(judge(fs.tree_after_kill(), level, how, told, killed=True))
        if not fs.crashed:
            break
        crash_after += 1
    assert told.done
    assert ends == ENDS[how]
