"""A space as a whole: how it is made, and what it is and holds."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from xaqueue.cli import output
from xaqueue.cli.location import JsonOption, SpaceOption, location_of, remote
from xaqueue.cli.queues import OrderName, queue_table
from xaqueue.space.model import definitions, layout
from xaqueue.space.offline import inspect
from xaqueue.space.offline.inspect_journal import JournalStatus
from xaqueue.space.owner import open
from xaqueue.storage.hardening import DEFAULT, GRAMMAR, Hardening


def init(
    directory: Annotated[Path, typer.Argument(help="Made if it is missing; empty if it is there.")],
    sync: Annotated[
        str | None, typer.Option(help=f"How durable: {GRAMMAR}. Default: {DEFAULT}.", metavar="FLAGS")
    ] = None,
    name: Annotated[str | None, typer.Option(help="The space's name, if not the directory's.", metavar="NAME")] = None,
    default: Annotated[
        OrderName | None, typer.Option(help="Take queues that are not defined, too, in this order.")
    ] = None,
) -> None:
    """Make a directory a queue space."""
    there = (directory / layout.FORMAT).exists()
    written = open.create(directory, name=name, sync=sync)
    if there:
        typer.echo(f"{directory} is queue space {written.name} already: left as it is")
        return
    if default is not None:
        text = definitions.read(directory)
        open.write_definitions(directory, definitions.with_default(text, default.value))
    hardening = Hardening.parse(sync) if sync is not None else DEFAULT
    typer.echo(f"{directory} is queue space {written.name} now")
    typer.echo(f"sync {hardening}: a commit {hardening.promise}")
    if default is None:
        typer.echo(f"define its queues next: xaqueue define QUEUE --space {directory}")


def status(ctx: typer.Context, json: JsonOption = False, space: SpaceOption = None) -> None:
    """Show what a space is and holds.

    Works while another process owns it, and of a server by its URL.
    """
    location = location_of(ctx, space)
    if location.url:
        _served_status(location.url, json)
        return
    found = inspect.status(location.directory)
    if json:
        output.as_json(asdict(found))
        return
    output.pairs(_status_rows(found))
    typer.echo()
    queue_table(found.queues)


def _served_status(url: str, json: bool) -> None:
    from xaqueue.rpc.methods.service import status_of

    with remote(url) as manager:
        fields = manager.status()
    if json:
        output.as_json(fields)
        return
    found = status_of(fields)
    sessions = f"{fields['sessions']:,}" + (f", {fields['waiting']:,} of them wait" if fields["waiting"] else "")
    draining = "no new branches are taken until `xaqueue drain --resume`" if fields["draining"] else ""
    output.pairs([("server", url), ("sessions", sessions), ("draining", draining), *_status_rows(found)])
    typer.echo()
    queue_table(found.queues)


def _status_rows(found: inspect.Status) -> list[tuple[str, object]]:
    owner = found.owner
    who = f"process {owner.pid} on {owner.host} since {owner.since}" if owner else "nobody yet"
    damaged = f", {found.damaged} of them damaged: see `xaqueue indoubt list`" if found.damaged else ""
    return [
        ("space", f"{found.format.name} ({found.directory})"),
        ("format", f"{found.format.version}, id {found.format.id}"),
        ("owner" if found.owned else "last owner", who),
        ("state", _state(found)),
        ("sync" if found.owned else "next sync", f"{found.sync}: a commit {found.promise}"),
        ("journal", _journal(found.journal) if found.journal is not None else ""),
        ("cache", _cache(*found.cache) if found.cache is not None else ""),
        ("last recovery", found.recovery),
        ("active", output.counted(found.active, "branch", "branches")),
        ("in doubt", output.counted(found.in_doubt, "branch", "branches") + damaged),
        ("committing", output.counted(found.committing, "branch", "branches") if found.committing else ""),
        ("heuristic", output.counted(found.heuristic, "branch", "branches")),
        ("quarantine", output.counted(found.quarantined, "file")),
        ("disk free", _disk_free(found)),
        ("trouble", found.trouble),
        ("complaint", f"{found.complaint}" if found.complaint else ""),
    ]


def _disk_free(found: inspect.Status) -> str:
    inodes = f", {output.counted(found.free_inodes, 'inode')}" if found.free_inodes is not None else ""
    low = f"; enqueues are refused: {found.low}" if found.low else ""
    return f"{output.size(found.free_bytes)}{inodes}{low}"


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
