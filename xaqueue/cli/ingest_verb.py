"""The verb that lets queues flow into Parquet files, with Spark."""

from __future__ import annotations

import logging
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from enum import Enum
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

from xaqueue.cli import output
from xaqueue.cli.exits import ExitCode
from xaqueue.cli.spaces import JsonOption, SpaceOption, paths_of
from xaqueue.errors import OperationalError

if TYPE_CHECKING:
    from rich.progress import Progress

    from xaqueue.spark.ingest import Job
    from xaqueue.spark.ingest_told import Told

TELL_S = 10.0
"""Between two lines where stderr is no terminal."""
ASKED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Consume(Enum):
    """What becomes of messages that are in the target."""

    delete = "delete"
    archive = "archive"
    keep = "keep"


def add_to(app: typer.Typer) -> None:
    """Adds this verb to an application."""
    app.command()(ingest)


def ingest(
    ctx: typer.Context,
    queue: Annotated[str, typer.Argument(metavar="QUEUE", help="A queue, several (a,b), or a pattern ('orders-*').")],
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="New, empty, or made by an earlier ingest.")],
    schema: Annotated[
        str | None,
        typer.Option(metavar="DDL|FILE", help="Of the JSON bodies; taken from the first messages without it."),
    ] = None,
    sample: Annotated[int, typer.Option(metavar="N", min=1, help="Without --schema: from so many messages.")] = 1_000,
    keep_body: Annotated[
        bool | None, typer.Option("--keep-body", help="Keep each message's body in its row, too.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="End when all is in that was there at the start.")] = False,
    every: Annotated[float, typer.Option(metavar="S", min=0, help="Seconds between the starts of two batches.")] = 10.0,
    consume: Annotated[Consume, typer.Option(help="What becomes of messages that are in the target.")] = Consume.keep,
    checkpoint: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Spark's checkpoint; TARGET/_checkpoint without it.")
    ] = None,
    most: Annotated[
        int, typer.Option("--max-messages-per-trigger", metavar="N", min=1, help="The largest batch.")
    ] = 100_000,
    server: Annotated[
        str | None, typer.Option(metavar="URL", help="Of the space's server, if it cannot be seen from here.")
    ] = None,
    fail_on_data_loss: Annotated[
        bool, typer.Option(help="End where messages may be missing, or go on with those that are there.")
    ] = True,
    cores: Annotated[int, typer.Option(metavar="N", min=1, help="Processor cores for Spark.")] = 2,
    memory: Annotated[str, typer.Option(metavar="SIZE", help="Memory of Spark's JVM.")] = "2g",
    json: JsonOption = False,
    space: SpaceOption = None,
) -> None:
    """Let queues flow into Parquet files, each message exactly once.

    Bodies are JSON objects. A row has their fields as columns. A message whose body is no JSON object or does not fit
    the schema goes whole into the table TARGET/_dead_letters, with the reason. Partitions: batch, queue, day (UTC, of
    the time when the message was enqueued). A batch appears whole. Started again, it goes on where it ended, however
    that was.

    Ctrl-C or SIGTERM ends it after the batch at work. The space may be several, or a pattern.
    """
    options = {"consume": consume.value, "failOnDataLoss": str(fail_on_data_loss).lower()}
    if server:
        options["server"] = server
    with spark_there():
        from xaqueue.spark import ingest as engine

    job = engine.Job(
        space=paths_of(ctx, space),
        queue=queue,
        target=target,
        schema=schema,
        sample=sample,
        keep_body=keep_body,
        once=once,
        every_s=every,
        checkpoint=checkpoint,
        most_per_trigger=most,
        options=tuple(options.items()),
    )
    told = _run(job, cores, memory)
    if json:
        output.as_json({**asdict(told), "target": str(target)})
    else:
        _report(told, target)
    if told.stopped and once:
        raise typer.Exit(ExitCode.INTERRUPTED)


def _run(job: Job, cores: int, memory: str) -> Told:
    from xaqueue.spark import ingest as engine
    from xaqueue.spark import session

    with _Asked() as asked, _Lines() as lines:

        def start() -> Any:
            started = session("xaqueue ingest", cores=cores, **{"spark.driver.memory": memory})
            if not logging.getLogger("xaqueue").isEnabledFor(logging.INFO):  # --verbose
                started.sparkContext.setLogLevel("FATAL")  # what fails is told in a sentence, not in a stack of Java's
            asked.listen()  # now: Spark has put a handler of its own for Ctrl-C, which would cancel the batch
            return started

        return engine.run(job, start, lines.tell, asked.to_end)


def _report(told: Told, target: Path) -> None:
    rate = told.messages / told.seconds if told.seconds else 0.0
    output.pairs(
        [
            ("rows", told.rows),
            ("dead letters", f"{told.dead_letters:,} in {target / '_dead_letters'}" if told.dead_letters else 0),
            ("batches", told.batches),
            ("seconds", f"{told.seconds:.1f}, {rate:,.0f} messages a second"),
            ("lag", told.lag),
        ]
    )
    if told.stopped:
        typer.echo("ended as asked: run it again to go on")


@contextmanager
def spark_there() -> Iterator[None]:
    """A package that is missing is named with the way to get it, by the room that needs it."""
    try:
        yield
    except ImportError as missing:
        raise OperationalError(str(missing)) from None


class _Asked:
    """Whether somebody asked for the end. Who asks twice with Ctrl-C doesn't wait for the batch at work."""

    def __init__(self) -> None:
        self._asked = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, action in self._before.items():
            signal.signal(number, action)

    def listen(self) -> None:
        self._before = {number: signal.signal(number, self._ask) for number in ASKED}

    def to_end(self) -> bool:
        return self._asked

    def _ask(self, number: int, _: FrameType | None) -> None:
        if self._asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        self._asked = True


class _Lines:
    """How far it is: one line that changes on a terminal, one every ten seconds elsewhere, on stderr."""

    def __init__(self) -> None:
        self._shown: Progress | None = None
        self._next = time.monotonic() + TELL_S

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

            columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
            self._shown = Progress(*columns, console=Console(stderr=True), transient=True)
            self._shown.add_task("ingesting")
            self._shown.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shown is not None:
            self._shown.stop()

    def tell(self, told: Told) -> None:
        if self._shown is not None:
            self._shown.update(self._shown.task_ids[0], description=_line(told))
        elif time.monotonic() >= self._next:
            self._next += TELL_S
            typer.echo(_line(told), err=True)


def _line(told: Told) -> str:
    rate = told.messages / told.seconds if told.seconds else 0.0
    dead = f", {told.dead_letters:,} dead letters" if told.dead_letters else ""
    lag = f", lag {told.lag:,}" if told.lag is not None else ""
    return f"{told.rows:,} rows{dead} in {output.counted(told.batches, 'batch', 'batches')}, {rate:,.0f}/s{lag}"
