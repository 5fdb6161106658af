"""What a writer is told: checked once, before anything is written.

``path`` names the spaces, the first of which is the home of a batch's decision; ``server`` their servers' URLs, in the
same order, for spaces that are not reached by their path.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from xaqueue.batch import NUMBER_LIMIT, Batch
from xaqueue.endpoint import parse as parse_url
from xaqueue.errors import InvalidArgument
from xaqueue.message import check_queue_name
from xaqueue.spark.options import Given, count, option, plain, refused, space_path, table


class SinkSpace(NamedTuple):
    """One that is written to. At least one of the two is there."""

    path: str = ""
    server: str = ""

    def __str__(self) -> str:
        return self.path or self.server


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Where to, and under which name."""

    spaces: tuple[SinkSpace, ...]
    queue: str | None = option(
        "queue topic", lambda _, text: check_queue_name(text), None, "of every message; without it a column says"
    )
    application: str | None = option("txnAppId", plain, None, "the name of the query, instead of Spark's id")
    version: int | None = option("txnVersion", count, None, "the number of a batch query's batch", 0, NUMBER_LIMIT)
    checkpoint: str | None = option("checkpointLocation", plain, None, "of the query: Spark hands it over")
    query_name: str | None = option("queryName", plain, None, "of the query: Spark hands it over")
    ignored: tuple[str, ...] = ()
    """Options of a Kafka connection."""


OF_SPARK = ("checkpointLocation", "queryName")
NAMES = (
    *("path", "server"),
    *(name for row in table(SinkOptions).values() for name in row.names if name not in OF_SPARK),
)


def parse(written: Mapping[str, str], *, stream: bool) -> SinkOptions:
    """Raises InvalidArgument for an option that is missing, wrong or unknown."""
    given = Given(written, NAMES, "a writer", OF_SPARK)
    options = SinkOptions(_spaces(given), ignored=given.ignored, **given.fields(SinkOptions))
    if options.application is not None:
        Batch(options.application, 0)
    if stream and options.version is not None:
        raise InvalidArgument('option "txnVersion" is for df.write: the batches of a stream are numbered by Spark')
    if options.version is not None and options.application is None:
        raise InvalidArgument('option "txnVersion" needs "txnAppId": a number alone names no batch')
    if not stream and options.application is not None and options.version is None:
        raise InvalidArgument(
            'option "txnAppId" needs "txnVersion", the number of the batch: '
            "else what is written next would be taken for what was written before"
        )
    return options


def _spaces(given: Given) -> tuple[SinkSpace, ...]:
    paths, servers = _listed("path", given.text("path")), _listed("server", given.text("server"))
    if not paths and not servers:
        raise InvalidArgument('option "path" is missing: the directory of the queue space, or several with commas')
    for url in servers:
        parse_url(url)
    if paths and servers and len(paths) != len(servers):
        raise InvalidArgument(f'{len(paths)} in "path" and {len(servers)} in "server": one server for each is wanted')
    number = max(len(paths), len(servers))
    spaces = tuple(SinkSpace(*pair) for pair in zip(paths or [""] * number, servers or [""] * number, strict=True))
    if len(set(spaces)) != number:
        raise InvalidArgument('a space is named twice in "path" or "server": name each once')
    return spaces


def _listed(name: str, text: str | None) -> list[str]:
    if text is None:
        return []
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise refused(name, text, "one, or several with a comma between them, is wanted")
    return [space_path(name, part) for part in parts] if name == "path" else parts
