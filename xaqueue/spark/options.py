"""Options are checked once, before anything is planned, and a wrong one says what is right.

Spark hands options over as text, with names in lower case. ``queue`` asks for the house's columns and ``subscribe`` or
``subscribePattern`` for Kafka's, with Kafka's meaning of offsets; all other options mean the same with both.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from socket import gethostname

from xaqueue.errors import InvalidArgument
from xaqueue.message import QUEUE_NAME, check_queue_name
from xaqueue.spark.option_text import Given, space_path
from xaqueue.spark.positions import EARLIEST, LATEST, Positions, parse_positions

NAMES = (
    *("path", "paths", "queue", "subscribe", "subscribePattern"),
    *("startingOffsets", "endingOffsets", "startingTimestamp", "endingTimestamp"),
    *("maxMessagesPerTrigger", "maxOffsetsPerTrigger", "maxBytesPerTrigger", "minPartitions"),
    *("consume", "server", "failOnDataLoss", "skipMissingSpaces", "spaceTimeout", "includeHeaders"),
    *("streamName", "checkpointLocation"),
)
DELETE, ARCHIVE, KEEP = "delete", "archive", "keep"
SPACE_TIMEOUT_S = 10.0
PATTERN = frozenset("*?[")


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
    ignored: tuple[str, ...] = ()
    """Options of a Kafka connection."""

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


def parse(written: Mapping[str, str]) -> Options:
    """The options by their names in any case. Raises InvalidArgument for one that is missing, wrong or unknown."""
    given = Given(written, NAMES, "a reader")
    kafka, queues, expression = _queues(given)
    most = given.one_meaning("maxMessagesPerTrigger", "maxOffsetsPerTrigger")
    for offsets, timestamp in (("startingOffsets", "startingTimestamp"), ("endingOffsets", "endingTimestamp")):
        if offsets in given and timestamp in given:
            raise InvalidArgument(f'options "{offsets}" and "{timestamp}" exclude each other: give one')
    return Options(
        paths=_paths(given),
        queues=queues,
        expression=expression,
        kafka=kafka,
        start=parse_positions("startingOffsets", given.text("startingOffsets"), EARLIEST, kafka=kafka),
        end=parse_positions("endingOffsets", given.text("endingOffsets"), LATEST, kafka=kafka),
        start_time_ms=given.time_ms("startingTimestamp"),
        end_time_ms=given.time_ms("endingTimestamp"),
        most_messages=given.count(most) if most else None,
        most_bytes=given.size_bytes("maxBytesPerTrigger"),
        least_partitions=given.count("minPartitions"),
        consume=given.one_of("consume", (DELETE, ARCHIVE, KEEP)),
        server=_server(given),
        fails_on_loss=given.switch("failOnDataLoss", True),
        skips_missing=given.switch("skipMissingSpaces", False),
        space_timeout_s=given.seconds("spaceTimeout", SPACE_TIMEOUT_S, longest_s=86_400.0),
        headers=given.switch("includeHeaders", not kafka),
        stream_name=_stream_name(given),
        checkpoint=(given.text("checkpointLocation") or "").strip(),
        ignored=given.ignored,
    )


def _paths(given: Given) -> tuple[str, ...]:
    """``path`` may name several, and ``load([...])`` gives ``paths`` as JSON."""
    several = json.loads(given.text("paths") or "[]")
    named = [part.strip() for part in (given.text("path") or "").split(",") if part.strip()] + several
    if not named:
        raise InvalidArgument('option "path" is missing: the directory of the queue space, several, or a pattern')
    return tuple(dict.fromkeys(space_path("path", path) for path in named))


def _queues(given: Given) -> tuple[bool, tuple[str, ...], str | None]:
    """Whether Kafka's columns are wanted, names and shell patterns, and a regular expression."""
    asked = [name for name in ("queue", "subscribe", "subscribePattern") if given.text(name)]
    if len(asked) != 1:
        said = "is missing" if not asked else f'and "{asked[1]}" exclude each other'
        raise InvalidArgument(
            f'option "{asked[0] if asked else "queue"}" {said}: the name of the queue to read, several, or a '
            'pattern ("subscribe" or "subscribePattern" instead gives Kafka\'s columns)'
        )
    (name,) = asked
    text = given.text(name) or ""
    if name == "subscribePattern":
        return True, (), _expression(text)
    queues = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
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


def _server(given: Given) -> str | Mapping[str, str] | None:
    text = (given.text("server") or "").strip()
    if not text.startswith("{"):
        return text or None
    try:
        return {space_path("server", str(path)): str(url) for path, url in json.loads(text).items()}
    except ValueError as error:
        raise InvalidArgument(
            f'option "server" is no JSON ({error}): a URL is accepted, or {{"/data/space": "xaq://host:port"}}'
        ) from None


def _stream_name(given: Given) -> str:
    name = (given.text("streamName") or "").strip() or f"spark@{gethostname()}"[:120]
    if len(name) > 120 or not name.isprintable() or "#" in name:
        raise InvalidArgument(
            f'option "streamName" is {name[:60]!r}: 1 to 120 printable characters without # are wanted'
        )
    return name
