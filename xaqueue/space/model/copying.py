"""What queues.toml says of copies of the space: [snapshots], which are taken by themselves, and [replication].

[replication]
acknowledge = "replica"            # a commit returns once a replica has it on disk; or "local", as without it
acknowledge_timeout_s = 10         # without a replica it fails after so many seconds: its outcome is unknown
keep_mib = 1024                    # so much of the journal is kept for a replica that was away
"""

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
    restores: bool = False
    """Whether the newest takes the place of what cannot be used by itself."""


NO_SNAPSHOTS = Snapshots()


@dataclass(frozen=True, slots=True)
class Replication:
    """Whether the journal is made ready for replicas, and whether steps wait for one."""

    is_on: bool = False
    waits: bool = False
    timeout_s: float = 10.0
    keep_bytes: int = 0
    """Of the journal, for a replica that was away."""


NO_REPLICATION = Replication()


def snapshots_of(document: Mapping[str, Any]) -> Snapshots:
    """A table that stands there has defaults of its own."""
    if "snapshots" not in document:
        return NO_SNAPSHOTS
    table, found = table_of(document, "snapshots"), {}
    only(table, "[snapshots]", (*SNAPSHOT_KEYS, "point_in_time", "restore"))
    if table.get("restore", "by hand") not in ("by hand", "auto"):
        raise InvalidArgument(f"queues.toml: [snapshots] restore = {table['restore']!r}: by hand or auto is wanted")
    keeps = table.get("point_in_time", True)
    if not isinstance(keeps, bool):
        raise InvalidArgument(f"queues.toml: [snapshots] point_in_time = {keeps!r}: true or false is wanted")
    for key, (least, most, default) in SNAPSHOT_KEYS.items():
        number = found[key] = table.get(key, default)
        if not isinstance(number, int) or isinstance(number, bool) or not least <= number <= most:
            raise InvalidArgument(
                f"queues.toml: [snapshots] {key} = {number!r}: a number from {least} to {most} is wanted"
            )
    return Snapshots(**found, point_in_time=keeps, restores=table.get("restore") == "auto")


SNAPSHOT_KEYS = {"interval_min": (1, 46_080, 1_440), "keep": (2, 367, 3)}
"""From, to, and where it is not given."""


def replication_of(document: Mapping[str, Any]) -> Replication:
    if "replication" not in document:
        return NO_REPLICATION
    table = table_of(document, "replication")
    only(table, "[replication]", ("acknowledge", *_REPLICATION))
    acknowledge = table.get("acknowledge", "local")
    if acknowledge not in ("local", "replica"):
        raise InvalidArgument(f"queues.toml: [replication] acknowledge = {acknowledge!r}: local or replica is wanted")
    found = {}
    for key, (least, most, default) in _REPLICATION.items():
        number = found[key] = table.get(key, default)
        if not isinstance(number, int | float) or isinstance(number, bool) or not least <= number <= most:
            raise InvalidArgument(
                f"queues.toml: [replication] {key} = {number!r}: a number from {least} to {most:,} is wanted"
            )
    keep_bytes = int(found["keep_mib"] * 1024 * 1024)
    return Replication(True, acknowledge == "replica", float(found["acknowledge_timeout_s"]), keep_bytes)


_REPLICATION: Mapping[str, tuple[float, float, float]] = {
    "acknowledge_timeout_s": (0.1, 3600, 10),
    "keep_mib": (0, 1_048_576, 1_024),
}
"""From, to, and where it is not given."""
