"""The decisions of nodes, in the database that they share: what a transaction asks of it; see ``node_tables``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from xaqueue.carried import Life
from xaqueue.errors import InvalidArgument, RolledBack
from xaqueue.tm import driver, last_resource
from xaqueue.tm.driver import Dialect, run
from xaqueue.tm.guard import IS_MARKED, is_marked
from xaqueue.tm.last_resource import NAMES_LENGTH, SYNCED, DecisionRow, DecisionRows, RowGone, names_of
from xaqueue.tm.node_schema import LAZY, LOCK_S, durable
from xaqueue.xa import Code, Outcome

IDLE_S = 60
"""So long a session may stand still between its decision and its commit, where the database can tell."""
_LIMITED = (
    "set_config('idle_in_transaction_session_timeout', CASE WHEN "
    f"current_setting('idle_in_transaction_session_timeout')::interval BETWEEN '1ms' AND '{IDLE_S}s' THEN "
    f"current_setting('idle_in_transaction_session_timeout') ELSE '{IDLE_S}s' END, true)"
)
LIMIT = "idle_write_transaction_timeout"
_LIMIT_MARIADB = f"SET SESSION {LIMIT} = IF(@@{LIMIT} BETWEEN 1 AND {IDLE_S}, @@{LIMIT}, {IDLE_S})"
NODE_AT, NODE_LENGTH = 21, 16
"""Where in a gtrid its node is, counted as databases do."""


class NodeEnded(RolledBack):
    """Others took this process for dead; the transaction may be done again, under a new name."""

    def __init__(self, node: str) -> None:
        super().__init__(
            f"this process was silent for so long that it may not decide any more as node {node}: it goes on under a "
            "new name, so do the transaction again",
            Code.XA_RBTRANSIENT,
        )


@dataclass(frozen=True, slots=True)
class NodeDecisions(DecisionRows):
    """Those in the tables of one database. Raises what the driver raises, whatever it is asked."""

    dialect: Dialect
    database: str
    """Its id, 16 hex digits."""
    schema: str
    """Of the tables, as their names are to be qualified, whatever a session's search path says."""
    is_whole: bool = True
    """Whether there is one for heuristics, as an earlier version had none."""
    has_limit: bool = False
    """Whether it is a MariaDB, which can end a session that stands still in a transaction that has written."""
    trouble: str = ""
    """Why nothing of others may be touched: it is a copy."""

    def insert(self, connection: Any, row: DecisionRow, dialect: Dialect) -> bool:
        """As ``DecisionRows.insert``, as long as its node may decide, which nobody ends then before the commit.

        Raises NodeEnded where it may not.
        """
        key, names, node = self._values(row)
        into = f"INSERT INTO {self.table} (gtrid, decision, participants) SELECT"
        nodes = f"{self.schema}xaqueue_nodes WHERE node ="
        if dialect is Dialect.POSTGRESQL:
            added = run(
                connection,
                f"{into} %s, 'commit', %s FROM (SELECT {SYNCED}, {_LIMITED}) AS s, "
                f"(SELECT 1 FROM {nodes} %s FOR KEY SHARE) AS l WHERE {IS_MARKED}",
                (key, names, node),
            )
        elif not is_marked(connection):
            return False
        else:
            if self.has_limit:
                run(connection, _LIMIT_MARIADB)
            lock = " LOCK IN SHARE MODE" if dialect is Dialect.MYSQL else ""
            added = run(connection, f"{into} '{key}', 'commit', '{names}' FROM {nodes} '{node}'{lock}")
            if not added:
                raise NodeEnded(node)
        if not added and is_marked(connection):
            raise NodeEnded(node)
        return bool(added)

    def _values(self, row: DecisionRow) -> tuple[str, str, str]:
        """Its key, all participants, and its node. Raises InvalidArgument."""
        key, names = last_resource.checked(row.gtrid), names_of(row.participants, row.spaces)
        if len(names) > NAMES_LENGTH:  # without all of them nobody else could finish it
            raise InvalidArgument(
                f"{len(row.participants)} participants are too many for one transaction: their names and ids have "
                f"{len(names):,} characters, and at most {NAMES_LENGTH:,} may be kept. Take fewer, or shorter names"
            )
        return key, names, node_of(key)

    def insert_carried(self, connection: Any, row: DecisionRow, life: Life, dialect: Dialect) -> bool:
        """As ``DecisionRows.insert_carried``, and as ``insert``."""
        key, names, named = self._values(row)
        node = f"{self.schema}xaqueue_nodes WHERE node ="
        if dialect is Dialect.POSTGRESQL:
            statement = (
                f"INSERT INTO {self.table} (gtrid, decision, participants, carried) SELECT %s, 'commit', %s, %s "
                f"FROM (SELECT {SYNCED}, {_LIMITED}) AS s, (SELECT 1 FROM {node} %s FOR KEY SHARE) AS l, "
                f"(SELECT 1 FROM {self.table} WHERE gtrid = %s AND participants = %s FOR SHARE) AS o WHERE {IS_MARKED}"
            )
        else:
            statement = (
                f"INSERT INTO {self.table} (gtrid, decision, participants, carried) SELECT ?, 'commit', ?, ? "
                f"FROM (SELECT 1 FROM {node} ?), (SELECT 1 FROM {self.table} WHERE gtrid = ? AND participants = ?)"
            )
        if run(connection, statement, (key, names, row.carried, named, *last_resource.life_row(life))):
            return True
        if is_marked(connection):
            if not run(connection, f"SELECT 1 FROM {node} '{named}'"):
                raise NodeEnded(named)
            raise last_resource.life_over(row)
        return False

    @property
    def table(self) -> str:
        """Of decisions."""
        return f"{self.schema}{last_resource.TABLE}"

    def _named(self, node: str) -> str:
        """Of all nodes: a space has one carrier here for all processes."""
        return f"XAQ2{self.database}"

    def resolve_own(self, connection: Any, gtrid: bytes) -> DecisionRow:
        """As ``resolve``, as long as its node may decide: of one that is ended what says commit goes, once all have."""
        return self.resolve(connection, gtrid, is_own=True)

    def resolve(self, connection: Any, gtrid: bytes, *, is_own: bool = False) -> DecisionRow:
        """What stands there from now on: a row that says rollback, where there was none. Raises what the driver
        raises, also where somebody is about to write the row: try again then."""
        key = last_resource.checked(gtrid)
        row = f"'{key}', 'rollback', ''"
        lock = {Dialect.POSTGRESQL: " FOR KEY SHARE", Dialect.MYSQL: " LOCK IN SHARE MODE"}.get(self.dialect, "")
        node = node_of(key)
        living = f"SELECT {row} FROM {self.schema}xaqueue_nodes WHERE node = '{node}'{lock}"
        try:
            with durable(connection, self.dialect):
                if self.dialect is Dialect.MYSQL:
                    run(connection, f"SET SESSION innodb_lock_wait_timeout = {LOCK_S}")
                added = run(
                    connection,
                    f"INSERT INTO {self.table} (gtrid, decision, participants) "
                    + (living if is_own else f"VALUES ({row})"),
                )
        except Exception as error:
            if not driver.is_a(error, "IntegrityError"):
                raise
            return self._there(connection, gtrid, error)
        if is_own and not added:
            found = self._select(connection, f"gtrid = '{key}'{self._lock}")
            if not found:
                raise RowGone(f"the node of {key} was ended, and nothing stands there of it: others see to it, or did")
            return found[0]
        return DecisionRow(gtrid, Outcome.ROLLED_BACK)

    def is_struck(self, connection: Any, gtrid: bytes, identity: str) -> bool:
        """Whether that participant has carried out a decision to commit which was there."""
        found = self._select(connection, f"gtrid = '{last_resource.checked(gtrid)}'{self._lock}")
        return not found or (found[0].outcome is Outcome.COMMITTED and identity not in found[0].spaces.values())

    def make_ready(self, connection: Any, node: str, *, is_known: bool) -> None:
        """They were made before the node had its name."""

    def read(self, connection: Any, node: str, epoch: int) -> list[DecisionRow]:
        """None: what earlier nodes have left is swept."""
        return []

    @contextmanager
    def _lazily(self, connection: Any) -> Iterator[None]:
        with durable(connection, self.dialect, LAZY):
            yield

    @property
    def _lock(self) -> str:
        return {Dialect.POSTGRESQL: " FOR SHARE", Dialect.MYSQL: " LOCK IN SHARE MODE"}.get(self.dialect, "")


def node_of(key: str) -> str:
    return key[NODE_AT - 1 : NODE_AT - 1 + NODE_LENGTH]
