"""A reader's options are checked once, before anything is planned, and a wrong one says what is right.

Spark hands options over as text, with names in lower case. Positions are commit sequence numbers as in the offsets
that Spark keeps and reports: ``startingoffsets`` is the last one not wanted, ``endingoffsets`` the last one wanted.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from xaqueue.errors import InvalidArgument
from xaqueue.message import check_queue_name
from xaqueue.space.layout import LAST_SEQ

EARLIEST = "earliest"
LATEST = "latest"
NAMES = ("path", "queue", "startingoffsets", "endingoffsets", "maxmessagespertrigger", "minpartitions")


@dataclass(frozen=True, slots=True)
class Options:
    """What to read. ``start`` and ``end`` are a sequence number, or ``earliest`` or ``latest``."""

    path: str
    queue: str
    start: int | str
    end: int | str = LATEST
    most_per_trigger: int | None = None
    least_partitions: int | None = None


def parse(given: Mapping[str, str]) -> Options:
    """The options by their names in lower case. Raises InvalidArgument for one that is missing, wrong or unknown."""
    given = {name.lower(): value for name, value in given.items()}
    for name in given:
        if name not in NAMES:
            raise InvalidArgument(_unknown(name))
    return Options(
        path=os.path.abspath(_required(given, "path", "the directory of the queue space")),  # noqa: PTH100
        queue=check_queue_name(_required(given, "queue", "the name of the queue to read")),
        start=_position(given, "startingoffsets", EARLIEST),
        end=_position(given, "endingoffsets", LATEST),
        most_per_trigger=_count(given, "maxmessagespertrigger"),
        least_partitions=_count(given, "minpartitions"),
    )


def _required(given: Mapping[str, str], name: str, meaning: str) -> str:
    value = given.get(name, "")
    if not value:
        raise InvalidArgument(f'option "{name}" is missing: {meaning}')
    return value


def _position(given: Mapping[str, str], name: str, default: str) -> int | str:
    value = given.get(name, default).strip().lower()
    if value in (EARLIEST, LATEST):
        return value
    if value.isascii() and value.isdigit() and int(value) <= LAST_SEQ:
        return int(value)
    raise InvalidArgument(
        f'option "{name}" is {given[name]!r}: "{EARLIEST}", "{LATEST}" or a commit sequence number is accepted'
    )


def _count(given: Mapping[str, str], name: str) -> int | None:
    value = given.get(name)
    if value is None:
        return None
    if value.isascii() and value.isdigit() and 0 < int(value) <= LAST_SEQ:
        return int(value)
    raise InvalidArgument(f'option "{name}" is {value!r}: a whole number from 1 is accepted')


def _unknown(name: str) -> str:
    near = get_close_matches(name, NAMES, 1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    return f'option "{name}" is unknown{hint}: {", ".join(NAMES)} are accepted'
