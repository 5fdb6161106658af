"""Whatever another session does in the middle of a turn of the follower, a checkpoint, a close or a clearing, it loses
nothing.

``XAQUEUE_CRASH_FULL=1``: at every call of the turn, in every scene, at every level; else a few, always the same.
"""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import pytest

from support import batch_story
from support.crash_cases import FULL
from support.crash_jury import Jury
from support.crash_level import CYCLING, FILLING, LAGGING, MOVING, NONE, STRICT, Level, ready
from support.crash_story import Act, End, Put, Record, Take
from support.forgetful import ForgetfulFileSystem, Tree
from support.interleaving import BatchPlay, BatchScene, Interrupted, Play, Promises, Scene, StreamPlay, StreamScene
from support.stream_story import BEFORE as BEFORE_ALL
from support.stream_story import FOUR, NEVER_KEPT, ONE, THREE, TWO, Acts, Promised
from support.stream_story import judge as judge_stream

pytestmark = pytest.mark.usefixtures("quiet")

DRAWN = 12 if FULL else 1
"""Trees of each power loss that are drawn, beside the barest and the fullest."""
PLAYS = 2
"""Of so many scenes of a turn at a level one call is looked at, unless in full size."""

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
EVERYWHERE = (*JOURNALS, STRICT, NONE)
TURNS = {"follow": JOURNALS, "checkpoint": JOURNALS, "close": (*JOURNALS, STRICT), "clear": EVERYWHERE}
TURNS["expire"] = EVERYWHERE
STREAM_STEPS: dict[str, tuple[Acts, int]] = {
    "reserve": ([("reserve", (FOUR,))], NEVER_KEPT),
    "consume": ([("reserve", (FOUR,)), ("consume", (ONE,)), ("consume", (THREE,))], NEVER_KEPT),
    "archive": ([("put", (4,)), ("reserve", (FOUR,)), ("consume", (ONE,)), ("consume", (FOUR, True))], ONE),
    "put": ([("reserve", (THREE,)), ("consume", (THREE,)), ("put", (5,))], NEVER_KEPT),
    "release": ([("reserve", (THREE,)), ("consume", (TWO,)), ("release", ())], NEVER_KEPT),
    "take": ([("reserve", (THREE,)), ("consume", (TWO, True)), ("release", ()), ("take", ())], BEFORE_ALL),
}
"""What a stream, or those beside it, did before; the last is the step."""


GROUPS = [(turn, within, level) for turn, levels in TURNS.items() for within in (True, False) for level in levels]


def scenes(turn: str, within: bool) -> Iterator[Scene]:
    """``within``: the step comes in the middle of the turn, and else the turn in the middle of the step."""
    if turn not in ("clear", "expire"):
        yield Scene(turn, within, BEFORE, Act(End.PREPARED, WORKS["put"]), clears_away=True)
    for archive in (False, True) if turn == "clear" else (False,):
        for work in WORKS.values():
            for end in End:
                yield Scene(turn, within, BEFORE, Act(end, work), archive)


def takes(work: Put | Take) -> bool:
    return isinstance(work, Take)


def trees(fs: ForgetfulFileSystem) -> Iterator[Tree]:
    """The barest and the fullest that a power loss may leave now, and some between them."""
    yield from (tree for _, tree in zip(range(2), fs.trees_after_crash(0), strict=False))
    dice = random.Random(fs.calls)
    for _ in range(DRAWN):
        yield fs.tree_by_chance(dice)


def play(played: Interrupted[Promises], judge: Callable[[Tree, Promises, bool], None]) -> bool:
    """Whether the turn has so many calls; AssertionError unless every promise is kept whenever a crash comes."""
    more = played.run()
    for moment in played.moments:
        judge(moment.killed, moment.promised, True)
        if played.level.flags != NONE.flags:
            for tree in moment.cut:
                judge(tree, moment.promised, False)
    return more


def play_scene(scene: Scene, level: Level, calls: Iterable[int]) -> None:
    jury = Jury(scene.story, level)

    def judge(tree: Tree, record: Record, killed: bool) -> None:
        jury.judge(tree, record, tries_kept=killed)

    for at in calls:
        if not play(Play(scene, level, at, trees), judge):
            return


def play_stream(scene: StreamScene, level: Level, calls: Iterable[int]) -> None:
    known = set[object]()

    def judge(tree: Tree, promised: Promised, _: bool) -> None:
        key = tree.key(), repr(promised)
        if key not in known:
            known.add(key)
            judge_stream(tree, promised, level)

    for at in calls:
        if not play(StreamPlay(scene, level, at, trees), judge):
            return


def one_call(uninterrupted: Interrupted[Promises], dice: random.Random) -> list[int]:
    """By chance, of those that whoever is interrupted makes; none where it makes none."""
    ready(uninterrupted.start(), uninterrupted.level)  # which is made but once
    uninterrupted.run()
    return [dice.randrange(uninterrupted.calls)] if uninterrupted.calls else []


KEPT = [(turn, within, replace(level, name=f"{level}, kept", keeps=True)) for turn, within, level in GROUPS]
"""Queues with an archive, in which all that is taken is."""


@pytest.mark.parametrize(("turn", "within", "level"), [*GROUPS, *KEPT], ids=str)
def test_nothing_is_lost(turn: str, within: bool, level: Level) -> None:
    every = [scene for scene in scenes(turn, within) if not level.keeps or any(map(takes, scene.act.work))]
    if FULL:
        for scene in every:
            play_scene(scene, level, itertools.count())
        return
    dice = random.Random(f"{turn} {within} {level}")
    for scene in dice.sample(every, PLAYS):
        play_scene(scene, level, one_call(Play(scene, level, sys.maxsize, trees), dice))


@pytest.mark.parametrize(("turn", "within", "level"), [one for one in GROUPS if one[2] in JOURNALS], ids=str)
def test_nothing_is_lost_of_a_whole_transaction_behind_a_late_commit(turn: str, within: bool, level: Level) -> None:
    before = *BEFORE, Act(End.LATE, (Put("a", 16),), whole=True)
    for end in (End.PREPARED, End.TWO_PHASE, End.ONE_PHASE, End.LATE):
        scene = Scene(turn, within, before, Act(end, (Put("a", 2), Put("b", 4)), whole=True))
        dice = random.Random(f"{turn} {within} {level} {end}")
        calls = itertools.count() if FULL else one_call(Play(scene, level, sys.maxsize, trees), dice)
        play_scene(scene, level, calls)


EVERY = 1 if FULL else 9
"""Of so many steps of a stream one is looked at in each group, by turns."""
STREAM_CASES = [(name, *group) for name, group in itertools.product(STREAM_STEPS, GROUPS)]


@pytest.mark.parametrize(("name", "turn", "within", "level"), STREAM_CASES[::EVERY], ids=str)
def test_nothing_that_a_stream_consumed_comes_back(name: str, turn: str, within: bool, level: Level) -> None:
    acts, kept_above = STREAM_STEPS[name]
    scene = StreamScene(turn, within, acts, kept_above)
    dice = random.Random(f"{name} {turn} {within} {level}")
    calls = itertools.count() if FULL else one_call(StreamPlay(scene, level, sys.maxsize, trees), dice)
    play_stream(scene, level, calls)


@pytest.mark.parametrize("level", EVERYWHERE, ids=str)
def test_a_message_beside_those_that_go_to_the_archive_takes_none_of_them_along(level: Level) -> None:
    """Its round syncs the range that they leave."""
    acts: Acts = [("put", (4,)), ("reserve", (FOUR,)), ("consume", (FOUR, True)), ("put", (5,))]
    play_stream(StreamScene("clear", True, acts, BEFORE_ALL), level, itertools.count())


EVERY_BATCH = 1 if FULL else 9
BATCH_CASES = [(undo, *group) for undo in (False, True) for group in GROUPS if group[0] not in ("clear", "expire")]


@pytest.mark.parametrize(("undo", "turn", "within", "level"), BATCH_CASES[::EVERY_BATCH], ids=str)
def test_a_batch_is_decided_as_a_whole(undo: bool, turn: str, within: bool, level: Level) -> None:
    scene = BatchScene(turn, within, undo)
    known = set[object]()

    def judge(tree: Tree, promise: batch_story.Promise, _: bool) -> None:
        key = tree.key(), promise.key()
        if key not in known:
            known.add(key)
            (batch_story.judge_undone if undo else batch_story.judge)(tree, promise, level)

    dice = random.Random(f"{undo} {turn} {within} {level}")
    for at in itertools.count() if FULL else one_call(BatchPlay(scene, level, sys.maxsize, trees), dice):
        if not play(BatchPlay(scene, level, at, trees), judge):
            return


@pytest.mark.parametrize("level", JOURNALS, ids=str)
@pytest.mark.parametrize("turn", ["follow", "checkpoint", "close"])
def test_what_expired_goes_meanwhile(turn: str, level: Level) -> None:
    [scene] = [scene for scene in scenes(turn, True) if scene.clears_away]
    play_scene(scene, level, itertools.count(0, 1 if FULL else 5))


@pytest.mark.parametrize("turn", ["follow", "checkpoint"])
def test_a_file_that_is_renamed_in_memory_meanwhile_is_followed(turn: str) -> None:
    """A commit in the middle of a checkpoint: its record has the name only, and the content is below the checkpoint."""
    play_scene(Scene(turn, True, BEFORE, Act(End.TWO_PHASE, WORKS["put"])), LAGGING, itertools.count())
