"""The operator's verb for a damaged journal: what is lost is shown, and given up when they say so."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Annotated, Any

import typer

from xaqueue.cli import output
from xaqueue.cli.exits import ExitCode, complain
from xaqueue.cli.spaces import JsonOption, SpaceOption, directory_of, owned
from xaqueue.errors import SpaceInUse
from xaqueue.space.model.layout import parse_xid
from xaqueue.space.owner.open import is_owned
from xaqueue.space.recovery.salvage import Loss, Salvaged, StepRead, find_loss, salvage

ROWS = 20
"""Steps that are shown before and behind a loss, the nearest to it; --json has all."""
WHAT_IT_MEANS = """\
Going on does every step again that can be read, before the loss and behind it, and gives up the rest. An acknowledged
step in the lost part is lost, unless its files had reached the directories: a message that it added may be missing, one
that it took may be delivered again, a branch that it prepared may be unknown, and one that it committed or rolled back
may be in doubt once more. Transaction managers are not told; compare with them, and with those who sent and received.
If a copy of the lost segment can be had, put it back into journal/ instead."""


def add_to(app: typer.Typer) -> None:
    """Adds these verbs to an application."""
    app.command("salvage-journal")(salvage_journal)


def salvage_journal(
    ctx: typer.Context,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do it, and do not ask.")] = False,
    json: JsonOption = False,
    space: SpaceOption = None,
) -> None:
    """Go on without what a damaged journal has lost.

    For a space that opens for reading only, and that nobody has open. Shows what is lost and which steps can be read
    yet; with --yes, or once it is answered yes, does those again, keeps all segments in journal/ as .archive, and
    begins a new journal. What was lost may have been acknowledged. Exit 1 where nothing was done.
    """
    directory = directory_of(ctx, space)
    if is_owned(directory):
        raise SpaceInUse(f"{directory} is in use: stop its owner first")
    loss = find_loss(directory)
    if loss is None:
        if json:
            output.as_json({"damage": None})
        else:
            typer.echo("the journal is sound: nothing was done")
        return
    if not json:
        _show(loss)
    if not (yes or (not json and sys.stdin.isatty() and typer.confirm("go on without what is lost?", err=True))):
        if json:
            output.as_json(_json(loss))
        complain("nothing was done: with --yes it goes on without what is lost")
        raise typer.Exit(ExitCode.NOTHING)
    done = salvage(directory)
    with owned(directory) as session:
        opened = str(session.space.report)
    if json:
        output.as_json(_json(loss) | {"done": asdict(done), "opened": opened})
        return
    _tell(done, opened)


def _show(loss: Loss) -> None:
    typer.echo(loss.damage)
    typer.echo()
    for gap in loss.gaps:
        typer.echo(f"lost: {gap}")
    for told in loss.files[:ROWS]:
        typer.echo(f"lost: {told}")
    if len(loss.files) > ROWS:
        typer.echo(f"lost: {len(loss.files) - ROWS:,} more files (all with --json)")
    if not loss.gaps and not loss.files:
        typer.echo("lost: nothing; every record that the directories may lack can be read")
    before = [step for step in loss.steps if not step.behind]
    behind = [step for step in loss.steps if step.behind]
    for where, steps, shown in (("before", before, before[-ROWS:]), ("behind", behind, behind[:ROWS])):
        if not steps:
            continue
        typer.echo()
        left = f", of which {len(shown)} are shown (all with --json)" if len(shown) < len(steps) else ""
        typer.echo(f"{output.counted(len(steps), 'step')} can be read {where} the loss{left}:")
        output.table(("LSN", "step", "branch", "queues"), [_row(step) for step in shown])
    typer.echo()
    typer.echo(WHAT_IT_MEANS)


def _tell(done: Salvaged, opened: str) -> None:
    typer.echo()
    typer.echo(f"{output.counted(done.steps, 'step')} done again; a new journal begins")
    for archive in done.archives:
        typer.echo(f"kept: {archive}")
    for note in done.notes:
        typer.echo(note)
    typer.echo(f"opened: {opened}")


def _row(step: StepRead) -> tuple[object, ...]:
    xid = parse_xid(step.xid)
    branch = "of one session" if xid is not None and xid.is_local else step.xid
    return (f"{step.lsn:#x}", step.kind, branch, " ".join(step.queues))


def _json(loss: Loss) -> dict[str, Any]:
    lost = [{"from": gap.start, "to": gap.end, "segment": gap.name or None} for gap in loss.gaps]
    steps = [asdict(step) for step in loss.steps]
    return {"damage": loss.damage, "lost": lost, "files": loss.files, "steps": steps, "done": None}
