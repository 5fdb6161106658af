"""A database that decides by its own commit, and whoever dies at whatever moment: its work, its row and the branches
of all others agree, whether the commit arrived, was lost, or is still on its way when the next life begins.
"""

from __future__ import annotations

import contextlib
import copy
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

import pytest

from support.forgetful import Crashed, Tree
from support.paths import Choices, every_path
from support.tm_ledger import Ledger
from support.tm_world import COMMITTED, PREPARED, READ_ONLY, ROLLED_BACK, STARTED, Bank, Rig, World, mortal
from xaqueue.core.storage.fs import FileSystem
from xaqueue.errors import DecisionLogError, OutcomeUnknown, RolledBack
from xaqueue.tm.coordinator import OnStep
from xaqueue.tm.coordinator import TraceStep as Step
from xaqueue.xa import Outcome

FULL = os.environ.get("XAQUEUE_CRASH_FULL") == "1"
NAMES = ("a", "b")
LEDGER = "ledger"
FAULTS = ("", "request lost", "answer lost", "on its way", "refused")
POINTS = 60
"""More than there are in one transaction."""


@dataclass
class Scene:
    """Two queues, as it were, and a database that decides."""

    world: World
    ledger: Ledger
    told: dict[bytes, Outcome] = field(default_factory=dict)
    begun: list[bytes] = field(default_factory=list)

    def rig(self, fs: FileSystem) -> Rig:
        def on_step(step: Step, gtrid: bytes, participant: str) -> None:
            self.world.point()

        parties = {name: bank.connect for name, bank in self.world.banks.items()}
        return Rig(fs, {**parties, LEDGER: self.ledger.connect}, on_step=on_step)

    def play(self, rig: Rig, transactions: int = 1) -> None:
        """Raises Crashed."""
        for _ in range(transactions):
            tx = rig.transaction()
            self.begun.append(tx.gtrid)
            try:
                with tx:
                    for name in NAMES:
                        tx[name].work()
                    tx[LEDGER].work(tx.gtrid)
            except RolledBack:
                self.told[tx.gtrid] = Outcome.ROLLED_BACK
            except (OutcomeUnknown, DecisionLogError):
                continue  # nobody knows
            else:
                self.told[tx.gtrid] = Outcome.COMMITTED

    def heal(self) -> None:
        self.world.revive()
        for bank in self.world.banks.values():
            bank.heal()
        self.ledger.fault_of = str

    def recover(self, tree: Tree) -> None:
        """A life in which the database is away, one in which it is back, and one that has nothing left to do."""
        self.heal()
        self.ledger.is_down = True
        rig = self.rig(tree.open_for_good())
        rig.recover()
        self.judge(is_over=False)
        self.ledger.is_down = False
        for _ in range(2):
            assert all(report.complete for report in rig.recover().values())
        self.ledger.land()
        self.judge()
        assert rig.coordinator.in_doubt() == []
        rig.log.close()
        last = self.rig(rig.log._fs)
        for _ in range(2):
            last.recover()
        self.judge()
        assert self.ledger.decisions() == [], "rows go once nobody can need them"

    def judge(self, *, is_over: bool = True) -> None:
        for gtrid in self.begun:
            states = set(self.world.states(gtrid).values()) - {READ_ONLY}
            if gtrid.decode() in self.ledger.done:
                assert states <= ({COMMITTED} if is_over else {COMMITTED, PREPARED}), "the row is there"
            elif is_over:
                assert states <= {ROLLED_BACK}, "the row is not there"
            else:
                assert COMMITTED not in states or not self.ledger.on_their_way, "before it was decided"
            if gtrid in self.told and is_over:
                assert (gtrid.decode() in self.ledger.done) == (self.told[gtrid] is Outcome.COMMITTED)


def scene_of(fault: str = "", *, has_two_phases: bool = True, read_only: str = "", late: str = "b") -> Scene:
    world = World()
    for name in NAMES:
        Bank(world, name, votes_read_only=name in read_only, is_deferred=name in late)
    return Scene(world, Ledger(world, has_two_phases, fault_of=lambda: fault))


def deaths(scene: Scene, tree: Tree, transactions: int = 1) -> Iterator[tuple[Scene, Tree, bool]]:
    """What each death leaves, at one point after the other, and whether there was one."""
    for die_at in count():
        one = copy.deepcopy(scene)
        fs = mortal(tree, one.world)
        rig = one.rig(fs)
        one.world.die_at = die_at
        with contextlib.suppress(Crashed):
            one.play(rig, transactions)
        alive = one.world.alive
        yield one, fs.tree_after_kill(), not alive
        if alive:
            assert die_at > 20
            return


@pytest.mark.parametrize("has_two_phases", [True, False])
@pytest.mark.parametrize("read_only", ["", "a", "ab"])
@pytest.mark.parametrize("fault", FAULTS)
def test_dead_between_any_two_steps(fault: str, read_only: str, has_two_phases: bool) -> None:
    for scene, tree, _ in deaths(scene_of(fault, has_two_phases=has_two_phases, read_only=read_only), STARTED):
        scene.recover(tree)


@pytest.mark.parametrize("late", ["", "ab"])
def test_dead_in_a_later_transaction_of_the_same_life(late: str) -> None:
    """The log has noted by then that this database decides, and rows wait to be removed."""
    for scene, tree, _ in deaths(scene_of(late=late), STARTED, transactions=3):
        scene.recover(tree)


@pytest.mark.parametrize("late", ["a", "ab"])
def test_dead_while_rows_are_removed(late: str) -> None:
    """A row goes once what it decided is hardened everywhere, and not before."""
    for die_at in count():
        scene = scene_of(late=late)
        fs = mortal(STARTED, scene.world)
        rig = scene.rig(fs)
        scene.play(rig, 2)
        assert [bank.late for bank in scene.world.banks.values() if bank.is_deferred] != []
        scene.world.points, scene.world.die_at = 0, die_at
        with contextlib.suppress(Crashed):
            for _ in range(2):
                rig.recover()
        alive = scene.world.alive
        assert not alive or scene.ledger.decisions() == []
        scene.recover(fs.tree_after_kill())
        if alive:
            assert die_at > 10
            return


def test_interrupted_and_then_dead() -> None:
    """The thread of a transaction is gone at any step, recovery goes on with it, and dies in the middle of that.

    What a queue has not hardened it has not acknowledged, although it tells that it is committed.
    """
    for interrupted_at in count():
        for die_at in count(0, 2):
            scene = scene_of(late="ab")
            fs = mortal(STARTED, scene.world)
            rig = scene.rig(fs)
            die, steps = rig.coordinator.step, count()

            def on_step(
                step: Step,
                gtrid: bytes,
                name: str,
                die: OnStep = die,
                steps: Iterator[int] = steps,
                at: int = interrupted_at,
            ) -> None:
                die(step, gtrid, name)
                if next(steps) == at:
                    raise KeyboardInterrupt

            rig.coordinator.step = on_step
            with contextlib.suppress(KeyboardInterrupt):
                scene.play(rig)
            rig.coordinator.step = die
            was_interrupted = not scene.told
            scene.world.points, scene.world.die_at = 0, die_at
            with contextlib.suppress(Crashed):
                for _ in range(2):
                    rig.recover()
            alive = scene.world.alive
            scene.recover(fs.tree_after_kill())
            if alive:
                break
        if not was_interrupted:
            assert interrupted_at > 10
            return


def test_a_queue_that_is_killed_and_lost_what_was_not_hardened_is_told_again() -> None:
    """The transaction manager lives on, and its row is there as long as anybody may need it."""
    scene = scene_of(late="ab")
    rig = scene.rig(mortal(STARTED, scene.world))
    scene.play(rig)
    bank = scene.world.banks["a"]
    assert len(bank.late) == 1
    bank.lose_sessions()
    assert len(bank.prepared()) == 1
    rig.resolvers[LEDGER].run_once()
    assert scene.ledger.decisions() == ["commit"]
    assert rig.coordinator.in_doubt() == [], "it is committed as far as anybody knows"
    rig.resolvers["a"].run_once()
    assert bank.prepared() == bank.late == []
    for _ in range(2):
        rig.recover()
    assert scene.ledger.decisions() == []
    scene.judge()


@pytest.mark.parametrize("fault", FAULTS)
def test_power_lost_at_any_call_of_the_log(fault: str) -> None:
    """The database and the queues are somewhere else, and go on."""
    for crash_after in count():
        scene = scene_of(fault)
        fs = mortal(STARTED, scene.world, crash_after)
        try:
            scene.play(scene.rig(fs), 2)
        except (Crashed, DecisionLogError):
            scene.world.alive = False
        crashed = fs.crashed
        for tree in (fs.tree_after_kill(), *fs.trees_after_crash(limit=16, seed=crash_after)):
            copy.deepcopy(scene).recover(tree)
        if not crashed:
            assert crash_after >= 3
            return


@pytest.mark.parametrize("fault", FAULTS)
def test_dead_in_recovery_too(fault: str) -> None:
    for first, tree, died in deaths(scene_of(fault), STARTED):
        if not died:
            return
        first.heal()
        first.world.points = 0
        for die_at in count() if FULL else count(0, 3):
            scene = copy.deepcopy(first)
            scene.world.die_at = die_at
            fs = mortal(tree, scene.world)
            with contextlib.suppress(Crashed, DecisionLogError):
                scene.rig(fs).recover()
            alive = scene.world.alive
            scene.recover(fs.tree_after_kill())
            if alive:
                break


CHOICES = {
    "prepare": ["", "read-only", "refused", "answer lost", "request lost"],
    "commit": ["", "answer lost", "request lost"],
    "rollback": ["", "answer lost", "request lost"],
}


def test_every_interleaving_of_two_queues_and_the_database() -> None:
    """Each path without a crash, and with one: at a point that differs from path to path, or at all of them."""
    dice = random.Random(0)

    def run(choices: Choices, die_at: int | None) -> Scene:
        scene = scene_of()
        for name, bank in scene.world.banks.items():

            def fault(verb: str, bank: Bank = bank, name: str = name) -> str:
                what = choices.choose(CHOICES.get(verb, [""]), f"{verb} {name}")
                if verb == "prepare":
                    bank.votes_read_only = what == "read-only"
                return what

            bank.fault_of = fault
        scene.ledger.fault_of = lambda: choices.choose(FAULTS, "commit ledger")
        fs = mortal(STARTED, scene.world)
        rig = scene.rig(fs)
        scene.world.die_at = die_at
        with contextlib.suppress(Crashed):
            scene.play(rig)
        scene.recover(fs.tree_after_kill())
        return scene

    paths = 0
    for choices, _ in every_path(lambda choices: run(choices, None)):
        prefix = [which for which, _ in choices.taken]
        for die_at in range(POINTS) if FULL else [dice.randrange(POINTS)]:
            run(Choices(prefix), die_at)
        paths += 1
    assert paths > 100
