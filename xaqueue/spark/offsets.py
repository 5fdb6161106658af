"""A stream's offset says of each queue of each space how far it was read, and whose stream it is.

    {"stream": "name#uuid", "spaces": {"/data/one": {"orders": 17}}, "ids": {"/data/one": "0a1b2c3d"},
     "consumed": {"/data/one": {"orders": 9}}, "first": {"/data/one": {"orders": 0}}}

``ids`` says which spaces these were: the numbers mean nothing in another one that is under the same path by now.
``consumed`` is how far the queues were consumed when the batch was planned: a space where they are not any more was
restored from an older copy, in which the same numbers are given to other messages.
``first`` is where those queues began that are read for the first time in the batch that ends here: what a new query
answers as its initial offset is not in the checkpoint, and may be another after a crash. Spark sees that there is
nothing new by the very same text, so an offset that stays is given back as it came. ``{"seq": N}`` was written when a
stream had one queue of one space and belonged to nobody.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from xaqueue.errors import InvalidArgument, SpaceError

Numbers = Mapping[str, Mapping[str, int]]
"""Sequence numbers by the space's path and the queue."""


@dataclass(frozen=True, slots=True)
class Offsets:
    """What such a text says. ``initial``: a new query's, before its first batch."""

    stream: str
    """Empty: read by a version that did not reserve what it read."""
    spaces: Numbers
    first: Numbers = field(default_factory=dict)
    initial: bool = False
    behind: bool = False
    """It was not begun at the front of its queues: there may be messages before that it never reads."""
    ids: Mapping[str, str] = field(default_factory=dict)
    """The beginnings of the spaces' ids, as far as they are known."""
    consumed: Numbers = field(default_factory=dict)

    def at(self, path: str, queue: str) -> int | None:
        return self.spaces.get(path, {}).get(queue)

    def advanced(
        self, stream: str, ends: Numbers, begun: Numbers, ids: Mapping[str, str], consumed: Numbers
    ) -> Offsets:
        """With these numbers read on to; ``begun``: where those begin that are not in here yet."""
        first = merged(self.spaces, begun) if self.initial else begun
        spaces = merged(merged(self.spaces, begun), ends)
        known = {path: self.ids.get(path) or ids[path] for path in spaces if path in self.ids or path in ids}
        return Offsets(stream, spaces, first, False, self.behind, known, merged(self.consumed, consumed))

    def check_spaces(self, ids: Mapping[str, str]) -> None:
        """SpaceError where one of these ids is another than that of the space that was read."""
        for path, found in ids.items():
            if found != self.ids.get(path, found):
                raise SpaceError(
                    f"{path} is another space than the one that the stream has read there ({found} and not "
                    f"{self.ids[path]}): bring that one back, or start another checkpoint"
                )

    def document(self) -> dict[str, Any]:
        """What is given to Spark."""
        document: dict[str, Any] = {"stream": self.stream, "spaces": {p: dict(q) for p, q in self.spaces.items()}}
        if self.ids:
            document["ids"] = dict(self.ids)
        if self.consumed:
            document["consumed"] = {path: dict(queues) for path, queues in self.consumed.items()}
        if self.first:
            document["first"] = {path: dict(queues) for path, queues in self.first.items()}
        if self.initial:
            document["initial"] = True
        if self.behind:
            document["behind"] = True
        return document


def merged(one: Numbers, other: Numbers) -> dict[str, dict[str, int]]:
    """Both, the other's where both have one; what is new comes last, so that places in the order stay."""
    both = {path: dict(queues) for path, queues in one.items()}
    for path, queues in other.items():
        both.setdefault(path, {}).update(queues)
    return both


def read(document: Mapping[str, Any], alone: tuple[str, str] | None) -> Offsets:
    """``alone``: path and queue of a stream that has one. Raises InvalidArgument."""
    if "spaces" in document:
        first, initial = document.get("first", {}), bool(document.get("initial"))
        behind, ids, consumed = bool(document.get("behind")), document.get("ids", {}), document.get("consumed", {})
        return Offsets(str(document["stream"]), document["spaces"], first, initial, behind, ids, consumed)
    if "seq" in document and alone is not None:
        path, queue = alone
        return Offsets("", {path: {queue: int(document["seq"])}})
    raise InvalidArgument(
        f"the checkpoint's offset {str(document)[:80]} is of one queue in one space: go on with just that path and "
        "queue until a batch was read, and name more after that"
    )


def between(start: Offsets, end: Offsets) -> Iterator[tuple[str, int, str, int, int]]:
    """Path, number of the space, queue and (after, upto] of all that a batch reads."""
    for number, (path, queues) in enumerate(end.spaces.items()):
        for queue, upto in queues.items():
            after = end.first.get(path, {}).get(queue)
            if after is None:
                after = start.at(path, queue) or 0
            if upto > after:
                yield path, number, queue, after, upto
