"""The methods for queries: one decision for the many branches of a batch, and streams that consume queues.

    branches   [[format id, [bqual, ...]], ...]             of one batch, whose gtrid is known; at most 1,000 in a group
    others     [[space id, format id, [bqual, ...]], ...]   its branches in other spaces, in the same way
    plan       [digest, offsets, [space id, ...], once]     what the batch is made from, and where it goes
    decision   {"query": text, "number": number, "branches": branches, "others": others, "messages": count,
                "decided_at": int microseconds UTC, "plan": plan}

Groups, because the lists of a request are short and its values are counted. A reservation is a map of its fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import astuple
from itertools import groupby
from typing import TYPE_CHECKING, Any

from xaqueue.access import CONSUME, EITHER, NOTHING, RESOLVE, TRANSACT
from xaqueue.batch import OFFSETS_LIMIT, Batch, Decision, Plan
from xaqueue.core.engine.session import Session
from xaqueue.errors import ConnectionLost, InvalidArgument, OutcomeUnknown
from xaqueue.reservation import Reservation
from xaqueue.rpc.client.link import Link
from xaqueue.rpc.verb import method, methods
from xaqueue.rpc.wire import MalformedFrame, decode
from xaqueue.xid import Xid

if TYPE_CHECKING:
    from xaqueue.rpc.server.peer import Caller

DIGEST_LIMIT = 200
GROUP = 1000
"""Branches of one group, at most."""

# On the server: what is more than the same call of a session


def commit_all(
    caller: Caller, query: Any, number: Any, branches: Any, others: Any = None, plan: Any = None
) -> dict[str, Any]:
    batch = Batch(query, number)
    elsewhere = [] if others is None else _others_of(others, batch)
    made = None if plan is None else _plan_of(plan)
    return _decision_to(caller.session.commit_all(batch, _branches_of(branches, batch), elsewhere, made))


def rollback_all(caller: Caller, query: Any, number: Any, spaces: Any = None) -> int:
    return caller.session.rollback_all(Batch(query, number), () if spaces is None else _spaces_of(spaces))


def decision(caller: Caller, query: Any, number: Any) -> dict[str, Any] | None:
    found = caller.session.decision(Batch(query, number))
    return None if found is None else _decision_to(found)


QUERY_METHODS = (
    *methods(TRANSACT, commit_all, rollback_all),
    method(EITHER, decision),
    *methods(CONSUME, Session.reserve, Session.consume),
    method(RESOLVE, Session.release),
    method(NOTHING, Session.reservations),
)

# On the client


class QueryCalls(Link):
    """The part of a RemoteManager that is ``Batches`` and ``Streams``. Each call may be made twice, but release not."""

    def commit_all(
        self, batch: Batch, xids: Sequence[Xid], others: Sequence[tuple[str, Xid]] = (), plan: Plan | None = None
    ) -> Decision:
        """Raises OutcomeUnknown where the answer is lost each time."""
        made = astuple(plan or Plan())
        return _decision_of(self._decided("commit_all", batch, _branches_to(xids), _others_to(others), made))

    def rollback_all(self, batch: Batch, spaces: Sequence[str] = ()) -> int:
        """Raises OutcomeUnknown where the answer is lost each time."""
        return int(self._decided("rollback_all", batch, list(spaces)))

    def decision(self, batch: Batch) -> Decision | None:
        """Raises OutcomeUnknown where the answer is lost each time."""
        answer = self._decided("decision", batch)
        return None if answer is None else _decision_of(answer)

    def reserve(self, queue: str, stream: str, after: int, upto: int) -> Reservation:
        return decode(Reservation, self.call_with_retry("reserve", queue, stream, after, upto))

    def consume(self, queue: str, stream: str, upto: int, archive: bool = False) -> Reservation:
        return decode(Reservation, self.call_with_retry("consume", queue, stream, upto, archive))

    def release(self, queue: str) -> Reservation | None:
        """Raises ConnectionLost where the answer is lost: then ``reservations`` tells."""
        answer = self.call("release", queue)
        return None if answer is None else decode(Reservation, answer)

    def reservations(self) -> list[Reservation]:
        return [decode(Reservation, value) for value in self.call_with_retry("reservations")]

    def _decided(self, method: str, batch: Batch, *params: Any) -> Any:
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


def _decision_to(decision: Decision) -> dict[str, Any]:
    return {
        "query": decision.batch.query,
        "number": decision.batch.number,
        "branches": _branches_to(decision.xids),
        "others": _others_to(decision.others),
        "messages": decision.messages,
        "decided_at": decision.decided_at,
        "plan": astuple(decision.plan),
    }


def _decision_of(value: Any) -> Decision:
    """Raises MalformedFrame."""
    try:
        batch = Batch(value["query"], value["number"])
        xids = tuple(_branches_of(value["branches"], batch))
        others = tuple(_others_of(value["others"], batch))
        made = _plan_of(value["plan"])
        return Decision(batch, xids, others, int(value["messages"]), int(value["decided_at"]), made)
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
