"""A child is killed at random moments, started again on what it left, and at last everything is counted."""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

from xaqueue.errors import DiskFull
from xaqueue.torture.child import NO_ROOM
from xaqueue.torture.ledger import Ledger
from xaqueue.torture.lives import Life, LifeFailed, kill
from xaqueue.torture.reopen import reopened
from xaqueue.torture.verdict import Outcome

THREADS = 4
LONGEST_WORK_S = 0.8
IN_RECOVERY = 0.2
"""The share of lives that are ended some time after their start, most of them while they recover."""
LONGEST_RECOVERY_S = 0.6


def survive_kills(space: Path, flags: str, seconds: float, seed: str) -> Outcome:
    """Lives on the space until the time is over, one at least. Raises DiskFull where there is no room to work."""
    ledger, outcome = Ledger(), Outcome()
    dice = random.Random(f"{seed}/kills/{flags}")
    until = time.monotonic() + seconds
    while outcome.tries == 0 or time.monotonic() < until:
        name = f"{outcome.tries}"
        command = [sys.executable, "-m", "xaqueue.torture.child", str(space), flags, name, seed, str(THREADS)]
        life = Life(command, kill, dice.uniform(0.0, LONGEST_WORK_S))
        if dice.random() < IN_RECOVERY:
            life = Life(command, kill, life.work_s, dice.uniform(0.1, LONGEST_RECOVERY_S))
        try:
            life.run(ledger)
        except LifeFailed as failed:
            if failed.code == NO_ROOM:
                raise DiskFull(f"no room to work in: {failed}") from None
            ledger.faults.append(f"the engine failed: {str(failed).splitlines()[-1] if str(failed) else failed.code}")
            break
        new, ledger.faults = ledger.faults, []
        outcome.count(new)
    last = [*ledger.faults, *ledger.judge(reopened(space, flags, ledger.decided()))]
    outcome.faulty += bool(last)
    outcome.faults += last
    outcome.branches = ledger.heard["acked"]
    return outcome
