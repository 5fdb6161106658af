"""What a checkpoint of the journal costs those who work meanwhile: the same work with and without, in turns.

The bench itself asks for the checkpoints, more often than a space does, so that a short run has several. A space that
is not asked makes none in so short a time. What counts is the 99.9th percentile, told in syncs of the same disk.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Any, Self

from bench.engine import QUEUE, BenchPlan, enqueuer
from bench.rates import Rate, floor, latency_us, rate_of
from xaqueue.connection import Connection
from xaqueue.core.engine.state import Space
from xaqueue.features.opening import create
from xaqueue.features.session import attach

PERCENTS = {"p50_us": 50.0, "p99_us": 99.0, "p999_us": 99.9, "max_us": 100.0}


class Checkpoints:
    """Asks a space for a checkpoint every so many seconds, in a thread, for as long as it is entered."""

    def __init__(self, space: Space, every_s: float) -> None:
        self._space = space
        self._every_s = every_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="xaqueue-bench-checkpoints")
        self._failure: BaseException | None = None
        self.seconds: list[float] = []
        """How long each of them took."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        if self._failure is not None and error is None:
            raise self._failure

    def _run(self) -> None:
        while not self._over.wait(self._every_s):
            began = time.perf_counter()
            try:
                self._space.checkpoint()
            except BaseException as error:
                self._failure = error
                return
            self.seconds.append(time.perf_counter() - began)


@dataclass(slots=True)
class Compared:
    """The rounds of one number of threads. ``syncs``: of two preallocated overwrites each, with as many threads."""

    without: list[Rate] = field(default_factory=list)
    beside: list[Rate] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    syncs: list[Rate] = field(default_factory=list)

    def row(self, threads: int) -> dict[str, Any]:
        sync_us = latency_us(self.syncs, 50)[0] / 2
        told: dict[str, Any] = {"threads": threads, "checkpoints": len(self.seconds), "median_sync_us": sync_us}
        told["checkpoint_ms"] = median(self.seconds) * 1e3 if self.seconds else 0.0
        for name, rates in (("without", self.without), ("with", self.beside)):
            told[f"{name}_per_s"] = median(rate.per_s for rate in rates)
            for key, value in zip(PERCENTS, latency_us(rates, *PERCENTS.values()), strict=True):
                told[f"{name}_{key}"] = value
        added_us = told["with_p999_us"] - told["without_p999_us"]
        told["stall_in_syncs"] = added_us / sync_us if sync_us else 0.0
        return told

    @staticmethod
    def lines(row: dict[str, Any]) -> list[list[str]]:
        lines = []
        for name in ("without", "with"):
            latencies = [f"{row[f'{name}_{key}']:,.0f}" for key in ("per_s", *PERCENTS)]
            lines.append([name, str(row["threads"]), str(row["checkpoints"]) if name == "with" else "0", *latencies])
        lines[0] += ["", f"{row['median_sync_us']:,.0f}", ""]
        lines[1] += [f"{row['checkpoint_ms']:.1f}", f"{row['median_sync_us']:,.0f}", f"{row['stall_in_syncs']:.1f}"]
        return lines


def with_checkpoints(root: Path, threads: int, plan: BenchPlan, every_s: float, found: Compared) -> None:
    """Enqueues under JOURNAL in an empty directory, without checkpoints and then with, and bare overwrites."""
    found.syncs.append(floor(root, threads, plan.size_bytes, plan.seconds))
    bodies = [os.urandom(plan.size_bytes)] * plan.messages_per_branch
    for name, rates in (("without", found.without), ("with", found.beside)):
        create(root / name, name=QUEUE, any_queue=True)
        with ExitStack() as stack:
            sessions = [attach(root / name, sync="JOURNAL", watch=False) for _ in range(threads)]
            connections = [stack.enter_context(Connection(session, lambda: os.urandom(16))) for session in sessions]
            steps = [enqueuer(connection, thread, bodies) for thread, connection in enumerate(connections)]
            if name == "with":
                checkpoints = stack.enter_context(Checkpoints(sessions[0].space, every_s))
                checkpoints.seconds = found.seconds
            rates.append(rate_of(steps, plan.seconds))
