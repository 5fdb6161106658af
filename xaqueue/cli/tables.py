"""What left the queues becomes Parquet, and files that a table has left over are removed."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta
from typing import Annotated

import typer

from xaqueue.cli import output, parameters
from xaqueue.cli.exit_codes import ExitCode, agreed, extra_there
from xaqueue.cli.location import CatalogOption, DirectoryOption, DryRunOption, JsonOption, YesOption, directory_of
from xaqueue.message import check_queue_name


def clean_table(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="A table of Iceberg: namespace.table.")],
    older_than: Annotated[
        str, typer.Option(metavar="AGE", help=f"What was written so long ago, {parameters.SPAN_HELP}.")
    ],
    catalog: CatalogOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    json: JsonOption = False,
) -> None:
    """Remove files of an Iceberg table that no snapshot names, as rollbacks and killed writers leave them.

    Refused while a transaction that has changed the table is open or in doubt. AGE is to be longer than any transaction
    takes, and an hour at least.
    """
    with extra_there("lake"):
        from xaqueue.lake.catalog import catalog_named
        from xaqueue.lake.orphans import orphans
    age = parameters.span(older_than) or timedelta()
    opened = catalog_named(catalog)
    found = orphans(opened, table, age)
    if not json:
        output.lines(f"{output.moment(one.modified_us)}  {output.size(one.size_bytes)}  {one.path}" for one in found)
    if found and not dry_run:
        if not yes:
            agreed("" if json else "remove these for good?", "nothing was removed", ", and --dry-run shows what")
        found = orphans(opened, table, age, remove=True)
    if json:
        output.as_json({"removed": [asdict(one) for one in found], "dry_run": dry_run})
        return
    size = output.size(sum(one.size_bytes for one in found))
    output.lines([f"{output.counted(len(found), 'file')}, {size}, {'to remove' if dry_run else 'removed'}"])


def archive(
    queues: Annotated[list[str] | None, typer.Argument(metavar="[QUEUE...]", help="Only of these.")] = None,
    json: JsonOption = False,
    space: DirectoryOption = None,
) -> None:
    """Bring what left the queues and is kept into Parquet: archive/parquet/queue=QUEUE/day=DAY/.

    That is what was taken of a queue with archive = "parquet", what has expired there, and what a stream has consumed
    and was to keep. Small files of a day become one. The space may be in use. What is damaged stays where it is, and
    then the exit status is 1.
    """
    with extra_there("lake"):
        from xaqueue.lake.archive import archive as bring
    done = bring(directory_of(space), [check_queue_name(queue) for queue in queues or ()])
    if json:
        output.as_json({"messages": done.messages, "files": done.files, "merged": done.merged, "wrong": done.wrong})
    else:
        output.lines([f"{one}: it stays" for one in done.wrong])
        output.lines([f"{output.counted(done.messages, 'message')} in {output.counted(done.files, 'new file')}"])
    if done.wrong:
        raise typer.Exit(ExitCode.NOTHING)
