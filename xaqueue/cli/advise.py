"""What a log, or the database that decides, and every participant say of a global transaction, and the one consistent
answer. Nothing is changed.

A participant that cannot be asked is shown as such: its silence proves nothing, and neither does the absence of a
branch. What an operator decided by hand is kept apart from what the coordinator did, also after it was forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import typer

from xaqueue.cli import output, parameters
from xaqueue.cli.exit_codes import ExitCode
from xaqueue.cli.location import Location, remote
from xaqueue.cli.tm_config import (
    ANSWER_S,
    PREPARES_NOTHING,
    ParticipantConfig,
    TmConfig,
    named,
    read_only,
    tables_of,
    why_not,
)
from xaqueue.cli.tm_nodes import state_of
from xaqueue.core.engine import heuristics
from xaqueue.core.model.format import read_format
from xaqueue.core.recovery.prepared import Verdict
from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.endpoint import is_url
from xaqueue.errors import DecisionLogError, InvalidArgument, OperationalError
from xaqueue.offline.inspect_branches import InDoubt, in_doubt_in
from xaqueue.offline.redo_view import look_into
from xaqueue.rpc.client.reach import served_at
from xaqueue.rpc.methods.service import RemoteOperator
from xaqueue.tm import driver, last_resource
from xaqueue.tm.advice import Advice, Advised, LogStatus, ParticipantStatus, advise
from xaqueue.tm.gtrid import FORMAT_ID, Gtrid
from xaqueue.tm.log import JOURNAL
from xaqueue.tm.log_directory import LogView, view_logs
from xaqueue.tm.node_tables import NodeTables
from xaqueue.tm.voting import ParticipantOutcome
from xaqueue.xa import Outcome
from xaqueue.xid import Xid

T = TypeVar("T")
SPACE = "space"
"""Stands for one that is asked and not configured."""
UNKNOWN = "none of those that were named has begun it"
_BY_HAND = {
    "commit": ParticipantStatus.BY_HAND_COMMITTED,
    "rollback": ParticipantStatus.BY_HAND_ROLLED_BACK,
    "mixed": ParticipantStatus.BY_HAND_MIXED,
}
_OUTCOMES = {Outcome.COMMITTED: ParticipantStatus.COMMITTED, Outcome.ROLLED_BACK: ParticipantStatus.ROLLED_BACK}
_ROWS = {"commit": ParticipantStatus.COMMITTED, "rollback": ParticipantStatus.ROLLED_BACK}
_PARTIES = {
    ParticipantOutcome.HEUR_COMMITTED: ParticipantStatus.BY_HAND_COMMITTED,
    ParticipantOutcome.HEUR_ROLLED_BACK: ParticipantStatus.BY_HAND_ROLLED_BACK,
    ParticipantOutcome.HEUR_MIXED: ParticipantStatus.BY_HAND_MIXED,
}
_DECIDED = {Outcome.COMMITTED: LogStatus.COMMIT, Outcome.ROLLED_BACK: LogStatus.ROLLBACK}
_OPEN = {"alive": LogStatus.LIVE, "silent": LogStatus.SILENT, "ended": LogStatus.NONE}
_SETTLED = (Advised.COMMIT, Advised.ROLLBACK, Advised.RECOVER, Advised.NOTHING)


@dataclass(frozen=True, slots=True)
class ParticipantReport:
    """What one participant says of its branch, and where that is from."""

    participant: str
    status: ParticipantStatus
    detail: str = ""
    xid: Xid | None = None
    """Of the branch that is in doubt."""
    is_row: bool = False
    """It is known by a row in its database."""


def run(tm: str, text: str, json: bool, space: Location | None = None) -> None:
    """Asks the log, or the database, and all participants of a configuration, and shows what they say and what follows.

    space: one that is asked, too.
    """
    config = named(tm)
    if space is not None and all(space.place != one.address for one in config.participants.values()):
        asked_too = ParticipantConfig(SPACE, "xaqueue", space.place)
        config = replace(config, participants={**config.participants, SPACE: asked_too})
    asked = _asked(config, text)
    if json:
        output.as_json(_json(*asked))
    else:
        _print(config, *asked)
    if asked[-1].answer not in _SETTLED:
        raise typer.Exit(ExitCode.NOTHING)


def document(tm: str, text: str) -> dict[str, Any]:
    """What ``run`` shows, for programs."""
    return _json(*_asked(named(tm), text))


def of_each(xids: Iterable[Xid], managers: Sequence[str]) -> dict[Xid, str]:
    """What is said of each of these branches. managers: each a log's directory, a configuration, or a DSN.

    Nobody guesses: where none of them has begun it, that is said. Raises what looking at one of them raises: a branch
    that nobody else knows may be its.
    """
    gtrids = {xid: Gtrid.parse(xid.gtrid) for xid in xids}
    said: dict[Gtrid | None, str] = {}
    for text in managers:
        found = _decisions(named(text), {gtrid for gtrid in gtrids.values() if gtrid is not None})
        said |= {
            gtrid: f"{one.status.value}; {one.detail}"
            for gtrid, one in found.items()
            if one.status is not LogStatus.FOREIGN
        }
    return {xid: said.get(gtrid, UNKNOWN) for xid, gtrid in gtrids.items()}


def _asked(config: TmConfig, text: str) -> tuple[str, _LogReport, list[ParticipantReport], Advice]:
    """The log first: where nobody had it open, nobody decides behind that what participants have in doubt."""
    name = _gtrid_of(config, text)
    gtrid = Gtrid.parse(name)
    log = _LogReport(LogStatus.OTHER)
    if gtrid is not None:
        try:
            log = _decisions(config, [gtrid])[gtrid]
        except (OperationalError, OSError) as error:
            log = _LogReport(LogStatus.UNREAD, str(error))
    found: list[ParticipantReport] = []
    for each, said in answers(config, lambda one: list(_reports(config, one, name, look(one)))).items():
        found += [ParticipantReport(each, ParticipantStatus.UNREACHABLE, said)] if isinstance(said, str) else said
    found = log.completed(found)
    lasts = () if log.may_be_in_use else tuple(sorted(log.lasts))
    advice = advise(log.status, {report.participant: report.status for report in found}, lasts)
    return (name.decode("ascii", "backslashreplace"), log, found, advice)


def _gtrid_of(config: TmConfig, text: str) -> bytes:
    """That of a transaction which the log knows, or of which somebody has a branch, whoever made it.

    Raises InvalidArgument.
    """
    known = list[bytes]()
    with suppress(DecisionLogError, OSError):  # said of the log
        known = [] if config.decides else [one.gtrid for log in view_logs(config.log_dir) for one in log.open]
    with suppress(InvalidArgument):
        return bytes(parameters.gtrid_of(text, known))
    waiting = [one.xid for each in answers(config, look).values() if isinstance(each, Looked) for one in each.held]
    try:
        return bytes(parameters.gtrid_of(text, [xid.gtrid for xid in waiting if Gtrid.parse(xid.gtrid) is not None]))
    except InvalidArgument:
        found = parameters.foreign_gtrid(text, waiting)
        if found is None:
            raise
        return found


def answers(config: TmConfig, ask: Callable[[ParticipantConfig], T]) -> dict[str, T | str]:
    """What each participant says, in the configuration's order, or why it could not be asked."""
    found: dict[str, T | str] = {}
    for name, one in config.participants.items():
        try:
            found[name] = ask(one)
        except Exception as error:
            found[name] = why_not(error)
    return found


@dataclass(frozen=True, slots=True)
class _LogReport:
    """What the decisions say of a transaction, and whom they name."""

    status: LogStatus
    detail: str = ""
    named: tuple[str, ...] = ()
    by_hand: Mapping[str, ParticipantReport] = field(default_factory=dict)
    """What it has noted of participants that acted by themselves."""
    lasts: frozenset[str] = frozenset()
    """Participants in whose databases the decision may stand."""
    may_be_in_use: bool = False

    def completed(self, found: list[ParticipantReport]) -> list[ParticipantReport]:
        """With what the log knows of those that say nothing, and with those that only the log names."""
        silent = (ParticipantStatus.ABSENT, ParticipantStatus.UNREACHABLE)
        found = self._with_rows(found)
        known = [self.by_hand.get(one.participant, self._known(one)) if one.status in silent else one for one in found]
        asked = {one.participant for one in found}
        missing = "the decision names it, and the configuration does not"
        return known + [
            self.by_hand.get(name, ParticipantReport(name, ParticipantStatus.UNREACHABLE, missing))
            for name in self.named
            if name not in asked
        ]

    def _with_rows(self, found: list[ParticipantReport]) -> list[ParticipantReport]:
        """A row that says rollback rules out that its own database has decided, and nothing more: it is rolled back
        where each that may have decided has one."""
        ruled_out = {one.participant for one in found if one.is_row and one.status is ParticipantStatus.ROLLED_BACK}
        if self.lasts and self.lasts <= ruled_out:
            return found
        detail = f"its row in {last_resource.TABLE} says only that it has not decided"
        return [
            replace(one, status=ParticipantStatus.ABSENT, detail=detail) if one.participant in ruled_out else one
            for one in found
        ]

    def _known(self, one: ParticipantReport) -> ParticipantReport:
        """What the decision tells of a party that has no branch in doubt any more."""
        if one.status is not ParticipantStatus.ABSENT or one.participant not in self.named:
            return one
        return replace(one, detail="the decision names it, so it was prepared: it has carried it out, and is over")


def _decisions(config: TmConfig, gtrids: Collection[Gtrid]) -> dict[Gtrid, _LogReport]:
    """What stands of each where the decisions are kept. Raises DecisionLogError, OSError, OperationalError."""
    if config.database is None:
        logs = view_logs(config.log_dir)
        seen = {gtrid: of_node(logs, gtrid.node) for gtrid in gtrids}
        for root in {log.root for gtrid, log in seen.items() if log.table.decision_on(bytes(gtrid)) is not None}:
            _harden(root)
        return {gtrid: _of_log(log, gtrid) for gtrid, log in seen.items()}
    with tables_of(config.database, to_look=True) as (connection, tables):
        now_us = tables.clock_us(connection)
        states = {one.node: state_of(one, now_us) for one in tables.all(connection)}
        return {gtrid: _of_database(connection, tables, gtrid, states.get(gtrid.node, "alive")) for gtrid in gtrids}


def of_node(logs: Sequence[LogView], node: str) -> LogView:
    """That one's, or the first where none is."""
    return next((log for log in logs if log.node == node), logs[0])


def _of_log(seen: LogView, gtrid: Gtrid) -> _LogReport:
    name, status = bytes(gtrid), seen.status(gtrid)
    rows = [one for one in seen.open if one.gtrid == name]
    named = dict.fromkeys(each for one in rows for each in (*one.participants, one.last_resource) if each is not None)
    noted = {
        heuristic.participant: ParticipantReport(
            heuristic.participant, _PARTIES[heuristic.outcome], f"{heuristic.detail} (noted in the decision log)"
        )
        for one in rows
        for heuristic in one.heuristics
        if heuristic.outcome in _PARTIES
    }
    detail, lasts = f"node {seen.node}, boot {seen.epoch}, {seen.use}", frozenset(seen.table.lasts_of(name))
    may_be_in_use = seen.in_use or bool(seen.is_elsewhere)
    return _LogReport(status, detail, tuple(named), noted, lasts, may_be_in_use)


def _harden(log_dir: Path) -> None:
    """A record that was read may not be on disk yet, and then it is no decision."""
    with closing(DirectoryFileSystem(log_dir)) as fs:
        for name in fs.list(JOURNAL):
            if name.endswith(".log"):
                with suppress(FileNotFoundError):  # recycled meanwhile: what it had was hardened again elsewhere
                    fs.sync_data(f"{JOURNAL}/{name}")


def _of_database(connection: Any, tables: NodeTables, gtrid: Gtrid, node: str) -> _LogReport:
    """node: its state. Of a copy nothing is presumed."""
    status, named = LogStatus.FOREIGN, tuple[str, ...]()
    if gtrid.database == tables.database:
        found = tables.state_of(connection, bytes(gtrid))
        is_known = found.is_known(gtrid.epoch) and not tables.trouble
        status = _DECIDED[found.decision] if found.decision else _OPEN[node] if is_known else LogStatus.LOST
        named = tuple(name for one in tables.decided(connection, bytes(gtrid)) for name in one.names().values())
    return _LogReport(status, f"node {gtrid.node}, {node}, of database {tables.database}", named)


def _print(config: TmConfig, gtrid: str, log: _LogReport, found: list[ParticipantReport], advice: Advice) -> None:
    rows = [("decision log", log.status.value, log.detail)]
    rows += [(report.participant, report.status.value, report.detail) for report in found]
    output.table(("asked", "says", "detail"), rows)
    typer.echo()
    typer.echo(f"{advice.why}: {advice.answer.value}")
    if advice.answer not in (Advised.COMMIT, Advised.ROLLBACK):
        return
    typer.echo("the transaction manager does this itself when it runs and reaches them; by hand it would be:")
    for report in found:
        typer.echo(f"  {report.participant}: {_by_hand(config, gtrid, report, advice.answer)}")


def _by_hand(config: TmConfig, gtrid: str, report: ParticipantReport, answer: Advised) -> str:
    """What is to be done at a party, each of which has its line."""
    participant, xid = config.participants.get(report.participant), report.xid
    if xid is not None and participant is None:
        return f"{answer.value} of {xid}"
    if report.status not in (ParticipantStatus.IN_DOUBT, ParticipantStatus.UNREACHABLE):
        return f"nothing, it is {report.status.value}"
    if participant is None or participant.kind in PREPARES_NOTHING:
        return "cannot be asked: ask again when it can"
    if xid is None:
        own = Xid(FORMAT_ID, gtrid.encode(), report.participant.encode())
        return f"if it has a branch in doubt, once it answers: {_command(participant, own, answer)}"
    return _command(participant, xid, answer)


def _command(participant: ParticipantConfig, xid: Xid, answer: Advised) -> str:
    if participant.kind == "postgres":
        return f"{answer.value.upper()} PREPARED '{parameters.postgres_gid(xid)}'"
    return f"xaqueue indoubt {answer.value} {xid} --space {participant.address} --reason '...'"


def _json(gtrid: str, log: _LogReport, found: list[ParticipantReport], advice: Advice) -> dict[str, Any]:
    return {
        "gtrid": gtrid,
        "answer": advice.answer.value,
        "why": advice.why,
        "in_doubt": list(advice.in_doubt),
        "log": {"says": log.status.name.lower(), "detail": log.detail},
        "participants": [
            {"name": report.participant, "says": report.status.value, "detail": report.detail} for report in found
        ],
    }


# What a participant has


@dataclass(frozen=True, slots=True)
class Looked:
    """What one participant has: branches in doubt or decided by hand, of which a database tells less; and what its rows
    of decisions say, by gtrid. damage: there may be more."""

    held: list[InDoubt]
    rows: Mapping[str, str] = field(default_factory=dict)
    damage: str = ""


def look(participant: ParticipantConfig) -> Looked:
    """A directory is read, also where a server has it: one that hangs says nothing. Raises what a driver raises."""
    if participant.kind != "xaqueue":
        with read_only(participant) as connection:
            held = [] if participant.kind in PREPARES_NOTHING else _prepared_in(connection)
            return Looked(held, _rows(participant, connection))
    place = location(participant)
    if place.url:
        with remote(place.url, answer_s=ANSWER_S) as manager:
            return Looked(RemoteOperator(manager).in_doubt())
    looked = look_into(_directory(place))
    return Looked(in_doubt_in(looked.fs, looked.again), damage=looked.journal.damage)


def location(participant: ParticipantConfig) -> Location:
    """Where its space is."""
    address = participant.address
    return Location(url=address) if is_url(address) else Location(directory=address)


def _directory(place: Location) -> str:
    """That of a space which is there. Raises SpaceError."""
    read_format(place.directory, is_expected=True)
    return place.directory


def _prepared_in(connection: Any) -> list[InDoubt]:
    """What is prepared in its database under a gid that is an xid."""
    statement = "SELECT gid, (extract(epoch FROM prepared) * 1000000)::bigint FROM pg_prepared_xacts"
    found = []
    for gid, since in connection.execute(f"{statement} WHERE database = current_database()").fetchall():
        with suppress(InvalidArgument):  # another application's
            found.append(InDoubt(parameters.xid(gid), Verdict.IN_DOUBT.value, since, [], [], []))
    return found


def _rows(participant: ParticipantConfig, connection: Any) -> dict[str, str]:
    """Of the table where decisions may stand; none without it."""
    listed = {
        "sqlite": f"SELECT name FROM pragma_table_info('{last_resource.TABLE}')",
        "postgres": f"SELECT 1 WHERE to_regclass('{last_resource.TABLE}') IS NOT NULL",
        "mysql": "SELECT 1 FROM information_schema.tables WHERE table_schema = DATABASE() "
        f"AND table_name = '{last_resource.TABLE}'",
    }[participant.kind]
    if not driver.run(connection, listed):
        return {}
    found = driver.run(connection, f"SELECT gtrid, decision FROM {last_resource.TABLE}")
    return {str(gtrid): str(decision) for gtrid, decision in found}


# What follows from it of one transaction


def _reports(
    config: TmConfig, participant: ParticipantConfig, gtrid: bytes, seen: Looked
) -> Iterator[ParticipantReport]:
    """Behind its own branch, those that it has under names that are not configured; of another product's transaction,
    whose branches are named by whoever made them, all of them."""
    name, is_ours = participant.name, Gtrid.parse(gtrid) is not None
    mine = {one.xid: one for one in seen.held if one.xid.gtrid == gtrid}
    own = Xid(FORMAT_ID, gtrid, name.encode()) if is_ours else next(iter(mine), None)
    row = seen.rows.get(gtrid.decode("latin-1")) if is_ours else None
    if row is not None:
        status = _ROWS.get(row, ParticipantStatus.UNREACHABLE)
        yield ParticipantReport(name, status, f"its row in {last_resource.TABLE}", is_row=True)
    elif own in mine:
        yield _of_held(participant, name, mine[own])
    elif seen.damage:
        yield ParticipantReport(name, ParticipantStatus.UNREACHABLE, seen.damage)
    elif participant.kind == "xaqueue" and own is not None:
        yield _of_ended(participant, own)
    else:
        why = "it may never have been, or be over"
        if is_ours:
            why = f"no row in {last_resource.TABLE}"
            why += "" if participant.kind in PREPARES_NOTHING else ", and PostgreSQL tells only what is prepared"
        yield ParticipantReport(name, ParticipantStatus.ABSENT, why)
    where = f"at {name}, and not in the configuration" if is_ours else ""
    for xid, branch in mine.items():
        other = xid.bqual.decode("ascii", "backslashreplace") if is_ours else f"{name} {xid}"
        if xid != own and other not in config.participants:
            yield _of_held(participant, other, branch, where)


def _of_ended(participant: ParticipantConfig, xid: Xid) -> ParticipantReport:
    """It is not in doubt. The outcome is asked for first, so that what a person did meanwhile is not taken for the
    coordinator's doing."""
    place, outcome = location(participant), Outcome.UNKNOWN
    url = place.url or served_at(_directory(place))
    if url:
        with remote(url, answer_s=ANSWER_S) as manager:
            outcome, forgotten = manager.outcome(xid), RemoteOperator(manager).forgotten()
    else:
        forgotten = heuristics.forgotten(place.directory)
    for line in forgotten:
        if line.xid == str(xid) and line.outcome in _BY_HAND:
            by = f"by {line.by}, forgotten by {line.forgotten_by}"
            return ParticipantReport(participant.name, _BY_HAND[line.outcome], by)
    if outcome in _OUTCOMES:
        return ParticipantReport(participant.name, _OUTCOMES[outcome])
    return ParticipantReport(participant.name, ParticipantStatus.ABSENT, "it may never have been, or be over")


def _of_held(participant: ParticipantConfig, name: str, branch: InDoubt, note: str = "") -> ParticipantReport:
    """Of a branch that is there."""
    decision, state = branch.decision, branch.state
    status, details, xid = ParticipantStatus.UNREACHABLE, [state], None
    if decision is not None:
        status, details = _BY_HAND[decision.outcome], [f"by {decision.by}", decision.reason]
    elif state == Verdict.IN_DOUBT.value:
        shown = str(branch.xid) if participant.kind == "xaqueue" else parameters.postgres_gid(branch.xid)
        status, details, xid = ParticipantStatus.IN_DOUBT, [shown, "damaged" if branch.damage else ""], branch.xid
    elif state == Verdict.COMMITTING.value:
        status, details = ParticipantStatus.COMMITTED, ["past its commit point"]
    return ParticipantReport(name, status, ", ".join(part for part in (*details, note) if part), xid)
