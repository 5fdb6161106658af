"""A real process that is killed at random moments loses nothing and doubles nothing.

Jepsen's total queue over real files (``xaqueue.tools.torture.ledger``). Some kills come after a random delay, some at a
chosen file-system call: the middle of a commit, of a recovery. The parent is the transaction manager: it keeps the
decisions that the child said.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import pytest

import xaqueue
from support import SUPPORT
from support.kill_child import fault_of, settled
from xaqueue.offline.check import check
from xaqueue.offline.findings import Severity
from xaqueue.tools.torture.ledger import Ledger
from xaqueue.tools.torture.run import LONGEST_START_S, ChildRun, kill
from xaqueue.tools.torture.work import reopened

CHILD = SUPPORT / "kill_child.py"
FULL = os.environ.get("XAQUEUE_CRASH_FULL") == "1"
CAMPAIGNS = 9 if FULL else 2
KILLS = 25 if FULL else 8
SYNC = ("NONE", "FDATASYNC;DSYNC", "JOURNAL")
THREADS = 4
LONGEST_LIFE_S = 2.0


@pytest.mark.crash
@pytest.mark.parametrize("campaign", range(CAMPAIGNS))
def test_killed_at_random_moments_it_loses_and_doubles_nothing(tmp_path: Path, campaign: int) -> None:
    seed = os.environ.get("XAQUEUE_KILL_SEED") or str(random.SystemRandom().randrange(10**9))
    sys.stdout.write(f"seed: XAQUEUE_KILL_SEED={seed}\n")
    rng = random.Random(f"{seed}/{campaign}")
    space = tmp_path / "space"
    xaqueue.connect(space, create=True).close()
    ledger = Ledger()
    for life in range(KILLS):
        sync = SYNC[(life + campaign) % len(SYNC)]
        fault = fault_of(rng, sync)
        delay_s = LONGEST_LIFE_S if fault else rng.uniform(0.0, 0.8)
        start_s = rng.uniform(0.1, 0.5) if not fault and rng.random() < 0.2 else LONGEST_START_S
        sys.stdout.write(f"life {life}: {sync}, dies at {fault or f'{delay_s:.3f} s'} (start {start_s:.3f} s)\n")
        arguments = [str(space), sync, str(life), f"{seed}/{campaign}", str(THREADS), fault]
        ChildRun([sys.executable, str(CHILD), *arguments], kill, delay_s, start_s).run(ledger)
        crashed = [str(finding) for finding in check(space) if finding.severity is Severity.DAMAGE]
        assert crashed == [], "a killed process leaves work to finish, and no damage"
        assert ledger.faults == []
    found = reopened(space, "NONE", ledger.decided(), settled)
    assert ledger.judge(found) == []
    sys.stdout.write(f"{dict(ledger.heard)}; drained {found.messages.total()}\n")
    assert ledger.heard["acked"] > KILLS
