"""A participant without two phases may be the last one to be asked: its own commit decides for all.

The decision of a transaction with a last resource is a row in that resource's own database.

The row is written in the transaction that it decides on, so that both commit or neither does. To learn what was
decided, the opposite is tried: a row that says rollback, under the same key. Either it goes in, and then a commit that
is still on its way can never succeed, or the key is taken, and the row that is there tells.

Only literals of our own making go into the statements: drivers do not agree on how parameters are written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from xaqueue.errors import OperationalError
from xaqueue.tm.driver import is_a
from xaqueue.tm.gtrid import Gtrid
from xaqueue.tm.participant import EnlistedBranch
from xaqueue.tm.voting import Reply
from xaqueue.xa import Outcome

TABLE = "xaqueue_decisions"
CREATE = f"CREATE TABLE IF NOT EXISTS {TABLE} (gtrid VARCHAR(64) NOT NULL PRIMARY KEY, decision VARCHAR(16) NOT NULL)"
_AT_A_TIME = 200
_WORDS = {Outcome.COMMITTED: "commit", Outcome.ROLLED_BACK: "rollback"}
_OUTCOMES = {word: outcome for outcome, word in _WORDS.items()}


def create_table(connection: Any) -> None:
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


def insert_row(connection: Any, gtrid: bytes, outcome: Outcome = Outcome.COMMITTED) -> None:
    """Adds the row to the transaction that is open on this connection."""
    _run(connection, f"INSERT INTO {TABLE} (gtrid, decision) VALUES ({_literal(gtrid)}, '{_WORDS[outcome]}')")


def resolve_row(connection: Any, gtrid: bytes) -> Outcome:
    """What stands there from now on: COMMITTED or ROLLED_BACK. Raises what the driver raises: try again then."""
    try:
        insert_row(connection, gtrid, Outcome.ROLLED_BACK)
        connection.commit()
    except Exception as error:
        connection.rollback()
        if not is_a(error, "IntegrityError"):
            raise
        return _read_row(connection, gtrid)
    return Outcome.ROLLED_BACK


def read_rows(connection: Any, node: str) -> list[bytes]:
    """The gtrids of all rows that this node has written."""
    found = _run(connection, f"SELECT gtrid FROM {TABLE} WHERE gtrid LIKE 'XAQ1{node}%'")
    connection.rollback()
    return [str(row[0]).encode("ascii") for row in found]


def delete_rows(connection: Any, gtrids: Iterable[bytes]) -> None:
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


def _read_row(connection: Any, gtrid: bytes) -> Outcome:
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


class LastResource(EnlistedBranch):
    """Without two phases: a plain local transaction, whose commit decides where others have prepared."""

    def _begin(self) -> None:
        """A local transaction begins by itself, and nobody is asked for its outcome: its row tells."""
        self._tells = False

    def commit_last(self, check: Callable[[], None]) -> Reply:
        """Commits it together with the row. LOST: nobody knows, not even the database just now.

        check: raises where the log is not ours any more. Asked with the row in place, which keeps out a successor's.
        """
        try:
            insert_row(self.connection, self.gtrid)
            check()
        except Exception as error:
            self._failed(error)
            self.discard()
            return Reply.REFUSED
        answer = self.commit_one_phase()
        return self._read_decision() if answer is Reply.LOST else answer

    def rollback(self) -> Reply:
        try:
            if not self._interrupted:
                self.connection.rollback()
        except Exception as error:
            self._failed(error)
            self.source.drop_idle()
        if not self._is_usable:
            self.discard()
        return Reply.DONE

    def _commit_at_once(self) -> None:
        self.connection.commit()

    def _read_decision(self) -> Reply:
        """The commit got no answer: on a fresh connection its row can be read, or made impossible."""
        self.discard()
        try:
            with self.source.opened() as connection:
                outcome = resolve_row(connection, self.gtrid)
        except Exception as error:
            self._failed(error)
            return Reply.LOST
        return Reply.DONE if outcome is Outcome.COMMITTED else Reply.REFUSED
