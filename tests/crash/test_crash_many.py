"""A crash at every call of steps that bring many messages at once, and take some of them: as ``test_crash_steps``."""

from __future__ import annotations

import random
import sys
from dataclasses import replace

import pytest

from support.crash_cases import AT_THE_EDGE, EXTREMES, FULL, KILL, POWER_LOSS, trees_of
from support.crash_jury import Jury
from support.crash_level import CYCLING, FILLING, JOURNAL, LAGGING, MOVING, Level
from support.crash_story import EMPTY, Act, End, Put, Sample, Story, Take, crashes, play
from support.crash_ways import go_on, judge_cut_off
from support.forgetful import Tree
from support.interleaving import Play, Scene
from xaqueue.core.model import layout
from xaqueue.core.model.definitions import MANY

pytestmark = pytest.mark.usefixtures("quiet")

LARGE = replace(JOURNAL, name="JOURNAL, large segments", segment_bytes=96 * 1024)
"""Memory keeps all that a branch puts one by one, so that it is merged."""
JOURNALS = (JOURNAL, LAGGING, MOVING, FILLING, CYCLING, LARGE)
LEVELS = [replace(level, blocks=MANY) for level in (*JOURNALS, *(one for one in KILL if not one.hardening.journal))]
KEPT = {level.name for level in POWER_LOSS}
"""Levels at which what was promised survives a loss of power."""
DRAWN = 4
"""Trees of each power loss, beside the barest and the fullest, unless in full size."""
ENDS = (End.ONE_PHASE, End.ROLLBACK, End.PREPARED, End.TWO_PHASE, End.LATE, End.UNDONE, End.DECIDED_COMMIT)
FIRST, SECOND = range(200, 232, 2), range(300, 332, 2)
"""Sixteen messages each, none of which has properties."""
WITH_OWN = range(400, 416)
"""Every other one has some."""
EVERY = 8


def puts(messages: range, queue: str = "a") -> tuple[Put, ...]:
    return tuple(Put(queue, one) for one in messages)


def takes(begin: int, end: int) -> tuple[Take, ...]:
    """These of the first sixteen, by their place."""
    return tuple(Take("a", one) for one in FIRST[begin:end])


def act(end: End, *work: Put | Take, life_of: int | None = None, hollows: bool = False) -> Act:
    return Act(end, work, life_of, at_once=True, hollows=hollows)


def singly(end: End, *work: Put | Take) -> Act:
    """Each by itself; what is put is a block from the first verb of the end on."""
    return Act(end, work)


def told() -> Tree:
    """Sixteen messages that came at once, in the directories."""
    fs, _ = play(Story((act(End.ONE_PHASE, *puts(FIRST)),), EMPTY), LEVELS[0])
    return Tree({path: data for path, data in fs.tree_after_kill().nodes.items() if layout.JOURNAL not in path})


def stories() -> dict[str, Story]:
    given, edge = told(), AT_THE_EDGE
    assert any(path.startswith(layout.COMMITTED) and "+" in path for path in given.nodes), "it is no block"
    beside = act(End.PREPARED, *takes(0, 3))
    return {
        **{f"put: {end.name.lower()}": Story((act(end, *puts(FIRST)),), EMPTY) for end in ENDS},
        **{f"put singly: {end.name.lower()}": Story((singly(end, *puts(FIRST)),), EMPTY) for end in ENDS},
        **{
            f"both singly: {end.name.lower()}": Story((singly(end, *takes(0, 5), *puts(SECOND)),), given)
            for end in ENDS[::3]
        },
        **{f"put with own: {end.name.lower()}": Story((act(end, *puts(WITH_OWN)),), EMPTY) for end in ENDS},
        **{f"put over the edge: {end.name.lower()}": Story((act(end, *puts(FIRST)),), edge) for end in ENDS[::3]},
        **{f"take some: {end.name.lower()}": Story((act(end, *takes(0, 3)),), given) for end in ENDS},
        **{f"take all: {end.name.lower()}": Story((act(end, *takes(0, 16)),), given) for end in ENDS},
        **{f"both: {end.name.lower()}": Story((act(end, *takes(0, 5), *puts(SECOND)),), given) for end in ENDS},
        **{f"beside one in doubt: {end.name.lower()}": Story((beside, act(end, *takes(3, 6))), given) for end in ENDS},
        **{
            f"one after the other: {end.name.lower()}": Story(
                (act(End.ONE_PHASE, *takes(0, 4)), act(end, *takes(4, 15)), act(End.ONE_PHASE, *takes(15, 16))), given
            )
            for end in ENDS
            if end in (End.ONE_PHASE, End.TWO_PHASE, End.LATE)
        },
        "put, take two_phase": Story((act(End.ONE_PHASE, *puts(FIRST)), act(End.TWO_PHASE, *takes(0, 16))), EMPTY),
        "put late, take late": Story((act(End.LATE, *puts(FIRST)), act(End.LATE, *takes(0, 9))), EMPTY),
        **{
            f"hollow, then take: {end.name.lower()}": Story(
                (act(End.ONE_PHASE, *takes(0, 13), hollows=True), act(end, *takes(13, 15), hollows=True)), given
            )
            for end in ENDS
        },
        "hollow beside one in doubt": Story(
            (beside, act(End.TWO_PHASE, *takes(3, 16), hollows=True), act(End.ONE_PHASE, *puts(SECOND))), given
        ),
        "hollow what goes late": Story(
            (act(End.LATE, *takes(0, 14), hollows=True), act(End.LATE, *takes(14, 16), hollows=True)), given
        ),
        "a second life": Story((act(End.UNDONE, *takes(0, 3)), act(End.TWO_PHASE, *takes(0, 5), life_of=0)), given),
    }


STORIES = stories()


def cases() -> list[tuple[str, Level]]:
    """At each level one story in five, by turns, unless in full size."""
    found = [(name, level) for level in LEVELS for name in STORIES]
    some = (number % len(STORIES) % 5 == number // len(STORIES) % 5 for number in range(len(found)))
    return [case for case, is_one in zip(found, some, strict=True) if FULL or is_one]


def calls(name: str, level: Level) -> Sample:
    every = 1 if FULL else EVERY
    return Sample(every, sum(map(ord, f"{name}{level}")) % every)


@pytest.mark.parametrize(("name", "level"), [case for case in cases() if case[1].name in KEPT], ids=str)
def test_power_loss_amid_many(name: str, level: Level) -> None:
    sitting = Jury(STORIES[name], level)
    recorded = level.segment_bytes >= JOURNAL.segment_bytes
    for fs, record in crashes(STORIES[name], level, calls(name, level)):
        dice = random.Random(fs.calls)
        for tree in trees_of(fs, level) if FULL else fs.some_trees_after_crash(DRAWN, dice):
            sitting.judge(tree, record, tries_kept=recorded)


GIVEN = told()
AMID: dict[str, tuple[Put | Take, ...]] = {
    "take": takes(13, 14),
    "take all": takes(13, 16),
    "put": puts(SECOND)[:5],
}
"""The step that comes while a block of which three are left is made smaller."""
AMID_CASES = [(name, end) for name in AMID for end in ENDS]


@pytest.mark.parametrize("level", LEVELS, ids=str)
@pytest.mark.parametrize("within", [True, False])
def test_a_step_amid_a_hollowing(within: bool, level: Level) -> None:
    """Or the other way round: at a call by chance, unless in full size at each."""
    dice = random.Random(f"{within} {level}")
    for name, end in AMID_CASES if FULL else dice.sample(AMID_CASES, 3):
        before = [Act(End.ONE_PHASE, takes(*some)) for some in ((0, 5), (5, 10), (10, 13))]  # no pool syncs so few
        scene = Scene("hollow", within, tuple(before), Act(end, AMID[name]), begins=GIVEN)
        jury, calls = Jury(scene.story, level), Play(scene, level, sys.maxsize, lambda _: iter(()))
        calls.run()
        for at in range(calls.calls) if FULL or not calls.calls else [dice.randrange(calls.calls)]:
            played = Play(scene, level, at, lambda fs: iter([fs.tree_by_chance(dice)]))
            played.run()
            for moment in played.moments:
                jury.judge(moment.killed, moment.promised, tries_kept=True)
                for tree in moment.cut if level.name in KEPT else ():
                    jury.judge(tree, moment.promised)


@pytest.mark.parametrize(("name", "level"), cases(), ids=str)
def test_a_kill_amid_many(name: str, level: Level) -> None:
    sitting = Jury(STORIES[name], level)
    for fs, record in crashes(STORIES[name], level, calls(name, level)):
        sitting.judge(fs.tree_after_kill(), record, tries_kept=True)


HANDFUL = [
    *("put: two_phase", "both singly: two_phase", "take some: two_phase", "take all: one_phase", "both: one_phase"),
    *("both: rollback", "put over the edge: one_phase", "beside one in doubt: two_phase"),
    *("one after the other: one_phase", "a second life"),
]
SURE = [level for level in LEVELS if level.name in KEPT]
NESTED = [(name, level) for name in (STORIES if FULL else HANDFUL) for level in SURE]
NESTED = [case for number, case in enumerate(NESTED) if FULL or number // len(SURE) % len(SURE) == number % len(SURE)]


def first_calls(name: str, level: Level) -> Sample:
    """Of the first crash: few, since a second one comes at each call of a recovery from it."""
    every = 25 if level.hardening.journal else 90
    return calls(name, level) if FULL else Sample(every, sum(map(ord, f"{name}{level}")) % every)


@pytest.mark.parametrize(("name", "level"), NESTED, ids=str)
def test_recovery_amid_many_is_cut_off_and_run_again(name: str, level: Level) -> None:
    sitting = Jury(STORIES[name], level)
    for fs, record in crashes(STORIES[name], level, first_calls(name, level)):
        for tree in trees_of(fs, level, EXTREMES, draw=2):
            if sitting.is_new(tree, record, "cut off"):
                judge_cut_off(sitting, tree.open(), record)


@pytest.mark.parametrize(("name", "level"), NESTED, ids=str)
def test_the_power_goes_after_a_kill_amid_many(name: str, level: Level) -> None:
    """While the next owner recovers, and nothing is synced yet that the first one had written."""
    sitting = Jury(STORIES[name], level)
    for killed, record in crashes(STORIES[name], level, first_calls(name, level)):
        killed.survive_kill()
        judge_cut_off(sitting, killed, record)


@pytest.mark.parametrize(("verb", "end"), [("commit", End.ONE_PHASE), ("rollback", End.TWO_PHASE)])
@pytest.mark.parametrize(("name", "level"), NESTED, ids=str)
def test_the_next_owner_goes_on_amid_many(name: str, level: Level, verb: str, end: End) -> None:
    sitting = Jury(STORIES[name], level)
    for killed, record in crashes(STORIES[name], level, first_calls(name, level)):
        killed.survive_kill()
        go_on(sitting, killed, record, verb, end)
