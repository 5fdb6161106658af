"""Worlds in which a queue has messages that grow too old, beside all others but one."""

from __future__ import annotations

from collections.abc import Iterator
from unittest import mock

import pytest

from sim import doors, run
from sim.rules.ages import Ages
from sim.rules.carry import Carry
from support.failing_disk import FailingFileSystem
from support.forgetful import Tree
from xaqueue.features.ages.ages import Ages as Clock

PARTS, SEEDS = 2, 10

pytestmark = pytest.mark.usefixtures("quiet")

FEATURES = (Ages, *(each for each in run.FEATURES if each is not Carry))
"""What a database carries is committed when the space has it itself, which may be again behind a crash."""


def disk(tree: Tree) -> FailingFileSystem:
    """Which forgets no time of a file: this says when a message was committed."""
    fs = FailingFileSystem(tree)
    for node in fs._nodes.values():
        node.modified_ns = node.modified_ns or doors.NOON_US * 1000
    return fs


@pytest.fixture(autouse=True)
def _world() -> Iterator[None]:
    with mock.patch.object(run, "FEATURES", FEATURES), mock.patch.object(doors, "disk", disk):
        yield


@pytest.mark.parametrize("part", range(PARTS))
def test_seeds(part: int) -> None:
    for seed in range(part * SEEDS, (part + 1) * SEEDS):
        failure = run.failure_of(seed, kinds=(Ages,))
        if failure is not None:
            raise failure


def test_they_find_where_a_part_of_it_is_left_out() -> None:
    """Nobody says what is too old; or all is."""
    for name, wrong in (("strike", lambda *_: True), ("_end_of", lambda *_: 1)):
        with mock.patch.object(Clock, name, wrong):
            assert any(run.failure_of(seed, kinds=(Ages,)) is not None for seed in range(20)), name
