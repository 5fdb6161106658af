"""The demo: flights go into a queue while their sender is killed, Spark takes them out, and the sums are compared.

The sender is started again after each kill, and its transaction manager finishes what that left. Nothing is taken on
trust: what Spark read is counted message by message, and its answer is held against one that was computed from the CSV
alone. PASSED or FAILED is said before anything is removed, which a disk may take long for.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count as numbers
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import xaqueue
from xaqueue.errors import InvalidArgument, OperationalError
from xaqueue.space.offline.inspect_branches import in_doubt
from xaqueue.space.owner.open import create
from xaqueue.spark import session
from xaqueue.storage.hardening import DEFAULT
from xaqueue.tm.coordinator import TraceStep
from xaqueue.tm.log_directory import view_log
from xaqueue.tools.demo import records
from xaqueue.tools.demo.chart import Toll, draw
from xaqueue.tools.demo.records import Delay
from xaqueue.tools.demo.sender import FLIGHTS, PAGES
from xaqueue.tools.demo.stage import Expectation, Report, judge, place_for, tenths

PAGE = 200
"""Flights of one transaction."""
LEAST_PAGES = 15
"""A small run has smaller pages instead, so that there are commits enough to be killed in."""
LEAST_FLIGHTS = 10 * LEAST_PAGES
KILLS = (
    (0.05, TraceStep.DECIDE, "with every vote and before the decision"),
    (0.2, TraceStep.DECIDED, "after the decision, before anybody was told"),
    (0.4, TraceStep.COMMIT, "while a decision was carried out"),
)
"""After which share of the pages, at which step of a transaction, and that in words."""
CHART = "xaqueue-demo.png"
BYTES_PER_FLIGHT = 4_500
"""Of disk: a file's block, its inode, and its share of the directories and of the Parquet files."""
MESSAGES_PER_TRIGGER = 50_000
STUCK_S = 180.0
"""A stream that reads nothing for so long is stuck."""
TAIL = 12

FLIGHT = (
    "year int, month int, day int, dep_time int, sched_dep_time int, dep_delay int, arr_time int, sched_arr_time int, "
    "arr_delay int, carrier string, flight int, tailnum string, origin string, dest string, air_time int, "
    "distance int, hour int, minute int, time_hour timestamp"
)
"""The JSON of a message, as a Spark schema."""
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


def run(
    flights: int | None, directory: Path | None, report: Report, *, keep: bool = False, chart: Path | None = None
) -> bool:
    """Runs the demo and reports on it, line by line. Returns whether the check passed.

    flights: how many of the 336,776, from the first; None means all. directory: where spaces, logs and Parquet files
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
    with place_for(directory, report, keep=keep) as place:
        passed = _run(place, count, chart, report)
        report("PASSED" if passed else "FAILED")
        report(f"The chart is {chart}")
    return passed


def _run(place: Path, flights: int, chart: Path, report: Report) -> bool:
    size = min(PAGE, flights // LEAST_PAGES)
    _check_room(place, flights)
    with _timed("the pages", report):
        pages = lay_out(place, flights, size)
    report(f"{flights:,} flights in {pages:,} transactions of {size}, sync {DEFAULT}: a commit {DEFAULT.promise}")
    with _timed("the sender", report):
        toll = send_under_fire(place, flights, size, report)
    with _timed("stream to Parquet", report):
        places: dict[str, Any] = {"spark.sql.warehouse.dir": str(place / "warehouse")}
        spark = session("xaqueue demo", **places)
        _stream(spark, place, flights, report)
    with _timed("queries", report):
        spark.read.parquet(str(place / "flights.parquet")).createOrReplaceTempView("flights")
        tally = Tally(*spark.sql(TALLY).collect()[0])
        answer = {row[0]: Delay(*row[1:]) for row in spark.sql(ANSWER).collect()}
    names = records.carriers()
    for line in records.table(answer, names):
        report(line)
    draw(answer, names, toll, chart)
    claims = check(flights, tally, answer, records.delays(flights), len(toll.kills))
    doubtful = sum(len(in_doubt(place / name)) for name in (PAGES, FLIGHTS))
    return judge([*claims, Expectation(f"{doubtful} branches are left in doubt", doubtful == 0)], report)


def lay_out(place: Path, flights: int, size: int) -> int:
    """The space of pages, full, and that of flights, empty; returns how many pages there are."""
    create(place / FLIGHTS, name=FLIGHTS, any_queue=True)
    create(place / PAGES, name=PAGES, any_queue=True)
    with xaqueue.connect(place / PAGES) as connection:
        lines = records.lines(flights)
        head = next(lines)
        for page in numbers():
            if not (text := "".join(islice(lines, size))):
                return page
            connection.enqueue(PAGES, (head + text).encode(), correlation_id=str(page * size))
    raise AssertionError


def send_under_fire(place: Path, flights: int, size: int, report: Report) -> Toll:
    """Runs the sender to its end through all kills. Raises OperationalError where it fails or is stuck."""
    toll, pages = Toll(), -(-flights // size)
    advance = tenths(report, "sent", flights)
    before = 0.0
    for share, step, when in (*KILLS, (0.0, "", "")):
        arguments = [str(place), step, str(max(1, round((share - before) * pages)))]
        before = share
        with (place / "sender.log").open("ab") as log, _sender(arguments, log) as child:
            assert child.stdout is not None
            for line in child.stdout:
                word, number = line.split()
                if word == "left" and toll.kills:
                    toll.recoveries.append(toll.now())
                    report(f"  started again, all of it finished after {toll.recoveries[-1] - toll.kills[-1]:.1f} s")
                done = toll.committed[-1][1] + int(number) if word == "sent" else flights - int(number)
                toll.committed.append((toll.now(), done))
                advance(done)
            code = child.wait()
        if code == 0:
            break
        if code != -signal.SIGKILL:
            last = (place / "sender.log").read_text("utf-8", "replace").splitlines()[-TAIL:]
            raise OperationalError(f"the sender ended with code {code}:\n" + "\n".join(last))
        toll.kills.append(toll.now())
        report(f"kill {len(toll.kills)}: SIGKILL {when}; {_left(place)}")
    return toll


@contextmanager
def _sender(arguments: list[str], log: Any) -> Iterator[subprocess.Popen[str]]:
    """It does not outlive the block."""
    command = [sys.executable, "-m", "xaqueue.tools.demo.sender", *arguments]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True) as child:
        try:
            yield child
        finally:
            child.kill()


def _left(place: Path) -> str:
    """What a sender that is gone has left, for the next one to finish."""
    doubtful = {branch.xid.gtrid for name in (PAGES, FLIGHTS) for branch in in_doubt(place / name)}
    log = view_log(place / "decisions")
    decided = sum(log.table.decision_on(gtrid) is not None for gtrid in doubtful)
    return f"transactions in doubt: {len(doubtful)}, {decided} of them decided"


def _stream(spark: Any, place: Path, flights: int, report: Report) -> None:
    """Everything that is in the queue now, into Parquet. Raises what Spark raises, OperationalError if stuck."""
    messages = spark.readStream.format("xaqueue").options(path=str(place / FLIGHTS), queue=FLIGHTS, consume="keep")
    record = "CAST(CAST(correlation_id AS STRING) AS BIGINT) AS record"
    query = (
        messages.option("maxMessagesPerTrigger", MESSAGES_PER_TRIGGER)
        .load()
        .selectExpr("seq", "message_id", record, f"from_json(CAST(body AS STRING), '{FLIGHT}') AS flight")
        .selectExpr("seq", "message_id", "record", "flight.*")
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
