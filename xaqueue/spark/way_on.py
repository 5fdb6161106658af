"""What the offsets of a batch say to the sink: how a query goes on behind them, and which queues it reads.

Where a checkpoint does not know any more what its query has written last, a new one begins where the offsets of that
batch end, so that every message comes once.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

Document = dict[str, Any]


def way_on(offsets: str) -> str:
    """For an error, of what the last batch was made from: a line of JSON a source; empty where that says nothing.

    It is whole, however many queues there are: nothing else remembers where they were.
    """
    told = "; ".join(filter(None, map(_way, _documents(offsets))))
    return f": {told}" if told else ""


def queues_read(offsets: str) -> Iterator[tuple[str, str, Mapping[str, int]]]:
    """Of sources that are queue spaces: the path, the beginning of the id, and the queues with their numbers."""
    for document in filter(_is_of_queues, _documents(offsets)):
        for path, queues in document["spaces"].items():
            yield path, document.get("ids", {}).get(path, ""), queues


def _documents(offsets: str) -> Iterator[Document]:
    for line in offsets.splitlines():
        try:
            document = json.loads(line)
        except ValueError:
            continue
        if isinstance(document, dict):
            yield document


def _is_of_queues(document: Document) -> bool:
    return "stream" in document and isinstance(document.get("spaces"), dict)


def _way(document: Document) -> str:
    if _is_of_queues(document):
        return _behind(document["spaces"])
    if document and all(
        isinstance(part, dict) for part in document.values()
    ):  # as Kafka's source writes and takes them
        return f"with the option startingOffsets={_compact(document)}"
    return ""


def _behind(spaces: Mapping[str, Mapping[str, int]]) -> str:
    """A number is the last that was read, and with ``subscribe`` the first that is wanted, by the space's number."""
    wanted: dict[str, dict[str, int]] = {}
    releases = []
    for number, (path, queues) in enumerate(spaces.items()):
        for queue, seq in queues.items():
            wanted.setdefault(queue, {})[str(number)] = seq + 1
            if seq:
                releases.append(f"`xaqueue release {queue} --through {seq} --space {shlex.quote(path)}`")
    after = f", after {', '.join(releases)}" if releases else ""
    return (
        f"where the source keeps its messages, with the option startingOffsets={_compact(spaces)} (with subscribe "
        f"{_compact(wanted)}); where it consumes them, at the earliest{after}"
    )


def _compact(document: object) -> str:
    return json.dumps(document, separators=(",", ":"))
