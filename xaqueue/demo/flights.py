"""The demo: flights go into a queue while their producer is killed, Spark takes them out, and the sums are compared.

Nothing is taken on trust: what Spark read is counted message by message, and its answer is held against one that
was computed from the CSV alone. The last line says PASSED or FAILED.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from xaqueue.demo import answer, records
from xaqueue.demo.chart import draw
from xaqueue.demo.ingest import Ingest
from xaqueue.demo.kills import KILLS, Job, Toll, enqueue_under_fire
from xaqueue.demo.producer import LEVEL
from xaqueue.demo.progress import Progress
from xaqueue.errors import InvalidArgument, OperationalError
from xaqueue.space.attach import create

BATCH = 200
"""Flights of one branch."""
LEAST_BATCHES = 15
"""A small run has smaller batches instead, so that there are commits enough to be killed in."""
LEAST_FLIGHTS = 10 * LEAST_BATCHES
BYTES_PER_FLIGHT = 4_500
"""Of disk: a file's block, its inode, and its share of the directories and of the Parquet files."""

Report = Callable[[str], None]


def run(flights: int | None, directory: Path | None, report: Report, *, keep: bool = False) -> bool:
    """Runs the demo and tells ``report`` about it, line by line. Returns whether the check passed.

    flights: how many of the 336,776, from the first; None means all. directory: where space, logs, Parquet files and
    chart go, and stay; None means a temporary one, removed at the end unless ``keep``.
    Raises InvalidArgument, OperationalError (something is missing, or a part failed or got stuck).
    """
    count = records.checked_count(flights)
    if count < LEAST_FLIGHTS:
        raise InvalidArgument(f"{count:,} flights are too few to be killed in: {LEAST_FLIGHTS:,} or more are wanted")
    place = directory if directory is not None else Path(tempfile.mkdtemp(prefix="xaqueue-demo-", dir=_temporary()))
    parts = _Parts(report)
    try:
        passed = _run(Job(place.resolve(), count, min(BATCH, count // LEAST_BATCHES)), report, parts)
    finally:
        if directory is None and not keep:
            report(f"Removing {place}, which takes as long as the disk needs for so many files")
            with parts.timed("clean-up"):
                shutil.rmtree(place)
    parts.tell()
    if directory is not None or keep:
        report(f"Everything is in {place}")
    report("PASSED" if passed else "FAILED")
    return passed


def _run(job: Job, report: Report, parts: _Parts) -> bool:
    progress = Progress(report)
    with parts.timed("the space"):
        _make_space(job, report)
    with parts.timed("the producer") as note:
        toll = enqueue_under_fire(job, progress, report)
        note(_rate(job, toll))
    with parts.timed("start of Spark"):
        ingest = Ingest(job.directory)
    with parts.timed("stream to Parquet"):
        ingest.stream(job.space, job.flights, progress)
    with parts.timed("queries"):
        tally, found = ingest.tally(), ingest.answer()
    names = records.carriers()
    for line in answer.table(found, names):
        report(line)
    with parts.timed("chart"):
        draw(found, names, job.directory / "delays.png")
    with parts.timed("answer from the CSV"):
        expected = answer.from_csv(job.flights)
    findings = answer.check(job.flights, tally, found, expected, toll.kills, len(KILLS))
    report("The check:")
    for finding in findings:
        report(str(finding))
    return answer.passed(findings)


def _make_space(job: Job, report: Report) -> None:
    if job.directory.exists() and any(job.directory.iterdir()):
        raise InvalidArgument(f"{job.directory} is not empty: the demo wants a new directory, or an empty one")
    job.directory.mkdir(parents=True, exist_ok=True)
    _check_room(job)
    create(job.space, name="flights", any_queue=True)
    report(
        f"{job.flights:,} flights in {job.batches:,} branches of {job.batch} into {job.space}, "
        f"sync {LEVEL}: a commit {LEVEL.promise}"
    )


def _check_room(job: Job) -> None:
    state = os.statvfs(job.directory)
    free = state.f_bavail * state.f_frsize
    wanted = job.flights * BYTES_PER_FLIGHT
    if free < wanted:
        raise OperationalError(
            f"{job.directory} has {free / 1e9:.1f} GB free, {wanted / 1e9:.1f} are wanted: choose another --directory"
        )
    if state.f_files and state.f_favail < job.flights * 1.1:
        raise OperationalError(
            f"{job.directory} has room for {state.f_favail:,} files, a message is one: choose another --directory"
        )


def _rate(job: Job, toll: Toll) -> str:
    return (
        f"{toll.kills} kills, branches found in doubt: {toll.in_doubt}, of them decided by the operator: "
        f"{toll.decided_by_operator}; {toll.inspection_s:.1f} s of it between the runs"
    )


def _temporary() -> str:
    """On a disk where there is one: /tmp may be memory, where syncs mean nothing and room is scarce."""
    chosen = os.environ.get("TMPDIR") or "/var/tmp"
    return chosen if os.access(chosen, os.W_OK) else tempfile.gettempdir()


class _Parts:
    """How long each part took."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._took: dict[str, float] = {}

    @contextmanager
    def timed(self, part: str) -> Iterator[Callable[[str], None]]:
        """Within it, the function it gives adds a remark to the line that reports the part."""
        remarks: list[str] = []
        started = time.monotonic()
        yield remarks.append
        self._took[part] = time.monotonic() - started
        self._report(f"{part}: {self._took[part]:.1f} s" + "".join(f" ({remark})" for remark in remarks))

    def tell(self) -> None:
        """All parts, and which was the slowest."""
        slowest = max(self._took, key=lambda part: self._took[part])
        whole = sum(self._took.values())
        self._report(f"In all {whole:.1f} s; the slowest part was {slowest} with {self._took[slowest]:.1f} s")
