"""A transaction manager as its operator sees it: its log, and what waits at each of its participants.

Looking changes nothing, and works while the transaction manager runs.
"""

from __future__ import annotations

from typing import Annotated

import typer

from xaqueue.cli import output, parameters
from xaqueue.cli.exit_codes import agreed
from xaqueue.cli.location import JsonOption, YesOption
from xaqueue.errors import InvalidArgument

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
    end_node: Annotated[
        list[str] | None,
        typer.Option(
            "--end-node",
            metavar="NODE",
            help="With a DSN: end this one first, also where it gives signs of life. May be given again.",
            show_default=False,
        ),
    ] = None,
    yes: YesOption = False,
) -> None:
    """Finish what a transaction manager has left, as it does itself when it starts.

    While it does not run. What it had not decided is rolled back. Exit 1 where a participant was not reached, or
    something is left.

    Where a database keeps the decisions, others may run: only nodes that have given no sign of life for 10 minutes, by
    its clock, are ended, and what ended ones have left at these queues is finished. It is no node itself, and is for
    cron. What cannot wait so long ends with its node, by --end-node.
    """
    from xaqueue.cli import tm_config, tm_recover

    config = tm_config.named(tm, queues or [])
    tm_recover.recover(config, moved=moved, ends=end_node or [], asks=not yes and output.may_ask())


@app.command()
def forget(
    tm: TmArgument,
    gtrid: Annotated[
        str,
        typer.Argument(
            metavar="GTRID", help="The transaction, or the xid of one of its branches in any form.", show_default=False
        ),
    ],
    queues: QueuesArgument = None,
    reason: Annotated[
        str, typer.Option(metavar="TEXT", help="Why; a log records it with who and when.", show_default=False)
    ] = "",
    yes: YesOption = False,
) -> None:
    """Forget what participants did by themselves in a transaction, once what they did is set right.

    In the log, or the database, and at the participants that are known.
    """
    from xaqueue.cli import tm_config, tm_recover
    from xaqueue.core.engine.heuristics import check_text

    config, why = tm_config.named(tm, queues or []), check_text("reason", reason)
    tm_recover.forget(config, gtrid, why, asks=not yes and output.may_ask())


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
    from xaqueue.tm.driver import Dialect
    from xaqueue.tm.node_schema import grants, statements

    dialect = {"mariadb": Dialect.MYSQL}.get(kind) or next((one for one in Dialect if one.value == kind), Dialect.OTHER)
    made, given = statements(dialect), [] if dialect is Dialect.SQLITE else grants(role or "ROLE")
    output.lines([f"{statement};" for statement in made])
    output.lines([f"{'' if role else '-- '}{statement};" for statement in given])


@app.command()
def claim(
    tm: DatabaseArgument,
    new_id: Annotated[
        bool,
        typer.Option(
            "--new-id", help="Instead, that it is a copy, which has nothing to do with what the other one has in doubt."
        ),
    ] = False,
    yes: YesOption = False,
) -> None:
    """Say that a database is the one that it was, where it stands elsewhere now: a restored one, or one that moved.

    Until then nothing of other nodes is finished there. Of two copies that both run only one may be claimed. One for
    staging gets a new id, before its applications start.
    """
    from xaqueue.cli import tm_config, tm_recover

    tm_recover.claim(tm_config.database_of(tm), is_new=new_id, asks=not yes)


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
    from xaqueue.cli import tm_config, tm_nodes, tm_status

    config = tm_config.named(tm)
    if config.database is not None:
        tm_nodes.print_status(config.database, json)
    else:
        tm_status.print_status(config, json)


@app.command()
def release(
    tm: Annotated[
        str,
        typer.Argument(metavar="DIR", help="A transaction manager's log, or its configuration.", show_default=False),
    ],
    space: Annotated[str, typer.Argument(metavar="ID", help="Of the space that is gone.", show_default=False)],
    yes: YesOption = False,
) -> None:
    """Wait no more for a space that is gone, as one that was restored and has another id since.

    What it had prepared, or a database has carried for it, and it has not done, is lost. The transaction manager must
    not run; its participants are recovered.
    """
    from xaqueue.cli.tm_config import named, opened
    from xaqueue.cli.tm_recover import RECOVER_S, unused

    config = named(tm)
    if config.database is not None:
        raise InvalidArgument(f"{tm}: a database keeps the decisions, and there is no log that waits")
    config = unused(config, whole=True)
    if not yes:
        agreed(f"give up what space {space} was to commit, and has not done?")
    with opened(config) as manager:
        manager.recover(RECOVER_S)
        gone = manager.release(space)
        manager.recover(RECOVER_S)
    typer.echo(f"{output.counted(len(gone), 'transaction')} of space {space}: not waited for any more")
    for gtrid in gone:
        typer.echo(gtrid.decode())
