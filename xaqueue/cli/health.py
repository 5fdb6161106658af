"""Whether a space is well, for probes and for people; and its metrics, for who is not scraped."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from time import monotonic, sleep
from typing import Annotated, Any

import typer

from xaqueue.cli import output
from xaqueue.cli.glance import ANSWER_S
from xaqueue.cli.location import JsonOption, SpaceOption, location_of, remote, served_at
from xaqueue.cli.replacing import replacing
from xaqueue.core.owner.record import RECOVERING
from xaqueue.errors import ConnectionLost, Error
from xaqueue.offline.health import IN_DOUBT_S, KINDS, LAG_S, NOTE, HealthFinding, findings

HEALTH_CODES = {kind: 10 + number for number, kind in enumerate(KINDS) if kind != NOTE}
"""Of ``health``, by its worst finding."""

LOOK_S = 0.1
MODE = 0o644
"""Anybody may read what a collector picks up."""


def health(
    in_doubt_age: Annotated[
        float, typer.Option("--in-doubt-age", metavar="SECONDS", min=0, help="A branch may be in doubt for so long.")
    ] = IN_DOUBT_S,
    replica_lag: Annotated[
        float, typer.Option("--replica-lag", metavar="SECONDS", min=0, help="A replica may be silent for so long.")
    ] = LAG_S,
    wait: Annotated[
        float,
        typer.Option(metavar="SECONDS", min=0, help="Wait for so long until it is served, and well: behind `serve &`."),
    ] = 0.0,
    json: JsonOption = False,
    space: SpaceOption = None,
) -> None:
    """Say whether a space is well, and what to do where it is not.

    A line for each finding, the worst first, which decides the exit code: 10 fenced, 11 nobody has it open, 12 for
    reading only, 13 a branch in doubt has lost something, 14 the disk is low, 15 its replica, 16 a branch is in doubt
    for long, 17 it recovers, 18 it is drained; 3 its server does not answer; 0 else, also where there are notes.
    """
    location = location_of(space)
    limits, until = {"in_doubt_s": in_doubt_age, "lag_s": replica_lag}, monotonic() + wait
    while True:
        url, is_last = served_at(location), monotonic() >= until
        try:
            found = _of_server(url, limits) if url else _of_files(location.directory, limits)
        except ConnectionLost:
            if is_last:
                raise
        else:
            kind = found[0].kind if found else NOTE
            if is_last or (url and kind == NOTE):  # without a URL its server may be about to listen
                break
        sleep(LOOK_S)
    if wait and not url and kind == NOTE:
        raise ConnectionLost(
            f"{location.directory} is well, and nobody serves it: a program has it open. Serve it once that has ended, "
            "or leave --wait out"
        )
    if json:
        output.as_json({"ready": kind == NOTE, "findings": [asdict(one) for one in found]})
    else:
        for one in found:
            typer.echo(output.one_line(f"{one.kind}: {one.text}"))
        if kind == NOTE:
            typer.echo("ready")
    if kind != NOTE:
        raise typer.Exit(HEALTH_CODES[kind])


def _of_server(url: str, limits: dict[str, float]) -> list[HealthFinding]:
    from xaqueue.rpc.methods.service import status_of

    with remote(url, answer_s=ANSWER_S) as manager:
        answer: dict[str, Any] = manager.call("metrics")
        if answer["state"] == RECOVERING:
            return [HealthFinding(RECOVERING, "messages are being loaded: wait")]
        status = manager.status()
    age_s = status["in_doubt_age"] / 1_000_000
    return findings(status_of(status), draining=status["draining"], in_doubt_age_s=age_s, **limits)


def _of_files(directory: str, limits: dict[str, float]) -> list[HealthFinding]:
    from xaqueue.offline import inspect
    from xaqueue.offline.inspect_branches import in_doubt

    status, waiting = inspect.status(directory), in_doubt(directory)
    ages = [output.age_s(branch.since) for branch in waiting if branch.since and branch.decision is None]
    return findings(status, draining=False, in_doubt_age_s=max(ages, default=0.0), **limits)


def metrics(
    file: Annotated[
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
    if file is None:
        typer.echo(text, nl=False)  # as text, click would take some of a label away
    else:
        with replacing(file, MODE) as made:
            made.write(text)
    if failed:
        raise failed[0]
