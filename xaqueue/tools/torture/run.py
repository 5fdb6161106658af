"""A torture: every level of hardening, killed and without power, in a directory that is left as it was.

A child is killed at random moments, started again on what it left, and at last everything is counted. The outcomes
say which flags are safe in a directory against a kill, and which against power loss.
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
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from xaqueue.core.storage.hardening import Hardening
from xaqueue.errors import DiskFull
from xaqueue.features import opening
from xaqueue.tools.torture.ledger import CrashTally, Ledger, Statement
from xaqueue.tools.torture.power import made, survive_power_losses
from xaqueue.tools.torture.work import NO_ROOM, reopened

LEVELS = ("JOURNAL", "FSYNC;DSYNC", "FDATASYNC;DSYNC", "FSYNC", "FDATASYNC", "DSYNC", "NONE")
THREADS = 4
LONGEST_WORK_S = 0.8
IN_RECOVERY = 0.2
"""The share of lives that are ended some time after their start, most of them while they recover."""
LONGEST_RECOVERY_S = 0.6
LONGEST_START_S = 60.0
"""A child that is not to be killed while it recovers has so long to begin its work."""

SECONDS = 10.0
"""For each level, or more, until there is a verdict."""
ENOUGH = 20
"""Kills, and outcomes of a power loss, of which fewer give no verdict: a fault is one at once, to be safe is not."""
SAFE = "safe"
SHOWN = 5
"""Faults of one outcome that are shown; the rest are counted."""

Child = subprocess.Popen[bytes]


@dataclass(frozen=True)
class Result:
    """Of one level of hardening."""

    flags: str
    killed: CrashTally
    power: CrashTally

    @property
    def promises_power(self) -> bool:
        """Whether an acknowledged step is to survive a power loss."""
        level = Hardening.parse(self.flags)
        return level.journal or (bool(level.content) and level.directories)

    @property
    def kept(self) -> bool:
        """Whether everything that the level promises was kept."""
        return not self.killed.faults and not (self.promises_power and self.power.faults)

    @property
    def tried(self) -> bool:
        """Whether there is a verdict."""
        return not self.kept or min(self.killed.tries, self.power.tries) >= ENOUGH

    @property
    def safe(self) -> bool:
        """Whether nothing was lost by a power loss, either, and that is no luck."""
        return self.kept and self.promises_power and self.tried


def run(
    directory: Path, flags: Sequence[str], seconds: float | None, progress: Callable[[str], None], seed: str | None
) -> tuple[list[Result], str]:
    """The result of each level, and the seed. ``seconds``: for each level, half of it for each kind of crash; None: as
    long as a verdict takes.

    Raises InvalidArgument for flags that are none, DiskFull, OSError.
    """
    seed = seed or f"{random.SystemRandom().randrange(10**9)}"
    least, seconds = (ENOUGH, SECONDS) if seconds is None else (1, seconds)
    levels = [str(Hardening.parse(text)) for text in (flags or LEVELS)]
    results = []
    with tempfile.TemporaryDirectory(prefix="xaqueue-torture-", dir=directory) as scratch:
        place = Path(scratch)
        for level in levels:
            progress(f"killing {level}")
            with made(place / "kills"):
                opening.create(place / "kills" / "space", any_queue=True)
                killed = survive_kills(place / "kills" / "space", level, seconds / 2, seed, least)
            progress(f"taking the power from {level}")
            with made(place / "power"):
                power = survive_power_losses(place / "power", level, seconds / 2, seed)
            results.append(Result(level, killed, power))
    return results, seed


def survive_kills(space: Path, flags: str, seconds: float, seed: str, least: int = 1) -> CrashTally:
    """Lives on the space until the time is over, ``least`` of them at least. Raises DiskFull where there is no room."""
    ledger, outcome = Ledger(), CrashTally()
    dice = random.Random(f"{seed}/kills/{flags}")
    until = time.monotonic() + seconds
    while outcome.tries < least or time.monotonic() < until:
        name = f"{outcome.tries}"
        command = [sys.executable, "-m", "xaqueue.tools.torture.work", str(space), flags, name, seed, str(THREADS)]
        work_s = dice.uniform(0.0, LONGEST_WORK_S)
        start_s = dice.uniform(0.1, LONGEST_RECOVERY_S) if dice.random() < IN_RECOVERY else LONGEST_START_S
        try:
            ChildRun(command, kill, work_s, start_s).run(ledger)
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
class ChildRun:
    """``end`` ends it and waits for that: ``start_s`` after its start, or ``work_s`` after it said that it is ready, or
    once it said that it has stopped."""

    command: Sequence[str]
    end: Callable[[Child], None]
    work_s: float
    start_s: float = LONGEST_START_S

    def run(self, ledger: Ledger) -> None:
        """Raises LifeFailed where nobody killed it."""
        ledger.begin_life()
        with tempfile.TemporaryFile() as decided, tempfile.TemporaryFile() as complaint:
            decided.write(json.dumps(sorted(ledger.decided())).encode())
            decided.seek(0)
            with subprocess.Popen(self.command, stdin=decided, stdout=subprocess.PIPE, stderr=complaint) as child:
                try:
                    self._listen(child, ledger)
                except EOFError:
                    if (code := child.wait()) != -signal.SIGKILL:
                        complaint.seek(0)
                        raise LifeFailed(code, complaint.read().decode("utf-8", "replace").strip()) from None
                finally:
                    child.kill()

    def _listen(self, child: Child, ledger: Ledger) -> None:
        """Until its end. Raises EOFError where that is its own."""
        assert child.stdout is not None
        pipe, until, rest = child.stdout.fileno(), time.monotonic() + self.start_s, b""
        left = self.start_s
        while select.select([pipe], [], [], left)[0]:
            heard = os.read(pipe, 1 << 16)
            if not heard:
                raise EOFError
            *lines, rest = (rest + heard).split(b"\n")
            for said in map(Statement.parse, lines):
                ledger.hear(said)
                if said.event == "ready":
                    until = time.monotonic() + self.work_s
                elif said.event == "stopped":
                    until = 0.0
            if left == 0.0:
                break
            left = max(0.0, until - time.monotonic())
        self.end(child)
        for line in (rest + child.stdout.read()).split(b"\n")[:-1]:
            ledger.hear(Statement.parse(line))


def kill(child: Child) -> None:
    """Raises EOFError where it had ended by itself just before."""
    child.kill()
    if child.wait() != -signal.SIGKILL:
        raise EOFError


def is_safe(results: Sequence[Result]) -> bool | None:
    """None: of a level there is no verdict."""
    if not all(result.kept for result in results):
        return False
    return True if all(result.tried for result in results) else None


def rows(results: Sequence[Result]) -> Iterator[tuple[str, str, str]]:
    """Flags; what a kill did; what a power loss did, by the rules."""
    for result in results:
        killed, power = result.killed, result.power
        after = f"{killed.tries:,} kills, {killed.branches:,} branches"
        survived = f"{_sound(killed)} ({after})"
        trees = f"{power.faulty:,} of {power.tries:,} outcomes"
        if not power.faults:
            lost = (
                f"{_sound(power)} ({power.tries:,} outcomes)"
                if result.promises_power
                else f"not promised (lost in {trees})"
            )
        else:
            lost = f"LOSES (in {trees})" if result.promises_power else f"loses, as it says (in {trees})"
        yield result.flags, survived, lost


def lines(results: Sequence[Result]) -> Iterator[str]:
    """The verdict in sentences, below the rows."""
    for result in results:
        for what, outcome in (("a kill", result.killed), ("a power loss", result.power)):
            if outcome.faults and (what == "a kill" or result.promises_power):
                yield f"{result.flags} breaks its promise after {what}:"
                yield from (f"  {fault}" for fault in outcome.faults[:SHOWN])
                if len(outcome.faults) > SHOWN:
                    yield f"  and {len(outcome.faults) - SHOWN:,} more"
    for result in results:
        if not result.promises_power and result.power.faults:
            yield f"{result.flags}, by the rules of a power loss: for example {result.power.faults[0]}"
    untried = [result for result in results if not result.tried]
    if untried:
        wanted = f"{ENOUGH} kills and {ENOUGH} outcomes of a power loss are wanted: give more --seconds, or none"
        yield f"no verdict on {_named(untried)}: {wanted}"
    yield f"safe here against a kill: {_named(one for one in results if _sound(one.killed) == SAFE)}"
    yield f"safe here against power loss, by the rules: {_named(result for result in results if result.safe)}"
    yield "by the rules: what was synced is there, of the rest any part; whether syncs here are honest, `iotest` judges"


def as_dict(results: Sequence[Result], seed: str) -> dict[str, Any]:
    """For programs."""
    return {
        "seed": seed,
        "safe": is_safe(results),
        "levels": [
            {
                "flags": result.flags,
                "promises_power_loss": result.promises_power,
                "kept": result.kept,
                "kills": asdict(result.killed) | {"faults": result.killed.faults[:SHOWN]},
                "power_losses": asdict(result.power) | {"faults": result.power.faults[:SHOWN]},
            }
            for result in results
        ],
    }


def _sound(tally: CrashTally) -> str:
    return "LOSES" if tally.faults else SAFE if tally.tries >= ENOUGH else "no verdict"


def _named(results: Iterable[Result]) -> str:
    return ", ".join(result.flags for result in results) or "none"
