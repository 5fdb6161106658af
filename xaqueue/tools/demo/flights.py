"""The demo: flights go into a queue while their sender is killed, Spark takes them out, and the sums are compared.

The sender is started again after each kill, and its transaction manager finishes what that left. Nothing is taken on
trust: what Spark read is counted message by message, and its answer is held against one that was computed from the CSV
alone. PASSED or FAILED is said before anything is removed, which a disk may take long for.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

import xaqueue
from xaqueue.errors import InvalidArgument, OperationalError
from xaqueue.spark import session
from xaqueue.tools.demo import records
from xaqueue.tools.demo.records import TOTAL, Delay, ranked
from xaqueue.tools.demo.sender import FLIGHTS, PAGES, SYNC
from xaqueue.tools.demo.stage import Expectation, Program, Report, in_doubt, judge, place_for, tenths

PAGE = 200
"""Flights of one transaction."""
LEAST_PAGES = 15
"""A small run has smaller pages instead, so that there are commits enough to be killed in."""
LEAST_FLIGHTS = 10 * LEAST_PAGES
KILLS = (
    (0.05, "decide", "with every vote and before the decision"),
    (0.2, "decided", "after the decision, before anybody was told"),
    (0.4, "commit", "while a decision was carried out"),
)
"""After which share of the pages, at which step of a transaction, and that in words."""
COMMITTED, KILLED, RECOVERED = "#33658a", "#b8352f", "#5f8f5a"
BYTES_PER_FLIGHT = 4_500
"""Of disk: a file's block, its inode, and its share of the directories and of the Parquet files."""
STUCK_S = 180.0
"""A stream that reads nothing for so long is stuck."""

FLIGHT = (
    "year int, month int, day int, dep_time int, sched_dep_time int, dep_delay int, arr_time int, sched_arr_time int, "
    "arr_delay int, carrier string, flight int, tailnum string, origin string, dest string, air_time int, "
    "distance int, hour int, minute int, time_hour timestamp"
)
"""The JSON of a message, as a Spark schema."""
COLUMNS = (
    "message_id",
    "CAST(CAST(correlation_id AS STRING) AS BIGINT) AS record",
    f"from_json(CAST(body AS STRING), '{FLIGHT}') AS flight",
)
TALLY = "SELECT count(*), count(DISTINCT message_id), count(DISTINCT record), min(record), max(record) FROM flights"
ANSWER = "SELECT carrier, count(*), count(dep_delay), coalesce(sum(dep_delay), 0) FROM flights GROUP BY carrier"


class Tally(NamedTuple):
    """What Spark counted of the messages it read."""

    messages: int
    message_ids: int
    """Distinct ones."""
    records: int
    """Distinct numbers of flights."""
    first: int
    last: int


@dataclass(slots=True)
class Timeline:
    """What happened on the way. Times are seconds since the start."""

    began: float = field(default_factory=time.monotonic)
    kills: list[float] = field(default_factory=list)
    recoveries: list[float] = field(default_factory=list)
    """When a sender that was started after a kill had finished what that one left."""
    committed: list[tuple[float, int]] = field(default_factory=list)
    """How many flights were committed at some times."""

    def now(self) -> float:
        return time.monotonic() - self.began


def run(
    flights: int | None, directory: Path | None, report: Report, *, keep: bool = False, chart: Path | None = None
) -> bool:
    """Runs the demo and reports on it, line by line. Returns whether the check passed.

    flights: how many of the 336,776, from the first; None means all. directory: where spaces, logs and Parquet files
    go, and stay; None means a temporary one, removed at the end unless ``keep``. chart: where that goes; None means
    ``xaqueue-demo.png`` in the current directory. Raises InvalidArgument, OperationalError (something is missing, or a
    part failed or got stuck).
    """
    wanted = TOTAL if flights is None else flights
    if not 1 <= wanted <= TOTAL:
        raise InvalidArgument(f"{wanted:,} flights are asked for: 1 to {TOTAL:,} can be had")
    if wanted < LEAST_FLIGHTS:
        raise InvalidArgument(f"{wanted:,} flights are too few to be killed in: {LEAST_FLIGHTS:,} or more are wanted")
    chart = (chart or Path("xaqueue-demo.png")).absolute()
    if not os.access(chart.parent, os.W_OK):
        raise InvalidArgument(f"{chart.parent} cannot be written to: run the demo where its chart may stay")
    with place_for(directory, report, keep=keep) as place:
        passed = _run(place, wanted, chart, report)
        report("PASSED" if passed else "FAILED")
        report(f"The chart is {chart}")
    return passed


def _run(place: Path, flights: int, chart: Path, report: Report) -> bool:
    size = min(PAGE, flights // LEAST_PAGES)
    _check_room(place, flights)
    with _timed("the pages", report):
        pages = lay_out(place, flights, size)
    report(f"{flights:,} flights in {pages:,} transactions of {size}, sync {SYNC}: a commit survives power loss")
    with _timed("the sender", report):
        times = send_under_fire(place, flights, size, report)
    with _timed("stream to Parquet", report):
        options: dict[str, Any] = {"spark.sql.warehouse.dir": str(place / "warehouse")}
        spark = session("xaqueue demo", **options)
        _stream(spark, place, flights, report)
    with _timed("queries", report):
        spark.read.parquet(str(place / "flights.parquet")).createOrReplaceTempView("flights")
        tally = Tally(*spark.sql(TALLY).collect()[0])
        answer = {row[0]: Delay(*row[1:]) for row in spark.sql(ANSWER).collect()}
    names = records.carriers()
    report(f"  {'carrier':<30} {'flights':>8} {'mean departure delay':>22}")
    for code, delay in ranked(answer):
        report(f"  {code}  {names.get(code, ''):<26} {delay.flights:>8,} {delay.mean:>18.2f} min")
    draw(answer, names, times, chart)
    doubtful = sum(in_doubt(place / name) for name in (PAGES, FLIGHTS))
    claims = check(flights, tally, answer, records.delays(flights), len(times.kills))
    return judge([*claims, Expectation(f"{doubtful} branches are left in doubt", doubtful == 0)], report)


def lay_out(place: Path, flights: int, size: int) -> int:
    """The space of pages, full, and that of flights, empty; returns how many pages there are."""
    xaqueue.connect(place / FLIGHTS, create=True).close()
    rows, pages = records.rows(flights), range(0, flights, size)
    with xaqueue.connect(place / PAGES, create=True) as connection:
        for first in pages:
            connection.enqueue(PAGES, json.dumps(list(islice(rows, size))).encode(), correlation_id=str(first))
    return len(pages)


def send_under_fire(place: Path, flights: int, size: int, report: Report) -> Timeline:
    """Runs the sender to its end through all kills. Raises OperationalError where it fails or is stuck."""
    times, pages, before = Timeline(), -(-flights // size), 0.0
    advance = tenths(report, "sent", flights)
    for share, step, when in (*KILLS, (0.0, "", "")):
        number = str(max(1, round((share - before) * pages)))
        before = share
        command = [sys.executable, "-m", "xaqueue.tools.demo.sender", str(place), step, number]
        with Program("the sender", command, place / "sender.log") as sender:
            for word, counted in sender:
                if word == "left" and times.kills:
                    times.recoveries.append(times.now())
                    report(f"  started again, all of it finished after {times.recoveries[-1] - times.kills[-1]:.1f} s")
                done = times.committed[-1][1] + int(counted) if word == "sent" else flights - int(counted)
                times.committed.append((times.now(), done))
                advance(done)
            if not sender.was_killed():
                break
        times.kills.append(times.now())
        doubtful = sum(in_doubt(place / name) for name in (PAGES, FLIGHTS))
        report(f"kill {len(times.kills)}: SIGKILL {when}; branches in doubt: {doubtful}")
    return times


def _stream(spark: Any, place: Path, flights: int, report: Report) -> None:
    """Everything that is in the queue now, into Parquet. Raises what Spark raises, OperationalError if stuck."""
    messages = spark.readStream.format("xaqueue").options(path=str(place / FLIGHTS), queue=FLIGHTS, consume="keep")
    query = (
        messages.option("maxMessagesPerTrigger", 50_000)
        .load()
        .selectExpr(*COLUMNS)
        .selectExpr("message_id", "record", "flight.*")
        .writeStream.format("parquet")
        .option("path", str(place / "flights.parquet"))
        .option("checkpointLocation", str(place / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    advance = tenths(report, "streamed", flights)
    read, since = 0, time.monotonic()
    while not query.awaitTermination(1):
        now = sum(batch["numInputRows"] for batch in query.recentProgress)
        if now != read:
            read, since = now, time.monotonic()
            advance(read)
        elif time.monotonic() - since > STUCK_S:
            query.stop()
            raise OperationalError(f"the stream has read nothing for {STUCK_S:.0f} s")
    advance(flights)


def check(
    flights: int, tally: Tally, answer: dict[str, Delay], expected: dict[str, Delay], kills: int
) -> list[Expectation]:
    """What went in, held against what came out."""
    return [
        Expectation(f"{tally.messages:,} messages were read, {flights:,} records went in", tally.messages == flights),
        Expectation(f"{tally.message_ids:,} message ids are distinct", tally.message_ids == flights),
        Expectation(
            f"{tally.records:,} flights are distinct, {tally.first:,} to {tally.last:,}: none lost, none doubled",
            (tally.records, tally.first, tally.last) == (flights, 0, flights - 1),
        ),
        Expectation(f"the answer for {len(answer)} carriers equals the one from the CSV", answer == expected),
        Expectation(f"the sender was killed in the middle of a commit {kills} times", kills == len(KILLS)),
    ]


def draw(answer: Mapping[str, Delay], names: Mapping[str, str], times: Timeline, path: Path) -> None:
    """Writes the chart to ``path``: the run above, below it one bar a carrier, the longest delay at the top."""
    figure = Figure(figsize=(9, 4.6 + 0.34 * len(answer)), layout="constrained")
    above, below = figure.subplots(2, 1, height_ratios=[3.2, 1.0 + 0.34 * len(answer)])
    _draw_run(above, times)
    _draw_answer(below, answer, names)
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)


def _draw_run(axes: Axes, times: Timeline) -> None:
    axes.plot(*zip(*times.committed, strict=True), color=COMMITTED, drawstyle="steps-post", label="messages committed")
    for number, when in enumerate(times.kills):
        axes.axvline(when, color=KILLED, linewidth=1, label="" if number else "killed in the middle of a commit")
    for number, when in enumerate(times.recoveries):
        axes.axvline(when, color=RECOVERED, linewidth=1, linestyle="--", label="" if number else "recovered, goes on")
    axes.set(xlabel="seconds", xlim=(0, None), ylim=(0, None))
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.legend(loc="upper left", framealpha=1.0, edgecolor="none", fontsize=8)
    axes.set_title("Flights committed to the queue, while their producer is killed", loc="left")


def _draw_answer(axes: Axes, answer: Mapping[str, Delay], names: Mapping[str, str]) -> None:
    carriers = list(reversed(ranked(answer)))
    means = [delay.mean for _, delay in carriers]
    axes.barh([names.get(code, code) for code, _ in carriers], means, color=COMMITTED)
    for row, (_, delay) in enumerate(carriers):
        label = f"{delay.mean:.1f}  ({delay.flights:,} flights)"  # right of zero, clear of the names
        axes.annotate(label, (max(delay.mean, 0.0), row), (4, 0), textcoords="offset points", va="center", fontsize=8)
    axes.set_xlim(min(0.0, *means) * 1.1, max(1.0, *means) * 1.3)
    axes.set_xlabel("mean departure delay, minutes")
    axes.set_title("What Spark read from it, each message once: delays by carrier", loc="left")


def _check_room(place: Path, flights: int) -> None:
    state = os.statvfs(place)
    free, wanted = state.f_bavail * state.f_frsize, flights * BYTES_PER_FLIGHT
    if free < wanted:
        raise OperationalError(
            f"{place} has {free / 1e9:.1f} GB free, {wanted / 1e9:.1f} are wanted: choose another --directory"
        )
    if state.f_files and state.f_favail < flights * 1.1:
        raise OperationalError(
            f"{place} has room for {state.f_favail:,} files, a message is one: choose another --directory"
        )


@contextmanager
def _timed(part: str, report: Report) -> Iterator[None]:
    started = time.monotonic()
    yield
    report(f"{part}: {time.monotonic() - started:.1f} s")
