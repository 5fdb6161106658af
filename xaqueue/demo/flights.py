"""The demo: flights go into a queue while their producer is killed, Spark takes them out, and the sums are compared.

Nothing is taken on trust: what Spark read is counted message by message, and its answer is held against one that
was computed from the CSV alone. PASSED or FAILED is said before anything is removed, which a disk may take long for.
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
from xaqueue.demo.kills import KILLS, Job, enqueue_under_fire
from xaqueue.demo.progress import Progress
from xaqueue.errors import InvalidArgument, OperationalError
from xaqueue.space.owner.open import create
from xaqueue.storage.hardening import DEFAULT

BATCH = 200
"""Flights of one branch."""
LEAST_BATCHES = 15
"""A small run has smaller batches instead, so that there are commits enough to be killed in."""
LEAST_FLIGHTS = 10 * LEAST_BATCHES
CHART = "xaqueue-demo.png"
BYTES_PER_FLIGHT = 4_500
"""Of disk: a file's block, its inode, and its share of the directories and of the Parquet files."""

Report = Callable[[str], None]


def run(
    flights: int | None, directory: Path | None, report: Report, *, keep: bool = False, chart: Path | None = None
) -> bool:
    """Runs the demo and tells ``report`` about it, line by line. Returns whether the check passed.

    flights: how many of the 336,776, from the first; None means all. directory: where space, logs and Parquet files
    go, and stay; None means a temporary one, removed at the end unless ``keep``. chart: where that goes; None means
    ``xaqueue-demo.png`` in the current directory. Raises InvalidArgument, OperationalError (something is missing, or a
    part failed or got stuck).
    """
    count = records.checked_count(flights)
    if count < LEAST_FLIGHTS:
        raise InvalidArgument(f"{count:,} flights are too few to be killed in: {LEAST_FLIGHTS:,} or more are wanted")
    chart = (chart or Path(CHART)).absolute()
    if not os.access(chart.parent, os.W_OK):
        raise InvalidArgument(f"{chart.parent} cannot be written to: run the demo where its chart may stay")
    place = directory if directory is not None else Path(tempfile.mkdtemp(prefix="xaqueue-demo-", dir=_temporary()))
    progress, parts = Progress(report), _Parts(report)
    try:
        passed = _run(Job(place.resolve(), count, min(BATCH, count // LEAST_BATCHES)), chart, progress, parts)
        parts.tell()
        report("PASSED" if passed else "FAILED")
        report(f"The chart is {chart}")
    finally:
        if directory is None and not keep:
            _remove(place, progress)
        else:
            report(f"Everything else is in {place}")
    return passed


def _run(job: Job, chart: Path, progress: Progress, parts: _Parts) -> bool:
    report = progress.report
    with parts.timed("the space"):
        _make_space(job, report)
    with parts.timed("the producer") as note:
        toll = enqueue_under_fire(job, progress)
        note(f"{len(toll.kills)} kills, branches found in doubt: {toll.in_doubt}")
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
        draw(found, names, toll, chart)
    with parts.timed("answer from the CSV"):
        expected = answer.from_csv(job.flights)
    findings = answer.check(job.flights, tally, found, expected, len(toll.kills), len(KILLS))
    report("The check:")
    for finding in findings:
        report(str(finding))
    return answer.passed(findings)


def _remove(place: Path, progress: Progress) -> None:
    """Range by range, each in the order of its inodes: so a slow disk need not seek for every file."""
    ranges = sorted(place.glob("space/committed/*/range=*"))
    try:
        if ranges:
            with progress.task("removing the files (Ctrl-C leaves them)", len(ranges)) as advance:
                for done, directory in enumerate(ranges, 1):
                    with os.scandir(directory) as entries:
                        names = sorted((entry.inode(), entry.name) for entry in entries)
                    for _, name in names:
                        (directory / name).unlink()
                    advance(done)
        shutil.rmtree(place)
    except KeyboardInterrupt:
        progress.report(f"What is left is in {place}: remove it with rm -r")


def _make_space(job: Job, report: Report) -> None:
    if job.directory.exists() and any(job.directory.iterdir()):
        raise InvalidArgument(f"{job.directory} is not empty: the demo wants a new directory, or an empty one")
    job.directory.mkdir(parents=True, exist_ok=True)
    _check_room(job)
    create(job.space, name="flights", any_queue=True)
    report(
        f"{job.flights:,} flights in {job.batches:,} branches of {job.batch} into {job.space}, "
        f"sync {DEFAULT}: a commit {DEFAULT.promise}"
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
