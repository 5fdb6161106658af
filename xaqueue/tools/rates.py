"""One way of timing for everything that is measured: the engine, the bare calls, the raw limits and the peers.

Each step runs over and over in a thread of its own until a common deadline. Every step's duration is kept, so that
what a few of them suffered shows beside the rate: a median hides a stall, the 99.9th percentile does not.

The bare calls are those that the crash rules need for a two-phase transaction, and nothing else: in their order and
with the directories open, without index, codec, lock and group commit. What an engine adds is what it lacks to this. A
branch of several messages has a branch block, as the format asks. Under JOURNAL each step is one record in a log of the
thread's own, written and synced before the directories change, which are not synced. Two such records alone, for
prepare and for commit, are the floor of every two-phase protocol whose clients share no sync.
"""

# It speaks in system calls, as the file port does.
# ruff: noqa: PTH103, PTH104, PTH108

from __future__ import annotations

import math
import os
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, count
from pathlib import Path

from xaqueue.storage.hardening import Hardening

Step = Callable[[], bool]
"""One operation; False when there is nothing left to do."""


@dataclass(frozen=True, slots=True)
class Rate:
    """What was measured: operations of all clients, wall time from the common start to the last end, CPU time."""

    operations: int
    seconds: float
    cpu_seconds: float
    latencies_s: array[float] = field(default_factory=lambda: array("d"), repr=False)
    """How long each operation took, in no order."""
    rounds: int = 0
    """Of syncs, where they were the engine's operations; and the steps that shared them."""
    steps: int = 0

    @property
    def per_s(self) -> float:
        return self.operations / self.seconds if self.seconds > 0 else 0.0

    @property
    def cpu_us(self) -> float:
        """Microseconds of processor time, user and system, for one operation."""
        return self.cpu_seconds * 1e6 / self.operations if self.operations else 0.0


def latency_us(rates: Iterable[Rate], *percents: float) -> list[float]:
    """Percentiles over all operations of these rates, in microseconds; 0 where there was none."""
    ordered = sorted(latency for rate in rates for latency in rate.latencies_s)
    return [percentile(ordered, percent) * 1e6 for percent in percents]


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The smallest value that ``percent`` of a hundred do not exceed; 0.0 of none."""
    if not ordered:
        return 0.0
    rank = math.ceil(len(ordered) * percent / 100)
    return ordered[min(max(rank, 1), len(ordered)) - 1]


def aligned(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Columns as wide as their widest cell; a column whose cells end with a digit is one of numbers, to the right."""
    texts = list(rows)
    columns = list(zip(headings, *texts, strict=True))
    widths = [max(map(len, column)) for column in columns]
    numbers = [all(cell[-1:].isdigit() or cell == "" for cell in column[1:]) for column in columns]
    return [
        "  ".join(
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(row, widths, numbers, strict=True)
        ).rstrip()
        for row in (headings, *texts)
    ]


def rate_of(steps: Sequence[Step], seconds: float) -> Rate:
    """Runs each step over and over in a thread of its own. Raises what a step raised; threads end before it returns."""
    began = began_cpu = 0.0
    over = threading.Event()

    def begin() -> None:
        nonlocal began, began_cpu
        began, began_cpu = time.perf_counter(), time.process_time()

    start = threading.Barrier(len(steps), begin)

    def work(step: Step) -> tuple[array[float], float]:
        """How long each operation took, and when the last one ended."""
        latencies, clock = array("d"), time.perf_counter
        try:
            start.wait()
            now, deadline = clock(), began + seconds
            while now < deadline and not over.is_set() and step():
                before, now = now, clock()
                latencies.append(now - before)
        except BaseException:
            over.set()
            raise
        return latencies, now

    with ThreadPoolExecutor(len(steps), thread_name_prefix="xaqueue-bench") as pool:
        try:
            done = [working.result() for working in [pool.submit(work, step) for step in steps]]
        except BaseException:  # interrupted: the threads must not outlive the directory that they work in
            over.set()
            start.abort()
            raise
    latencies = array("d", chain.from_iterable(one for one, _ in done))
    ended = max(now for _, now in done)
    return Rate(len(latencies), ended - began, time.process_time() - began_cpu, latencies)


SEGMENT_BYTES = 4 * 1024 * 1024
"""How much is preallocated for a thread; overwritten from the start again once it is full."""
DECISION_BYTES = 64
"""What a commit writes, where prepare wrote the message."""
DEQUEUE_BLOCK_BYTES = 72
LISTED_BYTES = 32
"""A line of a branch block, about."""
WATERMARK = b"%016x %016x %08x\n" % (1, 1, 1)

ACTIVE, PREPARED, MESSAGES = "active", "prepared", "committed/range"


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


def floor(root: Path, threads: int, branch_bytes: int, seconds: float) -> Rate:
    """Branches a second by two preallocated overwrites with fdatasync, each thread in a file of its own."""
    logs = [Preallocated(root / f"log.{thread}", branch_bytes + DECISION_BYTES) for thread in range(threads)]
    branch, decision = os.urandom(branch_bytes), bytes(DECISION_BYTES)

    def step(log: Preallocated) -> bool:
        log.write(branch)
        log.write(decision)
        return True

    try:
        return rate_of([partial(step, log) for log in logs], seconds)
    finally:
        for log in logs:
            os.close(log.fd)


class BareProtocol:
    """One thread's two-phase enqueue and dequeue of branches, with the syncs that the flags ask for."""

    def __init__(self, root: Path, hardening: Hardening, size_bytes: int, messages: int = 1, thread: int = 0) -> None:
        """``root``: all threads share it; a branch has so many ``messages``. ``close`` ends the use of it."""
        self._root = os.fspath(root)
        self._thread = thread
        for name in (ACTIVE, PREPARED, MESSAGES):
            os.makedirs(f"{root}/{name}", exist_ok=True)
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        self._fds = {name: os.open(f"{root}/{name}", flags) for name in (ACTIVE, PREPARED, MESSAGES)}
        self._watermark = os.open(f"{root}/committed/.watermark", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        content = "" if hardening.journal else hardening.content
        self._sync: Callable[[int], None] | None = {"FSYNC": os.fsync, "FDATASYNC": os.fdatasync}.get(content)
        self._directories = hardening.directories and not hardening.journal
        self._messages = messages
        self._body = os.urandom(size_bytes)
        self._removal = os.urandom(DEQUEUE_BLOCK_BYTES)
        self._list = os.urandom(LISTED_BYTES * messages) if messages > 1 else b""
        largest_bytes = messages * max(size_bytes, DEQUEUE_BLOCK_BYTES) + len(self._list)
        self._log = Preallocated(f"{root}/log.{thread}", largest_bytes) if hardening.journal else None
        self._numbers = count()
        self._enqueued: deque[str] = deque()

    def enqueue_next(self) -> bool:
        branch = f"{self._thread}.{next(self._numbers)}"
        self.enqueue(branch)
        self._enqueued.append(branch)
        return True

    def dequeue_next(self) -> bool:
        """What it enqueued, in that order; False where nothing of it is left."""
        if self._enqueued:
            self.dequeue(self._enqueued.popleft())
            return True
        return False

    def enqueue(self, branch: str) -> None:
        names = self._names(branch)
        self._prepare(branch, dict.fromkeys(names, self._body))
        self._decide(branch)
        for name in names:
            os.utime(f"{self._root}/{PREPARED}/{name}")
            self._move(name, PREPARED, MESSAGES)
        self._harden(MESSAGES, PREPARED)
        self._finish(branch)
        if self._log is None:  # its records have it
            os.pwrite(self._watermark, WATERMARK, 0)

    def dequeue(self, branch: str) -> None:
        names = self._names(branch)
        for name in names:
            fd = os.open(f"{self._root}/{MESSAGES}/{name}", os.O_RDONLY | os.O_CLOEXEC)
            os.read(fd, len(self._body) + 1)
            os.close(fd)
        self._prepare(branch, dict.fromkeys(names, self._removal))
        self._decide(branch)
        for name in names:
            os.unlink(f"{self._root}/{MESSAGES}/{name}")
        self._harden(MESSAGES)
        for name in names:
            os.unlink(f"{self._root}/{PREPARED}/{name}")
        self._finish(branch)

    def close(self) -> None:
        for fd in (*self._fds.values(), self._watermark, *(() if self._log is None else (self._log.fd,))):
            os.close(fd)

    def _names(self, branch: str) -> list[str]:
        return [branch] if not self._list else [f"{branch}.{number}" for number in range(1, self._messages + 1)]

    def _prepare(self, branch: str, blocks: dict[str, bytes]) -> None:
        if self._list:
            blocks[f"{branch}.000"] = self._list
        for name, block in blocks.items():
            self._write(f"{self._root}/{ACTIVE}/{name}", block)
        if self._log is not None:
            self._log.write(b"".join(blocks.values()))
        for name in blocks:
            self._move(name, ACTIVE, PREPARED)
        self._harden(PREPARED, ACTIVE)

    def _decide(self, branch: str) -> None:
        """The commit point, where it is no move of the one block."""
        if self._log is not None:
            self._log.write(bytes(DECISION_BYTES * self._messages))
        elif self._list:
            prepared = f"{self._root}/{PREPARED}/{branch}"
            os.rename(f"{prepared}.000", f"{prepared}.commit")
            self._harden(PREPARED)

    def _finish(self, branch: str) -> None:
        if self._list:
            os.unlink(f"{self._root}/{PREPARED}/{branch}.{'commit' if self._log is None else '000'}")

    def _move(self, name: str, source: str, target: str) -> None:
        os.rename(f"{self._root}/{source}/{name}", f"{self._root}/{target}/{name}")

    def _harden(self, *directories: str) -> None:
        if self._directories:
            for name in directories:
                os.fsync(self._fds[name])

    def _write(self, path: str, data: bytes) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        os.write(fd, data)
        if self._sync is not None:
            self._sync(fd)
        os.close(fd)
