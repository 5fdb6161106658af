"""A transaction manager that is killed at each named step leaves nothing half done once it is started again.

A real process, SIGKILL, real queue spaces and a real database; nobody helps.
"""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

import xaqueue
from support import SUPPORT
from support.patience import eventually
from support.tm_child import SYNC, Doom, manager
from xaqueue.tm import last_resource
from xaqueue.tm.log_directory import view_log

CHILD = SUPPORT / "tm_child.py"
FULL = os.environ.get("XAQUEUE_CRASH_FULL") == "1"
TRANSACTIONS = 8
PATIENCE_S = 60.0
STEPS = [
    *("begin:a", "begin:b", "begin:files", "prepare:a", "prepared:a", "prepare:b", "prepared:b", "decide:", "decided:"),
    *("commit-last:files", "committed-last:files", "commit:a", "committed:a", "commit:b", "committed:b", "done:"),
]
ROUNDS = 10 if FULL else 1


class Place:
    """Where it all is, and what the child said."""

    def __init__(self, place: Path) -> None:
        self.path = place
        for name in "ab":
            xaqueue.connect(place / name, create=True, sync=SYNC).close()
        with closing(sqlite3.connect(place / "files.db")) as connection:
            connection.execute("create table files (name text)")
        self.begun: list[str] = []
        self.acked: list[str] = []

    def live(self, life: str, fault: str, dies_after_s: float | None = None) -> int:
        """One life of the child; returns how it ended."""
        arguments = [sys.executable, str(CHILD), str(self.path), life, str(TRANSACTIONS), fault]
        child = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        if dies_after_s is not None:
            self._hear(child.stdout.readline())
            time.sleep(dies_after_s)
            child.kill()
        for line in child.stdout:
            self._hear(line)
        child.stdout.close()
        return child.wait(PATIENCE_S)

    def _hear(self, line: str) -> None:
        verb, _, name = line.strip().partition(" ")
        if verb in ("begin", "ack"):
            (self.begun if verb == "begin" else self.acked).append(name)

    def judge(self) -> None:
        """After the last start, and whatever recovery did by itself."""
        with manager(self.path, Doom("")) as tm:
            eventually(lambda: not (tm.in_doubt() or not tm.recover(PATIENCE_S).complete or self.rows()))
        assert view_log(self.path / "log").open == []
        found = {name: self.messages(name) for name in "ab"}
        assert found["a"] == found["b"]
        assert set(found["a"].values()) <= {1}
        with closing(sqlite3.connect(self.path / "files.db")) as connection:
            files = [row[0] for row in connection.execute("select name from files")]
        assert Counter(files) == Counter(name for name in found["a"] if int(name.split(".")[1]) % 2)
        assert set(self.acked) <= set(found["a"]) <= set(self.begun)

    def messages(self, name: str) -> Counter[str]:
        with xaqueue.connect(self.path / name, sync=SYNC) as connection:
            assert connection.tpc_recover() == []
            return Counter(message.body.decode() for message in connection.browse("q"))

    def rows(self) -> int:
        with closing(sqlite3.connect(self.path / "files.db")) as connection:
            if not connection.execute("select 1 from sqlite_master where name = ?", (last_resource.TABLE,)).fetchone():
                return 0
            rows = connection.execute(f"select count(*) from {last_resource.TABLE} where decision = 'commit'")
            return int(rows.fetchone()[0])


@pytest.mark.crash
@pytest.mark.parametrize("chosen", range(4))
def test_killed_at_each_named_step(tmp_path: Path, chosen: int) -> None:
    """Four steps or, in full size, ten times as many lives, one after the other over the same log."""
    place = Place(tmp_path)
    dice = random.Random(chosen)
    for life, step in enumerate(STEPS[chosen::4] * ROUNDS):
        ended = place.live(f"{life}", f"{step}:{dice.randint(1, 3)}")
        assert ended == -signal.SIGKILL, f"{step} was not reached"
    place.judge()
    assert place.acked


@pytest.mark.crash
def test_killed_at_random_moments(tmp_path: Path) -> None:
    seed = os.environ.get("XAQUEUE_KILL_SEED") or str(random.SystemRandom().randrange(10**9))
    sys.stdout.write(f"seed: XAQUEUE_KILL_SEED={seed}\n")
    dice = random.Random(seed)
    place = Place(tmp_path)
    for life in range(40 if FULL else 5):
        place.live(f"{life}", "", dice.uniform(0.0, 0.2))
    place.judge()
