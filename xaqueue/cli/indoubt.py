"""The operator's verbs: branches in doubt, shown, and finished without their transaction manager.

Each works on a space, or with ``--tm`` on the log of a transaction manager.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from xaqueue.cli import completion, output, parameters
from xaqueue.cli.location import JsonOption, SpaceOption, YesOption, location_of
from xaqueue.errors import InvalidArgument

app = typer.Typer(no_args_is_help=True, help="List, show and decide branches in doubt.")

XidArgument = Annotated[
    str,
    typer.Argument(
        metavar="XID",
        help=f"The branch: {parameters.XID_FORMS}; the beginning will do where only one has it, and "
        "where a question is asked before anything is decided.",
        autocompletion=completion.xids,
    ),
]
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
    forgotten_too: Annotated[
        bool, typer.Option("--forgotten", help="Instead, the decisions by hand that were forgotten, from the first on.")
    ] = False,
    ask: Annotated[
        list[str] | None,
        typer.Option(
            "--ask",
            metavar="DIR|DSN",
            help="A transaction manager's log, its configuration, or the database that decides: say what that says of "
            "each. May be given again.",
            show_default=False,
        ),
    ] = None,
    tm: TmOption = None,
    json: JsonOption = False,
    space: SpaceOption = None,
) -> None:
    """List the branches in doubt, and those decided and not yet forgotten.

    Works while another process owns the space. Each branch has the number of messages that it adds (+) to queues and
    holds (-) of them, and the node id of its transaction manager. With --ask it says whose transaction manager is
    gone; `xaqueue tm recover` finishes what such a one has left.
    """
    from xaqueue.cli import branches, orphans, tm_log

    if ask and (tm is not None or forgotten_too):
        raise InvalidArgument("--ask is of the branches of a space: leave --tm and --forgotten out")
    if tm is not None:
        (tm_log.print_forgotten if forgotten_too else tm_log.print_transactions)(tm, json)
        return
    with branches.backend_of(location_of(space)) as backend:
        if forgotten_too:
            branches.print_forgotten(backend.forgotten(), json)
        else:
            found = backend.in_doubt()
            said = orphans.ask([branch.xid for branch in found], ask) if ask else None
            branches.print_branches(found, json, said)


@app.command()
def show(xid: XidArgument, tm: TmOption = None, json: JsonOption = False, space: SpaceOption = None) -> None:
    """Show one branch: the messages that it adds, those that it holds, and whose it is.

    Works while another process owns the space. With --tm also what the PostgreSQLs of its configuration have prepared
    of the transaction, and of another product's branch that beside what the space has.
    """
    from xaqueue.cli import advise as advising
    from xaqueue.cli import branches, tm_log

    if tm is not None and not (space and parameters.is_foreign(xid)):
        tm_log.print_transaction(tm, xid, json, advising.prepared)
        return
    with branches.backend_of(location_of(space)) as backend:
        branch = branches.find(backend.in_doubt(), xid)
    branches.print_branch(branch, json, advising.prepared(tm_log.load(tm), branch.xid.gtrid) if tm is not None else ())


def _decision(commit: bool, help_text: str) -> None:
    """Adds ``commit`` or ``rollback``."""

    def verb(
        xid: XidArgument,
        reason: ReasonOption = "",
        dry_run: DryRunOption = False,
        yes: YesOption = False,
        tm: TmOption = None,
        space: SpaceOption = None,
    ) -> None:
        from xaqueue.cli import branches, tm_log

        if tm is not None:
            if reason:
                raise InvalidArgument(
                    "--reason with --tm is refused: what the log has decided is carried out; leave it out"
                )
            tm_log.carry_out(tm, xid, commit=commit, dry_run=dry_run, asks=_asks(yes))
        elif dry_run:
            branches.dry_run(location_of(space), xid, commit)
        else:
            branches.decide(location_of(space), xid, commit, reason, asks=_asks(yes))

    app.command("commit" if commit else "rollback", help=help_text)(verb)


_decision(
    True,
    """Commit a branch without its transaction manager.

    Which may decide otherwise: the outcome is then mixed. The decision is recorded durably before anything is done, and
    told to the transaction manager until it is forgotten. Goes through the server where one serves the space; no other
    process may own it. With --tm it carries out what the log has decided, and refuses anything else.
    """,
)
_decision(
    False,
    """Roll a branch back without its transaction manager.

    Which may decide otherwise: the outcome is then mixed. What it held is back in its place, what it added is gone.
    Recorded and told as with commit; so is what --tm does.
    """,
)


@app.command()
def forget(
    xid: XidArgument,
    reason: ReasonOption = "",
    yes: YesOption = False,
    tm: TmOption = None,
    space: SpaceOption = None,
) -> None:
    """Forget a decision, when the transaction manager has been told or will never ask.

    Recorded first: `indoubt list --forgotten` shows it from then on.
    """
    from xaqueue.cli import branches, tm_log
    from xaqueue.core.engine.heuristics import check_text

    check_text("reason", reason)
    if tm is not None:
        tm_log.forget(tm, xid, by=branches.operator(), reason=reason, asks=_asks(yes))
    else:
        branches.forget(location_of(space), xid, reason, asks=_asks(yes))


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
    space: SpaceOption = None,
) -> None:
    """Say what to do with the branches of one global transaction, and why.

    Asks the decision log and every participant that the configuration names, and a space, and does nothing. Of another
    product's transaction it says who has a branch in doubt. Exit 1 where it cannot
    know, or where no answer makes the participants agree.
    """
    from xaqueue.cli import advise as advising

    advising.run(tm, gtrid, json, location_of(space) if space else None)


def _asks(yes: bool) -> bool:
    """On a terminal; a script is taken at its word, and has to name the branch in full."""
    return not yes and output.may_ask()
