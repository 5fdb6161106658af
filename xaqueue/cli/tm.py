"""A transaction manager as its operator sees it: its log, and what waits at each of its participants.

Looking changes nothing, and works while the transaction manager runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from xaqueue.cli import output, parameters
from xaqueue.cli.exit_codes import ExitCode, agreed
from xaqueue.cli.location import JsonOption, YesOption
from xaqueue.errors import InvalidArgument

LogArgument = Annotated[
    Path, typer.Argument(metavar="DIR", help="A transaction manager's log, or its configuration.", show_default=False)
]
DatabaseArgument = Annotated[
    str,
    typer.Argument(
        metavar="DSN",
        help=f"The database that decides: {parameters.DATABASE_FORMS}; or a configuration that names it.",
        show_default=False,
    ),
]
TmArgument = Annotated[
    str,
    typer.Argument(
        metavar="CONFIG|DSN",
        help="Its configuration, or its log with one in it; or the database that decides.",
        show_default=False,
    ),
]
QueuesArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="QUEUE",
        help="With a DSN: the space of each queue, its directory or URL, the DSN of a PostgreSQL that prepares, or a "
        "participants.toml that has them.",
        show_default=False,
    ),
]
GtridArgument = Annotated[
    str,
    typer.Argument(
        metavar="GTRID", help="The transaction, or the xid of one of its branches in any form.", show_default=False
    ),
]
ReasonOption = Annotated[
    str,
    typer.Option(
        "--reason", metavar="TEXT", help="Why; recorded with who and when, where that is done.", show_default=False
    ),
]
app = typer.Typer(no_args_is_help=True, help="Look at a transaction manager, and do what it does when it starts.")


@app.command()
def recover(
    tm: TmArgument,
    queues: QueuesArgument = None,
    *,
    moved: Annotated[
        bool,
        typer.Option("--moved", help="Also a log that was restored, or was open elsewhere last: nobody uses it there."),
    ] = False,
) -> None:
    """Finish what a transaction manager has left, as it does itself when it starts.

    While it does not run. What it had not decided is rolled back. Exit 1 where a participant was not reached, or
    something is left.

    Where a database keeps the decisions, others may run: only nodes that have given no sign of life for 10 minutes, by
    its clock, are ended, and what ended ones have left at these queues is finished. It is no node itself, and is for
    cron.
    """
    from xaqueue.cli import tm_database
    from xaqueue.cli.tm_log import RECOVER_S, load, opened, unused

    if (place := tm_database.named(tm, queues or [])) is not None:
        tm_database.recover(place)
        return
    with opened(unused(load(_log_of(tm, queues)), moved=moved)) as manager:
        report, left = manager.recover(RECOVER_S), manager.in_doubt()
    for name, scan in report.scans.items():
        typer.echo(f"{name}: {scan.error or 'recovered'}")
    typer.echo(f"{output.counted(len(left), 'transaction')} left")
    if left or not report.complete:
        raise typer.Exit(ExitCode.NOTHING)


@app.command()
def resolve(
    tm: TmArgument,
    gtrid: GtridArgument,
    queues: QueuesArgument = None,
    *,
    commit: Annotated[bool, typer.Option("--commit/--rollback", help="How it ends.", show_default=False)],
    end_node: Annotated[
        bool, typer.Option("--end-node", help="Also where its node gives signs of life: end that first.")
    ] = False,
    reason: ReasonOption = "",
    yes: YesOption = False,
) -> None:
    """End one transaction that is in doubt.

    As the database, or the log, says, and anything else is refused. What the database does not know, as an older copy,
    is decided by hand at the queues, which record it with --reason and tell it to whoever asks.

    What is not decided can be rolled back. Its node is ended first, and all that it has not decided is rolled back,
    which is refused where it gives signs of life, but with --end-node.
    """
    from xaqueue.cli import tm_database, tm_log

    asks = not yes and output.may_ask()
    if (place := tm_database.named(tm, queues or [])) is not None:
        tm_database.resolve(place, gtrid, commit=commit, ends_node=end_node, reason=reason, asks=asks)
    elif end_node or reason:
        raise InvalidArgument("--end-node and --reason go with a DSN: of a log what it says is carried out")
    else:
        tm_log.carry_out(_log_of(tm, queues), gtrid, commit=commit, dry_run=False, asks=asks)


@app.command()
def forget(
    tm: TmArgument,
    gtrid: GtridArgument,
    queues: QueuesArgument = None,
    reason: ReasonOption = "",
    yes: YesOption = False,
) -> None:
    """Forget what participants did by themselves in a transaction, once what they did is set right.

    Where a database keeps the decisions: there, and at the queues that are named. Else as `indoubt forget --tm`.
    """
    from xaqueue.cli import tm_database, tm_log
    from xaqueue.cli.branches import operator
    from xaqueue.core.engine.heuristics import check_text

    asks = not yes and output.may_ask()
    if (place := tm_database.named(tm, queues or [])) is not None:
        tm_database.forget(place, gtrid, asks=asks)
    else:
        tm_log.forget(_log_of(tm, queues), gtrid, by=operator(), reason=check_text("reason", reason), asks=asks)


def _log_of(tm: str, queues: list[str] | None) -> Path:
    """Raises InvalidArgument where queues are named, which a log does by itself."""
    if queues:
        raise InvalidArgument("queues are named behind a DSN: those of a log are in its participants.toml")
    return Path(tm)


@app.command()
def sql(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="postgresql, sqlite, mysql or mariadb.")] = "postgresql",
    role: Annotated[
        str, typer.Option(metavar="ROLE", help="Who gets the rights, as the database writes it.", show_default=False)
    ] = "",
) -> None:
    """Print what makes the tables in which a database keeps the decisions, for a migration.

    A transaction manager without a directory makes them by itself, where its role may. With the rights that a role
    needs on them, as a comment where none is named.
    """
    from xaqueue.cli import tm_database

    tm_database.print_sql(kind, role)


@app.command()
def claim(tm: DatabaseArgument, yes: YesOption = False) -> None:
    """Say that a database is the one that it was, where it stands elsewhere now: a restored one, or one that moved.

    Until then nothing of other nodes is finished there. Of two copies that both run only one may be claimed.
    """
    from xaqueue.cli import tm_database

    tm_database.claim(tm_database.database_of(tm), is_new=False, asks=not yes)


@app.command(name="new-id")
def new_id(tm: DatabaseArgument, yes: YesOption = False) -> None:
    """Say that a database is a copy, which has nothing to do with what the other one has in doubt: one for staging.

    Before its applications start.
    """
    from xaqueue.cli import tm_database

    tm_database.claim(tm_database.database_of(tm), is_new=True, asks=not yes)


@app.command()
def status(
    tm: Annotated[
        str,
        typer.Argument(
            metavar="DIR|DSN",
            help="A transaction manager's log, or its configuration; or the database that decides.",
            show_default=False,
        ),
    ],
    json: JsonOption = False,
) -> None:
    """Show what a transaction manager has not finished, who carries changes, and what waits at its participants.

    These are asked where the log's directory has a participants.toml, or DIR is such a file; it exits with 1 where one
    of them cannot be. In doubt: branches that are prepared and wait for the decision. Decisions kept: rows in the
    participant's database, until all have carried them out; with queue change: those that carry what a queue does.
    Transactions at work are counted, too.

    Where a database keeps the decisions: its nodes, who of them lives, and the decisions that wait, and for which
    queues. It exits with 1 where the database is a copy, in which nothing is finished.
    """
    from xaqueue.cli import tm_database, tm_nodes, tm_status

    if (place := tm_database.named(tm)) is not None:
        tm_nodes.print_status(place.database, json)
        return
    tm_status.print_status(Path(tm), json)


@app.command()
def release(
    tm: LogArgument,
    space: Annotated[str, typer.Argument(metavar="ID", help="Of the space that is gone.", show_default=False)],
    yes: YesOption = False,
) -> None:
    """Wait no more for a space that is gone, as one that was restored and has another id since.

    What it had prepared, or a database has carried for it, and it has not done, is lost. The transaction manager must
    not run; its participants are recovered.
    """
    from xaqueue.cli.tm_log import RECOVER_S, load, opened, unused

    config = unused(load(tm), whole=True)
    if not yes:
        agreed(f"give up what space {space} was to commit, and has not done?")
    with opened(config) as manager:
        manager.recover(RECOVER_S)
        gone = manager.release(space)
        manager.recover(RECOVER_S)
    typer.echo(f"{output.counted(len(gone), 'transaction')} of space {space}: not waited for any more")
    for gtrid in gone:
        typer.echo(gtrid.decode())
