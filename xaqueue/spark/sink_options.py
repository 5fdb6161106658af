"""A writer's options are checked once, before anything is written, and a wrong one says what is right.

Spark hands options over as text, with names in lower case. ``path`` names the spaces, the first of which is the home of
a batch's decision; ``server`` their servers' URLs, in the same order, for spaces that are not reached by their path.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from urllib.parse import unquote, urlsplit

from xaqueue.batch import NUMBER_LIMIT, Batch
from xaqueue.errors import InvalidArgument
from xaqueue.message import check_queue_name
from xaqueue.rpc.endpoint import parse as parse_url
from xaqueue.spark.checkpoint import local_directory

NAMES = {
    "path": "path",
    "server": "server",
    "queue": "queue",
    "topic": "topic",
    "txnappid": "txnAppId",
    "txnversion": "txnVersion",
    "checkpointlocation": "checkpointLocation",
    "queryname": "queryName",
}
"""As Spark hands them over, and as people write them."""
OF_SPARK = ("checkpointlocation", "queryname")
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


def parse(given: Mapping[str, str], *, stream: bool) -> SinkOptions:
    """Raises InvalidArgument for an option that is missing, wrong or unknown."""
    given = {name.lower(): value for name, value in given.items()}
    for name in given:
        if name not in NAMES:
            raise InvalidArgument(_unknown(name))
    if "queue" in given and "topic" in given:
        raise InvalidArgument('options "queue" and "topic" mean the same: give one of them')
    queue = given.get("queue", given.get("topic"))
    application, version = given.get("txnappid"), _version(given.get("txnversion"))
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
        spaces=_spaces(given.get("path"), given.get("server")),
        queue=check_queue_name(queue) if queue is not None else None,
        application=application,
        version=version,
        checkpoint=given.get("checkpointlocation"),
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
    return [os.path.abspath(_local(part)) for part in parts] if name == "path" else parts  # noqa: PTH100


def _local(path: str) -> str:
    """A path, also where it is written as ``file:/...``."""
    location = urlsplit(path)
    return unquote(location.path) if location.scheme == "file" else path


def _version(value: str | None) -> int | None:
    if value is None:
        return None
    if value.isascii() and value.isdigit() and int(value) <= NUMBER_LIMIT:
        return int(value)
    raise InvalidArgument(f'option "txnVersion" is {value!r}: a whole number from 0 is wanted')


def _unknown(name: str) -> str:
    near = get_close_matches(name, NAMES, 1)
    hint = f" (did you mean {NAMES[near[0]]}?)" if near else ""
    known = ", ".join(written for name, written in NAMES.items() if name not in OF_SPARK)
    return f'option "{name}" is unknown to a writer{hint}: {known} are accepted'
