"""A crash at every call of every step of an owner that is one of a pair, which changes the directory by renames alone.

``XAQUEUE_CRASH_FULL=1``: of every story; else of those of one branch, one call in so many.
"""

from __future__ import annotations

import pytest

from support.crash_cases import EXTREMES, FULL, ONE_BRANCH, STORIES, TREES, cases, jury, trees_of
from support.crash_level import PAIRED, Level
from support.crash_story import Sample, crashes

pytestmark = pytest.mark.usefixtures("quiet")

EVERY = 1 if FULL else 12
NAMES = list(STORIES if FULL else ONE_BRANCH)[:: 1 if FULL else 4]


@pytest.mark.parametrize(("name", "level"), cases([(name, PAIRED) for name in NAMES]), ids=str)
def test_whatever_is_left_of_one_of_a_pair(name: str, level: Level) -> None:
    sitting = jury(name, level)
    for fs, record in crashes(STORIES[name], level, Sample(EVERY, NAMES.index(name) % EVERY)):
        sitting.judge(fs.tree_after_kill(), record, tries_kept=True)
        for tree in trees_of(fs, level, TREES if FULL else EXTREMES):
            sitting.judge(tree, record, tries_kept=False)
