"""What one Engine's participant is to the transaction manager: a PEP 249 connection, which borrows one of its pool.

It is without two phases here; ``sqlalchemy`` has those with them. What is lent to the transaction's user can neither
end nor begin the transaction.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from sqlalchemy import event
from sqlalchemy.engine import Connection, Engine, RootTransaction
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, SessionTransaction

from xaqueue import ConnectionLost, InvalidArgument, ProtocolError
from xaqueue.contrib import async_engine

_OF_DRIVER = async_engine.INTERRUPTIONS | {"info"}
"""What the transaction manager asks of a driver's own connection, where it has that."""
_GUARDED = ("begin", "begin_twophase", "prepare_twophase", "commit", "commit_twophase")
"""Events of a lent Connection that are the transaction manager's alone."""
_ENDING = ("COMMIT", "END", "ROLLBACK", "ABORT")
"""First words of statements, likewise."""
_MOMENTS = {"SAVEPOINT": "begin", "ROLLBACK": "rollback", "RELEASE": "release"}
"""First words of those of savepoints."""
_LOOK = re.compile(rf"\b(?:{'|'.join({*_ENDING, *_MOMENTS})})\b", re.IGNORECASE)
_WORD = re.compile(
    r"""/\*.*?\*/|--[^\n]*|'(?:[^']|'')*'|\$(\w*)\$.*?\$\1\$|("(?:[^"]|"")*"|`(?:[^`]|``)*`|\w+)|(;)""", re.DOTALL
)
"""Comments and strings, those of PostgreSQL's functions too; a word, or a quoted name; what ends a statement."""
_ALONE = (
    "what begins, undoes or releases a savepoint is a statement of its own: `SAVEPOINT name`, and nothing beside it"
)
_HALF = "a savepoint's statement was interrupted, so that not all participants may have it: all can only be rolled back"
NAME_BYTES = 63
"""PostgreSQL cuts longer ones."""
_OWN = "sa_savepoint_"
"""Before the names that SQLAlchemy makes: what it has rolled back it never comes back to."""
FULL_SYNC = 2
"""SQLite's ``synchronous`` from which on a commit waits for the disk, also with the journal mode WAL."""
FLUSHES = 100
"""A Session whose hooks make it dirty again is flushed so often, as its own commit does."""
_ENDED = (
    "the transaction of this participant is the transaction manager's: its own commit() is refused, and after its own "
    "rollback() or close() all can only be rolled back. Use begin_nested() around what may fail"
)
AUTOCOMMIT = (
    "the connections of this Engine are in autocommit mode, so that their work would not wait for the transaction's "
    "end: leave isolation_level='AUTOCOMMIT' out"
)
log = logging.getLogger("xaqueue")


class EngineConnection:
    """As much of a PEP 249 connection as the transaction manager uses; without two phases."""

    def __init__(self, engine: Engine, sessions: Callable[..., Session] | None) -> None:
        self.dialect = "mysql" if engine.dialect.name == "mariadb" else engine.dialect.name
        self._engine = engine
        self._sessions = sessions
        self._borrowed: Connection | None = None
        self._driver: Any = None
        self._real: Any = None
        """The driver's own, where ``_driver`` is what SQLAlchemy has made of an async one."""
        self._branch: RootTransaction | None = None
        self._session: Session | None = None
        self._is_permitted = False
        """Whether it is the transaction manager that begins or ends something."""
        self._is_sent = False
        """Whether the database was asked to prepare or to commit."""
        self._is_ended = False
        """Whether the user has ended the Session's work."""
        self._is_prepared = False
        self._is_half = False
        """Whether a savepoint's statement was told of, and has not come to its end."""
        self._is_closed = False
        self._told: Any = None
        self._untold: set[str] = set()
        """Savepoints that the transaction manager has asked for. A Session goes back to one where its flush fails, and
        then does nothing more in it."""

    def __getattr__(self, name: str) -> Any:
        if name in _OF_DRIVER:
            return getattr(self._real, name)
        raise AttributeError(name)

    @property
    def closed(self) -> bool:
        borrowed = self._borrowed
        return self._is_closed or (borrowed is not None and (borrowed.closed or borrowed.invalidated))

    @property
    def in_transaction(self) -> bool:
        """Whether its work is surely not committed: nobody has asked for that, or the driver says so."""
        has_work = self._branch is not None and not self._is_sent
        return has_work or getattr(self._real, "in_transaction", False) is True

    @property
    def lent(self) -> Connection | Session:
        """What the transaction's user gets."""
        if self._branch is None:
            self._begin(None)
        if self._sessions is None:
            return self._connection
        if self._session is None:
            joined: dict[str, Any] = {"join_transaction_mode": "rollback_only", "close_resets_only": False}
            self._session = self._sessions(bind=self._connection, binds=None, twophase=False, **joined)
            event.listen(self._session, "before_commit", self._refuse_commit)
            event.listen(self._session, "after_transaction_create", self._begin_nested)
            event.listen(self._session, "after_transaction_end", self._note_end)
        return self._session

    def tell_savepoints(self, told: Any) -> None:
        """told: is told of those of its user, by name: ``begin``, ``rollback``, ``release``, ``undo``."""
        self._told = told

    def savepoint(self) -> _Savepoint:
        """For the transaction manager, at which its user has asked for one."""
        return _Savepoint(self)

    @contextmanager
    def untold(self) -> Iterator[Connection | Session]:
        """What is lent, for savepoints that the transaction manager knows."""
        told, self._told = self._told, None
        try:
            yield self.lent
        finally:
            self._told = told

    # Of a branch, or of a question of the transaction manager's own

    def cursor(self) -> Any:
        return self._connection.connection.cursor()

    def commit(self) -> None:
        if self._branch is None:
            self._connection.connection.commit()
            return self._return_connection()
        self._flush()
        branch = self._checked_branch()
        with self._permitted():
            self._is_sent = True
            self._commit_at_database(branch)
        return self._return_connection(is_committed=True)

    def rollback(self) -> None:
        """What the user has rolled back is rolled back; a commit that was refused has left it open."""
        if self._branch is None:
            self._connection.connection.rollback()
            return self._return_connection()
        if self.closed:
            raise ConnectionLost("the connection was lost: what was not prepared goes with it")
        with self._permitted():
            if self._session is not None:
                self._session.rollback()
            if self._branch.is_active:
                self._branch.rollback()
        return self._return_connection(is_clean=self._connection.get_transaction() is None)

    def close(self) -> None:
        """What is not known to be over ends with its connection."""
        self._is_closed = True
        if self._borrowed is not None:
            self._return_connection(is_clean=self._branch is None)

    def _begin(self, xid: Any) -> None:
        connection = self._connection
        self._is_sent = self._is_ended = self._is_prepared = self._is_half = False
        self._untold = set()
        with self._permitted():
            self._branch = self._begin_at_database(connection, xid)
        # A listener of the Engine's may have said BEGIN, as is usual with SQLite.
        if self._commits_itself() and not getattr(self._real, "in_transaction", False):
            raise InvalidArgument(AUTOCOMMIT)
        if self.dialect == "sqlite" and not self._real.in_transaction:  # which begins with some changes only
            self._run(f"BEGIN {self._real.isolation_level or 'IMMEDIATE'}")  # or it may be too late to write

    def _begin_at_database(self, connection: Connection, xid: Any) -> RootTransaction:
        return connection.begin()

    def _commit_at_database(self, branch: RootTransaction) -> None:
        branch.commit()

    def _checked_branch(self) -> RootTransaction:
        if self._branch is None or self._is_ended or not self._branch.is_active or self.closed:
            raise ProtocolError(_ENDED)
        if self._is_half:
            raise ProtocolError(_HALF)
        return self._branch

    def _flush(self) -> None:
        """What a Session does before its commit."""
        if self._session is None:
            return
        with self._permitted():
            self._session.dispatch.before_commit(self._session)
        for _ in range(FLUSHES):
            self._session.flush()
            if not (self._session.new or self._session.dirty or self._session.deleted):
                return

    def _refuse(self, *_: object) -> None:
        if not self._is_permitted:
            raise ProtocolError(_ENDED)

    def _watch(self, _connection: Connection, _cursor: Any, statement: str, *_: object) -> None:
        """Refuses to end the transaction; what is said of a savepoint holds for the other participants, too."""
        if self._is_half and not self._is_permitted:
            raise ProtocolError(_HALF)
        if _LOOK.search(statement) is None:
            return
        statements = _words(statement)
        for words in statements:
            verb, *rest = words
            if verb.upper() == "ROLLBACK" and rest and rest[0].upper() in ("WORK", "TRANSACTION"):
                del rest[0]
            if verb.upper() in _ENDING and [word.upper() for word in rest[:1]] != ["TO"]:
                self._refuse()
            elif verb.upper() in _MOMENTS:
                name = [word for word in rest if word.upper() not in ("TO", "SAVEPOINT")] or rest[-1:]
                if len(statements) > 1 or len(name) != 1:
                    raise ProtocolError(_ALONE)
                if self._told is None:
                    self._untold.add(self._name(name[0]))
                elif self._name(name[0]) not in self._untold:
                    self._tell_savepoint(_MOMENTS[verb.upper()], self._name(name[0]))

    def _tell_savepoint(self, moment: str, name: str) -> None:
        self._is_half = True
        if moment == "begin":
            self._told.begin(name, is_alone=self.dialect == "mysql")
        else:
            getattr(self._told, "undo" if moment == "rollback" and name.startswith(_OWN) else moment)(name)

    def _note_done(self, *_: object) -> None:
        self._is_half = False

    def _name(self, word: str) -> str:
        """As its database knows it."""
        quote, is_of_postgres = word[0], self.dialect == "postgresql"
        plain = word[1:-1].replace(2 * quote, quote) if quote in '"`' else word.lower()
        return plain.encode()[:NAME_BYTES].decode(errors="replace") if is_of_postgres else plain.lower()

    def _refuse_commit(self, session: Session) -> None:
        if not session.in_nested_transaction():
            self._refuse()

    def _begin_nested(self, session: Session, begun: SessionTransaction) -> None:
        """A Session sets its savepoint with the first statement, and others may have done something by then."""
        if begun.nested:
            session.connection()

    def _note_end(self, session: Session, ended: SessionTransaction) -> None:
        """A rollback or close of its own drops objects that were not flushed yet."""
        self._is_ended |= ended.parent is None and not self._is_permitted

    # The pool

    @property
    def _connection(self) -> Connection:
        """One of the Engine's, from the first use until its work is over."""
        if self._borrowed is None:
            if self._is_closed:
                raise ProtocolError("the connection is closed: open another one")
            self._borrowed = self._engine.connect()
            self._driver = self._borrowed.connection.dbapi_connection
            driver = self._borrowed.connection.driver_connection
            self._real = getattr(driver, "_conn", driver) if self._engine.dialect.driver == "aiosqlite" else driver
            for moment in _GUARDED:
                event.listen(self._borrowed, moment, self._refuse)
            event.listen(self._borrowed, "before_cursor_execute", self._watch)
            event.listen(self._borrowed, "after_cursor_execute", self._note_done)
            if self.dialect == "sqlite" and self._run("PRAGMA synchronous")[0][0] < FULL_SYNC:
                self._run("PRAGMA synchronous = FULL")
        return self._borrowed

    def _return_connection(self, *, is_clean: bool = True, is_committed: bool = False) -> None:
        connection, session = self._borrowed, self._session
        assert connection is not None
        self._borrowed = self._branch = self._session = self._told = None
        try:
            if not is_clean:
                connection.invalidate()
            if session is not None:
                self._end_session(session, is_committed=is_committed)
        finally:
            self._driver = self._real = None
            connection.close()

    def _end_session(self, session: Session, *, is_committed: bool) -> None:
        """Its objects are as after its own commit or rollback, and it cannot be used any more."""
        if is_committed:
            try:
                session.dispatch.after_commit(session)
            except Exception:  # it is the application's, and the commit stands
                log.exception("[hook-failed] a hook after a Session's commit has failed; what is committed stays")
            if session.expire_on_commit:
                session.expire_all()
        elif not self._is_sent:
            session.rollback()  # of its objects: at the database it is over
        session.close()

    def _run(self, statement: str) -> Sequence[Any]:
        cursor = self._connection.connection.cursor()
        try:
            cursor.execute(statement)
            return cursor.fetchall() if cursor.description else []
        finally:
            cursor.close()

    def _commits_itself(self) -> bool:
        if getattr(self._real, "autocommit", None) is True:
            return True
        with suppress(NotImplementedError):
            return self._engine.dialect.detect_autocommit_setting(self._driver)
        return False

    @contextmanager
    def _permitted(self) -> Iterator[None]:
        """Begins or ends something. The SQLSTATE of an error tells whether it was carried out."""
        self._is_permitted = True
        try:
            yield
        except DBAPIError as error:
            sqlstate = getattr(error.orig, "sqlstate", None) or getattr(error.orig, "pgcode", None)
            if sqlstate is not None:
                error.__dict__["sqlstate"] = sqlstate
            raise
        finally:
            self._is_permitted = False


def _words(statement: str) -> list[list[str]]:
    """Of each statement in it; none of comments and strings."""
    found: list[list[str]] = [[]]
    for _, word, end in _WORD.findall(statement):
        if end and found[0][:1] and found[0][0].upper() == "CREATE":
            break  # a trigger has statements of its own, which END ends
        if end:
            found.append([])
        elif word:
            found[-1].append(word)
    return [words for words in found if words]


class _Savepoint:
    """At the Session, or the Connection, that is lent, whose objects go with it."""

    def __init__(self, connection: EngineConnection) -> None:
        self._connection = connection
        with connection.untold() as lent:
            self._nested = lent.begin_nested()

    def flush(self) -> None:
        """As in its end: what fails in it has not ended it."""
        if isinstance(lent := self._connection.lent, Session):
            lent.flush()

    def rollback(self) -> None:
        """It ends there, and another one begins in its place."""
        with self._connection.untold() as lent:
            self._nested.rollback()
            self._nested = lent.begin_nested()

    def release(self) -> None:
        with self._connection.untold():
            self._nested.commit()
