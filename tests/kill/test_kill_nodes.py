"""A service of four processes without any directory, killed at random with all that it stands on: all or none holds.

Processes, the server of the queue, the database and its sessions are killed, and a pooler between, where there is one;
no process ever comes back under its old name. At the end each order's row has its message, or the row that says it was
handled, once; and nothing is in doubt, some time after the last kill where one process survives, and behind one command
where none does.
"""

from __future__ import annotations

import os
import random
import sys
import time

import pytest

from support.doubtful import run as cli
from support.node_service import Campaign, campaign
from support.patience import PATIENCE_S, eventually

FULL = os.environ.get("XAQUEUE_CRASH_FULL") == "1"
KILLS = {"postgresql": 50, "pgbouncer": 50, "mariadb": 25, "sqlite": 25} if FULL else {}
"""In a run, and there are two of each."""
FEW = 8
SOON_S = 150.0
"""Behind the last kill nothing is in doubt, and nobody is in haste."""
LONG_US = 660 * 1_000_000


@pytest.mark.crash
@pytest.mark.parametrize("survivors", [1, 0])
@pytest.mark.parametrize("kind", ["postgresql", "pgbouncer", "mariadb", "sqlite"])
def test_a_service_of_four_killed(kind: str, survivors: int) -> None:
    """At full size as slowly as everywhere, else in haste."""
    seed = int(os.environ.get("XAQUEUE_KILL_SEED") or random.SystemRandom().randrange(10**9))
    sys.stdout.write(f"seed: XAQUEUE_KILL_SEED={seed}\n")
    with campaign(kind, seed, by_name=bool(seed % 2), is_hasty=not FULL) as service:
        service.kill(KILLS.get(kind, FEW) - (4 - survivors))
        service.leave(survivors)
        at = time.monotonic()
        if survivors:
            _wait_for_the_survivor(service, at)
        else:
            service.database.execute(f"UPDATE xaqueue_signs SET at = at - {LONG_US}")
            sys.stdout.write(f"{len(service.in_doubt)} in doubt\n")
            sys.stdout.write(cli("tm", "recover", service.database.dsn, service.queue.url))
            assert not service.in_doubt
        assert not service.count("decisions", "decision = 'commit'")
        assert not service.count("nodes")
        sys.stdout.write(f"{kind}: {service.judge()}\n")


def _wait_for_the_survivor(service: Campaign, at: float) -> None:
    (survivor,) = service.running
    survivor.rest()
    sys.stdout.write(f"{len(service.in_doubt)} in doubt\n")
    eventually(lambda: not service.in_doubt and service.count("nodes") == 1, SOON_S)
    sys.stdout.write(f"nothing in doubt {time.monotonic() - at:.1f} s behind the last kill\n")
    try:
        eventually(lambda: not service.count("decisions", "decision = 'commit'"), SOON_S + 2 * PATIENCE_S)
    except AssertionError:
        sys.stdout.write(service.tell())
        raise
    sys.stdout.write(f"no decision left {time.monotonic() - at:.1f} s behind it\n")
    assert survivor.close() == 0
