"""What the outcomes mean: which flags are safe in a directory against a kill, and against power loss. No I/O here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from xaqueue.storage.hardening import Hardening

SHOWN = 5
"""Faults of one outcome that are shown; the rest are counted."""


@dataclass
class CrashTally:
    """``tries``: kills, or trees that a power loss may leave; after ``faulty`` of them something was wrong."""

    tries: int = 0
    branches: int = 0
    """Branches that were acknowledged."""
    faulty: int = 0
    faults: list[str] = field(default_factory=list)

    def count(self, faults: Sequence[str]) -> None:
        """One more try, and what was wrong after it."""
        self.tries += 1
        self.faulty += bool(faults)
        self.faults += faults


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
    def safe(self) -> bool:
        """Whether nothing was lost by a power loss, either, and that is no luck."""
        return self.kept and self.promises_power


def is_safe(results: Sequence[Result]) -> bool:
    return all(result.kept for result in results)


def rows(results: Sequence[Result]) -> Iterator[tuple[str, str, str]]:
    """Flags; what a kill did; what a power loss did, by the rules."""
    for result in results:
        killed, power = result.killed, result.power
        after = f"{killed.tries:,} kills, {killed.branches:,} branches"
        survived = f"LOSES ({after})" if killed.faults else f"safe ({after})"
        trees = f"{power.faulty:,} of {power.tries:,} outcomes"
        if not power.faults:
            lost = f"safe ({power.tries:,} outcomes)" if result.promises_power else f"not promised (lost in {trees})"
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
    yield f"safe here against a kill: {_named(result for result in results if not result.killed.faults)}"
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
                "kills": _tally_dict(result.killed),
                "power_losses": _tally_dict(result.power),
            }
            for result in results
        ],
    }


def _tally_dict(outcome: CrashTally) -> dict[str, Any]:
    return {
        "tries": outcome.tries,
        "branches": outcome.branches,
        "faulty": outcome.faulty,
        "faults": outcome.faults[:SHOWN],
    }


def _named(results: Iterator[Result]) -> str:
    return ", ".join(result.flags for result in results) or "none"
