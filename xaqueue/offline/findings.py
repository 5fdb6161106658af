"""What a check says: a finding, how bad it is, and the second look that a moving target gets."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import NamedTuple

SECOND_LOOK_S = 0.1
"""How long a live owner may be between two calls of one step before its step looks like a crash."""


class Severity(StrEnum):
    """The worst first."""

    DAMAGE = "damage"
    """Breaks an invariant."""
    DUPLICATE = "duplicate"
    """A message id that stands in two queues or spaces: each of the messages is whole. Only of many spaces."""
    LEFTOVER = "leftover"
    """What a crash left for the next open to finish."""
    NOTE = "note"
    """Nothing is wrong."""


WRONG = (Severity.DAMAGE, Severity.DUPLICATE)


class Finding(NamedTuple):
    """``path`` is relative to the space; of a message in a block of many what it would be, had it a file of its own.
    ``movable``: the file itself is bad, and repair can set it aside."""

    severity: Severity
    path: str
    problem: str
    movable: bool = False
    space: str = ""
    """Its directory, where many are checked."""
    block: str = ""
    """The path of the block in which the message lies; of one that repair can mend, its own path."""


Probe = Callable[[], Iterable[Finding]]


class Prober:
    """Runs probes. Of a live space only what a probe finds twice is a finding; a file that vanished has moved on."""

    def __init__(self, live: bool, look_again: Callable[[], object] = lambda: None) -> None:
        """look_again: called before a second look."""
        self.live = live
        self._look_again = look_again
        self.again = False
        """Whether this is a second look, for which nothing may be remembered from the first."""

    def at(self, probe: Probe) -> list[Finding]:
        findings = _run(probe)
        if not findings or not self.live:
            return findings
        time.sleep(SECOND_LOOK_S)
        self._look_again()
        self.again = True
        try:
            return [finding for finding in _run(probe) if finding in findings]
        finally:
            self.again = False


def damaged(path: str, problem: str, block: str = "") -> Finding:
    """The file itself is bad, and can be set aside; in a block, this message of it."""
    return Finding(Severity.DAMAGE, path, problem, movable=True, block=block)


def broken(path: str, problem: str) -> Finding:
    """Something is bad that moving this file would not mend."""
    return Finding(Severity.DAMAGE, path, problem)


def leftover(path: str, problem: str) -> Finding:
    return Finding(Severity.LEFTOVER, path, problem)


def note(path: str, problem: str) -> Finding:
    return Finding(Severity.NOTE, path, problem)


def _run(probe: Probe) -> list[Finding]:
    try:
        return list(probe())
    except FileNotFoundError:
        return []
