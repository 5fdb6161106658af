"""Metrics in Prometheus's text format, for who is not scraped."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from xaqueue.cli.location import SpaceOption, location_of
from xaqueue.cli.replacing import replacing
from xaqueue.errors import Error

MODE = 0o644


def metrics(
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Replace FILE as a whole, which anybody may read."),
    ] = None,
    space: SpaceOption = None,
) -> None:
    """Write the metrics of a space in Prometheus's text format, as `serve --http` has them under /metrics.

    For cron and node_exporter's textfile collector. Asks the server where one serves the space, else reads its files:
    then counters are those since the space was made. Where nobody answers it writes xaqueue_up 0, says why, and exits
    with 3. Needs xaqueue[metrics].
    """
    from xaqueue.metrics import ask_at, check_library, name_of, text_of

    check_library()
    place, failed = str(location_of(space)), list[Error]()

    def ask() -> dict[str, Any]:
        try:
            return ask_at(place)
        except Error as error:
            failed.append(error)
            raise

    text = text_of(ask, name_of(place))
    if output is None:
        typer.echo(text, nl=False)  # as text, click would take some of a label away
    else:
        with replacing(output, MODE) as made:
            made.write(text)
    if failed:
        raise failed[0]
