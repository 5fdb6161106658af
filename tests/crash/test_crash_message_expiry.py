"""Files of expired messages go in the background, wherever a crash cuts that off."""

from __future__ import annotations

import pytest

from support.crash_cases import EXTREMES, trees_of
from support.crash_level import CHECKPOINTS, JOURNAL, LAGGING, NOON_US, STRICT, Level, follow, open_space, ready
from support.crash_story import EMPTY, body_of, message_id
from support.forgetful import Crashed, ForgetfulFileSystem, Tree
from xaqueue.core.engine.state import Space
from xaqueue.core.model import layout
from xaqueue.errors import ResourceFailed
from xaqueue.features.session import Session
from xaqueue.features.streams import cleanup
from xaqueue.xa import Flag
from xaqueue.xid import Xid


def commit_three(session: Session) -> None:
    xid = Xid(1, b"three", b"")
    session.start(xid)
    for message in (1, 2, 3):
        expires_at = None if message == 3 else NOON_US + 10
        session.enqueue("a", body_of(message), message_id=message_id(message), expires_at=expires_at)
    session.end(xid)
    session.commit(xid, Flag.ONEPHASE)


def play(level: Level, crash_after: int | None = None) -> tuple[ForgetfulFileSystem, bool]:
    """Whether the commit was acknowledged."""
    fs, committed = ready(EMPTY, level).open(crash_after), False
    try:
        space = open_space(fs, level, goes_on=True)
        commit_three(Session(space))
        committed = True
        follow(space, level, "one-phase")
        space.now_ns = lambda: (NOON_US + 10) * 1000
        cleanup.expire(space)
        follow(space, level, "expire")
        space.close()
    except (Crashed, ResourceFailed):
        if not fs.crashed:
            raise
    return fs, committed


def judge(tree: Tree, level: Level, committed: bool) -> None:
    fs = tree.open()
    space = open_space(fs, level)
    space.now_ns = lambda: (NOON_US + 10) * 1000
    session, xid = Session(space), Xid(1, b"look", b"")
    session.start(xid)
    found = []
    while (message := session.dequeue("a")) is not None:
        found.append(message.body)
    session.end(xid)
    session.rollback(xid)
    assert found == [body_of(3)] or (found == [] and not committed)
    assert cleanup.expire(space)
    space.close()
    named = [path.rpartition(".")[2] for path in fs.tree_after_kill().nodes if layout.parse_message_path(path)]
    assert named == [message_id(3).hex()] * len(found)


@pytest.mark.crash
@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("level", [STRICT, LAGGING, JOURNAL, CHECKPOINTS], ids=str)
def test_a_crash_brings_back_none_that_is_given_out(level: Level) -> None:
    crash_after = 0
    while True:
        fs, committed = play(level, crash_after)
        for tree in trees_of(fs, level, EXTREMES):
            judge(tree, level, committed)
        judge(fs.tree_after_kill(), level, committed)
        if not fs.crashed:
            break
        crash_after += 1
    assert committed


def commit_one(space: Space, name: bytes, body: bytes, id_of: bytes, expires_at: int | None = None) -> None:
    session, xid = Session(space), Xid(1, name, b"")
    session.start(xid)
    session.enqueue("a", body, message_id=id_of * 16, expires_at=expires_at)
    session.end(xid)
    session.commit(xid, Flag.ONEPHASE)


@pytest.mark.parametrize("level", [STRICT, LAGGING, JOURNAL, CHECKPOINTS], ids=str)
def test_an_id_that_is_used_again_is_that_of_the_later_message(level: Level) -> None:
    """Which stands in another range, whose directory is synced by itself: after a kill numbers go on there."""
    fs = ready(EMPTY, level).open()
    before = open_space(fs, level)
    commit_one(before, b"1", b"old", b"i", NOON_US + 10)
    commit_one(before, b"2", b"other", b"o")
    before.log.end(OSError("killed"))
    space = open_space(fs, level)
    space.now_ns = lambda: (NOON_US + 10) * 1000
    cleanup.expire(space)
    follow(space, level, "expire")
    commit_one(space, b"3", b"new", b"i")
    follow(space, level, "one-phase")
    for tree in fs.trees_after_crash(256):
        found = open_space(tree.open(), level)
        assert [message.body for message in Session(found).browse("a")] == [b"other", b"new"]
