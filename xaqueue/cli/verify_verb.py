"""The verb that checks many spaces, by processes of this machine or by Spark's executors."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from xaqueue.cli import output
from xaqueue.cli.exits import ExitCode
from xaqueue.cli.ingest_verb import spark_there
from xaqueue.cli.spaces import JsonOption, SpaceOption, paths_of
from xaqueue.errors import InvalidArgument
from xaqueue.space.offline import verify as local
from xaqueue.space.offline.verify import Verdict


def add_to(app: typer.Typer) -> None:
    """Adds this verb to an application."""
    app.command()(verify)


def verify(
    ctx: typer.Context,
    spark: Annotated[bool, typer.Option("--spark", help="By Spark's executors, for stores of any size.")] = False,
    cores: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Processes, or cores for Spark; all cores without it.")
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="With --spark: all findings as a table, PATH.parquet or PATH.csv."),
    ] = None,
    json: JsonOption = False,
    space: SpaceOption = None,
) -> None:
    """Check every block of many spaces, and all of them against each other.

    As `check`, for several spaces (a,b) or a pattern ('/data/spaces/*'), in parallel. A message id that stands in two
    queues or spaces is told, too. It only reads; a space may be in use. Exit 1 where something is wrong.
    """
    spaces = local.spaces_of(paths_of(ctx, space))
    processes = cores or os.cpu_count() or 1
    if spark:
        verdict = _by_spark(spaces, processes, report, quiet=json)
    elif report is not None:
        raise InvalidArgument("--report is written by Spark: add --spark, or take --json")
    else:
        with output.Bar("checking") as bar:
            verdict, _ = local.verify(spaces, processes, bar)
    if json:
        output.as_json(asdict(verdict) | {"wrong": verdict.wrong, "first": [one._asdict() for one in verdict.first]})
    else:
        _tell(verdict, report)
    if verdict.wrong:
        raise typer.Exit(ExitCode.NOTHING)


def _by_spark(spaces: list[str], cores: int, report: Path | None, *, quiet: bool) -> Verdict:
    with spark_there():
        from xaqueue.spark import session
        from xaqueue.spark import verify as engine

    engine.check_report(report)
    if not quiet:
        typer.echo(f"{output.counted(len(spaces), 'space')}, with Spark on {output.counted(cores, 'core')}", err=True)
    return engine.verify(session("xaqueue verify", cores=cores), spaces, report)


def _tell(verdict: Verdict, report: Path | None) -> None:
    if verdict.first:
        output.table(("severity", "space", "path", "problem"), [_row(one) for one in verdict.first])
        more = sum(verdict.counts.values()) - len(verdict.first)
        if more > 0:
            typer.echo(f"and {more:,} more")
    counts = ", ".join(f"{many:,} {severity}" for severity, many in sorted(verdict.counts.items()))
    seen = (
        f"{output.counted(verdict.messages, 'message')} in {output.counted(verdict.queues, 'queue')} "
        f"of {output.counted(verdict.spaces, 'space')}"
    )
    typer.echo(f"{seen}: {counts or 'nothing to tell'}; {'SOMETHING IS WRONG' if verdict.wrong else 'all is well'}")
    if report is not None:
        typer.echo(f"all findings are in {report}")
    if verdict.wrong:
        typer.echo("`xaqueue check --repair --space DIR` sets damaged files of a space aside")


def _row(one: local.Told) -> tuple[str, str, str, str]:
    return one.severity, one.space, one.path, one.problem
