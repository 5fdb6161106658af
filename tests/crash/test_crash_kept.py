"""Queues with an archive, and a crash at every call: what was acknowledged as taken is in the archive, with who took
it, and nothing is there and in its queue. See ``test_crash_steps``; ``XAQUEUE_CRASH_FULL=1`` is all of it."""

from __future__ import annotations

from dataclasses import replace
from zlib import crc32

import pytest

from support.crash_cases import EXTREMES, FULL, GIVEN, KILL, POWER_LOSS, STORIES, trees_of
from support.crash_jury import Jury
from support.crash_level import JOURNAL, STRICT, Level
from support.crash_story import EMPTY, Act, End, Put, Sample, Story, Take, crashes, play
from support.crash_ways import go_on, judge_cut_off
from xaqueue.core.model import layout
from xaqueue.core.model.definitions import MANY

pytestmark = pytest.mark.usefixtures("quiet")

LEVELS = [replace(level, name=f"{level}, kept", blocks=MANY, keeps=True) for level in KILL]
SURE = {f"{level}, kept" for level in POWER_LOSS}
"""Levels at which what was promised survives a loss of power."""
ENDS = (End.ONE_PHASE, End.TWO_PHASE, End.PREPARED, End.LATE, End.UNDONE, End.DECIDED_COMMIT)
DONE = (End.ONE_PHASE, End.TWO_PHASE, End.DECIDED_COMMIT)
FIRST = range(200, 232, 2)
EVERY = 9


def at_once(end: End, *work: Put | Take) -> Act:
    return Act(end, work, at_once=True)


def takes(begin: int, end: int) -> tuple[Take, ...]:
    return tuple(Take("a", one) for one in FIRST[begin:end])


def of_many() -> dict[str, Story]:
    puts = tuple(Put("a", one) for one in FIRST)
    fs, _ = play(Story((at_once(End.ONE_PHASE, *puts),), EMPTY), replace(STRICT, blocks=MANY))
    given = fs.tree_after_kill()
    assert any(path.startswith(layout.COMMITTED) and "+" in path for path in given.nodes), "it is no block"
    most = at_once(End.ONE_PHASE, *takes(0, 15))
    rest, found = at_once(End.ONE_PHASE, *takes(2, 16)), dict[str, Story]()
    for end in ENDS:
        found |= {
            f"many: some {end.name.lower()}": Story((at_once(end, *takes(0, 3)),), given),
            f"many: all {end.name.lower()}": Story((at_once(end, *takes(0, 16)),), given),
            f"many: the last {end.name.lower()}": Story((most, Act(end, takes(15, 16))), given),
            f"many: the last moves {end.name.lower()}": Story(
                (most, Act(end, (*takes(15, 16), Put("b", FIRST[15])))), given
            ),
            f"many: one moves {end.name.lower()}": Story(
                (Act(end, (*takes(0, 2), Put("b", FIRST[1]))), *([rest] if end in DONE else [])), given
            ),
        }
    found["many: beside one in doubt"] = Story(
        (at_once(End.PREPARED, *takes(0, 4)), at_once(End.ONE_PHASE, *takes(4, 16))), given
    )
    found["moves"] = Story((Act(End.TWO_PHASE, (Take("a", 100), Take("a", 101), Put("b", 101))),), GIVEN)
    return found


TAKING = {
    name: story for name, story in STORIES.items() if any(isinstance(w, Take) for a in story.acts for w in a.work)
}
KEPT = {**of_many(), **TAKING}
SOME = 1 << 7
"""Trees of a crash: all that there may be are half a million for one story of files of many messages."""


def cases(levels: list[Level], names: list[str], every: int) -> list[tuple[str, Level]]:
    """One in so many, by turns, unless in full size."""
    found = [(name, level) for level in levels for name in names]
    return [case for case in found if FULL or crc32(f"{case[0]} {case[1]}".encode()) % every == 0]


def calls(name: str, level: Level, every: int = EVERY) -> Sample:
    every = 1 if FULL else every
    return Sample(every, crc32(f"{level} {name}".encode()) % every)


ALL = cases(LEVELS, [*KEPT], 12)


@pytest.mark.parametrize(("name", "level"), [case for case in ALL if case[1].name in SURE], ids=str)
def test_power_loss_keeps_what_was_taken(name: str, level: Level) -> None:
    sitting = Jury(KEPT[name], level)
    recorded = level.hardening.journal and level.segment_bytes >= JOURNAL.segment_bytes
    for fs, record in crashes(KEPT[name], level, calls(name, level)):
        for tree in trees_of(fs, level, SOME if FULL else EXTREMES):
            sitting.judge(tree, record, tries_kept=recorded)


@pytest.mark.parametrize(("name", "level"), ALL, ids=str)
def test_a_kill_keeps_what_was_taken(name: str, level: Level) -> None:
    sitting = Jury(KEPT[name], level)
    for fs, record in crashes(KEPT[name], level, calls(name, level)):
        sitting.judge(fs.tree_after_kill(), record, tries_kept=True)


HANDFUL = [
    *("take: one_phase", "take: two_phase", "takes: two_phase", "put and take: one_phase", "moves"),
    *("many: some two_phase", "many: all one_phase", "many: the last two_phase"),
]
NESTED = cases([level for level in LEVELS if level.name in SURE], [*KEPT] if FULL else HANDFUL, 5)


def first_calls(name: str, level: Level, every: int = 1) -> Sample:
    """Of the first crash: few, since a second one comes at each call of a recovery from it."""
    return calls(name, level, every * (25 if level.hardening.journal else 60))


@pytest.mark.parametrize(("name", "level"), NESTED, ids=str)
def test_recovery_of_what_was_taken_is_cut_off_and_run_again(name: str, level: Level) -> None:
    sitting = Jury(KEPT[name], level)
    for fs, record in crashes(KEPT[name], level, first_calls(name, level, 3)):
        for tree in trees_of(fs, level, EXTREMES, draw=1):
            if sitting.is_new(tree, record, "cut off"):
                judge_cut_off(sitting, tree.open(), record)


@pytest.mark.parametrize(("name", "level"), NESTED, ids=str)
def test_the_power_goes_after_a_kill_amid_a_take(name: str, level: Level) -> None:
    """While the next owner recovers, and nothing is synced yet that the first one had written."""
    sitting = Jury(KEPT[name], level)
    for killed, record in crashes(KEPT[name], level, first_calls(name, level)):
        killed.survive_kill()
        judge_cut_off(sitting, killed, record)


@pytest.mark.parametrize(("verb", "end"), [("commit", End.ONE_PHASE), ("rollback", End.TWO_PHASE)])
@pytest.mark.parametrize(("name", "level"), NESTED, ids=str)
def test_the_next_owner_keeps_on(name: str, level: Level, verb: str, end: End) -> None:
    sitting = Jury(KEPT[name], level)
    for killed, record in crashes(KEPT[name], level, first_calls(name, level)):
        killed.survive_kill()
        go_on(sitting, killed, record, verb, end)


def test_the_next_owner_syncs_what_a_killed_one_has_made() -> None:
    """Of the archive there was a directory, and nothing in it: a name in there was gone with the power."""
    (level,) = (level for level in LEVELS if level.name == f"{STRICT}, kept")
    sitting = Jury(KEPT["moves"], level)
    for killed, record in crashes(KEPT["moves"], level):
        killed.survive_kill()
        go_on(sitting, killed, record, "commit", End.ONE_PHASE)


def test_what_moved_on_is_said_once() -> None:
    """The next owner, who finishes the step, does not write anew what is on disk: torn with the power, it would leave
    the last of a block in the archive, which is in another queue."""
    name = "many: the last moves two_phase"
    (level,) = (level for level in LEVELS if level.name == "FSYNC;DSYNC, kept")
    sitting = Jury(KEPT[name], level)
    for fs, record in crashes(KEPT[name], level, Sample(100, 40)):
        for tree in trees_of(fs, level, EXTREMES, draw=1):
            judge_cut_off(sitting, tree.open(), record)
