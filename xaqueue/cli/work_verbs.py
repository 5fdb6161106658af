"""The demo and the benchmarks. Their modules, and the extras that these need, are imported when they run."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from xaqueue.cli.exits import ExitCode
from xaqueue.errors import InvalidArgument, OperationalError

bench = typer.Typer(help="Measure xaqueue on this machine.", invoke_without_command=True)

DirectoryOption = Annotated[
    Path | None,
    typer.Option("--directory", metavar="DIR", help="Where the files go; a temporary directory without it."),
]
ResultOption = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the figures to a file, too.")]


def add_to(app: typer.Typer) -> None:
    """Adds these verbs to an application."""
    app.command()(demo)
    app.add_typer(bench, name="bench")


def demo(
    flights: Annotated[
        int | None, typer.Option(help="How many of the 336,776 flights; all of them without it.", metavar="N", min=1)
    ] = None,
    directory: DirectoryOption = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the temporary directory afterwards.")] = False,
) -> None:
    """Run the demo: flights, kills, recovery, Spark.

    Puts all flights of a year through a queue whose producer is killed on the way, and lets Spark read them.
    Says what was read, each exactly once, and how late the carriers were. Exit 1 where the check fails.
    """
    with _extras("demo"):
        from xaqueue.demo import flights as job

        passed = job.run(flights, directory, typer.echo, keep=keep)
    if not passed:
        raise typer.Exit(ExitCode.NOTHING)


@bench.callback()
def bench_engine(
    ctx: typer.Context,
    directory: DirectoryOption = None,
    threads: Annotated[str, typer.Option(help="Numbers of threads.", metavar="N,N")] = "1,8",
    flags: Annotated[
        list[str] | None, typer.Option(help="Sync flags; may be repeated. All levels without it.", metavar="FLAGS")
    ] = None,
    size: Annotated[int, typer.Option(help="Bytes of a body.", min=0)] = 1024,
    seconds: Annotated[float, typer.Option(help="Of one measurement.", min=0.01)] = 3.0,
    rounds: Annotated[int, typer.Option(help="Measurements of each kind; the median counts.", min=1)] = 3,
    result: ResultOption = None,
) -> None:
    """Without a further verb: two-phase transactions a second, for each level of hardening and number of threads.

    Use a directory on a journalled file system: on tmpfs a sync costs nothing.
    """
    if ctx.invoked_subcommand is not None:
        return
    from xaqueue.bench import engine

    asked: dict[str, Any] = {"flags": tuple(flags)} if flags else {}
    options = engine.Options(
        directory=_made(directory), threads=_numbers(threads), size_bytes=size, seconds=seconds, rounds=rounds, **asked
    )
    _write(result, engine.run(options, typer.echo))


@bench.command("open")
def bench_open(
    messages: Annotated[int, typer.Option(help="How many messages.", metavar="N", min=1)] = 1_000_000,
    directory: DirectoryOption = None,
    result: ResultOption = None,
) -> None:
    """How long a space with many messages takes to open, and in how much memory."""
    from xaqueue.bench import opening

    _write(result, opening.run(messages, _made(directory), typer.echo))


@bench.command("spark")
def bench_spark(
    messages: Annotated[int, typer.Option(help="How many messages.", metavar="N", min=1)] = 100_000,
    directory: DirectoryOption = None,
    rounds: Annotated[int, typer.Option(help="Measurements of each kind; the median counts.", min=1)] = 3,
    result: ResultOption = None,
) -> None:
    """How many messages a second Spark reads, beside what its own binaryFile source reads from the same files."""
    with _extras("demo"), tempfile.TemporaryDirectory(prefix="xaqueue-bench-", dir=_made(directory)) as scratch:
        from xaqueue.bench import spark_bench

        measured = spark_bench.measure(Path(scratch) / "space", "bench", messages, rounds=rounds, progress=typer.echo)
    for name in ("xaqueue", "binary_file"):
        typer.echo(f"{name.replace('_', ' ')}: {measured[f'{name}_per_s']:,.0f} messages a second")
    typer.echo(f"ratio: {measured['ratio']:.1f}")
    _write(result, measured)


@contextmanager
def _extras(extra: str) -> Iterator[None]:
    """A package that an extra brings, and that is not there, is named with the way to get it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "xaqueue":
            raise
        raise OperationalError(
            f'{error.name.partition(".")[0]} is not installed: pip install "xaqueue[{extra}]"'
        ) from None


def _made(directory: Path | None) -> Path | None:
    if directory is not None:
        directory.mkdir(parents=True, exist_ok=True)
    return directory


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in text.split(","))
    except ValueError:
        raise InvalidArgument(f"threads {text!r} are refused: numbers like 1,8 are wanted") from None


def _write(result: Path | None, measured: dict[str, Any]) -> None:
    if result is not None:
        result.write_text(json.dumps(measured, indent=2) + "\n", "utf-8")
        typer.echo(f"the figures are in {result}")
