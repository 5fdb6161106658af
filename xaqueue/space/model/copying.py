"""What queues.toml says of copies of the space: [snapshots], which are taken by themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from xaqueue.errors import InvalidArgument
from xaqueue.space.model.tables import only, table_of


@dataclass(frozen=True, slots=True)
class Snapshots:
    """When snapshots are taken by themselves, and how many stay. 0: never, and all."""

    interval_min: int = 0
    keep: int = 0
    point_in_time: bool = False
    """Whether the journal is kept since the oldest, at the level that has one."""


NO_SNAPSHOTS = Snapshots()


def snapshots_of(document: Mapping[str, Any]) -> Snapshots:
    """A table that stands there has defaults of its own."""
    if "snapshots" not in document:
        return NO_SNAPSHOTS
    table, found = table_of(document, "snapshots"), {}
    only(table, "[snapshots]", (*SNAPSHOT_KEYS, "point_in_time"))
    keeps = table.get("point_in_time", True)
    if not isinstance(keeps, bool):
        raise InvalidArgument(f"queues.toml: [snapshots] point_in_time = {keeps!r}: true or false is wanted")
    for key, (least, most, default) in SNAPSHOT_KEYS.items():
        number = found[key] = table.get(key, default)
        if not isinstance(number, int) or isinstance(number, bool) or not least <= number <= most:
            raise InvalidArgument(
                f"queues.toml: [snapshots] {key} = {number!r}: a number from {least} to {most} is wanted"
            )
    return Snapshots(**found, point_in_time=keeps)


SNAPSHOT_KEYS = {"interval_min": (1, 46_080, 1_440), "keep": (2, 367, 3)}
"""From, to, and where it is not given."""
