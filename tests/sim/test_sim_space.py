"""A space against a model of a dozen lines, under any order of verbs, kills and power losses that Hypothesis thinks of.

A failure says its seed; ``XAQUEUE_SIM_SEED`` replays it, ``XAQUEUE_CRASH_FULL=1`` plays far longer.
"""

from __future__ import annotations

import pytest

from support.sim_space import JournalMachine, SpaceMachine
from support.simulating import simulate


@pytest.mark.crash
@pytest.mark.parametrize("machine", [SpaceMachine, JournalMachine])
def test_any_order_of_verbs_and_crashes(quiet: None, machine: type[SpaceMachine]) -> None:
    simulate(machine, sample=400, full=20_000)
