"""``torture``: whether the engine keeps its promises in a directory, flag by flag."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from xaqueue.cli.exits import ExitCode
from xaqueue.cli.output import as_json, table
from xaqueue.cli.termination import ended_in_order


def add_to(app: typer.Typer) -> None:
    """Adds the verb to an application."""
    app.command()(torture)


def torture(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where a space is to be; must exist.")],
    flags: Annotated[
        list[str] | None, typer.Option(help="Sync flags; may be repeated. All levels without it.", metavar="FLAGS")
    ] = None,
    seconds: Annotated[float, typer.Option(help="For each level of flags.", min=0.01)] = 10.0,
    seed: Annotated[str | None, typer.Option(help="Of an earlier run, for the same work again.")] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> None:
    """Kill the engine and take its power in a directory, and say which flags are safe there.

    A process with a scratch space in DIR is killed again and again. Then power is lost at random calls by the rules:
    what was synced is there, of the rest any part. Each time the space is opened again, and must have lost nothing
    that was acknowledged, nothing twice, nothing in part. Leaves nothing behind. Exit 1 where flags broke a promise.
    """
    from xaqueue.torture import run, verdict

    with ended_in_order():
        results, used = run.run(directory, flags or (), seconds, _say_nothing if json else _say, seed)
    if json:
        as_json(verdict.as_dict(results, used))
    else:
        table(("flags", "killed", "power lost, by the rules"), verdict.rows(results))
        for line in verdict.lines(results):
            typer.echo(line)
        typer.echo(f"seed {used}")
    if not verdict.is_safe(results):
        raise typer.Exit(ExitCode.NOTHING)


def _say(name: str) -> None:
    typer.echo(name, err=True)


def _say_nothing(_: str) -> None:
    """Programs read the document alone."""
