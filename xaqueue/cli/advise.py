"""What the log and every participant say of one global transaction, and the one consistent answer. Nothing is changed.

A participant that cannot be asked is shown as such: its silence proves nothing, and neither does the absence of a
branch. What an operator decided by hand is kept apart from what the coordinator did, also after it was forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import typer

from xaqueue.cli import output, parameters
from xaqueue.cli.branches import backend_of
from xaqueue.cli.exit_codes import ExitCode
from xaqueue.cli.location import Location, remote
from xaqueue.cli.tm_log import PREPARES_NOTHING, ParticipantConfig, TmConfig, load, of_node, opener, postgres
from xaqueue.core.engine import heuristics
from xaqueue.core.engine.heuristics import Forgotten
from xaqueue.core.model.format import read_format
from xaqueue.core.recovery.prepared import Verdict
from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.endpoint import is_url
from xaqueue.errors import DecisionLogError, InvalidArgument
from xaqueue.offline.inspect_branches import InDoubt, in_doubt_in
from xaqueue.offline.redo_view import look_into
from xaqueue.rpc.client.reach import served_at
from xaqueue.rpc.methods.service import RemoteOperator
from xaqueue.tm import driver, last_resource
from xaqueue.tm.advice import Advice, Advised, LogStatus, ParticipantStatus, advise
from xaqueue.tm.driver import is_a
from xaqueue.tm.gtrid import FORMAT_ID, Gtrid
from xaqueue.tm.log import JOURNAL
from xaqueue.tm.log_directory import view_logs
from xaqueue.tm.voting import ParticipantOutcome
from xaqueue.xa import Outcome
from xaqueue.xid import Xid

T = TypeVar("T")
Held = list[tuple[Xid, InDoubt | None]] | str
"""What a participant has in doubt, of a space with what is known of it; or why it could not be asked."""
SPACE = "space"
"""Stands for one that is asked and not configured."""
CONNECT_S = 10
"""For how long a PostgreSQL is tried, unless its DSN says so."""
ANSWER_S = 5
"""For how long a participant's answer is waited for."""
SQLITE_VERSIONS = slice(18, 20)
"""In a database's file: how it is written and read, by a write-ahead log if both are 2."""
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


def run(path: Path, text: str, json: bool, space: Location | None = None) -> None:
    """Asks the log and all participants of a configuration, and shows what they say and what follows from it.

    space: one that is asked, too.
    """
    config = load(path)
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


def document(path: Path, text: str) -> dict[str, Any]:
    """What ``run`` shows, for programs."""
    return _json(*_asked(load(path), text))


def _asked(config: TmConfig, text: str) -> tuple[str, _LogReport, list[ParticipantReport], Advice]:
    known, held = list[bytes](), dict[str, Held]()
    with suppress(DecisionLogError, OSError):  # said of the log below
        known = [one.gtrid for log in view_logs(config.log_dir) for one in log.open]
    try:
        name = bytes(parameters.gtrid_of(text, known))
    except InvalidArgument:  # everybody is asked twice for the sake of what only they know
        held = answers(config, _held_by)
        name = _gtrid_among(text, held)
    gtrid = Gtrid.parse(name)
    if gtrid is None:
        log = _LogReport(LogStatus.OTHER, "")
        found = [one for each, waiting in held.items() for one in _of_foreign(each, name, waiting)]
    else:
        log = _read_log(config, gtrid)
        found = log.completed(ask_all(config, gtrid))
    lasts = () if log.may_be_in_use else tuple(sorted(log.lasts))
    advice = advise(log.status, {report.participant: report.status for report in found}, lasts)
    return (name.decode("ascii", "backslashreplace"), log, found, advice)


def _gtrid_among(text: str, held: Mapping[str, Held]) -> bytes:
    """That of a transaction of which somebody has a branch, whoever made it. Raises InvalidArgument."""
    waiting = [xid for one in held.values() if isinstance(one, list) for xid, _ in one]
    try:
        return bytes(parameters.gtrid_of(text, [xid.gtrid for xid in waiting if Gtrid.parse(xid.gtrid) is not None]))
    except InvalidArgument:
        found = parameters.foreign_gtrid(text, waiting)
        if found is None:
            raise
        return found


def answers(config: TmConfig, ask: Callable[[ParticipantConfig], list[T]]) -> dict[str, list[T] | str]:
    """What each participant says, in the configuration's order, or why it could not be asked."""
    found: dict[str, list[T] | str] = {}
    for one in config.participants.values():
        try:
            found[one.name] = ask(one)
        except Exception as error:
            found[one.name] = why_not(error)
    return found


def _held_by(participant: ParticipantConfig) -> list[tuple[Xid, InDoubt | None]]:
    """What is in doubt there."""
    if participant.kind == "xaqueue":
        with backend_of(location(participant)) as backend:
            return [(branch.xid, branch) for branch in backend.in_doubt()]
    if participant.kind in PREPARES_NOTHING:
        return []
    with read_only(participant) as connection:
        return [(xid, None) for xid, _ in prepared_in(connection)]


def in_doubt_of(participant: ParticipantConfig, gtrid: bytes) -> list[Xid]:
    """The transaction's branches there on which nobody has decided. Raises what cannot be asked raises."""
    held = _held_by(participant)
    return [xid for xid, branch in held if xid.gtrid == gtrid and (branch is None or branch.decision is None)]


def prepared(config: TmConfig, gtrid: bytes) -> list[tuple[str, str]]:
    """What each PostgreSQL has prepared of a transaction, whoever made it, or why it does not tell."""
    kinds = {name: one for name, one in config.participants.items() if one.kind == "postgres"}
    found: list[tuple[str, str]] = []
    for name, held in answers(replace(config, participants=kinds), _held_by).items():
        mine = [held] if isinstance(held, str) else [parameters.postgres_gid(x) for x, _ in held if x.gtrid == gtrid]
        found += [(name, gid) for gid in mine or ["nothing is prepared"]]
    return found


def _of_foreign(name: str, gtrid: bytes, held: Held) -> Iterator[ParticipantReport]:
    """Its branches are named by whoever made them: behind the first, the others with their names."""
    if isinstance(held, str):
        yield ParticipantReport(name, ParticipantStatus.UNREACHABLE, held)
        return
    mine = [(xid, branch) for xid, branch in held if xid.gtrid == gtrid]
    if not mine:
        yield ParticipantReport(name, ParticipantStatus.ABSENT, "it may never have been, or be over")
    for number, (xid, branch) in enumerate(mine):
        yield _of_held(name if not number else f"{name} {xid}", xid, branch)


@dataclass(frozen=True, slots=True)
class _LogReport:
    """What the decision log says of a transaction, and whom it names."""

    status: LogStatus
    detail: str
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


def _read_log(config: TmConfig, gtrid: Gtrid) -> _LogReport:
    name = bytes(gtrid)
    try:
        seen = of_node(view_logs(config.log_dir), gtrid.node)
        if seen.table.decision_on(name) is not None:
            _harden(seen.root)
    except (DecisionLogError, OSError) as error:
        return _LogReport(LogStatus.UNREAD, str(error))
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
    return _LogReport(seen.status(gtrid), detail, tuple(named), noted, lasts, seen.in_use or bool(seen.is_elsewhere))


def _harden(log_dir: Path) -> None:
    """A record that was read may not be on disk yet, and then it is no decision."""
    with closing(DirectoryFileSystem(log_dir)) as fs:
        for name in fs.list(JOURNAL):
            if name.endswith(".log"):
                with suppress(FileNotFoundError):  # recycled meanwhile: what it had was hardened again elsewhere
                    fs.sync_data(f"{JOURNAL}/{name}")


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


def ask_all(config: TmConfig, gtrid: Gtrid) -> list[ParticipantReport]:
    """In the configuration's order; behind a participant, branches that it has under names that are not configured.

    Why a participant could not be asked is what is said of it.
    """

    def ask(participant: ParticipantConfig) -> list[ParticipantReport]:
        asker = _ask_space if participant.kind == "xaqueue" else _ask_database
        return list(asker(participant, gtrid, config))

    found: list[ParticipantReport] = []
    for name, answer in answers(config, ask).items():
        unreachable = [ParticipantReport(name, ParticipantStatus.UNREACHABLE, str(answer))]
        found += unreachable if isinstance(answer, str) else answer
    return found


def why_not(error: Exception) -> str:
    """Why a participant could not be asked. Raises the error where it is neither ours nor a driver's."""
    if not isinstance(error, OSError) and not is_a(error, "Error"):
        raise error
    if getattr(error, "sqlite_errorname", "") == "SQLITE_READONLY_ROLLBACK":
        return "a transaction was killed in it: SQLite repairs that when it is opened to write, as its application does"
    return " ".join(str(error).split())


# A queue space


def location(participant: ParticipantConfig) -> Location:
    """Where its space is."""
    address = participant.address
    return Location(url=address) if is_url(address) else Location(directory=address)


def directory(place: Location) -> str:
    """That of a space which is there. Raises SpaceError."""
    read_format(place.directory, is_expected=True)
    return place.directory


def _ask_space(participant: ParticipantConfig, gtrid: Gtrid, config: TmConfig) -> Iterator[ParticipantReport]:
    """The outcome is asked for first, so that what a person did meanwhile is not taken for the coordinator's doing."""
    place = location(participant)
    own = Xid(FORMAT_ID, bytes(gtrid), participant.name.encode())
    outcome = Outcome.UNKNOWN
    url = place.url or served_at(directory(place))
    if url:
        with remote(url, answer_s=ANSWER_S) as manager:
            outcome, operator = manager.outcome(own), RemoteOperator(manager)
            waiting, forgotten = operator.in_doubt(), operator.forgotten()
    else:
        looked = look_into(place.directory)
        waiting = in_doubt_in(looked.fs, looked.again)
        if looked.journal.damage and own not in [branch.xid for branch in waiting]:
            yield ParticipantReport(participant.name, ParticipantStatus.UNREACHABLE, looked.journal.damage)
            return
        forgotten = heuristics.forgotten(place.directory)
    held = {branch.xid: branch for branch in waiting}
    if own in held:
        yield _of_held(participant.name, own, held[own])
    else:
        yield _of_ended(participant.name, own, outcome, forgotten)
    yield from _not_configured(held, gtrid, config, f"in the space of {participant.name}")


def _of_ended(name: str, xid: Xid, outcome: Outcome, forgotten: Iterable[Forgotten]) -> ParticipantReport:
    for line in forgotten:
        if line.xid == str(xid) and line.outcome in _BY_HAND:
            return ParticipantReport(name, _BY_HAND[line.outcome], f"by {line.by}, forgotten by {line.forgotten_by}")
    if outcome in _OUTCOMES:
        return ParticipantReport(name, _OUTCOMES[outcome])
    return ParticipantReport(name, ParticipantStatus.ABSENT, "it may never have been, or be over")


def _not_configured(
    held: Mapping[Xid, InDoubt | None], gtrid: Gtrid, config: TmConfig, where: str
) -> Iterator[ParticipantReport]:
    """Branches of the transaction under names that the configuration does not have."""
    for xid, branch in held.items():
        name = xid.bqual.decode("ascii", "backslashreplace")
        if xid.gtrid == bytes(gtrid) and name not in config.participants:
            yield _of_held(name, xid, branch, f"{where}, and not in the configuration")


def _of_held(name: str, xid: Xid, branch: InDoubt | None, note: str = "") -> ParticipantReport:
    """Of a branch that is there. A database tells no more than that."""
    if branch is None:
        return ParticipantReport(name, ParticipantStatus.IN_DOUBT, _joined((parameters.postgres_gid(xid), note)), xid)
    decision = branch.decision
    if decision is not None:
        details = (f"by {decision.by}", decision.reason, note)
        return ParticipantReport(name, _BY_HAND[decision.outcome], _joined(details))
    if branch.state == Verdict.IN_DOUBT.value:
        details = (str(xid), "damaged" if branch.damage else "", note)
        return ParticipantReport(name, ParticipantStatus.IN_DOUBT, _joined(details), xid)
    if branch.state == Verdict.COMMITTING.value:
        return ParticipantReport(name, ParticipantStatus.COMMITTED, _joined(("past its commit point", note)))
    return ParticipantReport(name, ParticipantStatus.UNREACHABLE, _joined((branch.state, note)))


# Databases


def _ask_database(participant: ParticipantConfig, gtrid: Gtrid, config: TmConfig) -> Iterator[ParticipantReport]:
    with read_only(participant) as connection:
        row = _of_row(participant, connection, gtrid)
        if row.status is not ParticipantStatus.ABSENT or participant.kind in PREPARES_NOTHING:
            yield row
            return
        held = {xid: None for xid, _ in prepared_in(connection)}
    own = Xid(FORMAT_ID, bytes(gtrid), participant.name.encode())
    if own in held:
        yield _of_held(participant.name, own, None)
    else:
        yield ParticipantReport(participant.name, ParticipantStatus.ABSENT, "PostgreSQL tells only what is prepared")
    yield from _not_configured(held, gtrid, config, f"in the database of {participant.name}")


def prepared_in(connection: Any) -> list[tuple[Xid, int]]:
    """What is prepared in its database under a gid that is an xid, and since when, int microseconds UTC."""
    statement = "SELECT gid, (extract(epoch FROM prepared) * 1000000)::bigint FROM pg_prepared_xacts"
    found = []
    for gid, since in connection.execute(f"{statement} WHERE database = current_database()").fetchall():
        with suppress(InvalidArgument):  # another application's
            found.append((parameters.xid(gid), since))
    return found


def read_only(participant: ParticipantConfig) -> closing[Any]:
    """A connection to its database, to look."""
    if participant.kind == "sqlite":
        import sqlite3

        path = Path(participant.address)
        alone = "&immutable=1" if _is_at_rest(path) else ""
        return closing(sqlite3.connect(f"{path.as_uri()}?mode=ro{alone}", uri=True, timeout=ANSWER_S))
    if participant.kind == "mysql":
        return closing(opener(participant)())
    timeout = {} if "connect_timeout" in participant.address else {"connect_timeout": CONNECT_S}
    with ExitStack() as failed:
        connection = failed.enter_context(closing(postgres().connect(participant.address, autocommit=True, **timeout)))
        connection.execute(f"SET statement_timeout = '{ANSWER_S}s'")
        failed.pop_all()
    return closing(connection)


def _is_at_rest(path: Path) -> bool:
    """Whether it has a write-ahead log that nobody has open, and which is empty.

    To look at it SQLite would make that log's files, of whoever looks, and its application could not write them.
    """
    try:
        with path.open("rb") as file:
            versions = file.read(SQLITE_VERSIONS.stop)[SQLITE_VERSIONS]
    except OSError:
        return False  # SQLite says why
    return versions == b"\2\2" and not path.with_name(f"{path.name}-wal").exists()


def columns(participant: ParticipantConfig, connection: Any) -> set[str]:
    """Of the table where decisions may stand; none without it."""
    listed = {
        "sqlite": f"SELECT name FROM pragma_table_info('{last_resource.TABLE}')",
        "postgres": f"SELECT attname FROM pg_attribute WHERE attrelid = to_regclass('{last_resource.TABLE}')",
        "mysql": "SELECT column_name FROM information_schema.columns WHERE table_schema = DATABASE() "
        f"AND table_name = '{last_resource.TABLE}'",
    }[participant.kind]
    return {name for (name,) in driver.run(connection, listed)}


def _of_row(participant: ParticipantConfig, connection: Any, gtrid: Gtrid) -> ParticipantReport:
    """The row of a database that may have decided. Without one it may yet come, or be over and gone."""
    name, statement = participant.name, f"SELECT decision FROM {last_resource.TABLE} WHERE gtrid = '{gtrid}'"
    rows = driver.run(connection, statement) if columns(participant, connection) else []
    if not rows:
        return ParticipantReport(name, ParticipantStatus.ABSENT, f"no row in {last_resource.TABLE}")
    status = _ROWS.get(str(rows[0][0]), ParticipantStatus.UNREACHABLE)
    return ParticipantReport(name, status, f"its row in {last_resource.TABLE}", is_row=True)


def _joined(parts: Iterable[str]) -> str:
    return ", ".join(part for part in parts if part)
