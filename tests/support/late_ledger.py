"""A ledger of who may lose power: what is said while that goes may be untrue, for some syncs return then, and lie."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from xaqueue.tools.torture.ledger import BEGUN, FINISHED, BranchRecord, Ledger, Statement
from xaqueue.tools.torture.run import Child

STEPS = {"prepared", *BEGUN}


class LateRecord(BranchRecord):
    """Of a branch whose first promise was heard when the power may have been gone: it goes either way."""

    committed, uncertain = False, True


class LateLedger(Ledger):
    """``is_late``: perhaps the power is gone, so that what is said is no promise; a decision it is."""

    is_late = False

    def hear(self, said: Statement) -> None:
        branch = self.branches.get(said.tag) if said.event in STEPS else None
        if self.is_late and branch is not None and said.event == "prepared":
            branch = self.branches[said.tag] = LateRecord(branch.added, branch.taken, branch.one_phase)
        if isinstance(branch, LateRecord) or (self.is_late and said.event in FINISHED):
            self.heard[said.event] += 1
        else:
            super().hear(said)

    @contextmanager
    def late(self, end: Callable[[Child], object]) -> Iterator[Callable[[Child], None]]:
        """Within the block, what is heard from where the power begins to go on, which is what ``end`` does, is late."""

        def ended(child: Child) -> None:
            self.is_late = True
            end(child)

        try:
            yield ended
        finally:
            self.is_late = False
