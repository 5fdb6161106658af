"""Verbs to try a directory, and to see it all work: iotest and demo."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from xaqueue.cli.exit_codes import ExitCode, ended_in_order, extra_there
from xaqueue.cli.location import JsonOption, no_url
from xaqueue.cli.output import as_json

DirectoryOption = Annotated[
    Path | None,
    typer.Option(
        "--directory", metavar="DIR", callback=no_url, help="Where the files go; a temporary directory without it."
    ),
]


def demo(
    flights: Annotated[
        int | None, typer.Option(help="How many of the 336,776 flights; all of them without it.", metavar="N", min=1)
    ] = None,
    fast: Annotated[bool, typer.Option("--fast", help="As --flights 20000.")] = False,
    directory: DirectoryOption = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the temporary directory afterwards.")] = False,
) -> None:
    """Run the demo: flights, kills, recovery, Spark.

    Puts all flights of a year through a queue whose sender is killed on the way, and lets Spark read them.
    Says what was read, each exactly once, and how late the carriers were; leaves a chart, and a page that tells it.
    Exit 1 where the check fails.
    """
    with extra_there("demo"):
        from xaqueue.tools.demo import flights as job

        passed = job.run(job.FAST if fast else flights, directory, typer.echo, keep=keep)
    if not passed:
        raise typer.Exit(ExitCode.NOTHING)


def iotest(
    directory: Annotated[Path, typer.Argument(metavar="DIR", callback=no_url, help="Where a space is, or is to be.")],
    seconds: Annotated[float, typer.Option(help="For each kind of call.", min=0.01)] = 1.0,
    peer: Annotated[
        bool, typer.Option("--peer", help="Together with the same command on another machine that shares DIR.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Measure what a directory gives: syncs, renames, locks, and the flags that fit.

    Says of each of the four criteria for a failover pair whether it is met, as far as can be seen from here; with
    --peer, between two machines. Leaves nothing behind. Exit 1 where the directory is unsafe: where locks do not keep
    another process out, a sync fails, a replaced file is seen torn, or one machine is shown what the other replaced.
    """
    from xaqueue.tools import iotest as test

    with ended_in_order():
        facts, judged = test.run(directory, seconds, _saying(json), peer=peer)
    if json:
        as_json(test.as_dict(facts, judged))
    else:
        for line in test.lines(facts, judged):
            typer.echo(line)
    if not judged.safe:
        raise typer.Exit(ExitCode.NOTHING)


def _saying(json: bool) -> Callable[[str], None]:
    """What it is at. Programs read the document alone."""
    return (lambda _: None) if json else partial(typer.echo, err=True)
