"""The verb that lets queues flow into tables."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from xaqueue.cli import output
from xaqueue.cli.exit_codes import ExitCode, extra_there
from xaqueue.cli.location import CatalogOption, JsonOption, SpaceOption, location_of, paths_of
from xaqueue.cli.log_output import LogFormatOption, LogLevelOption
from xaqueue.endpoint import is_url

if TYPE_CHECKING:
    from xaqueue.lake.ingest import IngestProgress

SAY_S = 10.0
"""Between two lines where stderr is no terminal."""
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def ingest(
    queue: Annotated[str, typer.Argument(metavar="QUEUE", help="A queue, several (a,b), or a pattern ('orders-*').")],
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="A directory or a table: new, empty, or of an earlier ingest.")
    ],
    to: Annotated[
        Literal["parquet", "delta", "iceberg"], typer.Option(help="Parquet files, a Delta or an Iceberg table.")
    ] = "parquet",
    catalog: CatalogOption = None,
    schema: Annotated[
        str | None,
        typer.Option(metavar="DDL|FILE", help="Of the JSON bodies; taken from the first messages without it."),
    ] = None,
    sample: Annotated[int, typer.Option(metavar="N", min=1, help="Without --schema: from so many messages.")] = 1_000,
    keep_body: Annotated[bool, typer.Option("--keep-body", help="Keep each message's body in its row, too.")] = False,
    once: Annotated[bool, typer.Option("--once", help="End when all is in that was there at the start.")] = False,
    every: Annotated[float, typer.Option(metavar="S", min=0, help="Seconds between the starts of two batches.")] = 10.0,
    consume: Annotated[
        Literal["delete", "archive", "keep"], typer.Option(help="What becomes of messages that are in the target.")
    ] = "keep",
    most: Annotated[
        int, typer.Option("--max-messages-per-trigger", metavar="N", min=1, help="The largest batch.")
    ] = 100_000,
    server: Annotated[
        str | None, typer.Option(metavar="URL", help="Of the space's server, if it cannot be seen from here.")
    ] = None,
    fail_on_data_loss: Annotated[
        bool, typer.Option(help="End where messages may be missing, or go on with those that are there.")
    ] = True,
    json: JsonOption = False,
    log_format: LogFormatOption = "text",
    log_level: LogLevelOption = None,
    space: SpaceOption = None,
) -> None:
    """Let queues flow into a table, each message exactly once.

    Bodies are JSON objects. A row has their fields as columns. A message whose body is no JSON object or does not fit
    the schema goes whole into the table TARGET/_dead_letters, with the reason. A batch appears whole. Started again, it
    goes on where it ended, however that was.

    Ctrl-C or SIGTERM ends it after the batch at work.
    """
    with extra_there("lake"):
        from xaqueue.lake import ingest as tables

        job = tables.TableJob(
            space=str(location_of(space)) if space and is_url(space) else paths_of(space),
            queue=queue,
            target=target,
            to=to,
            catalog=catalog,
            schema=schema,
            sample=sample,
            keep_body=keep_body,
            once=once,
            every_s=every,
            most_messages=most,
            consume=consume,
            server=server,
            fails_on_loss=fail_on_data_loss,
        )
        with _progress() as show, closing(_EndRequest()) as asked:
            done = tables.run(job, show, lambda: asked.made)
    if json:
        output.as_json({**asdict(done), "target": target})
    else:
        _report(done, f"{target}_dead_letters" if to == "iceberg" else f"{target}/_dead_letters")
    if done.stopped and once:
        raise typer.Exit(ExitCode.INTERRUPTED)


def _report(done: IngestProgress, dead: str) -> None:
    output.pairs(
        [
            ("rows", done.rows),
            ("dead letters", f"{done.dead_letters:,} in {dead}" if done.dead_letters else 0),
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
        self._before: dict[signal.Signals, Any] = {number: signal.signal(number, self._ask) for number in ENDING}

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
