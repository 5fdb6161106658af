"""Whatever another session does in the middle of a flush, a checkpoint, a close or a clearing, nothing is lost by it.

``XAQUEUE_CRASH_FULL=1``: at every call of the turn, in every scene, at every level; else a few, always the same.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from crash_cases import FULL
from crash_jury import Jury
from crash_level import CYCLING, FILLING, LAGGING, MOVING, NONE, STRICT, Level
from crash_story import Act, End, Put, Take
from interleaving import Play, Scene

from xaqueue.torture.forgetful import ForgetfulFileSystem, Tree

pytestmark = [pytest.mark.crash, pytest.mark.usefixtures("quiet")]

DRAWN = 12 if FULL else 1
"""Trees of each power loss that are drawn, beside the barest and the fullest."""
PLAYS = 6
"""Of so many scenes of a turn at a level one call is looked at, unless in full size."""
CALLS = 16
"""It is one of so many."""

BEFORE = (
    Act(End.PREPARED, (Put("a", 11),)),
    Act(End.ONE_PHASE, (Put("b", 12),)),
    Act(End.TWO_PHASE, (Put("a", 13), Put("b", 14))),
)
"""What waits in memory when the turn begins, in front of the branch whose step comes in the middle of it."""
WORKS: dict[str, tuple[Put | Take, ...]] = {
    "put": (Put("a", 1),),
    "take": (Take("a", 100),),
    "take what waits": (Take("b", 12),),
    "several": (Put("a", 1), Take("b", 12), Put("c", 2), Take("a", 101)),
}
JOURNALS = (LAGGING, MOVING, CYCLING, FILLING)
TURNS = {"flush": JOURNALS, "checkpoint": JOURNALS, "close": (*JOURNALS, STRICT), "clear": (*JOURNALS, STRICT, NONE)}


GROUPS = [(turn, within, level) for turn, levels in TURNS.items() for within in (True, False) for level in levels]


def scenes(turn: str, within: bool) -> Iterator[Scene]:
    """``within``: the step comes in the middle of the turn, and else the turn in the middle of the step."""
    for archive in (False, True) if turn == "clear" else (False,):
        for work in WORKS.values():
            for end in End:
                yield Scene(BEFORE, Act(end, work), turn, within, archive)


def trees(fs: ForgetfulFileSystem) -> Iterator[Tree]:
    """The barest and the fullest that a power loss may leave now, and some between them."""
    yield from (tree for _, tree in zip(range(2), fs.trees_after_crash(0), strict=False))
    dice = random.Random(fs.calls)
    for _ in range(DRAWN):
        yield fs.tree_by_chance(dice)


def play(scene: Scene, level: Level, at: int, jury: Jury) -> bool:
    """Whether the turn has so many calls; AssertionError unless every promise is kept whenever a crash comes."""
    played = Play(scene, level, at, trees)
    more = played.run()
    for moment in played.moments:
        jury.judge(moment.killed, moment.record, tries_kept=True)
        if level is not NONE:
            for tree in moment.cut:
                jury.judge(tree, moment.record)
    return more


def play_at_every_call(scene: Scene, level: Level) -> None:
    jury, at = Jury(scene.story, level), 0
    while play(scene, level, at, jury):
        at += 1


@pytest.mark.parametrize(("turn", "within", "level"), GROUPS, ids=str)
def test_nothing_is_lost(turn: str, within: bool, level: Level) -> None:
    every = list(scenes(turn, within))
    if FULL:
        for scene in every:
            play_at_every_call(scene, level)
        return
    dice = random.Random(f"{turn} {within} {level}")
    for scene in dice.sample(every, PLAYS):
        play(scene, level, dice.randrange(CALLS), Jury(scene.story, level))


@pytest.mark.parametrize("turn", ["flush", "checkpoint"])
def test_a_file_that_is_renamed_in_memory_meanwhile_is_flushed(turn: str) -> None:
    """A commit in the middle of a checkpoint: its record has the name only, and the content is below the checkpoint."""
    play_at_every_call(Scene(BEFORE, Act(End.TWO_PHASE, WORKS["put"]), turn), LAGGING)
