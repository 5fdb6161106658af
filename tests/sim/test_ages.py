"""Worlds in which a queue has messages that grow too old, beside all others."""

from __future__ import annotations

from unittest import mock

import pytest

from sim import run
from sim.rules.ages import Ages
from xaqueue.features.ages.ages import Ages as Clock

PARTS, SEEDS = 2, 10

pytestmark = pytest.mark.usefixtures("quiet")

FEATURES = (Ages, *run.FEATURES)


@pytest.mark.parametrize("part", range(PARTS))
def test_seeds(part: int) -> None:
    with mock.patch.object(run, "FEATURES", FEATURES):
        for seed in range(part * SEEDS, (part + 1) * SEEDS):
            failure = run.failure_of(seed, kinds=(Ages,))
            if failure is not None:
                pytest.fail(run.told(seed, failure))


def test_they_find_where_a_part_of_it_is_left_out() -> None:
    """Nobody says what is too old; or all is."""
    for name, wrong in (("strike", lambda *_: True), ("_end_of", lambda *_: 1)):
        with mock.patch.object(run, "FEATURES", FEATURES), mock.patch.object(Clock, name, wrong):
            assert any(run.failure_of(seed, kinds=(Ages,)) is not None for seed in range(20)), name
