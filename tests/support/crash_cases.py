"""The stories of the crash tests: every end of a branch, over every kind of work, alone and one after the other."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Iterable, Iterator
from functools import lru_cache

import pytest
from _pytest.mark import ParameterSet

from support.crash_jury import Jury
from support.crash_level import (
    CHECKPOINTS,
    CYCLING,
    FILLING,
    FLUSHED_BEFORE,
    JOURNAL,
    LAGGING,
    MOVING,
    NONE,
    PREPARED_BEFORE,
    STRICT,
    SWITCHING,
    Level,
    level_of,
)
from support.crash_story import EMPTY, Act, End, Put, Sample, Story, Take, play
from support.forgetful import ForgetfulFileSystem, Tree
from xaqueue.core.model import layout
from xaqueue.core.model.layout import RANGE_SIZE, Watermark

FULL = os.environ.get("XAQUEUE_CRASH_FULL") == "1"
TREES = 1 << 14 if FULL else 1 << 7
"""How many trees of one crash are looked at, at most; where there are fewer, all of them are."""
EXTREMES = 0
"""A limit under which no sample is drawn."""

JOURNALS = [JOURNAL, LAGGING, SWITCHING, MOVING, FILLING, CYCLING, CHECKPOINTS, FLUSHED_BEFORE, PREPARED_BEFORE]
POWER_LOSS = [level_of("FSYNC;DSYNC"), STRICT, *JOURNALS]
KILL = [*POWER_LOSS, level_of("FSYNC"), level_of("FDATASYNC"), level_of("DSYNC"), NONE]


def trees_of(fs: ForgetfulFileSystem, level: Level, limit: int = TREES, draw: int = 4) -> Iterator[Tree]:
    """What a power loss may leave. With a journal nothing is synced for long, and so much may be left of it that only
    two extremes and as many as are drawn are looked at, unless in full size.
    """
    if FULL or not level.hardening.journal:
        yield from fs.trees_after_crash(limit)
        return
    yield from fs.some_trees_after_crash(draw, random.Random(fs.calls))


def act(end: End, *work: Put | Take) -> Act:
    return Act(end, work)


def _told(story: Story) -> Tree:
    return play(story, STRICT)[0].tree_after_kill()


GIVEN = _told(
    Story(tuple(act(End.ONE_PHASE, Put(queue, number)) for queue, number in (("a", 100), ("a", 101), ("b", 102))))
)
"""Two messages in queue a, one in queue b."""

AT_THE_EDGE = _told(
    Story(
        (act(End.ONE_PHASE, Put("a", 100)),),
        Tree(
            {
                **EMPTY.nodes,
                layout.queue_path("a"): None,
                layout.watermark_path("a"): layout.format_watermark(Watermark(RANGE_SIZE - 2, RANGE_SIZE - 2)),
            }
        ),
    )
)
"""A queue whose one message has the last number of its range."""

BARE = Tree({})
"""Not even the space's own directories; opening makes them."""

WORK: dict[str, tuple[tuple[Put | Take, ...], Tree]] = {
    "first": ((Put("a", 1),), EMPTY),
    "first in a bare directory": ((Put("a", 1),), BARE),
    "put": ((Put("a", 1),), GIVEN),
    "take": ((Take("a", 100),), GIVEN),
    "puts in new queues": ((Put("a", 1), Put("b", 2)), EMPTY),
    "put and take": ((Put("a", 1), Take("a", 101)), GIVEN),
    "takes": ((Take("a", 100), Take("b", 102)), GIVEN),
    "several": ((Take("a", 100), Put("c", 1), Put("a", 2), Take("b", 102)), GIVEN),
    "put over the edge": ((Put("a", 1),), AT_THE_EDGE),
    "take at the edge": ((Take("a", 100),), AT_THE_EDGE),
    "both at the edge": ((Put("a", 1), Take("a", 100)), AT_THE_EDGE),
}

ONE_BRANCH = {
    f"{name}: {end.name.lower()}": Story((act(end, *work),), start)
    for name, (work, start) in WORK.items()
    for end in End
    if end not in (End.EXPIRED, End.LATE, End.HARDENED)
}

COMMITS = (End.ONE_PHASE, End.TWO_PHASE, End.DECIDED_COMMIT)
UNDOES = (End.ROLLBACK, End.UNDONE, End.FORGOTTEN_ROLLBACK)
FINALS = (*COMMITS, *UNDOES, End.PREPARED, End.ACTIVE)


def _successors() -> dict[str, Story]:
    """Branches over the same message, in every combination of their ends."""
    found = {}
    for first in COMMITS:
        for second in FINALS:
            name = f"put {first.name.lower()}, take {second.name.lower()}"
            pair = (act(first, Put("a", 1)), act(second, Take("a", 1)))
            found[name] = Story(pair, GIVEN)
            if second in UNDOES:
                for third in COMMITS:
                    found[f"{name}, take {third.name.lower()}"] = Story((*pair, act(third, Take("a", 1))), GIVEN)
            elif second in COMMITS:
                for third in (End.ONE_PHASE, End.TWO_PHASE):
                    found[f"{name}, put {third.name.lower()}"] = Story((*pair, act(third, Put("a", 2))), GIVEN)
    for first, second in ((End.ONE_PHASE, End.TWO_PHASE), (End.TWO_PHASE, End.ONE_PHASE)):
        listed = (Put("a", 1), Put("b", 2)), (Take("a", 1), Take("b", 2))
        found[f"lists: put {first.name.lower()}, take {second.name.lower()}"] = Story(
            (act(first, *listed[0]), act(second, *listed[1])), GIVEN
        )
    return found


SUCCESSORS = _successors()

BESIDE = {
    f"beside one in doubt: {end.name.lower()}": Story(
        (act(End.PREPARED, Put("a", 1), Take("a", 100)), act(end, Put("a", 2), Take("a", 101))), GIVEN
    )
    for end in FINALS
}
EDGES = {
    f"edge: take {first.name.lower()}, put {second.name.lower()}": Story(
        (act(first, Take("a", 100)), act(second, Put("a", 1)), act(End.ONE_PHASE, Take("a", 1))), AT_THE_EDGE
    )
    for first in COMMITS
    for second in COMMITS
}


def _lives() -> dict[str, Story]:
    """Branches with one xid, one after the other, and then with one message id."""
    works: dict[str, tuple[tuple[Put | Take, ...], tuple[Put | Take, ...]]] = {
        "put, put": ((Put("a", 1),), (Put("a", 2),)),
        "take, take": ((Take("a", 100),), (Take("a", 101),)),
        "put, take": ((Put("a", 1),), (Take("a", 100),)),
        "list, list": ((Put("a", 1), Take("a", 100)), (Put("b", 2), Take("a", 101), Put("b", 3))),
    }
    firsts = (End.TWO_PHASE, End.UNDONE, End.ONE_PHASE, End.ROLLBACK, End.FORGOTTEN_COMMIT, End.FORGOTTEN_ROLLBACK)
    found = {}
    for (name, (first, second)), end in itertools.product(works.items(), firsts):
        for again in (End.TWO_PHASE, End.ONE_PHASE) if end in (End.TWO_PHASE, End.UNDONE) else (End.DECIDED_COMMIT,):
            lives = Act(end, first), Act(again, second, life_of=0)
            found[f"lives: {name}, {end.name.lower()}, {again.name.lower()}"] = Story(lives, GIVEN)
    for first_end, last in itertools.product(
        (End.ONE_PHASE, End.TWO_PHASE), (End.ONE_PHASE, End.TWO_PHASE, End.UNDONE)
    ):
        acts = act(first_end, Put("a", 1)), act(last, Take("a", 1)), act(first_end, Put("a", 1))
        put_back = act(first_end, Put("b", 1), Take("a", 1)) if last is End.UNDONE else act(last, Put("a", 1))
        found[f"id again: {first_end.name.lower()}, {last.name.lower()}"] = Story((*acts[:2], put_back), GIVEN)
    put = act(End.ONE_PHASE, Put("a", 1))
    found["id again: taken two_phase"] = Story((put, act(End.TWO_PHASE, Take("a", 1)), put), GIVEN)
    listed = act(End.TWO_PHASE, Take("a", 1), Take("a", 100)), act(End.ONE_PHASE, Put("a", 1), Put("b", 2))
    found["id again: list taken two_phase"] = Story((put, *listed), GIVEN)
    return found


LIVES = _lives()

WITHOUT_WATERMARK = Tree({path: data for path, data in GIVEN.nodes.items() if path != layout.watermark_path("a")})
LOST = {
    "watermark lost: takes one_phase": Story((act(End.ONE_PHASE, Take("a", 100), Take("a", 101)),), WITHOUT_WATERMARK)
}


def _late() -> dict[str, Story]:
    """Commits whose record is deferred to what comes next: alone, and before whatever builds on them."""
    found = {}
    for name in ("put", "take", "several", "both at the edge", "first in a bare directory"):
        work, start = WORK[name]
        found[f"late: {name}"] = Story((act(End.LATE, *work),), start)
        found[f"late: {name}, hardened"] = Story((act(End.HARDENED, *work),), start)
    put = act(End.LATE, Put("a", 1))
    for end in (*FINALS, End.LATE, End.HARDENED):
        found[f"late: put, take {end.name.lower()}"] = Story((put, act(end, Take("a", 1))), GIVEN)
        beside = act(End.LATE, Take("a", 100), Put("b", 1)), act(end, Put("a", 2), Take("a", 101))
        found[f"late: beside {end.name.lower()}"] = Story(beside, GIVEN)
    three = act(End.LATE, Put("a", 1)), act(End.LATE, Take("a", 1), Put("b", 2)), act(End.LATE, Take("b", 2))
    for number in (2, 3):
        found[f"late: {number} in a row"] = Story(three[:number], GIVEN)
        found[f"late: {number} in a row, and more"] = Story((*three[:number], act(End.ONE_PHASE, Put("c", 3))), GIVEN)
    again = Act(End.LATE, (Put("a", 2),), life_of=0)
    found["late: a second life"] = Story((put, again), GIVEN)
    return found


LATE = _late()


def _whole() -> dict[str, Story]:
    """Whole transactions behind commits whose record is deferred."""
    found = {}
    for end in (End.ONE_PHASE, End.PREPARED, End.TWO_PHASE, End.UNDONE, End.LATE, End.HARDENED):
        first, second = (Act(End.LATE, (Put("a", number),), whole=True) for number in (2, 4))
        takes = [Act(one, (Take("a", number),), whole=True) for one, number in ((End.LATE, 100), (end, 101))]
        work = Put("a", 6), Put("b", 8)
        for name, acts in {
            "put": (first, second, Act(end, work, whole=True)),
            "a second life": (first, second, Act(end, work, 0, whole=True)),
            "take": (first, *takes),
        }.items():
            found[f"whole: {end.name.lower()}, {name}"] = Story(acts, GIVEN)
    return found


WHOLE = _whole()
STORIES = {**LATE, **WHOLE, **ONE_BRANCH, **SUCCESSORS, **BESIDE, **EDGES, **LIVES, **LOST}
FAMILIES = {name: name.partition(":")[0].partition(",")[0] for name in STORIES}
"""Stories of one family begin alike."""
PLACE = {name: number for number, name in enumerate(STORIES)}


@lru_cache(maxsize=1)
def judged(family: str, level: Level) -> set[object]:
    """What the juries on these stories have judged in this process, as long as no other family comes between."""
    return set()


def jury(name: str, level: Level) -> Jury:
    """One that passes over what another has judged that sits on a story of the same family."""
    return Jury(STORIES[name], level, judged(FAMILIES[name], level))


def cases(named: Iterable[tuple[str, Level]]) -> list[ParameterSet]:
    """Parameters of a test; a family stays in one process."""
    groups = [(name, level, f"{FAMILIES[name]}, {level}") for name, level in named]
    return [pytest.param(name, level, marks=pytest.mark.xdist_group(group)) for name, level, group in groups]


def by_turns(named: Iterable[tuple[str, Level]], every: int) -> list[tuple[str, Level]]:
    """One pair in so many, unless in full size: each story at some of the levels, and each level with some stories."""
    every = 1 if FULL else every
    return [(name, level) for name, level in named if (PLACE[name] + KILL.index(level)) % every == 0]


def sample(every: int, name: str, level: Level, turn: int = 0) -> Sample:
    """One call in so many, unless in full size. The first goes round with the stories, the levels and the turns.

    So every call of a step is one of those looked at: other stories of the same work share it, and so do other levels.
    """
    every = 1 if FULL else every
    return Sample(every, (PLACE[name] + KILL.index(level) + turn) % every)
