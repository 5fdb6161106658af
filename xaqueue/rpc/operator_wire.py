"""Branches in doubt and decisions by hand in their wire form.

    content    [queue, message id, size of its file in bytes, or nil]
    decision   {"outcome": "commit" | "rollback" | "mixed", "by": text, "at": int microseconds UTC, "reason": text}
    branch     {"xid": xid, "state": text, "since": int microseconds UTC, "added": [content], "held": [content],
                "damage": [text], "decision": decision or nil}
    forgotten  {"xid", "outcome", "by", "at", "reason", "forgotten_by", "forgotten_at", "forgotten_reason"}, as a line
               of operators.log; its xid is text

Everything else is as in ``xaqueue.rpc.wire``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from xaqueue.message import MessageId, check_message_id
from xaqueue.rpc.wire import MalformedFrame, xid_of, xid_to
from xaqueue.space.engine.heuristics import Decision
from xaqueue.space.engine.operator_log import Forgotten
from xaqueue.space.offline.inspect_branches import Content, InDoubt


def decision_to(decision: Decision) -> dict[str, Any]:
    return {"outcome": decision.outcome, "by": decision.by, "at": decision.at, "reason": decision.reason}


def decision_of(value: Any) -> Decision:
    """Raises MalformedFrame."""
    try:
        return Decision(str(value["outcome"]), str(value["by"]), int(value["at"]), str(value.get("reason", "")))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise MalformedFrame(f"{value!r} is no decision: {error!r}") from None


def forgotten_to(told: Forgotten) -> dict[str, Any]:
    return asdict(told)


def forgotten_of(value: Any) -> Forgotten:
    """Raises MalformedFrame."""
    try:
        return Forgotten(**value)
    except TypeError as error:
        raise MalformedFrame(f"{str(value)[:60]} is no forgotten decision: {error}") from None


def in_doubt_to(branch: InDoubt) -> dict[str, Any]:
    return {
        "xid": xid_to(branch.xid),
        "state": branch.state,
        "since": branch.since,
        "added": [_content_to(content) for content in branch.added],
        "held": [_content_to(content) for content in branch.held],
        "damage": branch.damage,
        "decision": decision_to(branch.decision) if branch.decision is not None else None,
    }


def in_doubt_of(value: Any) -> InDoubt:
    """Raises MalformedFrame."""
    try:
        return _in_doubt_of(value)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise MalformedFrame(f"{str(value)[:60]} is no branch in doubt: {error!r}") from None


def _in_doubt_of(value: Mapping[str, Any]) -> InDoubt:
    decision = value.get("decision")
    return InDoubt(
        xid_of(value["xid"]),
        str(value["state"]),
        int(value["since"]),
        [_content_of(content) for content in value["added"]],
        [_content_of(content) for content in value["held"]],
        [str(text) for text in value["damage"]],
        decision_of(decision) if decision is not None else None,
    )


def _content_to(content: Content) -> tuple[str, bytes, int | None]:
    return content.queue, content.message_id, content.size_bytes


def _content_of(value: Any) -> Content:
    queue, message_id, size_bytes = value
    return Content(str(queue), MessageId(check_message_id(message_id)), size_bytes)
