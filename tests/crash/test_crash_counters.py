"""The file of the counters, dead at any call: the old one or the new one, and nothing is counted that is not so."""

from __future__ import annotations

import pytest

from support.crash_cases import EXTREMES, trees_of
from support.crash_level import JOURNAL, LAGGING, NONE, STRICT, Level, open_space, ready
from support.crash_story import EMPTY
from support.forgetful import Crashed, ForgetfulFileSystem, Tree
from xaqueue.core.engine.state import Space
from xaqueue.errors import ResourceFailed
from xaqueue.features.counters import counters
from xaqueue.features.counters import counters as counter_files
from xaqueue.features.counters.values import Counters
from xaqueue.features.session import Session
from xaqueue.xa import Flag
from xaqueue.xid import Xid

FIRST, SECOND = Counters(enqueued=1), Counters(enqueued=2, dequeued=1)
HALVES = Counters(enqueued=1, dequeued=1), Counters(enqueued=2)
"""A commit was cut off between its two messages: what the next owner does of it is counted, and the other is not."""


def add(space: Space, name: bytes, *, takes: bool = False) -> None:
    session, xid = Session(space), Xid(1, name, b"")
    session.start(xid)
    if takes:
        assert session.dequeue("a") is not None
    session.enqueue("a", name)
    session.end(xid)
    session.prepare(xid)
    session.commit(xid, Flag.LATE)


def play(level: Level, crash_after: int | None = None) -> tuple[ForgetfulFileSystem, int]:
    """Two owners, each of which works, makes a checkpoint and closes. How many of these files were whole and synced."""
    fs, written = ready(EMPTY, level).open(crash_after), 0
    try:
        for takes in (False, True):
            space = open_space(fs, level, goes_on=not takes, closed_well=takes, epoch=1 + takes)
            add(space, b"%d" % takes, takes=takes)
            space.checkpoint()
            written += not takes
            assert space.close() or not level.hardening.journal
            counter_files.write(space, closed=True)
            written += takes
    except (Crashed, ResourceFailed):
        if not fs.crashed:
            raise
    return fs, written


def judge(tree: Tree, level: Level, written: int) -> Counters:
    """What the next owner goes on from: no less than what was written, and no more than what was done."""
    record = counters.read(tree.open())
    space = open_space(tree.open(), level, epoch=3)
    found, there = counters.counters_of(space.queue("a")), [message.body for message in Session(space).browse("a")]
    assert found in (Counters(), FIRST, SECOND) or (found in HALVES and not level.hardening.journal)
    if level is not NONE:
        assert written < 1 or found != Counters()
        assert written < 2 or found == SECOND
        assert found != FIRST or there, "what is counted is not undone"
        assert found != SECOND or there == [b"1"]
    is_told = record is not None and (record[0].epoch, record[0].closed) != (2, True)
    assert counter_files.file_of(space).counting.crashes == is_told
    return found


@pytest.mark.crash
@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("level", [NONE, STRICT, LAGGING, JOURNAL], ids=str)
def test_the_old_or_the_new_one_is_there(level: Level, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counters, "EVERY_S", 0.0)
    whole, _ = play(level)
    ends: set[int] = set()
    for crash_after in range(whole.calls + 1):
        fs, written = play(level, crash_after)
        power = trees_of(fs, level, EXTREMES) if level is not NONE else ()
        for tree in (*power, fs.tree_after_kill()):
            ends.add(judge(tree, level, written).enqueued)
    assert ends == {0, 1, 2}
