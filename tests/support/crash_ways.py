"""The ways in which a crash is brought about and judged: by who opens next, cut off or not, and who goes on."""

from __future__ import annotations

from dataclasses import replace

from support.crash_cases import EXTREMES, FULL, STORIES, TREES, trees_of
from support.crash_jury import Jury
from support.crash_level import NONE, STRICT, Level, open_space, openings
from support.crash_story import (
    ALL,
    Act,
    Became,
    End,
    Put,
    Record,
    Sample,
    Take,
    call,
    crashes,
    look,
    perform,
    play,
    shown,
    xid_of,
)
from support.forgetful import ForgetfulFileSystem
from xaqueue.core.engine.state import Space
from xaqueue.features.session import Session

NESTED = TREES if FULL else EXTREMES


def judge_later(jury: Jury, fs: ForgetfulFileSystem, record: Record) -> None:
    """Opens what is left, and right after that the power goes."""
    _judge_opening(jury, fs, open_space(fs, jury.level), record)


def judge_cut_off(jury: Jury, fs: ForgetfulFileSystem, record: Record) -> None:
    """Opens what is left, and the power goes at any call of that, or right after it."""
    for cut, space in openings(fs, jury.level):
        _judge_opening(jury, cut, space, record)


def _judge_opening(jury: Jury, fs: ForgetfulFileSystem, space: Space | None, record: Record) -> None:
    """space: None where the opening did not come to its end."""
    promised = replace(record, openings=record.openings + 1)
    if space is not None:
        promised = jury.pinned(space, promised)
    for tree in trees_of(fs, jury.level, NESTED, draw=2):
        jury.judge(tree, promised)


def go_on(
    jury: Jury, fs: ForgetfulFileSystem, record: Record, verb: str, end: End, *, closed_well: bool = False
) -> None:
    """The next owner decides what is in doubt, takes all messages, puts new ones; after each the power may go."""
    space = open_space(fs, jury.level, closed_well=closed_well)
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
            perform(space, record, xid_of(len(acts)), act, jury.level)
            acts = (*acts, act)
            left = look(space, session).contents
            record.shown = {place: seq for place, seq in shown(fs.tree_after_kill()).items() if place in left}
        longer = Jury(replace(jury.story, acts=acts), jury.level, jury.judged)
        for tree in trees_of(fs, jury.level, NESTED):
            longer.judge(tree, record)


def power_loss(name: str, level: Level = STRICT, calls: Sample = ALL, judged: set[object] | None = None) -> None:
    """The power goes at any call."""
    jury = Jury(STORIES[name], level, judged)
    for fs, record in crashes(STORIES[name], level, calls):
        for tree in trees_of(fs, level, TREES if FULL else EXTREMES):
            jury.judge(tree, record)


def kill_then_power_loss(
    name: str, level: Level = STRICT, calls: Sample = ALL, judged: set[object] | None = None
) -> None:
    """The process is killed at any call, the next one recovers, and the power goes."""
    jury = Jury(STORIES[name], level, judged)
    for fs, record in crashes(STORIES[name], level, calls):
        fs.survive_kill()
        judge_later(jury, fs, record)


def recovery_cut_off(name: str, level: Level = STRICT) -> None:
    """The process is killed at any call, and the power goes at any call of the next one's recovery."""
    jury = Jury(STORIES[name], level)
    for killed, record in crashes(STORIES[name], level):
        killed.survive_kill()
        judge_cut_off(jury, killed, record)


def next_owner(name: str, level: Level = STRICT, calls: Sample = ALL, judged: set[object] | None = None) -> None:
    """The process is killed at any call, the next one recovers and goes on, and the power goes."""
    jury = Jury(STORIES[name], level, judged)
    for fs, record in crashes(STORIES[name], level, calls):
        fs.survive_kill()
        go_on(jury, fs, record, "commit", End.ONE_PHASE)


def raised_level(name: str, level: Level = STRICT) -> None:
    """The next owner has a higher level than the one that prepared."""
    fs, record = play(STORIES[name], NONE)
    go_on(Jury(STORIES[name], level), fs, record, "commit", End.ONE_PHASE, closed_well=True)


def committed_at_once(name: str, level: Level) -> None:
    """The next owner has a higher level, and commits before all messages are loaded what is in doubt."""
    fs, record = play(STORIES[name], NONE)
    left: list[ForgetfulFileSystem] = []

    def commit(space: Space) -> None:
        session = Session(space)
        for xid in [xid for xid, became in look(space, session).listed.items() if became is Became.IN_DOUBT]:
            call(session, "commit", xid)
        left.append(fs.copy())

    open_space(fs, level, commit, closed_well=True)
    record.may_be = [{Became.DONE} if outcomes == {Became.IN_DOUBT} else outcomes for outcomes in record.may_be]
    for tree in trees_of(left[0], level, EXTREMES):
        Jury(STORIES[name], level).judge(tree, record)
