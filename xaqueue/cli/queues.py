"""Queues: how they are defined, what they have, and which stream consumes them until that is ended."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, replace
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from xaqueue.cli import output
from xaqueue.cli.exit_codes import ExitCode
from xaqueue.cli.location import (
    JsonOption,
    Location,
    SpaceOption,
    directory_of,
    location_of,
    reached,
    remote,
    served_at,
)
from xaqueue.errors import ConnectionLost
from xaqueue.message import check_queue_name
from xaqueue.reservation import Reservation
from xaqueue.space.model import definitions, layout
from xaqueue.space.model.index import Order
from xaqueue.space.offline import inspect
from xaqueue.space.offline.inspect import QueueStatus
from xaqueue.space.owner import open

OrderName = Enum("OrderName", {order.name: order.value for order in Order})  # type: ignore[misc]


def define(
    ctx: typer.Context,
    queue: Annotated[str, typer.Argument(metavar="QUEUE", help="Its name.")],
    order: Annotated[OrderName | None, typer.Option(help="Which message is next. A new queue is fifo.")] = None,
    description: Annotated[str | None, typer.Option(help="What it is for.", metavar="TEXT")] = None,
    space: SpaceOption = None,
) -> None:
    """Define a queue, or change its definition.

    Edits queues.toml and leaves its comments as they are. An owner that is running takes the change at once.
    """
    directory = Path(directory_of(ctx, space))
    options = {"order": order.value if order else None, "description": description}
    given = {key: value for key, value in options.items() if value is not None}
    path = directory / layout.QUEUES
    text = definitions.read(directory) if path.exists() else ""
    changed = definitions.with_queue(text, queue, given)
    if changed != text:
        open.write_definitions(directory, changed)
    defined = definitions.parse(changed).queues[queue]
    typer.echo(f"queue {queue}: {defined.order.value}" + (f", {defined.description}" if defined.description else ""))


def queues(ctx: typer.Context, json: JsonOption = False, space: SpaceOption = None) -> None:
    """List the queues.

    With their order, their number of messages and their watermark. Of a queue that a stream consumes also which one
    that is, up to which number it has consumed, what it reads now, and how far it is behind. Works while another
    process owns the space, and of a server by its URL.
    """
    found = _found(location_of(ctx, space))
    if json:
        output.as_json([{**asdict(queue), "lag": queue.lag} for queue in found])
        return
    queue_table(found)


def release(
    ctx: typer.Context,
    queue: Annotated[str, typer.Argument(metavar="QUEUE", help="Its name.")],
    through: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Consume up to this number before: it is where it belongs.")
    ] = None,
    json: JsonOption = False,
    space: SpaceOption = None,
) -> None:
    """End the reservation of a queue for a stream.

    What the stream has not consumed is there for everybody then, also what it may have read already. Where it is known
    how far it has written what it read, --through removes that first, as the stream would have. The stream is refused
    when it comes again, and has to begin with a new checkpoint. Exit 1 where the queue is not reserved.
    """
    check_queue_name(queue)
    with reached(location_of(ctx, space)) as manager:
        for one in manager.reservations() if through is not None else ():
            if one.queue == queue and through is not None:
                manager.consume(queue, one.stream, through, one.archive)
        ended = manager.release(queue)
    if json:
        output.as_json(asdict(ended) if ended is not None else None)
    elif ended is None:
        typer.echo(f"queue {queue} is not reserved for a stream")
    else:
        _print_ended(ended)
    if ended is None:
        raise typer.Exit(ExitCode.NOTHING)


def _print_ended(ended: Reservation) -> None:
    typer.echo(f"queue {ended.queue} is released by stream {ended.stream or 'unknown'}, which must not go on")
    typer.echo(f"consumed up to number {ended.consumed:,}: these messages are gone")
    if ended.in_flight is not None:
        after, upto = ended.in_flight
        read = f"{max(after, ended.consumed) + 1:,} to {upto:,}"
        typer.echo(f"read already, perhaps, and there again: {read}; look where the stream writes before others do")
    elif ended.lag:
        typer.echo(f"what follows, up to number {ended.latest:,}, the stream may have read in part already")


def _found(location: Location) -> list[QueueStatus]:
    if location.url:
        from xaqueue.rpc.methods.service import status_of

        with remote(location.url) as manager:
            return status_of(manager.status()).queues
    found, url = inspect.queue_list(location.directory), served_at(location)
    if not url or not any(queue.stream for queue in found):
        return found
    with suppress(ConnectionLost), remote(url) as manager:  # what is in flight only the owner knows
        in_flight = {one.queue: one.in_flight for one in manager.reservations()}
        return [replace(queue, in_flight=in_flight.get(queue.name)) for queue in found]
    return found


def queue_table(found: list[QueueStatus]) -> None:
    if not found:
        typer.echo("no queues yet: `xaqueue define QUEUE` makes one")
        return
    rows = [(q.name, q.order, q.depth, None if q.watermark is None else str(q.watermark), q.description) for q in found]
    output.table(("queue", "order", "messages", "watermark", "description"), rows, right=("messages", "watermark"))
    streams = [queue for queue in found if queue.stream]
    if streams:
        typer.echo()
        columns = ("queue", "stream", "consumed", "in flight", "lag")
        output.table(columns, [_stream_row(queue) for queue in streams], right=("consumed", "lag"))


def _stream_row(queue: QueueStatus) -> tuple[object, ...]:
    in_flight = f"{queue.in_flight[0] + 1} to {queue.in_flight[1]}" if queue.in_flight else ""
    return queue.name, queue.stream, str(queue.consumed), in_flight, queue.lag
