"""The verb that lets queues flow into Parquet files, with Spark."""

from __future__ import annotations

import logging
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from xaqueue.cli import output
from xaqueue.cli.exit_codes import ExitCode, extra_there
from xaqueue.cli.location import DirectoryOption, JsonOption, paths_of
from xaqueue.cli.log_output import LogFormatOption, LogLevelOption

if TYPE_CHECKING:
    from xaqueue.spark.ingest import IngestJob, IngestProgress

SAY_S = 10.0
"""Between two lines where stderr is no terminal."""
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def ingest(
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
    consume: Annotated[
        Literal["delete", "archive", "keep"], typer.Option(help="What becomes of messages that are in the target.")
    ] = "keep",
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
    log_format: LogFormatOption = "text",
    log_level: LogLevelOption = None,
    space: DirectoryOption = None,
) -> None:
    """Let queues flow into Parquet files, each message exactly once.

    Bodies are JSON objects. A row has their fields as columns. A message whose body is no JSON object or does not fit
    the schema goes whole into the table TARGET/_dead_letters, with the reason. Partitions: batch, queue, day (UTC, of
    the time when the message was enqueued). A batch appears whole. Started again, it goes on where it ended, however
    that was.

    Ctrl-C or SIGTERM ends it after the batch at work. The space may be several, or a pattern.
    """
    options = {"consume": consume, "failOnDataLoss": str(fail_on_data_loss).lower()}
    options |= {"server": server} if server else {}
    with extra_there("spark"):
        from xaqueue.spark import ingest as engine

    job = engine.IngestJob(
        space=paths_of(space),
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
    done = _run(job, cores, memory)
    if json:
        output.as_json({**asdict(done), "target": str(target)})
    else:
        _report(done, target)
    if done.stopped and once:
        raise typer.Exit(ExitCode.INTERRUPTED)


def _run(job: IngestJob, cores: int, memory: str) -> IngestProgress:
    from xaqueue.spark import ingest as engine
    from xaqueue.spark import session

    with _progress() as show, closing(_EndRequest()) as asked:

        def start() -> Any:
            started = session("xaqueue ingest", cores=cores, **{"spark.driver.memory": memory})
            if not logging.getLogger("xaqueue").isEnabledFor(logging.INFO):  # --verbose
                started.sparkContext.setLogLevel("FATAL")  # what fails is said in a sentence, not in a stack of Java's
            asked.listen()  # now: Spark has put a handler of its own for Ctrl-C, which would cancel the batch
            return started

        return engine.run(job, start, show, lambda: asked.made)


def _report(done: IngestProgress, target: Path) -> None:
    output.pairs(
        [
            ("rows", done.rows),
            ("dead letters", f"{done.dead_letters:,} in {target / '_dead_letters'}" if done.dead_letters else 0),
            ("batches", done.batches),
            ("seconds", f"{done.seconds:.1f}, {_rate(done):,.0f} messages a second"),
            ("lag", done.lag),
        ]
    )
    if done.stopped:
        typer.echo("ended as asked: run it again to go on")


class _EndRequest:
    """Whether somebody asked for the end. Who asks twice with Ctrl-C doesn't wait for the batch at work."""

    def __init__(self) -> None:
        self.made = False
        self._before: dict[signal.Signals, Any] = {}

    def listen(self) -> None:
        self._before = {number: signal.signal(number, self._ask) for number in ENDING}

    def close(self) -> None:
        for number, action in self._before.items():
            signal.signal(number, action)

    def _ask(self, number: int, _: FrameType | None) -> None:
        if self.made and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.made = True


@contextmanager
def _progress() -> Iterator[Callable[[IngestProgress], None]]:
    """How far it is: one line that changes on a terminal, one every ten seconds elsewhere, on stderr."""
    next_s = time.monotonic() + SAY_S

    def say(sofar: IngestProgress) -> None:
        nonlocal next_s
        if time.monotonic() >= next_s:
            next_s += SAY_S
            typer.echo(_line(sofar), err=True)

    if not sys.stderr.isatty():
        yield say
        return
    with output.progress("ingesting") as shown:
        yield lambda sofar: shown.update(shown.task_ids[0], description=_line(sofar))


def _line(sofar: IngestProgress) -> str:
    dead = f", {sofar.dead_letters:,} dead letters" if sofar.dead_letters else ""
    lag = f", lag {sofar.lag:,}" if sofar.lag is not None else ""
    batches = output.counted(sofar.batches, "batch", "batches")
    return f"{sofar.rows:,} rows{dead} in {batches}, {_rate(sofar):,.0f}/s{lag}"


def _rate(sofar: IngestProgress) -> float:
    return sofar.messages / sofar.seconds if sofar.seconds else 0.0
