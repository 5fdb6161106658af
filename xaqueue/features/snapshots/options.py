"""What queues.toml says of snapshots: which are taken by themselves.

[snapshots]
interval_min = 1440
keep = 3
point_in_time = true               # the journal is kept since the oldest, too
path = "/backup/orders"            # each is copied there, too: see copies.py
restore = "by hand"                # or "auto": the newest takes the place of what cannot be used
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from xaqueue.core.model.definitions import Definitions
from xaqueue.core.model.options import Table, all_of, choice, number, switch, text, values


@dataclass(frozen=True, slots=True)
class Snapshots:
    """When snapshots are taken by themselves, and how many stay. 0: never, and all."""

    interval_min: int = 0
    keep: int = 0
    point_in_time: bool = False
    """Whether the journal is kept since the oldest, at the level that has one."""
    restores: bool = False
    """Whether the newest takes the place of what cannot be used by itself."""
    path: str = ""
    """Where each is copied to, relative to the space; empty for nowhere."""


NO_SNAPSHOTS = Snapshots()
KEYS = (
    number("interval_min", 1_440, "a number", 1, 46_080),
    number("keep", 3, "a number", 2, 367),
    switch("point_in_time", default=True),
    choice("restore", "by hand", "auto"),
    text("path"),
)
DAILY = """
[snapshots]          # taken while a server or a program has the space open; see SNAPSHOTS in xaqueue-operating(7)
interval_min = 1440
keep = 7
point_in_time = false    # true: the journal since the oldest as well, with room for all that passes
"""
"""What a space that is made by hand begins with."""


def _snapshots(table: Mapping[str, Any]) -> Snapshots:
    """A table that stands there has defaults of its own."""
    said = values(table, "[snapshots]", KEYS)
    interval_min, keep, point_in_time, restore, path = all_of(KEYS, said)
    return Snapshots(interval_min, keep, point_in_time, restore == "auto", path)


TABLE = Table("snapshots", _snapshots)


def policy_of(definitions: Definitions) -> Snapshots:
    found: Snapshots = definitions.tables.get(TABLE.name, NO_SNAPSHOTS)
    return found
