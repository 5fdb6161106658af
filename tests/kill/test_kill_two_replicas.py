"""A space with two replicas, for neither of which it waits, is killed, and one of the two takes its place.

That one may lack the last of what was acknowledged, and the other one may have more. What must hold all the same: what
the promoted one has is a beginning of what was acknowledged, in its order, and nothing else; what it lacks is in the
former space's ``unshipped.jsonl``; the other one says that it has more, and lets an operator choose, or has, once it
follows the promoted one, what that has and no message of its own. ``XAQUEUE_FAILOVERS`` is how many such deaths there
are; with ``XAQUEUE_CRASH_FULL=1`` 50.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

import xaqueue
from support.pair import FENCED, Program, free_ports
from support.replica_pair import NOT_OPENED
from support.replicas import made
from support.served import PATIENCE_S, RUN
from xaqueue.errors import Error
from xaqueue.features.replica.replicated import LAG, UNSHIPPED
from xaqueue.message import Message
from xaqueue.offline.check import check
from xaqueue.offline.findings import Severity
from xaqueue.offline.inspect import browse

FULL = os.environ.get("XAQUEUE_CRASH_FULL") == "1"
FAILOVERS = int(os.environ.get("XAQUEUE_FAILOVERS", "50" if FULL else "1"))
QUEUE = "in"
HAS_MORE = "remove this directory, if what it has is the one to lose"


class Writer(threading.Thread):
    """Enqueues a message a commit until its server is gone."""

    def __init__(self, url: str, prefix: str) -> None:
        super().__init__(name=prefix)
        self._url, self._prefix = url, prefix
        self.acknowledged: list[bytes] = []
        self.unanswered = b""

    def run(self) -> None:
        try:
            with xaqueue.connect(self._url) as connection:
                while True:
                    self.unanswered = f"{self._prefix}.{len(self.acknowledged)}".encode()
                    connection.enqueue(QUEUE, self.unanswered)
                    connection.commit()
                    self.acknowledged.append(self.unanswered)
        except Error:
            return  # which is its end: the server was killed, or fenced

    def wait_for(self, more: int) -> None:
        wanted = len(self.acknowledged) + more
        _until(lambda: len(self.acknowledged) >= wanted, lambda: f"{self.name}: {len(self.acknowledged)} < {wanted}")


class Three:
    """One has the space, two follow it; each has a directory and an address of its own."""

    def __init__(self, roots: list[Path]) -> None:
        self.roots = roots
        self.places = [f"127.0.0.1:{port}" for port in free_ports(3)]
        self.at = 0
        """Which of them has the space."""
        self.owner = self._serve(0)
        self.owner.wait_for("serving")
        self.replicas = {side: self._follow(side) for side in (1, 2)}

    @property
    def url(self) -> str:
        return f"xaq://{self.places[self.at]}?timeout_s=2"

    def _serve(self, side: int) -> Program:
        return Program("serve", "--space", str(self.roots[side]), "--tcp", self.places[side], "--insecure")

    def _follow(self, side: int) -> Program:
        begun = Program("replica", str(self.roots[side]), "--from", f"xaq://{self.places[self.at]}")
        begun.wait_for("follows")
        return begun

    def follow(self) -> bool:
        """Whether each replica has its first copy, and has said who it is: who is promoted stops that process."""
        with suppress(OSError, ValueError):
            said = {side: json.loads((self.roots[side] / LAG).read_text())["pid"] for side in self.replicas}
            return all(said[side] == replica.pid for side, replica in self.replicas.items())
        return False

    def promote(self, side: int) -> None:
        command = [*RUN, "promote", str(self.roots[side]), "--yes"]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=PATIENCE_S)
        assert done.returncode == 0, done.stderr
        assert self.replicas[side].code() == 0, self.replicas[side].said
        self.replicas.pop(side).close()
        self.at, self.owner = side, self._serve(side)
        self.owner.wait_for("serving")

    def rejoin(self, former: Program, was: int, number: int) -> None:
        """Whoever is not promoted follows who is: the other replica, and the former space once it has ended."""
        for side in list(self.replicas):
            self.replicas.pop(side).close()
            self.replicas[side] = self._follow(side)
        if number == signal.SIGKILL:
            former.close()
            former = self._serve(was)
        else:
            former.signal(signal.SIGCONT)
        assert former.code() == FENCED, former.said
        former.close()

    def choose(self) -> int:
        """An operator's choice for a replica that has more than the promoted one, and has ended: it is copied anew."""
        chosen = [side for side, replica in self.replicas.items() if HAS_MORE in replica.said]
        for side in chosen:
            assert self.replicas[side].code() == NOT_OPENED
            self.replicas.pop(side).close()
            shutil.rmtree(self.roots[side])
            self.replicas[side] = self._follow(side)
        return len(chosen)

    def close(self) -> None:
        for program in (self.owner, *self.replicas.values()):
            program.close()


def _until(true: Callable[[], bool], otherwise: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline, otherwise()
        time.sleep(0.01)


def messages(root: Path) -> list[Message]:
    return list(browse(root, QUEUE, print))


def bodies(root: Path) -> list[bytes]:
    return [message.body for message in messages(root)]


def unshipped(root: Path) -> set[bytes]:
    """The bodies of what the list of a space that was replaced names by queue and number."""
    lines = [json.loads(line) for line in (root / UNSHIPPED).read_text().splitlines()]
    numbers = {seq for line in lines for queue, seq in (added[:2] for added in line["added"]) if queue == QUEUE}
    return {message.body for message in messages(root) if message.seq in numbers}


def judge(three: Three, writer: Writer, held: list[bytes], lost: set[bytes]) -> list[bytes]:
    """What the promoted one has, of which ``held`` was there before the writer began."""
    now = bodies(three.roots[three.at])
    assert now[: len(held)] == held
    came, written = now[len(held) :], [*writer.acknowledged, writer.unanswered]
    assert came == written[: len(came)], "no beginning of what was acknowledged, or not in its order"
    missing = set(writer.acknowledged[len(came) :])
    assert missing <= lost, f"neither here nor on the list: {sorted(missing - lost)[:5]}"
    return now


def wait_for_the_same(three: Three, side: int, held: list[bytes]) -> None:
    def is_same() -> bool:
        if three.choose() == 0:
            with suppress(Error):  # which is being copied, and put in place
                return bodies(three.roots[side]) == held
        return False

    _until(is_same, lambda: different(three, side, held))


def different(three: Three, side: int, held: list[bytes]) -> str:
    found = bodies(three.roots[side])
    more, less = sorted({*found} - {*held}), sorted({*held} - {*found})
    return f"replica {side} has {more[:5]} more and {less[:5]} less, of {len(held)}: {three.replicas[side].said}"


@pytest.mark.crash
def test_the_one_of_two_that_lags_takes_the_place(tmp_path: Path) -> None:
    seed = os.environ.get("XAQUEUE_KILL_SEED") or str(random.SystemRandom().randrange(10**9))
    sys.stdout.write(f"seed: XAQUEUE_KILL_SEED={seed}\n")
    rng = random.Random(seed)
    made(tmp_path / "a", "local")
    three = Three([tmp_path / name for name in "abc"])
    held, lacked = list[bytes](), 0
    try:
        for failover in range(FAILOVERS):
            writer = Writer(three.url, f"w{failover}")
            writer.start()
            writer.wait_for(10)
            _until(three.follow, lambda: "a replica does not follow")
            promoted = rng.choice(list(three.replicas))
            if failover % 4 < 3:  # else both are as far
                three.replicas[promoted].signal(signal.SIGSTOP)
            writer.wait_for(rng.randint(10, 100))
            former, was, number = three.owner, three.at, rng.choice((signal.SIGKILL, signal.SIGSTOP))
            former.signal(number)
            writer.join(PATIENCE_S)
            assert not writer.is_alive()
            # One that is stopped has acknowledged nothing more: the other one may follow no longer, either.
            three.replicas[promoted].signal(signal.SIGCONT)
            three.promote(promoted)
            three.rejoin(former, was, number)
            lost = unshipped(three.roots[was])
            held = judge(three, writer, held, lost)
            lacked += len(lost)
            three.replicas[was] = three._follow(was)
            for side in list(three.replicas):
                wait_for_the_same(three, side, held)
        assert lacked > 0, "nothing lagged: tried was nothing"
        three.owner.signal(signal.SIGTERM)
        assert three.owner.code() == 0, three.owner.said
    finally:
        three.close()
    for root in three.roots:
        assert [str(one) for one in check(root) if one.severity is Severity.DAMAGE] == []
