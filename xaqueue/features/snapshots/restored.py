"""What came back by a restore: the file ``restored``, one JSON document at the top of the space.

    {"snapshot": 7, "taken_at": microseconds UTC, "restored_at": microseconds UTC,
     "queues": {"orders": highest number that came back}, "branches": ["<xid>", ...]}

A message at or below its queue's number may have been delivered after the snapshot: it is a possible duplicate. A
branch that is listed was in doubt then; whether it was decided since, its transaction manager may have forgotten, so
only an operator decides it. Where the file is damaged that is so of every message, and of every branch that an open
finds in doubt: nobody takes the past for the present.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass, field
from pathlib import Path
from typing import Any

from xaqueue.core.engine.features import Gate
from xaqueue.core.model.branch import Branch, Call, Rider
from xaqueue.core.model.layout import parse_xid
from xaqueue.core.model.record_kinds import Advice, Opening, RecordKind
from xaqueue.core.storage.fs import FileSystem, is_damage
from xaqueue.errors import RetryLater
from xaqueue.features.snapshots.manifest import SNAPSHOTS
from xaqueue.message import Message
from xaqueue.xid import Xid

RESTORED = "restored"
"""What came back by a restore."""
REMOVED = "removed"
"""What a restore has replaced, by the time when it did."""
RESTORE_READY = ".restoring/READY"
"""There while a restore has a part of the space in its hands."""
MOST_BYTES = 64 * 1024 * 1024
DAMAGED = -1


@dataclass(frozen=True, slots=True)
class Restored:
    snapshot: int = 0
    """0 for none, DAMAGED where nobody knows."""
    taken_at: int = 0
    restored_at: int = 0
    queues: dict[str, int] = field(default_factory=dict)
    branches: list[str] = field(default_factory=list)
    lives: list[str] = field(default_factory=list)
    """The ids that the space had before, whose snapshots are its own."""

    def xids(self) -> set[Xid]:
        return {xid for text in self.branches if (xid := parse_xid(text)) is not None}

    def came_back(self, queue: str, seq: int) -> bool:
        return seq <= self.queues.get(queue, 0) or self.snapshot == DAMAGED

    def of_branch(self, xid: Xid) -> int:
        """The snapshot with which this branch came back; 0 for none."""
        return self.snapshot if str(xid) in self.branches or self.snapshot == DAMAGED else 0


@dataclass(slots=True)
class Marks(Gate):
    """What came back passes for a possible duplicate."""

    restored: Restored = Restored()

    def passes(self, message: Message) -> None:
        if self.restored.came_back(message.queue, message.seq):
            message.properties.possible_duplicate = True


@dataclass(frozen=True, slots=True)
class CameBack(Rider):
    """Of a branch in doubt: its transaction manager may have decided it since, and forgotten."""

    snapshot: int
    is_for_operator = True

    def decide(self, space: Any, branch: Branch, call: Call) -> None:
        if call is not Call.PREPARE:
            how = f"came back with snapshot {self.snapshot}, as it was then"
            if self.snapshot == DAMAGED:
                how = f"may have come back with a snapshot, for the file {RESTORED} is damaged"
            raise RetryLater(
                f"branch {branch.xid} {how}: whether it was committed since is not known here. "
                f"An operator decides with `xaqueue indoubt show {branch.xid}`"
            )


def encode(restored: Restored) -> bytes:
    return json.dumps(asdict(restored)).encode() + b"\n"


def read(fs: FileSystem) -> Restored:
    """Where nothing came back an empty one. Raises OSError where that cannot be read now."""
    if not fs.exists(RESTORED):
        return Restored()
    try:
        found = Restored(**json.loads(fs.read(RESTORED, MOST_BYTES)))
        if all(map(isinstance, astuple(found), (int, int, int, dict, list, list))):
            return found
    except (ValueError, TypeError):
        pass
    except OSError as error:
        if not is_damage(fs, RESTORED, error):
            raise
    return Restored(DAMAGED)


class RestoredKind(RecordKind):
    others = (SNAPSHOTS, REMOVED, RESTORED)

    def find(self, opening: Opening) -> None:
        space, found = opening.space, read(opening.space.fs)
        marks = space.memory_of(Marks)
        marks.restored = found
        if found.snapshot:
            space.gates = (*space.gates, marks)
        if found.snapshot == DAMAGED:
            opening.note(
                f"the file {RESTORED} is damaged: every message passes for a possible duplicate, and what is in "
                "doubt now is an operator's: put it back from a copy, or remove it once nothing of then is left"
            )

    def advice(self, root: Path) -> Advice:
        command, has_any = f"`xaqueue restore --space {root}`", False
        with suppress(OSError):
            has_any = any(one.name.isdigit() for one in (root / SNAPSHOTS).iterdir())
        is_cut_off = os.path.lexists(root / RESTORE_READY)
        return Advice(
            f"A restore was cut off: {command} finishes it" if is_cut_off else "",
            f"{command} has the newest snapshot in its place" if has_any else "",
        )

    def doubt(self, space: Any, branch: Branch) -> None:
        snapshot = space.memory_of(Marks).restored.of_branch(branch.xid)
        if snapshot:
            branch.riders = (*branch.riders, CameBack(snapshot))
