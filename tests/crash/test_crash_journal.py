"""A journal that is cut off at any call and torn in any way holds what was acknowledged, and is never damaged."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest

from support.forgetful import Crashed
from support.journal_story import Story, cut, judge_every_crash, judge_two_openings
from support.journals import found


@pytest.mark.parametrize("first", range(4))
def test_every_crash_of_a_writer_keeps_what_was_acknowledged(first: int) -> None:
    """Every fourth call: the others are for the other parameters."""
    judge_every_crash(first)


@pytest.mark.parametrize("seed", range(8))
def test_crashes_one_after_the_other(seed: int) -> None:
    """Each opening is cut off as well, at a random call, and so is what it writes."""
    dice = random.Random(seed)
    for _ in range(6):
        story = cut(24, dice.randrange(20, 130))
        tree = story.fs.tree_by_chance(dice)
        may_be = story.may_be()
        for life in range(1, 8):
            left = found(tree.open())
            assert left in may_be
            story = Story(tree.open(dice.randrange(30)), left, number=life * 10_000)
            with suppress(Crashed):
                story.play(6)
            tree, may_be = story.fs.tree_by_chance(dice), story.may_be()


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_the_power_goes_in_the_opening_behind_one_that_was_killed(first: int) -> None:
    judge_two_openings(60 + first)
