"""Snapshots: taken while others work they are the space at one moment; a restore that is cut off comes to its end."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest

from support.crash_cases import EXTREMES, FULL, trees_of
from support.crash_level import JOURNAL, LAGGING, NONE, STRICT, Level, open_space, ready
from support.crash_story import EMPTY
from support.forgetful import Crashed, ForgetfulFileSystem, Tree
from support.journal_of import journal_log
from xaqueue.core.engine.state import Space
from xaqueue.core.model import layout
from xaqueue.features.kinds import KINDS
from xaqueue.features.session import Session
from xaqueue.features.snapshots import restore, store
from xaqueue.features.snapshots.manifest import SNAPSHOTS
from xaqueue.features.snapshots.options import Snapshots
from xaqueue.features.snapshots.take import take, take_and_keep
from xaqueue.xa import Flag
from xaqueue.xid import Xid

pytestmark = [pytest.mark.crash, pytest.mark.usefixtures("quiet")]
LEVELS = [NONE, STRICT, LAGGING, JOURNAL]
EVERY = 4
NOW_US = 1_700_000_000_000_000
IN_DOUBT = Xid(7, b"in doubt", b"b")
FORMAT_LINE = "xaqueue 1 orders 11111111-1111-1111-1111-111111111111"


State = dict[str, list[bytes]]


class Work:
    """Steps of a session, each of which changes what the queues hold; and what they held behind each of them."""

    def __init__(self, space: Space) -> None:
        self.space = space
        self.steps = 0
        self.states = [self.seen()]

    def seen(self, space: Space | None = None) -> dict[str, list[bytes]]:
        session = Session(space or self.space)
        return {queue: [one.body for one in session.browse(queue)] for queue in ("a", "b")}

    def step(self) -> None:
        """Adds to one queue and takes from the other; now and then without the one or the other."""
        self.steps += 1
        session, xid = Session(self.space), Xid(1, b"%d" % self.steps, b"")
        session.start(xid)
        session.enqueue("ab"[self.steps % 2], b"%d" % self.steps)
        if self.steps % 3 == 0:
            session.dequeue("ba"[self.steps % 2])
        session.end(xid)
        if self.steps % 2:
            session.prepare(xid)
        session.commit(xid, Flag.NOFLAGS if self.steps % 2 else Flag.ONEPHASE)
        self.states.append(self.seen())


def prepared(space: Space) -> None:
    session = Session(space)
    session.start(IN_DOUBT)
    session.enqueue("b", b"in doubt")
    session.dequeue("a")
    session.end(IN_DOUBT)
    session.prepare(IN_DOUBT)


def made(level: Level, crash_after: int | None = None) -> tuple[ForgetfulFileSystem, Work]:
    """A space with some messages and a branch in doubt, whose calls are counted from here on."""
    fs = ready(EMPTY, level).open()
    fs.create(layout.FORMAT, [FORMAT_LINE.encode()])
    fs.create(layout.QUEUES, [b"[default]\n"])
    fs.sync_all()
    work = Work(open_space(fs, level, goes_on=True))
    for _ in range(4):
        work.step()
    prepared(work.space)
    work.states[:] = [work.seen()]
    fs.calls, fs.crash_after = 0, crash_after
    return fs, work


def snapshot_of(fs: ForgetfulFileSystem, number: int) -> Tree:
    """As a space of its own."""
    start, nodes = f"{SNAPSHOTS}/{number}/", fs.tree_after_kill().nodes
    return Tree({path.removeprefix(start): data for path, data in nodes.items() if path.startswith(start)})


@pytest.mark.parametrize("level", [LAGGING, JOURNAL], ids=str)
@pytest.mark.parametrize("settles", [False, True])
@pytest.mark.parametrize("turn", range(EVERY))
def test_it_is_the_space_at_one_moment_whatever_comes_in_between(level: Level, settles: bool, turn: int) -> None:
    """Before one call in so many another session's whole step runs, and perhaps the directories follow it."""
    fs, work = made(level)
    at_work, calls = False, turn

    def interrupt() -> None:
        nonlocal at_work, calls
        log = journal_log(work.space)
        calls += not at_work
        if not at_work and log is not None and calls % EVERY == 0:
            at_work = True
            work.step()
            if settles and not log._following.locked():
                work.space.settle()
            at_work = False

    fs.before_call = interrupt
    taken = take(work.space)
    fs.before_call = lambda: None
    assert work.steps > 8
    found = open_space(snapshot_of(fs, taken.number).open(), level)
    assert work.seen(found) in work.states
    assert Session(found).recover(9, Flag.STARTRSCAN) == [IN_DOUBT]
    assert list(store.damage(fs, f"{SNAPSHOTS}/{taken.number}")) == []
    again = open_space(fs.tree_after_kill().open(), level)
    assert work.seen(again) == work.states[-1]


@pytest.mark.parametrize("level", LEVELS, ids=str)
def test_what_is_taken_is_what_there_is(level: Level) -> None:
    fs, work = made(level)
    taken = take(work.space)
    assert taken.number == 1
    assert taken.messages == sum(map(len, work.states[0].values()))
    assert (taken.lsn > 0) is level.hardening.journal
    found = open_space(snapshot_of(fs, 1).open(), level)
    assert work.seen(found) == work.states[0]
    work.step()
    assert take(work.space).number == 2
    assert store.keep(fs, 1, 0) == [1]
    assert [one.number for one in store.listed(fs)] == [2]


def each_crash(
    begin: Callable[[int | None], ForgetfulFileSystem], every: int, level: Level
) -> list[tuple[ForgetfulFileSystem, bool]]:
    """What a crash at so many calls leaves, and the end; whether it came to its end."""
    found, crash_after = [], len(str(level)) % every
    while True:
        fs = begin(crash_after)
        found.append((fs, not fs.crashed))
        if not fs.crashed:
            return found
        crash_after += every


def restored(fs: ForgetfulFileSystem) -> restore.Done:
    return restore.restore(fs, restore.Wanted(), NOW_US, kinds=KINDS)


def to_restore(
    level: Level, crash_after: int | None = None, *, killed: bool = False
) -> tuple[ForgetfulFileSystem, list[State]]:
    """What was there at the snapshot, and what is there when it is put back. killed: the journal is ahead."""
    fs, work = made(level)
    take(work.space)
    for _ in range(3):
        work.step()
    if not killed:
        work.space.close()
        fs.sync_all()
    fs = fs.tree_after_kill().open(crash_after)
    return fs, work.states


@pytest.mark.parametrize(("level", "killed"), [(STRICT, False), (LAGGING, False), (LAGGING, True)], ids=str)
def test_a_restore_of_an_unknown_end_may_be_cut_off_at_any_call(level: Level, killed: bool) -> None:
    """Until it is done the space opens as it was, or not at all; the same command finishes it. Of an exact one, and of
    one that was closed just now, ``tests/sim/rules/restores.py`` says the same."""
    fs, states = to_restore(level, killed=killed)

    def begin(crash_after: int | None) -> ForgetfulFileSystem:
        fs, _ = to_restore(level, crash_after, killed=killed)
        with suppress(Crashed):
            restored(fs)
        return fs

    ends = set()
    for fs, ended in each_crash(begin, 1 if FULL else 13, level):
        for tree in (fs.tree_after_kill(), *trees_of(fs, level, EXTREMES)):
            left = tree.open()
            if left.exists(layout.FORMAT) and not ended:
                is_done = left.read(layout.FORMAT).decode() != FORMAT_LINE
                ends.add("new" if is_done else "old")
            elif not ended:
                ends.add("neither")
            if not ended:
                restored(left)
            assert left.read(layout.FORMAT).decode().split()[:3] == FORMAT_LINE.split()[:3]
            assert left.read(layout.FORMAT).decode().strip() != FORMAT_LINE
            space = open_space(left, level)
            found = Work(space).seen()
            newer = {queue: [body for body in states[-1][queue] if body not in states[0][queue]] for queue in states[0]}
            assert found == {queue: bodies + newer[queue] for queue, bodies in states[0].items()}
            marks = {one.body: one.possible_duplicate for queue in "ab" for one in Session(space).browse(queue)}
            old = {body for bodies in states[0].values() for body in bodies}
            assert marks == {body: body in old for bodies in found.values() for body in bodies}
            assert not space.branches[IN_DOUBT].is_for_operator
            assert Session(space).recover(9, Flag.STARTRSCAN) == [IN_DOUBT]
    assert ends >= {"old", "neither"}


def test_one_that_is_copied_is_kept_by_nobody_and_removed_by_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a day: then whoever took it is gone."""
    fs, work = made(LEVELS[0])
    monkeypatch.setattr(
        work.space, "definitions", replace(work.space.definitions, tables={"snapshots": Snapshots(keep=2)})
    )
    held = take_and_keep(work.space, prunes=False).number
    for _ in range(4):
        take_and_keep(work.space)
    assert [one.number for one in store.listed(fs)] == [held, 4, 5]
    later_ns = work.space.now_ns() + (store.HELD_US + 1_000_000) * 1000
    monkeypatch.setattr(work.space, "now_ns", lambda: later_ns)
    assert take_and_keep(work.space, prunes=False).number == 6
    assert [one.number for one in store.listed(fs)] == [4, 5, 6]
