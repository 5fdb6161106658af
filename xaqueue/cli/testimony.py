"""What each participant says of one global transaction: every one is asked, and nothing is changed anywhere.

A participant that cannot be asked is told as such: its silence proves nothing, and neither does the absence of a
branch. What an operator decided by hand is told apart from what the coordinator did, also after it was forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xaqueue.cli import values
from xaqueue.cli.spaces import Place, remote, served_at
from xaqueue.cli.tm_config import ParticipantConfig, TmConfig, postgres
from xaqueue.errors import Error, InvalidArgument
from xaqueue.rpc.operator_client import RemoteOperator
from xaqueue.space.engine import operator_log
from xaqueue.space.engine.operator_log import Forgotten
from xaqueue.space.offline.inspect_branches import InDoubt, in_doubt_in
from xaqueue.space.recovery.prepared import Verdict
from xaqueue.space.recovery.redo_view import look_into
from xaqueue.tm import marker
from xaqueue.tm.advice import Says
from xaqueue.tm.gtrid import FORMAT_ID, Gtrid
from xaqueue.xa import Outcome
from xaqueue.xid import Xid

CONNECT_S = 10
"""For how long a PostgreSQL is tried, unless its DSN says so."""
_BY_HAND = {
    "commit": Says.BY_HAND_COMMITTED,
    "rollback": Says.BY_HAND_ROLLED_BACK,
    "mixed": Says.BY_HAND_MIXED,
}
_TOLD = {Outcome.COMMITTED: Says.COMMITTED, Outcome.ROLLED_BACK: Says.ROLLED_BACK}
_ROWS = {"commit": Says.COMMITTED, "rollback": Says.ROLLED_BACK}


@dataclass(frozen=True, slots=True)
class Testimony:
    """What one participant says of its branch, and where that is from."""

    participant: str
    says: Says
    detail: str = ""
    xid: Xid | None = None
    """Of the branch that is in doubt."""


def ask_all(config: TmConfig, gtrid: Gtrid) -> list[Testimony]:
    """In the configuration's order; behind a participant, branches that it has under names that are not configured."""
    found = []
    for participant in config.participants.values():
        found += ask(participant, gtrid, config)
    return found


def ask(participant: ParticipantConfig, gtrid: Gtrid, config: TmConfig) -> list[Testimony]:
    """Never raises: why a participant could not be asked is what is said of it."""
    askers = {"xaqueue": _ask_space, "postgres": _ask_postgres, "sqlite": _ask_sqlite}
    try:
        return list(askers[participant.kind](participant, gtrid, config))
    except (Error, OSError) as error:
        return [Testimony(participant.name, Says.UNREACHABLE, str(error))]


# A queue space


@dataclass(frozen=True, slots=True)
class _Seen:
    """Asked for in this order, so that what a person did meanwhile is never taken for the coordinator's doing."""

    outcome: Outcome
    in_doubt: list[InDoubt]
    forgotten: list[Forgotten]


def _ask_space(participant: ParticipantConfig, gtrid: Gtrid, config: TmConfig) -> Iterator[Testimony]:
    address = participant.address
    place = Place(url=address) if "://" in address else Place(directory=address)
    xid = Xid(FORMAT_ID, bytes(gtrid), participant.name.encode())
    url = served_at(place)
    if url:
        with remote(url) as manager:
            operator = RemoteOperator(manager)
            seen = _Seen(manager.outcome(xid), operator.in_doubt(), operator.forgotten())
    else:
        looked = look_into(place.directory)
        waiting = in_doubt_in(looked.fs, looked.again)
        if looked.journal.damage and xid not in [branch.xid for branch in waiting]:
            yield Testimony(participant.name, Says.UNREACHABLE, looked.journal.damage)
            return
        seen = _Seen(Outcome.UNKNOWN, waiting, operator_log.forgotten(place.directory))
    yield _of_branch(participant.name, xid, seen)
    for branch in seen.in_doubt:
        name = branch.xid.bqual.decode("ascii", "backslashreplace")
        if branch.xid.gtrid == bytes(gtrid) and name not in config.participants:
            yield _of_waiting(name, branch, f"in the space of {participant.name}, and not in the configuration")


def _of_branch(name: str, xid: Xid, seen: _Seen) -> Testimony:
    for branch in seen.in_doubt:
        if branch.xid == xid:
            return _of_waiting(name, branch)
    for line in seen.forgotten:
        if line.xid == str(xid) and line.outcome in _BY_HAND:
            return Testimony(name, _BY_HAND[line.outcome], f"by {line.by}, forgotten by {line.forgotten_by}")
    says = _TOLD.get(seen.outcome, Says.ABSENT)
    return Testimony(name, says, "" if says is not Says.ABSENT else "it may never have been, or be over")


def _of_waiting(name: str, branch: InDoubt, note: str = "") -> Testimony:
    decision = branch.decision
    if decision is not None:
        details = (f"by {decision.by}", decision.reason, note)
        return Testimony(name, _BY_HAND[decision.outcome], _joined(details))
    if branch.state == Verdict.IN_DOUBT.value:
        details = (str(branch.xid), "damaged" if branch.damage else "", note)
        return Testimony(name, Says.IN_DOUBT, _joined(details), branch.xid)
    if branch.state == Verdict.COMMITTING.value:
        return Testimony(name, Says.COMMITTED, _joined(("past its commit point", note)))
    return Testimony(name, Says.UNREACHABLE, _joined((branch.state, note)))


# Databases


def _ask_postgres(participant: ParticipantConfig, gtrid: Gtrid, config: TmConfig) -> Iterator[Testimony]:
    psycopg = postgres()
    patience = {} if "connect_timeout" in participant.address else {"connect_timeout": CONNECT_S}
    try:
        with closing(psycopg.connect(participant.address, autocommit=True, **patience)) as connection:
            if participant.name == config.last_resource:
                there = connection.execute(f"SELECT to_regclass('{marker.TABLE}')").fetchone()
                yield _of_row(participant.name, connection, gtrid, bool(there and there[0]))
                return
            rows = connection.execute("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()")
            branches = list(_branches(gid for (gid,) in rows.fetchall()))
    except psycopg.Error as error:
        yield Testimony(participant.name, Says.UNREACHABLE, " ".join(str(error).split()))
        return
    mine = [xid for xid in branches if xid.gtrid == bytes(gtrid)]
    own = Xid(FORMAT_ID, bytes(gtrid), participant.name.encode())
    if own in mine:
        yield Testimony(participant.name, Says.IN_DOUBT, values.postgres_gid(own), own)
    else:
        yield Testimony(participant.name, Says.ABSENT, "PostgreSQL tells only what is prepared")
    for xid in mine:
        name = xid.bqual.decode("ascii", "backslashreplace")
        if name not in config.participants:
            note = f"in the database of {participant.name}, and not in the configuration"
            yield Testimony(name, Says.IN_DOUBT, f"{values.postgres_gid(xid)}, {note}", xid)


def _branches(gids: Iterable[str]) -> Iterator[Xid]:
    """Those gids that are xids as psycopg writes them."""
    for gid in gids:
        try:
            yield values.xid(gid)
        except InvalidArgument:
            continue  # another application's


def _ask_sqlite(participant: ParticipantConfig, gtrid: Gtrid, config: TmConfig) -> Iterator[Testimony]:
    import sqlite3

    try:
        with closing(sqlite3.connect(f"{Path(participant.address).as_uri()}?mode=ro", uri=True)) as connection:
            there = connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (marker.TABLE,)).fetchone()
            yield _of_row(participant.name, connection, gtrid, there is not None)
    except sqlite3.Error as error:
        yield Testimony(participant.name, Says.UNREACHABLE, str(error))


def _of_row(name: str, connection: Any, gtrid: Gtrid, has_table: bool) -> Testimony:
    """The row of a last resource. Without one it may yet come, or be over and gone."""
    statement = f"SELECT decision FROM {marker.TABLE} WHERE gtrid = '{gtrid}'"
    row = connection.execute(statement).fetchone() if has_table else None
    if row is None:
        return Testimony(name, Says.ABSENT, f"no row in {marker.TABLE}")
    return Testimony(name, _ROWS.get(str(row[0]), Says.UNREACHABLE), f"its row in {marker.TABLE}")


def _joined(parts: Iterable[str]) -> str:
    return ", ".join(part for part in parts if part)
