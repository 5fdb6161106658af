"""The demo: flights go into a queue while their sender is killed, Spark takes them out, and the sums are compared.

The sender is started again after each kill, and its transaction manager finishes what that left. Nothing is taken on
trust: what Spark read is counted message by message, and its answer is held against one that was computed from the CSV
alone. PASSED or FAILED is said before anything is removed, which a disk may take long for.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import xaqueue
from xaqueue.errors import InvalidArgument, OperationalError
from xaqueue.spark import session
from xaqueue.tools.demo import records, story
from xaqueue.tools.demo.records import TOTAL, Delay, ranked
from xaqueue.tools.demo.sender import FLIGHTS, PAGES, SYNC
from xaqueue.tools.demo.stage import Expectation, Program, Report, in_doubt, judge, place_for, progress
from xaqueue.tools.demo.story import Kill, Timeline

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
FAST = 20_000
"""Flights of a short run."""
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


def run(
    flights: int | None, directory: Path | None, report: Report, *, keep: bool = False, chart: Path | None = None
) -> bool:
    """Runs the demo and reports on it, line by line. Returns whether the check passed.

    flights: how many of the 336,776, from the first; None means all. directory: where spaces, logs and Parquet files
    go, and stay; None means a temporary one, removed at the end unless ``keep``. chart: where that goes, and its page
    with .html for .png; None means ``xaqueue-demo.png`` in the current directory. Raises InvalidArgument,
    OperationalError (something is missing, or a part failed or got stuck).
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
        report(f"The chart is {chart}, its page {chart.with_suffix('.html').name}")
    return passed


def _run(place: Path, flights: int, chart: Path, report: Report) -> bool:
    size = min(PAGE, flights // LEAST_PAGES)
    _check_room(place, flights)
    with _timed("the pages", report):
        pages = lay_out(place, flights, size)
    report(f"{flights:,} flights in {pages:,} transactions of {size}, sync {SYNC}: a commit survives power loss")
    with _timed("the sender", report):
        times = send_under_fire(place, flights, size, report)
    with _timed("Spark's start", report):
        options: dict[str, Any] = {"spark.sql.warehouse.dir": str(place / "warehouse")}
        asked: list[int] = []
        signal.signal(signal.SIGINT, lambda number, _: asked.append(number))  # Java would be left: it hears no Ctrl-C
        try:
            spark = session("xaqueue demo", **options)
        finally:
            signal.signal(signal.SIGINT, signal.default_int_handler)  # Spark's own asks Java amid another question
        if asked:
            raise KeyboardInterrupt
        logging.getLogger().addFilter(lambda record: "while sending command" not in str(record.msg))  # py4j, of Ctrl-C
        logging.getLogger("py4j").setLevel(logging.CRITICAL)
    with _timed("stream to Parquet", report):
        _stream(spark, place, flights, report)
    with _timed("queries", report):
        spark.read.parquet(str(place / "flights.parquet")).createOrReplaceTempView("flights")
        tally = Tally(*spark.sql(TALLY).collect()[0])
        answer = {row[0]: Delay(*row[1:]) for row in spark.sql(ANSWER).collect()}
    names = records.carriers()
    report(f"  {'carrier':<30} {'flights':>8} {'mean departure delay':>22}")
    for code, delay in ranked(answer):
        report(f"  {code}  {names.get(code, ''):<26} {delay.flights:>8,} {delay.mean:>18.2f} min")
    doubtful = sum(in_doubt(place / name) for name in (PAGES, FLIGHTS))
    claims = check(flights, tally, answer, records.delays(flights), len(times.kills))
    claims.append(Expectation(f"{doubtful} branches are left in doubt", doubtful == 0))
    lost, doubled = flights - tally.records, tally.messages - tally.records
    result = f"{flights:,} messages in, {tally.messages:,} rows out: {lost:,} lost, {doubled:,} doubled"
    story.draw(result, times, chart)
    carriers = [(names.get(code, code), delay) for code, delay in ranked(answer)]
    story.write(result, times, claims, carriers, chart)
    return judge(claims, report)


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
    times, before = Timeline(flights, size), 0.0
    with progress(report, "sent", flights) as advance:
        for share, step, when in (*KILLS, (0.0, "", "")):
            number = str(max(1, round((share - before) * times.pages)))
            before = share
            command = [sys.executable, "-m", "xaqueue.tools.demo.sender", str(place), step, number]
            with Program("the sender", command, place / "sender.log") as sender:
                for word, said in sender:
                    times.hear(word, float(said))
                    advance(times.done)
                    if word == "recovered" and times.kills:
                        report(f"  started again, {times.kills[-1]}")
                if not sender.was_killed():
                    break
            times.kills.append(Kill(time.monotonic(), when))
            report(f"kill {len(times.kills)}: SIGKILL {when}")
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
    read, since = 0, time.monotonic()
    with progress(report, "streamed", flights) as advance:
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
