"""A transaction manager that dies anywhere leaves nothing half done: recovery makes every participant agree.

It dies between every two steps, before and after whatever a participant does, and at every file-system call of its
log, of which a power loss then leaves anything that was not synced.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

import pytest

from support.forgetful import Crashed, ForgetfulFileSystem, Tree
from support.paths import Choices, every_path
from support.tm_world import COMMITTED, PREPARED, READ_ONLY, ROLLED_BACK, STARTED, Bank, Rig, World, mortal, rig_of
from xaqueue.core.storage.journal import SMALLEST_SEGMENT_BYTES
from xaqueue.errors import DecisionLogError, HeuristicOutcome, OutcomeUnknown, RolledBack
from xaqueue.tm.gtrid import Gtrid
from xaqueue.tm.log import DecisionLog
from xaqueue.tm.records import Heuristic
from xaqueue.tm.voting import ParticipantOutcome
from xaqueue.xa import Outcome

NAMES = ("a", "b", "c")


@dataclass
class Scene:
    """Faults of each participant, by name and verb; what each votes; and how often there is a transaction."""

    faults: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    read_only: Sequence[str] = ()
    tells: bool = False
    transactions: int = 1

    def world(self) -> World:
        world = World()
        for name in NAMES:
            faults = copy.deepcopy(self.faults.get(name, {}))
            Bank(world, name, self.tells, name in self.read_only, faults=faults)
        return world


@dataclass
class Told:
    """What the caller heard before the end."""

    outcomes: dict[bytes, Outcome] = field(default_factory=dict)
    heuristics: set[bytes] = field(default_factory=set)
    begun: list[bytes] = field(default_factory=list)


def play(rig: Rig, scene: Scene, told: Told) -> None:
    """Transactions one after the other. Raises Crashed."""
    for _ in range(scene.transactions):
        tx = rig.transaction()
        told.begun.append(tx.gtrid)
        try:
            with tx:
                for name in NAMES:
                    tx[name].work()
        except HeuristicOutcome:
            told.heuristics.add(tx.gtrid)
        except RolledBack:
            told.outcomes[tx.gtrid] = Outcome.ROLLED_BACK
        except (OutcomeUnknown, DecisionLogError):
            continue  # nobody knows
        else:
            told.outcomes[tx.gtrid] = Outcome.COMMITTED


def recovered(world: World, tree: Tree) -> Rig:
    """The next boot, and two rounds of its recovery, of which the second has nothing left to do."""
    world.revive()
    for bank in world.banks.values():
        bank.heal()
    rig = rig_of(world, tree.open_for_good())
    for report in rig.recover().values():
        assert report.complete, report.error
    for report in rig.recover().values():
        assert not (report.committed)
        assert not (report.rolled_back)
        assert not (report.finished_before)
    return rig


def judge(world: World, rig: Rig, told: Told) -> None:
    noted = {one.gtrid: one.heuristics for one in rig.coordinator.in_doubt()}
    assert all(noted.values()), "what is open beside heuristics was finished"
    for gtrid in told.begun:
        states = world.states(gtrid)
        by_hand = {name for name, bank in world.banks.items() if bank.has(bank.by_hand, gtrid)}
        forgotten = {name for name, bank in world.banks.items() if bank.has(bank.forgotten, gtrid)}
        own = {state for name, state in states.items() if name not in by_hand | forgotten} - {READ_ONLY}
        assert PREPARED not in states.values()
        assert len(own) < 2, "one committed and one rolled back"
        if gtrid in told.outcomes:
            wanted = COMMITTED if told.outcomes[gtrid] is Outcome.COMMITTED else ROLLED_BACK
            assert own <= {wanted}
        opposed = {name for name in by_hand if {states[name]} != own} if own else set()
        said = {noted.participant for noted in noted.get(gtrid, ())}
        assert opposed <= said, "what a person did against the decision is said, and kept"


FAULTS: dict[str, Scene] = {
    "all is well": Scene(),
    "several transactions": Scene(transactions=3),
    "one read-only": Scene(read_only="b"),
    "two read-only": Scene(read_only="ab"),
    "all read-only": Scene(read_only="abc"),
    "refused": Scene({"c": {"prepare": ["refused"]}}),
    "prepare's answer lost": Scene({"b": {"prepare": ["answer lost"]}}),
    "prepare's request lost": Scene({"b": {"prepare": ["request lost"]}}),
    "commit's answer lost": Scene({"a": {"commit": ["answer lost"]}}),
    "commit's request lost": Scene({"a": {"commit": ["request lost"]}, "c": {"commit": ["request lost"]}}),
    "commit's answer lost, and it tells": Scene({"a": {"commit": ["answer lost"]}}, tells=True),
    "refused, and rollback lost": Scene({"c": {"prepare": ["refused"]}, "a": {"rollback": ["request lost"]}}),
    "rolled back by hand": Scene({"b": {"commit": ["hand-rollback"]}}),
    "committed by hand": Scene({"b": {"commit": ["hand-commit"]}}),
    "committed by hand, and refused": Scene({"c": {"prepare": ["refused"]}, "a": {"rollback": ["hand-commit"]}}),
}
every_scene = pytest.mark.parametrize("scene", FAULTS.values(), ids=FAULTS)


@every_scene
def test_dead_between_any_two_steps(scene: Scene) -> None:
    for die_at in count():
        world, told = scene.world(), Told()
        fs = mortal(STARTED, world)
        rig = rig_of(world, fs)
        world.die_at = die_at
        with contextlib.suppress(Crashed):
            play(rig, scene, told)
        survived = world.alive
        judge(world, recovered(world, fs.tree_after_kill()), told)
        if survived:
            assert die_at > 10
            return


@every_scene
def test_power_lost_at_any_call_of_the_log(scene: Scene) -> None:
    for crash_after in count():
        world, told = scene.world(), Told()
        fs = mortal(STARTED, world, crash_after)
        try:
            play(rig_of(world, fs), scene, told)
        except (Crashed, DecisionLogError):
            world.alive = False
        crashed = fs.crashed
        for tree in (fs.tree_after_kill(), *fs.trees_after_crash(limit=24, seed=crash_after)):
            after = copy.deepcopy(world)
            judge(after, recovered(after, tree), told)
        if not crashed:
            assert crash_after >= 5
            return


def test_killed_first_and_without_power_in_the_next_life() -> None:
    """What the second life reads may be in memory only: it has to be on disk before anybody acts on it."""
    for crash_after in range(4, 16):
        for die_at in (*range(0, 30, 3), None):
            world, told = Scene().world(), Told()
            fs = mortal(STARTED, world, crash_after)
            with contextlib.suppress(Crashed, DecisionLogError):
                play(rig_of(world, fs), Scene(), told)
            world.revive()
            fs.survive_kill()
            world.points, world.die_at = 0, die_at
            with contextlib.suppress(Crashed, DecisionLogError):
                rig_of(world, fs).recover()
            for tree in fs.trees_after_crash(limit=16):
                after = copy.deepcopy(world)
                judge(after, recovered(after, tree), told)


@pytest.mark.parametrize("name", ["commit's request lost", "refused, and rollback lost", "rolled back by hand"])
def test_dead_in_recovery_too(name: str) -> None:
    """The second life dies at any point of its recovery, and at any call of the log; the third one finishes."""
    scene = FAULTS[name]
    for first, kind in itertools.product(range(0, 60, 4), ("step", "call")):
        dead, told = scene.world(), Told()
        fs = mortal(STARTED, dead)
        rig = rig_of(dead, fs)
        dead.die_at = first
        with contextlib.suppress(Crashed):
            play(rig, scene, told)
        dead.revive()
        dead.points, left = 0, fs.tree_after_kill()
        for die_at in count():
            world = copy.deepcopy(dead)
            world.die_at = die_at if kind == "step" else None
            fs = mortal(left, world, die_at if kind == "call" else None)
            with contextlib.suppress(Crashed, DecisionLogError):
                rig_of(world, fs).recover()
            survived = world.alive
            judge(world, recovered(world, fs.tree_after_kill()), told)
            if survived:
                break


FULL = os.environ.get("XAQUEUE_CRASH_FULL") == "1"
POINTS = 40
"""As many as there are in one transaction, and one more."""


def scene_of(choices: Choices, tells: bool) -> tuple[World, Told]:
    """Participants that choose what goes wrong with each call."""
    world = World()
    for name in NAMES:
        bank = Bank(world, name, tells)

        def fault(verb: str, bank: Bank = bank) -> str:
            what = choices.choose(CHOICES.get(verb, [""]), f"{verb} {bank.name}")
            if verb == "prepare":
                bank.votes_read_only = what == "read-only"
            return what

        bank.fault_of = fault
    return world, Told()


CHOICES = {
    "prepare": ["", "read-only", "refused", "answer lost", "request lost"],
    "commit": ["", "answer lost", "request lost", "hand-rollback", "hand-commit", "gone"],
    "rollback": ["", "answer lost", "request lost", "hand-commit"],
}


@pytest.mark.parametrize("tells", [True, False])
def test_every_interleaving_of_three_participants(tells: bool) -> None:
    """Each path without a crash, and every other with one: at a point that differs from path to path, or at all."""
    dice = random.Random(0)

    def run(choices: Choices, die_at: int | None) -> tuple[World, Told, Rig]:
        world, told = scene_of(choices, tells)
        fs = mortal(STARTED, world)
        rig = rig_of(world, fs)
        world.die_at = die_at
        with contextlib.suppress(Crashed):
            play(rig, Scene(), told)
        return world, told, recovered(world, fs.tree_after_kill())

    paths = 0
    for choices, (world, told, rig) in every_path(lambda choices: run(choices, None)):
        judge_path(choices, world, told, rig)
        gone = [name for name, bank in world.banks.items() if bank.forgotten]
        if gone and "commit" in str(choices):
            assert told.heuristics, f"a branch that is gone at the first commit is a hazard: {choices}"
        prefix = [which for which, _ in choices.taken]
        for die_at in range(POINTS) if FULL else [dice.randrange(POINTS)][: paths % 2]:
            again = Choices(prefix)
            judge_path(again, *run(again, die_at))
        paths += 1
    assert paths > 500


def judge_path(choices: Choices, world: World, told: Told, rig: Rig) -> None:
    try:
        judge(world, rig, told)
    except AssertionError as wrong:
        raise AssertionError(f"{wrong}: {choices}, died at {world.points}") from wrong


# The log alone

MANY = [f"{number:060}" for number in range(96)]
"""Participants whose names fill segments of the journal."""


@dataclass
class Story:
    """Decisions, ends, heuristics and checkpoints, and what of them was acknowledged."""

    fs: ForgetfulFileSystem
    epochs: set[int]
    node: str = ""
    open: set[bytes] = field(default_factory=set)
    """Hardened, and not said to be done."""
    done: set[bytes] = field(default_factory=set)
    noted: set[bytes] = field(default_factory=set)
    on_their_way: set[bytes] = field(default_factory=set)

    def play(self, rounds: int) -> None:
        log = DecisionLog(self.fs, segment_bytes=SMALLEST_SEGMENT_BYTES)
        assert log.epoch not in self.epochs, "an epoch is never used twice"
        assert self.node in ("", log.node)
        self.node = log.node
        self.epochs.add(log.epoch)
        for number in range(rounds):
            gtrid = bytes(Gtrid(log.node, log.epoch, number + 1))
            self.on_their_way = {gtrid}
            log.decide(gtrid, MANY)
            self.open.add(gtrid)
            if number % 3 == 1:
                self.finish(log, gtrid)
            if number % 4 == 2:
                log.note(Heuristic(gtrid, "a", Outcome.COMMITTED, ParticipantOutcome.HEUR_ROLLED_BACK, 1, "by hand"))
                self.noted.add(gtrid)
            if number % 8 == 5:
                log.checkpoint()
            if number % 8 == 7:
                forgotten = min(self.noted)
                if forgotten in self.open:
                    self.finish(log, forgotten)
                self.noted.discard(forgotten)
                self.on_their_way = {forgotten}
                log.forget(forgotten)
        log.close()

    def finish(self, log: DecisionLog, gtrid: bytes) -> None:
        assert [log.acknowledged(gtrid, name) for name in MANY] == [False] * (len(MANY) - 1) + [True]
        self.open.discard(gtrid)
        self.done.add(gtrid)

    def judge(self, tree: Tree) -> None:
        log = DecisionLog(tree.open(), segment_bytes=SMALLEST_SEGMENT_BYTES)
        found = set(log.table.open)
        assert self.open <= found | self.on_their_way, "what was decided is there"
        assert self.open - self.on_their_way <= found
        assert found <= self.open | self.done | self.on_their_way
        noted = {gtrid for gtrid, _ in log.table.heuristics}
        assert self.noted <= noted
        assert noted <= self.noted | self.on_their_way
        assert log.epoch not in self.epochs
        assert log.node == self.node or not self.open


def cut(tree: Tree, rounds: int, crash_after: int) -> Story:
    story = Story(tree.open(crash_after), set())
    try:
        story.play(rounds)
    except (Crashed, DecisionLogError):
        assert story.fs.crashed
    return story


@pytest.mark.parametrize("start", [Tree({}), STARTED], ids=["the first opening", "a later one"])
def test_every_crash_of_the_log_keeps_what_was_decided(start: Tree) -> None:
    for crash_after in count():
        story = cut(start, 18, crash_after)
        for tree in (story.fs.tree_after_kill(), *story.fs.trees_after_crash(limit=16, seed=crash_after)):
            story.judge(tree)
        if not story.fs.crashed:
            assert crash_after > 50
            return
