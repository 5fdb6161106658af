"""What the disk gives without an engine: raw syncs, and the least that a durable two-phase transaction can cost.

Two syncs, one for prepare and one for commit, are the floor of every two-phase protocol whose clients do not share
syncs. Overwriting space that was allocated and filled before needs no commit of the file system's own journal, so the
floor of preallocated overwrites is what the JOURNAL strategy is held to. Each thread has files of its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from itertools import count
from pathlib import Path

from xaqueue.bench.rates import Rate, Step, rate_of

SEGMENT_BYTES = 4 * 1024 * 1024
"""How much is preallocated for a thread; overwritten from the start again once it is full."""
DECISION_BYTES = 64
"""What a commit writes, where prepare wrote the message."""

OVERWRITE = "preallocated overwrite + fdatasync"
FLOOR_APPEND = "two-phase floor, append, 2 fdatasync"
FLOOR = "two-phase floor, preallocated overwrite, 2 fdatasync"

Maker = Callable[[Path, int, bytes], tuple[Step, int]]
"""Makes the step of one thread, and a descriptor to close after it: of directory, number of the thread and body."""


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


def _open_log(root: Path, thread: int) -> int:
    return os.open(root / f"log.{thread}", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)


def _append(sync: Callable[[int], None]) -> Maker:
    def make(root: Path, thread: int, body: bytes) -> tuple[Step, int]:
        fd = _open_log(root, thread)

        def step() -> bool:
            os.write(fd, body)
            sync(fd)
            return True

        return step, fd

    return make


def _overwrite(root: Path, thread: int, body: bytes) -> tuple[Step, int]:
    log = Preallocated(root / f"log.{thread}", len(body))

    def step() -> bool:
        log.write(body)
        return True

    return step, log.fd


def _floor_append(root: Path, thread: int, body: bytes) -> tuple[Step, int]:
    fd = _open_log(root, thread)
    decision = bytes(DECISION_BYTES)

    def step() -> bool:
        os.write(fd, body)
        os.fdatasync(fd)
        os.write(fd, decision)
        os.fdatasync(fd)
        return True

    return step, fd


def _floor(root: Path, thread: int, body: bytes) -> tuple[Step, int]:
    log = Preallocated(root / f"log.{thread}", len(body) + DECISION_BYTES)
    decision = bytes(DECISION_BYTES)

    def step() -> bool:
        log.write(body)
        log.write(decision)
        return True

    return step, log.fd


def _create(root: Path, thread: int, body: bytes) -> tuple[Step, int]:
    numbers = count()

    def step() -> bool:
        fd = os.open(f"{root}/{thread}.{next(numbers)}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        os.write(fd, body)
        os.fsync(fd)
        os.close(fd)
        return True

    return step, os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


RAW: dict[str, Maker] = {
    "append + fsync": _append(os.fsync),
    "append + fdatasync": _append(os.fdatasync),
    OVERWRITE: _overwrite,
    FLOOR_APPEND: _floor_append,
    FLOOR: _floor,
    "create + write + fsync": _create,
}
"""Raw limits by name, in the order in which they are shown."""
FLOORS = (FLOOR_APPEND, FLOOR)
"""Those that write the whole of a branch; the others write one message."""


def raw_rate(name: str, root: Path, threads: int, size_bytes: int, seconds: float) -> Rate:
    """One of ``RAW`` in an empty directory, each thread with files of its own."""
    body = os.urandom(size_bytes)
    with ExitStack() as stack:
        steps = []
        for thread in range(threads):
            step, fd = RAW[name](root, thread, body)
            stack.callback(os.close, fd)
            steps.append(step)
        return rate_of(steps, seconds)
