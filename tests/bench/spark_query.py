"""One streaming query is timed from its start to its end, checkpoint included, and what it took is kept with that.

Into the sink ``noop``, trigger ``availableNow``. Planning is what Spark says of ``latestOffset`` and ``getBatch``.
Memory is the most that stood in memory at one of the looks, a few a second, of the JVM and of all Python processes
below it. PySpark's types are Any here: it is imported in ``xaqueue/spark`` only.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

LOOK_S = 0.2
PLANNING = ("latestOffset", "getBatch")


@dataclass
class Memory:
    """The most of it, in MB."""

    jvm_mb: float = 0.0
    python_mb: float = 0.0

    def note(self, jvm_kb: int, python_kb: int) -> None:
        self.jvm_mb = max(self.jvm_mb, jvm_kb / 1024)
        self.python_mb = max(self.python_mb, python_kb / 1024)


@dataclass
class Run:
    """What a query took."""

    rows: int
    took_s: float
    planning_ms: list[float] = field(default_factory=list)
    """Of each batch that had rows."""
    checkpoint_bytes: int = 0
    memory: Memory = field(default_factory=Memory)
    cpu_s: float = 0.0
    """Of the JVM and all processes below it."""

    @property
    def per_s(self) -> float:
        return self.rows / self.took_s

    def figures(self) -> dict[str, float]:
        return {
            "rows": self.rows,
            "seconds": self.took_s,
            "rows_per_s": self.per_s,
            "batches": len(self.planning_ms),
            "planning_ms": median(self.planning_ms or [0.0]),
            "planning_max_ms": max(self.planning_ms or [0.0]),
            "checkpoint_kb": self.checkpoint_bytes / 1024,
            "jvm_mb": self.memory.jvm_mb,
            "python_mb": self.memory.python_mb,
            "cpu_us_a_row": self.cpu_s / max(self.rows, 1) * 1e6,
        }


def timed(spark: Any, stream: Any, scratch: Path) -> Run:
    """A query that reads all there is. Raises what the query raises."""
    checkpoint = Path(tempfile.mkdtemp(prefix="checkpoint-", dir=scratch))
    writer = stream.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    jvm = _jvm(spark)
    before, begun = _cpu_s(jvm), time.perf_counter()
    with watched(jvm) as memory:
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
    took_s, cpu_s = time.perf_counter() - begun, _cpu_s(jvm) - before
    told = [progress for progress in query.recentProgress if progress["numInputRows"]]
    planning = [float(sum(each["durationMs"].get(name, 0) for name in PLANNING)) for each in told]
    size = sum(path.stat().st_size for path in checkpoint.rglob("*") if path.is_file())
    return Run(sum(int(each["numInputRows"]) for each in told), took_s, planning, size, memory, cpu_s)


def _jvm(spark: Any) -> int:
    return int(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())


def _cpu_s(jvm: int) -> float:
    """Of the JVM, of all processes below it, and of those that they have waited for."""
    ticks, parents = {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        pid = int(stat.parent.name)
        parents[pid], ticks[pid] = int(fields[1]), sum(map(int, fields[11:15]))
    return sum(ticks[pid] for pid in ticks if pid == jvm or _is_below(pid, jvm, parents)) / os.sysconf("SC_CLK_TCK")


def _is_below(pid: int, root: int, parents: Mapping[int, int]) -> bool:
    above = parents[pid]
    while above not in (0, root):
        above = parents.get(above, 0)
    return above == root


@contextmanager
def watched(jvm: int) -> Iterator[Memory]:
    """Looks at Spark's processes until the block ends."""
    memory, stop = Memory(), threading.Event()

    def look() -> None:
        while True:
            memory.note(*_resident_kb(jvm))
            if stop.wait(LOOK_S):
                return

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield memory
    finally:
        stop.set()
        thread.join()


def _resident_kb(jvm: int) -> tuple[int, int]:
    """Of the JVM, and of all processes below it."""
    parents, sizes = {}, {}
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            lines = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
        except OSError:
            continue
        pid = int(status.parent.name)
        parents[pid] = int(lines["PPid"])
        sizes[pid] = int(lines.get("VmRSS", "0 kB").split()[0])
    below = sum(sizes[pid] for pid in sizes if _is_below(pid, jvm, parents))
    return sizes.get(jvm, 0), below
