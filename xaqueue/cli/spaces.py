"""A space and its queues: how they are made and defined, what they have, and which stream consumes one until then."""

from __future__ import annotations

import tomllib
from contextlib import suppress
from dataclasses import asdict, astuple
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from xaqueue.carried import CarrierState, CarrierStatus
from xaqueue.cli import completion, output
from xaqueue.cli.exit_codes import ExitCode
from xaqueue.cli.glance import counter_table, queue_document, queue_table, served_status, topic_table
from xaqueue.cli.location import JsonOption, SpaceOption, location_of, no_url, reached, remote, served_at
from xaqueue.core.model import definitions, layout
from xaqueue.core.model import options as takes
from xaqueue.core.model.order import Order
from xaqueue.core.owner import definitions_file
from xaqueue.core.storage.hardening import DEFAULT, GRAMMAR, NOTHING, Hardening
from xaqueue.errors import AccessDenied, ConnectionLost, InvalidArgument
from xaqueue.features.counters.values import Counting
from xaqueue.features.defining import edits
from xaqueue.features.snapshots.options import DAILY
from xaqueue.features.topics.options import TOPICS
from xaqueue.message import check_queue_name
from xaqueue.reservation import Reservation

if TYPE_CHECKING:
    from xaqueue.offline import inspect
    from xaqueue.offline.aside import Aside
    from xaqueue.offline.inspect import JournalStatus

OrderName = Enum("OrderName", {order.name: order.value for order in Order})  # type: ignore[misc]


def init(
    directory: Annotated[Path, typer.Argument(callback=no_url, help="Made if it is missing; empty if it is there.")],
    sync: Annotated[
        str | None, typer.Option(help=f"How durable: {GRAMMAR}. Default: {DEFAULT}.", metavar="FLAGS")
    ] = None,
    name: Annotated[str | None, typer.Option(help="The space's name, if not the directory's.", metavar="NAME")] = None,
    default: Annotated[
        OrderName | None, typer.Option(help="Take queues that are not defined, too, in this order.")
    ] = None,
) -> None:
    """Make a directory a queue space."""
    from xaqueue.features import opening

    there = (directory / layout.FORMAT).exists()
    is_defined = (directory / layout.QUEUES).exists()
    written = opening.create(directory, name=name, sync=sync)
    if there:
        typer.echo(f"{directory} is queue space {written.name} already: left as it is")
        return
    if not is_defined:
        definitions_file.write_definitions(directory, definitions.read(directory) + DAILY)
    if default is not None:
        text = definitions.read(directory)
        definitions_file.write_definitions(directory, edits.with_default(text, default.value))
    hardening = Hardening.parse(sync) if sync is not None else DEFAULT
    typer.echo(f"{directory} is queue space {written.name} now")
    typer.echo(f"sync {hardening}: a commit {hardening.promise}")
    if default is None:
        typer.echo(f"define its queues next: xaqueue define QUEUE --space {directory}")


def status(json: JsonOption = False, space: SpaceOption = None) -> None:
    """Show what a space is and holds.

    Works while another process owns it, and of a server by its URL. A directory that is served is asked about by its
    server; where that does not answer within 5 s, or is recovering, and of any other owner, the files are read.
    """
    from xaqueue.offline import inspect
    from xaqueue.rpc.methods.service import status_of

    location = location_of(space)
    server: list[tuple[str, object]] = []
    fields = served_status(location)
    if fields is not None:
        found = status_of(fields)
        sessions = f"{fields['sessions']:,}" + (f", {fields['waiting']:,} of them wait" if fields["waiting"] else "")
        draining = "no new branches are taken until `xaqueue drain --resume`" if fields["draining"] else ""
        server = [("server", served_at(location)), ("sessions", sessions), ("draining", draining)]
    else:
        found = inspect.status(location.directory)
    if json:
        output.as_json({**(fields or asdict(found)), "queues": [queue_document(queue) for queue in found.queues]})
        return
    output.pairs([*server, *_status_rows(found, has_all=bool(server))])
    typer.echo()
    queue_table(found.queues)
    topic_table(found.topics)
    used = [queue for queue in found.queues if any(astuple(queue.counters))]
    if used:
        typer.echo()
        counter_table(used)


def _status_rows(found: inspect.Status, *, has_all: bool) -> list[tuple[str, object]]:
    """has_all: the owner itself answered; with a journal and at NONE it alone knows of branches without a file."""
    owner = found.owner
    keeps = found.journal is not None or found.sync == str(NOTHING)
    unseen = found.owned and keeps and not has_all
    who = owner.who if owner else "nobody yet"
    damaged = f", {found.damaged} of them damaged: see `xaqueue indoubt list`" if found.damaged else ""
    return [
        ("space", f"{found.format.name} ({found.directory})"),
        ("format", f"{found.format.version}, id {found.format.id}"),
        ("owner" if found.owned else "last owner", who),
        ("state", _state(found)),
        ("sync" if found.owned else "next sync", f"{found.sync}: a commit {found.promise}"),
        ("journal", _journal(found.journal) if found.journal is not None else ""),
        ("cache", _cache(*found.cache) if found.cache is not None else ""),
        ("replication", str(found.replication) if found.replication is not None else ""),
        ("last recovery", found.recovery),
        ("active", output.counted(found.active, "branch", "branches") + (" with files" if unseen else "")),
        ("in doubt", output.counted(found.in_doubt, "branch", "branches") + damaged),
        ("committing", output.counted(found.committing, "branch", "branches") if found.committing else ""),
        *(("carrier", carrier(one)) for one in found.carriers if one.state is not CarrierState.CLOSED),
        ("heuristic", output.counted(found.heuristic, "branch", "branches")),
        ("quarantine", output.counted(found.quarantined, "file")),
        *(("set aside", _aside(one)) for one in found.aside),
        ("scrubbed", f"{output.moment(found.scrubbed[0])}: {found.scrubbed[1]}" if found.scrubbed else ""),
        ("counted", _counted(found.counting) if found.counting is not None else ""),
        ("disk free", _disk_free(found)),
        ("trouble", found.trouble),
        ("complaint", found.complaint),
        *(("snapshots", one) for one in found.snapshots),
    ]


def carrier(one: CarrierStatus) -> str:
    """Who carries changes of what, or is waited for."""
    if not one.pending:
        return f"{one.carrier} carries changes of {', '.join(one.queues)}"
    if one.state is CarrierState.RELEASED:
        return f"{one.carrier}, released: what it has is taken when its transaction manager is open"
    queues = ", ".join(one.queues) or "all"
    return f"{one.carrier} is waited for by {queues}: open its transaction manager with that database"


def _disk_free(found: inspect.Status) -> str:
    inodes = f", {output.counted(found.free_inodes, 'inode')}" if found.free_inodes is not None else ""
    low = f"; enqueues are refused: {found.low}" if found.low else ""
    return f"{output.size(found.free_bytes)}{inodes}{low}"


def _aside(one: Aside) -> str:
    """What `xaqueue clean` removes."""
    since = f", since {output.moment(one.since)}" if one.since is not None else ""
    return f"{output.counted(one.count, 'entry', 'entries')} in {one.path}, {output.size(one.size_bytes)}{since}"


def _counted(counting: Counting) -> str:
    text = f"since {output.moment(counting.since)}, as of {output.moment(counting.as_of)}"
    if not counting.crashes:
        return text
    ends = "a crash or a restore" if counting.crashes == 1 else f"the last of {counting.crashes} crashes or restores"
    after, found = output.moment(counting.lost_after), output.moment(counting.found_at)
    return f"{text}; {ends} found at {found} may have taken what was counted after {after}"


def _cache(hits: int, misses: int) -> str:
    reads = hits + misses
    return f"{hits / reads:.0%} of {output.counted(reads, 'read')} from memory" if reads else "no reads yet"


def _state(found: inspect.Status) -> str:
    if found.owned:
        return found.state if found.state == "alive" else f"alive, {found.state}"
    if found.journal is not None and found.journal.damage:
        return "not open; opens for reading only"
    ahead = found.journal is not None and found.journal.ahead
    return "not open; the directories may be behind the journal until it is" if ahead else "not open"


def _journal(journal: JournalStatus) -> str:
    files = f"{output.counted(journal.segments, 'segment')}, {output.size(journal.allocated_bytes)}"
    if journal.damage:
        return f"{journal.damage}; {files}"
    ahead = output.counted(journal.ahead, "record")
    return f"end at LSN {journal.end:#x}, checkpoint at {journal.checkpoint:#x}, {ahead} between; {files}"


# Its queues


def define(
    queue: Annotated[str, typer.Argument(metavar="QUEUE", help="Its name.", autocompletion=completion.queues)],
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="A key as in queues.toml; without a value it is taken away."),
    ] = None,
    order: Annotated[OrderName | None, typer.Option(help="Which message is next. A new queue is fifo.")] = None,
    description: Annotated[str | None, typer.Option(help="What it is for.", metavar="TEXT")] = None,
    topic: Annotated[bool, typer.Option("--topic", help="QUEUE is a topic, to which queues subscribe.")] = False,
    space: SpaceOption = None,
) -> None:
    """Define a queue, or change its definition.

    Edits queues.toml and leaves its comments as they are, by a server's URL, too. Takes effect at once. Shows what
    queues.toml says of the queue then.

    For example: xaqueue define orders max_tries=5 retry_delay_s=1 failure_queue=orders.failed

    A topic, and a queue that subscribes to it: xaqueue define --topic events; xaqueue define audit topic=events
    """
    from xaqueue.features.defining import queues_file

    location, given = location_of(space), edits.options_of(settings or ())
    table = TOPICS.name if topic else "queues"
    options = {"order": order.value if order else None, "description": description}
    given |= {key: value for key, value in options.items() if value is not None}
    if location.url:
        with remote(location.url) as manager:
            manager.define(queue, given, table)
        typer.echo(f"{'topic' if topic else 'queue'} {queue} is defined")
        return
    if url := served_at(location):  # which has it in force when it answers
        with suppress(ConnectionLost, AccessDenied), remote(url) as manager:
            manager.define(queue, given, table)
    defined = queues_file.define(location.directory, queue, given, table)
    if topic:
        typer.echo(f"topic {queue} is defined")
        return
    made = defined.queues[queue]
    more = f", {output.one_line(made.description)}" if made.description else ""
    typer.echo(f"queue {queue}: {made.order.value}{more}")
    table = tomllib.loads(definitions.read(location.directory))["queues"][queue]
    for key in [one.name for one in takes.everything().queue if one.name in table and one.name not in options]:
        value = table[key] if isinstance(table[key], str) else output.json_text(table[key])
        typer.echo(f"  {key}={output.one_line(value)}")


def release(
    queue: Annotated[
        str | None, typer.Argument(metavar="QUEUE", help="Its name.", autocompletion=completion.queues)
    ] = None,
    carrier: Annotated[
        str | None, typer.Option(metavar="NAME", help="Do not wait for this database any more; `status` names it.")
    ] = None,
    through: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Consume up to this number before: it is where it belongs.")
    ] = None,
    json: JsonOption = False,
    space: SpaceOption = None,
) -> None:
    """End the reservation of a queue for a stream, or the wait for a database that is lost.

    What the stream has not consumed is there for everybody then, also what it may have read already. Where it is known
    how far it has written what it read, --through removes that first, as the stream would have. The stream is refused
    when it comes again, and has to begin with a new checkpoint. Exit 1 where the queue is not reserved.

    With --carrier: a crash left changes of some queues in that database only, and they hand nothing out before it was
    asked. Give that up only where it is lost for good: messages that its last transactions added are lost then, and
    those that they took are there again. Should it come back, what it has is taken as far as that is still possible.
    """
    if (carrier is None) is (queue is None):
        raise InvalidArgument("release takes a QUEUE, or --carrier NAME")
    if queue is not None:
        check_queue_name(queue)
    ended: CarrierStatus | Reservation | None
    with reached(location_of(space)) as manager:
        for one in manager.reservations() if through is not None and queue is not None else ():
            if one.queue == queue and through is not None:
                manager.consume(queue, one.stream, through, one.archive)
        ended = manager.release(queue) if queue is not None else manager.release_carrier(carrier or "")
    if json:
        output.as_json(asdict(ended) if ended is not None else None)
    elif isinstance(ended, Reservation):
        _print_ended(ended)
    elif ended is not None:
        queues = ", ".join(ended.queues) or "all queues"
        typer.echo(f"carrier {ended.carrier} is released: {queues} wait for it no more")
        typer.echo(f"applied up to change {ended.applied:,}; what its database committed after that is lost here")
    else:
        typer.echo(f"queue {queue} is not reserved for a stream" if queue else f"carrier {carrier} is not waited for")
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
