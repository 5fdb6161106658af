"""Recovery may be cut off at any call and run again, and what it has told is true after the next crash too.

With a journal, what is cut off is a replay as well. The trees of the first crash are the extremes, or a few of them
where there is a journal; so are those of the second, but with ``XAQUEUE_CRASH_FULL=1``. Without that, the first crash
comes before one call in so many, by turns (``crash_cases.sample``), of some of the stories; the second one before every
call of a recovery.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import count

import pytest

from support.crash_cases import EXTREMES, FULL, ONE_BRANCH, STORIES, by_turns, cases, jury, sample, trees_of
from support.crash_level import (
    CHECKPOINTS,
    CYCLING,
    FILLING,
    JOURNAL,
    LAGGING,
    MOVING,
    NONE,
    STRICT,
    SWITCHING,
    Level,
    follow,
    open_space,
)
from support.crash_story import EMPTY, End, crashes, play
from support.crash_ways import go_on, judge_cut_off, judge_later
from support.forgetful import Crashed, ForgetfulFileSystem
from xaqueue.errors import ResourceFailed
from xaqueue.features.session import Session
from xaqueue.xid import Xid

pytestmark = pytest.mark.usefixtures("quiet")

HANDFUL = [
    "first: one_phase",
    "first: two_phase",
    "put: decided_commit",
    "take: rollback",
    "take: two_phase",
    "put and take: prepared",
    "put and take: one_phase",
    "take: forgotten_rollback",
    "take at the edge: two_phase",
    "put one_phase, take two_phase",
]
JOURNALS = [LAGGING, JOURNAL, SWITCHING, MOVING, CHECKPOINTS, *([FILLING, CYCLING] if FULL else [])]
SOME = [name for name in ONE_BRANCH if name.startswith(("first in", "put and take:", "both at the edge:"))]
CASES = [(name, STRICT) for name in STORIES] if FULL else [(name, STRICT) for name in HANDFUL]
CASES += [(name, level) for level in JOURNALS for name in (STORIES if FULL else HANDFUL)]
WIDE_CASES = [(name, STRICT) for name in (STORIES if FULL else ONE_BRANCH)]
WIDE_CASES += [(name, level) for level in JOURNALS for name in (STORIES if FULL else SOME)]
WIDE_CASES = by_turns(WIDE_CASES, 2)


@pytest.mark.parametrize(("name", "level"), cases(CASES), ids=str)
def test_recovery_is_cut_off_by_a_power_loss_and_run_again(name: str, level: Level) -> None:
    sitting = jury(name, level)
    for fs, record in crashes(STORIES[name], level, sample(10, name, level)):
        for tree in trees_of(fs, level, EXTREMES, draw=2):
            if sitting.is_new(tree, record, "cut off"):
                judge_cut_off(sitting, tree.open(), record)


@pytest.mark.parametrize(("name", "level"), cases(WIDE_CASES), ids=str)
def test_the_power_goes_after_a_kill_while_nothing_is_synced_yet(name: str, level: Level) -> None:
    sitting = jury(name, level)
    for killed, record in crashes(STORIES[name], level, sample(10, name, level)):
        killed.survive_kill()
        (judge_cut_off if FULL or name in HANDFUL else judge_later)(sitting, killed, record)


@pytest.mark.parametrize(("verb", "end"), [("commit", End.ONE_PHASE), ("rollback", End.TWO_PHASE)])
@pytest.mark.parametrize(("name", "level"), cases(WIDE_CASES), ids=str)
def test_the_next_owner_goes_on_before_the_power_goes(name: str, level: Level, verb: str, end: End) -> None:
    sitting = jury(name, level)
    turn = 0 if verb == "commit" else 2
    for killed, record in crashes(STORIES[name], level, sample(12, name, level, turn)):
        killed.survive_kill()
        go_on(sitting, killed, record, verb, end)


@pytest.mark.parametrize("level", [STRICT, JOURNAL, MOVING], ids=str)
@pytest.mark.parametrize("verb", ["commit", "rollback"])
@pytest.mark.parametrize("name", [name for name in ONE_BRANCH if name.endswith(": prepared")])
def test_what_was_prepared_at_a_lower_level_is_committed_at_this_one(name: str, verb: str, level: Level) -> None:
    fs, record = play(STORIES[name], NONE)
    go_on(jury(name, level), fs, record, verb, End.ONE_PHASE, closed_well=True)


def commits(fs: ForgetfulFileSystem) -> None:
    """One of two messages, and another behind it."""
    space = open_space(fs, STRICT)
    for name, bodies in ((b"two", (b"1", b"2")), (b"one", (b"3",))):
        session, xid = Session(space), Xid(1, name, b"")
        session.start(xid)
        for body in bodies:
            session.enqueue("q", body)
        session.end(xid)
        session.prepare(xid)
        session.commit(xid)


@pytest.mark.parametrize("level", [LAGGING, JOURNAL], ids=str)
def test_what_a_lower_level_had_begun_to_commit_is_finished_by_a_journal(level: Level) -> None:
    """And a kill of the owner that has done so damages no journal."""
    for crash_after in count(1):
        fs = EMPTY.open(crash_after)
        with suppress(Crashed, ResourceFailed):
            commits(fs)
        left = fs.tree_after_kill().open()
        for _ in range(2):
            space = open_space(left, level)
            bodies = sorted(message.body for message in Session(space).browse("q"))
            assert bodies in ([], [b"1", b"2"], [b"1", b"2", b"3"])
            follow(space, level, "commit")
            space.log.end(OSError("killed"))
        if not fs.crashed:
            break
