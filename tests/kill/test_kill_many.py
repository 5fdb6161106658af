"""A process of a mixed load is killed at random moments: blocks of many messages and single ones, some of them taken,
given back or acknowledged, branches in doubt over a restart, and snapshots taken amid it.

What was acknowledged is there once, as in test_kill_space. Each snapshot that was finished is restored beside the space
and has every branch that was acknowledged before it began, none that was begun behind its end, and no part of one.
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
from support.many_moments import DEFINED, WatchingLedger
from xaqueue.core.owner import definitions_file
from xaqueue.offline.check import check
from xaqueue.offline.findings import Severity
from xaqueue.tools.torture.run import LONGEST_START_S, ChildRun, kill
from xaqueue.tools.torture.work import reopened

CHILD = SUPPORT / "many_child.py"
FULL = os.environ.get("XAQUEUE_CRASH_FULL") == "1"
CAMPAIGNS, KILLS = (8, 25) if FULL else (1, 8)
SYNC = ("NONE", "FDATASYNC;DSYNC", "JOURNAL")
THREADS = 4
LONGEST_LIFE_S = 2.0


@pytest.mark.crash
@pytest.mark.parametrize("campaign", range(CAMPAIGNS))
def test_killed_amid_many_it_loses_and_doubles_nothing(tmp_path: Path, campaign: int) -> None:
    seed = os.environ.get("XAQUEUE_KILL_SEED") or str(random.SystemRandom().randrange(10**9))
    sys.stdout.write(f"seed: XAQUEUE_KILL_SEED={seed}\n")
    rng, space, ledger, looked_at = random.Random(f"{seed}/{campaign}"), tmp_path / "space", WatchingLedger(), 0
    xaqueue.connect(space, create=True).close()
    definitions_file.write_definitions(space, DEFINED)
    for life in range(KILLS):
        sync = SYNC[(life + campaign) % len(SYNC)]
        fault = fault_of(rng, sync) if life < KILLS - 1 else ""  # one snapshot at least is finished
        delay_s = LONGEST_LIFE_S if fault else rng.uniform(0.1 if life < KILLS - 1 else 1.0, 1.2)
        sys.stdout.write(f"life {life}: {sync}, dies at {fault or f'{delay_s:.3f} s'}\n")
        arguments = [str(space), sync, str(life), f"{seed}/{campaign}", str(THREADS), fault]
        ChildRun([sys.executable, str(CHILD), *arguments], kill, delay_s, LONGEST_START_S).run(ledger)
        crashed = [str(finding) for finding in check(space) if finding.severity is Severity.DAMAGE]
        assert crashed == [], "a killed process leaves work to finish, and no damage"
        assert ledger.faults == []
        faults = ledger.judge_newest(space, tmp_path / "restored")
        assert not faults
        looked_at += faults is not None
    found = reopened(space, "NONE", ledger.decided(), settled)
    assert ledger.judge(found) == []
    sys.stdout.write(f"{dict(ledger.heard)}; drained {found.messages.total()}; {looked_at} snapshots\n")
    assert ledger.heard["acked"] > KILLS
    assert looked_at
