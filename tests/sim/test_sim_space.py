"""A space against a model of a dozen lines, under any order of verbs, kills and power losses that Hypothesis thinks of.

A failure says its seed; ``XAQUEUE_SIM_SEED`` replays it, ``XAQUEUE_CRASH_FULL=1`` plays far longer.
"""

from __future__ import annotations

import os
import random

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from support.crash_cases import FULL
from support.sim_space import SEED_VARIABLE, JournalMachine, SpaceMachine


@pytest.mark.crash
@pytest.mark.parametrize("machine", [SpaceMachine, JournalMachine])
def test_any_order_of_verbs_and_crashes(quiet: None, machine: type[SpaceMachine]) -> None:
    chosen = int(os.environ.get(SEED_VARIABLE) or random.SystemRandom().randrange(1 << 32))
    profile = settings(
        max_examples=20_000 if FULL else 400,
        stateful_step_count=100 if FULL else 50,
        deadline=None,
        database=None,
        print_blob=True,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    try:
        run_state_machine_as_test(seed(chosen)(machine), settings=profile)
    except BaseException as error:
        error.add_note(f"{SEED_VARIABLE}={chosen} replays this")
        raise
