"""Verbs to try a directory and the engine, and to see it all work: iotest, torture, demo."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from xaqueue.cli import output
from xaqueue.cli.exit_codes import ExitCode, complain, ended_in_order, extra_there
from xaqueue.cli.location import JsonOption, no_url
from xaqueue.errors import InvalidArgument

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

        try:
            passed = job.run(job.FAST if fast else flights, directory, typer.echo, keep=keep)
        except KeyboardInterrupt:
            complain("interrupted, before the demo had made its check")
            raise typer.Exit(ExitCode.INTERRUPTED) from None
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
        output.as_json(test.as_dict(facts, judged))
    else:
        output.lines(facts.environment.lines()[:2])
        output.table(test.HEADINGS, test.rows(facts), right=test.HEADINGS[1:])
        output.lines(test.lines(judged))
    if not judged.safe:
        raise typer.Exit(ExitCode.NOTHING)


def torture(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", callback=no_url, help="Where a space is to be; must exist.")
    ],
    flags: Annotated[
        list[str] | None, typer.Option(help="Sync flags; may be repeated. All levels without it.", metavar="FLAGS")
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(help="For each level of flags; without it 10, or until there is a verdict.", min=0.01),
    ] = None,
    seed: Annotated[str | None, typer.Option(help="Of an earlier run, for the same work again.")] = None,
    json: JsonOption = False,
) -> None:
    """Kill the engine in a directory and take its power, and say which flags are safe.

    A process with a scratch space in DIR is killed again and again. Then power is lost at random calls by the rules:
    what was synced is there, of the rest any part. Each time the space is opened again, and must have lost nothing
    that was acknowledged, nothing twice, nothing in part. Leaves nothing behind. Exit 1 where flags broke a promise, or
    where fewer than 20 kills, or losses of power, give no verdict.
    """
    from xaqueue.tools.torture import run

    if not directory.is_dir():
        raise InvalidArgument(f"{directory} is no directory: make one, on the disk that a space is to be on")
    with ended_in_order():
        results, used = run.run(directory, flags or (), seconds, _saying(json), seed)
    if json:
        output.as_json(run.as_dict(results, used))
    else:
        output.table(("flags", "killed", "power lost, by the rules"), run.rows(results))
        for line in run.lines(results):
            typer.echo(line)
        typer.echo(f"seed {used}")
    if not run.is_safe(results):
        raise typer.Exit(ExitCode.NOTHING)


def _saying(json: bool) -> Callable[[str], None]:
    """What it is at. Programs read the document alone."""
    return (lambda _: None) if json else partial(typer.echo, err=True)
