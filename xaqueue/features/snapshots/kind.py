"""What an open makes of the file that says what came back by a restore."""

from __future__ import annotations

from typing import Any

from xaqueue.core.model.branch import Branch
from xaqueue.core.model.layout import RESTORED
from xaqueue.core.model.record_kinds import Opening, RecordKind
from xaqueue.features.snapshots import restored
from xaqueue.features.snapshots.restored import CameBack


class RestoredKind(RecordKind):
    def find(self, opening: Opening) -> None:
        found = opening.space.restored = restored.read(opening.space.fs)
        if found.snapshot == restored.DAMAGED:
            opening.note(
                f"the file {RESTORED} is damaged: every message passes for a possible duplicate, and what is in "
                "doubt now is an operator's: put it back from a copy, or remove it once nothing of then is left"
            )

    def doubt(self, space: Any, branch: Branch) -> None:
        snapshot = space.restored.of_branch(branch.xid)
        if snapshot:
            branch.riders = (*branch.riders, CameBack(snapshot))
