"""The engine's speed is told against the bare system calls of its protocol, measured beside it in the same run.

Two-phase enqueue and dequeue of one message a transaction, for each flag and number of threads, in a fresh space each
time. Engine and bare calls alternate round by round in the same directory, so that what else the machine does meets
both; figures are medians over the rounds, and a ratio is the median of each round's own ratio. The dequeues take what
the enqueues before them left, at most for the same time. Everything made here is removed, also after Ctrl-C.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

from xaqueue.bench import environment
from xaqueue.bench.limits import RAW, Rate, Step, bare_protocol, rate_of, raw_rate
from xaqueue.connection import Connection
from xaqueue.errors import InvalidArgument
from xaqueue.space.attach import attach, create
from xaqueue.storage.barrier import Barrier
from xaqueue.storage.flags import Hardening

QUEUE = "bench"
OPERATIONS = ("enqueue", "dequeue")
HEADINGS = (
    f"{'flags':<16}{'threads':>8}  {'two-phase':<9}{'engine/s':>10}{'bare/s':>10}{'engine/bare':>13}"
    f"{'x 1 thread':>12}{'CPU us':>9}{'bare CPU':>10}{'rounds/tx':>11}{'steps/round':>13}"
)

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Options:
    """What is measured. ``directory``: where; None is the directory for temporary files. ``seconds``: a measurement."""

    directory: Path | None = None
    threads: tuple[int, ...] = (1, 8)
    flags: tuple[str, ...] = ("NONE", "FDATASYNC", "FDATASYNC;DSYNC", "FSYNC;DSYNC")
    size_bytes: int = 1024
    seconds: float = 3.0
    rounds: int = 3

    def __post_init__(self) -> None:
        for flags in self.flags:
            Hardening.parse(flags)
        if not self.threads or min(self.threads) < 1 or self.rounds < 1 or self.size_bytes < 0 or self.seconds <= 0:
            raise InvalidArgument("bench: threads and rounds from 1, a size from 0 and seconds above 0 are wanted")


@dataclass(slots=True)
class _Series:
    """The rounds of one operation with one flag and one number of threads, the engine's and the bare calls'."""

    engine: list[Rate] = field(default_factory=list)
    bare: list[Rate] = field(default_factory=list)
    rounds: int = 0
    tickets: int = 0

    @property
    def operations(self) -> int:
        return sum(rate.operations for rate in self.engine)


Key = tuple[str, int, str]


def run(options: Options, report: Report) -> dict[str, Any]:
    """Measures and reports in lines of text; returns the same as a JSON-able dict.

    Raises OSError where the directory does not take it, InvalidArgument for options that cannot be measured.
    """
    directory = options.directory or Path(tempfile.gettempdir())
    found = environment.look(directory)
    for line in found.lines():
        report(line)
    raw: dict[tuple[str, int], list[Rate]] = {}
    series: dict[Key, _Series] = {}
    with tempfile.TemporaryDirectory(prefix="xaqueue-bench-", dir=directory) as scratch:
        for number in range(1, options.rounds + 1):
            said = partial(_say, report, f"round {number} of {options.rounds}")
            _raw_round(Path(scratch), options, raw, said)
            _round(Path(scratch), options, series, said)
    result = {
        "environment": found.as_dict(),
        "options": {**asdict(options), "directory": os.fspath(directory)},
        "raw": [_raw_row(name, threads, rates) for (name, threads), rates in raw.items()],
        "results": [_row(key, series) for key in series],
    }
    for line in table(result):
        report(line)
    return result


def table(result: dict[str, Any]) -> list[str]:
    """The result as text: raw limits first, then a line for each flag, number of threads and operation."""
    lines = [f"{'raw limit':<26}{'threads':>8}{'per second':>12}"]
    lines += [f"{row['name']:<26}{row['threads']:>8}{row['per_s']:>12,.0f}" for row in result["raw"]]
    lines += ["", HEADINGS]
    for row in result["results"]:
        times = "" if row["times_one_thread"] is None else f"{row['times_one_thread']:.2f}"
        lines.append(
            f"{row['flags']:<16}{row['threads']:>8}  {row['operation']:<9}{row['engine_per_s']:>10,.0f}"
            f"{row['bare_per_s']:>10,.0f}{row['ratio']:>13.2f}{times:>12}{row['engine_cpu_us']:>9,.0f}"
            f"{row['bare_cpu_us']:>10,.0f}{row['rounds_per_transaction']:>11.2f}{row['steps_per_round']:>13.2f}"
        )
    return [*lines, *(f"WARNING: {warning}" for warning in result["environment"]["warnings"])]


def _say(report: Report, before: str, text: str) -> None:
    report(f"{before}: {text}")


def _raw_round(scratch: Path, options: Options, raw: dict[tuple[str, int], list[Rate]], report: Report) -> None:
    for name in RAW:
        for threads in options.threads:
            with _fresh(scratch) as root:
                rate = raw_rate(name, root, threads, options.size_bytes, options.seconds)
            raw.setdefault((name, threads), []).append(rate)
            report(f"{name}, {_threads(threads)}: {rate.per_s:,.0f}/s")


def _round(scratch: Path, options: Options, series: dict[Key, _Series], report: Report) -> None:
    for flags in options.flags:
        for threads in options.threads:
            mine = {name: series.setdefault((flags, threads, name), _Series()) for name in OPERATIONS}
            with _fresh(scratch) as root:
                _engine(root, flags, threads, options, mine)
            with _fresh(scratch) as root:
                _bare(root, flags, threads, options, mine)
            for name, one in mine.items():
                engine, bare = one.engine[-1], one.bare[-1]
                report(f"{flags}, {_threads(threads)}, {name}: {engine.per_s:,.0f}/s, bare calls {bare.per_s:,.0f}/s")


def _engine(root: Path, flags: str, threads: int, options: Options, series: dict[str, _Series]) -> None:
    """One round of the engine: a space, a connection for each thread, and both operations."""
    create(root, name=QUEUE, any_queue=True)
    with ExitStack() as stack:
        sessions = [attach(root, sync=flags, watch=False) for _ in range(threads)]
        connections = [stack.enter_context(Connection(session, _make_id)) for session in sessions]
        barrier = sessions[0].space.barrier
        body = os.urandom(options.size_bytes)
        enqueuers = [_enqueuer(connection, thread, body) for thread, connection in enumerate(connections)]
        dequeuers = [_dequeuer(connection, thread) for thread, connection in enumerate(connections)]
        for name, steps in zip(OPERATIONS, (enqueuers, dequeuers), strict=True):
            with _counted(barrier, series[name]):
                series[name].engine.append(rate_of(steps, options.seconds))


def _bare(root: Path, flags: str, threads: int, options: Options, series: dict[str, _Series]) -> None:
    """One round of the bare calls, each thread with its own names in the same directories."""
    with bare_protocol(root, Hardening.parse(flags), options.size_bytes) as bare:
        names: list[list[str]] = [[] for _ in range(threads)]
        enqueuers = [bare.enqueuer(thread, mine) for thread, mine in enumerate(names)]
        series["enqueue"].bare.append(rate_of(enqueuers, options.seconds))
        series["dequeue"].bare.append(rate_of([bare.dequeuer(mine) for mine in names], options.seconds))


def _enqueuer(connection: Connection, thread: int, body: bytes) -> Step:
    numbers = count()

    def step() -> bool:
        connection.tpc_begin(connection.xid(1, b"e%d.%d" % (thread, next(numbers)), b"bench"))
        connection.enqueue(QUEUE, body)
        connection.tpc_prepare()
        connection.tpc_commit()
        return True

    return step


def _dequeuer(connection: Connection, thread: int) -> Step:
    numbers = count()

    def step() -> bool:
        connection.tpc_begin(connection.xid(1, b"d%d.%d" % (thread, next(numbers)), b"bench"))
        if connection.dequeue(QUEUE) is None:
            connection.tpc_rollback()
            return False
        connection.tpc_prepare()
        connection.tpc_commit()
        return True

    return step


@contextmanager
def _counted(barrier: Barrier, series: _Series) -> Iterator[None]:
    rounds, tickets = barrier.rounds, barrier.tickets
    yield
    series.rounds += barrier.rounds - rounds
    series.tickets += barrier.tickets - tickets


@contextmanager
def _fresh(scratch: Path) -> Iterator[Path]:
    """An empty directory, removed afterwards, and the removal out of the way of the next measurement's syncs."""
    with tempfile.TemporaryDirectory(dir=scratch) as name:
        yield Path(name)
    fd = os.open(scratch, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _row(key: Key, series: dict[Key, _Series]) -> dict[str, Any]:
    flags, threads, operation = key
    mine = series[key]
    alone = series.get((flags, 1, operation)) if threads != 1 else None
    return {
        "flags": flags,
        "threads": threads,
        "operation": operation,
        "engine_per_s": median(rate.per_s for rate in mine.engine),
        "bare_per_s": median(rate.per_s for rate in mine.bare),
        "ratio": _ratio(mine.engine, mine.bare),
        "times_one_thread": _ratio(mine.engine, alone.engine) if alone is not None else None,
        "engine_cpu_us": median(rate.cpu_us for rate in mine.engine),
        "bare_cpu_us": median(rate.cpu_us for rate in mine.bare),
        "rounds_per_transaction": mine.rounds / mine.operations if mine.operations else 0.0,
        "steps_per_round": mine.tickets / mine.rounds if mine.rounds else 0.0,
        "engine_rounds_per_s": [rate.per_s for rate in mine.engine],
        "bare_rounds_per_s": [rate.per_s for rate in mine.bare],
    }


def _raw_row(name: str, threads: int, rates: list[Rate]) -> dict[str, Any]:
    return {
        "name": name,
        "threads": threads,
        "per_s": median(rate.per_s for rate in rates),
        "rounds_per_s": [rate.per_s for rate in rates],
    }


def _ratio(these: list[Rate], those: list[Rate]) -> float:
    """The median of the rounds' own ratios: what slowed a whole round down does not show in it."""
    return median(this.per_s / that.per_s if that.per_s else 0.0 for this, that in zip(these, those, strict=True))


def _threads(threads: int) -> str:
    return "1 thread" if threads == 1 else f"{threads} threads"


def _make_id() -> bytes:
    return os.urandom(16)
