"""What an operator has a transaction manager's log, or the database that decides, do: finish what is left, and forget.

Nothing here decides: what is done is what stands there, or presumed rollback, so that no outcome becomes mixed. Whoever
finishes what ended nodes of a database have left is no node there, and leaves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from threading import Lock, Thread
from time import monotonic
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import typer

from xaqueue.cli import output, parameters, tm_nodes
from xaqueue.cli.advise import of_node
from xaqueue.cli.branches import operator
from xaqueue.cli.exit_codes import ExitCode, agreed
from xaqueue.cli.tm_config import ParticipantConfig, TmConfig, opened, opener, tables_of, told
from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.core.storage.owner_file import is_owned
from xaqueue.errors import DecisionLogInUse, InvalidArgument, OperationalError, ProtocolError, UnknownXid
from xaqueue.tm.decisions import wall_clock
from xaqueue.tm.gtrid import Gtrid
from xaqueue.tm.log_directory import (
    OPERATOR_LOG,
    PARTICIPANTS,
    every_log,
    is_elsewhere,
    open_log,
    opened_elsewhere,
    record_forgotten,
    take_over,
    view_logs,
)
from xaqueue.tm.node_tables import NodeTables
from xaqueue.tm.records import Heuristic, InDoubtTransaction

if TYPE_CHECKING:
    from xaqueue.tm.coordinator import Coordinator
    from xaqueue.tm.participant import ConnectionSource
    from xaqueue.tm.recovery import RecoveryThread, ScanReport

RECOVER_S = 60.0
"""For how long the participants are waited for."""
SILENT_S = 600.0
"""Who gave no sign for so long, by the database's clock, is ended by who does not stay to watch."""


def recover(config: TmConfig, *, moved: bool, ends: Sequence[str], asks: bool) -> None:
    """Exit 1 where a participant was not reached, or something is left. ends: nodes of a database, ended before."""
    if config.database is not None:
        is_complete, left = _finished(config, config.database, ends, asks)
    elif ends:
        raise InvalidArgument("--end-node goes with a DSN: a log is recovered where no process has it open")
    else:
        unused(config, moved=moved)
        if moved and not config.participants:
            typer.echo(f"{config.log_dir} belongs here now: its transaction manager recovers when it is started")
            return
        with opened(config) as manager:
            report, found = manager.recover(RECOVER_S), manager.in_doubt()
        for name, scan in report.scans.items():
            typer.echo(f"{name}: {scan.error or 'recovered'}")
        is_complete, left = report.complete, {one.gtrid.decode(): _why(one) for one in found}
    for gtrid, why in left.items():
        if why:
            typer.echo(f"transaction {gtrid}: {why}")
    typer.echo(f"{output.counted(len(left), 'transaction')} left")
    if left or not is_complete:
        raise typer.Exit(ExitCode.NOTHING)


def _why(one: InDoubtTransaction) -> str:
    noted = [f"{heuristic.participant} was {heuristic.outcome.value}" for heuristic in one.heuristics]
    outstanding = [f"outstanding: {' '.join(one.outstanding)}"] if one.outstanding else []
    return ", ".join((one.state.value, *noted, *outstanding))


def _finished(
    config: TmConfig, database: ParticipantConfig, ends: Sequence[str], asks: bool
) -> tuple[bool, dict[str, str]]:
    """Ends who is silent, and has each queue finish what ended nodes have left there. Returns whether all have, and
    what is left, with why where that is not said."""
    from xaqueue.tm.coordinator import Coordinator  # which no other command loads
    from xaqueue.tm.node import DatabaseNode
    from xaqueue.tm.participant import ConnectionSource, Participant
    from xaqueue.tm.recovery import RecoveryThread

    if not config.queues:
        raise InvalidArgument(
            "the queues are not known: name their paths or URLs behind the DSN, or a participants.toml"
        )
    with tables_of(database) as (connection, tables):
        if tables.trouble:
            raise OperationalError(f"{tables.trouble}; nothing was done")
        for name in ends:
            _end(connection, tables, name, asks=asks)
    sources = _sources(config)
    all_sources = {"db": ConnectionSource("db", Participant(opener(database))), **sources}
    node = DatabaseNode(all_sources, "db")
    coordinator = Coordinator(node, all_sources)
    with told():
        ended = node.end_silent(SILENT_S)
    for name in ended:
        typer.echo(f"node {name}: ended, it gave no sign for {SILENT_S / 60:.0f} minutes")
    recoveries = {name: RecoveryThread(coordinator, source, RECOVER_S) for name, source in sources.items()}
    reports = _swept(coordinator, partial(RecoveryThread, coordinator, all_sources["db"], RECOVER_S), recoveries)
    with tables_of(database) as (connection, tables):
        decided = tables.decided(connection)  # first: a node that comes in between is seen behind it
        alive = {one.node for one in tables.all(connection) if not one.ended_us}
        noted = {one.gtrid.decode() for one in tables.heuristics(connection)}
    left = {gtrid: "" for report in reports.values() for gtrid, why in report.untouched if why}
    for one in decided:
        if tm_nodes.node_of(one) not in alive:
            why = "; see `xaqueue tm status`, and `xaqueue tm forget` once it is set right" if one.key in noted else ""
            left[one.key] = f"decided, and waits for {tm_nodes.parties(one)}{why}"
    for each, report in zip(config.queues, reports.values(), strict=True):
        _say(_label(each), report)
    return all(report.complete for report in reports.values()), left


def _end(connection: Any, tables: NodeTables, node: str, *, asks: bool) -> None:
    """It can decide nothing more, whether it gives signs of life or not."""
    signed_us = {one.node: one.signed_us for one in tables.all(connection) if not one.ended_us}
    if node not in signed_us:
        raise InvalidArgument(f"node {node!r} is none that may decide here: `xaqueue tm status` shows those that are")
    if asks:
        ago = tm_nodes.ago(signed_us[node], tables.clock_us(connection))
        agreed(
            f"node {node} gave its last sign of life {ago} ago; where it lives it goes on under a new name: end it, "
            "and with it all that it has not decided?"
        )
    if not tables.end(connection, node):
        raise OperationalError(f"node {node} is deciding just now, or was ended: look again")
    typer.echo(f"node {node}: ended")


def _label(one: ParticipantConfig) -> str:
    """As it is printed: there may be a password in a DSN."""
    return one.address if one.kind == "xaqueue" else one.name


def _sources(config: TmConfig) -> dict[str, ConnectionSource]:
    """Those that may prepare, in their order, under names that are nobody's."""
    from xaqueue.tm.participant import ConnectionSource, Participant  # which load asyncio

    names = [f"{number}:{quote(_label(one))[-60:]}" for number, one in enumerate(config.queues)]
    return {
        name: ConnectionSource(name, Participant(one.address if one.kind == "xaqueue" else opener(one)))
        for name, one in zip(names, config.queues, strict=True)
    }


def _swept(
    coordinator: Coordinator, database: Callable[[], RecoveryThread], recoveries: Mapping[str, RecoveryThread]
) -> dict[str, ScanReport]:
    """What came of a round at each, and of one more: what was committed in the first is hardened and struck then.
    database: of the one that decides, which is asked what it has carried."""
    reports = {name: replace(recovery.report, error="it has not answered yet") for name, recovery in recoveries.items()}
    asks = Lock()

    def run(name: str, recovery: RecoveryThread) -> None:
        first = recovery.run_once()
        if coordinator.deciding.is_asked("db"):
            with asks:
                asking = database()
                asking.run_once()
                asking.stop(0)
            first = first.followed_by(recovery.run_once())
        coordinator.log.sweep_all()
        reports[name] = first.followed_by(recovery.run_once()) if first.complete else first
        recovery.stop(0)

    threads = [
        Thread(target=run, args=(name, recovery), name=f"xaqueue-recovery-{name}", daemon=True)
        for name, recovery in recoveries.items()
    ]
    for thread in threads:
        thread.start()
    give_up = monotonic() + RECOVER_S
    for thread in threads:
        thread.join(max(0.0, give_up - monotonic()))
    return dict(reports)


def _say(place: str, report: ScanReport) -> None:
    done = f"{len(report.committed)} committed, {len(report.rolled_back)} rolled back"
    trouble = report.error or report.carrying
    typer.echo(f"{place}: {f'{trouble}; ' if trouble else ''}{done}")
    for heuristic in report.heuristics:
        typer.echo(f"  transaction {heuristic.gtrid.decode()} was {heuristic.outcome.value}: decided there by itself")
    for gtrid, why in report.untouched:
        typer.echo(f"  transaction {gtrid} is left: {why or 'its node is not ended, and does it by itself'}")
    if any(why for _, why in report.untouched):
        typer.echo(f"  {tm_nodes.BY_HAND}")


def forget(config: TmConfig, text: str, reason: str, *, asks: bool) -> None:
    """Ends the memory of a transaction's heuristics: where they are noted, and at the participants that are known."""
    if config.database is not None:
        gtrid, noted = _forgotten_in_database(config, config.database, text, asks=asks)
        typer.echo(f"transaction {gtrid}: its heuristics are forgotten")
        known, way = bool(config.queues), f"behind {gtrid}"
    else:
        gtrid, noted = _forgotten_in_log(config, text, reason, asks=asks)
        typer.echo(f"transaction {gtrid}: its heuristics are forgotten, recorded in {OPERATOR_LOG}")
        known, way = bool(config.participants), f"in a {PARTICIPANTS}"
    if not known:
        names = " and ".join(one.participant for one in noted)
        typer.echo(f"{names} was not told, and tells of it again: name its space {way}, which forgets it, too")


def _noted(found: Iterable[Heuristic], gtrid: Gtrid, *, asks: bool) -> list[Heuristic]:
    """Those of this transaction, which are to be forgotten. Raises UnknownXid."""
    noted = [one for one in found if one.gtrid == bytes(gtrid)]
    if not noted:
        raise UnknownXid(
            f"transaction {gtrid} has no heuristics here, and only those are forgotten: `xaqueue tm status` has them"
        )
    if asks:
        outcomes = ", ".join(f"{one.participant} was {one.outcome.value}" for one in noted)
        agreed(f"forget of transaction {gtrid} that {outcomes}?")
    return noted


def _forgotten_in_log(config: TmConfig, text: str, reason: str, *, asks: bool) -> tuple[Gtrid, list[Heuristic]]:
    logs = view_logs(config.log_dir)
    gtrid = parameters.gtrid_of(text, [one.gtrid for log in logs for one in log.open], exact=not asks)
    log = of_node(logs, gtrid.node)
    if log.in_use:
        raise DecisionLogInUse(
            f"{log.root} is in use: stop its transaction manager first, or call its forget({str(gtrid)!r})"
        )
    check_here(config)
    noted, at_us = _noted(log.table.heuristics.values(), gtrid, asks=asks), wall_clock()
    with (
        closing(DirectoryFileSystem(log.root)) as fs,
        opened(config, log.root) if config.participants else closing(open_log(log.root)) as owned,
    ):
        record_forgotten(fs, noted, operator(), at_us, reason)
        owned.forget(bytes(gtrid))
    return gtrid, noted


def _forgotten_in_database(
    config: TmConfig, database: ParticipantConfig, text: str, *, asks: bool
) -> tuple[Gtrid, list[Heuristic]]:
    with tables_of(database) as (connection, tables):
        found = tables.heuristics(connection)
        gtrid = parameters.gtrid_of(text, [one.gtrid for one in found], exact=not asks)
        noted = _noted(found, gtrid, asks=asks)
        for source in _sources(config).values():
            for one in noted:
                source.forget(one.gtrid, one.participant)
        tables.forget(connection, bytes(gtrid))
    return gtrid, noted


def claim(database: ParticipantConfig, *, is_new: bool, asks: bool) -> None:
    """The database is the one that it says it is, or another one from here on."""
    with tables_of(database) as (connection, tables):
        now_us = tables.clock_us(connection)
        alive = [one for one in tables.all(connection) if tm_nodes.state_of(one, now_us) == "alive"]
        if is_new and alive:
            raise ProtocolError(
                f"node {alive[0].node} gave a sign of life {tm_nodes.ago(alive[0].signed_us, now_us)} ago: stop the "
                "processes that use this database first; of a copy that was just made, wait a minute"
            )
        if asks and is_new:
            agreed(f"make this database another one than {tables.database}, whose transactions it leaves alone then?")
        elif asks:
            agreed(f"is this database {tables.database} from now on, and no other one with this id is in use?")
        tables.claim(connection, is_new=is_new)
    with tables_of(database) as (_, now):
        typer.echo(f"database {now.database}" + (f", which was {tables.database}" if is_new else ": claimed"))
    typer.echo("processes that run learn of it within a minute or two")


def unused(config: TmConfig, *, whole: bool = False, moved: bool = False) -> TmConfig:
    """The same, where a process may have a log there without making one, or all of them. moved: whoever had one open
    elsewhere is gone. Raises DecisionLogInUse, DecisionLogError."""
    if moved:
        take_over(config.log_dir)
    check_here(config)
    logs = every_log(config.log_dir)
    used = list(filter(is_owned, logs))
    if len(used) == len(logs) or (used and whole):
        raise DecisionLogInUse(
            f"{used[0]} is in use: "
            + ("stop its transaction manager first" if whole else "its transaction manager does this by itself")
        )
    return config


def check_here(config: TmConfig) -> None:
    """Raises DecisionLogError where its transaction manager may be at work elsewhere."""
    for root in every_log(config.log_dir):
        if is_elsewhere(root) and not is_owned(root):
            raise opened_elsewhere(root)
