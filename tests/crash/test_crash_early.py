"""A branch that was decided while its space was still opening stays decided, wherever the power goes.

The trees of a crash are the extremes, or a few of them where there is a journal, and it comes before one call in six,
by turns (``crash_cases.sample``), of half of the stories at each level, but with ``XAQUEUE_CRASH_FULL=1``.
"""

from __future__ import annotations

import itertools

import pytest

from support.crash_cases import EXTREMES, FULL, STORIES, TREES, by_turns, sample, trees_of
from support.crash_jury import Jury
from support.crash_level import JOURNAL, LAGGING, MOVING, PREPARED_BEFORE, STRICT, Level, open_space
from support.crash_story import Act, Became, End, Record, call, crashes, look, play
from support.forgetful import Crashed, ForgetfulFileSystem
from xaqueue.core.engine.state import Space
from xaqueue.errors import ResourceFailed
from xaqueue.features.session import Session

pytestmark = pytest.mark.usefixtures("quiet")

IN_DOUBT = [name for name, story in STORIES.items() if any(act.end is End.PREPARED for act in story.acts)]
SOME = [
    "first: prepared",
    "put: prepared",
    "take: prepared",
    "several: prepared",
    "both at the edge: prepared",
    "put one_phase, take prepared",
    "beside one in doubt: two_phase",
    "beside one in doubt: decided_commit",
]
LEVELS = [STRICT, LAGGING, JOURNAL, MOVING, PREPARED_BEFORE]
VERBS = {
    "commit": Became.DONE,
    "rollback": Became.NOTHING,
    "decide commit": Became.DECIDED_DONE,
    "decide rollback": Became.DECIDED_NOTHING,
}
CASES = [(name, level) for name in (IN_DOUBT if FULL else SOME) for level in LEVELS]


class Opening:
    """One that decides what is in doubt as soon as it can."""

    def __init__(self, jury: Jury, record: Record, verb: str) -> None:
        self.jury = jury
        self.record = record
        self.verb = verb

    def decide(self, space: Space) -> None:
        session, record = Session(space), self.record
        for position, act in enumerate(self.jury.story.acts):
            if act.end is End.PREPARED:
                record.may_be[position] = {Became.IN_DOUBT, VERBS[self.verb]}
                call(session, self.verb, self.jury.story.xid(position))
                record.may_be[position] = {VERBS[self.verb]}
                record.undone += undone(act, self.verb)

    def of(self, fs: ForgetfulFileSystem) -> bool:
        """Whether it came to its end."""
        self.record.openings += 1
        try:
            space = open_space(fs, self.jury.level, self.decide)
        except (Crashed, ResourceFailed):
            if not fs.crashed:
                raise
            return False
        self.jury.recovered(space, self.record)
        self.record.seqs.update(look(space, Session(space)).seqs)
        return True


def undone(act: Act, verb: str) -> list[tuple[str, int]]:
    return [(work.queue, work.message) for work in act.work if "rollback" in verb and type(work).__name__ == "Take"]


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(("name", "level"), by_turns(CASES, 2), ids=str)
def test_what_was_decided_before_all_was_loaded_stays_so(name: str, level: Level, verb: str) -> None:
    jury, turns = Jury(STORIES[name], level), sample(6, name, level, list(VERBS).index(verb))
    whole, promised = play(STORIES[name], level)
    for more in itertools.count(turns.first, turns.every):
        fs, record = whole.copy(), promised.copy()
        fs.survive_kill(crash_after=fs.calls + more)
        ended = Opening(jury, record, verb).of(fs)
        for tree in trees_of(fs, level, TREES if FULL else EXTREMES):
            jury.judge(tree, record)
        if ended:
            break


class Listening:
    """One that believes what is listed as soon as it can be, decides it perhaps, and then the power goes."""

    def __init__(self, jury: Jury, fs: ForgetfulFileSystem, record: Record, verb: str) -> None:
        self.jury = jury
        self.fs = fs
        self.record = record
        self.verb = verb

    def listen(self, space: Space) -> None:
        session, record = Session(space), self.record
        listed = look(space, session).listed
        for position, may_be in enumerate(record.may_be):
            xid = self.jury.story.xid(position)
            told = {listed[xid]} if xid in listed else may_be & {Became.DONE, Became.NOTHING}
            assert told <= may_be
            record.may_be[position] = told
            if self.verb and listed.get(xid) is Became.IN_DOUBT:
                call(session, self.verb, xid)
                record.may_be[position] = {VERBS[self.verb]}
                record.undone += undone(self.jury.story.acts[position], self.verb)
        for tree in trees_of(self.fs, self.jury.level, TREES if FULL else EXTREMES):
            self.jury.judge(tree, record)


@pytest.mark.parametrize("verb", ["", "commit", "rollback"])
@pytest.mark.parametrize(("name", "level"), by_turns(CASES, 2), ids=str)
def test_what_is_listed_before_all_is_loaded_is_true_after_a_power_loss(name: str, level: Level, verb: str) -> None:
    """The process was killed at any call, and what it had done was not synced."""
    jury = Jury(STORIES[name], level)
    for fs, record in crashes(STORIES[name], level, sample(6, name, level, len(verb))):
        record.may_be, record.undone, record.openings = list(record.may_be), list(record.undone), 2
        fs.survive_kill()
        open_space(fs, level, Listening(jury, fs, record, verb).listen)
