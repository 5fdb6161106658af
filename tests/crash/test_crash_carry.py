"""What a database carries for a space, and whoever dies at whatever call: each change is done exactly if its row was
committed, once, and nothing is handed out of the queues concerned before that is known.
"""

from __future__ import annotations

import contextlib
import os
import random
from itertools import count

import pytest

from support.carry_scene import GIVEN_TREE, LEDGER, Deed, Scene, deaths
from support.crash_cases import trees_of
from support.crash_level import LAGGING
from support.forgetful import Crashed, ForgetfulFileSystem
from support.tm_plain import way
from support.tm_world import STARTED
from xaqueue.errors import DecisionLogError, ResourceFailed, RetryLater
from xaqueue.tm import branch
from xaqueue.tm.coordinator import TraceStep as Step

pytestmark = pytest.mark.usefixtures("quiet")
FULL = os.environ.get("XAQUEUE_CRASH_FULL") == "1"
EVERY = 1 if FULL else 3
FAULTS = ("", "request lost", "answer lost", "on its way", "refused")
STORY = (
    Deed(puts=(("out", b"1"), ("out", b"2"))),
    Deed(takes=("in",)),
    Deed(puts=(("out", b"3"),), takes=("out", "in")),
    Deed(puts=(("in", b"4"),), takes=("out",)),
)


def tell(scene: Scene) -> None:
    """Some changes are carried, hardened and removed, others are not, and the last one goes wrong.

    Recovery then goes on by itself.
    """
    scene.make_ready()
    scene.play(STORY[:2])
    assert scene.space is not None
    scene.space.log.settle()
    scene.rig.recover()
    scene.play(STORY[2:])
    carried = [row for row in scene.ledgers[LEDGER].rows.values() if row[3] is not None]
    assert len(carried) >= 1
    for _ in range(2):
        scene.rig.recover()


def judge_all(scene: Scene, at: int, *, every: bool = FULL) -> None:
    """After a kill, or one loss of power; or after each."""
    space, log = scene.trees_after_kill()
    assert isinstance(scene.space_fs, ForgetfulFileSystem)
    lost = list(trees_of(scene.space_fs, LAGGING, draw=1)) if every or at % 2 else []
    for tree in [space, *lost] if every else [random.Random(at).choice(lost) if lost else space]:
        scene.fork().recover(tree, log)


@pytest.mark.parametrize("fault", FAULTS)
def test_dead_at_any_call(fault: str) -> None:
    first = 0 if FULL else FAULTS.index(fault)
    for at, scene in enumerate(deaths(lambda: Scene(fault=fault), tell, EVERY, first)):
        judge_all(scene, at)


def test_dead_at_any_call_without_a_way_of_its_own_for_the_plain_case() -> None:
    with way(plain=False):
        for at, scene in enumerate(deaths(Scene, tell, EVERY if FULL else 5 * EVERY)):
            judge_all(scene, at)


@pytest.mark.parametrize("is_away", [False, True])
def test_dead_at_any_call_of_a_clean_close(monkeypatch: pytest.MonkeyPatch, is_away: bool) -> None:
    """Nothing is open then but what its database has not answered, and then its queues wait for that."""
    monkeypatch.setattr(branch, "READ_S", 0.0)
    for at in count(0, 1 if FULL else 2):
        scene = Scene()
        scene.open_mortal(GIVEN_TREE, STARTED)
        scene.make_ready()
        scene.play(STORY[:2])
        if is_away:
            scene.lose(LEDGER, "answer lost")
            scene.play(STORY[2:3])
        scene.world.points, scene.world.die_at = 0, at
        with contextlib.suppress(Crashed):
            scene.rig.log.close()
            scene.close()
        alive = scene.world.alive
        judge_all(scene, at)
        if alive:
            assert at > 5
            return


@pytest.mark.parametrize("is_hardened", [False, True])
def test_what_was_consumed_since_is_not_there_again(is_hardened: bool) -> None:
    """By a transaction of the space alone, whose own record has all that was shown before it."""
    scene = Scene()
    scene.open_mortal(GIVEN_TREE, STARTED)
    scene.make_ready()
    scene.play(STORY[:1])
    assert scene.space is not None
    if is_hardened:
        scene.space.log.settle()
    with scene.connect() as connection:
        message = connection.dequeue("out")
        assert message is not None
    scene.gone.add(message.body)
    for at in range(2):
        judge_all(scene, at)


@pytest.mark.parametrize("fault", ["", "answer lost"])
def test_what_a_prepared_branch_has_added_is_taken_by_a_prepared_one(fault: str) -> None:
    """Until the first is hardened: after a crash it is in doubt, and no carrier knows of it."""
    for at in range(2):
        scene = Scene(ledgers=TWO, fault=fault)
        scene.open_mortal(GIVEN_TREE, STARTED)
        scene.make_ready(["other"])
        scene.play(CROSSED[:1])
        scene.play(CROSSED[1:2])
        assert all(row[3] is None for ledger in scene.ledgers.values() for row in ledger.rows.values())
        for away in TWO:
            one = scene.fork()
            one.ledgers[away].is_down = True
            one.open_for_good(*scene.trees_after_kill())
            for _ in range(4):
                one.rig.recover()
            one.judge_handed_out()
            one.ledgers[away].is_down = False
            one.settle()
            one.judge()
        judge_all(scene, at)


@pytest.mark.parametrize("fault", FAULTS)
def test_dead_in_recovery_too(fault: str) -> None:
    for at, first in enumerate(deaths(lambda: Scene(fault=fault), tell, 5 if FULL else 13, FAULTS.index(fault))):
        trees = first.trees_after_kill()
        for die_at in count(at % 5, 3 if FULL else 17):
            scene = first.fork()
            scene.open_mortal(*trees)
            scene.world.points, scene.world.die_at = 0, die_at
            with contextlib.suppress(Crashed, DecisionLogError):
                for _ in range(4):
                    scene.rig.recover()
            alive = scene.world.alive
            judge_all(scene, die_at)
            if alive:
                break


TWO = ("ledger", "other")
CROSSED = (
    Deed(puts=(("out", b"1"), ("out", b"2")), ledger="ledger"),
    Deed(puts=(("in", b"3"),), takes=("out", "in"), ledger="other"),
    Deed(puts=(("out", b"4"),), takes=("out",), ledger="ledger"),
    Deed(takes=("out",), ledger="other"),
)
"""Each takes what the other has put."""


def cross(scene: Scene) -> None:
    scene.make_ready()
    scene.play(CROSSED)


@pytest.mark.parametrize("away", TWO)
def test_two_databases_carry_for_one_queue(away: str) -> None:
    """Nothing of either is handed out before both were asked, whichever comes first."""
    for at, scene in enumerate(deaths(lambda: Scene(ledgers=TWO, fault="answer lost"), cross, EVERY, TWO.index(away))):
        trees = scene.trees_after_kill()
        scene.heal()
        scene.ledgers[away].is_down = True
        scene.open_for_good(*trees)
        for _ in range(4):
            scene.rig.recover()
        scene.judge_handed_out()
        scene.ledgers[away].is_down = False
        if at % 2:
            scene.settle()
            scene.judge()
        scene.recover(*scene.trees_after_kill())


@pytest.mark.parametrize("dies", [False, True])
def test_interrupted_at_any_step_and_then_dead(dies: bool) -> None:
    """The thread of a transaction is gone at any step, recovery goes on with it, and dies in the middle of that."""
    for interrupted_at in count():
        scene = Scene()
        scene.open_mortal(GIVEN_TREE, STARTED)
        scene.make_ready()
        scene.play(STORY[:1])
        for _ in range(2):  # nothing else is to be hardened then
            scene.rig.recover()
        steps, point = count(), scene.rig.coordinator.step

        def on_step(step: Step, gtrid: bytes, name: str, at: int = interrupted_at) -> None:
            if next(steps) == at:  # noqa: B023
                raise KeyboardInterrupt

        scene.rig.coordinator.step = on_step
        with contextlib.suppress(KeyboardInterrupt):
            scene.play(STORY[1:2])
            interrupted_at = -1
        scene.rig.coordinator.step = point
        scene.world.points, scene.world.die_at = 0, interrupted_at if dies else None
        with contextlib.suppress(Crashed):
            for _ in range(3):
                scene.rig.recover()
        judge_all(scene, 0, every=True)
        if interrupted_at < 0:
            return


def test_a_space_that_is_fenced_and_opened_again_is_told_what_it_lost() -> None:
    """The transaction manager lives on: what its database has is not over because it was committed once."""
    for fails_after in count():
        scene = Scene()
        scene.open_mortal(GIVEN_TREE, STARTED)
        scene.make_ready()
        scene.play(STORY[:1])
        assert isinstance(scene.space_fs, ForgetfulFileSystem)
        scene.space_fs.fail_after = scene.space_fs.calls + fails_after
        with contextlib.suppress(RetryLater, OSError, ResourceFailed):
            for one in STORY[1:]:
                scene.play([one])
                assert scene.space is not None
                scene.space.log.settle()
        failed, scene.space_fs.fail_after = scene.space_fs.failed, None
        scene.settle()
        scene.judge()
        judge_all(scene, fails_after)
        if not failed:
            assert fails_after > 3
            return
