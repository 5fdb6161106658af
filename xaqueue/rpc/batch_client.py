"""What a client asks of a served space for a query that writes in batches.

Each of these calls may be made twice: so where an answer is lost it is asked for again, over a new connection.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from xaqueue.batch import Batch, Decision
from xaqueue.errors import ConnectionLost, OutcomeUnknown
from xaqueue.rpc.batch_wire import branches_to, decision_of, others_to
from xaqueue.xid import Xid

ASKED = 3
"""How often a call is made whose answer is lost each time."""


class BatchCalls:
    """The part of a RemoteManager that is ``Batches``."""

    def call(self, method: str, *params: Any) -> Any:
        raise NotImplementedError

    def commit_all(self, batch: Batch, xids: Sequence[Xid], others: Sequence[tuple[str, Xid]] = ()) -> Decision:
        """Raises OutcomeUnknown where the answer is lost each time."""
        return decision_of(self._ask_again("commit_all", batch, branches_to(xids), others_to(others)))

    def rollback_all(self, batch: Batch) -> int:
        """Raises OutcomeUnknown where the answer is lost each time."""
        return int(self._ask_again("rollback_all", batch))

    def decision(self, batch: Batch) -> Decision | None:
        """Raises OutcomeUnknown where the answer is lost each time."""
        answer = self._ask_again("decision", batch)
        return None if answer is None else decision_of(answer)

    def _ask_again(self, method: str, batch: Batch, *params: Any) -> Any:
        for _ in range(ASKED - 1):
            with suppress(ConnectionLost):
                return self.call(method, batch.query, batch.number, *params)
        try:
            return self.call(method, batch.query, batch.number, *params)
        except ConnectionLost as lost:
            raise OutcomeUnknown(
                f"{lost}. What became of {batch} is unknown: call {method} again when the server answers"
            ) from lost
