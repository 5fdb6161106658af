"""Options are checked once, before anything is planned, and a wrong one says what is right.

Spark hands options over as text, with names in lower case. ``queue`` asks for the house's columns and ``subscribe`` or
``subscribePattern`` for Kafka's, with Kafka's meaning of offsets; all other options mean the same with both.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from socket import gethostname

from xaqueue.errors import InvalidArgument
from xaqueue.message import QUEUE_NAME, check_queue_name
from xaqueue.space.layout import LAST_SEQ
from xaqueue.spark.positions import EARLIEST, LATEST, Positions, parse_positions

NAMES = {
    "path": "path",
    "paths": "paths",
    "queue": "queue",
    "subscribe": "subscribe",
    "subscribepattern": "subscribePattern",
    "startingoffsets": "startingOffsets",
    "endingoffsets": "endingOffsets",
    "startingtimestamp": "startingTimestamp",
    "endingtimestamp": "endingTimestamp",
    "maxmessagespertrigger": "maxMessagesPerTrigger",
    "maxoffsetspertrigger": "maxOffsetsPerTrigger",
    "maxbytespertrigger": "maxBytesPerTrigger",
    "minpartitions": "minPartitions",
    "consume": "consume",
    "server": "server",
    "failondataloss": "failOnDataLoss",
    "skipmissingspaces": "skipMissingSpaces",
    "spacetimeout": "spaceTimeout",
    "includeheaders": "includeHeaders",
    "streamname": "streamName",
    "checkpointlocation": "checkpointLocation",
}
"""As Spark hands them over, and as people write them."""
OF_A_CONNECTION = (
    "groupidprefix",
    "kafkaconsumer.polltimeoutms",
    "fetchoffset.numretries",
    "fetchoffset.retryintervalms",
)
"""Of a Kafka job, beside ``kafka.*``: there is no connection here that they could be about."""

DELETE, ARCHIVE, KEEP = "delete", "archive", "keep"
SPACE_TIMEOUT_S = 10.0
PATTERN = frozenset("*?[")

_log = logging.getLogger("xaqueue.spark")


@dataclass(frozen=True, slots=True)
class Options:
    """What to read, and how. Paths are absolute; paths and queues may be shell patterns."""

    paths: tuple[str, ...]
    queues: tuple[str, ...]
    expression: str | None = None
    """A regular expression for queues, instead of ``queues``."""
    kafka: bool = False
    """Columns and offsets are Kafka's."""
    start: Positions = field(default_factory=lambda: Positions(EARLIEST))
    end: Positions = field(default_factory=lambda: Positions(LATEST))
    start_time_ms: int | None = None
    end_time_ms: int | None = None
    most_messages: int | None = None
    most_bytes: int | None = None
    least_partitions: int | None = None
    consume: str | None = None
    """delete, archive or keep; None where it was not said."""
    server: str | Mapping[str, str] | None = None
    """A URL, or several by the spaces' paths."""
    fails_on_loss: bool = True
    skips_missing: bool = False
    space_timeout_s: float = SPACE_TIMEOUT_S
    headers: bool = True
    stream_name: str = ""
    checkpoint: str = ""
    """Of the query, as it was given to its writer, too; empty where it was not."""

    @property
    def queue_names(self) -> tuple[str, ...]:
        """Those that are named, and no patterns."""
        return tuple(queue for queue in self.queues if not is_pattern(queue))

    @property
    def has_pattern(self) -> bool:
        """Whether the queues that exist have to be looked at."""
        return self.expression is not None or any(map(is_pattern, self.queues))

    @property
    def alone(self) -> tuple[str, str] | None:
        """Path and queue, where there is one of each and can never be another."""
        if len(self.paths) == len(self.queues) == 1 and not self.has_pattern and not is_pattern(self.paths[0]):
            return self.paths[0], self.queues[0]
        return None

    def server_of(self, path: str) -> str | None:
        """The URL that was given for the space. Raises InvalidArgument for one URL and several spaces."""
        if isinstance(self.server, str) and (len(self.paths) > 1 or is_pattern(self.paths[0])):
            raise InvalidArgument(
                'option "server" is one URL and there may be several spaces: give JSON, {"/data/space": "xaq://host:port"}'
            )
        return self.server if self.server is None or isinstance(self.server, str) else self.server.get(path)


def is_pattern(text: str) -> bool:
    return not PATTERN.isdisjoint(text)


def parse(given: Mapping[str, str]) -> Options:
    """The options by their names in any case. Raises InvalidArgument for one that is missing, wrong or unknown."""
    given = {name.lower(): value for name, value in given.items()}
    _check_names(given)
    kafka, queues, expression = _queues(given)
    most = {name: _count(given, name) for name in ("maxmessagespertrigger", "maxoffsetspertrigger")}
    if None not in most.values():
        raise InvalidArgument('options "maxMessagesPerTrigger" and "maxOffsetsPerTrigger" mean the same: give one')
    for offsets, timestamp in (("startingoffsets", "startingtimestamp"), ("endingoffsets", "endingtimestamp")):
        if offsets in given and timestamp in given:
            raise InvalidArgument(f'options "{NAMES[offsets]}" and "{NAMES[timestamp]}" exclude each other: give one')
    return Options(
        paths=_paths(given),
        queues=queues,
        expression=expression,
        kafka=kafka,
        start=parse_positions("startingOffsets", given.get("startingoffsets"), EARLIEST, kafka=kafka),
        end=parse_positions("endingOffsets", given.get("endingoffsets"), LATEST, kafka=kafka),
        start_time_ms=_count(given, "startingtimestamp", 0),
        end_time_ms=_count(given, "endingtimestamp", 0),
        most_messages=most["maxmessagespertrigger"] or most["maxoffsetspertrigger"],
        most_bytes=_count(given, "maxbytespertrigger"),
        least_partitions=_count(given, "minpartitions"),
        consume=_one_of(given, "consume", (DELETE, ARCHIVE, KEEP)),
        server=_server(given),
        fails_on_loss=_switch(given, "failondataloss", True),
        skips_missing=_switch(given, "skipmissingspaces", False),
        space_timeout_s=_seconds(given, "spacetimeout", SPACE_TIMEOUT_S),
        headers=_switch(given, "includeheaders", not kafka),
        stream_name=_stream_name(given),
        checkpoint=given.get("checkpointlocation", "").strip(),
    )


def _check_names(given: Mapping[str, str]) -> None:
    ignored = tuple(name for name in given if name.startswith("kafka.") or name in OF_A_CONNECTION)
    if ignored:
        _tell_ignored(ignored)
    for name in given:
        if name not in NAMES and name not in ignored:
            raise InvalidArgument(_unknown(name))


@cache
def _tell_ignored(names: tuple[str, ...]) -> None:
    _log.warning("options of a Kafka connection mean nothing to a queue and are ignored: %s", ", ".join(names))


def _paths(given: Mapping[str, str]) -> tuple[str, ...]:
    """``path`` may name several, and ``load([...])`` gives ``paths`` as JSON."""
    several = json.loads(given["paths"]) if given.get("paths") else []
    named = [part.strip() for part in given.get("path", "").split(",") if part.strip()] + several
    if not named:
        raise InvalidArgument('option "path" is missing: the directory of the queue space, several, or a pattern')
    plain = (re.sub(r"^file:(?://)?(?=/)", "", path) for path in named)
    return tuple(dict.fromkeys(os.path.abspath(path) for path in plain))  # noqa: PTH100


def _queues(given: Mapping[str, str]) -> tuple[bool, tuple[str, ...], str | None]:
    """Whether Kafka's columns are wanted, names and shell patterns, and a regular expression."""
    asked = [name for name in ("queue", "subscribe", "subscribepattern") if given.get(name)]
    if len(asked) != 1:
        said = "is missing" if not asked else f'and "{NAMES[asked[1]]}" exclude each other'
        raise InvalidArgument(
            f'option "{NAMES[asked[0]] if asked else "queue"}" {said}: the name of the queue to read, several, or a '
            'pattern ("subscribe" or "subscribePattern" instead gives Kafka\'s columns)'
        )
    (name,) = asked
    if name == "subscribepattern":
        return True, (), _expression(given[name])
    queues = tuple(dict.fromkeys(part.strip() for part in given[name].split(",") if part.strip()))
    for queue in queues:
        check_queue_name(queue if name == "subscribe" or not is_pattern(queue) else _plain(queue))
    return name == "subscribe", queues, None


def _plain(pattern: str) -> str:
    """A name that the pattern could stand for, as far as its other letters go."""
    plain = re.sub(r"[*?\[\]!]", "x", pattern)
    return plain if QUEUE_NAME.fullmatch(plain) else pattern


def _expression(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise InvalidArgument(
            f'option "subscribePattern" is {text!r}, no regular expression ({error}): give one like "orders-.*"'
        ) from None
    return text


def _count(given: Mapping[str, str], name: str, least: int = 1) -> int | None:
    value = given.get(name)
    if value is None:
        return None
    if value.isascii() and value.isdigit() and least <= int(value) <= LAST_SEQ:
        return int(value)
    unit = "milliseconds since 1970" if name.endswith("timestamp") else f"a whole number from {least}"
    raise InvalidArgument(f'option "{NAMES[name]}" is {value!r}: {unit} is accepted')


def _one_of(given: Mapping[str, str], name: str, accepted: tuple[str, ...]) -> str | None:
    value = given.get(name)
    if value is None or value.strip().lower() in accepted:
        return value.strip().lower() if value else None
    raise InvalidArgument(f'option "{NAMES[name]}" is {value!r}: {", ".join(accepted)} are accepted')


def _switch(given: Mapping[str, str], name: str, default: bool) -> bool:
    said = _one_of(given, name, ("true", "false"))
    return default if said is None else said == "true"


def _seconds(given: Mapping[str, str], name: str, default: float) -> float:
    value = given.get(name)
    if value is None:
        return default
    number = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*s?\s*", value)
    if number is None or not 0 < float(number[1]) <= 86_400:
        raise InvalidArgument(f'option "{NAMES[name]}" is {value!r}: seconds above 0 and up to 86400 are accepted')
    return float(number[1])


def _server(given: Mapping[str, str]) -> str | Mapping[str, str] | None:
    text = given.get("server", "").strip()
    if not text.startswith("{"):
        return text or None
    try:
        return {str(path).rstrip("/"): str(url) for path, url in json.loads(text).items()}
    except ValueError as error:
        raise InvalidArgument(
            f'option "server" is no JSON ({error}): a URL is accepted, or {{"/data/space": "xaq://host:port"}}'
        ) from None


def _stream_name(given: Mapping[str, str]) -> str:
    name = given.get("streamname", "").strip() or f"spark@{gethostname()}"[:120]
    if len(name) > 120 or not name.isprintable() or "#" in name:
        raise InvalidArgument(
            f'option "streamName" is {name[:60]!r}: 1 to 120 printable characters without # are wanted'
        )
    return name


def _unknown(name: str) -> str:
    near = get_close_matches(name, NAMES, 1)
    hint = f" (did you mean {NAMES[near[0]]}?)" if near else ""
    return f'option "{name}" is unknown{hint}: {", ".join(NAMES.values())} are accepted'
