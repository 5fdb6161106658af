"""A branch that was idle for too long is rolled back whole, wherever a crash cuts that off.

Before every call where all is synced at once, else before one in two, by turns, but with ``XAQUEUE_CRASH_FULL=1``.
"""

from __future__ import annotations

import pytest

from support.crash_cases import EXTREMES, FULL, GIVEN, KILL, TREES, WORK, act, trees_of
from support.crash_jury import Jury
from support.crash_level import CHECKPOINTS, JOURNAL, LAGGING, MOVING, STRICT, Level
from support.crash_story import End, Put, Sample, Story, Take, crashes

pytestmark = pytest.mark.usefixtures("quiet")

TAKE, PUT = Take("a", 100), Put("a", 1)
STORIES = {name: Story((act(End.EXPIRED, *work),), start) for name, (work, start) in WORK.items()}
STORIES |= {
    "take again": Story((act(End.EXPIRED, TAKE), act(End.ONE_PHASE, TAKE)), GIVEN),
    "take again, in two phases": Story((act(End.EXPIRED, TAKE, PUT), act(End.TWO_PHASE, TAKE, Put("a", 2))), GIVEN),
    "beside one in doubt": Story((act(End.PREPARED, TAKE), act(End.EXPIRED, Take("a", 101), PUT)), GIVEN),
    "twice": Story((act(End.EXPIRED, TAKE), act(End.EXPIRED, TAKE)), GIVEN),
}
LEVELS = [STRICT, LAGGING, JOURNAL, MOVING, CHECKPOINTS]


def calls(name: str, level: Level) -> Sample:
    every = 1 if FULL or level == STRICT else 2
    return Sample(every, (list(STORIES).index(name) + KILL.index(level)) % every)


@pytest.mark.parametrize("level", LEVELS, ids=str)
@pytest.mark.parametrize("name", STORIES)
def test_power_loss(name: str, level: Level) -> None:
    jury = Jury(STORIES[name], level)
    for fs, record in crashes(STORIES[name], level, calls(name, level)):
        for tree in trees_of(fs, level, TREES if level == STRICT else EXTREMES):
            jury.judge(tree, record)


@pytest.mark.parametrize("level", KILL, ids=str)
@pytest.mark.parametrize("name", STORIES)
def test_a_killed_process(name: str, level: Level) -> None:
    jury = Jury(STORIES[name], level)
    for fs, record in crashes(STORIES[name], level, calls(name, level)):
        jury.judge(fs.tree_after_kill(), record, tries_kept=True)
