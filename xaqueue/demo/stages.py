"""How far a run of the producer is with each of its batches, for those who watch it: a byte for each, never synced.

A killed process leaves it as it was, the next run begins it anew. What became of a batch is not read here but in the
space and the decision log.
"""

from __future__ import annotations

import os
from pathlib import Path

PREPARED, DECIDED, COMMITTED = b"P", b"D", b"C"


class Stages:
    """Written by the producer; safe for its threads."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)

    def reached(self, batch: int, stage: bytes) -> None:
        os.pwrite(self._fd, stage, batch)

    def close(self) -> None:
        os.close(self._fd)


def batches_at(path: Path, stage: bytes) -> list[int]:
    """The batches that are there now."""
    try:
        told = path.read_bytes()
    except FileNotFoundError:
        return []
    return [batch for batch in range(len(told)) if told[batch : batch + 1] == stage]
