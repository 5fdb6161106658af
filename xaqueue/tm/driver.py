"""What is used of a participant's PEP 249 driver, and what its errors mean.

Nothing is used but the two-phase methods and ``close``, cursors where its database may decide, and six things where
a driver has them: an ``outcome`` of a branch and the forgetting of a heuristic one (ours), what interrupts a statement,
the transaction status that tells a failed PostgreSQL transaction, which PREPARE TRANSACTION would quietly roll back,
the calls of libpq that run a statement, and the socket, on which a server takes its leave.
"""

from __future__ import annotations

import select
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any, NamedTuple

from xaqueue.connection import Connection
from xaqueue.errors import ConnectionLost, Error, HeuristicOutcome, ResourceFailed, UnknownXid
from xaqueue.spans import TracedConnection
from xaqueue.tm.gtrid import FORMAT_ID
from xaqueue.tm.voting import Reply
from xaqueue.xa import Code, Outcome, TableKey

UNDEFINED_OBJECT = "42704"
"""SQLSTATE of PostgreSQL for a prepared transaction that is not there."""
UNCERTAIN = ("08", "40003", "57P", "58", "XX")
"""SQLSTATEs, or their classes, of what may have been carried out: a connection broke, perhaps one behind a pooler, and
these have codes of their own for that."""
INTERRUPTION_S = 5.0
"""An interruption is tried for so long, where the driver takes a limit."""
SHARED_CONNECTIONS = 2
"""PEP 249's ``threadsafety`` from which on a connection may be handed to another thread."""
FULL_SYNC = 2
"""SQLite's ``synchronous`` from which on a commit waits for the disk, also with the journal mode WAL."""
COMMAND_OK = 1
"""libpq's PGRES_COMMAND_OK."""
IDLE, IN_TRANSACTION, IN_ERROR = 0, 2, 3
"""libpq's PQTRANS_IDLE, no transaction is open; PQTRANS_INTRANS; PQTRANS_INERROR, it can only be rolled back."""


class Dialect(TableKey):
    """A database's, as far as its statements differ here."""

    POSTGRESQL = "postgresql"
    SQLITE = "sqlite"
    MYSQL = "mysql"
    OTHER = "other"


CARRYING = frozenset((Dialect.POSTGRESQL, Dialect.SQLITE))
"""Those that can lock a row of another one's for as long as a transaction takes, and are known to be asked so."""
_DIALECTS = {
    **dict.fromkeys(("psycopg", "psycopg2", "pg8000"), Dialect.POSTGRESQL),
    **dict.fromkeys(("sqlite3", "aiosqlite"), Dialect.SQLITE),
    **dict.fromkeys(("MySQLdb", "pymysql", "mysql", "mariadb"), Dialect.MYSQL),
}
"""By the package of a connection's class."""
_OURS = (Connection.__module__, TracedConnection.__module__, "xaqueue.rpc.client.asyncio")
_NAMED = frozenset(dialect.value for dialect in Dialect)


class Adapter:
    """A connection, or a cursor, whose methods are called in another place; see ``awaiting``."""

    def __init__(self, adapted: Any) -> None:
        self.plain = adapted
        """What is adapted."""


def driver_of(connection: Any) -> Any:
    """The driver's own."""
    return connection.plain if isinstance(connection, Adapter) else connection


def kind_of(connection: Any) -> type:
    """The driver's class."""
    return type(driver_of(connection))


def dialect_of(connection: Any) -> Dialect:
    """Of a driver's own connection it is known by its package; an adapter says it."""
    kind: type = type(connection)
    return _dialect_of(kind) or _named(connection)


@lru_cache(maxsize=256)
def _dialect_of(kind: type) -> Dialect | None:
    return next((known for name in _packages(kind) if (known := _DIALECTS.get(name))), None)


def _named(connection: Any) -> Dialect:
    named = getattr(connection, "dialect", None)
    return Dialect(named) if named in _NAMED else _dialect_of(kind_of(connection)) or Dialect.OTHER


class Abilities(NamedTuple):
    """What is the same of all connections that one function opens, and asked at each transaction."""

    has_two_phases: bool
    takes_sql: bool
    may_decide: bool
    """Whether its own commit may decide for all."""
    may_carry: bool
    """And take the changes of a queue with it."""
    dialect: Dialect
    is_shared: bool
    is_ours: bool
    is_adapted: bool
    hardens: bool
    """Whether its commits may be late, and its ``harden`` asked for behind them."""
    has_dear_cursors: bool


def abilities_of(connection: Any, *, may_decide: bool, may_carry: bool) -> Abilities:
    """may_decide, may_carry: where a database is behind it."""
    may_decide, dialect = may_decide and takes_sql(connection), dialect_of(connection)
    is_adapted = isinstance(connection, Adapter)
    return Abilities(
        has_two_phases(connection),
        takes_sql(connection),
        may_decide,
        may_decide and may_carry and dialect in CARRYING,
        dialect,
        is_shared(connection),
        isinstance(connection, Connection),
        is_adapted,
        offers(connection, "harden"),
        hasattr(connection, "pgconn") and not is_adapted,  # a third of psycopg's statement
    )


def has_two_phases(connection: Any) -> bool:
    return hasattr(connection, "tpc_begin")


def takes_deliveries(connection: Any) -> bool:
    """Whether it is one of ours."""
    return kind_of(connection).__module__ in _OURS


def takes_sql(connection: Any) -> bool:
    """Whether a database is behind it, which may keep a decision as a row."""
    return not isinstance(connection, Connection) and hasattr(connection, "cursor")


def close(connection: Any) -> None:
    """Whatever it says: what it has not prepared is rolled back by its end."""
    with suppress(Exception):
        connection.close()


def is_shared(connection: Any) -> bool:
    """Whether another thread than the one that opened it may use it, though not at the same time.

    sqlite3 claims threadsafety 3, and its connections are their thread's by default.
    """
    kind = kind_of(connection)
    if kind.__module__ in _OURS:
        return True  # it wants one thread at a time, and does not mind which
    packages = _packages(kind)
    claims = (getattr(sys.modules.get(package), "threadsafety", 0) for package in packages)
    return "sqlite3" not in packages and any(claim >= SHARED_CONNECTIONS for claim in claims)


def _packages(kind: type) -> set[str]:
    return {cls.__module__.partition(".")[0] for cls in kind.__mro__}


def commits_itself(connection: Any) -> bool:
    """Whether each statement is a transaction, so that its work would not wait for the transaction's end."""
    asked = getattr(connection, "get_autocommit", None)  # of MySQL's, whose ``autocommit`` is a method
    if getattr(connection, "autocommit", None) is True or (callable(asked) and asked()):
        return True
    is_of_sqlite = hasattr(connection, "in_transaction")
    return is_of_sqlite and getattr(connection, "isolation_level", "") is None


def is_at_rest(connection: Any) -> bool:
    """Whether it may wait for the next transaction: open, in none, and as it was opened in what matters here."""
    if isinstance(connection, Connection):
        return not connection.in_transaction
    pgconn = getattr(connection, "pgconn", None)
    if pgconn is not None:  # of psycopg; one that is closed is not idle
        return bool(pgconn.transaction_status == IDLE) and not connection.autocommit
    if getattr(connection, "closed", False) or getattr(connection, "in_transaction", False):
        return False
    return status_of(connection) in (None, IDLE) and not commits_itself(connection)


def is_usable(connection: Any) -> bool:
    """Whether it is as it was when it was kept, and its server has not left: all that one says meanwhile is goodbye."""
    fileno = getattr(connection, "fileno", None)
    if not callable(fileno) or not is_at_rest(connection):
        return is_at_rest(connection)
    try:
        return not _has_said(fileno(), 0)
    except Exception:  # whatever a driver raises of a connection that is closed
        return False


def _has_said(socket: int, wait_ms: int | None) -> bool:
    """Whether the server has said anything; None: waits for that, and a signal's handler is heard meanwhile."""
    poll = select.poll()
    poll.register(socket, select.POLLIN)
    return bool(poll.poll(wait_ms))


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


def is_here(connection: Any, xid: Any) -> bool:
    """Whether a branch that was listed is one of this database: PostgreSQL lists those of its whole server."""
    listed = getattr(xid, "database", None)
    return not listed or listed == getattr(getattr(connection, "info", None), "dbname", listed)


def offers(connection: Any, method: str) -> bool:
    """Whether it has one of those that are ours: ``harden``, for commits that are late; ``outcome``, since the
    participant remembers what became of its branches; ``carriers``, since databases may have carried its changes."""
    return callable(getattr(connection, method, None))


def space_of(connection: Any) -> str:
    """The id of the space that ours is with; empty for any other."""
    found = getattr(connection, "space_id", "")
    return found if isinstance(found, str) else ""


def sqlite_mode(connection: Any) -> str:
    """How its transaction begins: as its ``isolation_level`` says, and IMMEDIATE where that says nothing.

    A transaction that has read cannot write any more where somebody else, which includes whoever removes rows of
    decisions, writes in between: SQLite refuses it at once, without its timeout. It adds a row of its own at its end.
    """
    return getattr(connection, "isolation_level", None) or "IMMEDIATE"


def sync_fully(connection: Any) -> None:
    """A commit of this connection of SQLite waits for the disk."""
    cursor = connection.cursor()
    try:
        found = cursor.execute("PRAGMA synchronous").fetchone()
        if next(iter(found.values() if isinstance(found, Mapping) else found)) < FULL_SYNC:
            cursor.execute("PRAGMA synchronous = FULL")
    finally:
        cursor.close()


def run(connection: Any, statement: str, *parameters: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """The rows that it selects, whatever the connection makes of rows, or as many as it has changed.

    connection: or one cursor for several statements.
    """
    if not hasattr(connection, "cursor"):
        return _execute(connection, statement, *parameters)
    cursor = connection.cursor()
    try:
        return _execute(cursor, statement, *parameters)
    finally:
        cursor.close()


def read(connection: Any, statement: str) -> list[tuple[Any, ...]]:
    """The rows that it selects now, in a transaction that is over behind it."""
    found = run(connection, statement)
    connection.rollback()
    return found


def order(connection: Any, statement: str) -> None:
    """Runs a statement that selects nothing, and that its server answers at once.

    Of psycopg, in a transaction that is open, by libpq's calls alone: what is around them takes much longer. Not by the
    one that waits by itself: nothing would interrupt it. Raises what the driver raises.
    """
    pgconn: Any = None if isinstance(connection, Adapter) else getattr(connection, "pgconn", None)
    if pgconn is None or pgconn.transaction_status != IN_TRANSACTION:
        run(connection, statement)  # which begins one
        return
    pgconn.send_query(statement.encode())
    while pgconn.is_busy():
        _has_said(pgconn.socket, None)
        pgconn.consume_input()
    refused = b""
    while (result := pgconn.get_result()) is not None:
        if result.status != COMMAND_OK:
            refused = refused or result.error_message or b"it was not done"
    if refused:
        kind = connection.DatabaseError if pgconn.transaction_status == IN_ERROR else connection.OperationalError
        raise kind(refused.decode(errors="replace").strip())


def _execute(cursor: Any, statement: str, *parameters: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    cursor.execute(statement, *parameters)
    if not statement.startswith("SELECT"):
        return [()] * max(0, cursor.rowcount)
    rows = cursor.fetchall()
    return [tuple(row.values()) if isinstance(row, Mapping) else tuple(row) for row in rows]


def status_of(connection: Any) -> int | None:
    """Of its transaction, as libpq has it, where its driver tells."""
    pgconn = getattr(connection, "pgconn", None)
    if pgconn is not None:  # of psycopg, whose ``info`` makes two objects at each look
        return int(pgconn.transaction_status)
    status = getattr(getattr(connection, "info", None), "transaction_status", None)
    return int(status) if isinstance(status, int) else None


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


def is_a(error: BaseException, pep_249_name: str) -> bool:
    """Whether the driver derived it from its class of this name."""
    return any(cls.__name__ == pep_249_name for cls in type(error).__mro__)


def heuristic_answer(error: Exception) -> Reply | None:
    """What a participant did by itself, where it says so."""
    return _HEURISTICS.get(error.code) if isinstance(error, HeuristicOutcome) else None


def ask(connection: Any, xid: Any) -> Reply:
    """What became of a branch, where the participant can tell. Raises what the driver raises."""
    return _REPLIES.get(connection.outcome(xid), Reply.UNKNOWN) if offers(connection, "outcome") else Reply.UNKNOWN


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
