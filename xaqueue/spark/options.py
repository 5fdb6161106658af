"""Options of a reader and of a writer: each is one row of a table, and one parser reads them all.

A row is a field of a dataclass, ``most_bytes: int | None = option("maxBytesPerTrigger", size_bytes)``: the name as
people write it (Spark hands it over in lower case), the kind of text that is accepted, what holds without it. What is
wrong is an InvalidArgument that names the option as it is written and says what is accepted.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import field, fields
from datetime import datetime
from difflib import get_close_matches
from typing import Any, NamedTuple
from urllib.parse import unquote

from xaqueue.core.model.layout import LAST_SEQ
from xaqueue.endpoint import Scheme
from xaqueue.errors import InvalidArgument

OF_A_CONNECTION = (
    "groupidprefix",
    "kafkaconsumer.polltimeoutms",
    "fetchoffset.numretries",
    "fetchoffset.retryintervalms",
)
"""Of a Kafka job, beside ``kafka.*``: there is no connection here that they could be about."""
OF_A_TABLE = ("location", "owner", "provider")
"""What Spark adds to the options of CREATE TABLE, beside ``option.*``."""
LONGEST_S = 366 * 86_400.0

_SIZE = re.compile(r"(\d+)\s*([kmgtp]?)b?", re.ASCII | re.IGNORECASE)
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.ASCII | re.IGNORECASE)
_UNITS_S = {
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 0.001),
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hour", "hours"), 3_600.0),
    **dict.fromkeys(("d", "day", "days"), 86_400.0),
}
_FILE = re.compile(r"file:(?://(?:localhost)?(?=/)|(?!//))", re.IGNORECASE)
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")

_SERVERS = tuple(f"{scheme.value}://" for scheme in Scheme)
_BETWEEN = re.compile(r",(?![^,/]*:[0-9]{1,5}(?:[?,]|$))")
"""Two spaces: a host and port alone are of the URL before them."""

_log = logging.getLogger("xaqueue.spark")

Parser = Callable[..., Any]
"""Reads the text of the option with this name, given as (name, text, ...). Raises InvalidArgument."""


class Option(NamedTuple):
    """A row of the table. ``names``: all mean the same. ``accepted``: more arguments of the kind."""

    names: tuple[str, ...]
    kind: Parser
    doc: str
    accepted: tuple[Any, ...]


def option(names: str, kind: Parser, default: Any, doc: str, *accepted: Any) -> Any:
    """A field that is read from the option with one of these names, with a blank between them."""
    return field(default=default, metadata={"option": Option(tuple(names.split()), kind, doc, accepted)})


def table(options: type) -> dict[str, Option]:
    """The rows of a dataclass, by their field."""
    return {one.name: one.metadata["option"] for one in fields(options) if "option" in one.metadata}


class RawOptions:
    """The options of one query. ``ignored``: those of a Kafka connection, which mean nothing to a queue."""

    def __init__(self, raw: Mapping[str, str], known: Iterable[str], whose: str, of_spark: Iterable[str] = ()) -> None:
        """known: names as they are written; of_spark: more that Spark hands over by itself. whose: ``a reader``.

        Raises InvalidArgument for an unknown one.
        """
        self._raw = {name.lower(): value for name, value in raw.items()}
        self.ignored = tuple(name for name in self._raw if name.startswith("kafka.") or name in OF_A_CONNECTION)
        written = {name.lower(): name for name in known}
        accepted = {*written, *map(str.lower, of_spark), *self.ignored}
        for name in self._raw:
            if name not in accepted:
                raise InvalidArgument(_unknown(name, written, whose))

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._raw

    def text(self, name: str) -> str | None:
        return self._raw.get(name.lower())

    def name_of(self, *names: str) -> str | None:
        """Which of these names, that mean the same, was given. Raises InvalidArgument for two."""
        found = [name for name in names if name in self]
        if len(found) > 1:
            raise InvalidArgument(f'options "{found[0]}" and "{found[1]}" mean the same: give one')
        return found[0] if found else None

    def fields(self, options: type) -> dict[str, Any]:
        """What was given of the rows of this dataclass. Raises InvalidArgument for what is not of its kind."""
        named = {place: (row, self.name_of(*row.names)) for place, row in table(options).items()}
        return {
            place: row.kind(name, self.text(name), *row.accepted)
            for place, (row, name) in named.items()
            if name is not None
        }


def log_ignored(ignored: tuple[str, ...]) -> None:
    if ignored:
        _log.warning("[options-ignored] options of a Kafka connection are ignored here: %s", ", ".join(ignored))


def refused(name: str, text: str, wanted: str) -> InvalidArgument:
    return InvalidArgument(f'option "{name}" is {text!r}: {wanted}')


def plain(_: str, text: str) -> str:
    return text


def word(name: str, text: str, *accepted: str) -> str:
    if text.strip().lower() in accepted:
        return text.strip().lower()
    raise refused(name, text, f"{', '.join(accepted)} are accepted")


def switch(name: str, text: str) -> bool:
    return word(name, text, "true", "false") == "true"


def count(name: str, text: str, least: int = 1, most: int = LAST_SEQ) -> int:
    if text.isascii() and text.isdigit() and least <= int(text) <= most:
        return int(text)
    raise refused(name, text, f"a whole number from {least} is accepted")


def size_bytes(name: str, text: str) -> int:
    """Bytes, or with a unit of 1024 as Spark has them."""
    found = _SIZE.fullmatch(text.strip())
    size = int(found[1]) << (10 * " kmgtp".index(found[2].lower() or " ")) if found else 0
    if 0 < size <= LAST_SEQ:
        return size
    raise refused(name, text, "bytes are accepted, also with a unit of 1024: 10485760, 10m, 1g")


def seconds(name: str, text: str, bare_s: float = 1.0, longest_s: float = LONGEST_S) -> float:
    """A span of time. bare_s: what a number without a unit counts."""
    found = _DURATION.fullmatch(text.strip())
    unit_s = (_UNITS_S.get(found[2].lower()) if found[2] else bare_s) if found else None
    if found and unit_s and 0 < float(found[1]) * unit_s <= longest_s:
        return float(found[1]) * unit_s
    bare, most = "seconds" if bare_s == 1.0 else "milliseconds", longest_s / bare_s
    raise refused(name, text, f"{bare} above 0 and up to {most:.0f} are accepted, or 500ms, 10s, 15m")


def timestamp_ms(name: str, value: object) -> int:
    """Milliseconds since 1970, from a number or from an ISO timestamp that says its zone."""
    text = str(value).strip()
    if text.isascii() and text.isdigit() and int(text) <= LAST_SEQ:
        return int(text)
    with suppress(ValueError):
        instant = datetime.fromisoformat(text)
        if instant.tzinfo is not None and instant.timestamp() >= 0:
            return round(instant.timestamp() * 1000)
    raise refused(name, text, "milliseconds since 1970 are accepted, or a time with its zone, 2026-11-22T00:00:00Z")


def json_object(name: str, text: str, example: str) -> dict[str, Any]:
    """What the option holds."""
    try:
        document = json.loads(text)
    except ValueError as error:
        raise InvalidArgument(f'option "{name}" is no JSON ({error}): {example} is accepted') from None
    if not isinstance(document, dict):
        raise refused(name, text[:60], f"{example} is accepted")
    return document


def local_path(text: str) -> str | None:
    """The path of ``/data``, ``data``, ``file:/data`` or ``file:///my%20data``; None for a URL of another kind.

    A directory whose very name has a %20 in it is found, too: Spark itself takes a URL to the letter.
    """
    scheme = _FILE.match(text)
    if scheme is None:
        return None if _URL.match(text) or text.lower().startswith("file:") else text
    path = text[scheme.end() :]
    return path if "%" in path and os.path.exists(path) else unquote(path)  # noqa: PTH110


def space_path(name: str, text: str) -> str:
    """The absolute path of a queue space. Raises InvalidArgument for what is in no file system of the machine."""
    path = local_path(text)
    if path is None:
        wanted = "a queue space is a directory that the machine sees under a path, and {}: is none. Give the path, "
        raise refused(name, text, f"{wanted.format(text.partition(':')[0])}/data/space or file:///data/space")
    return os.path.abspath(path)  # noqa: PTH100


def is_server(text: str) -> bool:
    """Whether it is the URL of one."""
    return text.startswith(_SERVERS)


def places(text: str) -> list[str]:
    """Spaces with commas between them; of a URL with several addresses these are its own."""
    return [part.strip() for part in _BETWEEN.split(text)]


def _unknown(name: str, written: Mapping[str, str], whose: str) -> str:
    if name in OF_A_TABLE or name.startswith("option."):
        return (
            "a queue is no table of a catalog, so CREATE TABLE is refused: use CREATE TEMPORARY VIEW name USING "
            "xaqueue OPTIONS (path '/data/space', queue 'orders')"
        )
    if name == "archive":
        return (
            'option "archive" is the queue\'s: `xaqueue define QUEUE archive=parquet` keeps whatever leaves it; what a '
            'stream alone reads is kept with option "consume" archive, and `xaqueue archive` makes Parquet of that'
        )
    near = get_close_matches(name, written, 1)
    hint = f" (did you mean {written[near[0]]}?)" if near else ""
    return f'option "{name}" is unknown to {whose}{hint}: {", ".join(written.values())} are accepted'
