"""A commit that is shown before it is recorded is undone by a crash with all that followed from it, or with none of it:
no message is lost or doubled, nothing is done without what it builds on, and what is hardened behind it has it, too.
"""

from __future__ import annotations

import itertools

import pytest

from support.crash_cases import JOURNALS, LATE, POWER_LOSS, WHOLE, by_turns, cases, jury, sample, trees_of
from support.crash_level import STRICT, Level
from support.crash_story import Became, Story, crashes, play

pytestmark = pytest.mark.usefixtures("quiet")
LEVELS = (STRICT, *JOURNALS)
EVERY = 10
"""One call in so many, unless in full size."""


@pytest.mark.parametrize(("name", "level"), cases(by_turns(itertools.product(LATE, LEVELS), 2)))
def test_every_crash_keeps_what_was_hardened_and_undoes_the_rest_as_a_whole(name: str, level: Level) -> None:
    judge(LATE[name], name, level)


@pytest.mark.parametrize(("name", "level"), cases(by_turns(itertools.product(WHOLE, JOURNALS), 2)))
def test_a_whole_transaction_behind_it_is_as_any_other(name: str, level: Level) -> None:
    judge(WHOLE[name], name, level)


def judge(story: Story, name: str, level: Level) -> None:
    held = jury(name, level)
    for fs, record in crashes(story, level, sample(EVERY, name, level)):
        held.judge(fs.tree_after_kill(), record, tries_kept=True)
        if level in POWER_LOSS:
            for tree in trees_of(fs, level):
                held.judge(tree, record)


def test_it_rides_with_the_next_round() -> None:
    """The story itself: without a sync of its own a late commit is not durable, and a clean close hardens it."""
    level = JOURNALS[1]
    for name, last in (("late: put", {Became.IN_DOUBT, Became.DONE}), ("late: put, hardened", {Became.DONE})):
        _, record = play(LATE[name], level)
        assert record.may_be == [last]
        story = list(crashes(LATE[name], level))
        fs, record = story[-2]  # before the last call of the close
        found = jury(name, level)
        found.judge(fs.tree_after_kill(), record)
