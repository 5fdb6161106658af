"""Where reading begins and ends, as people say it; kept as the last number that is left out or taken.

The house's number is the last one not wanted (to begin) or the last one wanted (to end), as in the offsets that Spark
keeps and reports. Kafka's is the first one wanted, or the first one not wanted any more: one more in both cases.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from xaqueue.errors import InvalidArgument
from xaqueue.message import QUEUE_NAME
from xaqueue.space.layout import LAST_SEQ

EARLIEST = "earliest"
LATEST = "latest"
_OF_KAFKA = {-2: EARLIEST, -1: LATEST}

Position = int | str
"""A commit sequence number, or ``earliest`` or ``latest``."""


@dataclass(frozen=True, slots=True)
class Positions:
    """One for all queues, and others for those that were named, by space and queue or by queue alone."""

    common: Position
    named: Mapping[tuple[str, str], Position] = field(default_factory=dict)
    """By the space's path (or in Kafka's terms by the number of the partition, as text) or "", and the queue."""

    def of(self, space: str, number: int, queue: str) -> Position:
        for place in (space, str(number), ""):
            if (place, queue) in self.named:
                return self.named[place, queue]
        return self.common


def parse_positions(name: str, text: str | None, default: str, *, kafka: bool) -> Positions:
    """The value of the option with this name. Raises InvalidArgument that says what is accepted."""
    if text is None:
        return Positions(default)
    if text.lstrip().startswith("{"):
        return Positions(EARLIEST if default == EARLIEST else LATEST, dict(_named(name, text, kafka)))
    plain: Any = text.strip().lower()
    if plain.isascii() and plain.isdigit():
        plain = int(plain)
    found = _position(plain, kafka)
    if found is None:
        number = "an offset" if kafka else "a commit sequence number"
        raise InvalidArgument(
            f'option "{name}" is {text!r}: "{EARLIEST}", "{LATEST}" or {number} is accepted, or JSON of numbers: '
            f"{_example(kafka)}"
        )
    return Positions(found)


def _named(name: str, text: str, kafka: bool) -> Iterator[tuple[tuple[str, str], Position]]:
    try:
        document = json.loads(text)
    except ValueError as error:
        raise InvalidArgument(f'option "{name}" is no JSON ({error}): {_example(kafka)} is accepted') from None
    for key, value in document.items():
        nested = value if isinstance(value, dict) else {"": value}
        for inner, number in nested.items():
            # Kafka has the topic outside and the partition inside, the house has the space outside
            place, queue = (inner, key) if kafka or inner == "" else (key.rstrip("/"), inner)
            found = _position(number, kafka)
            is_place = place.isdigit() if kafka else place == "" or place.startswith("/")
            if found is None or not QUEUE_NAME.fullmatch(queue) or not is_place:
                raise InvalidArgument(f'option "{name}": {key!r}: {value!r} is refused: {_example(kafka)} is accepted')
            yield (place, queue), found


def _position(value: Any, kafka: bool) -> Position | None:
    if value in (EARLIEST, LATEST):
        return str(value)
    if type(value) is not int or value > LAST_SEQ:
        return None
    if kafka and value in _OF_KAFKA:
        return _OF_KAFKA[value]
    return None if value < 0 else max(0, value - 1) if kafka else value


def _example(kafka: bool) -> str:
    return '{"orders": {"0": 23}}' if kafka else '{"orders": 5} or {"/data/space": {"orders": 5}}'
