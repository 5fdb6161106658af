"""What a space holds, at a glance: its queues."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, astuple, replace
from typing import Annotated

import typer

from xaqueue.cli import output
from xaqueue.cli.location import JsonOption, Location, SpaceOption, location_of, remote, served_at
from xaqueue.errors import ConnectionLost
from xaqueue.rpc.methods.service import status_of
from xaqueue.space.model.counters import Counters
from xaqueue.space.offline import inspect
from xaqueue.space.offline.inspect import QueueStatus


def queues(
    ctx: typer.Context,
    counters: Annotated[
        bool, typer.Option("--counters", help="Show what each has had and lost since the space was made.")
    ] = False,
    json: JsonOption = False,
    space: SpaceOption = None,
) -> None:
    """List the queues.

    With their order, their number of messages and their watermark. Of a queue that a stream consumes also which one
    that is, up to which number it has consumed, what it reads now, and how far it is behind. Works while another
    process owns the space, and of a server by its URL.
    """
    found = _found(location_of(ctx, space))
    if json:
        output.as_json([{**asdict(queue), "lag": queue.lag} for queue in found])
    elif counters and found:
        counter_table(found)
    else:
        queue_table(found)


def _found(location: Location) -> list[QueueStatus]:
    if location.url:
        with remote(location.url) as manager:
            return status_of(manager.status()).queues
    found, url = inspect.queue_list(location.directory), served_at(location)
    if not url or not any(queue.stream for queue in found):
        return found
    with suppress(ConnectionLost), remote(url) as manager:  # what is in flight only the owner knows
        in_flight = {one.queue: one.in_flight for one in manager.reservations()}
        return [replace(queue, in_flight=in_flight.get(queue.name)) for queue in found]
    return found


def counter_table(found: list[QueueStatus]) -> None:
    names = [name.replace("_", " ") for name in Counters.__dataclass_fields__]
    output.table(("queue", *names), [(queue.name, *astuple(queue.counters)) for queue in found], right=names)


def queue_table(found: list[QueueStatus]) -> None:
    if not found:
        typer.echo("no queues yet: `xaqueue define QUEUE` makes one")
        return
    rows = [(q.name, q.order, q.depth, None if q.watermark is None else str(q.watermark), q.description) for q in found]
    output.table(("queue", "order", "messages", "watermark", "description"), rows, right=("messages", "watermark"))
    streams: list[tuple[object, ...]] = []
    for q in found:
        if q.stream:
            in_flight = f"{q.in_flight[0] + 1} to {q.in_flight[1]}" if q.in_flight else ""
            streams.append((q.name, q.stream, str(q.consumed), in_flight, q.lag))
    if streams:
        typer.echo()
        output.table(("queue", "stream", "consumed", "in flight", "lag"), streams, right=("consumed", "lag"))
    full = [(q.name, q.full) for q in found if q.full]
    if full:
        typer.echo()
        output.table(("queue", "is full by"), full)
    stuck = [(q.name, q.exhausted, q.stuck) for q in found if q.exhausted or q.stuck]
    if stuck:
        typer.echo()
        output.table(("queue", "had all their tries", "cannot be moved since"), stuck, right=("had all their tries",))
