"""What a reader is given: checked once, before anything is planned.

``queue`` asks for the house's columns and ``subscribe``, ``subscribePattern`` or ``assign`` for Kafka's, with Kafka's
meaning of offsets and its defaults of where to begin; all other options mean the same with both.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from socket import gethostname

from xaqueue.core.model.layout import LAST_SEQ
from xaqueue.endpoint import Endpoint, is_url
from xaqueue.endpoint import parse as parse_url
from xaqueue.errors import InvalidArgument
from xaqueue.message import QUEUE_NAME, check_queue_name
from xaqueue.spark import options as kinds
from xaqueue.spark.options import RawOptions, is_server, json_object, option, places, refused, space_path, table
from xaqueue.spark.source.plan import EARLIEST, LATEST, Bounds, Tasks, bounds

DELETE, ARCHIVE, KEEP = "delete", "archive", "keep"
AUTO, FILES, SERVER = "auto", "files", "server"
SPACE_TIMEOUT_S = 10.0
MOST_DELAY_S = 15 * 60.0
"""For how long ``minOffsetsPerTrigger`` may hold a batch up, as Kafka's."""
ERROR = "error"
PATTERN = frozenset("*?[")
ASSIGN = '{"orders": [0]}'


def stripped(_: str, text: str) -> str:
    return text.strip()


def stream_name(name: str, text: str) -> str:
    raw = text.strip()
    if len(raw) > 120 or not raw.isprintable() or "#" in raw:
        raise refused(name, raw[:60], "1 to 120 printable characters without # are wanted")
    return raw


def server(name: str, text: str) -> str | Mapping[str, str] | None:
    if not text.strip().startswith("{"):
        return text.strip() or None
    example = 'a URL is accepted, or {"/data/space": "xaq://host:port"}'
    try:
        return {space_path(name, str(path)): str(url) for path, url in json.loads(text).items()}
    except ValueError as error:
        raise InvalidArgument(f'option "{name}" is no JSON ({error}): {example}') from None


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What to read, and how. Paths are absolute; paths and queues may be shell patterns."""

    paths: tuple[str, ...]
    queues: tuple[str, ...]
    expression: str | None
    """A regular expression for queues, instead of ``queues``."""
    kafka: bool
    """Columns and offsets are Kafka's."""
    start: Bounds
    end: Bounds
    assigned: Mapping[str, frozenset[str]] | None
    """In which spaces a queue is read, where it isn't all of them."""
    ignored: tuple[str, ...]
    """Options of a Kafka connection."""
    tasks: Tasks
    urls: Mapping[str, str] = field(default_factory=dict)
    """Of the spaces that are read by their servers, with what lets us in there, which is no part of what they are
    named by."""

    without_message: str = option(
        "startingOffsetsByTimestampStrategy", kinds.word, "", "no message since", ERROR, LATEST
    )
    most_messages: int | None = option("maxMessagesPerTrigger maxOffsetsPerTrigger", kinds.count, None, "of a batch")
    most_bytes: int | None = option("maxBytesPerTrigger", kinds.size_bytes, None, "of a batch")
    least_messages: int | None = option(
        "minMessagesPerTrigger minOffsetsPerTrigger", kinds.count, None, "a batch waits for"
    )
    most_delay_s: float = option("maxTriggerDelay", kinds.seconds, MOST_DELAY_S, "a batch waits no longer", 0.001)
    least_partitions: int | None = option("minPartitions", kinds.count, None, "tasks of a batch")
    most_of_partition: int | None = option("maxRecordsPerPartition", kinds.count, None, "messages of a task")
    consume: str = option("consume", kinds.word, KEEP, "what becomes of messages that were read", DELETE, ARCHIVE, KEEP)
    server: str | Mapping[str, str] | None = option("server", server, None, "a URL, or several by the spaces' paths")
    read_from: str = option("readFrom", kinds.word, AUTO, "who reads the files: tasks, or servers", AUTO, FILES, SERVER)
    fails_on_loss: bool = option("failOnDataLoss", kinds.switch, True, "an error where messages may be missing")
    skips_missing: bool = option("skipMissingSpaces", kinds.switch, False, "goes on without spaces that are not there")
    space_timeout_s: float = option(
        "spaceTimeout", kinds.seconds, SPACE_TIMEOUT_S, "a space answers within", 1.0, 86_400.0
    )
    creates_queues: bool = option("createQueues", kinds.switch, False, "waits for queues that are not there yet")
    wants_filters: bool = option("pushFilters", kinds.switch, False, "what the query's filters leave out is not read")
    headers: bool = option("includeHeaders", kinds.switch, True, "a column of headers; not by default among Kafka's")
    everything: bool = option("includeAll", kinds.switch, False, "a column for each property")
    stream_name: str = option("streamName", stream_name, "", "who consumes, to those who ask a queue")
    checkpoint: str = option("checkpointLocation", stripped, "", "as the query's writer has it")

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
    def needs_message(self) -> bool:
        """Whether a moment to begin at after which there is no message is an error."""
        return (self.without_message or (ERROR if self.kafka else LATEST)) == ERROR

    @property
    def removes(self) -> bool:
        return self.consume in (DELETE, ARCHIVE)

    @property
    def is_alone(self) -> bool:
        """It names one queue of one space, and there can never be another."""
        return len(self.paths) == len(self.queues) == 1 and not self.has_pattern and not is_pattern(self.paths[0])

    def server_of(self, path: str) -> str | None:
        """The URL that was given for the space. Raises InvalidArgument for one URL and several spaces."""
        if isinstance(self.server, str) and (len(self.paths) > 1 or is_pattern(self.paths[0])):
            raise InvalidArgument(
                'option "server" is one URL and there may be several spaces: give JSON, {"/data/space": "xaq://host:port"}'
            )
        if path in self.urls:
            return self.urls[path]
        return self.server if self.server is None or isinstance(self.server, str) else self.server.get(path)

    def url_of(self, path: str) -> str:
        """Of the server that reads this space; empty where its files are read. Raises InvalidArgument."""
        if self.read_from == SERVER and not is_url(path):
            url = self.server_of(path)
            if not url:
                raise InvalidArgument(
                    f'option "readFrom" is server, and nothing says which one serves {path}: give its URL as option '
                    '"server", or as "path"'
                )
            return url
        return self.urls.get(path, "")


NAMES = (
    *("path", "paths", "queue", "subscribe", "subscribePattern", "assign"),
    *("startingOffsets", "startingOffsetsByTimestamp", "startingTimestamp"),
    *("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp"),
    *(name for row in table(SourceOptions).values() for name in row.names),
)


def is_pattern(text: str) -> bool:
    return not PATTERN.isdisjoint(text) and not is_url(text)


def parse(written: Mapping[str, str], *, stream: bool = False, tasks: Tasks | None = None) -> SourceOptions:
    """The options by their names in any case. Raises InvalidArgument for one that is missing, wrong or unknown."""
    raw = RawOptions(written, NAMES, "a reader")
    kafka, queues, expression = _queues(raw)
    paths, urls = _paths(raw)
    found = raw.fields(SourceOptions)
    if urls and found.get("read_from") == FILES:
        raise InvalidArgument(f'option "readFrom" is files, and {next(iter(urls))} is a server: name the directory')
    most, least = found.get("most_messages", LAST_SEQ), found.get("least_messages", 0)
    if least > most:
        rows = table(SourceOptions)
        more, fewer = raw.name_of(*rows["least_messages"].names), raw.name_of(*rows["most_messages"].names)
        raise InvalidArgument(f'option "{more}" is {least}, more than {most} of "{fewer}"')
    found.setdefault("headers", not kafka or found.get("everything", False))
    found["stream_name"] = found.get("stream_name") or f"spark@{gethostname()}"[:120]
    return SourceOptions(
        paths,
        queues,
        expression,
        kafka,
        start=bounds(raw, "starting", LATEST if kafka and stream else EARLIEST, kafka=kafka),
        end=bounds(raw, "ending", LATEST, kafka=kafka),
        assigned=_assigned(raw, paths) if "assign" in raw else None,
        ignored=raw.ignored,
        tasks=tasks or Tasks(),
        urls=urls,
        **found,
    )


def _paths(raw: RawOptions) -> tuple[tuple[str, ...], dict[str, str]]:
    """``path`` may name several, and ``load([...])`` gives ``paths`` as JSON. Also the URLs of those that are servers,
    by what they are named by: a stream's offsets do not change with a token's file."""
    listed = json.loads(raw.text("paths") or "[]")
    parts = [*filter(None, places(raw.text("path") or "")), *listed]
    if not parts:
        raise InvalidArgument('option "path" is missing: the directory of the queue space, several, or a pattern')
    named, urls = dict[str, None](), {}
    for part in parts:
        if is_server(part):
            endpoint = parse_url(part)
            part = str(Endpoint(endpoint.scheme, endpoint.path, endpoint.host, endpoint.port, others=endpoint.others))
            urls[part] = str(endpoint)
        else:
            part = space_path("path", part)
        named[part] = None
    return tuple(named), urls


def _queues(raw: RawOptions) -> tuple[bool, tuple[str, ...], str | None]:
    """Whether Kafka's columns are wanted, names and shell patterns, and a regular expression."""
    asked = [name for name in ("queue", "subscribe", "subscribePattern", "assign") if raw.text(name)]
    if len(asked) != 1:
        said = "is missing" if not asked else f'and "{asked[1]}" exclude each other, so give one'
        raise InvalidArgument(
            f'option "{asked[0] if asked else "queue"}" {said}: the name of the queue to read, several, or a '
            'pattern ("subscribe" or "subscribePattern" instead gives Kafka\'s columns)'
        )
    (name,) = asked
    text = raw.text(name) or ""
    if name == "subscribePattern":
        try:
            re.compile(text)
        except re.error as error:
            raise refused(name, text, f'no regular expression ({error}): give one like "orders-.*"') from None
        return True, (), text
    if name == "assign":
        text = ",".join(json_object(name, text, ASSIGN))
    queues = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    for queue in queues:
        letters = re.sub(r"[*?\[\]!]", "x", queue) if name == "queue" and is_pattern(queue) else queue
        check_queue_name(letters if QUEUE_NAME.fullmatch(letters) else queue)
    return name != "queue", queues, None


def _assigned(raw: RawOptions, paths: tuple[str, ...]) -> dict[str, frozenset[str]]:
    """A partition is the number of a space, in the order of their paths; so all spaces have to be named."""
    if any(map(is_pattern, paths)):
        raise InvalidArgument('option "assign" numbers the spaces of "path": name them one by one there, no pattern')
    ordered = sorted(paths)
    found = {}
    for queue, numbers in json_object("assign", raw.text("assign") or "", ASSIGN).items():
        if not isinstance(numbers, list) or not all(type(n) is int and 0 <= n < len(paths) for n in numbers):
            raise InvalidArgument(
                f'option "assign": {queue!r}: {numbers!r} is refused: {ASSIGN} is accepted, with numbers of spaces, '
                f"0 to {len(paths) - 1} here"
            )
        found[queue] = frozenset(ordered[number] for number in numbers)
    return found
