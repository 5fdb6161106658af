"""The operator's verbs: branches in doubt, shown, and finished without their transaction manager."""

from __future__ import annotations

import getpass
import os
import socket
import sys
from typing import Annotated, Any

import typer

from xaqueue.cli import output, values
from xaqueue.cli.spaces import JsonOption, SpaceOption, directory_of, owned
from xaqueue.errors import UnknownXid
from xaqueue.space.heuristic import decide
from xaqueue.space.inspect import Content, InDoubt, in_doubt

app = typer.Typer(
    no_args_is_help=True,
    help="List, show and decide branches in doubt.",
    context_settings={"help_option_names": ["-h", "--help"]},
)

XidArgument = Annotated[str, typer.Argument(metavar="XID", help="As `indoubt list` shows it.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


@app.command("list")
def list_branches(ctx: typer.Context, json: JsonOption = False, space: SpaceOption = None) -> None:
    """List the branches in doubt, and those decided and not yet forgotten.

    Works while another process owns the space.
    """
    found = in_doubt(directory_of(ctx, space))
    if json:
        output.as_json([_branch_json(branch) for branch in found])
        return
    if not found:
        typer.echo("no branch is in doubt")
        return
    rows = [(b.xid, b.state, output.moment(b.since), len(b.added), len(b.held), len(b.damage)) for b in found]
    output.table(("xid", "state", "since", "adds", "holds", "damage"), rows, right=("adds", "holds", "damage"))


@app.command()
def show(ctx: typer.Context, xid: XidArgument, json: JsonOption = False, space: SpaceOption = None) -> None:
    """Show one branch: the messages that it adds, and those that it holds.

    Works while another process owns the space.
    """
    branch = _find(directory_of(ctx, space), xid)
    if json:
        output.as_json(_branch_json(branch))
        return
    decided = branch.decision
    output.pairs(
        [
            ("xid", branch.xid),
            ("gtrid", branch.xid.gtrid),
            ("bqual", branch.xid.bqual),
            ("state", branch.state),
            ("decided" if decided else "prepared", output.moment(branch.since)),
            ("by", decided.by if decided else ""),
        ]
    )
    for text in branch.damage:
        typer.echo(f"damage    {text}")
    rows = [_content_row("adds", content) for content in branch.added]
    rows += [_content_row("holds", content) for content in branch.held]
    if rows:
        typer.echo()
        output.table(("branch", "queue", "message id", "bytes"), rows, right=("bytes",))


@app.command()
def commit(ctx: typer.Context, xid: XidArgument, yes: YesOption = False, space: SpaceOption = None) -> None:
    """Commit a branch without its transaction manager.

    Which may decide otherwise: the outcome is then mixed. The decision is recorded durably before anything is done, and
    told to the transaction manager until it is forgotten. Needs a space that no other process owns.
    """
    _decide(directory_of(ctx, space), xid, commit=True, yes=yes)


@app.command()
def rollback(ctx: typer.Context, xid: XidArgument, yes: YesOption = False, space: SpaceOption = None) -> None:
    """Roll a branch back without its transaction manager.

    Which may decide otherwise: the outcome is then mixed. What it held is back in its place, what it added is gone.
    Recorded and told as with commit.
    """
    _decide(directory_of(ctx, space), xid, commit=False, yes=yes)


@app.command()
def forget(ctx: typer.Context, xid: XidArgument, yes: YesOption = False, space: SpaceOption = None) -> None:
    """Forget a decision, when the transaction manager has been told or will never ask."""
    directory = directory_of(ctx, space)
    name = values.xid(xid)
    branch = _find(directory, xid)
    _confirm(f"forget that branch {name} is {branch.state}?", yes)
    with owned(directory) as session:
        session.forget(name)
    typer.echo(f"branch {name}: its decision is forgotten")


def _decide(directory: str, xid: str, *, commit: bool, yes: bool) -> None:
    branch = _find(directory, xid)
    verb = "commit" if commit else "roll back"
    adds, holds = output.counted(len(branch.added), "message"), output.counted(len(branch.held), "message")
    _confirm(f"branch {branch.xid} adds {adds} and holds {holds}: {verb} it without its transaction manager?", yes)
    with owned(directory) as session:
        decision = decide(session.space, branch.xid, commit, _operator())
    if decision.outcome == "rollback":
        done = f"rolled back: {adds} dropped, {holds} back in place"
    elif decision.outcome == "mixed":
        done = f"committed in part, for it was damaged: {'; '.join(branch.damage)}"
    else:
        done = f"committed: {adds} added, {holds} removed"
    typer.echo(f"branch {branch.xid} {done}")
    typer.echo(f"recorded as a decision by {decision.by}; `xaqueue indoubt forget` ends that record")


def _find(directory: str, text: str) -> InDoubt:
    xid = values.xid(text)
    for branch in in_doubt(directory):
        if branch.xid == xid:
            return branch
    raise UnknownXid(f"branch {xid} is not in doubt: list those that are with `xaqueue indoubt list`")


def _confirm(question: str, yes: bool) -> None:
    """Asks on a terminal; a script is taken at its word."""
    if not yes and sys.stdin.isatty():
        typer.confirm(question, abort=True, err=True)


def _operator() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def _content_row(what: str, content: Content) -> tuple[object, ...]:
    return (what, content.queue, content.message_id.hex(), content.size_bytes)


def _branch_json(branch: InDoubt) -> dict[str, Any]:
    decided = branch.decision
    return {
        "xid": str(branch.xid),
        "state": branch.state,
        "since": branch.since,
        "added": [_content_json(content) for content in branch.added],
        "held": [_content_json(content) for content in branch.held],
        "damage": branch.damage,
        "decision": {"outcome": decided.outcome, "by": decided.by, "at": decided.at} if decided else None,
    }


def _content_json(content: Content) -> dict[str, Any]:
    return {"queue": content.queue, "message_id": content.message_id.hex(), "size_bytes": content.size_bytes}
