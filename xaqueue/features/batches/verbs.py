"""The verbs of queries that write in batches: one decision for many prepared branches. They belong to no branch.

    branches   [[format id, [bqual, ...]], ...]             of one batch, whose gtrid is known; at most 1,000 in a group
    others     [[space id, format id, [bqual, ...]], ...]   its branches in other spaces, in the same way
    plan       [digest, offsets, [space id, ...], once]     what the batch is made from, and where it goes
    decision   {"query": text, "number": number, "branches": branches, "others": others, "messages": count,
                "decided_at": int microseconds UTC, "plan": plan}

Groups, because the lists of a request are short and its values are counted. Each call may be made twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import astuple
from itertools import groupby
from typing import TYPE_CHECKING, Any

from xaqueue.access import EITHER, TRANSACT
from xaqueue.batch import OFFSETS_LIMIT, Batch, BatchDecision, Plan
from xaqueue.core.engine.session import Session
from xaqueue.errors import ConnectionLost, InvalidArgument, OutcomeUnknown
from xaqueue.features.batches import batches
from xaqueue.rpc.verb import verb
from xaqueue.rpc.wire import MalformedFrame
from xaqueue.xid import Xid

if TYPE_CHECKING:
    from xaqueue.rpc.client.link import Link
    from xaqueue.rpc.server.peer import Caller

DIGEST_LIMIT = 200
GROUP = 1000
"""Branches of one group, at most."""


@verb(TRANSACT)
def commit_all(
    self: Session, batch: Batch, xids: Sequence[Xid], others: Sequence[tuple[str, Xid]] = (), plan: Plan | None = None
) -> BatchDecision:
    """Commits prepared branches of a batch in one step and rolls back all others of it.

    A batch that was decided before is finished as it was decided, what is new is rolled back, and the earlier
    decision is returned. ``others``: branches in other spaces, by their ids, that this decision holds for. What is
    left to do here of the query's last batch is done first, RetryLater where that finds no room.
    Raises UnknownXid, and has done nothing, where one of ``xids`` is not prepared; InvalidArgument, likewise, for
    a number below that of the query's last batch, and for that number with another plan. RetryLater: nothing is
    decided for want of room or for damage; or it is, and the same call made again finishes the rest.
    """
    self._check_open()
    return batches.commit_all(self.space, batch, xids, others, plan or Plan())


@commit_all.server
def _(caller: Caller, query: Any, number: Any, branches: Any, others: Any = None, plan: Any = None) -> dict[str, Any]:
    batch = Batch(query, number)
    elsewhere = [] if others is None else _others_of(others, batch)
    made = None if plan is None else _plan_of(plan)
    return _decision_to(commit_all(caller.session, batch, _branches_of(branches, batch), elsewhere, made))


@commit_all.client
def _(
    self: Link, batch: Batch, xids: Sequence[Xid], others: Sequence[tuple[str, Xid]] = (), plan: Plan | None = None
) -> BatchDecision:
    made = astuple(plan or Plan())
    return _decision_of(_decided(self, "commit_all", batch, _branches_to(xids), _others_to(others), made))


@verb(TRANSACT)
def rollback_all(self: Session, batch: Batch, spaces: Sequence[str] = ()) -> int:
    """Rolls back the branches of a batch that is not decided; how many there were. ``spaces``: the ids of those
    that were asked; branches that another one may have committed are left."""
    self._check_open()
    return batches.rollback_all(self.space, batch, spaces)


@rollback_all.server
def _(caller: Caller, query: Any, number: Any, spaces: Any = None) -> int:
    return rollback_all(caller.session, Batch(query, number), () if spaces is None else _spaces_of(spaces))


@rollback_all.client
def _(self: Link, batch: Batch, spaces: Sequence[str] = ()) -> int:
    return int(_decided(self, "rollback_all", batch, list(spaces)))


@verb(EITHER)
def decision(self: Session, batch: Batch) -> BatchDecision | None:
    """What was decided of a batch, or of the last of its query where that is a later one; None without both."""
    self._check_open()
    return batches.decision(self.space, batch)


@decision.server
def _(caller: Caller, query: Any, number: Any) -> dict[str, Any] | None:
    found = decision(caller.session, Batch(query, number))
    return None if found is None else _decision_to(found)


@decision.client
def _(self: Link, batch: Batch) -> BatchDecision | None:
    answer = _decided(self, "decision", batch)
    return None if answer is None else _decision_of(answer)


def _decided(self: Link, method: str, batch: Batch, *params: Any) -> Any:
    """Raises OutcomeUnknown where the answer is lost each time."""
    try:
        return self.call_with_retry(method, batch.query, batch.number, *params)
    except ConnectionLost as lost:
        raise OutcomeUnknown(
            f"{lost}. What became of {batch} is unknown: call {method} again when the server answers"
        ) from lost


# On the wire


def _branches_to(xids: Iterable[Xid]) -> list[tuple[int, list[bytes]]]:
    return [group[1:] for group in _others_to(("", xid) for xid in xids)]


def _branches_of(value: Any, batch: Batch) -> list[Xid]:
    """Raises InvalidArgument."""
    return [Xid(format_id, batch.gtrid, bqual) for format_id, bquals in _groups(value, 2) for bqual in _list(bquals)]


def _others_to(others: Iterable[tuple[str, Xid]]) -> list[tuple[str, int, list[bytes]]]:
    return [
        (space, format_id, bquals[first : first + GROUP])
        for (space, format_id), group in groupby(others, key=lambda other: (other[0], other[1].format_id))
        for bquals in [[xid.bqual for _, xid in group]]
        for first in range(0, len(bquals), GROUP)
    ]


def _others_of(value: Any, batch: Batch) -> list[tuple[str, Xid]]:
    """Raises InvalidArgument."""
    found = []
    for space, format_id, bquals in _groups(value, 3):
        if not isinstance(space, str) or not space:
            raise InvalidArgument(f"space {space!r} is refused: the id of another space is wanted")
        found += [(space, Xid(format_id, batch.gtrid, bqual)) for bqual in _list(bquals)]
    return found


def _plan_of(value: Any) -> Plan:
    """Raises InvalidArgument."""
    made = _list(value)
    if list(map(type, made)) != [str, str, list, bool] or len(made[0]) > DIGEST_LIMIT or len(made[1]) > OFFSETS_LIMIT:
        raise InvalidArgument(
            f"{str(value)[:60]} is no plan of a batch: [digest, offsets, [space id], once] is wanted, with at most "
            f"{DIGEST_LIMIT} and {OFFSETS_LIMIT} characters"
        )
    return Plan(made[0], made[1], _spaces_of(made[2]), made[3])


def _spaces_of(value: Any) -> tuple[str, ...]:
    """Raises InvalidArgument."""
    spaces = _list(value)
    if not all(isinstance(space, str) and space for space in spaces):
        raise InvalidArgument(f"{str(value)[:60]} is refused: ids of spaces are wanted")
    return tuple(spaces)


def _decision_to(decision: BatchDecision) -> dict[str, Any]:
    return {
        "query": decision.batch.query,
        "number": decision.batch.number,
        "branches": _branches_to(decision.xids),
        "others": _others_to(decision.others),
        "messages": decision.messages,
        "decided_at": decision.decided_at,
        "plan": astuple(decision.plan),
    }


def _decision_of(value: Any) -> BatchDecision:
    """Raises MalformedFrame."""
    try:
        batch = Batch(value["query"], value["number"])
        xids = tuple(_branches_of(value["branches"], batch))
        others = tuple(_others_of(value["others"], batch))
        made = _plan_of(value["plan"])
        return BatchDecision(batch, xids, others, int(value["messages"]), int(value["decided_at"]), made)
    except (KeyError, TypeError, ValueError) as error:
        raise MalformedFrame(f"{str(value)[:60]} is no decision of a batch: {error!r}") from None


def _groups(value: Any, size: int) -> list[Sequence[Any]]:
    groups = _list(value)
    if not all(isinstance(group, list | tuple) and len(group) == size for group in groups):
        raise InvalidArgument(
            f"{str(value)[:60]} are no branches of a batch: "
            f"[[{'space id, ' if size == 3 else ''}format id, [bqual]]] is wanted"
        )
    return groups


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise InvalidArgument(f"{str(value)[:60]} is refused: a list is wanted")
    return value
