"""What says that messages of a block are gone, where it is overwritten in place: each sync of it and each order of it
is there for a crash. Left out or turned round, a crash test notices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from unittest import mock

import pytest

from support.careless_log import careless
from support.crash_cases import FULL
from support.crash_jury import Jury
from support.crash_level import STRICT, open_space
from support.crash_story import EMPTY, Act, End, Put, Record, Sample, Story, Take, crashes, look, play, xid_of
from support.forgetful import Crashed, ForgetfulFileSystem, Tree
from xaqueue.core.engine.directory_log import DirectoryLog, _Touched
from xaqueue.core.model.branch import Branch
from xaqueue.core.model.change import Change, Op
from xaqueue.core.model.definitions import MANY
from xaqueue.core.model.entry import MessageBlock
from xaqueue.core.storage.fs import discard
from xaqueue.core.storage.group_commit import Step
from xaqueue.errors import ResourceFailed, RetryLater
from xaqueue.features.session import Session
from xaqueue.xa import Flag

pytestmark = pytest.mark.usefixtures("quiet")

LEVEL = replace(STRICT, blocks=MANY)
MESSAGES = range(200, 232, 2)
"""None of them has properties: they come in one block."""
TREES = 1 << 10 if FULL else 0
Way = Callable[[str], None]


def takes(begin: int, end: int, queue: str = "a") -> tuple[Take, ...]:
    return tuple(Take(queue, one) for one in MESSAGES[begin:end])


def act(end: End, *work: Put | Take) -> Act:
    return Act(end, work, at_once=True)


def left_by(start: Tree, *acts: Act) -> Tree:
    return play(Story(acts, start), LEVEL)[0].tree_after_kill()


GIVEN = left_by(EMPTY, *(act(End.ONE_PHASE, *(Put(queue, one) for one in MESSAGES)) for queue in ("a", "b")))
"""A block in each of two queues."""
TWO_LEFT = left_by(GIVEN, act(End.ONE_PHASE, *takes(0, 14)))
STORIES = {
    **{
        f"take one: {end.name.lower()}": Story((act(end, *takes(0, 1)),), GIVEN)
        for end in (End.ONE_PHASE, End.TWO_PHASE)
    },
    "one after the other": Story((act(End.ONE_PHASE, *takes(0, 1)), act(End.ONE_PHASE, *takes(1, 2))), GIVEN),
    "the rest": Story((act(End.ONE_PHASE, *takes(14, 16)),), TWO_LEFT),
    "of two blocks": Story((act(End.ONE_PHASE, *takes(0, 1), *takes(0, 1, "b")),), GIVEN),
    "of two blocks: two_phase": Story((act(End.TWO_PHASE, *takes(0, 1), *takes(0, 1, "b")),), GIVEN),
}


def power_loss(name: str) -> None:
    jury = Jury(STORIES[name], LEVEL)
    for fs, record in crashes(STORIES[name], LEVEL):
        for tree in fs.trees_after_crash(TREES):
            jury.judge(tree, record)


def kill_then_power_loss(name: str) -> None:
    for fs, record in crashes(STORIES[name], LEVEL):
        fs.survive_kill()
        _open_and_lose_power(name, fs, record, closed_well=False)


def raised_level(name: str) -> None:
    """The owner before synced nothing, and has closed the space."""
    fs, record = play(STORIES[name], replace(LEVEL, name="NONE", flags="NONE"))
    _open_and_lose_power(name, fs, record, closed_well=True)


def _open_and_lose_power(name: str, fs: ForgetfulFileSystem, record: Record, *, closed_well: bool) -> None:
    jury, again = Jury(STORIES[name], LEVEL), replace(record, openings=record.openings + 1)
    promised = jury.pinned(open_space(fs, LEVEL, closed_well=closed_well), again)
    for tree in fs.trees_after_crash(TREES):
        jury.judge(tree, promised)


ANEW = "rewrite: content block"
"""Of what may be in memory only after a kill, also of a bitmap."""
NOTICED: dict[str, tuple[Way, str]] = {
    "one_phase: content bitmap": (power_loss, "take one: one_phase"),
    "one_phase: target bitmaps": (power_loss, "take one: one_phase"),
    "commit: content bitmap": (power_loss, "take one: two_phase"),
    "commit: target bitmaps": (power_loss, "take one: two_phase"),
    "_harden_bitmaps: content bitmap": (raised_level, "one after the other"),
    "_harden_bitmaps: names bitmaps": (kill_then_power_loss, "take one: one_phase"),
}


def test_every_sync_of_a_bitmap_is_in_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    with careless(monkeypatch) as care:
        for story in STORIES.values():
            for fs, _ in crashes(story, LEVEL, Sample(7)):
                fs.survive_kill()
                Session(open_space(fs, LEVEL)).close()
    assert {kind for kind in care.asked if "bitmap" in kind} == NOTICED.keys()


@pytest.mark.parametrize("kind", [*NOTICED, ANEW])
def test_a_sync_of_a_bitmap_left_out_is_noticed(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    way, story = NOTICED.get(kind, (kill_then_power_loss, "one after the other"))
    way(story)
    with careless(monkeypatch, kind), pytest.raises(AssertionError):
        way(story)


_leave, _carry_out = DirectoryLog._leave, DirectoryLog._carry_out


def bits_before_the_point(
    log: DirectoryLog, change: Change, ops: Sequence[Op], touched: _Touched | None = None
) -> None:
    _carry_out(log, change, ops, touched)
    if change.point and ops is change.point:
        log._leave(change.taken, touched or _Touched())


def bitmap_first(log: DirectoryLog, taken: Mapping[MessageBlock, int], touched: _Touched) -> None:
    _leave(log, taken, touched)
    for path in touched.emptied:
        discard(log.fs, path)


WRONG: dict[str, tuple[AbstractContextManager[object], Way, str]] = {
    "bits before the point": (
        mock.patch.object(DirectoryLog, "_carry_out", bits_before_the_point),
        power_loss,
        "of two blocks: two_phase",
    ),
    "no branch block": (mock.patch.object(Branch, "needs_list", False), power_loss, "of two blocks"),
    "the bitmap before its block": (mock.patch.object(DirectoryLog, "_leave", bitmap_first), power_loss, "the rest"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_order_is_noticed(wrong: str) -> None:
    patched, way, story = WRONG[wrong]
    way(story)
    with patched, pytest.raises(AssertionError):
        way(story)


# Two steps in one round


PLACES = [*(("a", one) for one in MESSAGES[:3]), *(("b", one) for one in MESSAGES[:2])]
LISTED, SINGLE = (0, 1, 3, 4), (2,)
"""Of these what a branch in doubt takes, and what one takes in one phase."""


def commit_together(fs: ForgetfulFileSystem, order: int) -> None:
    """Both, which take from one block, in one round."""
    space, steps = open_space(fs, LEVEL), list[Step]()
    for number, places in enumerate((LISTED, SINGLE)):
        session, xid, step = Session(space), xid_of(number), Step()
        session.start(xid)
        for queue in sorted({PLACES[place][0] for place in places}):
            session.dequeue_many(queue, sum(PLACES[place][0] == queue for place in places))
        session.end(xid)
        if places is LISTED:
            session.prepare(xid)

        def keep(plan: object, publish: Callable[[], None], *_: object, of: Step = step, **__: object) -> None:
            of.plan, of.publish = plan, publish
            raise RetryLater("its step is made here")

        with mock.patch.object(space.log, "perform", keep), suppress(RetryLater):
            session.commit(xid, Flag.NOFLAGS if places is LISTED else Flag.ONEPHASE)
        steps.append(step)
    assert isinstance(space.log, DirectoryLog)
    space.log._harden(steps[::order])


def judge_together(tree: Tree, *, is_told: bool) -> None:
    space = open_space(tree.open(), LEVEL)
    seen = look(space, Session(space))
    gone = [place not in seen.contents for place in PLACES]
    listed, single = ({gone[place] for place in places} for places in (LISTED, SINGLE))
    assert len(listed) == 1, f"of what goes together some is gone: {gone}"
    assert not (listed == {True} and xid_of(0) in seen.listed), "in doubt is what takes messages that are gone"
    assert not is_told or listed == single == {True}, f"what was acknowledged is back: {gone}"


def assert_together(order: int) -> None:
    for crash_after in range(1, 200):
        fs, is_told = GIVEN.open(crash_after), False
        with suppress(Crashed, ResourceFailed):
            commit_together(fs, order)
            is_told = True
        for tree in (fs.tree_after_kill(), *fs.trees_after_crash(TREES)):
            judge_together(tree, is_told=is_told)
        if is_told:
            return
    raise AssertionError("it never ends")


def bits_in_the_plan(log: DirectoryLog, change: Change, ops: Sequence[Op], touched: _Touched | None = None) -> None:
    """Before the point; so that who is carried out meanwhile writes them."""
    for block, bits in change.taken.items() if change.point and ops is change.point else ():
        block.gone |= bits
    _carry_out(log, change, ops, touched)


@pytest.mark.parametrize("order", [1, -1])
def test_two_steps_of_one_round(order: int) -> None:
    assert_together(order)


def test_a_bit_that_is_set_in_the_plan_is_noticed() -> None:
    with mock.patch.object(DirectoryLog, "_carry_out", bits_in_the_plan), pytest.raises(AssertionError):
        assert_together(1)
