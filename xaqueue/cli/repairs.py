"""Bringing a space up from what files are left, and removing for good what was set aside."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta
from typing import Annotated

import typer

from xaqueue.cli import output, parameters
from xaqueue.cli.exit_codes import agreed
from xaqueue.cli.location import (
    DirectoryOption,
    DryRunOption,
    JsonOption,
    YesOption,
    directory_of,
    unchecked_directory_of,
)
from xaqueue.errors import InvalidArgument
from xaqueue.message import check_queue_name


def reconstruct(
    queue: Annotated[str | None, typer.Argument(metavar="QUEUE", help="Only this one's messages.")] = None,
    metadata: Annotated[
        bool, typer.Option("--metadata", "-m", help="Only FORMAT and queues.toml; messages are not looked at.")
    ] = False,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
    space: DirectoryOption = None,
) -> None:
    """Bring a space up from what files are left, and say what was done.

    FORMAT and queues.toml are made again where they are gone or damaged, the space is opened, which recovers it, what
    is damaged is set aside, and whole messages that stand in quarantine/ come back into their queues. For a space that
    nobody has open; it may be run again. Of a damaged journal nothing is given up: that is `salvage-journal`.
    """
    from xaqueue.offline import reconstruct as rebuild
    from xaqueue.offline.plan import LEFT, MADE_AGAIN, site_of

    if queue and metadata:
        raise InvalidArgument("reconstruct takes a QUEUE, or --metadata")
    with output.progress_bar("reading") as bar:
        plan = rebuild.reconstruct(
            site_of(unchecked_directory_of(space), is_dry=dry_run),
            check_queue_name(queue) if queue is not None else "",
            only_metadata=metadata,
            progress=bar,
        )
    if json:
        document = {"made": plan.texts(MADE_AGAIN), "repaired": plan.repaired, "back": plan.back}
        output.as_json({**document, "left": plan.texts(LEFT), **plan.document(is_dry=dry_run)})
        return
    if not plan.items and not plan.opened:
        plan.notes.append("FORMAT and queues.toml are as they should be")
    output.lines(plan.lines(is_dry=dry_run))


def clean(
    older_than: Annotated[
        str, typer.Option(metavar="AGE", help=f"What was set aside so long ago, {parameters.SPAN_HELP}.")
    ],
    archive: Annotated[
        bool, typer.Option("--archive", help="Instead: what left queues, is Parquet, and was committed so long ago.")
    ] = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    json: JsonOption = False,
    space: DirectoryOption = None,
) -> None:
    """Remove for good what was set aside.

    That is what stands in quarantine/ and removed/, and segments of the journal that end in .archive; nothing else
    removes them. What a branch in doubt may need stays. A space in use may be cleaned, of what is older than an hour.
    With --archive whole days of archive/parquet/ go, and nothing else.
    """
    from xaqueue.offline import aside
    from xaqueue.offline.plan import site_of

    span = parameters.span(older_than)
    assert span is not None
    site, age_s = site_of(directory_of(space), is_dry=dry_run), span / timedelta(seconds=1)
    given_up, kept = aside.look(site, age_s, archived=archive)
    if given_up and not (yes or dry_run):
        if output.may_ask() and not json:
            output.lines(aside.plan_of(given_up, kept).lines())
        agreed("" if json else "remove these for good?", "nothing was removed", ", and --dry-run shows what")
    if given_up:
        given_up, kept = aside.clean(site, age_s, archived=archive)
    plan = aside.plan_of(given_up, kept)
    if json:
        document = {"removed": [asdict(one) for one in given_up], "kept": [asdict(one) for one in kept]}
        output.as_json(document | plan.document(is_dry=dry_run))
        return
    size = output.size(sum(one.size_bytes for one in given_up))
    plan.notes.append(
        f"{output.counted(len(given_up), 'entry', 'entries')}, {size}, {'to remove' if dry_run else 'removed'}"
    )
    output.lines(plan.lines(is_dry=dry_run))
