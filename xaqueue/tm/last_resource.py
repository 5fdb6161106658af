"""The decision of a transaction with a last resource is a row in that resource's own database.

The row is written in the transaction that it decides on, so that both commit or neither does. To learn what was
decided, the opposite is tried: a row that says rollback, under the same key. Either it goes in, and then a commit that
is still on its way can never succeed, or the key is taken, and the row that is there tells. A row of its node says
that this is the database in which a transaction manager decides, and not another one or an old copy.

Elsewhere than in PostgreSQL only literals of our own making go into the statements: drivers do not agree on how
parameters are written.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from xaqueue.errors import InvalidArgument, OperationalError
from xaqueue.tm.driver import Dialect, dialect_of, is_a, sync_fully
from xaqueue.tm.gtrid import Gtrid
from xaqueue.xa import Outcome

TABLE = "xaqueue_decisions"
NAMES_LENGTH = 2000
"""Of the names of those that prepared, as the row has them, at most."""
CREATE = (
    f"CREATE TABLE IF NOT EXISTS {TABLE} (gtrid VARCHAR(64) NOT NULL PRIMARY KEY, decision VARCHAR(16) NOT NULL, "
    f"participants VARCHAR({NAMES_LENGTH}) NOT NULL)"
)
"""What may be made by hand for a role that may make no table: it needs SELECT, INSERT and DELETE on it."""
_INSERT = f"INSERT INTO {TABLE} (gtrid, decision, participants)"
_AT_A_TIME = 200
_WORDS = {Outcome.COMMITTED: "commit", Outcome.ROLLED_BACK: "rollback"}
_OUTCOMES = {word: outcome for outcome, word in _WORDS.items()}
_DURABLE = (
    " FROM (SELECT set_config('synchronous_commit', CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on' "
    "ELSE current_setting('synchronous_commit') END, true)) AS durable"
)
"""PostgreSQL's commit of this transaction waits for its disk, whatever the database, the role or the pool has set."""


class DecisionRow(NamedTuple):
    """What stands there of one transaction. participants: those that prepared, where it was committed."""

    gtrid: bytes
    outcome: Outcome
    participants: tuple[str, ...] = ()


def make_ready(connection: Any, node: str, *, is_known: bool) -> None:
    """There is a table, with the row of this node, durably, in a transaction of their own; some databases commit before
    they create.

    is_known: decisions of this node may stand here, so that a database without its row is the wrong one. Who may not
    create a table uses the one that is there; of two who make it at once PostgreSQL refuses one. Raises
    OperationalError for the wrong database, InvalidArgument for one whose commits are not durable, and what the driver
    raises.
    """
    dialect = dialect_of(connection)
    if dialect is Dialect.MYSQL:
        _check_mysql(connection)
    elif dialect is Dialect.SQLITE:
        sync_fully(connection)
    trouble = _trouble_of_mark(connection, node)
    if not trouble:
        return
    if is_known:
        raise OperationalError(
            f"decisions of this transaction manager stand in {TABLE} of this participant's database, and its row "
            f"XAQ1{node} {trouble}: where it is another database, or an old copy, open the right one. Where the "
            f"decisions are lost for good, run {CREATE}; {_INSERT} VALUES ('XAQ1{node}', 'node', ''); what is in doubt "
            "is rolled back then"
        )
    try:
        _run(connection, CREATE + (" ENGINE=InnoDB" if dialect is Dialect.MYSQL else ""))
        connection.commit()
    except Exception as error:
        connection.rollback()
        trouble = f"cannot be made ({error}), run {CREATE}"
    try:
        _insert(connection, f"XAQ1{node}", "node", "")
        connection.commit()
    except Exception as error:
        connection.rollback()
        if _trouble_of_mark(connection, node):
            raise OperationalError(
                f"{TABLE}, in which this participant's database is to keep decisions, {trouble}; its role needs to "
                f"SELECT, INSERT and DELETE there. Or give two_phase=True, where it can prepare ({error})"
            ) from error


def names_of(participants: Iterable[str]) -> str:
    """As a row has them: nothing in it means anything to a database."""
    return " ".join(quote(name, safe="") for name in participants)


def insert_row(connection: Any, row: DecisionRow) -> None:
    """Adds the row to the transaction that is open on this connection, and makes its commit a durable one."""
    _insert(connection, _checked(row.gtrid), _WORDS[row.outcome], names_of(row.participants))


def _insert(connection: Any, key: str, word: str, names: str) -> None:
    if dialect_of(connection) is Dialect.POSTGRESQL:  # whose drivers agree, and which plans such a statement once
        _run(connection, f"{_INSERT} SELECT %s, %s, %s{_DURABLE}", (key, word, names))
    else:
        _run(connection, f"{_INSERT} VALUES ('{key}', '{word}', '{names}')")


def resolve_row(connection: Any, gtrid: bytes) -> DecisionRow:
    """What stands there from now on. Raises what the driver raises: try again then."""
    row = DecisionRow(gtrid, Outcome.ROLLED_BACK)
    try:
        insert_row(connection, row)
        connection.commit()
    except Exception as error:
        connection.rollback()
        if not is_a(error, "IntegrityError"):
            raise
        found = _select(connection, f"gtrid = '{_checked(gtrid)}'")
        if not found:
            raise OperationalError(
                f"the row of {gtrid.decode()} in {TABLE} went while it was read: look again"
            ) from error
        return found[0]
    return row


def read_rows(connection: Any, node: str, epoch: int) -> list[DecisionRow]:
    """All that this node has written before this epoch."""
    found = _select(connection, f"gtrid LIKE 'XAQ1{node}%'")
    return [row for row in found if (gtrid := Gtrid.parse(row.gtrid)) is not None and gtrid.epoch < epoch]


def delete_rows(connection: Any, gtrids: Iterable[bytes]) -> None:
    """Removes rows that nobody will ask for any more; a crash may bring them back."""
    left = list(gtrids)
    while left:
        some, left = left[:_AT_A_TIME], left[_AT_A_TIME:]
        if dialect_of(connection) is Dialect.POSTGRESQL:
            _run(connection, "SET LOCAL synchronous_commit = off")
        keys = ", ".join(f"'{_checked(gtrid)}'" for gtrid in some)
        _run(connection, f"DELETE FROM {TABLE} WHERE gtrid IN ({keys})")
        connection.commit()


def _trouble_of_mark(connection: Any, node: str) -> str:
    """Empty where the row of the node is there."""
    try:
        found = _run(connection, f"SELECT gtrid FROM {TABLE} WHERE gtrid = 'XAQ1{node}'")
    except Exception as error:  # drivers do not agree on its class; if it is anything else, what follows fails of it
        return f"cannot be read ({error})"
    finally:
        connection.rollback()
    return "" if found else "is not there"


def _select(connection: Any, where: str) -> list[DecisionRow]:
    found = _run(connection, f"SELECT gtrid, decision, participants FROM {TABLE} WHERE {where}")
    connection.rollback()
    return [
        DecisionRow(str(gtrid).encode("ascii"), _OUTCOMES[decision], tuple(map(unquote, str(names).split())))
        for gtrid, decision, names in found
        if decision in _OUTCOMES
    ]


def _run(connection: Any, statement: str, *parameters: tuple[str, ...]) -> Sequence[Any]:
    cursor = connection.cursor()
    try:
        cursor.execute(statement, *parameters)
        return list(cursor.fetchall()) if statement.startswith("SELECT") else []
    finally:
        cursor.close()


def _checked(gtrid: bytes) -> str:
    parsed = Gtrid.parse(gtrid)
    if parsed is None:
        raise OperationalError(f"{gtrid!r} is no gtrid of a transaction manager: remove its row from {TABLE}")
    return str(parsed)


def _check_mysql(connection: Any) -> None:
    wanted = {"innodb_flush_log_at_trx_commit": "1"}
    if str(_run(connection, "SELECT @@GLOBAL.log_bin")[0][0]) == "1":
        wanted["sync_binlog"] = "1"
    for setting, value in wanted.items():
        found = str(_run(connection, f"SELECT @@GLOBAL.{setting}")[0][0])
        if found != value:
            raise InvalidArgument(
                f"{setting} of this participant's database is {found}, so that a power loss may undo what its commit "
                f"decided: SET GLOBAL {setting} = {value}"
            )
