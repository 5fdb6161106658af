"""A crash at every call of every step: what was acknowledged is there, what was not is whole or gone.

``XAQUEUE_CRASH_FULL=1`` looks at every call of every story at every level, and at up to 16,384 trees a crash instead of
128, or of a few where there is a journal. Else it is one call in six of every story of one branch at two levels, and
of everything else one call in twelve, by turns (``crash_cases.sample``): stories of the same work share all its calls.
At the other levels one story in three is played, by turns as well.
"""

from __future__ import annotations

import pytest

from support.crash_cases import (
    EXTREMES,
    FULL,
    KILL,
    ONE_BRANCH,
    POWER_LOSS,
    STORIES,
    TREES,
    by_turns,
    cases,
    jury,
    sample,
    trees_of,
)
from support.crash_level import JOURNAL, STRICT, Level, open_space
from support.crash_story import FRESH, Became, Sample, call, crashes, drained, look, message_id, xid_of
from xaqueue.features.session import Session

pytestmark = pytest.mark.usefixtures("quiet")


WHOLE = (STRICT, JOURNAL)
EVERY = 12


def campaign(levels: list[Level]) -> list[tuple[str, Level]]:
    """Every story at two levels, some of those of one branch at every other; the full size is all at all."""
    whole = [(name, level) for level in levels if FULL or level in WHOLE for name in STORIES]
    others = [(name, level) for level in levels if not FULL and level not in WHOLE for name in ONE_BRANCH]
    return [*whole, *by_turns(others, 3)]


def calls(name: str, level: Level) -> Sample:
    return sample(6 if level in WHOLE and name in ONE_BRANCH else EVERY, name, level)


@pytest.mark.parametrize(("name", "level"), cases(campaign(POWER_LOSS)), ids=str)
def test_power_loss(name: str, level: Level) -> None:
    """A journal that is not too small for it has the tries as well."""
    sitting = jury(name, level)
    recorded = level.hardening.journal and level.segment_bytes >= JOURNAL.segment_bytes
    for fs, record in crashes(STORIES[name], level, calls(name, level)):
        for tree in trees_of(fs, level, TREES if FULL or level == STRICT else EXTREMES):
            sitting.judge(tree, record, tries_kept=recorded)


@pytest.mark.parametrize(("name", "level"), cases(campaign(KILL)), ids=str)
def test_a_killed_process_keeps_every_promise_at_every_level(name: str, level: Level) -> None:
    sitting = jury(name, level)
    for fs, record in crashes(STORIES[name], level, calls(name, level)):
        sitting.judge(fs.tree_after_kill(), record, tries_kept=True)


LOWER = [level for level in KILL if level not in POWER_LOSS]
SIMPLE = [name for name in ONE_BRANCH if name.startswith(("first:", "put:", "take:"))]


@pytest.mark.parametrize("level", LOWER, ids=str)
@pytest.mark.parametrize("name", SIMPLE)
def test_below_its_level_a_power_loss_leaves_a_space_that_serves(name: str, level: Level) -> None:
    """No promise holds then; but it opens, rolls back what is in doubt, and takes and gives messages."""
    for fs, _ in crashes(STORIES[name], level, sample(EVERY, name, level)):
        for tree in fs.trees_after_crash(0):
            space = open_space(tree.open_for_good(), level)
            session = Session(space)
            for xid, became in look(space, session).listed.items():
                call(session, "rollback" if became is Became.IN_DOUBT else "forget", xid)
            session.start(xid_of(-1))
            for queue in STORIES[name].queues:
                list(drained(session, queue))
                session.enqueue(queue, b"", message_id=message_id(FRESH))
            session.end(xid_of(-1))
            call(session, "one-phase", xid_of(-1))
            left = [place for place in look(space, session).contents if place[0] in STORIES[name].queues]
            assert left == [(queue, FRESH) for queue in STORIES[name].queues]
