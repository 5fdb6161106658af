"""A writer's options are checked once, before anything is written, and a wrong one says what is right.

Spark hands options over as text, with names in lower case. ``path`` names the spaces, the first of which is the home of
a batch's decision; ``server`` their servers' URLs, in the same order, for spaces that are not reached by their path.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from xaqueue.batch import NUMBER_LIMIT, Batch
from xaqueue.endpoint import parse as parse_url
from xaqueue.errors import InvalidArgument
from xaqueue.message import check_queue_name
from xaqueue.spark.checkpoint import local_directory
from xaqueue.spark.option_text import Given, space_path

NAMES = ("path", "server", "queue", "topic", "txnAppId", "txnVersion")
OF_SPARK = ("checkpointLocation", "queryName")
"""What Spark hands over by itself: options of the query."""


@dataclass(frozen=True, slots=True)
class Space:
    """One that is written to. At least one of the two is there."""

    path: str = ""
    server: str = ""

    def __str__(self) -> str:
        return self.path or self.server


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Where to, and under which name."""

    spaces: tuple[Space, ...]
    queue: str | None = None
    """Of every message; without it a column says."""
    application: str | None = None
    """``txnAppId``: the name of the query, instead of Spark's id."""
    version: int | None = None
    """``txnVersion``: the number of the batch that a batch query writes."""
    checkpoint: str | None = None
    query_name: str | None = None
    ignored: tuple[str, ...] = ()
    """Options of a Kafka connection."""


def parse(given: Mapping[str, str], *, stream: bool) -> SinkOptions:
    """Raises InvalidArgument for an option that is missing, wrong or unknown."""
    options = Given(given, NAMES, "a writer", OF_SPARK)
    named = options.one_meaning("queue", "topic")
    queue = options.text(named) if named else None
    application, version = options.text("txnAppId"), options.count("txnVersion", 0, NUMBER_LIMIT)
    if application is not None:
        Batch(application, 0)
    if stream and version is not None:
        raise InvalidArgument('option "txnVersion" is for df.write: the batches of a stream are numbered by Spark')
    if version is not None and application is None:
        raise InvalidArgument('option "txnVersion" needs "txnAppId": a number alone names no batch')
    if not stream and application is not None and version is None:
        raise InvalidArgument(
            'option "txnAppId" needs "txnVersion", the number of the batch: '
            "else what is written next would be taken for what was written before"
        )
    return SinkOptions(
        spaces=_spaces(options.text("path"), options.text("server")),
        queue=check_queue_name(queue) if queue is not None else None,
        application=application,
        version=version,
        checkpoint=options.text("checkpointLocation"),
        query_name=options.text("queryName"),
        ignored=options.ignored,
    )


def query_in(checkpoint: str) -> str | None:
    """The query's id, from its checkpoint; None for one that is not on this machine, or not begun."""
    directory = local_directory(checkpoint)
    if directory is None:
        return None
    try:
        found = json.loads((directory / "metadata").read_text("utf-8"))["id"]
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return found if isinstance(found, str) else None


def _spaces(path: str | None, server: str | None) -> tuple[Space, ...]:
    paths, servers = _listed("path", path), _listed("server", server)
    if not paths and not servers:
        raise InvalidArgument('option "path" is missing: the directory of the queue space, or several with commas')
    for url in servers:
        parse_url(url)
    if paths and servers and len(paths) != len(servers):
        raise InvalidArgument(f'{len(paths)} in "path" and {len(servers)} in "server": one server for each is wanted')
    count = max(len(paths), len(servers))
    spaces = tuple(Space(*pair) for pair in zip(paths or [""] * count, servers or [""] * count, strict=True))
    if len(set(spaces)) != count:
        raise InvalidArgument('a space is named twice in "path" or "server": name each once')
    return spaces


def _listed(name: str, value: str | None) -> list[str]:
    if value is None:
        return []
    parts = [part.strip() for part in value.split(",")]
    if not all(parts):
        raise InvalidArgument(f'option "{name}" is {value!r}: one, or several with a comma between them, is wanted')
    return [space_path(name, part) for part in parts] if name == "path" else parts
