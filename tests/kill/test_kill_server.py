"""A server that is killed amid pipelined transactions has lost nothing that it acknowledged.

It is killed again and again over one space. Each time every commit that a client has the answer to is there, every
branch that was prepared is listed, and the others are there as a whole or not at all.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

import pytest

import xaqueue
from support.contract_connection import block_files
from support.raw_client import PATIENCE_S
from support.raw_work import Stage, Transaction, Worker, judge, stock
from support.served import Process
from xaqueue.offline.check import check
from xaqueue.offline.findings import Severity

FULL = os.environ.get("XAQUEUE_CRASH_FULL") == "1"
KILLS = 30 if FULL else 4
CAMPAIGNS = 6 if FULL else 1
SYNC = ("JOURNAL", "FDATASYNC;DSYNC", "NONE")
WORKERS = 8
STOCKED = 20_000 if FULL else 5_000


@pytest.mark.crash
@pytest.mark.parametrize("campaign", range(CAMPAIGNS))
def test_killed_amid_pipelined_transactions(tmp_path: Path, campaign: int) -> None:
    seed = os.environ.get("XAQUEUE_KILL_SEED") or str(random.SystemRandom().randrange(10**9))
    sys.stdout.write(f"seed: XAQUEUE_KILL_SEED={seed}\n")
    rng = random.Random(f"{seed}/{campaign}")
    root = tmp_path / "space"
    stock(root, STOCKED, "NONE")
    known: list[Transaction] = []
    for life in range(KILLS):
        sync = SYNC[(life + campaign) % len(SYNC)]
        known += one_life(root, sync, f"{seed}/{campaign}/{life}", life, rng)
        damage = [str(finding) for finding in check(root) if finding.severity is Severity.DAMAGE]
        assert damage == [], "a killed process leaves work to finish, and no damage"
        with xaqueue.connect(root, sync=sync, server_s=0) as connection:
            verdict = judge(connection, known, STOCKED)
            assert verdict.faults == []
            assert connection.tpc_recover() == []
        assert block_files(root) == []
        for transaction in known:  # finished by the judge: its outcome is no longer open
            done = transaction.xid[1] in verdict.done
            transaction.stage = Stage.COMMITTED if done else Stage.BEGUN
    assert len(verdict.done) > KILLS * WORKERS


def one_life(root: Path, sync: str, seed: str, life: int, rng: random.Random) -> list[Transaction]:
    """The transactions of one server, killed once all its sessions are at work."""
    with Process(root, "--sync", sync) as process:
        workers = [Worker(process.path, life * WORKERS + number, seed, 400, dies=0.02) for number in range(WORKERS)]
        for worker in workers:
            worker.start()
        deadline = time.monotonic() + PATIENCE_S
        wanted = rng.randint(2, 40)
        while any(len(worker.transactions) < wanted and worker.is_alive() for worker in workers):
            assert time.monotonic() < deadline
        time.sleep(rng.uniform(0, 0.02))
        assert process.end(signal.SIGKILL) == -signal.SIGKILL
        for worker in workers:
            worker.join(PATIENCE_S)
            assert worker.failure is None
        return [transaction for worker in workers for transaction in worker.transactions]
