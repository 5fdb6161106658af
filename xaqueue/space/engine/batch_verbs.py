"""The verbs of a session for queries that write in batches; see ``xaqueue.xa.Batches``. They belong to no branch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from xaqueue.batch import Batch, Decision, Plan
from xaqueue.space.engine import batches
from xaqueue.xid import Xid

if TYPE_CHECKING:
    from xaqueue.space.engine.state import Space


class BatchVerbs:
    """A part of ``Session``."""

    space: Space

    def _check_open(self) -> None:
        raise NotImplementedError

    def commit_all(
        self, batch: Batch, xids: Sequence[Xid], others: Sequence[tuple[str, Xid]] = (), plan: Plan | None = None
    ) -> Decision:
        self._check_open()
        return batches.commit_all(self.space, batch, xids, others, plan)

    def rollback_all(self, batch: Batch, spaces: Sequence[str] = ()) -> int:
        self._check_open()
        return batches.rollback_all(self.space, batch, spaces)

    def decision(self, batch: Batch) -> Decision | None:
        self._check_open()
        return batches.decision(self.space, batch)
