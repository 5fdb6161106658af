"""A transaction manager as its operator sees it: its log, and what waits at each of its participants.

Looking changes nothing, and works while the transaction manager runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from xaqueue.cli import advise, output, spaces, tm_database, tm_log, tm_nodes
from xaqueue.cli.branches import operator
from xaqueue.cli.exit_codes import ExitCode, agreed
from xaqueue.cli.location import JsonOption, remote
from xaqueue.cli.tm_log import RECOVER_S, ParticipantConfig, TmConfig, load, opened, unused
from xaqueue.core.engine.heuristics import check_text
from xaqueue.errors import InvalidArgument, JournalDamaged
from xaqueue.features.carry.carrier_note import statuses as carriers_in
from xaqueue.offline.inspect_branches import in_doubt_in
from xaqueue.offline.redo_view import look_into
from xaqueue.rpc.methods.service import RemoteOperator, status_of
from xaqueue.tm import driver, last_resource
from xaqueue.tm.gtrid import Gtrid
from xaqueue.tm.log_directory import PARTICIPANTS, LogView, view_logs
from xaqueue.xid import Xid

HEADINGS = ("participant", "kind", "in doubt", "oldest", "decisions kept", "with queue change", "note")
LogArgument = Annotated[
    Path, typer.Argument(metavar="DIR", help="A transaction manager's log, or its configuration.", show_default=False)
]
DatabaseArgument = Annotated[
    str,
    typer.Argument(
        metavar="DSN",
        help=f"The database that decides: {tm_database.FORMS}; or a configuration that names it.",
        show_default=False,
    ),
]
TmArgument = Annotated[
    str,
    typer.Argument(
        metavar="CONFIG|DSN",
        help="Its configuration, or its log with one in it; or the database that decides.",
        show_default=False,
    ),
]
QueuesArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="QUEUE",
        help="With a DSN: the space of each queue, its directory or URL, the DSN of a PostgreSQL that prepares, or a "
        "participants.toml that has them.",
        show_default=False,
    ),
]
GtridArgument = Annotated[
    str,
    typer.Argument(
        metavar="GTRID", help="The transaction, or the xid of one of its branches in any form.", show_default=False
    ),
]
ReasonOption = Annotated[
    str,
    typer.Option(
        "--reason", metavar="TEXT", help="Why; recorded with who and when, where that is done.", show_default=False
    ),
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do it, and do not ask.")]
app = typer.Typer(no_args_is_help=True, help="Look at a transaction manager, and do what it does when it starts.")


@dataclass(slots=True)
class _Waiting:
    """What one participant has of this node. None is what it has not, or has not told."""

    name: str
    kind: str
    in_doubt: int | None = None
    since: int = 0
    """Of the oldest branch in doubt, int microseconds UTC; 0 without one, or where that is lost."""
    decisions: int | None = None
    """Rows in its database that are kept until all who prepared have hardened what they decide."""
    carried: int | None = None
    """Those of them that carry a change of a queue."""
    note: str = ""
    error: str = ""
    """Why it could not be asked."""


@app.command()
def recover(
    tm: TmArgument,
    queues: QueuesArgument = None,
) -> None:
    """Finish what a transaction manager has left, as it does itself when it starts.

    While it does not run. What it had not decided is rolled back. Exit 1 where a participant was not reached, or
    something is left.

    Where a database keeps the decisions, others may run: only nodes that have given no sign of life for 10 minutes, by
    its clock, are ended, and what ended ones have left at these queues is finished. It is no node itself, and is for
    cron.
    """
    if (place := tm_database.named(tm, queues or [])) is not None:
        tm_database.recover(place)
        return
    with opened(unused(load(_log_of(tm, queues)))) as manager:
        report, left = manager.recover(RECOVER_S), manager.in_doubt()
    for name, scan in report.scans.items():
        typer.echo(f"{name}: {scan.error or 'recovered'}")
    typer.echo(f"{output.counted(len(left), 'transaction')} left")
    if left or not report.complete:
        raise typer.Exit(ExitCode.NOTHING)


@app.command()
def resolve(
    tm: TmArgument,
    gtrid: GtridArgument,
    queues: QueuesArgument = None,
    *,
    commit: Annotated[bool, typer.Option("--commit/--rollback", help="How it ends.", show_default=False)],
    end_node: Annotated[
        bool, typer.Option("--end-node", help="Also where its node gives signs of life: end that first.")
    ] = False,
    reason: ReasonOption = "",
    yes: YesOption = False,
) -> None:
    """End one transaction that is in doubt.

    As the database, or the log, says, and anything else is refused. What the database does not know, as an older copy,
    is decided by hand at the queues, which record it with --reason and tell it to whoever asks.

    What is not decided can be rolled back. Its node is ended first, and all that it has not decided is rolled back,
    which is refused where it gives signs of life, but with --end-node.
    """
    asks = not yes and output.may_ask()
    if (place := tm_database.named(tm, queues or [])) is not None:
        tm_database.resolve(place, gtrid, commit=commit, ends_node=end_node, reason=reason, asks=asks)
    elif end_node or reason:
        raise InvalidArgument("--end-node and --reason go with a DSN: of a log what it says is carried out")
    else:
        tm_log.carry_out(_log_of(tm, queues), gtrid, commit=commit, dry_run=False, asks=asks)


@app.command()
def forget(
    tm: TmArgument,
    gtrid: GtridArgument,
    queues: QueuesArgument = None,
    reason: ReasonOption = "",
    yes: YesOption = False,
) -> None:
    """Forget what participants did by themselves in a transaction, once what they did is set right.

    Where a database keeps the decisions: there, and at the queues that are named. Else as `indoubt forget --tm`.
    """
    asks = not yes and output.may_ask()
    if (place := tm_database.named(tm, queues or [])) is not None:
        tm_database.forget(place, gtrid, asks=asks)
    else:
        tm_log.forget(_log_of(tm, queues), gtrid, by=operator(), reason=check_text("reason", reason), asks=asks)


def _log_of(tm: str, queues: list[str] | None) -> Path:
    """Raises InvalidArgument where queues are named, which a log does by itself."""
    if queues:
        raise InvalidArgument("queues are named behind a DSN: those of a log are in its participants.toml")
    return Path(tm)


@app.command()
def sql(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="postgresql, sqlite, mysql or mariadb.")] = "postgresql",
    role: Annotated[
        str, typer.Option(metavar="ROLE", help="Who gets the rights, as the database writes it.", show_default=False)
    ] = "",
) -> None:
    """Print what makes the tables in which a database keeps the decisions, for a migration.

    A transaction manager without a directory makes them by itself, where its role may. With the rights that a role
    needs on them, as a comment where none is named.
    """
    tm_database.print_sql(kind, role)


@app.command()
def claim(tm: DatabaseArgument, yes: YesOption = False) -> None:
    """Say that a database is the one that it was, where it stands elsewhere now: a restored one, or one that moved.

    Until then nothing of other nodes is finished there. Of two copies that both run only one may be claimed.
    """
    tm_database.claim(tm_database.database_of(tm), is_new=False, asks=not yes)


@app.command(name="new-id")
def new_id(tm: DatabaseArgument, yes: YesOption = False) -> None:
    """Say that a database is a copy, which has nothing to do with what the other one has in doubt: one for staging.

    Before its applications start.
    """
    tm_database.claim(tm_database.database_of(tm), is_new=True, asks=not yes)


@app.command()
def status(
    tm: Annotated[
        str,
        typer.Argument(
            metavar="DIR|DSN",
            help="A transaction manager's log, or its configuration; or the database that decides.",
            show_default=False,
        ),
    ],
    json: JsonOption = False,
) -> None:
    """Show what a transaction manager has not finished, who carries changes, and what waits at its participants.

    These are asked where the log's directory has a participants.toml, or DIR is such a file; it exits with 1 where one
    of them cannot be. In doubt: branches that are prepared and wait for the decision. Decisions kept: rows in the
    participant's database, until all have carried them out; with queue change: those that carry what a queue does.
    Transactions at work are counted, too.

    Where a database keeps the decisions: its nodes, who of them lives, and the decisions that wait, and for which
    queues. It exits with 1 where the database is a copy, in which nothing is finished.
    """
    if (place := tm_database.named(tm)) is not None:
        tm_nodes.print_status(place.database, json)
        return
    config = load(Path(tm))
    logs = view_logs(config.log_dir)
    nodes = [log.node for log in logs]
    found = [_ask(nodes, participant) for participant in config.participants.values()]
    found += _unknown(config, logs)
    if json:
        slots = [{"log_dir": str(log.root), **_json(log)} for log in logs[1:]]
        output.as_json({**_json(logs[0]), "slots": slots, "participants": [asdict(one) for one in found]})
    else:
        _print(config, logs, found)
    if any(one.error for one in found):
        raise typer.Exit(ExitCode.NOTHING)


@app.command()
def release(
    tm: LogArgument,
    space: Annotated[str, typer.Argument(metavar="ID", help="Of the space that is gone.", show_default=False)],
    yes: YesOption = False,
) -> None:
    """Wait no more for a space that is gone, as one that was restored and has another id since.

    What it had prepared, or a database has carried for it, and it has not done, is lost. The transaction manager must
    not run; its participants are recovered.
    """
    config = unused(load(tm), whole=True)
    if not yes:
        agreed(f"give up what space {space} was to commit, and has not done?")
    with opened(config) as manager:
        manager.recover(RECOVER_S)
        gone = manager.release(space)
        manager.recover(RECOVER_S)
    typer.echo(f"{output.counted(len(gone), 'transaction')} of space {space}: not waited for any more")
    for gtrid in gone:
        typer.echo(gtrid.decode())


def _unknown(config: TmConfig, logs: Sequence[LogView]) -> list[_Waiting]:
    """Participants that a log waits for, or decides in, and that the configuration does not name."""
    if not config.participants:
        return []
    named = {name for log in logs for one in log.open for name in one.outstanding}
    named.update(*(log.table.lasts for log in logs))
    return [
        _Waiting(name, "unknown", error="not in participants.toml")
        for name in sorted(named - config.participants.keys())
    ]


def _print(config: TmConfig, logs: Sequence[LogView], found: list[_Waiting]) -> None:
    waits = "not running: start its application; branches in doubt wait until then"
    if any(log.in_use for log in logs):
        waits = "free: what its process has left is finished by another one"
    for log in logs:
        output.pairs(
            [
                ("log", log.root),
                ("node", f"{log.node}, epoch {log.epoch}"),
                ("state", "open in a process" if log.in_use else waits),
                ("unfinished", _unfinished(config, log)),
                ("heuristic", len(log.table.heuristics) or ""),
            ]
        )
        typer.echo()
    if not found:
        typer.echo(f"participants are not known: name them in {config.log_dir / PARTICIPANTS}, see xaqueue(5)")
        return
    output.table(HEADINGS, map(_row, found), right=("in doubt", "oldest", "decisions kept", "with queue change"))


def _unfinished(config: TmConfig, log: LogView) -> str:
    lasts = ", ".join(sorted(log.table.lasts))
    elsewhere = f"; decisions stand in the database of {lasts}, too" if lasts else ""
    if not log.open:
        return f"no decision of the log{elsewhere}"
    oldest = output.age(min(one.decided_us for one in log.open))
    counted = output.counted(len(log.open), "transaction")
    return f"{counted}, the oldest {oldest}; see `xaqueue indoubt list --tm {config.log_dir}`{elsewhere}"


def _json(log: LogView) -> dict[str, object]:
    return {
        "node": log.node,
        "epoch": log.epoch,
        "in_use": log.in_use,
        "unfinished": len(log.open),
        "since": min((one.decided_us for one in log.open), default=0),
        "heuristics": len(log.table.heuristics),
        "decides": sorted(log.table.lasts),
    }


def _row(one: _Waiting) -> tuple[object, ...]:
    note = f"{one.error}; {one.note}".rstrip("; ") if one.error else one.note
    return one.name, one.kind, one.in_doubt, output.age(one.since), one.decisions, one.carried, note


def _ask(nodes: Sequence[str], participant: ParticipantConfig) -> _Waiting:
    found = _Waiting(participant.name, participant.kind)
    ask = {"xaqueue": _ask_space, "postgres": _ask_postgres, "mysql": _ask_rows, "sqlite": _ask_rows}[participant.kind]
    try:
        ask(found, nodes, participant)
    except Exception as error:
        found.error = f"cannot be asked: {advise.why_not(error)}"
    return found


def _ask_space(found: _Waiting, nodes: Sequence[str], participant: ParticipantConfig) -> None:
    """A directory is read, also where a server has it: one that hangs says nothing."""
    place = advise.location(participant)
    if place.url:
        with remote(place.url, answer_s=advise.ANSWER_S) as manager:
            branches, carriers = RemoteOperator(manager).in_doubt(), status_of(manager.status()).carriers
        damage = ""
    else:
        looked = look_into(advise.directory(place))
        branches, carriers = in_doubt_in(looked.fs, looked.again), carriers_in(looked.fs, owned=looked.owned)
        damage = looked.journal.damage
    mine = [one for one in branches if one.decision is None and _is_of(one.xid, nodes)]
    _count(found, [one.since for one in mine])
    notes = [spaces.carrier(one) for one in carriers if one.carrier.partition(".")[0] in nodes]
    damaged = sum(1 for one in mine if one.damage)
    if damaged:
        notes.append(f"{damaged} of them damaged: xaqueue indoubt list --space {place}")
    found.note = "; ".join(notes)
    if damage:
        raise JournalDamaged(damage)


def _ask_postgres(found: _Waiting, nodes: Sequence[str], participant: ParticipantConfig) -> None:
    with advise.read_only(participant) as connection:
        _count(found, [since for xid, since in advise.prepared_in(connection) if _is_of(xid, nodes)])
    _ask_rows(found, nodes, participant)
    if found.in_doubt:
        found.note = "what is prepared keeps its locks, and holds back the vacuum"


def _ask_rows(found: _Waiting, nodes: Sequence[str], participant: ParticipantConfig) -> None:
    with advise.read_only(participant) as connection:
        columns = advise.columns(participant, connection)
        found.decisions = found.carried = 0
        if columns:
            counts = f"count(*), count({'carried' if 'carried' in columns else 'NULL'})"
            own = " OR ".join(f"gtrid LIKE 'XAQ1{node}_%'" for node in nodes)
            kept = f"FROM {last_resource.TABLE} WHERE {own}"
            ((found.decisions, found.carried),) = driver.run(connection, f"SELECT {counts} {kept}")


def _count(found: _Waiting, since: list[int]) -> None:
    """since: 0 of one whose time is lost."""
    found.in_doubt, found.since = len(since), min(filter(None, since), default=0)


def _is_of(xid: Xid, nodes: Sequence[str]) -> bool:
    gtrid = Gtrid.parse(xid.gtrid)
    return gtrid is not None and gtrid.node in nodes
