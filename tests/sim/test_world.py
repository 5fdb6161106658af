"""Worlds by dice: a failure says its seed, the fewest steps that fail, and the command that plays them again.

``XAQUEUE_SIM_SEED`` names the first seed, ``XAQUEUE_SIM_SEEDS`` how many three parts play. Always the
same, so that nobody's change fails by a world that another one would have met: new ones are for `tox -e seeds`.
"""

from __future__ import annotations

import itertools
import os
from unittest import mock

import pytest

from sim import doors, run
from sim.model import Rules
from sim.mutants import BY_FEATURES, MUTANTS, REDUNDANT, Mutant, Struck
from sim.rules.batches import Batches
from sim.rules.blocks import Blocks
from sim.rules.counts import Counts
from sim.rules.delays import Delays
from sim.rules.kept import Kept
from sim.rules.leases import Leases
from sim.rules.restores import Restores
from sim.rules.retries import Retries
from sim.rules.streams import Streams
from support.careless_log import careless
from support.crash_level import CYCLING, STRICT
from support.forgetful import ForgetfulFileSystem

PARTS = 18
BESIDE_BLOCKS: tuple[tuple[type[Rules], ...], ...] = (), (Restores,), (Retries, Leases)
SEEDS = int(os.environ.get("XAQUEUE_SIM_SEEDS", "12"))
"""Of three parts: all together take no longer than a minute of two cores."""

pytestmark = pytest.mark.usefixtures("quiet")


@pytest.mark.parametrize("part", range(PARTS))
def test_seeds(part: int) -> None:
    first = int(os.environ.get("XAQUEUE_SIM_SEED", "0"))
    for seed in range(first + part, first + SEEDS * PARTS // 3, PARTS):
        failure = run.failure_of(seed)
        if failure is not None:
            pytest.fail(run.told(seed, failure))


@pytest.mark.parametrize("beside", [(), (Restores,), (Blocks,), (Blocks, Restores)])
def test_messages_that_leave_for_an_archive(beside: tuple[type[Rules], ...]) -> None:
    for seed in range(1, 1 + SEEDS // 3):
        failure = run.failure_of(seed, None, (Kept, *beside))
        if failure is not None:
            pytest.fail(run.told(seed, failure, kinds=(Kept, *beside)))


@pytest.mark.parametrize("seed", range(1, 1 + SEEDS // 3))
@pytest.mark.parametrize(
    "beside", BESIDE_BLOCKS, ids=lambda kinds: "-".join(kind.__name__ for kind in kinds) or "alone"
)
def test_messages_that_come_and_go_many_at_once(beside: tuple[type[Rules], ...], seed: int) -> None:
    """Rules that are in no world where nobody asks for them."""
    failure = run.failure_of(seed, None, (Blocks, *beside))
    if failure is not None:
        pytest.fail(run.told(seed, failure, kinds=(Blocks, *beside)))


def test_a_decision_whose_commit_was_not_shipped_is_carried_out_by_the_replica() -> None:
    """Which gives numbers of its own."""
    failure = run.failure_of(3004, [0, 1, 5, 14, 22, 24, 34, 49], (Blocks, Streams))
    assert failure is None, failure


@pytest.mark.parametrize(
    ("seed", "steps", "beside"),
    [(3087, [21, 23, 25, 26, 38], (Delays,)), (202, [33, 43], (Retries, Restores))],
    ids=["behind the take", "behind the point"],
)
def test_a_take_without_room_is_told_as_what_it_is(
    seed: int, steps: list[int], beside: tuple[type[Rules], ...]
) -> None:
    """Done, although what goes behind it finds none; or past its commit point."""
    failure = run.failure_of(seed, steps, (Blocks, *beside))
    assert failure is None, failure


def test_the_same_seed_is_the_same_run() -> None:
    for seed in range(3):
        first, again = run.play(seed), run.play(seed)
        assert first.trace == again.trace
        assert first.fs.calls == again.fs.calls
        assert first.fs.tree_after_kill().key() == again.fs.tree_after_kill().key()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_mutant_is_of_this_product(mutant: Mutant) -> None:
    """What each leaves out is there, by its name. Whether it is found takes long: ``tox -e mutants``."""
    with mutant.wrong(Struck()):
        run.failure_of(1, [0])


def test_every_sync_of_a_feature_is_left_out_by_a_mutant_or_is_said_to_be_redundant(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with careless(monkeypatch) as care:
        for seed, levels in itertools.product(range(1, 4), ((STRICT,), (CYCLING,))):
            with mock.patch.object(doors, "LEVELS", levels):
                run.failure_of(seed, None, (Batches, Streams, Delays, Counts, Restores))
    own = {kind for kind in care.asked if kind.startswith(BY_FEATURES) or "batch" in kind or "stream" in kind}
    assert own
    assert own <= {one.name.removeprefix("left out: ") for one in MUTANTS} | REDUNDANT.keys()


def test_a_failure_gets_short_and_says_how_it_is_played_again() -> None:
    """Without any sync of a directory, what was committed goes with the power."""
    with mock.patch.object(ForgetfulFileSystem, "sync_dir"), mock.patch.object(doors, "LEVELS", (STRICT,)):
        seed, failure = next((seed, failure) for seed in range(20) if (failure := run.failure_of(seed)) is not None)
        steps = run.shrunk(seed, failure)
        assert len(steps) <= 6
        assert run.failure_of(seed, steps) is not None
        assert f"python -m sim.run {seed} --steps {','.join(map(str, steps))}" in run.told(seed, failure)
    assert run.failure_of(seed, steps) is None
