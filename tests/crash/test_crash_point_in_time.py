"""A crash at any call of a space whose journal is kept: every moment that was reached before can be gone back to."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count

import pytest

from support.crash_cases import EXTREMES, FULL, trees_of
from support.crash_level import ANY_QUEUE, CYCLING, LAGGING, Level, open_space
from support.crash_story import EMPTY
from support.forgetful import Crashed, ForgetfulFileSystem, Tree
from xaqueue.core.engine.state import Space
from xaqueue.core.model import layout
from xaqueue.errors import ResourceFailed
from xaqueue.features.kinds import KINDS
from xaqueue.features.session import Session
from xaqueue.features.snapshots import restore
from xaqueue.features.snapshots.options import Snapshots
from xaqueue.features.snapshots.take import take_and_keep
from xaqueue.xa import Flag
from xaqueue.xid import Xid

pytestmark = [pytest.mark.crash, pytest.mark.usefixtures("quiet")]
KEEPS = replace(ANY_QUEUE, tables={"snapshots": Snapshots(keep=2, point_in_time=True)})
LARGE = replace(CYCLING, name="JOURNAL, small segments that are kept")
SMALL = replace(LAGGING, name="JOURNAL, one segment", left_bytes=None)
FORMAT_LINE = b"xaqueue 1 orders 11111111-1111-1111-1111-111111111111"
State = dict[str, list[bytes]]


def seen(space: Space) -> State:
    session = Session(space)
    return {queue: sorted(one.body for one in session.browse(queue)) for queue in ("a", "b")}


@dataclass
class History:
    """Of a space in several openings; a clock that goes on with every look."""

    level: Level
    fs: ForgetfulFileSystem
    now_us: int = 1_700_000_000_000_000
    epoch: int = 0
    steps: int = 0
    moments: list[tuple[int, State]] = field(default_factory=list)

    def clock(self) -> int:
        self.now_us += 1000
        return self.now_us

    def opened(self, fs: ForgetfulFileSystem) -> Space:
        self.epoch += 1
        return open_space(fs, self.level, definitions=KEEPS, now_us=self.clock, epoch=self.epoch)

    def step(self, space: Space) -> None:
        self.steps += 1
        session, xid = Session(space), Xid(1, b"%d" % self.steps, b"")
        session.start(xid)
        session.enqueue("ab"[self.steps % 2], b"%d " % self.steps + b"." * (700 if self.steps % 3 == 0 else 5))
        if self.steps % 3 == 0:
            session.dequeue("ba"[self.steps % 2])
        session.end(xid)
        if self.steps % 2:
            session.prepare(xid)
        session.commit(xid, Flag.NOFLAGS if self.steps % 2 else Flag.ONEPHASE)
        self.moments.append((self.clock(), seen(space)))
        if self.steps % 2:
            space.checkpoint()

    def work(self) -> None:
        """An opening that goes on, a snapshot in the middle, and another opening."""
        space = self.opened(self.fs)
        for _ in range(4):
            self.step(space)
        take_and_keep(space)
        self.step(space)
        space.close()
        space = self.opened(self.fs)
        for _ in range(3):
            self.step(space)


def begun(level: Level, crash_after: int | None) -> History:
    """With a snapshot, before any call counts."""
    history = History(level, EMPTY.open())
    history.fs.create(layout.FORMAT, [FORMAT_LINE])
    history.fs.create(layout.QUEUES, [b"[default]\n"])
    space = history.opened(history.fs)
    history.step(space)
    take_and_keep(space)
    space.close()
    history.fs.sync_all()
    history.fs = history.fs.tree_after_kill().open(crash_after)
    history.moments.clear()
    return history


def went_back(history: History, left: ForgetfulFileSystem, at_us: int) -> State:
    done = restore.restore(left, restore.Wanted(at_us=at_us), history.now_us, kinds=KINDS)
    assert done.at == at_us
    left.sync_all()
    space = history.opened(left)
    found = seen(space)
    space.close()
    return found


@pytest.mark.parametrize("level", [SMALL, LARGE], ids=str)
def test_every_moment_before_a_crash_is_there(level: Level) -> None:
    """Whether the space was opened behind the crash, or not."""
    checked = 0
    for crash_after in count(len(str(level)) % 7, 1 if FULL else 23):
        history = begun(level, crash_after)
        with suppress(Crashed, ResourceFailed):
            history.work()
        for number, tree in enumerate((history.fs.tree_after_kill(), *trees_of(history.fs, level, EXTREMES))):
            left = tree.open()
            if number % 2 == 0:
                history.opened(left).close()
            for at_us, state in history.moments[-1:] + history.moments[:-1:3]:
                assert went_back(history, left, at_us) == state
                checked += 1
        if not history.fs.crashed:
            break
    assert checked > 40


@pytest.mark.parametrize("level", [LARGE], ids=str)
def test_going_back_may_be_cut_off_at_any_call(level: Level) -> None:
    """The same command finishes it."""
    history = begun(level, None)
    history.work()
    tree: Tree = history.fs.tree_after_kill()
    at_us, state = history.moments[4]
    for crash_after in count(3, 1 if FULL else 29):
        fs = tree.open(crash_after)
        with suppress(Crashed):
            restore.restore(fs, restore.Wanted(at_us=at_us), history.now_us, kinds=KINDS)
        for left in (fs.tree_after_kill(), *trees_of(fs, level, EXTREMES)):
            assert went_back(history, left.open(), at_us) == state
        if not fs.crashed:
            return
