"""A torture: every level of hardening, killed and without power, in a directory that is left as it was.

A child is killed at random moments, started again on what it left, and at last everything is counted.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from xaqueue.errors import DiskFull
from xaqueue.space.owner import open
from xaqueue.storage.hardening import Hardening
from xaqueue.tools.torture.ledger import Ledger, Statement
from xaqueue.tools.torture.power import made, survive_power_losses
from xaqueue.tools.torture.verdict import CrashTally, Result
from xaqueue.tools.torture.work import NO_ROOM, reopened

LEVELS = ("JOURNAL", "FSYNC;DSYNC", "FDATASYNC;DSYNC", "FSYNC", "FDATASYNC", "DSYNC", "NONE")
THREADS = 4
LONGEST_WORK_S = 0.8
IN_RECOVERY = 0.2
"""The share of lives that are ended some time after their start, most of them while they recover."""
LONGEST_RECOVERY_S = 0.6
LONGEST_START_S = 60.0
"""A child that is not to be killed while it recovers has so long to begin its work."""

Child = subprocess.Popen[bytes]


def run(
    directory: Path, flags: Sequence[str], seconds: float, progress: Callable[[str], None], seed: str | None = None
) -> tuple[list[Result], str]:
    """The result of each level, and the seed. ``seconds``: for each level, half of it for each kind of crash.

    Raises InvalidArgument for flags that are none, DiskFull, OSError.
    """
    seed = seed or f"{random.SystemRandom().randrange(10**9)}"
    levels = [str(Hardening.parse(text)) for text in (flags or LEVELS)]
    results = []
    with tempfile.TemporaryDirectory(prefix="xaqueue-torture-", dir=directory) as scratch:
        place = Path(scratch)
        for level in levels:
            progress(f"killing {level}")
            with made(place / "kills"):
                open.create(place / "kills" / "space", any_queue=True)
                killed = survive_kills(place / "kills" / "space", level, seconds / 2, seed)
            progress(f"taking the power from {level}")
            with made(place / "power"):
                power = survive_power_losses(place / "power", level, seconds / 2, seed)
            results.append(Result(level, killed, power))
    return results, seed


def survive_kills(space: Path, flags: str, seconds: float, seed: str) -> CrashTally:
    """Lives on the space until the time is over, one at least. Raises DiskFull where there is no room to work."""
    ledger, outcome = Ledger(), CrashTally()
    dice = random.Random(f"{seed}/kills/{flags}")
    until = time.monotonic() + seconds
    while outcome.tries == 0 or time.monotonic() < until:
        name = f"{outcome.tries}"
        command = [sys.executable, "-m", "xaqueue.tools.torture.work", str(space), flags, name, seed, str(THREADS)]
        life = Life(command, kill, dice.uniform(0.0, LONGEST_WORK_S))
        if dice.random() < IN_RECOVERY:
            life = Life(command, kill, life.work_s, dice.uniform(0.1, LONGEST_RECOVERY_S))
        try:
            life.run(ledger)
        except LifeFailed as failed:
            if failed.code == NO_ROOM:
                raise DiskFull(f"no room to work in: {failed}") from None
            ledger.faults.append(f"the engine failed: {str(failed).splitlines()[-1] if str(failed) else failed.code}")
            break
        new, ledger.faults = ledger.faults, []
        outcome.count(new)
    last = [*ledger.faults, *ledger.judge(reopened(space, flags, ledger.decided()))]
    outcome.faulty += bool(last)
    outcome.faults += last
    outcome.branches = ledger.heard["acked"]
    return outcome


class LifeFailed(Exception):
    """The child ended by itself. ``code``: its exit code."""

    def __init__(self, code: int, complaint: str) -> None:
        super().__init__(complaint)
        self.code = code


@dataclass(frozen=True)
class Life:
    """``end`` ends it and waits for that: ``start_s`` after its start, or ``work_s`` after it said that it is ready.

    ``loses_power``: what it says while ``end`` is at work may be untrue.
    """

    command: Sequence[str]
    end: Callable[[Child], None]
    work_s: float
    start_s: float = LONGEST_START_S
    loses_power: bool = False

    def run(self, ledger: Ledger) -> bool:
        """Returns whether it said "stopped", which ended it. Raises LifeFailed where nobody killed it."""
        ledger.begin_life()
        with tempfile.TemporaryFile() as decided, tempfile.TemporaryFile() as complaint:
            decided.write(json.dumps(sorted(ledger.decided())).encode())
            decided.seek(0)
            with subprocess.Popen(self.command, stdin=decided, stdout=subprocess.PIPE, stderr=complaint) as child:
                try:
                    return self._listen(child, ledger)
                except EOFError:
                    code = child.wait()
                    if code == -signal.SIGKILL:
                        return False
                    complaint.seek(0)
                    raise LifeFailed(code, complaint.read().decode("utf-8", "replace").strip()) from None
                finally:
                    child.kill()

    def _listen(self, child: Child, ledger: Ledger) -> bool:
        """Until its end. Raises EOFError where that is its own."""
        assert child.stdout is not None
        pipe, until, stopped, rest = child.stdout.fileno(), time.monotonic() + self.start_s, False, b""
        left = self.start_s
        while _is_ready(pipe, left):
            heard = os.read(pipe, 1 << 16)
            if not heard:
                raise EOFError
            *lines, rest = (rest + heard).split(b"\n")
            for said in map(Statement.parse, lines):
                ledger.hear(said)
                if said.event == "ready":
                    until = time.monotonic() + self.work_s
                elif said.event == "stopped":
                    stopped = True
            if left == 0.0:
                break
            left = 0.0 if stopped else max(0.0, until - time.monotonic())
        self.end(child)
        for line in (rest + child.stdout.read()).split(b"\n")[:-1]:
            ledger.hear(Statement.parse(line), late=self.loses_power)
        return stopped


def _is_ready(pipe: int, within_s: float) -> bool:
    return bool(select.select([pipe], [], [], within_s)[0])


def kill(child: Child) -> None:
    """Raises EOFError where it had ended by itself just before."""
    child.kill()
    if child.wait() != -signal.SIGKILL:
        raise EOFError
