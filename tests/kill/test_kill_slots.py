"""Processes that share a directory of decisions are killed, and started again at once, while others live.

Real processes and SIGKILL, two servers, and nobody helps: who lives finishes what the others have left.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

import xaqueue
from support import SUPPORT
from support.patience import PATIENCE_S, eventually
from support.served import ServerThread
from support.slot_child import manager
from support.tm_child import Doom
from xaqueue.core.storage.owner_file import is_owned
from xaqueue.features.opening import create
from xaqueue.tm.log_directory import every_log, open_log, view_logs

CHILD = SUPPORT / "slot_child.py"
FULL = os.environ.get("XAQUEUE_CRASH_FULL") == "1"
PROCESSES = 3
LIVES = 60 if FULL else 6
STEPS = [
    "prepare:a",
    "prepared:a",
    "prepare:b",
    "prepared:b",
    "decide:",
    "decided:",
    "commit:a",
    "committed:a",
    "done:",
]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    with ExitStack() as stack:
        for name in "ab":
            create(tmp_path / name, any_queue=True)
            server = ServerThread(tmp_path / name, tmp_path / f"{name}.sock", sync="NONE")
            stack.callback(server.stop)
        yield tmp_path


class Child:
    """What it said, of one life."""

    def __init__(self, place: Path, life: str, count: int = 8, fault: str = "") -> None:
        words = [sys.executable, str(CHILD), str(place), life, str(count), fault]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        self.node = self.line().split()[1]

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def end(self) -> list[str]:
        """What it has said since, once it is over."""
        assert self.process.stdout is not None
        said = self.process.stdout.read().splitlines()
        self.process.stdout.close()
        self.process.wait(PATIENCE_S)
        return said


def messages(place: Path, name: str) -> Counter[str]:
    with xaqueue.connect(f"xaq+unix://{place / name}.sock") as connection:
        assert connection.tpc_recover() == []
        return Counter(message.body.decode() for message in connection.browse("q"))


def in_doubt(place: Path) -> int:
    found = 0
    for name in "ab":
        with xaqueue.connect(f"xaq+unix://{place / name}.sock") as connection:
            found += len(connection.tpc_recover())
    return found


def judge(place: Path, said: list[str]) -> None:
    found = messages(place, "a")
    assert found == messages(place, "b")
    assert set(found.values()) <= {1}
    acked = {line.split()[1] for line in said if line.startswith("ack")}
    assert acked <= set(found) <= {line.split()[1] for line in said if line.startswith("begin")}
    assert acked


@pytest.mark.crash
@pytest.mark.parametrize("survives", [True, False])
def test_killed_and_started_again_at_once(place: Path, survives: bool) -> None:
    """A survivor finishes all; else whoever starts next, over the same directory, does."""
    seed = os.environ.get("XAQUEUE_KILL_SEED") or str(random.SystemRandom().randrange(10**9))
    sys.stdout.write(f"seed: XAQUEUE_KILL_SEED={seed}\n")
    dice, said = random.Random(seed), list[str]()
    with ExitStack() as stack:
        if survives:
            stack.enter_context(manager(place, Doom("")))
        children: list[Child] = []
        for life in range(LIVES):
            step = f"{dice.choice(STEPS)}:{dice.randint(1, 6)}" if life % 3 else ""
            children.append(Child(place, f"{life}", fault=step))
            if len(children) == PROCESSES:
                ended = children.pop(dice.randrange(PROCESSES))
                if not step:
                    time.sleep(dice.uniform(0, 0.1))
                    ended.process.kill()
                said += ended.end()
        for one in children:
            said += one.end()
        if survives:
            eventually(lambda: not in_doubt(place))
    with manager(place, Doom("")) as tm:
        assert tm.recover(PATIENCE_S).complete
        assert tm.in_doubt() == []
    judge(place, said)
    assert all(not view.open for view in view_logs(place / "decisions"))
    assert len(every_log(place / "decisions")) <= 2 * (PROCESSES + 1), "for each that runs, and one that it adopts"


@pytest.mark.crash
@pytest.mark.parametrize("step", ["commit:a:1", "rollback:a:1", "committed:b:1", "done::1"])
def test_killed_while_it_adopts(place: Path, step: str) -> None:
    """The next one finds two slots that want it: its own one, and that of who was adopted."""
    with closing(open_log(place / "decisions")):
        left = Child(place, "0", fault="decide::3" if "rollback" in step else "decided::3")
        said = left.end()
    heir = Child(place, "1", count=2000, fault=step)
    said += heir.end()
    assert heir.process.returncode == -signal.SIGKILL
    assert len(every_log(place / "decisions")) == 2
    with manager(place, Doom("")) as tm:
        assert tm.recover(PATIENCE_S).complete
        assert tm.node == heir.node
    judge(place, said)


@pytest.mark.crash
@pytest.mark.parametrize("step", ["decide", "decided"])  # amid other steps a call may still be on its way
def test_one_that_stands_still_keeps_its_slot(place: Path, step: str) -> None:
    """Nobody touches what it has prepared, however long; it goes on where it was."""
    with manager(place, Doom("")) as tm:
        child = Child(place, "0", count=40, fault=f"{step}::20:stop")
        os.waitid(os.P_PID, child.process.pid, os.WSTOPPED | os.WNOWAIT)
        for _ in range(10):
            tm.recover(PATIENCE_S)
        assert in_doubt(place) == 2
        assert [path for path in every_log(place / "decisions")[1:] if not is_owned(path)] == []
        os.kill(child.process.pid, signal.SIGCONT)
        said = child.end()
        assert sum(line.startswith("ack") for line in said) == 40
    judge(place, said)
