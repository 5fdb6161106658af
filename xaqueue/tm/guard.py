"""What a lent connection may not do by itself: end the transaction that it is lent for.

A commit of the user's, whichever way it is asked for, would make a part of a global transaction durable that may yet be
rolled back. The local transaction is begun before the connection is lent, so that savepoints nest in it, and then:

- sqlite3 asks before it compiles a statement, and is told no: ``commit``, ``with connection``, ``executescript``, a
  COMMIT that is executed, another isolation level. Nothing is committed.
- psycopg refuses its own while a branch is begun. Other drivers' methods are replaced for as long.
- PostgreSQL and MySQL get a mark that goes with the transaction, and tells whether it is still the same one.

Adapters (``contrib``) refuse by themselves what is asked of what they lend.
"""

from __future__ import annotations

import inspect
import sqlite3
from typing import Any, NoReturn

from xaqueue.errors import ProtocolError, RolledBack
from xaqueue.tm import driver
from xaqueue.tm.driver import Dialect, run
from xaqueue.xa import Code

_ENDING = ("commit", "rollback", "begin", "start_transaction", "autocommit")
"""Methods of drivers that end a transaction, some of them in order to begin another one."""
_MARK = "xaqueue_branch"
IS_MARKED = f"current_setting('xaqueue.branch', true) = '{_MARK}'"
"""In a statement of PostgreSQL."""
_SET_MARK = f"SET LOCAL xaqueue.branch = '{_MARK}'"
_REFUSAL = (
    "the transaction of participant {!r} is begun and ended by the transaction manager: leave out BEGIN, commit(), "
    "rollback(), executescript() and `with connection`, and use SAVEPOINT around what may fail. All is rolled back"
)
_PRAGMA = (
    "PRAGMA foreign_keys does nothing within the transaction of participant {!r}: give it in the function that opens "
    "the connection"
)
NO_SAVEPOINT = 1305
"""MySQL's error number for one that is not there."""


class TransactionEnded(ProtocolError):
    """The user has ended the transaction of a participant."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"the transaction of participant {name!r} was ended by a COMMIT or ROLLBACK of its own, or by a statement "
            "that its database commits: what it has committed so stays. Leave that to the transaction"
        )


class MovedElsewhere(RolledBack):
    """A connection that is to prepare is with another database than its participant's others."""

    def __init__(self, name: str, here: object, before: str) -> None:
        super().__init__(
            f"participant {name!r} is database {here} now, and was {before}: the transaction is rolled back, and may "
            "be done again",
            Code.XA_RBTRANSIENT,
        )


def mark(connection: Any, dialect: Dialect) -> None:
    """In the transaction that is open, or that this opens."""
    if dialect is Dialect.POSTGRESQL:
        driver.order(connection, _SET_MARK)  # a SELECT would choose what is seen in it
    elif dialect is Dialect.MYSQL and not driver.has_two_phases(connection):  # in an XA branch it refuses a COMMIT
        run(connection, f"SAVEPOINT {_MARK}")


def is_marked(connection: Any) -> bool:
    """Whether the transaction goes on that was marked; asked once. Raises what the driver raises."""
    dialect = driver.dialect_of(connection)
    if dialect is Dialect.POSTGRESQL:
        return bool(run(connection, f"SELECT 1 WHERE {IS_MARKED}"))
    if dialect is Dialect.MYSQL and not driver.has_two_phases(connection):
        try:
            run(connection, f"RELEASE SAVEPOINT {_MARK}")
        except Exception as error:
            if error.args[:1] != (NO_SAVEPOINT,):
                raise
            return False
    return True


class Guard:
    """Of a connection without two phases, from before it is lent until the transaction manager ends its transaction."""

    refused: ProtocolError | None = None
    """What the user was told, or is to be told: from then on the transaction can only be rolled back."""

    def __init__(self, connection: Any, name: str) -> None:
        self._connection, self._name, self._plain = connection, name, driver.driver_of(connection)
        self._replaced: list[str] = []
        is_of_driver = not hasattr(type(self._plain), "lent")
        self._is_of_sqlite = is_of_driver and driver.dialect_of(connection) is Dialect.SQLITE
        self._asks = is_of_driver and hasattr(self._plain, "set_authorizer")
        if self._has_ended:
            run(connection, f"BEGIN {driver.sqlite_mode(connection)}")
        if self._asks:
            connection.set_authorizer(self._authorize)
        for method in _ENDING if is_of_driver and not self._asks else ():
            if inspect.isfunction(getattr(type(self._plain), method, None)):
                setattr(self._plain, method, self._refuse)
                self._replaced.append(method)

    def check(self) -> None:
        """Raises ProtocolError where the user has tried to end the transaction, or the driver tells that it is over."""
        if self.refused is not None:
            raise self.refused
        if self._has_ended:
            raise TransactionEnded(self._name)

    def lift(self) -> None:
        """The transaction manager ends it."""
        if self._asks:
            self._connection.set_authorizer(None)
        while self._replaced:
            delattr(self._plain, self._replaced.pop())

    @property
    def _has_ended(self) -> bool:
        return self._is_of_sqlite and getattr(self._plain, "in_transaction", None) is False

    def _authorize(self, action: int, name: str | None, value: str | None, *_: Any) -> int:
        """A BEGIN is one of a transaction behind the one that SQLite has ended by itself."""
        if action == sqlite3.SQLITE_TRANSACTION:
            self.refused = self.refused or ProtocolError(_REFUSAL.format(self._name))
        elif action == sqlite3.SQLITE_PRAGMA and name == "foreign_keys" and value is not None:
            self.refused = self.refused or ProtocolError(_PRAGMA.format(self._name))
        else:
            return sqlite3.SQLITE_OK
        return sqlite3.SQLITE_DENY

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        self.refused = self.refused or ProtocolError(_REFUSAL.format(self._name))
        raise self.refused
