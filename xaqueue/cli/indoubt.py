"""The operator's verbs on a space: branches in doubt, shown, and finished without their transaction manager."""

from __future__ import annotations

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
    json: JsonOption = False,
    space: SpaceOption = None,
) -> None:
    """List the branches in doubt, and those decided and not yet forgotten.

    Works while another process owns the space. Each branch has the number of messages that it adds (+) to queues and
    holds (-) of them, and the node id of its transaction manager. With --ask it says whose transaction manager is
    gone; `xaqueue tm recover` finishes what such a one has left.
    """
    from xaqueue.cli import branches

    if ask and forgotten_too:
        raise InvalidArgument("--ask is of the branches in doubt: leave --forgotten out")
    with branches.backend_of(location_of(space)) as backend:
        if forgotten_too:
            branches.print_forgotten(backend.forgotten(), json)
            return
        found, said = backend.in_doubt(), None
        if ask:
            from xaqueue.cli import advise

            said = advise.of_each([branch.xid for branch in found], ask)
        branches.print_branches(found, json, said)


@app.command()
def show(xid: XidArgument, json: JsonOption = False, space: SpaceOption = None) -> None:
    """Show one branch: the messages that it adds, those that it holds, and whose it is.

    Works while another process owns the space.
    """
    from xaqueue.cli import branches

    with branches.backend_of(location_of(space)) as backend:
        branch = branches.find(backend.in_doubt(), xid)
    branches.print_branch(branch, json)


def _decision(commit: bool, help_text: str) -> None:
    """Adds ``commit`` or ``rollback``."""

    def verb(
        xid: XidArgument,
        reason: ReasonOption = "",
        dry_run: DryRunOption = False,
        yes: YesOption = False,
        space: SpaceOption = None,
    ) -> None:
        from xaqueue.cli import branches

        if dry_run:
            branches.dry_run(location_of(space), xid, commit)
        else:
            branches.decide(location_of(space), xid, commit, reason, asks=not yes and output.may_ask())

    app.command("commit" if commit else "rollback", help=help_text)(verb)


_decision(
    True,
    """Commit a branch without its transaction manager.

    Which may decide otherwise: the outcome is then mixed. The decision is recorded durably before anything is done, and
    told to the transaction manager until it is forgotten. Goes through the server where one serves the space; no other
    process may own it. `xaqueue tm recover` carries out what a log, or a database, has decided.
    """,
)
_decision(
    False,
    """Roll a branch back without its transaction manager.

    Which may decide otherwise: the outcome is then mixed. What it held is back in its place, what it added is gone.
    Recorded and told as with commit.
    """,
)


@app.command()
def forget(xid: XidArgument, reason: ReasonOption = "", yes: YesOption = False, space: SpaceOption = None) -> None:
    """Forget a decision, when the transaction manager has been told or will never ask.

    Recorded first: `indoubt list --forgotten` shows it from then on.
    """
    from xaqueue.cli import branches
    from xaqueue.core.engine.heuristics import check_text

    check_text("reason", reason)
    branches.forget(location_of(space), xid, reason, asks=not yes and output.may_ask())


@app.command()
def advise(
    gtrid: Annotated[
        str, typer.Argument(metavar="GTRID", help="The transaction, or the xid of one of its branches in any form.")
    ],
    tm: Annotated[
        str,
        typer.Option(
            "--tm",
            metavar="CONFIG|DSN",
            help="The transaction manager's configuration, or its log with one in it; or the database that decides.",
        ),
    ],
    json: JsonOption = False,
    space: SpaceOption = None,
) -> None:
    """Say what to do with the branches of one global transaction, and why.

    Asks the log, or the database, that has the decision, every participant that the configuration names, and a space,
    and does nothing. Of another product's transaction it says who has a branch in doubt. Exit 1 where it cannot know,
    or where no answer makes the participants agree.
    """
    from xaqueue.cli import advise as advising

    advising.run(tm, gtrid, json, location_of(space) if space else None)
