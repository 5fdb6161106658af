"""What is known of a snapshot."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SnapshotStatus:
    """One that a space has, in ``snapshots/<number>`` of its directory."""

    number: int
    taken_at: int
    """Int microseconds UTC."""
    sync: str
    """The level of the space then."""
    lsn: int
    """Every change below this position of the journal is in it and no other; 0 where there is no journal."""
    queues: int
    messages: int
    files: int
    problem: str = ""
    """Why it is not used, or what a check found; empty where nothing is seen to be wrong with it."""
    checked_at: int = 0
    """When all of it was read last, int microseconds UTC; 0 for never."""
