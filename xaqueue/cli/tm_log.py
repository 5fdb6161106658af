"""The operator's verbs on a transaction manager's log: what is not over, carried out as decided, and forgotten.

Looking works while the transaction manager runs. Nothing here decides: a commit or a rollback is what the log says, or
refused, so that no outcome becomes mixed. A configuration for operators says where the log and its participants are:
participants.toml, in xaqueue(5).
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

import typer

from xaqueue.cli import output, parameters
from xaqueue.cli.branches import gtrid_json
from xaqueue.cli.exit_codes import agreed
from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.core.storage.owner_file import is_owned
from xaqueue.endpoint import is_url
from xaqueue.errors import DecisionLogInUse, InvalidArgument, ProtocolError, UnknownXid
from xaqueue.tm.advice import LogStatus
from xaqueue.tm.decisions import wall_clock
from xaqueue.tm.gtrid import Gtrid, checked_name
from xaqueue.tm.log_directory import (
    OPERATOR_LOG,
    PARTICIPANTS,
    ForgottenHeuristic,
    LogView,
    every_log,
    is_elsewhere,
    open_log,
    read_forgotten,
    record_forgotten,
    view_logs,
)
from xaqueue.tm.records import Heuristic, InDoubtTransaction

if TYPE_CHECKING:
    from xaqueue.tm.manager import TransactionManager

ADDRESSES = {"xaqueue": "space", "postgres": "dsn", "mysql": "dsn", "sqlite": "path"}
"""By kind, the key that says where it is."""
PREPARES_NOTHING = ("mysql", "sqlite")
"""Kinds of databases that take part by a row of the decision alone."""
_KEYS = {"log_dir", "decides", "last_resource", "participants"}
RECOVER_S = 60.0
"""For how long the participants are waited for."""
Prepared = list[tuple[str, str]]
"""By participant of kind postgres, the gid of a prepared transaction, or why there is none."""
HEURISTIC_HEADINGS = ("gtrid", "participant", "was told", "and", "noticed", "in its words")
HEADINGS = ("gtrid", "state", "age", "participants", "outstanding", "heuristics")


@dataclass(frozen=True, slots=True)
class ParticipantConfig:
    """One participant; the address is what its kind's key says, and paths are absolute."""

    name: str
    kind: str
    address: str


@dataclass(frozen=True, slots=True)
class TmConfig:
    """What an operator's command knows of a transaction manager."""

    log_dir: Path
    participants: Mapping[str, ParticipantConfig] = field(default_factory=dict)
    last_resource: str | None = None
    decides: str | None = None
    """In whose database it has its decisions, instead of a log."""


def load(path: Path) -> TmConfig:
    """Of one that has a log, as ``load_any``. Raises InvalidArgument."""
    config = load_any(path)
    if config.decides is not None:
        raise InvalidArgument(
            f"{path}: the database of {config.decides!r} keeps the decisions, and there is no log: `xaqueue tm "
            "status` shows its nodes, and `xaqueue tm recover` finishes what they have left"
        )
    return config


def load_any(path: Path) -> TmConfig:
    """Of a configuration file, or of a log's directory with or without one in it. Raises InvalidArgument."""
    if path.is_dir():
        if not (path / PARTICIPANTS).exists():
            return TmConfig(path)
        path = path / PARTICIPANTS
    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{path} cannot be read ({error}): name a log's directory, or a TOML file") from error
    except tomllib.TOMLDecodeError as error:
        raise InvalidArgument(f"{path} is no TOML: {error}") from error
    return _config(path, document)


def _config(path: Path, document: Mapping[str, Any]) -> TmConfig:
    unknown = sorted(set(document) - _KEYS)
    if unknown:
        raise InvalidArgument(f"{path}: {unknown[0]!r} is no key of it: {', '.join(sorted(_KEYS))}")
    rows = document.get("participants", {})
    log_dir, last = document.get("log_dir", "."), document.get("last_resource")
    if not isinstance(rows, dict) or not isinstance(log_dir, str):
        raise InvalidArgument(f"{path}: [participants.NAME] tables and a text as log_dir are wanted")
    participants = {name: _participant(path, name, row) for name, row in rows.items()}
    if last is not None and last not in participants:
        raise InvalidArgument(f"{path}: last_resource {last!r} is none of the participants {sorted(participants)}")
    decides = document.get("decides")
    if decides is not None and (decides not in participants or "log_dir" in document or last is not None):
        raise InvalidArgument(
            f"{path}: decides = {decides!r} is one of the participants {sorted(participants)}, and goes with neither "
            "log_dir nor last_resource: that one's database keeps the decisions"
        )
    for one in participants.values():
        if one.kind in PREPARES_NOTHING and (decides or last) not in (None, one.name):
            raise InvalidArgument(f"{path}: {one.name} has no two-phase commit: make it the last_resource")
    return TmConfig((path.parent / log_dir).resolve(), participants, last, decides)


def _participant(path: Path, name: str, row: Any) -> ParticipantConfig:
    kind = row.get("kind") if isinstance(row, dict) else None
    key = ADDRESSES.get(kind) if isinstance(kind, str) else None
    if key is None:
        raise InvalidArgument(f"{path}: participant {name!r} needs kind = one of {', '.join(ADDRESSES)}")
    address = row.get(key)
    if set(row) != {"kind", key} or not isinstance(address, str) or not address:
        raise InvalidArgument(f"{path}: participant {name!r} of kind {kind} takes {key} = TEXT and nothing else")
    local = kind == "sqlite" or (kind == "xaqueue" and not is_url(address))
    try:
        place = str((path.parent / address).resolve()) if local else address
    except ValueError as error:
        raise InvalidArgument(f"{path}: participant {name!r}: {key} = {address!r} is no path ({error})") from None
    return ParticipantConfig(checked_name(name), str(kind), place)


def opener(participant: ParticipantConfig) -> Callable[[], Any]:
    """Opens PEP 249 connections to it, as ``TransactionManager`` takes it."""
    if participant.kind == "xaqueue":
        import xaqueue

        return lambda: xaqueue.connect(participant.address)
    if participant.kind == "sqlite":
        import sqlite3

        place = f"{Path(participant.address).as_uri()}?mode=rw"  # a file that is not there is never made
        return lambda: sqlite3.connect(place, uri=True)
    if participant.kind == "mysql":
        return partial(_mysql, participant.address)
    return lambda: postgres().connect(participant.address)


def _mysql(dsn: str) -> Any:
    """Raises InvalidArgument, which does not repeat the DSN: there may be a password in it."""
    try:
        import pymysql
    except ModuleNotFoundError:
        raise InvalidArgument("MySQL and MariaDB are reached with PyMySQL: pip install 'pymysql'") from None
    try:
        url = urlsplit(dsn)
        if url.scheme not in ("mysql", "mariadb"):
            raise InvalidArgument("the DSN is refused: it begins with mysql:// or mariadb://")
        given = dict(parse_qsl(url.query))
        options: dict[str, Any] = {key: int(v) if key.endswith("_timeout") else v for key, v in given.items()}
        named = {"host": url.hostname, "user": url.username, "password": url.password, "database": url.path[1:]}
        options |= {name: unquote(value) for name, value in named.items() if value}
        return pymysql.connect(**options, port=url.port or 0)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"the DSN is refused: {error}") from error


def postgres() -> Any:
    """The driver. Raises InvalidArgument where it is not installed."""
    try:
        import psycopg
    except ModuleNotFoundError:
        raise InvalidArgument("PostgreSQL is reached with psycopg: pip install 'psycopg[binary]'") from None
    return psycopg


# The verbs


def print_forgotten(path: Path, json: bool) -> None:
    found: list[ForgottenHeuristic] = []
    for log in view_logs(load(path).log_dir):
        with closing(DirectoryFileSystem(log.root)) as fs:
            found += read_forgotten(fs)

    def row(f: ForgottenHeuristic) -> tuple[object, ...]:
        at = output.moment(f.forgotten_at)
        return f.gtrid, f.participant, f.decision, f.party, f.forgotten_by, at, f.forgotten_reason

    headings = ("gtrid", "participant", "was told", "and", "forgotten by", "forgotten at", "why")
    output.records(found, json, asdict, headings, row, none="no heuristic was forgotten")


def print_transactions(path: Path, json: bool) -> None:
    logs = view_logs(load(path).log_dir)
    none = f"no transaction of node {' and '.join(log.node for log in logs)} is in doubt"
    found = sorted((one for log in logs for one in log.open), key=lambda one: one.decided_us)
    output.records(found, json, _json, HEADINGS, _row, none=none, right=("age", "heuristics"))


def print_transaction(path: Path, text: str, json: bool, prepared: Callable[[TmConfig, bytes], Prepared]) -> None:
    config, log, gtrid = _named(path, text)
    found, gids = _find(log, gtrid), prepared(config, bytes(gtrid))
    if json:
        output.as_json({**_json(found), **({"prepared": gids} if gids else {})})
        return
    output.pairs(
        [
            ("gtrid", str(gtrid)),
            ("coordinator", f"node {gtrid.node}, epoch {gtrid.epoch}, transaction {gtrid.counter}"),
            ("state", found.state.value),
            ("decided", output.moment(found.decided_us)),
            ("age", output.age(found.decided_us)),
            ("participants", " ".join(_takes_part(found))),
            ("outstanding", " ".join(found.outstanding)),
            ("last resource", found.last_resource or ""),
            *((f"prepared at {name}", gid) for name, gid in gids),
        ]
    )
    output.below(HEURISTIC_HEADINGS[1:], list(map(heuristic_row, found.heuristics)))


def carry_out(path: Path, text: str, *, commit: bool, dry_run: bool, asks: bool) -> None:
    """Does at every participant what the log says of a transaction, where that is what is asked for."""
    config, log, gtrid = _named(path, text, exact=not (asks or dry_run))
    verb = "commit" if commit else "rollback"
    status = log.status(gtrid)
    allowed = (LogStatus.COMMIT,) if commit else (LogStatus.NONE, LogStatus.ROLLBACK)
    if status not in (*allowed, LogStatus.LAST):  # what stands in a last resource is carried out, whatever it is
        raise ProtocolError(
            f"{verb} of transaction {gtrid} is refused, of which the log says: {status.value}. `xaqueue indoubt "
            f"advise {gtrid}` compares it with its participants; each of them can be decided on by itself"
        )
    waiting = [name for one in log.open if one.gtrid == bytes(gtrid) for name in one.outstanding]
    if dry_run:
        typer.echo(f"{verb} of transaction {gtrid} is what the log says; nothing is done")
        typer.echo(f"outstanding: {' '.join(waiting) or 'whoever has a branch of it in doubt'}")
        return
    if log.in_use:
        raise DecisionLogInUse(
            f"{log.root} is in use: its transaction manager does this by itself, and `xaqueue indoubt show "
            f"{gtrid} --tm {path}` says who has not answered; or stop it first"
        )
    check_here(config)
    if asks:
        agreed(f"{verb} what is left of transaction {gtrid}, and recover every other one of node {log.node}?")
    with opened(config, log.root) as manager:
        report = manager.recover(RECOVER_S)
        left = [one for one in manager.in_doubt() if one.gtrid == bytes(gtrid)]
    noted = {heuristic.participant: heuristic for one in left for heuristic in one.heuristics}
    done = set(waiting).difference(*(one.outstanding for one in left))
    for name, scan in report.scans.items():
        otherwise = f"was {noted[name].outcome.value}" if name in noted else ""
        how = ("committed" if commit else "rolled back") if name in done else "nothing of it is in doubt"
        typer.echo(f"{name}: {scan.error or otherwise or how}")
    if not left:
        typer.echo(f"transaction {gtrid} is over")
    for one in left:
        outstanding = f", outstanding: {' '.join(one.outstanding)}" if one.outstanding else ""
        typer.echo(f"transaction {gtrid} is {one.state.value}{outstanding}")


def forget(path: Path, text: str, *, by: str, reason: str, asks: bool) -> None:
    """Ends the memory of a transaction's heuristics: here, and at the participants that are configured."""
    config, log, gtrid = _named(path, text, exact=not asks)
    found = _find(log, gtrid)
    if not found.heuristics:
        raise ProtocolError(
            f"transaction {gtrid} is {found.state.value}: only heuristics are forgotten; without its decision the rest "
            "would be rolled back"
        )
    if log.in_use:
        raise DecisionLogInUse(
            f"{log.root} is in use: stop its transaction manager first, or call its forget({str(gtrid)!r})"
        )
    check_here(config)
    outcomes = ", ".join(f"{h.participant} was {h.outcome.value}" for h in found.heuristics)
    if asks:
        agreed(f"forget of transaction {gtrid} that {outcomes}?")
    at_us = wall_clock()
    with (
        closing(DirectoryFileSystem(log.root)) as fs,
        opened(config, log.root) if config.participants else closing(open_log(log.root)) as owned,
    ):
        record_forgotten(fs, found.heuristics, by, at_us, reason)
        owned.forget(bytes(gtrid))
    typer.echo(f"transaction {gtrid}: its heuristics are forgotten, recorded in {OPERATOR_LOG}")
    if not config.participants:
        names = " and ".join(h.participant for h in found.heuristics)
        typer.echo(f"{names} was not told: forget it there, too; with a {PARTICIPANTS} this command does so")


def _named(path: Path, text: str, *, exact: bool = False) -> tuple[TmConfig, LogView, Gtrid]:
    config = load(path)
    logs = view_logs(config.log_dir)
    gtrid = parameters.gtrid_of(text, [one.gtrid for log in logs for one in log.open], exact=exact)
    return config, of_node(logs, gtrid.node), gtrid


def of_node(logs: Sequence[LogView], node: str) -> LogView:
    """That one's, or the first where none is."""
    return next((log for log in logs if log.node == node), logs[0])


def opened(config: TmConfig, slot: Path | None = None) -> AbstractContextManager[TransactionManager]:
    """The transaction manager of a configuration, with the log in that slot, or in the first that is free.

    Raises InvalidArgument, DecisionLogInUse.
    """
    if not config.participants:
        raise InvalidArgument(
            f"the participants are not known: write them into {config.log_dir / PARTICIPANTS}, see xaqueue(5)"
        )
    openers = {name: opener(participant) for name, participant in config.participants.items()}
    from xaqueue.tm.manager import TransactionManager  # which loads asyncio

    if config.decides is not None:
        return TransactionManager(openers, decides=config.decides)
    return TransactionManager(slot or config.log_dir, openers, last_resource=config.last_resource)


def unused(config: TmConfig, *, whole: bool = False, moved: bool = False) -> TmConfig:
    """The same, where a process may have a log there without making one, or all of them. moved: whoever had one open
    elsewhere is gone. Raises DecisionLogInUse."""
    if not moved:
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
    """Raises DecisionLogInUse where its transaction manager may be at work elsewhere."""
    for root in every_log(config.log_dir):
        if is_elsewhere(root) and not is_owned(root):
            raise DecisionLogInUse(
                f"{root} is a copy of a log, or another host had it open last: its transaction manager may be at work "
                f"there, so do this there; where that is gone for good, `xaqueue tm recover --moved {config.log_dir}` "
                "takes it over here"
            )


def _find(log: LogView, gtrid: Gtrid) -> InDoubtTransaction:
    for one in log.open:
        if one.gtrid == bytes(gtrid):
            return one
    if gtrid.node != log.node:
        raise UnknownXid(f"transaction {gtrid} is of node {gtrid.node}, and this is the log of node {log.node}")
    raise UnknownXid(
        f"transaction {gtrid} is not in doubt here: no decision, or all have carried it out. "
        "`xaqueue indoubt advise` asks the participants"
    )


def _takes_part(one: InDoubtTransaction) -> list[str]:
    return [*one.participants, *([one.last_resource] if one.last_resource is not None else [])]


def _row(one: InDoubtTransaction) -> tuple[object, ...]:
    parties, outstanding = " ".join(_takes_part(one)), " ".join(one.outstanding)
    age = output.age(one.decided_us)
    return one.gtrid.decode("ascii"), one.state.value, age, parties, outstanding, len(one.heuristics)


def _json(one: InDoubtTransaction) -> dict[str, Any]:
    gtrid = Gtrid.parse(one.gtrid)
    return {
        **(gtrid_json(gtrid) if gtrid is not None else {"gtrid": one.gtrid.decode("latin-1")}),
        "state": one.state.value,
        "decided": one.decided_us,
        "participants": one.participants,
        "outstanding": one.outstanding,
        "last_resource": one.last_resource,
        "heuristics": list(map(heuristic_json, one.heuristics)),
    }


def heuristic_row(one: Heuristic) -> tuple[str, ...]:
    """Without its transaction."""
    return one.participant, one.decision.value, one.outcome.value, output.moment(one.when_us), one.detail


def heuristic_json(one: Heuristic) -> dict[str, object]:
    """Without its transaction."""
    return {
        "participant": one.participant,
        "decision": one.decision.value,
        "party": one.outcome.value,
        "when": one.when_us,
        "detail": one.detail,
    }
