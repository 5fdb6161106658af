"""What is going on in a space, at a glance: its queues, and who is connected to its server.

Of a directory that is served the server is asked: what branches at work hold, and who waits, only the owner knows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, astuple
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from xaqueue.cli import output
from xaqueue.cli.exit_codes import ExitCode, complain
from xaqueue.cli.location import JsonOption, Location, SpaceOption, location_of, remote, served_at
from xaqueue.core.owner.record import RECOVERING, read_owner
from xaqueue.core.storage.owner_file import is_owned
from xaqueue.errors import Error, SpaceError
from xaqueue.features.counters.values import Counters
from xaqueue.features.topics.options import TopicStatus, topic_list

if TYPE_CHECKING:
    from xaqueue.offline.inspect import QueueStatus
    from xaqueue.rpc.methods.sessions import SessionStatus

ANSWER_S = 5.0
"""For how long a server is waited for where the files tell much of the same."""
Rates = tuple[float, float]
"""Messages that come, and that leave, in a second."""
RATES = ("in_per_s", "out_per_s")


def queues(
    counters: Annotated[
        bool,
        typer.Option(
            "--counters", help="Show what each has had and lost since the space was made; see COUNTERS in xaqueue(7)."
        ),
    ] = False,
    interval: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", min=0.1, max=3600, help="Look twice, so far apart, and show rates."),
    ] = None,
    json: JsonOption = False,
    space: SpaceOption = None,
) -> None:
    """List the queues, and what each holds.

    How many messages are ready, wait for their time (delayed), are held by transactions at work (locked) or by branches
    in doubt; the age of the oldest that is ready; the bytes of all, and how many sessions wait for one. A narrow
    terminal lacks some columns; --json has all. Of a queue that a stream consumes also which one that is, up to which
    number it has consumed, what it reads now, and how far it is behind. Below them each topic, and which queues get
    what is published there; `status --json` has these, too.

    Works while another process owns the space, and of a server by its URL. A "-" is what is not known: what is locked,
    and who waits, only the process knows that has the space open, and only a server can be asked. Of any other process
    the files are read, and what is locked is among ready and delayed. With --interval, also how many messages came and
    left each second meanwhile, where a server tells it. Exit 2 where queues.toml is refused: stderr says why.
    """
    location, rated = location_of(space), dict[str, Rates | None]()
    found, is_served, complaint, topics = looked(location)
    if interval is not None:
        before, began = {queue.name: queue for queue in found} if is_served else {}, time.monotonic()
        time.sleep(interval)
        found, is_served, complaint, topics = looked(location)
        elapsed_s = time.monotonic() - began
        rated = {one.name: rates(one, before.get(one.name) if is_served else None, elapsed_s) for one in found}
    if json:
        fields = [dict(zip(RATES, rated[queue.name] or (None, None), strict=True)) if rated else {} for queue in found]
        output.as_json([{**queue_document(queue), **more} for queue, more in zip(found, fields, strict=True)])
    elif counters and found:
        counter_table(found)
    else:
        queue_table(found, rated)
        topic_table(topics)
    if complaint:
        complain(f"queues.toml is refused, and what it says is not in force: {complaint}")
        raise typer.Exit(ExitCode.USAGE)


def looked(location: Location) -> tuple[list[QueueStatus], bool, str, list[TopicStatus]]:
    """The queues, whether a server tells of them, what is wrong with queues.toml, and the topics."""
    from xaqueue.offline import inspect
    from xaqueue.rpc.methods.service import status_of

    fields = served_status(location)
    if fields is None:
        definitions, complaint = inspect.definitions_in(location.directory)
        return inspect.queue_list(location.directory), False, complaint, topic_list(definitions)
    status = status_of(fields)
    return status.queues, True, status.complaint, status.topics


def rates(now: QueueStatus, before: QueueStatus | None, elapsed_s: float) -> Rates | None:
    """What came and what left in a second; None where that is not known."""
    if before is None or elapsed_s <= 0:
        return None
    came = now.counters.enqueued - before.counters.enqueued
    left = now.counters.dequeued - before.counters.dequeued
    return (came / elapsed_s, left / elapsed_s) if came >= 0 and left >= 0 else None


def sessions(json: JsonOption = False, space: SpaceOption = None) -> None:
    """List who is connected to the server of a space.

    Who each session is and from where, for how long it is connected and has asked for nothing, for which queue it
    waits, and which branches it holds. By the server's URL, or by the directory that it serves. The session of this
    command is left out; --json has it, marked by "asks".
    """
    from xaqueue.rpc.methods.service import RemoteOperator

    with remote(server_of(location_of(space))) as manager:
        found = RemoteOperator(manager).sessions()
    if json:
        output.as_json([_session_document(one) for one in found])
        return
    others = [one for one in found if not one.asks]
    if not others:
        typer.echo("nobody else is connected")
        return
    output.table(SESSION_HEADINGS, map(session_row, others), right=("session", "connected", "idle", "branches"))
    held = [
        (one.number, branch.xid, branch.state, output.age(branch.since), branch.messages)
        for one in others
        for branch in one.branches
    ]
    output.below(("session", "xid", "state", "age", "messages"), held, right=("session", "age", "messages"))
    for one in others:
        if one.holds > len(one.branches):
            typer.echo(f"session {one.number} holds {one.holds - len(one.branches):,} branches more")


def served_status(location: Location) -> dict[str, Any] | None:
    """What the server says of the space; None: there is none, or it does not answer, and the files are to be read.

    By a URL there are no files to read: raises ConnectionLost, and what the server refuses with.
    """
    if location.url:
        with remote(location.url) as manager:
            return manager.status()
    url, owner = served_at(location), read_owner(location.directory)
    if not url or owner is None or owner.state == RECOVERING:
        return None
    try:
        with remote(url, answer_s=ANSWER_S) as manager:
            return manager.status()
    except Error as error:
        complain(f"this is what the files tell, for the server at {url} does not: {error}")
        return None


def server_of(location: Location) -> str:
    """The URL of the space's server. Raises SpaceError where it has none."""
    url = served_at(location)
    if url:
        return url
    owner, where = read_owner(location.directory), location.directory
    if owner is not None and is_owned(where):
        raise SpaceError(
            f"process {owner.pid} on {owner.host} has {where} open and serves it to nobody: only a server tells who is "
            "connected. Stop that process, or let it connect to `xaqueue serve`"
        )
    raise SpaceError(f"nobody serves {where}: `xaqueue serve --space {where}` does, and tells who is connected")


SESSION_HEADINGS = ("session", "who", "from", "connected", "idle", "waits for", "branches")


def session_row(one: SessionStatus) -> tuple[object, ...]:
    place = one.address or (f"pid {one.pid}" if one.pid else one.transport)
    waits = f"{one.waits_for}, {output.age(one.waits_since)}" if one.waits_for else ""
    return str(one.number), one.who, place, output.age(one.since), output.age(one.heard), waits, one.holds


def _session_document(one: SessionStatus) -> dict[str, Any]:
    return {**asdict(one), "branches": [{**asdict(branch), "xid": str(branch.xid)} for branch in one.branches]}


def queue_document(queue: QueueStatus) -> dict[str, Any]:
    """All that is known of a queue, for programs."""
    return {**asdict(queue), "locked": queue.locked, "lag": queue.lag}


def counter_table(found: Sequence[QueueStatus]) -> None:
    names = [name.replace("_", " ") for name in Counters.__dataclass_fields__]
    output.table(("queue", *names), [(queue.name, *astuple(queue.counters)) for queue in found], right=names)


QUEUE_COLUMNS: dict[str, Callable[[QueueStatus, Rates | None], object]] = {
    "queue": lambda q, _: q.name,
    "in/s": lambda _, rate: rate and f"{rate[0]:,.1f}",
    "out/s": lambda _, rate: rate and f"{rate[1]:,.1f}",
    "messages": lambda q, _: q.depth,
    "ready": lambda q, _: q.ready,
    "delayed": lambda q, _: q.delayed,
    "locked": lambda q, _: q.locked,
    "in doubt": lambda q, _: q.in_doubt,
    "oldest": lambda q, _: output.age(q.oldest or 0) or (None if q.ready else ""),  # of those that are ready
    "bytes": lambda q, _: ("~" if q.is_estimated else "") + output.size(q.size_bytes),
    "consumers": lambda q, _: q.consumers,
    "watermark": lambda q, _: None if q.watermark is None else str(q.watermark),
    "order": lambda q, _: q.order,
    "description": lambda q, _: q.description,
}
"""What people see of a queue; text stands to the left."""
QUEUE_TEXTS = ("queue", "order", "description")


def queue_row(headings: Iterable[str], queue: QueueStatus, rate: Rates | None) -> list[object]:
    return [QUEUE_COLUMNS[heading](queue, rate) for heading in headings]


def queue_table(found: Sequence[QueueStatus], rated: Mapping[str, Rates | None] = MappingProxyType({})) -> None:
    from xaqueue.offline.health import NEAR

    if not found:
        typer.echo("no queues yet: `xaqueue define QUEUE` makes one")
        return
    headings = [name for name in QUEUE_COLUMNS if rated or not name.endswith("/s")]
    rows = [queue_row(headings, q, rated.get(q.name)) for q in found]
    numbers = [name for name in headings if name not in QUEUE_TEXTS]
    output.table(headings, rows, right=numbers, spare=("description", "order", "watermark", "bytes", "consumers"))
    streams: list[tuple[object, ...]] = []
    for q in found:
        if q.stream:
            in_flight = f"{q.in_flight[0] + 1} to {q.in_flight[1]}" if q.in_flight else ""
            streams.append((q.name, q.stream, str(q.consumed), in_flight, q.lag))
    output.below(("queue", "stream", "consumed", "in flight", "lag"), streams, right=("consumed", "lag"))
    output.below(
        ("queue", "is full by"), [(q.name, q.full or f"{q.used:.0%}") for q in found if q.full or q.used >= NEAR]
    )
    stuck = [(q.name, q.exhausted, q.stuck) for q in found if q.exhausted or q.stuck]
    output.below(("queue", "had all their tries", "cannot be moved since"), stuck, right=("had all their tries",))


def topic_table(topics: Sequence[TopicStatus]) -> None:
    """A row for each queue that subscribes, or one where none does."""
    rows = [
        (one.name, queue, ", ".join(f"{header}={value}" for header, value in match.items()), one.description)
        for one in topics
        for queue, match in (one.subscribers or {"nobody": {}}).items()
    ]
    output.below(("topic", "goes to", "only with", "description"), rows)
