"""Sessions of one server, many of them killed and slow."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import xaqueue
from support.contract_connection import block_files
from support.patience import eventually
from support.raw_client import PATIENCE_S
from support.raw_work import Stage, Worker, judge, stock
from support.served import ServerThread
from xaqueue.offline.check import check

SESSIONS = 64
SYNC = ("NONE", "JOURNAL")


@pytest.fixture(params=SYNC)
def served(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[ServerThread]:
    xaqueue.connect(tmp_path / "space", create=True, sync=request.param).close()
    made = ServerThread(tmp_path / "space", tmp_path / "socket", sync=request.param)
    yield made
    made.stop()


@pytest.mark.parametrize("sync", SYNC)
def test_killed_and_slow_sessions_among_many(tmp_path: Path, sync: str) -> None:
    """What they had active is rolled back and can be taken again, what they had prepared stays, the rest is done."""
    seed = os.environ.get("XAQUEUE_KILL_SEED") or str(random.SystemRandom().randrange(10**9))
    sys.stdout.write(f"seed: XAQUEUE_KILL_SEED={seed}\n")
    each = 6
    root = tmp_path / "space"
    stock(root, SESSIONS * each, sync)
    served = ServerThread(root, tmp_path / "socket", sync=sync)
    workers = [Worker(served.path, number, seed, each, dies=0.3) for number in range(SESSIONS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(PATIENCE_S)
        assert not worker.is_alive()
        assert worker.failure is None
    quiet(served)
    transactions = [transaction for worker in workers for transaction in worker.transactions]
    with xaqueue.connect(served.url) as connection:
        verdict = judge(connection, transactions, SESSIONS * each)
        assert verdict.faults == []
        assert connection.tpc_recover() == []
        taken = 0
        while connection.dequeue("in") is not None:
            taken += 1
        assert taken == SESSIONS * each - len(verdict.done)
    assert len(verdict.done) > SESSIONS
    assert {transaction.stage for transaction in transactions} == set(Stage)
    served.stop()
    assert block_files(root) == []
    assert list(check(root)) == []


def quiet(served: ServerThread) -> None:
    eventually(lambda: not served.call(lambda: len(served.server.sessions)))
