"""What is used of a participant's PEP 249 driver, and what its errors mean.

Nothing is used but the two-phase methods and ``close``, and four things where a driver has them: an ``outcome`` of a
branch and the forgetting of a heuristic one (ours), what interrupts a statement, and the transaction status that tells
a failed PostgreSQL transaction, which PREPARE TRANSACTION would quietly roll back.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from xaqueue.errors import ConnectionLost, Error, HeuristicOutcome, ResourceFailed, UnknownXid
from xaqueue.tm.gtrid import FORMAT_ID
from xaqueue.tm.voting import Reply
from xaqueue.xa import Code, Outcome

UNDEFINED_OBJECT = "42704"
"""SQLSTATE of PostgreSQL for a prepared transaction that is not there."""
UNCERTAIN = ("08", "40003")
"""SQLSTATEs, or their classes, of what may have been carried out: a connection broke, perhaps one behind a pooler."""
INTERRUPTION_S = 5.0
"""An interruption is tried for so long, where the driver takes a limit."""
IN_ERROR = 3
"""libpq's PQTRANS_INERROR: a statement has failed, and all that can come is a rollback."""


def close(connection: Any) -> None:
    """Whatever it says: what it has not prepared is rolled back by its end."""
    with suppress(Exception):
        connection.close()


def commits_itself(connection: Any) -> bool:
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


def is_lost(connection: Any, error: Exception) -> bool:
    """Whether a commit that failed so may have been carried out all the same."""
    if isinstance(error, Error):
        return isinstance(error, (ConnectionLost, ResourceFailed))
    if getattr(connection, "in_transaction", False):
        return False
    if getattr(connection, "closed", False):
        return True
    sqlstate = getattr(error, "sqlstate", None)
    if sqlstate is not None:
        return str(sqlstate).startswith(UNCERTAIN)
    return not is_a(error, "IntegrityError") and not is_a(error, "ProgrammingError")


def is_a(error: Exception, pep_249_name: str) -> bool:
    """Whether the driver derived it from its class of this name."""
    return any(cls.__name__ == pep_249_name for cls in type(error).__mro__)


def heuristic_answer(error: Exception) -> Reply | None:
    """What a participant did by itself, where it says so."""
    return _HEURISTICS.get(error.code) if isinstance(error, HeuristicOutcome) else None


def ask(connection: Any, xid: Any) -> Reply:
    """What became of a branch, where the participant can tell. Raises what the driver raises."""
    return _REPLIES.get(connection.outcome(xid), Reply.UNKNOWN) if can_tell(connection) else Reply.UNKNOWN


def can_tell(connection: Any) -> bool:
    """Whether the participant remembers what became of its branches."""
    return callable(getattr(connection, "outcome", None))


_HEURISTICS = {
    Code.XA_HEURCOM: Reply.HEUR_COMMITTED,
    Code.XA_HEURRB: Reply.HEUR_ROLLED_BACK,
    Code.XA_HEURMIX: Reply.HEUR_MIXED,
    Code.XA_HEURHAZ: Reply.HEUR_HAZARD,
}
_REPLIES = {
    Outcome.COMMITTED: Reply.COMMITTED,
    Outcome.ROLLED_BACK: Reply.ROLLED_BACK,
    Outcome.IN_DOUBT: Reply.PENDING,
}
