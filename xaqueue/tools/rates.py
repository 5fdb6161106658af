"""A percentile of many calls, and the file that the disk itself is measured by."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

SEGMENT_BYTES = 4 * 1024 * 1024
"""How much is preallocated for a thread; overwritten from the start again once it is full."""


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The smallest value that ``percent`` of a hundred do not exceed; 0.0 of none."""
    if not ordered:
        return 0.0
    rank = math.ceil(len(ordered) * percent / 100)
    return ordered[min(max(rank, 1), len(ordered)) - 1]


class Preallocated:
    """A file that is filled before it is measured, then overwritten from its start to its end, again and again."""

    def __init__(self, path: str | os.PathLike[str], largest_bytes: int) -> None:
        self.size_bytes = max(SEGMENT_BYTES, largest_bytes)
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        zeros = bytes(1 << 20)
        for offset in range(0, self.size_bytes, len(zeros)):
            os.pwrite(self.fd, zeros[: self.size_bytes - offset], offset)
        os.fsync(self.fd)
        self._position = 0

    def write(self, record: bytes) -> None:
        if self._position + len(record) > self.size_bytes:
            self._position = 0
        os.pwrite(self.fd, record, self._position)
        self._position += len(record)
        os.fdatasync(self.fd)
