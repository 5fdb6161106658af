"""Recovery may be cut off at any call and run again, and what it has told is true after the next crash too.

The trees of the first crash are the extremes; so are those of the second, but with ``XAQUEUE_CRASH_FULL=1``.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from crash_cases import FULL, ONE_BRANCH, STORIES, TREES
from crash_jury import Jury
from crash_story import Act, Became, End, Put, Record, Take, call, crashes, look, open_space, perform, play
from forgetful_fs import Crashed, ForgetfulFileSystem

from xaqueue.errors import ResourceFailed
from xaqueue.space.session import Session
from xaqueue.space.space import Space
from xaqueue.storage.flags import DEFAULT, Hardening

pytestmark = [pytest.mark.crash, pytest.mark.usefixtures("quiet")]

NONE = Hardening.parse("NONE")
EXTREMES = 0
"""A limit under which no sample is drawn."""
NESTED = TREES if FULL else EXTREMES
HANDFUL = [
    "first: one_phase",
    "first: two_phase",
    "put: decided_commit",
    "take: rollback",
    "take: two_phase",
    "put and take: prepared",
    "put and take: one_phase",
    "take: forgotten_rollback",
    "take at the edge: two_phase",
    "put one_phase, take two_phase",
]


def opened(fs: ForgetfulFileSystem) -> Space | None:
    """The space, recovered; None where the crash came before."""
    try:
        return open_space(fs, DEFAULT)
    except (Crashed, ResourceFailed):
        if not fs.crashed:
            raise
        return None


def judge_later(jury: Jury, fs: ForgetfulFileSystem, record: Record) -> bool:
    """Opens what is left, then the power goes, during recovery or right after it. Whether recovery came to its end."""
    space = opened(fs)
    record.openings += 1
    promised = record if space is None else jury.pinned(space, record)
    for tree in fs.trees_after_crash(NESTED):
        jury.judge(tree, promised)
    return space is not None


@pytest.mark.parametrize("name", STORIES if FULL else HANDFUL)
def test_recovery_is_cut_off_by_a_power_loss_and_run_again(name: str) -> None:
    jury, known = Jury(STORIES[name], DEFAULT), set()
    for fs, record in crashes(STORIES[name], DEFAULT):
        for tree in fs.trees_after_crash(EXTREMES):
            key = tree.key(), record.key()
            if key in known:
                continue
            known.add(key)
            for crash_after in itertools.count():
                if judge_later(jury, tree.open(crash_after), record.copy()):
                    break


@pytest.mark.parametrize("name", STORIES if FULL else ONE_BRANCH)
def test_the_power_goes_after_a_kill_while_nothing_is_synced_yet(name: str) -> None:
    jury = Jury(STORIES[name], DEFAULT)
    for killed, record in crashes(STORIES[name], DEFAULT):
        calls = killed.calls
        killed.survive_kill()
        judge_later(jury, killed, record.copy())
        for more in itertools.count() if FULL or name in HANDFUL else ():
            fs, record = play(STORIES[name], DEFAULT, calls)
            fs.survive_kill(crash_after=calls + more)
            if judge_later(jury, fs, record):
                break


def go_on(jury: Jury, fs: ForgetfulFileSystem, record: Record, verb: str, end: End) -> None:
    """The next owner decides what is in doubt, takes all messages, puts new ones; after each the power may go."""
    space = open_space(fs, DEFAULT)
    record = jury.pinned(space, record)
    session = Session(space)
    for xid, became in look(space, session).listed.items():
        if became is Became.IN_DOUBT:
            call(session, verb, xid)
    decided = {Became.DONE if verb == "commit" else Became.NOTHING}
    record.may_be = [decided if outcomes == {Became.IN_DOUBT} else outcomes for outcomes in record.may_be]
    takes = Act(end, tuple(Take(*place) for place in look(space, session).contents))
    puts = Act(end, tuple(Put(queue, 9) for queue in jury.story.queues))
    acts = jury.story.acts[: len(record.may_be)]
    for act in (None, takes, puts):
        if act is not None and act.work:
            perform(space, record, len(acts), act)
            acts = (*acts, act)
        longer = Jury(replace(jury.story, acts=acts), DEFAULT)
        for tree in fs.trees_after_crash(NESTED):
            longer.judge(tree, record)


@pytest.mark.parametrize(("verb", "end"), [("commit", End.ONE_PHASE), ("rollback", End.TWO_PHASE)])
@pytest.mark.parametrize("name", STORIES if FULL else ONE_BRANCH)
def test_the_next_owner_goes_on_before_the_power_goes(name: str, verb: str, end: End) -> None:
    jury = Jury(STORIES[name], DEFAULT)
    for killed, record in crashes(STORIES[name], DEFAULT):
        killed.survive_kill()
        go_on(jury, killed, record, verb, end)


@pytest.mark.parametrize("verb", ["commit", "rollback"])
@pytest.mark.parametrize("name", [name for name in ONE_BRANCH if name.endswith(": prepared")])
def test_what_was_prepared_at_a_lower_level_is_committed_at_this_one(name: str, verb: str) -> None:
    fs, record = play(STORIES[name], NONE)
    go_on(Jury(STORIES[name], DEFAULT), fs, record, verb, End.ONE_PHASE)
