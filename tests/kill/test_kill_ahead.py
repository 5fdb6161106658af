"""Consumers that ask ahead, and their server, are killed: no message is lost, and none is acknowledged unseen."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

import xaqueue
from support.served import PATIENCE_S, Process
from xaqueue.connection import Connection
from xaqueue.core.storage.ids import fresh_id
from xaqueue.errors import Error
from xaqueue.rpc.client.manager import remote_manager

MESSAGES = 400
KILLS = 6
CHILD = f"""
import sys, time, xaqueue
connection = xaqueue.connect(sys.argv[1])
for number, message in enumerate(connection.consume("orders", wait_s=0)):
    print(message.body.decode(), flush=True)
    if number == {MESSAGES // KILLS - 2}:  # it is killed late: there is something left for each
        time.sleep(3600)
    connection.commit()
"""


def stocked(tmp_path: Path) -> Path:
    root = tmp_path / "space"
    with xaqueue.connect(root, create=True, sync="NONE") as connection:
        connection.enqueue_many("orders", [b"%d" % number for number in range(MESSAGES)])
    return root


def left_in(url: str) -> list[tuple[bytes, int]]:
    with xaqueue.connect(url) as connection:
        return [(one.body, one.tries) for one in connection.browse("orders")]


@pytest.mark.parametrize("sync", ["JOURNAL", "NONE"])
def test_killed_consumers(tmp_path: Path, sync: str) -> None:
    """The last that each has seen may be there again: its commit was cut off. And each has tried two at most."""
    rng = random.Random(seed := os.environ.get("XAQUEUE_KILL_SEED") or str(time.time_ns()))
    sys.stdout.write(f"seed: XAQUEUE_KILL_SEED={seed}\n")
    root, seen, again = stocked(tmp_path), list[bytes](), 0
    with Process(root, "--sync", sync) as process:
        url = f"xaq+unix://{process.path}"
        for _ in range(KILLS):
            words = [sys.executable, "-c", CHILD, url]
            with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as child:
                assert child.stdout is not None
                found = [child.stdout.readline() for _ in range(rng.randint(1, 30))]
                child.kill()
                found += child.stdout.readlines()
            bodies = [line.strip().encode() for line in found if line.endswith("\n")]
            again += bodies[0] in seen
            seen += bodies
        deadline, left = time.monotonic() + PATIENCE_S, left_in(url)
        with xaqueue.connect(url) as connection:  # once the last one's session is over
            while len(connection.dequeue_many("orders", MESSAGES)) < len(left):
                connection.rollback()
                assert time.monotonic() < deadline
        bodies = [body for body, _ in left]
        assert {*seen, *bodies} == {b"%d" % number for number in range(MESSAGES)}
        assert len(seen) + len(bodies) - MESSAGES <= KILLS
        assert sum(tries for _, tries in left) <= 2 * KILLS


def test_killed_servers(tmp_path: Path) -> None:
    root, done, unknown = stocked(tmp_path), list[bytes](), list[bytes]()
    rng = random.Random(seed := os.environ.get("XAQUEUE_KILL_SEED") or str(time.time_ns()))
    sys.stdout.write(f"seed: XAQUEUE_KILL_SEED={seed}\n")
    for _ in range(KILLS):
        with Process(root, "--sync", "JOURNAL") as process:
            connection = Connection(remote_manager(f"xaq+unix://{process.path}", connect_s=0.0), fresh_id)
            wanted, kill = rng.randint(1, 30), f"sleep 0.{rng.randint(0, 20):03}; kill -9 {process.pid}"
            with suppress(Error):
                for number, message in enumerate(connection.consume("orders")):
                    if number == wanted:
                        killer = subprocess.Popen(["sh", "-c", kill])
                    unknown.append(message.body)
                    connection.commit()
                    done.append(unknown.pop())
            killer.wait(PATIENCE_S)
            with suppress(Error):
                connection.close()
    with Process(root, "--sync", "JOURNAL") as process:
        left = [body for body, _ in left_in(f"xaq+unix://{process.path}")]
        assert not {*done} & {*left}
        assert {*done, *unknown, *left} == {b"%d" % number for number in range(MESSAGES)}
        assert len({*done}) == len(done)
        assert process.end(signal.SIGTERM) == 0
