"""How fast a space is in a directory of yours, and what the disk gives at most, in the same run.

Two-phase enqueue and dequeue, for each flag and number of threads, in a fresh space each time. All of them and the
floor alternate round by round in the same directory, so that what else the machine does meets all of them; figures are
medians over the rounds, and a ratio is the median of each round's own. Everything made here is removed, also after
Ctrl-C.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import count, product
from pathlib import Path
from statistics import median
from typing import Any

from bench import rates
from bench.rates import BUSY, BUSY_SHARE, Rate, Step, aligned, floor, latency_us, rate_of
from xaqueue.connection import Connection
from xaqueue.core.engine.log import Log
from xaqueue.core.model.block import BODY_LIMIT_BYTES
from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.core.storage.hardening import Hardening
from xaqueue.errors import InvalidArgument
from xaqueue.features.opening import create
from xaqueue.features.session import attach
from xaqueue.tools import environment

QUEUE = "bench"
FLAGS = ("JOURNAL", "NONE", "FDATASYNC", "FDATASYNC;DSYNC", "FSYNC;DSYNC")
OPERATIONS = ("enqueue", "dequeue")
HEADINGS = (
    *("flags", "threads", "two-phase", "xaqueue/s", "messages/s", "of floor"),
    *("CPU us", "p50 us", "p99 us", "p99.9 us", "rounds/tx", "steps/round"),
)
RATIOS = ("of_floor", "rounds_per_transaction", "steps_per_round")
FLOOR_HEADINGS = ("floor: two overwrites, fdatasync each", "threads", "per second", "CPU us", "p99 us", "p99.9 us")

Report = Callable[[str], None]
Figures = dict[str, Any]
Key = tuple[str, int, str]
"""Flags, number of threads, operation."""
Round = Callable[[Path, Report], None]
"""A measurement that is part of each round, in an empty directory; it says what it came to."""


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """``directory``: where; None is the directory for temporary files. ``seconds``: of a measurement."""

    directory: Path | None = None
    threads: tuple[int, ...] = (1, 8)
    flags: tuple[str, ...] = FLAGS
    size_bytes: int = 1024
    messages_per_branch: int = 1
    seconds: float = 3.0
    rounds: int = 3

    def __post_init__(self) -> None:
        for flags in self.flags:
            Hardening.parse(flags)
        if not self.threads or min(self.threads) < 1 or self.rounds < 1 or self.seconds <= 0:
            raise InvalidArgument("bench: threads and rounds from 1 and seconds above 0 are wanted")
        if not 0 <= self.size_bytes <= BODY_LIMIT_BYTES:  # else what only measures the disk would fill it before
            raise InvalidArgument(f"bench: a size from 0 to {BODY_LIMIT_BYTES:,} is wanted, as of a body")
        if self.messages_per_branch < 1:
            raise InvalidArgument("bench: messages per branch from 1 are wanted")


def run(plan: BenchPlan, report: Report, more: Sequence[Round] = ()) -> Figures:
    """Measures and reports in lines of text; returns the same as a JSON-able dict.

    ``more``: what takes its turn at the end of each round. Raises OSError where the directory does not take it.
    """
    directory = plan.directory or Path(tempfile.gettempdir())
    found = environment.look(directory)
    for line in found.lines():
        report(line)
    floors: dict[int, list[Rate]] = {threads: [] for threads in plan.threads}
    taken: dict[Key, list[Rate]] = {}
    measures: list[Round] = [
        *(partial(_floor, plan, threads, rates) for threads, rates in floors.items()),
        *(partial(_engine, plan, level, taken) for level in product(plan.flags, plan.threads)),
        *more,
    ]
    busy = []
    with tempfile.TemporaryDirectory(prefix="xaqueue-bench-", dir=directory) as name:
        scratch = Path(name)
        scratch.chmod(0o711)  # a server that refuses to run as root must get to its files
        for number in range(1, plan.rounds + 1):

            def say(text: str, number: int = number) -> None:
                report(f"round {number} of {plan.rounds}: {text}")

            busy.append(rates.busy_share())
            for measure in measures:
                with fresh(scratch) as root:
                    measure(root, say)
    warnings = found.warnings
    if max(busy) > BUSY_SHARE:
        warnings = [*warnings, BUSY.format(max(busy))]
    result = {
        "environment": {**found.as_dict(), "busy_share": busy, "warnings": warnings},
        "options": {**asdict(plan), "directory": os.fspath(directory)},
        "floor": [{"threads": threads, **figures(rates)} for threads, rates in floors.items()],
        "results": [_row(key, rates, floors[key[1]], plan.messages_per_branch) for key, rates in taken.items()],
    }
    for line in _table(result):
        report(line)
    return result


def figures(rates: Sequence[Rate]) -> Figures:
    """The figures of the same measurement in each round: medians; percentiles over the operations of all."""
    p50_us, p99_us, p999_us = latency_us(rates, 50, 99, 99.9)
    return {
        "per_s": median(rate.per_s for rate in rates),
        "cpu_us": median(rate.cpu_us for rate in rates),
        "p50_us": p50_us,
        "p99_us": p99_us,
        "p999_us": p999_us,
        "rounds_per_s": [rate.per_s for rate in rates],
    }


def ratio(these: Sequence[float], those: Sequence[float]) -> float:
    """How many times the others' rate theirs is, round by round."""
    return median(this / that if that else 0.0 for this, that in zip(these, those, strict=True))


@contextmanager
def fresh(scratch: Path) -> Iterator[Path]:
    """An empty directory, removed afterwards, and the removal out of the way of the next measurement's syncs."""
    with tempfile.TemporaryDirectory(dir=scratch) as name:
        Path(name).chmod(0o711)
        yield Path(name)
    with closing(DirectoryFileSystem(scratch, keep_unsynced=False)) as fs:
        fs.sync_dir("")


def _floor(plan: BenchPlan, threads: int, rates: list[Rate], root: Path, report: Report) -> None:
    rates.append(floor(root, threads, plan.size_bytes * plan.messages_per_branch, plan.seconds))
    report(f"floor, {threads} threads: {rates[-1].per_s:,.0f}/s")


def _engine(plan: BenchPlan, level: tuple[str, int], taken: dict[Key, list[Rate]], root: Path, report: Report) -> None:
    """A fresh space in an empty directory, a connection for each thread. Dequeues take what the enqueues left."""
    flags, threads = level
    create(root, name=QUEUE, any_queue=True)
    with ExitStack() as stack:
        sessions = [attach(root, sync=flags, watch=False) for _ in range(threads)]
        connections = [stack.enter_context(Connection(session, lambda: os.urandom(16))) for session in sessions]
        bodies = [os.urandom(plan.size_bytes)] * plan.messages_per_branch
        enqueuers = [enqueuer(connection, thread, bodies) for thread, connection in enumerate(connections)]
        dequeuers = [_dequeuer(connection, thread, len(bodies)) for thread, connection in enumerate(connections)]
        for operation, steps in zip(OPERATIONS, (enqueuers, dequeuers), strict=True):
            rate = _counted(sessions[0].space.log, steps, plan.seconds)
            taken.setdefault((flags, threads, operation), []).append(rate)
            report(f"{flags}, {threads} threads, {operation}: {rate.per_s:,.0f}/s")


def enqueuer(connection: Connection, thread: int, bodies: list[bytes]) -> Step:
    """The step of one thread: a two-phase branch with these messages."""
    numbers = count()

    def step() -> bool:
        connection.tpc_begin(connection.xid(1, b"e%d.%d" % (thread, next(numbers)), b"bench"))
        for body in bodies:
            connection.enqueue(QUEUE, body)
        connection.tpc_prepare()
        connection.tpc_commit()
        return True

    return step


def _dequeuer(connection: Connection, thread: int, messages: int) -> Step:
    numbers = count()

    def step() -> bool:
        connection.tpc_begin(connection.xid(1, b"d%d.%d" % (thread, next(numbers)), b"bench"))
        if connection.dequeue(QUEUE) is None:
            connection.tpc_rollback()
            return False
        for _ in range(messages - 1):
            connection.dequeue(QUEUE)
        connection.tpc_prepare()
        connection.tpc_commit()
        return True

    return step


def _counted(commits: Log, steps: list[Step], seconds: float) -> Rate:
    rounds, shared = commits.rounds, commits.steps
    rate = rate_of(steps, seconds)
    return replace(rate, rounds=commits.rounds - rounds, steps=commits.steps - shared)


def _row(key: Key, rates: list[Rate], floors: list[Rate], messages: int) -> Figures:
    flags, threads, operation = key
    own = figures(rates)
    branches = sum(one.operations for one in rates)
    rounds, steps = sum(one.rounds for one in rates), sum(one.steps for one in rates)
    return {
        **{"flags": flags, "threads": threads, "operation": operation, "messages_per_s": own["per_s"] * messages},
        "of_floor": ratio(own["rounds_per_s"], [rate.per_s for rate in floors]),
        "rounds_per_transaction": rounds / branches if branches else 0.0,
        "steps_per_round": steps / rounds if rounds else 0.0,
        **own,
    }


def _table(result: Figures) -> list[str]:
    floors = [["", *_cells(row, "threads per_s cpu_us p99_us p999_us")] for row in result["floor"]]
    measured = (
        "flags threads operation per_s messages_per_s of_floor cpu_us p50_us p99_us p999_us "
        "rounds_per_transaction steps_per_round"
    )
    return [
        *aligned(FLOOR_HEADINGS, floors),
        "",
        *aligned(HEADINGS, [_cells(row, measured) for row in result["results"]]),
        *(f"WARNING: {warning}" for warning in result["environment"]["warnings"]),
    ]


def _cells(row: Figures, names: str) -> list[str]:
    """A float as a whole number, but for what is a ratio."""
    return [
        str(row[name]) if not isinstance(row[name], float) else f"{row[name]:,.{2 if name in RATIOS else 0}f}"
        for name in names.split()
    ]
