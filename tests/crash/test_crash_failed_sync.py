"""A sync fails, the space is fenced and opened again in the same boot, work goes on, and then the power goes.

The kernel counts the pages of a failed sync as written, and reads show them until the power is gone. So whoever opens
the space again must not build on them: all that was acknowledged before and after is there, nothing refused is half.
"""

from __future__ import annotations

import errno
import itertools
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from unittest import mock

import pytest

from support.crash_cases import FULL, ONE_BRANCH, STORIES
from support.crash_jury import Jury
from support.crash_level import (
    CHECKPOINTS,
    CYCLING,
    JOURNAL,
    LAGGING,
    MOVING,
    NONE,
    STRICT,
    SWITCHING,
    Level,
    open_space,
)
from support.crash_story import Act, End, Put, perform, play, xid_of
from support.crash_ways import go_on, judge_cut_off
from support.forgetful import ForgetfulFileSystem, Tree
from xaqueue.core.engine.state import Space
from xaqueue.core.storage.journal import SMALLEST_SEGMENT_BYTES
from xaqueue.errors import DecisionLogError, ResourceFailed, RetryLater
from xaqueue.tm.log import DecisionLog

pytestmark = pytest.mark.usefixtures("quiet")

HANDFUL = ["put and take: one_phase", "several: two_phase", "put and take: decided_commit"]
LEVELS = [LAGGING, JOURNAL, SWITCHING, MOVING, CHECKPOINTS, CYCLING, STRICT]
CASES = list(itertools.product(STORIES if FULL else HANDFUL, LEVELS))


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize(("name", "level"), CASES, ids=str)
def test_the_power_goes_after_a_fence_and_an_open(name: str, level: Level, number: int) -> None:
    """After every sync that a story has. One that found no room has lost what it was to write as well."""
    jury, at = Jury(STORIES[name], level), play(STORIES[name], level)[1].first_call
    while True:
        fs, record = play(STORIES[name], level, fail_after=at, fail_number=number)
        if not fs.failed:
            return
        at = fs.calls
        go_on(jury, fs, record, "commit", End.ONE_PHASE)


@pytest.mark.parametrize("level", [LAGGING, MOVING, CYCLING, STRICT] if FULL else [LAGGING, MOVING], ids=str)
@pytest.mark.parametrize("name", ["put and take: one_phase", "several: two_phase"])
def test_the_power_goes_within_the_open_after_a_fence(name: str, level: Level) -> None:
    """After every sync of the story, and at every call of that opening, which reads what no disk may have."""
    jury, at = Jury(STORIES[name], level), play(STORIES[name], level)[1].first_call
    while True:
        fs, record = play(STORIES[name], level, fail_after=at, fail_number=errno.EIO)
        if not fs.failed:
            return
        at = fs.calls
        judge_cut_off(jury, fs, record)


def opened_after_failures(fs: ForgetfulFileSystem, level: Level, more: int) -> bool:
    """Whether an opening fails by a sync behind so many calls more; the next one may go on."""
    fs.fail_after, fs.failed = fs.calls + more, False
    with suppress(OSError, ResourceFailed):
        open_space(fs, level)
    fs.fail_after = None
    return fs.failed


@pytest.mark.parametrize("level", [LAGGING, STRICT], ids=str)
@pytest.mark.parametrize("name", ["put and take: one_phase", "several: prepared"])
def test_the_opening_fails_as_well(name: str, level: Level) -> None:
    """At each of its syncs; the one behind it may be told that all is well."""
    jury, last, more = Jury(STORIES[name], level), play(STORIES[name], level)[0].calls - 1, 0
    cut, promised = play(STORIES[name], level, crash_after=last)
    while True:
        fs, record = cut.copy(), promised.copy()
        fs.survive_kill()
        if not opened_after_failures(fs, level, more):
            return
        more = fs.calls - last
        record.openings += 1
        go_on(jury, fs, record, "commit", End.ONE_PHASE)


@contextmanager
def no_room(fs: ForgetfulFileSystem, number: int, more: int) -> Iterator[None]:
    """The call behind so many more is refused with this error, and does nothing."""
    at, call = fs.calls + more, fs._call

    def refused() -> None:
        call()
        if fs.calls == at + 1:
            raise OSError(number, "no room")

    with mock.patch.object(fs, "_call", refused):
        yield


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EMFILE])
@pytest.mark.parametrize("level", [LAGGING, JOURNAL, SWITCHING, MOVING, CYCLING, STRICT], ids=str)
@pytest.mark.parametrize("name", HANDFUL)
def test_the_opening_finds_no_room(name: str, level: Level, number: int) -> None:
    """At each of its calls. It fails, or goes on, and then what it acknowledges is there after a kill, too."""
    jury, last, more = Jury(STORIES[name], level), play(STORIES[name], level)[0].calls - 1, 0
    cut, promised = play(STORIES[name], level, crash_after=last)
    while True:
        fs, record = cut.copy(), promised.copy()
        fs.survive_kill()
        longer = jury
        with suppress(OSError, ResourceFailed, RetryLater):
            with no_room(fs, number, more):
                space = open_space(fs, level)
            if fs.calls <= last + more:
                return
            record = jury.pinned(space, record)
            act = Act(End.ONE_PHASE, (Put("d", 99),))
            perform(space, record, xid_of(len(record.may_be)), act, level)
            longer = Jury(replace(jury.story, acts=(*jury.story.acts, act)), level, jury.judged)
        record.openings += 1
        longer.judge(fs.tree_after_kill(), record, tries_kept=True)
        more += 1


@pytest.mark.parametrize("level", [JOURNAL, STRICT], ids=str)
@pytest.mark.parametrize("name", ["put: one_phase", "several: prepared", "several: two_phase"])
def test_a_full_disk_opens_with_what_stands(name: str, level: Level) -> None:
    """It is overwritten with itself: then a sync counts it, too."""
    with mock.patch.object(Space, "close"):
        fs, record = play(STORIES[name], level)
    with mock.patch.object(fs, "create", side_effect=OSError(errno.ENOSPC, "no room")):
        open_space(fs, level)
    record.openings += 1
    go_on(Jury(STORIES[name], level), fs, record, "commit", End.ONE_PHASE)


LOWER = [name for name in ONE_BRANCH if name.endswith(": prepared")]


@pytest.mark.parametrize("name", LOWER if FULL else LOWER[2::3])
def test_what_was_prepared_at_a_lower_level_is_hardened_at_the_second_try(name: str) -> None:
    jury, more = Jury(STORIES[name], STRICT), 0
    whole, promised = play(STORIES[name], NONE)
    while True:
        fs, record = whole.copy(), promised.copy()
        fs.survive_kill()
        calls = fs.calls
        if not opened_after_failures(fs, STRICT, more):
            return
        more = fs.calls - calls
        record.openings += 1
        go_on(jury, fs, record, "commit", End.ONE_PHASE)


def decided(fs: ForgetfulFileSystem) -> set[bytes]:
    log = DecisionLog(fs, segment_bytes=SMALLEST_SEGMENT_BYTES)
    return set(log.table.open)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EMFILE])
def test_a_decision_log_finds_no_room_at_its_opening(number: int) -> None:
    more = 0
    while True:
        fs = Tree({}).open()
        DecisionLog(fs, segment_bytes=SMALLEST_SEGMENT_BYTES).decide(b"old", ["a"])
        calls, sure = fs.calls, {b"old"}
        with suppress(OSError, DecisionLogError):
            with no_room(fs, number, more):
                log = DecisionLog(fs, segment_bytes=SMALLEST_SEGMENT_BYTES)
            if fs.calls <= calls + more:
                return
            log.decide(b"new", ["a"])
            sure.add(b"new")
        assert sure <= decided(fs.tree_after_kill().open())
        more += 1


def test_a_decision_log_is_opened_after_a_failed_sync() -> None:
    """What recovery acts on as decided stays so; what it does not find is never decided."""
    at = 0
    while True:
        fs, sure = Tree({}).open(), set()
        fs.fail_after = at
        with suppress(DecisionLogError):
            log = DecisionLog(fs, segment_bytes=SMALLEST_SEGMENT_BYTES)
            for number in range(40):
                log.decide(b"%d" % number, ["a", "b" * 3000])
                sure.add(b"%d" % number)
                if number % 10 == 3:
                    log.checkpoint()
        if not fs.failed:
            return
        at = fs.calls
        told = decided(fs)
        assert sure <= told
        DecisionLog(fs, segment_bytes=SMALLEST_SEGMENT_BYTES).decide(b"new", ["a"])
        for tree in fs.trees_after_crash(limit=24, seed=at):
            assert decided(tree.open()) == {*told, b"new"}
