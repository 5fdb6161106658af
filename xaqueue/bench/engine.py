"""The engine's speed is told against the bare system calls of its protocol, and against peers, in the same run.

Two-phase enqueue and dequeue, for each flag and number of threads, in a fresh space each time. Raw limits, engine,
bare calls and peers alternate round by round in the same directory, so that what else the machine does meets all of
them; figures are medians over the rounds. Everything made here is removed, also after Ctrl-C.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from xaqueue.bench import environment, workload
from xaqueue.bench.checkpoints import Compared
from xaqueue.bench.limits import FLOORS, RAW, raw_rate
from xaqueue.bench.options import Options
from xaqueue.bench.peers import opened
from xaqueue.bench.results import Series, checkpoint_rows, engine_rows, peer_rows, raw_rows, server_rows
from xaqueue.bench.tables import table
from xaqueue.bench.workload import Contender

Report = Callable[[str], None]


def run(options: Options, report: Report) -> dict[str, Any]:
    """Measures and reports in lines of text; returns the same as a JSON-able dict.

    Raises OSError where the directory does not take it, OperationalError for a peer that cannot be had.
    """
    directory = options.directory or Path(tempfile.gettempdir())
    found = environment.look(directory)
    for line in found.lines():
        report(line)
    series = Series()
    with tempfile.TemporaryDirectory(prefix="xaqueue-bench-", dir=directory) as name, ExitStack() as stack:
        scratch = Path(name)
        scratch.chmod(0o711)  # a server that refuses to run as root must get to its files
        contenders = [_open(stack, scratch, peer, options) for peer in options.peers]
        busy = []
        for number in range(1, options.rounds + 1):
            busy.append(environment.busy_share())
            said = partial(_say, report, f"round {number} of {options.rounds}")
            _raw_round(scratch, options, series, said)
            _engine_round(scratch, options, series, said)
            _checkpoint_round(scratch, options, series, said)
            _server_round(scratch, options, series, said)
            _peer_round(scratch, options, contenders, series, said)
        peers = [contender.peer for contender in contenders]
        result = {
            "environment": {**found.as_dict(), "busy_share": busy, "warnings": _warnings(found, busy)},
            "options": {**asdict(options), "directory": os.fspath(directory), "postgres_dsn": None},
            "raw": raw_rows(series),
            "results": engine_rows(series, options.messages_per_branch),
            "checkpoints": checkpoint_rows(series),
            "server": server_rows(series, options.messages_per_branch),
            "peers": peer_rows(series, peers, options.messages_per_branch),
            "durability": {peer.name: peer.durability for peer in peers},
        }
    for line in table(result):
        report(line)
    return result


def _warnings(found: environment.Environment, busy: list[float]) -> list[str]:
    """What makes the figures misleading: the place, and what else the machine did."""
    most = max(busy)
    return [*found.warnings, *([environment.BUSY.format(most)] if most > environment.BUSY_SHARE else [])]


def _open(stack: ExitStack, scratch: Path, name: str, options: Options) -> Contender:
    home = scratch / f"peer-{name}"
    home.mkdir()
    peer = stack.enter_context(opened(name, home, options.wanted))
    return stack.enter_context(workload.contender(peer, max(options.threads), processes=options.server))


def _say(report: Report, before: str, text: str) -> None:
    report(f"{before}: {text}")


def _raw_round(scratch: Path, options: Options, series: Series, report: Report) -> None:
    for name in RAW:
        size_bytes = options.branch_bytes if name in FLOORS else options.size_bytes
        for threads in options.threads:
            with fresh(scratch) as root:
                rate = raw_rate(name, root, threads, size_bytes, options.seconds)
            series.raw.setdefault((name, threads), []).append(rate)
            report(f"{name}, {_threads(threads)}: {rate.per_s:,.0f}/s")


def _engine_round(scratch: Path, options: Options, series: Series, report: Report) -> None:
    for flags in options.flags:
        for threads in options.threads:
            with fresh(scratch) as root:
                engine = workload.engine(root, flags, threads, options)
            with fresh(scratch) as root:
                bare = workload.bare(root, flags, threads, options)
            series.add(flags, threads, engine, bare)
            for name, measured in engine.items():
                beside = f"bare calls {bare[name].rate.per_s:,.0f}/s"
                report(f"{flags}, {_threads(threads)}, {name}: {measured.rate.per_s:,.0f}/s, {beside}")


def _checkpoint_round(scratch: Path, options: Options, series: Series, report: Report) -> None:
    for threads in options.threads if options.checkpoints_s is not None else ():
        found = series.checkpoints.setdefault(threads, Compared())
        for every_s, rates in ((None, found.without), (options.checkpoints_s, found.beside)):
            with fresh(scratch) as root:
                rate, seconds = workload.with_checkpoints(root, threads, options, every_s)
            rates.append(rate)
            found.seconds += seconds
            report(f"JOURNAL, {_threads(threads)}, {len(seconds)} checkpoints: {rate.per_s:,.0f}/s")


def _server_round(scratch: Path, options: Options, series: Series, report: Report) -> None:
    for flags in options.flags if options.server else ():
        for clients in options.threads:
            with fresh(scratch) as root:
                measured = workload.server(root, flags, clients, options)
            series.add_server(flags, clients, measured)
            for name, one in measured.items():
                report(f"server, {flags}, {clients} in processes, {name}: {one.rate.per_s:,.0f}/s")


def _peer_round(scratch: Path, options: Options, contenders: list[Contender], series: Series, report: Report) -> None:
    for contender in contenders:
        peer = contender.peer.name
        for clients in options.threads:
            for kind, measured in contender.measure(clients, options):
                series.add_peer(peer, clients, kind, measured)
                for name, one in measured.items():
                    report(f"{peer}, {clients} in {kind}, {name}: {one.rate.per_s:,.0f}/s")
        _settle(scratch)


@contextmanager
def fresh(scratch: Path) -> Iterator[Path]:
    """An empty directory, removed afterwards, and the removal out of the way of the next measurement's syncs."""
    with tempfile.TemporaryDirectory(dir=scratch) as name:
        yield Path(name)
    _settle(scratch)


def _settle(scratch: Path) -> None:
    fd = os.open(scratch, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _threads(threads: int) -> str:
    return "1 thread" if threads == 1 else f"{threads} threads"
