"""What came back by a restore: the file ``restored``, one JSON document at the top of the space.

    {"snapshot": 7, "taken_at": microseconds UTC, "restored_at": microseconds UTC,
     "queues": {"orders": highest number that came back}, "branches": ["<xid>", ...]}

A message at or below its queue's number may have been delivered after the snapshot: it is a possible duplicate. A
branch that is listed was in doubt then; whether it was decided since, its transaction manager may have forgotten, so
only an operator decides it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field

from xaqueue.space.model.layout import RESTORED, parse_xid
from xaqueue.storage.fs import FileSystem
from xaqueue.xid import Xid

MOST_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Restored:
    snapshot: int = 0
    """0 for none."""
    taken_at: int = 0
    restored_at: int = 0
    queues: dict[str, int] = field(default_factory=dict)
    branches: list[str] = field(default_factory=list)

    def xids(self) -> set[Xid]:
        return {xid for text in self.branches if (xid := parse_xid(text)) is not None}


def encode(restored: Restored) -> bytes:
    return json.dumps(asdict(restored)).encode() + b"\n"


def read(fs: FileSystem) -> Restored:
    """Where nothing came back, or nobody can read of it, an empty one. Raises OSError."""
    if not fs.exists(RESTORED):
        return Restored()
    try:
        return Restored(**json.loads(fs.read(RESTORED, MOST_BYTES)))
    except (ValueError, TypeError):
        return Restored()
