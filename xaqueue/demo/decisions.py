"""The producer's decision log: what it decided on a batch is on disk before the batch's branch hears of it.

One line a decision, ``commit <batch>`` or ``rollback <batch>``; the last line of a batch holds, and no line means
rollback (presumed rollback). The second word is written only where an operator has rolled back what was decided to be
committed. A line that a crash cut short was never decided: opening the log cuts it off.
"""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

COMMIT = "commit"
ROLLBACK = "rollback"

_LINE = re.compile(rb"(commit|rollback) (\d+)\n")


def committed(path: Path) -> set[int]:
    """The batches that are decided to be committed; any process may ask while the log grows."""
    try:
        return _replay(path.read_bytes())[0]
    except FileNotFoundError:
        return set()


class DecisionLog:
    """Opened by the one process that decides; safe for its threads."""

    def __init__(self, path: Path) -> None:
        self._mutex = threading.Lock()
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        data = path.read_bytes()
        self._committed, self._end = _replay(data)
        if self._end != len(data):
            os.ftruncate(self._fd, self._end)
        os.fsync(self._fd)
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def is_committed(self, batch: int) -> bool:
        with self._mutex:
            return batch in self._committed

    def count(self) -> int:
        """How many batches are decided to be committed."""
        with self._mutex:
            return len(self._committed)

    def record(self, batch: int, outcome: str) -> None:
        """Returns once the decision is on disk. Raises OSError, and then only the next opening of the log can tell."""
        line = f"{outcome} {batch:06d}\n".encode()
        with self._mutex:
            os.pwrite(self._fd, line, self._end)
            os.fdatasync(self._fd)
            self._end += len(line)
            if outcome == COMMIT:
                self._committed.add(batch)
            else:
                self._committed.discard(batch)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._fd)


def _replay(data: bytes) -> tuple[set[int], int]:
    """The committed batches, and where the last whole line ends."""
    found: set[int] = set()
    end = 0
    while match := _LINE.match(data, end):
        if match[1] == COMMIT.encode():
            found.add(int(match[2]))
        else:
            found.discard(int(match[2]))
        end = match.end()
    return found, end
