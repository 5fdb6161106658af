"""Recovery may be cut off at any call and run again, and what it has told is true after the next crash too.

With a journal, what is cut off is a replay as well. The trees of the first crash are the extremes, or a few of them
where there is a journal; so are those of the second, but with ``XAQUEUE_CRASH_FULL=1``. Without that, the first crash
comes before one call in so many, by turns (``crash_cases.sample``); the second one before every call of a recovery.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from crash_cases import EXTREMES, FULL, ONE_BRANCH, STORIES, TREES, sample, trees_of
from crash_jury import Jury
from crash_level import (
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
    open_space,
    openings,
)
from crash_story import Act, Became, End, Put, Record, Take, call, crashes, look, perform, play, shown, xid_of

from xaqueue.space.engine.session import Session
from xaqueue.space.engine.state import Space
from xaqueue.torture.forgetful import ForgetfulFileSystem

pytestmark = [pytest.mark.crash, pytest.mark.usefixtures("quiet")]

NESTED = TREES if FULL else EXTREMES
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


def judge_later(jury: Jury, fs: ForgetfulFileSystem, record: Record) -> None:
    """Opens what is left, and right after that the power goes."""
    _judge_opening(jury, fs, open_space(fs, jury.level), record)


def judge_cut_off(jury: Jury, fs: ForgetfulFileSystem, record: Record) -> None:
    """Opens what is left, and the power goes at any call of that, or right after it."""
    for cut, space in openings(fs, jury.level):
        _judge_opening(jury, cut, space, record)


def _judge_opening(jury: Jury, fs: ForgetfulFileSystem, space: Space | None, record: Record) -> None:
    """space: None where the opening did not come to its end."""
    promised = replace(record, openings=record.openings + 1)
    if space is not None:
        promised = jury.pinned(space, promised)
    for tree in trees_of(fs, jury.level, NESTED, draw=2):
        jury.judge(tree, promised)


@pytest.mark.parametrize(("name", "level"), CASES, ids=str)
def test_recovery_is_cut_off_by_a_power_loss_and_run_again(name: str, level: Level) -> None:
    jury, known = Jury(STORIES[name], level), set()
    for fs, record in crashes(STORIES[name], level, sample(3, name, level)):
        for tree in trees_of(fs, level, EXTREMES, draw=2):
            key = tree.key(), record.key()
            if key not in known:
                known.add(key)
                judge_cut_off(jury, tree.open(), record)


@pytest.mark.parametrize(("name", "level"), WIDE_CASES, ids=str)
def test_the_power_goes_after_a_kill_while_nothing_is_synced_yet(name: str, level: Level) -> None:
    jury = Jury(STORIES[name], level)
    for killed, record in crashes(STORIES[name], level, sample(3, name, level)):
        killed.survive_kill()
        (judge_cut_off if FULL or name in HANDFUL else judge_later)(jury, killed, record)


def go_on(
    jury: Jury, fs: ForgetfulFileSystem, record: Record, verb: str, end: End, *, closed_well: bool = False
) -> None:
    """The next owner decides what is in doubt, takes all messages, puts new ones; after each the power may go."""
    space = open_space(fs, jury.level, closed_well=closed_well)
    record = jury.pinned(space, record)
    session = Session(space)
    for xid, became in look(space, session).listed.items():
        if became is Became.IN_DOUBT:
            call(session, verb, xid)
    decided = {Became.DONE if verb == "commit" else Became.NOTHING}
    record.may_be = [decided if outcomes == {Became.IN_DOUBT} else outcomes for outcomes in record.may_be]
    takes = Act(end, tuple(Take(*place) for place in look(space, session).contents))
    puts = Act(end, tuple(Put(queue, 9) for queue in jury.story.queues))
    acts = jury.story.acts[: len(record.may_be)]
    for act in (None, takes, puts):
        if act is not None and act.work:
            perform(space, record, xid_of(len(acts)), act, jury.level)
            acts = (*acts, act)
            left = look(space, session).contents
            record.shown = {place: seq for place, seq in shown(fs.tree_after_kill()).items() if place in left}
        longer = Jury(replace(jury.story, acts=acts), jury.level)
        for tree in trees_of(fs, jury.level, NESTED):
            longer.judge(tree, record)


@pytest.mark.parametrize(("verb", "end"), [("commit", End.ONE_PHASE), ("rollback", End.TWO_PHASE)])
@pytest.mark.parametrize(("name", "level"), WIDE_CASES, ids=str)
def test_the_next_owner_goes_on_before_the_power_goes(name: str, level: Level, verb: str, end: End) -> None:
    jury = Jury(STORIES[name], level)
    turn = 0 if verb == "commit" else 2
    for killed, record in crashes(STORIES[name], level, sample(4, name, level, turn)):
        killed.survive_kill()
        go_on(jury, killed, record, verb, end)


@pytest.mark.parametrize("level", [STRICT, JOURNAL, MOVING], ids=str)
@pytest.mark.parametrize("verb", ["commit", "rollback"])
@pytest.mark.parametrize("name", [name for name in ONE_BRANCH if name.endswith(": prepared")])
def test_what_was_prepared_at_a_lower_level_is_committed_at_this_one(name: str, verb: str, level: Level) -> None:
    fs, record = play(STORIES[name], NONE)
    go_on(Jury(STORIES[name], level), fs, record, verb, End.ONE_PHASE, closed_well=True)
