"""A journal that is cut off at any call and torn in any way holds what was acknowledged, and is never damaged."""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count

import pytest
from journals import entry, found, journal_of, numbers, started, write

from xaqueue.storage.journal import Journal
from xaqueue.torture.forgetful import Crashed, ForgetfulFileSystem, Tree

EMPTY = Tree({"journal": None})


@dataclass
class Story:
    """Rounds, checkpoints and what is recycled; ``acknowledged`` are the records that no checkpoint covers."""

    fs: ForgetfulFileSystem
    acknowledged: list[int] = field(default_factory=list)
    on_their_way: list[int] = field(default_factory=list)
    covered: list[int] = field(default_factory=list)
    """By the checkpoint that is on its way."""
    number: int = 0

    def play(self, rounds: int) -> None:
        journal = started(self.fs)
        for which in range(rounds):
            self.round(journal, 1 + which % 3, (700, 9000, 100)[which % 3])
            if which % 4 == 3:
                self.checkpoint(journal)

    def round(self, journal: Journal, many: int, size: int) -> None:
        self.on_their_way = [self.number + each for each in range(1, many + 1)]
        self.number += many
        left = [entry(number, size) for number in self.on_their_way]
        while left:
            done = journal.write(left)
            left = left[done:]
            self.acknowledged += self.on_their_way[:done]
            self.on_their_way = self.on_their_way[done:]

    def checkpoint(self, journal: Journal) -> None:
        """Of everything but the last record."""
        self.covered = self.acknowledged[:-1]
        last = [record for record in journal_of(self.fs).replay if numbers([record]) == self.acknowledged[-1:]]
        journal.write_checkpoint(last[0].lsn)
        self.acknowledged, self.covered = self.acknowledged[-1:], []
        journal.recycle()

    def may_be(self) -> list[list[int]]:
        """What a replay may find."""
        left = [self.acknowledged + self.on_their_way[:some] for some in range(len(self.on_their_way) + 1)]
        return left + ([self.acknowledged[len(self.covered) :]] if self.covered else [])


def cut(rounds: int, crash_after: int) -> Story:
    story = Story(EMPTY.open(crash_after))
    with suppress(Crashed):
        story.play(rounds)
    return story


@pytest.mark.parametrize("first", range(4))
def test_every_crash_of_a_writer_keeps_what_was_acknowledged(first: int) -> None:
    """Every fourth call: the others are for the other parameters."""
    for crash_after in count(first, 4):
        story = cut(24, crash_after)
        for tree in (story.fs.tree_after_kill(), *story.fs.trees_after_crash(limit=24, seed=crash_after)):
            after = tree.open()
            left = found(after)
            assert left in story.may_be()
            journal = started(after)
            assert found(after) == left
            write(journal, entry(1000), entry(1001, 9000))
            assert found(after) == [*left, 1000, 1001]
        if not story.fs.crashed:
            assert crash_after > 80
            return


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
