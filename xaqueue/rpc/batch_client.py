"""What a client asks of a served space for a query that writes in batches. Each of these calls may be made twice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xaqueue.batch import Batch, Decision, Plan
from xaqueue.errors import ConnectionLost, OutcomeUnknown
from xaqueue.rpc.again import CallsAgain
from xaqueue.rpc.batch_wire import branches_to, decision_of, others_to, plan_to
from xaqueue.xid import Xid


class BatchCalls(CallsAgain):
    """The part of a RemoteManager that is ``Batches``."""

    def commit_all(
        self, batch: Batch, xids: Sequence[Xid], others: Sequence[tuple[str, Xid]] = (), plan: Plan | None = None
    ) -> Decision:
        """Raises OutcomeUnknown where the answer is lost each time."""
        made = plan_to(plan or Plan())
        return decision_of(self._asked("commit_all", batch, branches_to(xids), others_to(others), made))

    def rollback_all(self, batch: Batch, spaces: Sequence[str] = ()) -> int:
        """Raises OutcomeUnknown where the answer is lost each time."""
        return int(self._asked("rollback_all", batch, list(spaces)))

    def decision(self, batch: Batch) -> Decision | None:
        """Raises OutcomeUnknown where the answer is lost each time."""
        answer = self._asked("decision", batch)
        return None if answer is None else decision_of(answer)

    def _asked(self, method: str, batch: Batch, *params: Any) -> Any:
        try:
            return self.call_again(method, batch.query, batch.number, *params)
        except ConnectionLost as lost:
            raise OutcomeUnknown(
                f"{lost}. What became of {batch} is unknown: call {method} again when the server answers"
            ) from lost
