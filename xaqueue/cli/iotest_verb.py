"""``iotest``: whether a directory is fit for a space, before there is one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from xaqueue.cli.exits import ExitCode
from xaqueue.cli.output import as_json
from xaqueue.cli.termination import ended_in_order


def add_to(app: typer.Typer) -> None:
    """Adds the verb to an application."""
    app.command()(iotest)


def iotest(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where a space is, or is to be.")],
    seconds: Annotated[float, typer.Option(help="For each kind of call.", min=0.01)] = 1.0,
    json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> None:
    """Measure what a directory gives: syncs, renames, locks, and the flags that fit.

    Leaves nothing behind. Exit 1 where the directory is unsafe: where locks do not keep another process out, a sync
    fails, or a replaced file is seen torn.
    """
    from xaqueue.bench import iotest as test

    with ended_in_order():
        facts, judged = test.run(directory, seconds, _say_nothing if json else _say)
    if json:
        as_json(test.as_dict(facts, judged))
    else:
        for line in test.lines(facts, judged):
            typer.echo(line)
    if not judged.safe:
        raise typer.Exit(ExitCode.NOTHING)


def _say(name: str) -> None:
    typer.echo(f"measuring {name}", err=True)


def _say_nothing(_: str) -> None:
    """Programs read the document alone."""
