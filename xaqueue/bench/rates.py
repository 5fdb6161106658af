"""One way of timing for everything that is measured: the engine, the bare calls, the raw limits and the peers.

Each step runs over and over in a thread of its own until a common deadline. Every step's duration is kept, so that
what a few of them suffered shows beside the rate: a median hides a stall, the 99.9th percentile does not.
"""

from __future__ import annotations

import math
import threading
import time
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

Step = Callable[[], bool]
"""One operation; False when there is nothing left to do."""


def _no_latencies() -> array[float]:
    return array("d")


@dataclass(frozen=True, slots=True)
class Rate:
    """What was measured: operations of all clients, wall time from the common start to the last end, CPU time."""

    operations: int
    seconds: float
    cpu_seconds: float
    latencies_s: array[float] = field(default_factory=_no_latencies, repr=False)
    """How long each operation took, in no order."""

    server_cpu_seconds: float = 0.0
    """How much of the CPU time was the server's, where there is one and it can be told."""

    round_trips: int = 0
    """Between clients and server, where they are counted."""

    @property
    def per_s(self) -> float:
        return self.operations / self.seconds if self.seconds > 0 else 0.0

    @property
    def cpu_us(self) -> float:
        """Microseconds of processor time, user and system, for one operation."""
        return self._each(self.cpu_seconds * 1e6)

    @property
    def server_cpu_us(self) -> float:
        """The server's part of ``cpu_us``."""
        return self._each(self.server_cpu_seconds * 1e6)

    @property
    def round_trips_each(self) -> float:
        return self._each(self.round_trips)

    def _each(self, total: float) -> float:
        return total / self.operations if self.operations else 0.0


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


def together(rates: Sequence[Rate]) -> Rate:
    """The rate of clients that ran at the same time, each measured for itself."""
    latencies = _no_latencies()
    for rate in rates:
        latencies.extend(rate.latencies_s)
    return Rate(
        sum(rate.operations for rate in rates),
        max(rate.seconds for rate in rates),
        sum(rate.cpu_seconds for rate in rates),
        latencies,
        round_trips=sum(rate.round_trips for rate in rates),
    )


class _Crew:
    """Threads that start together and stop at one deadline, or at the first failure of any."""

    def __init__(self, hands: int, seconds: float) -> None:
        self._seconds = seconds
        self._start = threading.Barrier(hands, self._begin)
        self._deadline = self._begun = self._ended = self._cpu = 0.0
        self._latencies = _no_latencies()
        self._guard = threading.Lock()
        self.failure: BaseException | None = None

    def _begin(self) -> None:
        self._cpu = time.process_time()
        self._begun = time.perf_counter()
        self._deadline = self._begun + self._seconds

    def work(self, step: Step) -> None:
        latencies = _no_latencies()
        clock = time.perf_counter
        now = 0.0
        try:
            self._start.wait()
            now = clock()
            while now < self._deadline and step():
                before, now = now, clock()
                latencies.append(now - before)
        except BaseException as error:
            with self._guard:
                self.failure = self.failure or error
            self.stop()
        with self._guard:
            self._latencies.extend(latencies)
            self._ended = max(self._ended, now, self._begun)

    def stop(self) -> None:
        self._deadline = 0.0
        self._start.abort()

    def rate(self) -> Rate:
        cpu_seconds = time.process_time() - self._cpu
        return Rate(len(self._latencies), self._ended - self._begun, cpu_seconds, self._latencies)


def rate_of(steps: Sequence[Step], seconds: float) -> Rate:
    """Runs each step over and over in a thread of its own. Raises what a step raised; threads end before it returns."""
    crew = _Crew(len(steps), seconds)
    threads = [threading.Thread(target=crew.work, args=(step,), name="xaqueue-bench") for step in steps]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    except BaseException:  # interrupted: the threads must not outlive the directory that they work in
        crew.stop()
        for thread in threads:
            if thread.ident is not None:
                thread.join()
        raise
    if crew.failure is not None:
        raise crew.failure
    return crew.rate()
