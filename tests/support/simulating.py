"""Machines that Hypothesis plays against a model: some runs each time, very many where it is asked for."""

from __future__ import annotations

import os
import random

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from support.crash_cases import FULL

SEED_VARIABLE = "XAQUEUE_SIM_SEED"


def simulate(machine: type[RuleBasedStateMachine], *, sample: int, full: int = 10_000, steps: int = 50) -> None:
    """A failure says its seed, and the variable that replays it. steps: of a run; 100 at full size."""
    chosen = int(os.environ.get(SEED_VARIABLE) or random.SystemRandom().randrange(1 << 32))
    profile = settings(
        max_examples=full if FULL else sample,
        stateful_step_count=100 if FULL else steps,
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
