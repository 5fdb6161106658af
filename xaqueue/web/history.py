"""How many messages each queue had in the last hour, and how many had come: in memory alone."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from typing import Any

EVERY_S = 20.0
KEPT = 181
"""Points of time: an hour."""
THIN = 3
"""Of so many points one is shown where all queues are."""


class History:
    """Made again with each point, so that whoever reads it meanwhile sees one of the two."""

    def __init__(self) -> None:
        self._kept: tuple[array[float], dict[str, tuple[array[int], array[int]]]] = array("d"), {}

    def add(self, now_s: float, queues: Iterable[Mapping[str, Any]]) -> None:
        """queues: as in the answer of the verb ``status``; what is not there any more is forgotten."""
        at, before = self._kept
        none = array("q"), array("q")
        found: dict[str, tuple[array[int], array[int]]] = {}
        for queue in queues:
            depth, came = before.get(queue["name"], none)
            numbers = queue["depth"], queue["counters"]["enqueued"]
            found[queue["name"]] = _with(depth, numbers[0]), _with(came, numbers[1])
        self._kept = _with(at, now_s), found

    def shown(self, queue: str | None = None) -> dict[str, Any]:
        """Times in seconds, and the newest numbers of each queue, or of one: a queue that is new has fewer."""
        at, queues = self._kept
        some, step = (queues, THIN) if queue is None else ({queue: queues[queue]} if queue in queues else {}, 1)

        def thin(numbers: array[Any]) -> list[Any]:
            return numbers[::-step].tolist()[::-1]

        rows = {name: {"depth": thin(depth), "came": thin(came)} for name, (depth, came) in some.items()}
        return {"every_s": EVERY_S, "at": thin(at), "queues": rows}


def _with(numbers: array[Any], newest: float) -> array[Any]:
    kept = numbers[1 - KEPT :]
    kept.append(newest)
    return kept
