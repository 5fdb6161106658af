"""The methods for queries that write in batches: one decision for many prepared branches."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from xaqueue.batch import Batch
from xaqueue.rpc.batch_wire import branches_of, decision_to, others_of, plan_of, spaces_of

if TYPE_CHECKING:
    from xaqueue.rpc.methods import Peer


def commit_all(
    peer: Peer, query: Any, number: Any, branches: Any, others: Any = None, plan: Any = None
) -> dict[str, Any]:
    batch = Batch(query, number)
    elsewhere = [] if others is None else others_of(others, batch)
    made = None if plan is None else plan_of(plan)
    return decision_to(peer.session.commit_all(batch, branches_of(branches, batch), elsewhere, made))


def rollback_all(peer: Peer, query: Any, number: Any, spaces: Any = None) -> int:
    return peer.session.rollback_all(Batch(query, number), () if spaces is None else spaces_of(spaces))


def decision(peer: Peer, query: Any, number: Any) -> dict[str, Any] | None:
    found = peer.session.decision(Batch(query, number))
    return None if found is None else decision_to(found)


BATCH_METHODS: dict[str, tuple[Callable[..., Any], int, int]] = {
    "commit_all": (commit_all, 3, 5),
    "rollback_all": (rollback_all, 2, 3),
    "decision": (decision, 2, 2),
}
"""By name: the method, and how many parameters it takes at least and at most."""
