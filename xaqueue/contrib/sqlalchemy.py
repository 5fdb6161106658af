"""An Engine of SQLAlchemy takes part in global transactions: ``tx["db"]`` is a Session or a Connection of it.

    db = xaqueue.contrib.sqlalchemy.participant(engine, session=True)
    with xaqueue.TransactionManager("tmlog/", {"db": db, "queue": ...}) as tm, tm.transaction() as tx:
        tx["db"].add(Order(...))
        tx["queue"].enqueue("orders", b"...")

To the transaction manager it is a PEP 249 connection, which borrows one of the Engine's pool for each transaction and
for each question, and for no longer. It never commits but when the transaction manager says so, and nobody else can
end what it has begun: a commit of the Session's own is refused, and so is work after a rollback of its own. A pooled
connection goes back when its work is committed or rolled back for certain, and is closed otherwise.

An AsyncEngine takes part in async transactions: ``tx["db"]`` is an AsyncSession or an AsyncConnection of it then.

``Session(twophase=True)`` has no part in this: it keeps no decisions, so a crash between two commits tears them apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from sqlalchemy import event
from sqlalchemy.engine import Connection, Engine, RootTransaction
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session
from sqlalchemy.pool import SingletonThreadPool, StaticPool

from xaqueue import InvalidArgument, Participant, UnknownXid
from xaqueue.contrib import async_engine
from xaqueue.contrib.engine_connection import AUTOCOMMIT, EngineConnection

SHARED_CONNECTIONS = 2
"""PEP 249's ``threadsafety`` from which on a connection may be handed to another thread."""
XAER_NOTA = 1397
"""MySQL's error number for a branch that is not there."""


def participant(
    engine: Engine | AsyncEngine,
    *,
    session: bool | Callable[..., Session] | Callable[..., AsyncSession] = False,
    sort_key: str | None = None,
) -> Participant:
    """How a transaction manager opens this database.

    session: ``tx[name]`` is a Connection without it, a Session with True, and what a ``sessionmaker`` or a subclass of
    Session makes where one is given. sort_key: see ``Participant``. PostgreSQL (psycopg, psycopg2), MySQL and MariaDB
    can prepare; any other database takes part by its own commit, one in a transaction. Of an AsyncEngine, of psycopg
    or aiosqlite, they are an AsyncConnection, an AsyncSession and an ``async_sessionmaker``. Raises InvalidArgument.
    """
    if not isinstance(engine, (Engine, AsyncEngine)):
        raise InvalidArgument(f"{engine!r} is no Engine: give what create_engine or create_async_engine has made")
    if isinstance(engine.pool, (StaticPool, SingletonThreadPool)):
        raise InvalidArgument(
            f"the pool of {engine!r} shares one connection: give it a QueuePool or a NullPool, and a file, not :memory:"
        )
    kind, dialect = EngineConnection, engine.dialect
    if dialect.name == "postgresql" and dialect.driver in ("psycopg", "psycopg2"):
        kind = _TwoPhaseConnection
    elif dialect.name in ("mysql", "mariadb"):
        kind = _XaConnection
    if isinstance(engine, AsyncEngine):
        return async_engine.participant(engine, kind, session, sort_key)
    sessions: Any = Session if session is True else session or None
    # A flush calls hooks of the application, which are for the thread that it works in.
    parallel = sessions is None and getattr(dialect.dbapi, "threadsafety", 0) >= SHARED_CONNECTIONS
    return Participant(lambda: kind(engine, sessions), sort_key, parallel=parallel, idle=0)


class _TwoPhaseConnection(EngineConnection):
    """PostgreSQL, whose drivers have PEP 249's two phases: SQLAlchemy hands them through."""

    def xid(self, format_id: int, gtrid: str, bqual: str) -> Any:
        self._connection  # noqa: B018  # it borrows one
        return self._real.xid(format_id, gtrid, bqual)

    def tpc_begin(self, xid: Any) -> None:
        """A pooled connection that its server has left is replaced: nothing was done on it."""
        self._connection  # noqa: B018
        if self._commits_itself():
            raise InvalidArgument(AUTOCOMMIT)
        try:
            self._begin(xid)
        except DBAPIError as error:
            if not error.connection_invalidated:
                raise
            self._return_connection(is_clean=False)
            self._begin(xid)

    def tpc_prepare(self) -> None:
        self._flush()
        branch = self._checked_branch()
        with self._permitted():
            self._is_sent = True
            self._prepare_at_database(branch)
        self._is_prepared = True

    def tpc_commit(self, xid: Any = None) -> None:
        if xid is None:
            self.commit()
        else:
            self._finish(xid, is_commit=True)

    def tpc_rollback(self, xid: Any = None) -> None:
        if xid is None:
            self.rollback()
        else:
            self._finish(xid, is_commit=False)

    def tpc_recover(self) -> Sequence[Any]:
        self._connection  # noqa: B018
        found: Sequence[Any] = self._driver.tpc_recover()
        here = self._real.info.dbname  # PostgreSQL lists those of its whole server
        self._return_connection()
        return [xid for xid in found if xid.database in (None, here)]

    def _flush(self) -> None:
        if not self._is_prepared:
            super()._flush()

    def _begin_at_database(self, connection: Connection, xid: Any) -> RootTransaction:
        return connection.begin_twophase(xid)

    def _prepare_at_database(self, branch: Any) -> None:
        branch.prepare()

    def _finish(self, xid: Any, *, is_commit: bool) -> None:
        """Ends a branch of a connection that is gone."""
        verb = self._connection.commit_prepared if is_commit else self._connection.rollback_prepared
        verb(xid, recover=True)
        self._return_connection()


class _XaConnection(_TwoPhaseConnection):
    """MySQL and MariaDB: XA, by statements.

    SQLAlchemy's ``begin_twophase`` has no commit in one phase there. It prepares first, and a crash would leave the row
    that decides in a branch in doubt, locked: nobody could read it, and nobody could end the branch without it.
    """

    _open = ""
    """The branch that is begun here and not over, as statements have it."""

    def xid(self, format_id: int, gtrid: str, bqual: str) -> tuple[int, bytes, bytes]:
        return format_id, gtrid.encode(), bqual.encode()

    def tpc_recover(self) -> Sequence[tuple[int, bytes, bytes]]:
        listed = [
            (format_id, end, data if isinstance(data, bytes) else data.encode())
            for format_id, end, _, data in self._run("XA RECOVER")
        ]
        self._return_connection()
        return [(format_id, name[:end], name[end:]) for format_id, end, name in listed]

    def _begin_at_database(self, connection: Connection, xid: Any) -> RootTransaction:
        branch = connection.begin()
        connection.exec_driver_sql(f"XA START {_literal(xid)}")
        self._open = _literal(xid)
        event.listen(connection, "rollback", self._before_rollback)
        return branch

    def _prepare_at_database(self, branch: Any) -> None:
        self._run(f"XA END {self._open}")
        self._run(f"XA PREPARE {self._open}")

    def _commit_at_database(self, branch: RootTransaction) -> None:
        if not self._is_prepared:
            self._run(f"XA END {self._open}")
        self._tell(f"XA COMMIT {self._open}{'' if self._is_prepared else ' ONE PHASE'}")
        self._open = ""
        with suppress(DBAPIError):
            branch.commit()  # for SQLAlchemy: nothing is left to commit

    def _before_rollback(self, connection: Connection) -> None:
        """Whoever rolls back: a Session that cannot flush does so by itself."""
        branch, self._open = self._open, ""
        if not branch or connection.invalidated:
            return
        if not self._is_prepared:
            with suppress(Exception):  # a deadlock or the prepare has ended it
                self._run(f"XA END {branch}")
        self._tell(f"XA ROLLBACK {branch}")

    def _finish(self, xid: Any, *, is_commit: bool) -> None:
        # Whoever has not begun it must be in no transaction, which MariaDB takes autocommit=0 for.
        self._connection.execution_options(isolation_level="AUTOCOMMIT")
        self._tell(f"XA {'COMMIT' if is_commit else 'ROLLBACK'} {_literal(xid)}")
        self._return_connection()

    def _tell(self, statement: str) -> None:
        try:
            self._run(statement)
        except Exception as error:
            if error.args[:1] == (XAER_NOTA,):
                raise UnknownXid(f"{statement}: {error}") from error
            raise


def _literal(xid: tuple[int, bytes, bytes]) -> str:
    format_id, gtrid, bqual = xid
    return f"X'{gtrid.hex()}',X'{bqual.hex()}',{format_id}"
