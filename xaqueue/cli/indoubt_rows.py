"""A branch in doubt as it is shown: to people in lines and tables, to programs in JSON."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import typer

from xaqueue.batch import ONE_SPACE, is_of_a_batch, parse_gtrid
from xaqueue.cli import output, values
from xaqueue.space.engine.heuristics import Decision
from xaqueue.space.offline.dry_run import Change
from xaqueue.space.offline.inspect_branches import Content, InDoubt
from xaqueue.tm.gtrid import Gtrid, listed
from xaqueue.xid import Xid

FOREIGN = "foreign"
"""Stands for the coordinator of a branch whose xid another product made."""
HEADINGS = ("xid", "state", "age", "coordinator", "queues", "damage")


class Traffic(NamedTuple):
    """What a commit would do to one queue."""

    queue: str
    adds: int
    holds: int

    def __str__(self) -> str:
        signed = [f"+{self.adds}"] if self.adds else []
        signed += [f"-{self.holds}"] if self.holds else []
        return " ".join((self.queue, *signed))


def list_row(branch: InDoubt) -> tuple[object, ...]:
    queues = ", ".join(map(str, traffic_of(branch)))
    return (branch.xid, branch.state, age(branch.since), coordinator(branch), queues, len(branch.damage))


def show(branch: InDoubt) -> None:
    """Everything that the space knows of a branch."""
    output.pairs(
        [
            ("xid", branch.xid),
            ("gtrid", output.printable(branch.xid.gtrid)),
            ("bqual", output.printable(branch.xid.bqual)),
            ("postgres gid", values.postgres_gid(branch.xid)),
            ("state", branch.state),
            *_when(branch),
            ("coordinator", _coordinator_in_full(branch)),
            ("others", _others(branch)),
        ]
    )
    for text in branch.damage:
        typer.echo(f"damage    {text}")
    if branch.added or branch.held:
        typer.echo()
        rows = [(t.queue, t.adds, t.holds) for t in traffic_of(branch)]
        output.table(("queue", "adds", "holds"), rows, right=("adds", "holds"))
        typer.echo()
        contents = [("adds", content) for content in branch.added] + [("holds", content) for content in branch.held]
        output.table(("branch", "queue", "message id", "bytes"), [_content_row(*c) for c in contents], right=("bytes",))


def changes(branch: InDoubt, found: Sequence[Change], commit: bool) -> None:
    """What a decision would do, for --dry-run."""
    verb = "commit" if commit else "rollback"
    typer.echo(f"{verb} of branch {branch.xid} would do this, and nothing is done:")
    if branch.damage:
        typer.echo(f"the branch is damaged, these are the numbers of what is left of it: {'; '.join(branch.damage)}")
    headings = ("queue", "adds", "holds", "messages", "after", "held", "held after")
    rows = [(c.queue, c.adds, c.holds, c.messages, c.messages_after, c.held, c.held_after) for c in found]
    output.table(headings, rows, right=headings[1:])


def branch_json(branch: InDoubt) -> dict[str, Any]:
    told = listed(tuple(branch.xid))
    return {
        "xid": str(branch.xid),
        "postgres_gid": values.postgres_gid(branch.xid),
        "state": branch.state,
        "since": branch.since,
        "age_s": round(_age_s(branch.since), 3) if branch.since else None,
        "coordinator": gtrid_json(told.gtrid) if told is not None else None,
        "participant": told.participant if told is not None else None,
        "batch": _batch_json(branch.xid),
        "queues": {t.queue: {"adds": t.adds, "holds": t.holds} for t in traffic_of(branch)},
        "added": [_content_json(content) for content in branch.added],
        "held": [_content_json(content) for content in branch.held],
        "damage": branch.damage,
        "decision": decision_json(branch.decision) if branch.decision else None,
    }


def decision_json(decision: Decision) -> dict[str, Any]:
    return {"outcome": decision.outcome, "by": decision.by, "at": decision.at, "reason": decision.reason}


def gtrid_json(gtrid: Gtrid) -> dict[str, Any]:
    return {"gtrid": str(gtrid), "node": gtrid.node, "epoch": gtrid.epoch, "counter": gtrid.counter}


def traffic_of(branch: InDoubt) -> list[Traffic]:
    """By queue, sorted, how many messages the branch adds and holds."""
    adds = Counter(content.queue for content in branch.added)
    holds = Counter(content.queue for content in branch.held)
    return [Traffic(queue, adds[queue], holds[queue]) for queue in sorted({*adds, *holds})]


def coordinator(branch: InDoubt) -> str:
    """The node id of the transaction manager, a query's batch, or that it is another product's."""
    if is_of_a_batch(branch.xid):
        return _batch_of(branch.xid)
    told = listed(tuple(branch.xid))
    return told.gtrid.node if told is not None else FOREIGN


def age(since_us: int) -> str:
    """How long ago that was, for people; empty where it is not known."""
    if not since_us:
        return ""
    seconds = _age_s(since_us)
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length:.0f} {unit}"
    return f"{seconds:.0f} s"


def _age_s(since_us: int) -> float:
    return max(time.time() - since_us / 1e6, 0.0)


def _when(branch: InDoubt) -> list[tuple[str, object]]:
    decided = branch.decision
    if decided is None:
        return [("prepared", output.moment(branch.since)), ("age", age(branch.since))]
    return [
        ("decided", output.moment(decided.at)),
        ("age", age(decided.at)),
        ("by", decided.by),
        ("reason", decided.reason),
    ]


def _batch_of(xid: Xid) -> str:
    parsed = parse_gtrid(xid.gtrid)
    assert parsed is not None
    return f"batch {parsed[1]} of query {parsed[0]} (Spark)"


def _batch_json(xid: Xid) -> dict[str, Any] | None:
    parsed = parse_gtrid(xid.gtrid) if is_of_a_batch(xid) else None
    return {"query": parsed[0], "number": parsed[1], "here": xid.format_id == ONE_SPACE} if parsed else None


def _coordinator_in_full(branch: InDoubt) -> str:
    if is_of_a_batch(branch.xid):
        return f"{_batch_of(branch.xid)}: the query decides, when it writes that batch again"
    told = listed(tuple(branch.xid))
    if told is None:
        return f"{FOREIGN}: no transaction manager of xaqueue made this xid"
    gtrid = told.gtrid
    return f"node {gtrid.node}, epoch {gtrid.epoch}, transaction {gtrid.counter}, here as {told.participant}"


def _others(branch: InDoubt) -> str:
    if is_of_a_batch(branch.xid):
        where = "this space" if branch.xid.format_id == ONE_SPACE else "this space and perhaps in others"
        return f"all branches with this gtrid, in {where}"
    told = listed(tuple(branch.xid))
    asked = f"`xaqueue indoubt show {told.gtrid} --tm DIR`, DIR its log," if told is not None else "its log"
    return f"who else takes part is not known here: {asked} tells"


def _content_row(what: str, content: Content) -> tuple[object, ...]:
    return (what, content.queue, content.message_id.hex(), content.size_bytes)


def _content_json(content: Content) -> dict[str, Any]:
    return {"queue": content.queue, "message_id": content.message_id.hex(), "size_bytes": content.size_bytes}
