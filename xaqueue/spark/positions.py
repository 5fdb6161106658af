"""Where reading begins and ends, as people say it; kept as the last number that is left out or taken.

The house's number is the last one not wanted (to begin) or the last one wanted (to end), as in the offsets that Spark
keeps and reports. Kafka's is the first one wanted, or the first one not wanted any more: one more in both cases.
A moment stands for the messages committed at it or later, or before it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from xaqueue.errors import InvalidArgument
from xaqueue.message import QUEUE_NAME
from xaqueue.space.model.layout import LAST_SEQ
from xaqueue.spark.option_text import Given, moment_ms, space_path

EARLIEST = "earliest"
LATEST = "latest"
_OF_KAFKA = {-2: EARLIEST, -1: LATEST}


@dataclass(frozen=True, slots=True)
class Moment:
    """Milliseconds since 1970."""

    ms: int


Position = int | str | Moment
"""A commit sequence number, ``earliest`` or ``latest``, or a moment."""


@dataclass(frozen=True, slots=True)
class Positions:
    """One for all queues, and others for those that were named, by space and queue or by queue alone."""

    common: Position
    named: Mapping[tuple[str, str], Position] = field(default_factory=dict)
    """By the space's path (or in Kafka's terms by the number of the partition, as text) or "", and the queue."""
    option: str = field(default="", compare=False)
    """The name of the option that says so."""

    def of(self, space: str, number: int, queue: str) -> Position:
        for place in (space, str(number), ""):
            if (place, queue) in self.named:
                return self.named[place, queue]
        return self.common


def positions(given: Given, edge: str, default: str, *, kafka: bool) -> Positions:
    """What the options say of an edge, ``starting`` or ``ending``. Of several Kafka takes the first of its order.

    Raises InvalidArgument.
    """
    names = f"{edge}Timestamp", f"{edge}OffsetsByTimestamp", f"{edge}Offsets"
    found = [name for name in names if name in given]
    if len(found) > 1 and not kafka:
        raise InvalidArgument(f'options "{found[1]}" and "{found[0]}" exclude each other: give one')
    name = found[0] if found else names[2]
    text = given.text(name)
    if text is None:
        return Positions(default, option=name)
    if name == names[0]:
        return Positions(Moment(moment_ms(name, text)), option=name)
    return parse_positions(name, text, kafka=kafka)


def parse_positions(name: str, text: str, *, kafka: bool) -> Positions:
    """The value of the option with this name. Raises InvalidArgument that says what is accepted."""
    if name.endswith("ByTimestamp") or text.lstrip().startswith("{"):
        unnamed = EARLIEST if name.startswith("starting") else LATEST
        return Positions(unnamed, dict(_named(name, text, kafka)), name)
    plain: Any = text.strip().lower()
    if plain.isascii() and plain.isdigit():
        plain = int(plain)
    found = _position(plain, kafka)
    if found is None:
        number = "an offset" if kafka else "a commit sequence number"
        raise InvalidArgument(
            f'option "{name}" is {text!r}: "{EARLIEST}", "{LATEST}" or {number} is accepted, or JSON of numbers: '
            f"{_example(name, kafka)}"
        )
    return Positions(found, option=name)


def _named(name: str, text: str, kafka: bool) -> Iterator[tuple[tuple[str, str], Position]]:
    by_time = name.endswith("ByTimestamp")
    for key, value in json_object(name, text, _example(name, kafka)).items():
        nested = value if isinstance(value, dict) else {"": value}
        for inner, number in nested.items():
            # Kafka has the topic outside and the partition inside, the house has the space outside
            place, queue = (inner, key) if kafka or inner == "" else (key, inner)
            found: Position | None = Moment(moment_ms(name, number)) if by_time else _position(number, kafka)
            is_place = place.isdigit() if kafka else place == "" or "/" in place
            if found is None or not QUEUE_NAME.fullmatch(queue) or not is_place:
                example = _example(name, kafka)
                raise InvalidArgument(f'option "{name}": {key!r}: {value!r} is refused: {example} is accepted')
            if "/" in place:
                place = space_path(name, place)
            yield (place, queue), found


def json_object(name: str, text: str, example: str) -> dict[str, Any]:
    """What the option holds. Raises InvalidArgument."""
    try:
        document = json.loads(text)
    except ValueError as error:
        raise InvalidArgument(f'option "{name}" is no JSON ({error}): {example} is accepted') from None
    if not isinstance(document, dict):
        raise InvalidArgument(f'option "{name}" is {text[:60]!r}: {example} is accepted')
    return document


def _position(value: Any, kafka: bool) -> Position | None:
    if value in (EARLIEST, LATEST):
        return str(value)
    if type(value) is not int or value > LAST_SEQ:
        return None
    if kafka and value in _OF_KAFKA:
        return _OF_KAFKA[value]
    return None if value < 0 else max(0, value - 1) if kafka else value


def _example(name: str, kafka: bool) -> str:
    number = 1795305600000 if name.endswith("ByTimestamp") else 23 if kafka else 5
    if kafka:
        return f'{{"orders": {{"0": {number}}}}}'
    return f'{{"orders": {number}}} or {{"/data/space": {{"orders": {number}}}}}'
