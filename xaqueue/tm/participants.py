"""A participant is a way to open PEP 249 connections; those that are idle and sound are kept for the next transaction.

Of a driver nothing is used but the two-phase methods and ``close``, and four things where it has them: an ``outcome``
of a branch and the forgetting of a heuristic one (ours), what interrupts a statement, and the transaction status that
tells a failed PostgreSQL transaction, which PREPARE TRANSACTION would quietly roll back.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from xaqueue.connection import Connection
from xaqueue.errors import Error, HeuristicOutcome, InvalidArgument, UnknownXid
from xaqueue.tm.gtrid import FORMAT_ID, checked_name
from xaqueue.tm.voting import Answer
from xaqueue.xa import Code, Outcome

SHARED_CONNECTIONS = 2
"""PEP 249's ``threadsafety`` from which on a connection may be handed to another thread."""
UNDEFINED_OBJECT = "42704"
"""SQLSTATE of PostgreSQL for a prepared transaction that is not there."""
INTERRUPTION_S = 5.0
"""An interruption is tried for so long, where the driver takes a limit."""
INTERRUPTIONS = 16
"""Interruptions of one participant that are on their way at a time, at most: each has a thread, and may hang."""
IN_ERROR = 3
"""libpq's PQTRANS_INERROR: a statement has failed, and all that can come is a rollback."""

Connect = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Participant:
    """How one participant is opened.

    connect: opens a connection, not in autocommit. sort_key: participants are begun on and prepared in the order of
    their keys; without one, the connection's ``sortKey()`` or the participant's name. parallel: whether another thread
    may prepare and commit on its connections while their own one waits; without it, its driver's ``threadsafety`` says.
    idle: how many connections are kept open between transactions.
    """

    connect: Connect
    sort_key: str | None = None
    parallel: bool | None = None
    idle: int = 4


class Source:
    """Connections of one participant. Safe for threads."""

    def __init__(self, name: str, participant: Participant, *, is_last: bool = False) -> None:
        self.name = checked_name(name)
        self.participant = participant
        self.is_last = is_last
        """Whether it is the last resource: its connections may be tied to their thread, so none is kept."""
        self._mutex = threading.Lock()
        self._idle: list[Any] = []
        self._interrupting: set[object] = set()
        self._closed = False

    def open(self) -> Any:
        """A connection that nobody used before. Raises what the driver raises."""
        connection = self.participant.connect()
        if getattr(connection, "autocommit", None) is True or _commits_itself(connection):
            close(connection)
            raise InvalidArgument(
                f"participant {self.name!r} is in autocommit mode, so that its work would not wait for the "
                "transaction's end: open it with autocommit off"
            )
        return connection

    def take_idle(self) -> Any | None:
        """One that was kept and looks sound; None without one."""
        while True:
            with self._mutex:
                if not self._idle:
                    return None
                connection = self._idle.pop()
            if not getattr(connection, "closed", False):
                return connection

    def give_back(self, connection: Any) -> None:
        """Keeps it for the next, outside of any transaction as it is."""
        with self._mutex:
            if not (self._closed or self.is_last or len(self._idle) >= self.participant.idle):
                self._idle.append(connection)
                return
        close(connection)

    def drop_idle(self) -> None:
        """One connection was lost: its siblings most likely are, too."""
        with self._mutex:
            dropped, self._idle = self._idle, []
        for connection in dropped:
            close(connection)

    def may_interrupt(self, branch: object) -> bool:
        """Whether this branch's statement is to be interrupted now: not twice at a time, and not too many."""
        with self._mutex:
            if branch in self._interrupting or len(self._interrupting) >= INTERRUPTIONS:
                return False
            self._interrupting.add(branch)
            return True

    def interrupted(self, branch: object) -> None:
        """The interruption is over."""
        with self._mutex:
            self._interrupting.discard(branch)

    def close(self) -> None:
        self._closed = True
        self.drop_idle()

    def sort_key(self, connection: Any) -> str:
        if self.participant.sort_key is not None:
            return self.participant.sort_key
        own = getattr(connection, "sortKey", None)
        return str(own()) if callable(own) else self.name

    def is_parallel(self, connection: Any) -> bool:
        """Whether another thread may work on it while this one waits."""
        if self.is_last:
            return False  # sqlite3 claims threadsafety 3, and its connections are their thread's by default
        if self.participant.parallel is not None:
            return self.participant.parallel
        if isinstance(connection, Connection):
            return True  # it wants one thread at a time, and does not mind which
        driver = sys.modules.get(type(connection).__module__.partition(".")[0])
        return bool(getattr(driver, "threadsafety", 0) >= SHARED_CONNECTIONS)


def sources(participants: Mapping[str, Connect | Participant], last_resource: str | None) -> dict[str, Source]:
    """Raises InvalidArgument."""
    if last_resource is not None and last_resource not in participants:
        raise InvalidArgument(f"last_resource {last_resource!r} is none of the participants {sorted(participants)}")
    made = {}
    for name, given in participants.items():
        participant = given if isinstance(given, Participant) else Participant(given)
        if not callable(participant.connect):
            raise InvalidArgument(f"participant {name!r} is {given!r}: give a function that opens a connection")
        made[name] = Source(name, participant, is_last=name == last_resource)
    return made


def close(connection: Any) -> None:
    """Whatever it says: what it has not prepared is rolled back by its end."""
    with suppress(Exception):
        connection.close()


def _commits_itself(connection: Any) -> bool:
    """Whether it is a connection of sqlite3 that begins no transaction."""
    return hasattr(connection, "in_transaction") and getattr(connection, "isolation_level", "") is None


def interruption_of(connection: Any) -> Callable[[], object] | None:
    """What interrupts a statement from another thread; None where the driver has nothing.

    psycopg's ``cancel`` holds the interpreter, with all its threads, for as long as the server does not answer.
    """
    safe = getattr(connection, "cancel_safe", None)
    if callable(safe):
        return lambda: safe(timeout=INTERRUPTION_S)
    found = getattr(connection, "cancel", None) or getattr(connection, "interrupt", None)
    return found if callable(found) else None


def xid_on(connection: Any, gtrid: bytes, name: str) -> Any:
    """The xid of this participant's branch, as its driver wants it; str parts, which every driver takes."""
    return connection.xid(FORMAT_ID, gtrid.decode("ascii"), name)


def has_failed(connection: Any) -> bool:
    """Whether a statement failed in the transaction, so that PostgreSQL would take a commit for a rollback."""
    status = getattr(getattr(connection, "info", None), "transaction_status", None)
    return isinstance(status, int) and int(status) == IN_ERROR


def is_unknown_xid(error: Exception) -> bool:
    """Whether a participant says that it has no such branch: PEP 249 wants ProgrammingError, and drivers say more."""
    if isinstance(error, Error):
        return isinstance(error, UnknownXid)
    sqlstate = getattr(error, "sqlstate", None)
    if sqlstate is not None:
        return bool(sqlstate == UNDEFINED_OBJECT)
    return is_a(error, "ProgrammingError")


def is_a(error: Exception, pep_249_name: str) -> bool:
    """Whether the driver derived it from its class of this name."""
    return any(cls.__name__ == pep_249_name for cls in type(error).__mro__)


def heuristic_answer(error: Exception) -> Answer | None:
    """What a participant did by itself, where it says so."""
    return _HEURISTICS.get(error.code) if isinstance(error, HeuristicOutcome) else None


def ask(connection: Any, xid: Any) -> Answer:
    """What became of a branch, where the participant can tell. Raises what the driver raises."""
    return _TOLD.get(connection.outcome(xid), Answer.UNKNOWN) if can_tell(connection) else Answer.UNKNOWN


def can_tell(connection: Any) -> bool:
    """Whether the participant remembers what became of its branches."""
    return callable(getattr(connection, "outcome", None))


_HEURISTICS = {
    Code.XA_HEURCOM: Answer.HEUR_COMMITTED,
    Code.XA_HEURRB: Answer.HEUR_ROLLED_BACK,
    Code.XA_HEURMIX: Answer.HEUR_MIXED,
    Code.XA_HEURHAZ: Answer.HEUR_HAZARD,
}
_TOLD = {
    Outcome.COMMITTED: Answer.COMMITTED,
    Outcome.ROLLED_BACK: Answer.ROLLED_BACK,
    Outcome.IN_DOUBT: Answer.PENDING,
    Outcome.UNKNOWN: Answer.UNKNOWN,
}
