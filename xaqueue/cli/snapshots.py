"""Snapshots of a space: taken, listed, checked, removed, and put back."""

from __future__ import annotations

import time
from contextlib import closing, suppress
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from xaqueue.cli import output
from xaqueue.cli.exit_codes import ExitCode, agreed
from xaqueue.cli.location import (
    DirectoryOption,
    DryRunOption,
    JsonOption,
    SpaceOption,
    YesOption,
    directory_of,
    location_of,
    no_url,
    reached,
    unchecked_directory_of,
)
from xaqueue.cli.parameters import instant
from xaqueue.core.model.format import read_format
from xaqueue.core.owner.definitions_file import usable_definitions
from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.errors import InvalidArgument, OperationalError
from xaqueue.features.carry.carrier_note import statuses as carriers_in
from xaqueue.features.snapshots import store
from xaqueue.features.snapshots.manifest import SNAPSHOTS
from xaqueue.snapshot import SnapshotStatus
from xaqueue.times import EPOCH

HEADINGS = ("snapshot", "taken", "messages", "queues", "checked", "problem")

app = typer.Typer(no_args_is_help=True, help="Take, list, check and remove snapshots.")


@app.command()
def take(
    to: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            callback=no_url,
            help="Copy it there, to a directory that does not exist, and keep none here.",
        ),
    ] = None,
    no_check: Annotated[bool, typer.Option("--no-check", help="Do not read what was taken.")] = False,
    json: JsonOption = False,
    space: SpaceOption = None,
) -> None:
    """Take a snapshot, while others work, and read it, as `snapshot check` does. Exit 1 where something is damaged.

    It stands in snapshots/ of the space's directory, by hard links: it costs names, and no copies. Against the loss of
    the disk it is copied to another one: --to. By a URL it is not read.
    """
    location = location_of(space)
    if to is not None and location.url:
        raise InvalidArgument("--to copies files: run it on the server's machine with --space DIR")
    if to is not None and to.exists():
        raise InvalidArgument(f"{to} is there already: name a directory that is not")
    with reached(location) as manager:
        taken = manager.snapshot(prunes=to is None)
    wrong: list[str] = []
    if not (location.url or no_check):
        with closing(DirectoryFileSystem(location.directory, keep_unsynced=False)) as fs:
            wrong = store.check(fs, taken.number, time.time_ns() // 1000)
        taken = replace(taken, problem="; ".join(wrong))
    if to is not None:
        _copy(Path(location.directory), taken.number, to)
    where = to if to is not None else f"snapshot {taken.number}"
    if json:
        output.as_json(asdict(taken))
    else:
        messages, queues = output.counted(taken.messages, "message"), output.counted(taken.queues, "queue")
        typer.echo(f"{where}: {messages} in {queues}, as of {output.moment(taken.taken_at)}")
    for problem in wrong:
        typer.echo(f"damaged in {where}: {problem}", err=True)
    if wrong:
        raise typer.Exit(ExitCode.NOTHING)


def _copy(space: Path, number: int, to: Path) -> None:
    from xaqueue.features.snapshots import copies

    try:
        copies.copy(space, number, to)
    except OSError as error:
        why = f"{to} cannot be written ({error.strerror}): snapshot {number} is kept for a day"
        raise OperationalError(why) from error
    with closing(DirectoryFileSystem(space, keep_unsynced=False)) as fs:
        store.remove(fs, [number])


@app.command(name="list")
def list_(json: JsonOption = False, space: DirectoryOption = None) -> None:
    """List the snapshots, the oldest first, with what a check found and when."""
    with closing(DirectoryFileSystem(_place(space), keep_unsynced=False)) as fs:
        found = store.statuses(fs)

    def row(s: SnapshotStatus) -> tuple[object, ...]:
        return s.number, output.moment(s.taken_at), s.messages, s.queues, output.moment(s.checked_at), s.problem

    none = "no snapshots yet: `xaqueue snapshot take` makes one"
    output.records(found, json, asdict, HEADINGS, row, none=none, right=("messages", "queues"))


def _place(space: str | None) -> str:
    """What has snapshots is looked at whatever else is lost there."""
    found = unchecked_directory_of(space)
    return found if (Path(found) / SNAPSHOTS).is_dir() else directory_of(space)


@app.command()
def check(
    number: Annotated[int | None, typer.Argument(metavar="N", help="Which one; all without it.")] = None,
    json: JsonOption = False,
    space: DirectoryOption = None,
) -> None:
    """Read all of a snapshot, and say what is wrong with it. Exit 1 where something is.

    `snapshot list` shows from then on what was found and when.
    """
    with closing(DirectoryFileSystem(_place(space), keep_unsynced=False)) as fs:
        found = [one for one in store.statuses(fs) if number in (None, one.number)]
        if number is not None and not found:
            raise InvalidArgument(f"there is no snapshot {number}: `xaqueue snapshot list` names those there are")
        wrong = {one.number: store.check(fs, one.number, time.time_ns() // 1000) for one in found}
    if json:
        output.as_json([asdict(replace(one, problem="; ".join(wrong[one.number]))) for one in found])
    else:
        for name, problems in wrong.items():
            for problem in problems:
                typer.echo(problem)
            typer.echo(f"snapshot {name}: {output.counted(len(problems), 'problem') if problems else 'no damage'}")
    if any(wrong.values()):
        raise typer.Exit(ExitCode.NOTHING)


@app.command()
def rm(
    numbers: Annotated[list[int], typer.Argument(metavar="N...", help="Which ones.")],
    space: DirectoryOption = None,
) -> None:
    """Remove snapshots. Messages that only they have are gone with them."""
    directory = directory_of(space)
    with closing(DirectoryFileSystem(directory, keep_unsynced=False)) as fs:
        store.remove(fs, numbers)
        store.prune_for(fs, usable_definitions(directory)[0])
    typer.echo(f"{output.counted(len(numbers), 'snapshot')} removed")


def restore(
    snapshot: Annotated[int | None, typer.Option(metavar="N", help="Which one; the newest that is clean.")] = None,
    at: Annotated[
        str | None, typer.Option(metavar="TIME", help="As it was then: ISO 8601, local where it has no offset.")
    ] = None,
    exact: Annotated[
        bool, typer.Option("--exact", help="As it was then: leave out what was added after the snapshot.")
    ] = False,
    as_new: Annotated[
        bool,
        typer.Option("--as-new", help="Also a snapshot of another space: that is here then, and nothing of this one."),
    ] = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    json: JsonOption = False,
    space: DirectoryOption = None,
) -> None:
    """Put a snapshot back in the place of a space that nobody has open.

    What it replaces goes to removed/ in the space's directory, and stays there. Messages that were added after the
    snapshot and can be read are brought over. Those of the snapshot may have been delivered since: they are marked as
    possible duplicates. With --at it is as it was at that moment: the newest snapshot before it, and what the journal
    tells since; that takes [snapshots] in queues.toml, and level JOURNAL. A restore that was cut off is finished by
    the same command.
    """
    from xaqueue.features.snapshots.restoring import plan_of
    from xaqueue.features.snapshots.restoring import restore as restore_space
    from xaqueue.offline.plan import site_of

    if not space:
        raise InvalidArgument("restore works on the directory of a space that nobody has open: --space DIR")
    no_url(Path(space))
    moment = instant(at)
    if isinstance(moment, timedelta):
        raise InvalidArgument("--at is in the future: name a moment that has been")
    at_us = 0 if moment is None else (moment - EPOCH) // timedelta(microseconds=1)
    _name_carriers(Path(space))
    if not (yes or dry_run):
        agreed(f"replace what is in {space} by a snapshot?", "nothing was restored", ", and --dry-run shows what")
    done = restore_space(site_of(space, is_dry=dry_run), snapshot, at_us=at_us, exact=exact, as_new=as_new)
    plan = plan_of(done)
    if json:
        output.as_json(asdict(done) | plan.document(is_dry=dry_run))
        return
    plan.notes.append(f"{output.counted(done.messages, 'message')} came back, each a possible duplicate")
    if done.newer or not (exact or done.at):
        plan.notes.append(f"{output.counted(done.newer, 'message')} added after it kept")
    output.lines(plan.lines(is_dry=dry_run))


def _name_carriers(space: Path) -> None:
    """Beforehand: databases that may have carried changes under the id that the space has, and loses."""
    with (
        suppress(OperationalError, InvalidArgument, OSError),
        closing(DirectoryFileSystem(space, keep_unsynced=False)) as fs,
    ):
        found, names = read_format(space).id, [one.carrier for one in carriers_in(fs, owned=False)]
        for name in names:
            typer.echo(
                f"database {name} has carried changes of space {found}, which gets another id: start its transaction "
                f"manager first, and it delivers them; where it waits afterwards, `xaqueue tm release DIR {found}`",
                err=True,
            )
