"""Spark reads the queue as a stream into Parquet, as any job would, and answers from the Parquet files."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from xaqueue.demo.answer import Delay, Tally
from xaqueue.demo.producer import QUEUE
from xaqueue.demo.progress import Progress
from xaqueue.errors import OperationalError
from xaqueue.spark import session

MESSAGES_PER_TRIGGER = 50_000
PATIENCE_S = 180.0
"""A stream that reads nothing for so long is stuck."""

FLIGHT = (
    "year int, month int, day int, dep_time int, sched_dep_time int, dep_delay int, arr_time int, sched_arr_time int, "
    "arr_delay int, carrier string, flight int, tailnum string, origin string, dest string, air_time int, "
    "distance int, hour int, minute int, time_hour timestamp"
)
"""The JSON of a message, as a Spark schema."""

TALLY = """
    SELECT count(*), count(DISTINCT message_id), count(DISTINCT record), min(record), max(record) FROM flights
"""
ANSWER = """
    SELECT carrier, count(*) AS flights, count(dep_delay) AS departed, sum(dep_delay) AS minutes
    FROM flights GROUP BY carrier
"""


class Ingest:
    """One Spark session at work. It is left running: Spark ends with the process, and others may share it."""

    def __init__(self, directory: Path) -> None:
        places: dict[str, Any] = {"spark.sql.warehouse.dir": str(directory / "warehouse")}
        self._spark = session("xaqueue demo", **places)
        self._parquet = str(directory / "flights.parquet")
        self._checkpoint = str(directory / "checkpoint")

    def stream(self, space: Path, flights: int, progress: Progress) -> None:
        """Everything that is in the queue now, into Parquet. Raises what Spark raises, OperationalError if stuck."""
        messages = (
            self._spark.readStream.format("xaqueue")
            .option("path", str(space))
            .option("queue", QUEUE)
            .option("consume", "keep")
            .option("maxMessagesPerTrigger", MESSAGES_PER_TRIGGER)
            .load()
        )
        parsed = messages.selectExpr(
            "seq",
            "message_id",
            "CAST(CAST(correlation_id AS STRING) AS BIGINT) AS record",
            f"from_json(CAST(body AS STRING), '{FLIGHT}') AS flight",
        ).selectExpr("seq", "message_id", "record", "flight.*")
        query = (
            parsed.writeStream.format("parquet")
            .option("path", self._parquet)
            .option("checkpointLocation", self._checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        read, since = 0, time.monotonic()
        with progress.task("streaming to Parquet", flights) as advance:
            while not query.awaitTermination(1):
                now = sum(batch["numInputRows"] for batch in query.recentProgress)
                if now != read:
                    read, since = now, time.monotonic()
                    advance(min(read, flights))
                elif time.monotonic() - since > PATIENCE_S:
                    query.stop()
                    raise OperationalError(f"the stream has read nothing for {PATIENCE_S:.0f} s")
            advance(flights)

    def tally(self) -> Tally:
        """What was read, counted."""
        self._spark.read.parquet(self._parquet).createOrReplaceTempView("flights")
        return Tally(*self._spark.sql(TALLY).collect()[0])

    def answer(self) -> dict[str, Delay]:
        """Flights and departure delays of each carrier. ``tally`` comes first."""
        rows = self._spark.sql(ANSWER).collect()
        return {row["carrier"]: Delay(row["flights"], row["departed"], row["minutes"] or 0) for row in rows}
