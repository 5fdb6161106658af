"""Options are checked once, before anything is planned, and a wrong one says what is right.

Spark hands options over as text, with names in lower case. ``queue`` asks for the house's columns and ``subscribe``,
``subscribePattern`` or ``assign`` for Kafka's, with Kafka's meaning of offsets and its defaults of where to begin; all
other options mean the same with both.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from socket import gethostname

from xaqueue.errors import InvalidArgument
from xaqueue.message import QUEUE_NAME, check_queue_name
from xaqueue.space.model.layout import LAST_SEQ
from xaqueue.spark.option_text import Given, space_path
from xaqueue.spark.plan import Tasks
from xaqueue.spark.positions import EARLIEST, LATEST, Positions, json_object, positions

NAMES = (
    *("path", "paths", "queue", "subscribe", "subscribePattern", "assign"),
    *("startingOffsets", "startingOffsetsByTimestamp", "startingOffsetsByTimestampStrategy", "startingTimestamp"),
    *("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp"),
    *("maxMessagesPerTrigger", "maxOffsetsPerTrigger", "maxBytesPerTrigger"),
    *("minMessagesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"),
    *("minPartitions", "maxRecordsPerPartition"),
    *("consume", "server", "failOnDataLoss", "skipMissingSpaces", "spaceTimeout"),
    *("includeHeaders", "includeAll"),
    *("streamName", "checkpointLocation"),
)
DELETE, ARCHIVE, KEEP = "delete", "archive", "keep"
SPACE_TIMEOUT_S = 10.0
MOST_DELAY_S = 15 * 60.0
"""For how long ``minOffsetsPerTrigger`` may hold a batch up, as Kafka's."""
ERROR = "error"
PATTERN = frozenset("*?[")
ASSIGN = '{"orders": [0]}'


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
    needs_message_from_start: bool = False
    """A moment to begin at after which there is no message is an error, and not the end of the queue."""
    assigned: Mapping[str, frozenset[str]] | None = None
    """In which spaces a queue is read, where it isn't all of them."""
    most_messages: int | None = None
    most_bytes: int | None = None
    least_messages: int | None = None
    """A batch waits for so many, but no longer than ``most_delay_s``."""
    most_delay_s: float = MOST_DELAY_S
    least_partitions: int | None = None
    most_of_partition: int | None = None
    consume: str = KEEP
    """delete, archive or keep: what becomes of messages that were read. Who wants them gone says so."""
    server: str | Mapping[str, str] | None = None
    """A URL, or several by the spaces' paths."""
    fails_on_loss: bool = True
    skips_missing: bool = False
    space_timeout_s: float = SPACE_TIMEOUT_S
    headers: bool = True
    everything: bool = False
    """A column for each property."""
    stream_name: str = ""
    checkpoint: str = ""
    """Of the query, as it was given to its writer, too; empty where it was not."""
    tasks: Tasks = field(default_factory=Tasks)
    ignored: tuple[str, ...] = ()
    """Options of a Kafka connection."""

    @property
    def queue_names(self) -> tuple[str, ...]:
        """Those that are named, and no patterns."""
        return tuple(queue for queue in self.queues if not is_pattern(queue))

    def names_in(self, path: str) -> tuple[str, ...]:
        """The same, of those that are read in this space."""
        return tuple(name for name in self.queue_names if self.assigned is None or path in self.assigned[name])

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


def parse(written: Mapping[str, str], *, stream: bool = False) -> Options:
    """The options by their names in any case. Raises InvalidArgument for one that is missing, wrong or unknown."""
    given = Given(written, NAMES, "a reader")
    kafka, queues, expression = _queues(given)
    paths = _paths(given)
    most = given.one_meaning("maxMessagesPerTrigger", "maxOffsetsPerTrigger")
    least = given.one_meaning("minMessagesPerTrigger", "minOffsetsPerTrigger")
    most_messages, least_messages = given.count(most) if most else None, given.count(least) if least else None
    if (least_messages or 0) > (most_messages or LAST_SEQ):
        raise InvalidArgument(f'option "{least}" is {least_messages}, more than {most_messages} of "{most}"')
    everything = given.switch("includeAll", False)
    strategy = given.one_of("startingOffsetsByTimestampStrategy", (ERROR, LATEST))
    return Options(
        paths=paths,
        queues=queues,
        expression=expression,
        kafka=kafka,
        start=positions(given, "starting", LATEST if kafka and stream else EARLIEST, kafka=kafka),
        end=positions(given, "ending", LATEST, kafka=kafka),
        needs_message_from_start=(strategy or (ERROR if kafka else LATEST)) == ERROR,
        assigned=_assigned(given, paths) if "assign" in given else None,
        most_messages=most_messages,
        most_bytes=given.size_bytes("maxBytesPerTrigger"),
        least_messages=least_messages,
        most_delay_s=given.seconds("maxTriggerDelay", MOST_DELAY_S, bare_s=0.001),
        least_partitions=given.count("minPartitions"),
        most_of_partition=given.count("maxRecordsPerPartition"),
        consume=given.one_of("consume", (DELETE, ARCHIVE, KEEP)) or KEEP,
        server=_server(given),
        fails_on_loss=given.switch("failOnDataLoss", True),
        skips_missing=given.switch("skipMissingSpaces", False),
        space_timeout_s=given.seconds("spaceTimeout", SPACE_TIMEOUT_S, longest_s=86_400.0),
        headers=given.switch("includeHeaders", not kafka or everything),
        everything=everything,
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
    asked = [name for name in ("queue", "subscribe", "subscribePattern", "assign") if given.text(name)]
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
    if name == "assign":
        text = ",".join(json_object(name, text, ASSIGN))
    queues = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    for queue in queues:
        check_queue_name(queue if name != "queue" or not is_pattern(queue) else _plain(queue))
    return name != "queue", queues, None


def _assigned(given: Given, paths: tuple[str, ...]) -> dict[str, frozenset[str]]:
    """A partition is the number of a space, in the order of their paths; so all spaces have to be named."""
    if any(map(is_pattern, paths)):
        raise InvalidArgument('option "assign" numbers the spaces of "path": name them one by one there, no pattern')
    ordered = sorted(paths)
    found = {}
    for queue, numbers in json_object("assign", given.text("assign") or "", ASSIGN).items():
        if not isinstance(numbers, list) or not all(type(n) is int and 0 <= n < len(paths) for n in numbers):
            raise InvalidArgument(
                f'option "assign": {queue!r}: {numbers!r} is refused: {ASSIGN} is accepted, with numbers of spaces, '
                f"0 to {len(paths) - 1} here"
            )
        found[queue] = frozenset(ordered[number] for number in numbers)
    return found


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
