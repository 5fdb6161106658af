"""What people write as options of a reader or a writer: names in any case, numbers, sizes and times with their units.

Source, sink and checkpoint read paths by the one parser that is here. What is wrong is an InvalidArgument that names
the option as it is written and says what is accepted.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from difflib import get_close_matches
from urllib.parse import unquote

from xaqueue.errors import InvalidArgument
from xaqueue.space.model.layout import LAST_SEQ

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

_log = logging.getLogger("xaqueue.spark")


class Given:
    """The options of one query. ``ignored``: those of a Kafka connection, which mean nothing to a queue."""

    def __init__(
        self, given: Mapping[str, str], known: Iterable[str], whose: str, of_spark: Iterable[str] = ()
    ) -> None:
        """known: names as they are written; of_spark: more that Spark hands over by itself. whose: ``a reader``.

        Raises InvalidArgument for an unknown one.
        """
        self._given = {name.lower(): value for name, value in given.items()}
        self.ignored = tuple(name for name in self._given if name.startswith("kafka.") or name in OF_A_CONNECTION)
        written = {name.lower(): name for name in known}
        accepted = {*written, *map(str.lower, of_spark), *self.ignored}
        for name in self._given:
            if name not in accepted:
                raise InvalidArgument(_unknown(name, written, whose))

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._given

    def text(self, name: str) -> str | None:
        return self._given.get(name.lower())

    def one_meaning(self, *names: str) -> str | None:
        """Which of these names was given. Raises InvalidArgument for two."""
        found = [name for name in names if name in self]
        if len(found) > 1:
            raise InvalidArgument(f'options "{found[0]}" and "{found[1]}" mean the same: give one')
        return found[0] if found else None

    def one_of(self, name: str, accepted: tuple[str, ...]) -> str | None:
        value = self.text(name)
        if value is None:
            return None
        if value.strip().lower() in accepted:
            return value.strip().lower()
        raise self.refused(name, f"{', '.join(accepted)} are accepted")

    def switch(self, name: str, default: bool) -> bool:
        said = self.one_of(name, ("true", "false"))
        return default if said is None else said == "true"

    def count(self, name: str, least: int = 1, most: int = LAST_SEQ) -> int | None:
        value = self.text(name)
        if value is None:
            return None
        if value.isascii() and value.isdigit() and least <= int(value) <= most:
            return int(value)
        raise self.refused(name, f"a whole number from {least} is accepted")

    def size_bytes(self, name: str) -> int | None:
        """Bytes, or with a unit of 1024 as Spark has them."""
        value = self.text(name)
        if value is None:
            return None
        found = _SIZE.fullmatch(value.strip())
        size = int(found[1]) << (10 * " kmgtp".index(found[2].lower() or " ")) if found else 0
        if 0 < size <= LAST_SEQ:
            return size
        raise self.refused(name, "bytes are accepted, also with a unit of 1024: 10485760, 10m, 1g")

    def seconds(self, name: str, default: float, *, bare_s: float = 1.0, longest_s: float = LONGEST_S) -> float:
        """A span of time. bare_s: what a number without a unit counts."""
        value = self.text(name)
        if value is None:
            return default
        found = _DURATION.fullmatch(value.strip())
        unit_s = (_UNITS_S.get(found[2].lower()) if found[2] else bare_s) if found else None
        if found and unit_s and 0 < float(found[1]) * unit_s <= longest_s:
            return float(found[1]) * unit_s
        bare = "seconds" if bare_s == 1.0 else "milliseconds"
        raise self.refused(name, f"{bare} above 0 and up to {longest_s / bare_s:.0f} are accepted, or 500ms, 10s, 15m")

    def time_ms(self, name: str) -> int | None:
        value = self.text(name)
        return None if value is None else moment_ms(name, value)

    def refused(self, name: str, wanted: str) -> InvalidArgument:
        return InvalidArgument(f'option "{name}" is {self.text(name)!r}: {wanted}')


def log_ignored(ignored: tuple[str, ...]) -> None:
    if ignored:
        _log.warning("options of a Kafka connection mean nothing to a queue and are ignored: %s", ", ".join(ignored))


def moment_ms(name: str, value: object) -> int:
    """Milliseconds since 1970, from a number or from an ISO timestamp that says its zone."""
    text = str(value).strip()
    if text.isascii() and text.isdigit() and int(text) <= LAST_SEQ:
        return int(text)
    moment = None
    with suppress(ValueError):
        moment = datetime.fromisoformat(text)
    if moment is None or moment.tzinfo is None or moment.timestamp() < 0:
        raise InvalidArgument(
            f'option "{name}" is {text!r}: milliseconds since 1970 are accepted, or a time with its zone, '
            "2026-11-22T00:00:00Z"
        )
    return round(moment.timestamp() * 1000)


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
        raise InvalidArgument(
            f'option "{name}" is {text!r}: a queue space is a directory that the machine sees under a path, and '
            f"{text.partition(':')[0]}: is none. Give the path, /data/space or file:///data/space"
        )
    return os.path.abspath(path)  # noqa: PTH100


def _unknown(name: str, written: Mapping[str, str], whose: str) -> str:
    if name in OF_A_TABLE or name.startswith("option."):
        return (
            "a queue is no table of a catalog, so CREATE TABLE is refused: use CREATE TEMPORARY VIEW name USING "
            "xaqueue OPTIONS (path '/data/space', queue 'orders')"
        )
    near = get_close_matches(name, written, 1)
    hint = f" (did you mean {written[near[0]]}?)" if near else ""
    return f'option "{name}" is unknown to {whose}{hint}: {", ".join(written.values())} are accepted'
