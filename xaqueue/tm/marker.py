"""The decision of a transaction with a last resource is a row in that resource's own database.

The row is written in the transaction that it decides on, so that both commit or neither does. To learn what was
decided, the opposite is tried: a row that says rollback, under the same key. Either it goes in, and then a commit that
is still on its way can never succeed, or the key is taken, and the row that is there tells.

Only literals of our own making go into the statements: drivers do not agree on how parameters are written.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from xaqueue.errors import OperationalError
from xaqueue.tm.gtrid import Gtrid
from xaqueue.tm.participants import is_a
from xaqueue.xa import Outcome

TABLE = "xaqueue_decisions"
CREATE = f"CREATE TABLE IF NOT EXISTS {TABLE} (gtrid VARCHAR(64) NOT NULL PRIMARY KEY, decision VARCHAR(16) NOT NULL)"
_AT_A_TIME = 200
_WORDS = {Outcome.COMMITTED: "commit", Outcome.ROLLED_BACK: "rollback"}
_OUTCOMES = {word: outcome for outcome, word in _WORDS.items()}


def create(connection: Any) -> None:
    """Makes the table where it is missing, in a transaction of its own: some databases commit before they create.

    Who may not create one uses the one that is there. Of two who make it at once PostgreSQL refuses one.
    """
    if _is_there(connection):
        return
    try:
        _run(connection, CREATE)
        connection.commit()
    except Exception:
        connection.rollback()
        if not _is_there(connection):
            raise


def insert(connection: Any, gtrid: bytes, outcome: Outcome = Outcome.COMMITTED) -> None:
    """Adds the row to the transaction that is open on this connection."""
    _run(connection, f"INSERT INTO {TABLE} (gtrid, decision) VALUES ({_literal(gtrid)}, '{_WORDS[outcome]}')")


def resolve(connection: Any, gtrid: bytes) -> Outcome:
    """What stands there from now on: COMMITTED or ROLLED_BACK. Raises what the driver raises: try again then."""
    try:
        insert(connection, gtrid, Outcome.ROLLED_BACK)
        connection.commit()
    except Exception as error:
        connection.rollback()
        if not is_a(error, "IntegrityError"):
            raise
        return _read(connection, gtrid)
    return Outcome.ROLLED_BACK


def rows(connection: Any, node: str) -> list[bytes]:
    """The gtrids of all rows that this node has written."""
    found = _run(connection, f"SELECT gtrid FROM {TABLE} WHERE gtrid LIKE 'XAQ1{node}%'")
    connection.rollback()
    return [str(row[0]).encode("ascii") for row in found]


def delete(connection: Any, gtrids: Iterable[bytes]) -> None:
    """Removes rows that nobody will ask for any more."""
    left = list(gtrids)
    while left:
        some, left = left[:_AT_A_TIME], left[_AT_A_TIME:]
        _run(connection, f"DELETE FROM {TABLE} WHERE gtrid IN ({', '.join(map(_literal, some))})")
        connection.commit()


def _is_there(connection: Any) -> bool:
    try:
        _run(connection, f"SELECT gtrid FROM {TABLE} WHERE gtrid = ''")
    except Exception:  # drivers do not agree on its class; if it is anything else, what follows fails of it
        return False
    finally:
        connection.rollback()
    return True


def _read(connection: Any, gtrid: bytes) -> Outcome:
    found = _run(connection, f"SELECT decision FROM {TABLE} WHERE gtrid = {_literal(gtrid)}")
    connection.rollback()
    if not found:
        raise OperationalError(f"the row of {gtrid.decode()} in {TABLE} went while it was read: look again")
    return _OUTCOMES[str(found[0][0])]


def _run(connection: Any, statement: str) -> Sequence[Any]:
    cursor = connection.cursor()
    try:
        cursor.execute(statement)
        return list(cursor.fetchall()) if statement.startswith("SELECT") else []
    finally:
        cursor.close()


def _literal(gtrid: bytes) -> str:
    parsed = Gtrid.parse(gtrid)
    if parsed is None:
        raise OperationalError(f"{gtrid!r} is no gtrid of a transaction manager: remove its row from {TABLE}")
    return f"'{parsed}'"
