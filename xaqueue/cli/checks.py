"""Checking spaces, one or many, and going on without what a damaged journal has lost."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from xaqueue.cli import completion, output
from xaqueue.cli.exit_codes import ExitCode, agreed, extra_there
from xaqueue.cli.location import (
    DirectoryOption,
    DryRunOption,
    JsonOption,
    SpaceOption,
    YesOption,
    directory_of,
    location_of,
    paths_of,
    reached,
)
from xaqueue.core.model.layout import ARCHIVE, parse_xid
from xaqueue.core.owner.record import in_use, read_owner
from xaqueue.errors import InvalidArgument
from xaqueue.message import check_queue_name
from xaqueue.offline.findings import Finding, Severity

if TYPE_CHECKING:
    from xaqueue.core.engine import session as core
    from xaqueue.offline.plan import Plan
    from xaqueue.offline.salvage import JournalLoss, StepRead
    from xaqueue.offline.verify import Summary
    from xaqueue.rpc.client.manager import RemoteManager

ROWS = 20
"""Steps that are shown before and behind a loss, the nearest to it; --json has all."""
WHAT_IT_MEANS = """\
Going on does every step again that can be read, before the loss and behind it, and gives up the rest. An acknowledged
step in the lost part is lost, unless its files had reached the directories: a message that it added may be missing, one
that it took may be delivered again, a branch that it prepared may be unknown, and one that it committed or rolled back
may be in doubt once more. Transaction managers are not told; compare with them, and with those who sent and received.
If a copy of the lost segment can be had, put it back into journal/ instead."""


def check(
    queue: Annotated[
        str | None, typer.Argument(metavar="QUEUE", help="Only this one.", autocompletion=completion.queues)
    ] = None,
    repair_too: Annotated[
        bool, typer.Option("--repair", help="Open the space, and move what is damaged into quarantine/.")
    ] = False,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
    space: SpaceOption = None,
) -> None:
    """Check every file and every invariant of a space, or of one queue.

    Exit 1 where there is damage. Damage breaks an invariant. A leftover of a crash is finished by the next open. A note
    is neither. Looking changes nothing; of a space in use, what looks wrong is looked at twice. Only --repair writes,
    and needs a space that no other process owns; that of one QUEUE may be served, and goes on meanwhile. With --dry-run
    it says what it would set aside, and what would be wrong then.
    """
    from xaqueue.offline import check as one_space
    from xaqueue.offline.plan import Plan, site_of

    queue = check_queue_name(queue) if queue is not None else ""
    if dry_run and not repair_too:
        raise InvalidArgument("--dry-run goes with --repair: without that, check changes nothing")
    location, plan = location_of(space), Plan()
    is_by_server = bool(location.url and queue and repair_too and not dry_run)
    site = None if is_by_server else site_of(directory_of(space), is_dry=dry_run)
    if repair_too and not queue and site is not None:
        with output.progress_bar("checking") as bar:
            one_space.repair(site, bar, plan=plan)
    elif repair_too:
        with reached(location) if site is None or not dry_run else site.opened() as manager:
            _repair(manager, queue, plan)
    found: list[Finding] = []
    if site is not None:
        with output.progress_bar("checking") as bar:
            found += one_space.check(site, bar, queue=queue)
    damage = [finding for finding in found if finding.severity is Severity.DAMAGE]
    if json:
        document = {"repaired": plan.repaired, **plan.document(is_dry=dry_run)} if repair_too else {}
        rows = [_fields(finding, "severity", "path", "problem") for finding in found]
        output.as_json({"damage": len(damage), "findings": rows, **document})
    else:
        output.lines(plan.lines(is_dry=dry_run))
        _print_findings(found, "severity", "path", "problem")
        mends = "sets it aside" if any(finding.movable for finding in damage) else "makes it whole"
        advice = f"; `xaqueue check --repair` {mends}" if any(one.movable or one.block for one in damage) else ""
        typer.echo(f"{output.counted(len(damage), 'finding')} of damage{advice}" if damage else "no damage")
    if damage:
        raise typer.Exit(ExitCode.NOTHING)


def _repair(manager: core.Session | RemoteManager, queue: str, plan: Plan) -> None:
    """Of one queue, by whoever has the space open."""
    from xaqueue.features.session import whole
    from xaqueue.rpc.client.manager import RemoteManager

    if isinstance(manager, RemoteManager):
        done, plan.opened = manager.repair(queue), "by its server"
    else:
        done, plan.opened = whole(manager).repair(queue), str(manager.space.report)
    plan.set_aside(done.moved)
    plan.notes.append(f"{output.counted(done.messages, 'message')} read")
    plan.notes += (f"left, for a branch or a stream has it: {text}" for text in done.left)


def verify(
    cores: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Processes; as many as there are cores without it.")
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="All findings as a table, PATH.parquet or PATH.csv."),
    ] = None,
    json: JsonOption = False,
    space: DirectoryOption = None,
) -> None:
    """Check every block of many spaces, and all of them against each other.

    As `check`, for several spaces (a,b) or a pattern ('/data/spaces/*'), in parallel. A message id that stands in two
    queues or spaces is reported, too, and what left queues and is kept is read. It only reads; a space may be in use.
    Exit 1 where something is wrong.
    """
    from xaqueue.offline import verify as many_spaces

    spaces = many_spaces.spaces_of(paths_of(space))
    if report is not None:
        _check_report(report)
    with output.progress_bar("checking") as bar:
        summary, findings = many_spaces.verify(spaces, cores or os.cpu_count() or 1, bar)
    kept = list(_archived(spaces))
    summary.add(kept)
    if report is not None:
        from xaqueue.lake.archive_check import write_report

        write_report(many_spaces.worst_first([*findings, *kept]), report)
    if json:
        first = [_fields(finding, "space", "severity", "path", "problem") for finding in summary.first]
        output.as_json(asdict(summary) | {"wrong": summary.wrong, "first": first})
    else:
        _print_summary(summary, report)
    if summary.wrong:
        raise typer.Exit(ExitCode.NOTHING)


def _check_report(report: Path) -> None:
    if report.suffix not in (".csv", ".parquet"):
        raise InvalidArgument(f"report {str(report)!r} is refused: a name that ends in .parquet or .csv is wanted")
    if report.exists():
        raise InvalidArgument(f"report {str(report)!r} is there already: name another, or remove it")
    if not os.access(report.parent, os.W_OK | os.X_OK):  # else that is said when all was read
        raise InvalidArgument(
            f"report {str(report)!r} cannot be written: {str(report.parent)!r} is no directory to write into"
        )
    with extra_there("lake"):
        import xaqueue.lake.archive_check  # noqa: F401


def _archived(spaces: list[str]) -> Iterator[Finding]:
    """Of what left their queues and is kept, where some of that is Parquet."""
    for space in spaces:
        if (Path(space) / ARCHIVE / "parquet").is_dir():
            with extra_there("lake"):
                from xaqueue.lake.archive_check import check_archive
            yield from check_archive(space)


def _print_summary(summary: Summary, report: Path | None) -> None:
    _print_findings(summary.first, "severity", "space", "path", "problem")
    more = sum(summary.counts.values()) - len(summary.first)
    if more > 0:
        typer.echo(f"and {more:,} more")
    counts = ", ".join(f"{many:,} {severity}" for severity, many in sorted(summary.counts.items()))
    messages, queues = output.counted(summary.messages, "message"), output.counted(summary.queues, "queue")
    judged = "SOMETHING IS WRONG" if summary.wrong else "all is well"
    spaces = output.counted(summary.spaces, "space")
    typer.echo(f"{messages} in {queues} of {spaces}: {counts or 'nothing to tell'}; {judged}")
    if report is not None:
        typer.echo(f"all findings are in {report}")
    if summary.wrong:
        typer.echo("`xaqueue check --repair --space DIR` sets damaged files of a space aside")


def _print_findings(found: Sequence[Finding], *names: str) -> None:
    if found:
        output.table(names, [tuple(_fields(finding, *names).values()) for finding in found])


def _fields(finding: Finding, *names: str) -> dict[str, str]:
    return {name: str(getattr(finding, name)) for name in names}


def salvage_journal(
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    json: JsonOption = False,
    space: DirectoryOption = None,
) -> None:
    """Go on without what a damaged journal has lost.

    For a space that opens for reading only, and that nobody has open. Shows what is lost and which steps can be read
    yet; with --yes, or once it is answered yes, does those again, keeps all segments in journal/ as .archive, and
    begins a new journal. What was lost may have been acknowledged. Exit 1 where nothing was done.
    """
    from xaqueue.core.owner.open import is_owned
    from xaqueue.offline.plan import Plan, site_of
    from xaqueue.offline.salvage import find_loss, salvage

    site, plan = site_of(directory_of(space), is_dry=dry_run), Plan()
    if is_owned(site):
        raise in_use(site.root, read_owner(site), alone=True)
    loss = find_loss(site)
    if loss is None:
        typer.echo(output.json_text({"damage": None}) if json else "the journal is sound: nothing was done")
        return
    lost = [{"from": gap.start, "to": gap.end, "segment": gap.name or None} for gap in loss.gaps]
    steps = [asdict(step) for step in loss.steps]
    document = {"damage": loss.damage, "lost": lost, "files": loss.files, "steps": steps, "done": None}
    if not json:
        _print_loss(loss)
    if not (yes or dry_run):
        if json:
            output.as_json(document)
        agreed("" if json else "go on without what is lost?")
    done = salvage(site)
    done.tell(plan, loss)
    with output.progress_bar("reading messages") as bar, site.opened(bar) as session:
        plan.opened = str(session.space.report)
    if json:
        output.as_json(document | {"done": asdict(done), "opened": plan.opened} | plan.document(is_dry=dry_run))
        return
    output.lines(["", *plan.lines(is_dry=dry_run)])


def _print_loss(loss: JournalLoss) -> None:
    output.lines([loss.damage, "", *(f"lost: {lost}" for lost in (*loss.gaps, *loss.files[:ROWS]))])
    if len(loss.files) > ROWS:
        typer.echo(f"lost: {len(loss.files) - ROWS:,} more files (all with --json)")
    if not loss.gaps and not loss.files:
        typer.echo("lost: nothing; every record that the directories may lack can be read")
    before = [step for step in loss.steps if not step.behind]
    behind = [step for step in loss.steps if step.behind]
    for where, steps, shown in (("before", before, before[-ROWS:]), ("behind", behind, behind[:ROWS])):
        if not steps:
            continue
        left = f", of which {len(shown)} are shown (all with --json)" if len(shown) < len(steps) else ""
        typer.echo(f"\n{output.counted(len(steps), 'step')} can be read {where} the loss{left}:")
        output.table(("LSN", "step", "branch", "queues"), [_row(step) for step in shown])
    typer.echo(f"\n{WHAT_IT_MEANS}")


def _row(step: StepRead) -> tuple[object, ...]:
    xid = parse_xid(step.xid)
    branch = "of one session" if xid is not None and xid.is_local else step.xid
    return (f"{step.lsn:#x}", step.kind, branch, " ".join(step.queues))
