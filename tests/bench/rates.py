"""One way of timing for everything that is measured: the engine, the disk's own limit, and a peer of either.

Each step runs over and over in a thread of its own until a common deadline. Every step's duration is kept, so that
what a few of them suffered shows beside the rate: a median hides a stall, the 99.9th percentile does not.

The floor of every two-phase protocol whose clients share no sync is two records in a preallocated log, one for prepare
and one for commit, each written and synced.
"""

from __future__ import annotations

import os
import threading
import time
from array import array
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path

from xaqueue.tools.rates import Preallocated, percentile

Step = Callable[[], bool]
"""One operation; False when there is nothing left to do."""
DECISION_BYTES = 64
"""What a commit writes, where prepare wrote the message."""
BUSY = (
    "others used {:.0%} of the processors' time while nothing was measured: figures are too low, most of all those of "
    "a server, whose every answer waits for a processor. Measure on a machine that is idle"
)
BUSY_SHARE = 0.1


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


def busy_share(seconds: float = 0.2, root: str | os.PathLike[str] = "/") -> float:
    """Which part of all processors' time others use while this thread sleeps: they slow what is measured here."""
    stat = Path(root) / "proc/stat"
    before = _processor_times(stat)
    time.sleep(seconds)
    total, idle = (after - earlier for after, earlier in zip(_processor_times(stat), before, strict=True))
    return 1.0 - idle / total if total > 0 else 0.0


def _processor_times(stat: Path) -> tuple[int, int]:
    """Clock ticks of all processors since they were started: all of them, and the idle ones; see proc_stat(5)."""
    times = [int(field) for field in stat.read_text().split("\n", 1)[0].split()[1:9]]
    return sum(times), times[3] + times[4]
