"""The tables of nodes in a database: how they are made and found, whose they are, and how they are written to.

See ``node_tables`` for what stands in them.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from xaqueue.errors import InvalidArgument, OperationalError
from xaqueue.tm import driver, last_resource
from xaqueue.tm.driver import Dialect, read, run
from xaqueue.tm.last_resource import NAMES_LENGTH, SYNCED, create_statement

LOCK_S = 5
"""So long a row that somebody else is about to write is waited for; then it is tried again."""
LAZY = "set_config('synchronous_commit', 'off', true)"
_HASTY = ", ".join(
    f"set_config('{setting}', '{LOCK_S}s', true)" for setting in ("lock_timeout", "idle_in_transaction_session_timeout")
)
_WHICH = (
    "SELECT c.system_identifier || '/' || d.oid FROM pg_control_system() c, pg_database d "
    "WHERE d.datname = current_database()"
)
_WHERE_MYSQL = (
    "SELECT CONCAT('`', DATABASE(), '`.'), (SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = "
    "DATABASE() AND table_name = 'xaqueue_id')"
)
NOW_US = {
    Dialect.POSTGRESQL: "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint",
    Dialect.SQLITE: "CAST(strftime('%s', 'now') AS INTEGER) * 1000000",
    Dialect.MYSQL: "UNIX_TIMESTAMP() * 1000000",
}


@dataclass(frozen=True, slots=True)
class Timing:
    """All in seconds. sign: between two signs of life. silent: so many intervals without a sign of a node end it.
    stale: behind so long without a sign it gives one before a transaction. sweep: between two sweeps of a participant.
    buried: so long a tombstone stands."""

    sign: float = 10.0
    silent: int = 6
    stale: float = 30.0
    sweep: float = 60.0
    buried: float = 30 * 86_400.0


class Identity(NamedTuple):
    """What a database answers when it is asked which one it is."""

    question: str
    """In any transaction of its."""
    answer: str


def grants(role: str) -> list[str]:
    """What a role needs that may not make them. To lock a row wants UPDATE in PostgreSQL."""
    tables = [f"xaqueue_{table}" for table in ("id", "nodes", "signs", "heuristics", "ended", "decisions")]
    return [f"GRANT SELECT, INSERT, UPDATE, DELETE ON {table} TO {role}" for table in tables]


def check_dialect(dialect: Dialect) -> None:
    """Raises InvalidArgument where such a database keeps no decisions."""
    if dialect not in NOW_US:
        raise InvalidArgument(
            "this database is none of PostgreSQL, MySQL, MariaDB and SQLite, so that no transaction manager can do "
            "without a directory here: give TransactionManager one for its decisions"
        )


def statements(dialect: Dialect, schema: str = "") -> list[str]:
    """What makes the tables, for who makes them by hand. schema: where some of them stand already. Raises
    InvalidArgument for any other database."""
    check_dialect(dialect)
    names = f"participants VARCHAR({NAMES_LENGTH}) NOT NULL"
    engine = " ENGINE=InnoDB" if dialect is Dialect.MYSQL else ""
    made = [
        "xaqueue_id (one INTEGER NOT NULL PRIMARY KEY, id VARCHAR(16) NOT NULL, place VARCHAR(100) NOT NULL)",
        "xaqueue_nodes (node VARCHAR(16) NOT NULL PRIMARY KEY)",
        f"xaqueue_signs (node VARCHAR(16) NOT NULL PRIMARY KEY, n INTEGER NOT NULL, at BIGINT NOT NULL, {names})",
        "xaqueue_heuristics (gtrid VARCHAR(64) NOT NULL, participant VARCHAR(192) NOT NULL, decision VARCHAR(16) NOT "
        "NULL, outcome VARCHAR(32) NOT NULL, at BIGINT NOT NULL, detail TEXT NOT NULL, "
        "PRIMARY KEY (gtrid, participant))",
        f"xaqueue_ended (node VARCHAR(16) NOT NULL PRIMARY KEY, at BIGINT NOT NULL, {names})",
    ]
    decisions = [] if schema else [create_statement(dialect)]
    return decisions + [f"CREATE TABLE IF NOT EXISTS {schema}{one}{engine}" for one in made]


@contextmanager
def durable(connection: Any, dialect: Dialect, commit: str = SYNCED) -> Iterator[None]:
    """A transaction of the transaction manager's own, whose commit waits for the disk, whatever is set; with LAZY it
    does not in PostgreSQL. Who stops in it holds others up for seconds."""
    if dialect is Dialect.SQLITE:
        driver.sync_fully(connection)
        if not driver.driver_of(connection).in_transaction:
            run(connection, "BEGIN IMMEDIATE")
    else:
        run(connection, "SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
    try:
        if dialect is Dialect.POSTGRESQL:
            run(connection, f"SELECT {commit}, {_HASTY}")
        yield
        connection.commit()
    except BaseException:
        connection.rollback()
        raise


class Found(NamedTuple):
    """schema: where the tables stand, as their names are to be qualified. is_whole: those of this version."""

    schema: str
    is_whole: bool


def found_in(connection: Any, dialect: Dialect) -> Found | None:
    """Where the table stands that is made last; None: nowhere."""
    found = read(
        connection,
        {
            Dialect.POSTGRESQL: "SELECT quote_ident(n.nspname) || '.', (SELECT COUNT(*) FROM pg_class h WHERE "
            "h.relnamespace = n.oid AND h.relname = 'xaqueue_heuristics') FROM pg_class c JOIN pg_namespace n "
            "ON n.oid = c.relnamespace WHERE c.oid = to_regclass('xaqueue_ended')",
            Dialect.SQLITE: "SELECT 'main.', (SELECT COUNT(*) FROM main.sqlite_master WHERE name = "
            "'xaqueue_heuristics') FROM main.sqlite_master WHERE name = 'xaqueue_ended'",
            Dialect.MYSQL: "SELECT CONCAT('`', table_schema, '`.'), (SELECT COUNT(*) FROM information_schema.tables "
            "WHERE table_schema = DATABASE() AND table_name = 'xaqueue_heuristics') FROM information_schema.tables "
            "WHERE table_schema = DATABASE() AND table_name = 'xaqueue_ended'",
        }[dialect],
    )
    return Found(str(found[0][0]), bool(found[0][1])) if found else None


def id_of(connection: Any, dialect: Dialect, schema: str) -> tuple[str, str]:
    """The database's id, which it gets here, and where it stood then."""
    for _ in range(2):
        found = read(connection, f"SELECT id, place FROM {schema}xaqueue_id WHERE one = 1")
        if found:
            return str(found[0][0]), str(found[0][1])
        place = place_of(connection, dialect)
        try:
            with durable(connection, dialect):
                run(
                    connection,
                    f"INSERT INTO {schema}xaqueue_id (one, id, place) VALUES (1, '{secrets.token_hex(8)}', '{place}')",
                )
        except Exception as error:
            if not driver.is_a(error, "IntegrityError"):  # somebody else was faster
                raise
    raise OperationalError(f"the row of {schema}xaqueue_id went while it was read: look again")


def identity_of(connection: Any, name: str) -> Identity:
    """Which database this is, where it prepares: in PostgreSQL by its cluster and its number there, which are others in
    a copy by SQL; in MySQL and MariaDB by its row of xaqueue_id, which is made here.

    connection: in no transaction. Raises InvalidArgument where none is known, and what the driver raises.
    """
    dialect = driver.dialect_of(connection)
    if dialect is Dialect.POSTGRESQL:
        question = _WHICH
    elif dialect is Dialect.MYSQL:
        check_mysql(connection)
        ((schema, found),) = run(connection, _WHERE_MYSQL)
        if not found:
            run(connection, statements(dialect)[1])
            connection.commit()
        id_of(connection, dialect, schema)
        question = f"SELECT id FROM {schema}xaqueue_id WHERE one = 1"
    else:
        raise InvalidArgument(
            f"participant {name!r} is no queue, and none of PostgreSQL, MySQL and MariaDB: nothing else may prepare in "
            "a transaction manager without a directory, so give TransactionManager one for its decisions"
        )
    ((answer,),) = read(connection, question)
    return Identity(question, str(answer))


def place_of(connection: Any, dialect: Dialect) -> str:
    """What is another one in a copy, as far as its database tells: of PostgreSQL the cluster's identifier, where the
    role may know it, and the database's number in it."""
    if dialect is not Dialect.POSTGRESQL:
        return ""
    number = run(connection, "SELECT oid FROM pg_database WHERE datname = current_database()")[0][0]
    try:
        cluster = run(connection, "SELECT system_identifier FROM pg_control_system()")[0][0]
    except Exception:  # a role that may not
        cluster = ""
    connection.rollback()
    return f"{cluster}/{number}"


def is_same(one: str, other: str) -> bool:
    """Whether two places may be one, as far as both are known."""
    pairs = zip(one.split("/"), other.split("/"), strict=False)
    return all(not known or not found or known == found for known, found in pairs)


def check_mysql(connection: Any) -> None:
    """Raises InvalidArgument where its commits are not durable, or its locks are those of one server of several."""
    last_resource.check_mysql(connection)
    try:
        is_on = str(run(connection, "SELECT @@wsrep_on")[0][0])
    except Exception:  # it knows no such variable
        is_on = "0"
    connection.rollback()
    if is_on == "1":
        raise InvalidArgument(
            "this database is one of a Galera cluster (wsrep_on), where a lock of one server keeps out nobody at the "
            "others: give TransactionManager a directory for its decisions"
        )
