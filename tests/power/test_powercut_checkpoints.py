"""Kills and power cuts where checkpoints are many: segments of 1 MiB, a checkpoint a second, and much work meanwhile.

Six threads of one process on ext4 and xfs, and a server with eight clients, killed or without power. ``XAQUEUE_ROUNDS``
says how many rounds of each; it is 40 and 100 with ``XAQUEUE_CRASH_FULL=1``, and one else.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import xaqueue
from support import SUPPORT
from support.late_ledger import LateLedger
from support.powercut import Lives, disk, seeded
from support.served import Process
from xaqueue.offline.check import check
from xaqueue.offline.findings import Severity
from xaqueue.tools.torture.run import Child, ChildRun
from xaqueue.tools.torture.work import reopened

CHILD = SUPPORT / "served_child.py"
FULL = os.environ.get("XAQUEUE_CRASH_FULL") == "1"
THREADS, CLIENTS = 6, 8
CUTS = int(os.environ.get("XAQUEUE_ROUNDS") or (40 if FULL else 1))
SERVED = int(os.environ.get("XAQUEUE_ROUNDS") or (100 if FULL else 1))
DEFINITIONS = "\n[space]\njournal_segment_bytes = 1048576\ncheckpoint_s = 1\n"
LIFE_S = (0.6, 2.4)

pytestmark = pytest.mark.crash


def defined(space: Path) -> None:
    xaqueue.connect(space, create=True).close()
    with (space / "queues.toml").open("a") as definitions:
        definitions.write(DEFINITIONS)
        definitions.flush()
        os.fsync(definitions.fileno())


@pytest.mark.parametrize("kind", ["ext4", "xfs"])
def test_power_cuts_of_six_threads(tmp_path: Path, kind: str) -> None:
    seed = seeded()
    dice = random.Random(f"{seed}/{kind}")
    with disk(kind, tmp_path) as drive:
        lives = Lives(drive, seed, "JOURNAL", small_journal=False)
        defined(lives.space)
        for _ in range(CUTS):
            lives.live("", dice.uniform(*LIFE_S), THREADS)
        lives.judge()
        assert lives.ledger.heard["acked"] > CUTS


def rounds(space: Path, end: Callable[[Process, Child], None], *, loses_power: bool) -> None:
    """Lives of a server and its clients, each ended so: what was acknowledged is there, and what is in doubt, is."""
    seed, ledger = seeded(), LateLedger()
    dice = random.Random(seed)
    defined(space)
    for life in range(SERVED):
        with Process(space, "--sync", "JOURNAL") as server:
            command = [sys.executable, str(CHILD), f"xaq+unix://{server.path}", str(life), seed, str(CLIENTS)]

            def ended(child: Child, server: Process = server) -> None:
                end(server, child)

            with ledger.late(ended) as ended_late:
                ChildRun(command, ended_late if loses_power else ended, dice.uniform(*LIFE_S)).run(ledger)
        damage = [str(finding) for finding in check(space) if finding.severity is Severity.DAMAGE]
        assert damage == [], "a crash leaves work to finish, and no damage"
        assert ledger.faults == []
    assert ledger.judge(reopened(space, "JOURNAL", ledger.decided())) == []
    sys.stdout.write(f"{dict(ledger.heard)}\n")
    assert ledger.heard["acked"] > SERVED


def test_kills_of_a_server_with_eight_clients(tmp_path: Path) -> None:
    def kill(server: Process, child: Child) -> None:
        server.end(signal.SIGKILL)
        child.kill()
        child.wait()

    rounds(tmp_path / "space", kill, loses_power=False)


@pytest.mark.parametrize("kind", ["ext4", "xfs"])
def test_power_cuts_of_a_server_with_eight_clients(tmp_path: Path, kind: str) -> None:
    with disk(kind, tmp_path) as drive:

        def cut(server: Process, child: Child) -> None:
            drive.cut(child, lambda: server.end(signal.SIGKILL))

        rounds(drive.place / "space", cut, loses_power=True)
