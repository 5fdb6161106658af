"""Transaction managers without a directory, as their operator sees them: nodes in the database that decides.

It is named by a DSN, or by a configuration.
Whoever looks, or finishes what ended nodes have left, is no node there, and leaves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from threading import Lock, Thread
from time import monotonic
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

import typer

from xaqueue.cli import advise, branches, output, parameters, tm_log, tm_nodes
from xaqueue.cli.exit_codes import ExitCode, agreed
from xaqueue.cli.parameters import DATABASE_FORMS
from xaqueue.cli.tm_log import RECOVER_S, ParticipantConfig, TmConfig, load_any, opener
from xaqueue.errors import InvalidArgument, OperationalError, ProtocolError, UnknownXid
from xaqueue.tm.driver import Dialect
from xaqueue.tm.gtrid import Gtrid
from xaqueue.tm.node_schema import grants, statements
from xaqueue.tm.node_tables import BranchState, NodeTables
from xaqueue.xa import Outcome

if TYPE_CHECKING:
    from xaqueue.tm.coordinator import Coordinator
    from xaqueue.tm.participant import ConnectionSource
    from xaqueue.tm.recovery import RecoveryThread, ScanReport

KINDS = {"postgresql": "postgres", "postgres": "postgres", "mysql": "mysql", "mariadb": "mysql", "sqlite": "sqlite"}
"""By a DSN's scheme, the kind of the database."""
SQLITE = b"SQLite format 3\0"
SILENT_S = 600.0
"""Who gave no sign for so long, by the database's clock, is ended by who does not stay to watch."""
_SAYS = {
    Outcome.COMMITTED: "commit is decided",
    Outcome.ROLLED_BACK: "rollback is decided",
    None: "nothing is decided, so that it is rolled back",
}


@dataclass(frozen=True, slots=True)
class Place:
    """queues: those that may prepare, databases among them."""

    database: ParticipantConfig
    queues: tuple[ParticipantConfig, ...] = ()

    @property
    def labels(self) -> list[str]:
        """Of each of queues, as it is printed: there may be a password in a DSN."""
        return [one.address if one.kind == "xaqueue" else one.name for one in self.queues]


def named(text: str, queues: Sequence[str] = ()) -> Place | None:
    """The database that keeps decisions, by its DSN, a file of SQLite, or a configuration that also has its queues;
    None for a log. Raises InvalidArgument."""
    database = _by_dsn(text) or _by_file(Path(text))
    if database is not None:
        return Place(database, tuple(dict.fromkeys(place for one in queues for place in _places(one))))
    config = load_any(Path(text))
    if config.decides is None:
        return None
    others = tuple(place for one in queues for place in _places(one))
    return Place(config.participants[config.decides], (*_others(config), *others))


def database_of(text: str) -> ParticipantConfig:
    """Raises InvalidArgument for a log."""
    place = named(text)
    if place is None:
        raise InvalidArgument(
            f"{text} has a log: give {DATABASE_FORMS}, or a configuration with decides = NAME, see xaqueue(5)"
        )
    return place.database


def _by_dsn(text: str) -> ParticipantConfig | None:
    scheme, colon, _ = text.partition("://")
    if not colon:
        return ParticipantConfig("db", "postgres", text) if "dbname=" in text else None
    if scheme not in KINDS:
        raise InvalidArgument(
            f"{scheme}:// is no database in which a transaction manager can be: give {DATABASE_FORMS}"
        )
    if scheme != "sqlite":
        return ParticipantConfig("db", KINDS[scheme], text)
    path = unquote(text.removeprefix("sqlite:///"))
    if path in ("", text):
        raise InvalidArgument("SQLite's is named sqlite:///PATH, with four / where the path begins with one")
    return ParticipantConfig("db", "sqlite", str(Path(path).resolve()))


def _by_file(path: Path) -> ParticipantConfig | None:
    if path.is_file():
        with path.open("rb") as file:
            if file.read(len(SQLITE)) == SQLITE:
                return ParticipantConfig("db", "sqlite", str(path.resolve()))
    return None


def _places(text: str) -> Sequence[ParticipantConfig]:
    """Raises InvalidArgument."""
    if Path(text).is_file():
        return _others(load_any(Path(text)))
    if text.partition("://")[0] in KINDS or "dbname=" in text:
        one = database_of(text)
        return [replace(one, name=f"{one.kind} database")]
    return [ParticipantConfig(text, "xaqueue", text)]


def _others(config: TmConfig) -> list[ParticipantConfig]:
    """Those that may prepare."""
    return [
        one
        for one in config.participants.values()
        if one.name != config.decides and one.kind not in tm_log.PREPARES_NOTHING
    ]


# The verbs


def print_sql(kind: str, role: str) -> None:
    """role: as a comment where it is empty."""
    dialect = {"mariadb": Dialect.MYSQL}.get(kind) or next((one for one in Dialect if one.value == kind), Dialect.OTHER)
    made, given = statements(dialect), [] if dialect is Dialect.SQLITE else grants(role or "ROLE")
    output.lines([f"{statement};" for statement in made])
    output.lines([f"{'' if role else '-- '}{statement};" for statement in given])


def recover(place: Place) -> None:
    """Ends who is silent, and has each queue finish what ended nodes have left there."""
    from xaqueue.tm.coordinator import Coordinator  # which no other command loads
    from xaqueue.tm.node import DatabaseNode
    from xaqueue.tm.participant import ConnectionSource, Participant
    from xaqueue.tm.recovery import RecoveryThread

    with _to_finish(place):
        pass
    sources = _sources(place)
    names = list(sources)
    all_sources = {"db": ConnectionSource("db", Participant(opener(place.database))), **sources}
    node = DatabaseNode(all_sources, "db")
    coordinator = Coordinator(node, all_sources)
    with tm_nodes.told():
        ended = node.end_silent(SILENT_S)
    for name in ended:
        typer.echo(f"node {name}: ended, it gave no sign for {SILENT_S / 60:.0f} minutes")
    recoveries = [RecoveryThread(coordinator, source, RECOVER_S) for source in sources.values()]
    database = partial(RecoveryThread, coordinator, all_sources["db"], RECOVER_S)
    reports = _swept(coordinator, database, dict(zip(names, recoveries, strict=True)))
    with tm_nodes.opened(place.database) as (connection, tables):
        decided = tables.decided(connection)  # first: a node that comes in between is seen behind it
        alive = {one.node for one in tables.all(connection) if not one.ended_us}
        noted = {one.gtrid.decode() for one in tables.heuristics(connection)}
    waiting = [one for one in decided if tm_nodes.node_of(one) not in alive]
    for name, label in zip(names, place.labels, strict=True):
        _say(label, reports[name])
    for one in waiting:
        why = "; see `xaqueue tm status`, and `xaqueue tm forget` once it is set right" if one.key in noted else ""
        typer.echo(f"transaction {one.key}: decided, and waits for {tm_nodes.parties(one)}{why}")
    left = {gtrid for report in reports.values() for gtrid, why in report.untouched if why}
    typer.echo(f"{output.counted(len(left | {one.key for one in waiting}), 'transaction')} left")
    if left or waiting or not all(report.complete for report in reports.values()):
        raise typer.Exit(ExitCode.NOTHING)


@contextmanager
def _to_finish(place: Place) -> Iterator[tuple[Any, NodeTables]]:
    """A connection, and the tables there, where queues are named and it is no copy."""
    if not place.queues:
        raise InvalidArgument(
            "the queues are not known: name their paths or URLs behind the DSN, or a participants.toml"
        )
    with tm_nodes.opened(place.database) as (connection, tables):
        if tables.trouble:
            raise OperationalError(f"{tables.trouble}; nothing was done")
        yield connection, tables


def resolve(place: Place, text: str, *, commit: bool, ends_node: bool, reason: str, asks: bool) -> None:
    """Ends what is in doubt of a transaction: as the database says, where that knows of it, and else by hand."""
    with _to_finish(place) as (connection, tables):
        gtrid = parameters.gtrid_of(text, [one.key.encode() for one in tables.decided(connection)], exact=not asks)
        if not gtrid.database:
            raise InvalidArgument(f"transaction {gtrid} is of a transaction manager with a log: name its directory")
        state = BranchState(None, 0, False, False)
        if gtrid.database == tables.database:
            state = tables.state_of(connection, bytes(gtrid))
        verb = "commit" if commit else "rollback"
        is_by_hand = state.decision is None and not state.is_known(gtrid.epoch)
        if not is_by_hand and (state.decision is Outcome.COMMITTED) != commit:
            raise ProtocolError(
                f"{verb} of transaction {gtrid} is refused, of which the database says: {_SAYS[state.decision]}. Each "
                f"of its branches can be decided on by itself: `xaqueue indoubt {verb} XID --space QUEUE`"
            )
        if state.decision is None and state.is_node:
            _end(connection, tables, gtrid, is_meant=ends_node, asks=asks)
        elif asks and not is_by_hand:
            agreed(f"{verb} what is left of transaction {gtrid}, and finish what ended nodes have left?")
        is_new = state.decision is None and not is_by_hand
        if is_new and tables.resolve(connection, bytes(gtrid)).outcome is Outcome.COMMITTED:
            raise ProtocolError(f"transaction {gtrid} was decided meanwhile: commit")
    if is_by_hand:
        _by_hand(place, gtrid, commit, reason, asks=asks)
    else:
        recover(place)


def _end(connection: Any, tables: NodeTables, gtrid: Gtrid, *, is_meant: bool, asks: bool) -> None:
    """Its node can decide nothing more. is_meant: though that gives signs of life; else ProtocolError is raised."""
    now_us = tables.clock_us(connection)
    signed_us = next((one.signed_us for one in tables.all(connection) if one.node == gtrid.node), 0)
    ago = f"node {gtrid.node} gave its last sign of life {tm_nodes.ago(signed_us, now_us)} ago"
    if now_us - signed_us < tm_nodes.ALIVE_S * 1e6 and not is_meant:
        raise ProtocolError(
            f"{ago}, and ends transaction {gtrid} by itself: stop its process first, or say --end-node, which rolls "
            "back all that it has not decided; where it lives it goes on under a new name"
        )
    if asks:
        agreed(f"{ago}: end it, and with it transaction {gtrid} and all else that it has not decided?")
    if not tables.end(connection, gtrid.node):
        raise OperationalError(f"node {gtrid.node} is deciding just now, or was ended: look again")
    typer.echo(f"node {gtrid.node}: ended")


def _by_hand(place: Place, gtrid: Gtrid, commit: bool, reason: str, *, asks: bool) -> None:
    """Decides its branches at the queues, which remember it; of a database it says what does."""
    word, found = ("commit" if commit else "rollback"), 0
    for one in place.queues:
        waiting = advise.in_doubt_of(one, bytes(gtrid))
        if waiting and not found:
            typer.echo(f"the database does not know transaction {gtrid}: it is another one, or a copy of it")
        for xid in waiting:
            if one.kind == "xaqueue":
                branches.decide(advise.location(one), str(xid), commit, reason, asks=asks)
            else:
                typer.echo(f"{one.name}: {word.upper()} PREPARED '{parameters.postgres_gid(xid)}' there ends it")
        found += len(waiting)
    if not found:
        raise UnknownXid(f"no branch of transaction {gtrid} is in doubt at {' and '.join(place.labels)}")


def forget(place: Place, text: str, *, asks: bool) -> None:
    """Ends the memory of a transaction's heuristics, here and at the queues."""
    with tm_nodes.opened(place.database) as (connection, tables):
        found = tables.heuristics(connection)
        gtrid = parameters.gtrid_of(text, [one.gtrid for one in found], exact=not asks)
        noted = [one for one in found if one.gtrid == bytes(gtrid)]
        if not noted:
            raise UnknownXid(f"transaction {gtrid} has no heuristics here: `xaqueue tm status` shows those that have")
        if asks:
            outcomes = ", ".join(f"{one.participant} was {one.outcome.value}" for one in noted)
            agreed(f"forget of transaction {gtrid} that {outcomes}?")
        for source in _sources(place).values():
            for one in noted:
                source.forget(one.gtrid, one.participant)
        tables.forget(connection, bytes(gtrid))
    typer.echo(f"transaction {gtrid}: its heuristics are forgotten")
    if not place.queues:
        names = " and ".join(one.participant for one in noted)
        typer.echo(f"{names} was not told, and tells of it again: name its space behind {gtrid}, which forgets it, too")


def claim(database: ParticipantConfig, *, is_new: bool, asks: bool) -> None:
    """The database is the one that it says it is, or another one from here on."""
    with tm_nodes.opened(database) as (connection, tables):
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
    with tm_nodes.opened(database) as (_, now):
        typer.echo(f"database {now.database}" + (f", which was {tables.database}" if is_new else ": claimed"))
    typer.echo("processes that run learn of it within a minute or two")


def _sources(place: Place) -> dict[str, ConnectionSource]:
    """In their order, under names that are nobody's."""
    from xaqueue.tm.participant import ConnectionSource, Participant  # which load asyncio

    names = [f"{number}:{quote(label)[-60:]}" for number, label in enumerate(place.labels)]
    opens = [one.address if one.kind == "xaqueue" else opener(one) for one in place.queues]
    return {name: ConnectionSource(name, Participant(one)) for name, one in zip(names, opens, strict=True)}


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
