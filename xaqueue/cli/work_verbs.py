"""The demo and the benchmarks. Their modules, and the extras that these need, are imported when they run."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from xaqueue.bench.peers import PEERS
from xaqueue.cli.exits import ExitCode
from xaqueue.cli.termination import ended_in_order
from xaqueue.errors import InvalidArgument, OperationalError

CHARTS = (".svg", ".png", ".pdf")

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
    ledger: Annotated[
        bool, typer.Option("--ledger", help="Rows in PostgreSQL and messages in one transaction instead.")
    ] = False,
    orders: Annotated[
        int | None, typer.Option(help="With --ledger: how many orders; 1,000 without it.", metavar="N", min=1)
    ] = None,
    directory: DirectoryOption = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the temporary directory afterwards.")] = False,
) -> None:
    """Run the demo: flights, kills, recovery, Spark. With --ledger: orders, PostgreSQL, kills of everybody.

    Puts all flights of a year through a queue whose producer is killed on the way, and lets Spark read them.
    Says what was read, each exactly once, and how late the carriers were. Exit 1 where the check fails.

    With --ledger a service writes each order as a row in PostgreSQL and a message in a queue, while the service, the
    queue server and PostgreSQL are killed in turn. Says whether rows and messages agree. Exit 1 where they do not.
    """
    if (flights if ledger else orders) is not None:
        raise InvalidArgument("--flights is for the demo without --ledger, and --orders for the one with it")
    if ledger:
        with _extras("postgres"), ended_in_order():
            from xaqueue.demo import ledger as books

            passed = books.run(orders, directory, typer.echo, keep=keep)
    else:
        with _extras("demo"):
            from xaqueue.demo import flights as job

            passed = job.run(flights, directory, typer.echo, keep=keep)
    if not passed:
        raise typer.Exit(ExitCode.NOTHING)


@bench.callback()
def bench_engine(
    ctx: typer.Context,
    directory: DirectoryOption = None,
    threads: Annotated[
        list[str] | None, typer.Option(help="Numbers of threads; may be repeated. 1,8 without it.", metavar="N,N")
    ] = None,
    flags: Annotated[
        list[str] | None, typer.Option(help="Sync flags; may be repeated. All levels without it.", metavar="FLAGS")
    ] = None,
    size: Annotated[int, typer.Option(help="Bytes of a body.", min=0)] = 1024,
    messages_per_branch: Annotated[
        int, typer.Option("--messages-per-branch", help="Messages of one branch.", metavar="N", min=1)
    ] = 1,
    peers: Annotated[
        list[str] | None,
        typer.Option("--peer", help=f"Measure beside it, too: {', '.join(PEERS)}. May be repeated.", metavar="PEER"),
    ] = None,
    postgres_dsn: Annotated[
        str | None,
        typer.Option(
            "--postgres-dsn", help="A PostgreSQL that runs already; without it one is started.", metavar="DSN"
        ),
    ] = None,
    server: Annotated[
        bool, typer.Option("--server", help="Measure through a server, too: clients in processes. Flags: JOURNAL.")
    ] = False,
    checkpoints: Annotated[
        float | None,
        typer.Option("--checkpoints", help="Compare JOURNAL with a checkpoint every S seconds to none.", metavar="S"),
    ] = None,
    spark: Annotated[
        bool, typer.Option("--spark", help="The verb spark instead; takes --directory, --rounds, --json.")
    ] = False,
    seconds: Annotated[float, typer.Option(help="Of one measurement.", min=0.01)] = 3.0,
    rounds: Annotated[int, typer.Option(help="Measurements of each kind; the median counts.", min=1)] = 3,
    result: ResultOption = None,
    chart: Annotated[
        Path | None, typer.Option("--chart", help="Draw the figures: a name in .svg or .png.", metavar="FILE")
    ] = None,
) -> None:
    """Without a further verb: two-phase transactions a second, for each level of hardening and number of threads.

    Beside them, in the same run: the bare system calls, what the disk gives at most, and peers with what they promise.
    Use a directory on a journalled file system: on tmpfs a sync costs nothing.
    """
    if ctx.invoked_subcommand is not None:
        return
    if spark:
        bench_spark(directory=directory, rounds=rounds, result=result)
        return
    from xaqueue.bench import engine
    from xaqueue.bench.options import Options

    options = Options(
        directory=directory,
        threads=tuple(number for text in threads or ["1,8"] for number in _numbers(text)),
        size_bytes=size,
        messages_per_branch=messages_per_branch,
        seconds=seconds,
        rounds=rounds,
        peers=tuple(peers or ()),
        postgres_dsn=postgres_dsn,
        server=server,
        checkpoints_s=checkpoints,
        **({"flags": tuple(flags or ["JOURNAL"])} if flags or server else {}),
    )
    with _extras("chart"):
        draw = _drawing(chart)
    _made(directory)
    with ended_in_order():
        measured = engine.run(options, typer.echo)
    _write(result, measured)
    if chart is not None:
        draw(measured, chart)
        typer.echo(f"the chart is in {chart}")


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
    per_trigger: Annotated[
        int | None, typer.Option("--per-trigger", help="Messages a batch; all in one without it.", metavar="N", min=1)
    ] = None,
    sources: Annotated[bool, typer.Option("--sources", help="The sources alone: no sink, depths or spaces.")] = False,
    result: ResultOption = None,
) -> None:
    """How many messages a second Spark reads and writes, beside its own binaryFile source over the same files."""
    with _extras("demo"), tempfile.TemporaryDirectory(prefix="xaqueue-bench-", dir=_made(directory)) as scratch:
        from xaqueue.bench import spark_bars, spark_bench

        measured = spark_bench.measure(
            Path(scratch) / "space",
            "bench",
            messages,
            rounds=rounds,
            per_trigger=per_trigger,
            whole=not sources,
            progress=typer.echo,
        )
    for line in spark_bars.lines(measured):
        typer.echo(line)
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


def _drawing(chart: Path | None) -> Callable[[dict[str, Any], Path], None]:
    """What draws a chart, had before anything is measured for it."""
    if chart is None:
        return lambda measured, path: None
    if chart.suffix not in CHARTS:
        raise InvalidArgument(f"chart {str(chart)!r} is refused: a name that ends in {' or '.join(CHARTS)} is wanted")
    from xaqueue.bench.chart import draw

    return draw


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
