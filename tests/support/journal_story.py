"""A journal's writer at work, and what must be left of it by a crash at any call."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count

from support.forgetful import Crashed, ForgetfulFileSystem, Tree
from support.journals import begun_anew, entry, found, journal_of, numbers, started, write
from xaqueue.core.storage.journal import Journal

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


def judge_every_crash(first: int, step: int = 4) -> None:
    """A writer is cut off at one call in so many; the next one finds what was acknowledged, and goes on."""
    for crash_after in count(first, step):
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


def judge_two_openings(crash_after: int) -> None:
    """Behind a writer that was cut off two openings begin a new journal. The first one is killed: what it has done is
    seen, and no disk has it. In the second one the power goes.
    """
    story = cut(24, crash_after)
    for killed_at in count(1):
        killed = story.fs.copy()
        killed.survive_kill(killed.calls + killed_at)
        with suppress(Crashed):
            begun_anew(killed)
        if not killed.crashed:
            assert killed_at > 8
            return
        for cut_at in count(1):
            again = killed.copy()
            again.survive_kill(again.calls + cut_at)
            with suppress(Crashed):
                begun_anew(again)
            for tree in again.trees_after_crash(limit=12, seed=cut_at):
                assert found(tree.open()) in story.may_be()
            if not again.crashed:
                break
