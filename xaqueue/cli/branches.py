"""Branches in doubt of a space, in its directory or through its server: shown, decided by hand, and forgotten."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, NamedTuple

import typer

from xaqueue.batch import ONE_SPACE, is_of_a_batch, parse_gtrid
from xaqueue.cli import output, parameters
from xaqueue.cli.exit_codes import agreed
from xaqueue.cli.location import Location, reached, remote
from xaqueue.core.engine import heuristics
from xaqueue.core.engine.heuristics import Decision, Forgotten, check_text
from xaqueue.errors import InvalidArgument
from xaqueue.features.session import Session
from xaqueue.offline import inspect, inspect_branches
from xaqueue.offline.inspect_branches import InDoubt, dry_run_of, traffic_of
from xaqueue.offline.redo_view import look_into
from xaqueue.rpc.methods.service import RemoteOperator
from xaqueue.tm.gtrid import Gtrid, parse_listed
from xaqueue.xid import Xid

FOREIGN = "foreign"
"""Stands for the coordinator of a branch whose xid another product made."""
HEADINGS = ("xid", "state", "age", "coordinator", "queues", "damage")


class BranchOrigin(NamedTuple):
    """Whose a branch is, for people."""

    coordinator: str
    """The node id of the transaction manager, a query's batch, or that it is another product's."""
    full: str
    others: str
    """Who else takes part."""


def print_branches(found: Sequence[InDoubt], json: bool, said: Mapping[Xid, str] | None = None) -> None:
    """said: what their transaction managers say, where these were asked."""
    none, right = "no branch is in doubt", ("age", "damage")
    if said is None:
        output.records(found, json, branch_json, HEADINGS, _row, none=none, right=right)
        return

    def document(branch: InDoubt) -> dict[str, Any]:
        return {**branch_json(branch), "says": said[branch.xid]}

    def row(branch: InDoubt) -> tuple[object, ...]:
        return (*_row(branch), said[branch.xid])

    headings = (*HEADINGS, "its transaction manager says")
    output.records(found, json, document, headings, row, none=none, right=right)


def print_forgotten(found: Sequence[Forgotten], json: bool) -> None:
    def row(f: Forgotten) -> tuple[object, ...]:
        return f.xid, f.outcome, f.by, output.moment(f.at), f.reason, f.forgotten_by, output.moment(f.forgotten_at)

    headings = ("xid", "decision", "by", "at", "reason", "forgotten by", "forgotten at")
    output.records(found, json, asdict, headings, row, none="no decision was forgotten")


def print_branch(branch: InDoubt, json: bool) -> None:
    """Everything that the space knows of a branch."""
    if json:
        output.as_json(branch_json(branch))
        return
    origin = _origin_of(branch.xid)
    output.pairs(
        [
            ("xid", branch.xid),
            ("gtrid", output.printable(branch.xid.gtrid)),
            ("bqual", output.printable(branch.xid.bqual)),
            ("postgres gid", f"{parameters.postgres_gid(branch.xid, whole=False)}..."),
            ("state", branch.state),
            *_when(branch),
            ("coordinator", origin.full),
            ("others", origin.others),
        ]
    )
    for text in branch.damage:
        typer.echo(f"damage    {output.one_line(text)}")
    output.below(("queue", "adds", "holds"), traffic_of(branch), right=("adds", "holds"))
    contents = [("adds", content) for content in branch.added] + [("holds", content) for content in branch.held]
    rows = [(what, one.queue, one.message_id.hex(), one.size_bytes) for what, one in contents]
    output.below(("branch", "queue", "message id", "bytes"), rows, right=("bytes",))


def branch_json(branch: InDoubt) -> dict[str, Any]:
    listed_as = parse_listed(tuple(branch.xid))
    return {
        "xid": str(branch.xid),
        "postgres_gids": parameters.postgres_gid(branch.xid, whole=False),
        "state": branch.state,
        "since": branch.since,
        "age_s": round(output.age_s(branch.since), 3) if branch.since else None,
        "coordinator": gtrid_json(listed_as.gtrid) if listed_as is not None else None,
        "participant": listed_as.participant if listed_as is not None else None,
        "batch": _batch_json(branch.xid),
        "queues": {t.queue: {"adds": t.adds, "holds": t.holds} for t in traffic_of(branch)},
        "added": list(map(asdict, branch.added)),
        "held": list(map(asdict, branch.held)),
        "damage": branch.damage,
        "decision": asdict(branch.decision) if branch.decision else None,
    }


def gtrid_json(gtrid: Gtrid) -> dict[str, Any]:
    return {"gtrid": str(gtrid), "node": gtrid.node, "epoch": gtrid.epoch, "counter": gtrid.counter}


def _row(branch: InDoubt) -> tuple[object, ...]:
    queues = ", ".join(map(str, traffic_of(branch)))
    coordinator = _origin_of(branch.xid).coordinator
    return branch.xid, branch.state, output.age(branch.since), coordinator, queues, len(branch.damage)


def _when(branch: InDoubt) -> list[tuple[str, object]]:
    decided = branch.decision
    if decided is None:
        return [("prepared", output.moment(branch.since)), ("age", output.age(branch.since))]
    return [
        ("decided", output.moment(decided.at)),
        ("age", output.age(decided.at)),
        ("by", decided.by),
        ("reason", decided.reason),
    ]


def _batch_json(xid: Xid) -> dict[str, Any] | None:
    parsed = parse_gtrid(xid.gtrid) if is_of_a_batch(xid) else None
    return {"query": parsed[0], "number": parsed[1], "here": xid.format_id == ONE_SPACE} if parsed else None


def _origin_of(xid: Xid) -> BranchOrigin:
    batch = parse_gtrid(xid.gtrid) if is_of_a_batch(xid) else None
    if batch is not None:
        query = f"batch {batch[1]} of query {batch[0]} (Spark)"
        where = "this space" if xid.format_id == ONE_SPACE else "this space and perhaps in others"
        full = f"{query}: the query decides, when it writes that batch again"
        return BranchOrigin(query, full, f"all branches with this gtrid, in {where}")
    others = "who else takes part is not known here:"
    branch = parse_listed(tuple(xid))
    if branch is None:
        full = f"{FOREIGN}: no transaction manager of xaqueue made this xid"
        return BranchOrigin(FOREIGN, full, f"{others} its log tells")
    gtrid = branch.gtrid
    full = f"node {gtrid.node}, epoch {gtrid.epoch}, transaction {gtrid.counter}, here as {branch.participant}"
    return BranchOrigin(gtrid.node, full, f"{others} `xaqueue indoubt advise {gtrid} --tm DIR`, DIR its log, tells")


# Deciding


class DirectoryOperator:
    """As ``RemoteOperator``: looks at the directory, whoever owns it; decides through its server, or as its owner."""

    def __init__(self, location: Location) -> None:
        self._location = location

    def in_doubt(self) -> list[InDoubt]:
        return inspect_branches.in_doubt(self._location.directory)

    def depths(self, queues: Iterable[str]) -> dict[str, int]:
        return inspect.depths_in(look_into(self._location.directory).fs, queues)

    def decide(self, xid: Xid, commit: bool, by: str, reason: str) -> Decision:
        with reached(self._location) as manager:
            if isinstance(manager, Session):
                return heuristics.decide(manager.space, xid, commit, by, reason)
            return RemoteOperator(manager).decide(xid, commit, by, reason)

    def forget(self, xid: Xid, by: str, reason: str) -> None:
        with reached(self._location) as manager:
            if isinstance(manager, Session):
                manager.forget_by_hand(xid, by, reason)
            else:
                RemoteOperator(manager).forget(xid, by, reason)

    def forgotten(self) -> list[Forgotten]:
        return heuristics.forgotten(self._location.directory)


@contextmanager
def backend_of(location: Location) -> Iterator[DirectoryOperator | RemoteOperator]:
    if location.url:
        with remote(location.url) as manager:
            yield RemoteOperator(manager)
    else:
        yield DirectoryOperator(location)


def find(waiting: Iterable[InDoubt], text: str, *, exact: bool = False) -> InDoubt:
    """The branch that the text names; the whole name, or the beginning does. Raises UnknownXid, InvalidArgument."""
    by_xid = {branch.xid: branch for branch in waiting}
    return by_xid[parameters.named(text, list(by_xid), exact=exact)]


def dry_run(location: Location, text: str, commit: bool) -> None:
    """Shows what a decision would do."""
    with backend_of(location) as backend:
        waiting = backend.in_doubt()
        branch = find(waiting, text)
        depths = backend.depths(sorted({content.queue for content in (*branch.added, *branch.held)}))
    typer.echo(f"{'commit' if commit else 'rollback'} of branch {branch.xid} would do this, and nothing is done:")
    if branch.damage:
        typer.echo(f"the branch is damaged, these are the numbers of what is left of it: {'; '.join(branch.damage)}")
    headings = ("queue", "adds", "holds", "messages", "after", "held", "held after")
    found = dry_run_of(branch, waiting, depths, commit)
    rows = [(c.queue, c.adds, c.holds, c.messages, c.messages_after, c.held, c.held_after) for c in found]
    output.table(headings, rows, right=headings[1:])


def decide(location: Location, text: str, commit: bool, reason: str, *, asks: bool) -> None:
    """asks: a person, who is shown which branch it is. Without that a reason is wanted."""
    check_text("reason", reason)
    if not (asks or reason.strip()):
        raise InvalidArgument("write why with --reason TEXT: it is recorded with who and when, before anything is done")
    with backend_of(location) as backend:
        branch = find(backend.in_doubt(), text, exact=not asks)
        verb = "commit" if commit else "roll back"
        adds, holds = output.counted(len(branch.added), "message"), output.counted(len(branch.held), "message")
        if asks:
            agreed(f"branch {branch.xid} adds {adds} and holds {holds}: {verb} it without its transaction manager?")
        decision = backend.decide(branch.xid, commit, operator(), reason)
    if decision.outcome == "rollback":
        done = f"rolled back: {adds} dropped, {holds} back in place"
    elif decision.outcome == "mixed":
        done = f"committed in part, for it was damaged: {'; '.join(branch.damage)}"
    else:
        done = f"committed: {adds} added, {holds} removed"
    typer.echo(f"branch {branch.xid} {done}")
    typer.echo(f"recorded as a decision by {decision.by}; `xaqueue indoubt forget` ends that record")


def forget(location: Location, text: str, reason: str, *, asks: bool) -> None:
    with backend_of(location) as backend:
        branch = find(backend.in_doubt(), text, exact=not asks)
        if asks:
            agreed(f"forget that branch {branch.xid} is {branch.state}?")
        backend.forget(branch.xid, operator(), reason)
    typer.echo(f"branch {branch.xid}: its decision is forgotten")


def operator() -> str:
    """Who decides: ``user@host``."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"
