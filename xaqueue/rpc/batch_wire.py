"""Batches and their decisions in wire form.

    branches   [[format id, [bqual, ...]], ...]             of one batch, whose gtrid is known; at most 1,000 in a group
    others     [[space id, format id, [bqual, ...]], ...]   its branches in other spaces, in the same way
    plan       [digest, offsets, [space id, ...], once]     what the batch is made from, and where it goes
    decision   {"query": text, "number": number, "branches": branches, "others": others, "messages": count,
                "decided_at": int microseconds UTC, "plan": plan}

Groups, because the lists of a request are short and its values are counted. All else is as in ``xaqueue.rpc.wire``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from xaqueue.batch import OFFSETS_LIMIT, Batch, Decision, Plan
from xaqueue.errors import InvalidArgument
from xaqueue.rpc.wire import MalformedFrame
from xaqueue.xid import Xid

DIGEST_LIMIT = 200
GROUP = 1000
"""Branches of one group, at most."""


def branches_to(xids: Iterable[Xid]) -> list[tuple[int, list[bytes]]]:
    return [
        (format_id, bquals[first : first + GROUP])
        for format_id, group in groupby(xids, key=lambda xid: xid.format_id)
        for bquals in [[xid.bqual for xid in group]]
        for first in range(0, len(bquals), GROUP)
    ]


def branches_of(value: Any, batch: Batch) -> list[Xid]:
    """Raises InvalidArgument."""
    return [Xid(format_id, batch.gtrid, bqual) for format_id, bquals in _groups(value, 2) for bqual in _list(bquals)]


def others_to(others: Iterable[tuple[str, Xid]]) -> list[tuple[str, int, list[bytes]]]:
    return [
        (space, format_id, bquals)
        for space, group in groupby(others, key=lambda other: other[0])
        for format_id, bquals in branches_to(xid for _, xid in group)
    ]


def others_of(value: Any, batch: Batch) -> list[tuple[str, Xid]]:
    """Raises InvalidArgument."""
    found = []
    for space, format_id, bquals in _groups(value, 3):
        if not isinstance(space, str) or not space:
            raise InvalidArgument(f"space {space!r} is refused: the id of another space is wanted")
        found += [(space, Xid(format_id, batch.gtrid, bqual)) for bqual in _list(bquals)]
    return found


def plan_to(plan: Plan) -> tuple[str, str, list[str], bool]:
    return plan.digest, plan.offsets, list(plan.spaces), plan.once


def plan_of(value: Any) -> Plan:
    """Raises InvalidArgument."""
    made = _list(value)
    if list(map(type, made)) != [str, str, list, bool] or len(made[0]) > DIGEST_LIMIT or len(made[1]) > OFFSETS_LIMIT:
        raise InvalidArgument(
            f"{str(value)[:60]} is no plan of a batch: [digest, offsets, [space id], once] is wanted, with at most "
            f"{DIGEST_LIMIT} and {OFFSETS_LIMIT} characters"
        )
    return Plan(made[0], made[1], spaces_of(made[2]), made[3])


def spaces_of(value: Any) -> tuple[str, ...]:
    """Raises InvalidArgument."""
    spaces = _list(value)
    if not all(isinstance(space, str) and space for space in spaces):
        raise InvalidArgument(f"{str(value)[:60]} is refused: ids of spaces are wanted")
    return tuple(spaces)


def decision_to(decision: Decision) -> dict[str, Any]:
    return {
        "query": decision.batch.query,
        "number": decision.batch.number,
        "branches": branches_to(decision.xids),
        "others": others_to(decision.others),
        "messages": decision.messages,
        "decided_at": decision.decided_at,
        "plan": plan_to(decision.plan),
    }


def decision_of(value: Any) -> Decision:
    """Raises MalformedFrame."""
    try:
        batch = Batch(value["query"], value["number"])
        xids = tuple(branches_of(value["branches"], batch))
        others = tuple(others_of(value["others"], batch))
        made = plan_of(value["plan"])
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
