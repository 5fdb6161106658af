"""The operator's verbs: branches in doubt, shown, and finished without their transaction manager."""

from __future__ import annotations

import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from xaqueue.cli import indoubt_rows, output, values
from xaqueue.cli.sides import Side, operator, side_of
from xaqueue.cli.spaces import JsonOption, Place, SpaceOption, place_of
from xaqueue.errors import InvalidArgument
from xaqueue.space.engine.heuristics import check_text
from xaqueue.space.offline.dry_run import foresee
from xaqueue.space.offline.inspect_branches import InDoubt

app = typer.Typer(
    no_args_is_help=True,
    help="List, show and decide branches in doubt.",
    context_settings={"help_option_names": ["-h", "--help"]},
)

XidArgument = Annotated[
    str,
    typer.Argument(metavar="XID", help=f"The branch: {values.XID_FORMS}; the beginning will do where only one has it."),
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
ReasonOption = Annotated[
    str, typer.Option("--reason", metavar="TEXT", help="Why; recorded with who and when.", show_default=False)
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Show the depths of the queues before and after, and do nothing.")
]

TmOption = Annotated[
    Path | None,
    typer.Option(
        "--tm",
        metavar="DIR",
        help="Of a transaction manager's log, or its configuration, instead of a space; XID is a GTRID then.",
        show_default=False,
    ),
]


@app.command("list")
def list_branches(
    ctx: typer.Context,
    forgotten_too: Annotated[
        bool, typer.Option("--forgotten", help="Instead, the decisions by hand that were forgotten, from the first on.")
    ] = False,
    tm: TmOption = None,
    json: JsonOption = False,
    space: SpaceOption = None,
) -> None:
    """List the branches in doubt, and those decided and not yet forgotten.

    Works while another process owns the space. Each branch has the number of messages that it adds (+) to queues and
    holds (-) of them, and the node id of its transaction manager.
    """
    if tm is not None:
        from xaqueue.cli import indoubt_tm

        (indoubt_tm.list_forgotten if forgotten_too else indoubt_tm.list_transactions)(tm, json)
        return
    place = place_of(ctx, space)
    if forgotten_too:
        _list_forgotten(place, json)
        return
    with side_of(place) as side:
        found = side.in_doubt()
    if json:
        output.as_json([indoubt_rows.branch_json(branch) for branch in found])
        return
    if not found:
        typer.echo("no branch is in doubt")
        return
    output.table(indoubt_rows.HEADINGS, [indoubt_rows.list_row(branch) for branch in found], right=("age", "damage"))


@app.command()
def show(
    ctx: typer.Context, xid: XidArgument, tm: TmOption = None, json: JsonOption = False, space: SpaceOption = None
) -> None:
    """Show one branch: the messages that it adds, those that it holds, and whose it is.

    Works while another process owns the space.
    """
    if tm is not None:
        from xaqueue.cli import indoubt_tm

        indoubt_tm.show(tm, xid, json)
        return
    with side_of(place_of(ctx, space)) as side:
        branch = _find(side, xid)
    if json:
        output.as_json(indoubt_rows.branch_json(branch))
    else:
        indoubt_rows.show(branch)


@app.command()
def commit(
    ctx: typer.Context,
    xid: XidArgument,
    reason: ReasonOption = "",
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    tm: TmOption = None,
    space: SpaceOption = None,
) -> None:
    """Commit a branch without its transaction manager.

    Which may decide otherwise: the outcome is then mixed. The decision is recorded durably before anything is done, and
    told to the transaction manager until it is forgotten. Goes through the server where one serves the space; no other
    process may own it. With --tm it carries out what the log has decided, and refuses anything else.
    """
    if tm is not None:
        from xaqueue.cli import indoubt_tm

        _check_no_reason(reason)
        indoubt_tm.carry_out(tm, xid, commit=True, dry_run=dry_run, confirm=partial(_confirm, yes=yes))
        return
    _decide(place_of(ctx, space), xid, commit=True, reason=reason, dry_run=dry_run, yes=yes)


@app.command()
def rollback(
    ctx: typer.Context,
    xid: XidArgument,
    reason: ReasonOption = "",
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    tm: TmOption = None,
    space: SpaceOption = None,
) -> None:
    """Roll a branch back without its transaction manager.

    Which may decide otherwise: the outcome is then mixed. What it held is back in its place, what it added is gone.
    Recorded and told as with commit; so is what --tm does.
    """
    if tm is not None:
        from xaqueue.cli import indoubt_tm

        _check_no_reason(reason)
        indoubt_tm.carry_out(tm, xid, commit=False, dry_run=dry_run, confirm=partial(_confirm, yes=yes))
        return
    _decide(place_of(ctx, space), xid, commit=False, reason=reason, dry_run=dry_run, yes=yes)


@app.command()
def forget(
    ctx: typer.Context,
    xid: XidArgument,
    reason: ReasonOption = "",
    yes: YesOption = False,
    tm: TmOption = None,
    space: SpaceOption = None,
) -> None:
    """Forget a decision, when the transaction manager has been told or will never ask.

    Recorded first: `indoubt list --forgotten` shows it from then on.
    """
    check_text("reason", reason)
    if tm is not None:
        from xaqueue.cli import indoubt_tm

        indoubt_tm.forget(tm, xid, by=operator(), reason=reason, confirm=partial(_confirm, yes=yes))
        return
    with side_of(place_of(ctx, space), decides=True) as side:
        branch = _find(side, xid)
        name = branch.xid
        _confirm(f"forget that branch {name} is {branch.state}?", yes)
        side.forget(name, operator(), reason)
    typer.echo(f"branch {name}: its decision is forgotten")


@app.command()
def advise(
    gtrid: Annotated[
        str, typer.Argument(metavar="GTRID", help="The transaction, or the xid of one of its branches in any form.")
    ],
    tm: Annotated[
        Path,
        typer.Option(
            "--tm", metavar="CONFIG", help="The transaction manager's configuration, or its log with one in it."
        ),
    ],
    json: JsonOption = False,
) -> None:
    """Say what to do with the branches of one global transaction, and why.

    Asks the decision log and every participant that the configuration names, and does nothing. Exit 1 where it cannot
    know, or where no answer makes the participants agree.
    """
    from xaqueue.cli import advise as advising

    advising.run(tm, gtrid, json)


def _check_no_reason(reason: str) -> None:
    if reason:
        raise InvalidArgument("--reason with --tm is refused: what the log has decided is carried out; leave it out")


def _decide(place: Place, text: str, *, commit: bool, reason: str, dry_run: bool, yes: bool) -> None:
    check_text("reason", reason)
    if dry_run:
        _dry_run(place, text, commit)
        return
    with side_of(place, decides=True) as side:
        branch = _find(side, text)
        xid = branch.xid
        verb = "commit" if commit else "roll back"
        adds, holds = output.counted(len(branch.added), "message"), output.counted(len(branch.held), "message")
        _confirm(f"branch {xid} adds {adds} and holds {holds}: {verb} it without its transaction manager?", yes)
        decision = side.decide(xid, commit, operator(), reason)
    if decision.outcome == "rollback":
        done = f"rolled back: {adds} dropped, {holds} back in place"
    elif decision.outcome == "mixed":
        done = f"committed in part, for it was damaged: {'; '.join(branch.damage)}"
    else:
        done = f"committed: {adds} added, {holds} removed"
    typer.echo(f"branch {xid} {done}")
    typer.echo(f"recorded as a decision by {decision.by}; `xaqueue indoubt forget` ends that record")


def _dry_run(place: Place, text: str, commit: bool) -> None:
    with side_of(place) as side:
        waiting = side.in_doubt()
        branch = _found(waiting, text)
        depths = side.depths(sorted({content.queue for content in (*branch.added, *branch.held)}))
    indoubt_rows.changes(branch, foresee(branch, waiting, depths, commit), commit)


def _list_forgotten(place: Place, json: bool) -> None:
    with side_of(place) as side:
        found = side.forgotten()
    if json:
        output.as_json([asdict(line) for line in found])
        return
    if not found:
        typer.echo("no decision was forgotten")
        return
    rows = [
        (f.xid, f.outcome, f.by, output.moment(f.at), f.reason, f.forgotten_by, output.moment(f.forgotten_at))
        for f in found
    ]
    output.table(("xid", "decision", "by", "at", "reason", "forgotten by", "forgotten at"), rows)


def _find(side: Side, text: str) -> InDoubt:
    return _found(side.in_doubt(), text)


def _found(waiting: list[InDoubt], text: str) -> InDoubt:
    by_xid = {branch.xid: branch for branch in waiting}
    return by_xid[values.named(text, list(by_xid))]


def _confirm(question: str, yes: bool) -> None:
    """Asks on a terminal; a script is taken at its word."""
    if not yes and sys.stdin.isatty():
        typer.confirm(question, abort=True, err=True)
