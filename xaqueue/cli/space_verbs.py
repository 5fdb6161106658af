"""Verbs about a space as a whole: init, define, status, check."""

from __future__ import annotations

from dataclasses import asdict
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from xaqueue.cli import output
from xaqueue.cli.exits import ExitCode
from xaqueue.cli.spaces import JsonOption, SpaceOption, directory_of, place_of, remote
from xaqueue.cli.stream_verbs import queue_table
from xaqueue.space.model import definitions, layout
from xaqueue.space.model.index import Order
from xaqueue.space.offline import inspect
from xaqueue.space.offline.check import Finding, Severity, check, repair
from xaqueue.space.offline.inspect_journal import JournalStatus
from xaqueue.space.owner import open
from xaqueue.storage.hardening import DEFAULT, GRAMMAR, Hardening

OrderName = Enum("OrderName", {order.name: order.value for order in Order})  # type: ignore[misc]


def add_to(app: typer.Typer) -> None:
    """Adds these verbs to an application."""
    for verb in (init, define, status):
        app.command()(verb)
    app.command("check")(check_space)


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


def status(ctx: typer.Context, json: JsonOption = False, space: SpaceOption = None) -> None:
    """Show what a space is and holds.

    Works while another process owns it, and of a server by its URL.
    """
    place = place_of(ctx, space)
    if place.url:
        _served_status(place.url, json)
        return
    found = inspect.status(place.directory)
    if json:
        output.as_json(asdict(found))
        return
    output.pairs(_status_rows(found))
    typer.echo()
    queue_table(found.queues)


def _served_status(url: str, json: bool) -> None:
    from xaqueue.rpc.server_status import status_of

    with remote(url) as manager:
        told = manager.status()
    if json:
        output.as_json(told)
        return
    found = status_of(told)
    sessions = f"{told['sessions']:,}" + (f", {told['waiting']:,} of them wait" if told["waiting"] else "")
    draining = "no new branches are taken until `xaqueue drain --resume`" if told["draining"] else ""
    output.pairs([("server", url), ("sessions", sessions), ("draining", draining), *_status_rows(found)])
    typer.echo()
    queue_table(found.queues)


def check_space(
    ctx: typer.Context,
    repair_too: Annotated[
        bool, typer.Option("--repair", help="Open the space, and move what is damaged into quarantine/.")
    ] = False,
    json: JsonOption = False,
    space: SpaceOption = None,
) -> None:
    """Check every file and every invariant of a space.

    Exit 1 where there is damage. Damage breaks an invariant. A leftover of a crash is finished by the next open. A note
    is neither. Looking changes nothing; of a space in use, what looks wrong is looked at twice. Only --repair writes,
    and needs a space that no other process owns.
    """
    directory = directory_of(ctx, space)
    repaired = None
    with output.Bar("checking") as bar:
        if repair_too:
            repaired = repair(directory, bar)
        found = list(check(directory, bar))
    damage = sum(1 for finding in found if finding.severity is Severity.DAMAGE)
    if json:
        told: dict[str, Any] = {"damage": damage, "findings": [_finding_json(finding) for finding in found]}
        output.as_json(told | ({"repaired": asdict(repaired)} if repaired else {}))
    else:
        if repaired is not None:
            typer.echo(f"opened: {repaired.recovery}")
            for line in (*(f"moved to quarantine: {text}" for text in repaired.moved), *repaired.notes):
                typer.echo(line)
        _tell(found, damage)
    if damage:
        raise typer.Exit(ExitCode.NOTHING)


def _tell(found: list[Finding], damage: int) -> None:
    if found:
        output.table(("severity", "path", "problem"), [(f.severity.value, f.path, f.problem) for f in found])
    if not damage:
        typer.echo("no damage")
        return
    movable = sum(1 for finding in found if finding.movable)
    advice = "; `xaqueue check --repair` sets it aside" if movable else ""
    typer.echo(f"{output.counted(damage, 'finding')} of damage{advice}")


def _finding_json(finding: Finding) -> dict[str, Any]:
    return {"severity": finding.severity.value, "path": finding.path, "problem": finding.problem}


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
