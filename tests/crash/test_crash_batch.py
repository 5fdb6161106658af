"""A crash at every call of a batch's commit: it is decided as a whole or not at all, and asked again it happens once.

``XAQUEUE_CRASH_FULL=1`` looks at all levels, at every call, and at more of the trees that each crash may leave.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from support.batch_story import (
    BATCH,
    BEFORE,
    CONSUMED,
    CONSUMER,
    Promise,
    crashes,
    found,
    judge,
    judge_undone,
    play,
    prepare,
    xid,
)
from support.careless_log import careless
from support.crash_cases import EXTREMES, FULL, GIVEN, KILL, POWER_LOSS, TREES, trees_of
from support.crash_level import (
    JOURNAL,
    LAGGING,
    MOVING,
    NONE,
    PREPARED_BEFORE,
    STRICT,
    Level,
    open_space,
    openings,
    ready,
)
from support.crash_story import Put, Take, do, look
from support.forgetful import ForgetfulFileSystem
from xaqueue.core.engine.state import Space
from xaqueue.errors import ResourceError
from xaqueue.features.batches import batch_steps
from xaqueue.features.session import Session
from xaqueue.xa import Flag

pytestmark = pytest.mark.usefixtures("quiet")

SAMPLE = [STRICT, JOURNAL, LAGGING, MOVING]
LEVELS = POWER_LOSS if FULL else [*SAMPLE, PREPARED_BEFORE]
EVERY = 1 if FULL else 5
"""One call in so many of what ``test_power_loss`` does, in another way."""


def power_loss(level: Level, every: int = 1) -> None:
    """The power goes at any call of the decision, or at one in so many."""
    known = set()
    for fs, promise in crashes(level, every):
        for tree in trees_of(fs, level, TREES if FULL else EXTREMES, draw=2):
            if (key := (tree.key(), promise.key())) not in known:
                known.add(key)
                judge(tree, promise, level)


def power_loss_of_one(level: Level) -> None:
    """It goes once the message of a batch of one block is consumed."""
    fs = ready(GIVEN, level).open()
    session = Session(open_space(fs, level, goes_on=True))
    prepare(session, xid(b"p0"), (Put("a", 2),), level)
    session.commit_all(BATCH, [xid(b"p0")])
    session.start(CONSUMER)
    do(session, Take("a", 2))
    session.end(CONSUMER)
    session.commit(CONSUMER, Flag.ONEPHASE)
    for tree in trees_of(fs, level, TREES if FULL else EXTREMES):
        space = open_space(tree.open_for_good(), level)
        assert look(space, Session(space)).contents == dict.fromkeys((("a", 100), ("a", 101), ("b", 102)), False)


def power_loss_undone(level: Level) -> None:
    """It goes at any call of a rollback of the whole batch."""
    known = set()
    for fs, promise in crashes(level, undo=True):
        for tree in (fs.tree_after_kill(), *trees_of(fs, level, EXTREMES)):
            if (key := (tree.key(), promise.key())) not in known:
                known.add(key)
                judge_undone(tree, promise, level)


def power_loss_with_the_next(level: Level) -> None:
    """It goes at any call of the next batch, which is empty. A branch of the last took messages: when its list came
    back, and the record of its batch was gone, it was in doubt for good.
    """
    left: list[ForgetfulFileSystem] = []
    fs = ready(GIVEN, level).open()
    session = Session(open_space(fs, level, goes_on=True))
    taken = xid(b"t", BEFORE)
    prepare(session, taken, (Take("a", 100), Take("b", 102)), level)
    session.commit_all(BEFORE, [taken])
    fs.before_call = lambda: left.append(fs.copy())
    session.commit_all(BATCH, [])
    for crashed in [*left, fs]:
        for tree in trees_of(crashed, level, TREES if FULL else EXTREMES, draw=2):
            space = open_space(tree.open_for_good(), level)
            seen = look(space, Session(space))
            assert (seen.contents, seen.listed) == ({("a", 101): False}, {})


def killed_and_opened(level: Level, every: int = 1, every_more: int = 1) -> None:
    """The process is killed at any call, the next one recovers, and the power goes at any call of that or behind it."""
    known = set()
    for killed, promise in crashes(level, every, forward=True):
        killed.survive_kill()
        for fs, space in openings(killed, level, every_more):
            promised = promise if space is None else opened(space, promise)
            for tree in trees_of(fs, level, TREES if FULL else EXTREMES, draw=1):
                if (key := (tree.key(), promised.key())) not in known:
                    known.add(key)
                    judge(tree, promised, level)


def opened(space: Space, promise: Promise) -> Promise:
    """What is promised once it was opened."""
    decided = found(space, promise) is not None
    contents = look(space, Session(space)).contents
    consumed = sum(place not in contents for place in CONSUMED) if decided else 0
    return replace(promise, decided=decided, consumed=consumed, asked=consumed)


@pytest.mark.parametrize("level", LEVELS, ids=str)
def test_power_loss(level: Level) -> None:
    power_loss(level, 1 if FULL else 2)


@pytest.mark.parametrize("level", LEVELS if FULL else [STRICT, JOURNAL], ids=str)
def test_power_loss_while_it_follows_in_groups(level: Level, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_steps, "STEP_BLOCKS", 1)
    power_loss(level, EVERY)


@pytest.mark.parametrize("level", KILL if FULL else [*SAMPLE, NONE], ids=str)
def test_a_killed_process(level: Level) -> None:
    for fs, promise in crashes(level):
        judge(fs.tree_after_kill(), promise, level)


@pytest.mark.parametrize("level", LEVELS if FULL else [STRICT, JOURNAL], ids=str)
def test_the_power_goes_while_a_batch_is_rolled_back(level: Level) -> None:
    power_loss_undone(level)


@pytest.mark.parametrize("level", LEVELS if FULL else [STRICT, JOURNAL], ids=str)
def test_recovery_is_cut_off_and_run_again(level: Level) -> None:
    """What it told is true after the next crash, too."""
    killed_and_opened(level, *((1, 1) if FULL else (5, 13)))


@pytest.mark.parametrize("level", LEVELS if FULL else [STRICT, JOURNAL], ids=str)
def test_the_list_of_a_batch_does_not_come_back(level: Level) -> None:
    power_loss_with_the_next(level)


NOTICED: dict[str, Callable[[Level], None]] = {
    "decide: content batch record": power_loss,
    "batch: target batches": power_loss,
    "batch: content watermark": power_loss,
    "batch: target committed": power_loss,
    "batch: target queue": power_loss,
    "batch: target range": power_loss,
    "batch: target prepared": power_loss_with_the_next,
    "batch: source prepared": power_loss_of_one,
    "_sync_directories: names batches": partial(killed_and_opened, every_more=7),
}
"""For each kind of sync of batches the way by which its loss is noticed, without a journal."""

REDUNDANT = {"batch: target tries": "a try that is lost with the power is not counted, and its message is safe"}
"""Kinds whose loss no crash test notices, and why they are kept."""


@pytest.mark.parametrize("kind", NOTICED)
def test_a_sync_left_out_is_noticed(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with careless(monkeypatch, kind) as care, pytest.raises((AssertionError, ResourceError)):
        NOTICED[kind](STRICT)
    assert kind in care.asked


def test_every_kind_of_sync_of_batches_is_in_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    with careless(monkeypatch) as care:
        for undo in (False, True):
            fs, _ = play(STRICT, undo=undo)
            fs.survive_kill()
            open_space(fs, STRICT)
    own = {kind for kind in care.asked if "batch" in kind or kind.startswith("decide:")}
    assert own == NOTICED.keys() | REDUNDANT.keys()


@pytest.mark.parametrize("kind", REDUNDANT)
def test_a_redundant_sync_left_out_is_not_noticed(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with careless(monkeypatch, kind):
        power_loss(STRICT, EVERY)
        power_loss_undone(STRICT)
