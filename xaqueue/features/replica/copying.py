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

from xaqueue.core.model.tables import Number, choice, numbers, only, switch, table_of


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
    table, where = table_of(document, "snapshots"), "[snapshots]"
    only(table, where, (*_SNAPSHOTS, "point_in_time", "restore"))
    given = {"interval_min": 1_440, "keep": 3, **numbers(table, where, _SNAPSHOTS)}
    restores = choice(table, where, "restore", ("by hand", "auto")) == "auto"
    return Snapshots(**given, point_in_time=switch(table, where, "point_in_time", default=True), restores=restores)


_SNAPSHOTS = {
    "interval_min": Number("interval_min", int, 1, 46_080, "a number"),
    "keep": Number("keep", int, 2, 367, "a number"),
}


def replication_of(document: Mapping[str, Any]) -> Replication:
    if "replication" not in document:
        return NO_REPLICATION
    table, where = table_of(document, "replication"), "[replication]"
    only(table, where, ("acknowledge", *_REPLICATION))
    waits = choice(table, where, "acknowledge", ("local", "replica")) == "replica"
    found = numbers(table, where, _REPLICATION)
    return Replication(True, waits, found.get("timeout_s", 10.0), int(found.get("keep_mib", 1_024) * 1024 * 1024))


_REPLICATION = {
    "acknowledge_timeout_s": Number("timeout_s", float, 0.1, 3600, "a number"),
    "keep_mib": Number("keep_mib", float, 0, 1_048_576, "a number"),
}
