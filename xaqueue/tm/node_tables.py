"""What processes of a service tell each other in the database that decides, each statement of it.

    xaqueue_id(one, id, place)                  the database: a random id, and where it stood then
    xaqueue_nodes(node)                         who may decide: a decision locks its row
    xaqueue_signs(node, n, at, participants)    its signs of life, and all participants that it has prepared at
    xaqueue_ended(node, at, participants)       tombstones: who may decide no more
    xaqueue_decisions                           see ``last_resource``
    xaqueue_heuristics(gtrid, participant, ...) what a participant did by itself, until a person forgets it

Participants stand there by what they say of themselves, a space's id, since two services may have one name for two.
Whatever is asked here is asked in a transaction of its own at READ COMMITTED, whose commit waits for the disk. Only
literals of our own making go into the statements: drivers do not agree on how parameters are written.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from xaqueue.carried import Life, Pruned, decode
from xaqueue.errors import InvalidArgument, OperationalError, RolledBack
from xaqueue.tm import driver, last_resource
from xaqueue.tm.driver import Adapter, Dialect, run
from xaqueue.tm.guard import IS_MARKED, is_marked
from xaqueue.tm.last_resource import NAMES_LENGTH, SYNCED, DecisionRow, DecisionRows, RowGone, names_of
from xaqueue.tm.node_schema import (
    LAZY,
    LOCK_S,
    NOW_US,
    Found,
    check_dialect,
    check_mysql,
    durable,
    found_in,
    id_of,
    is_same,
    place_of,
    statements,
)
from xaqueue.tm.records import Heuristic
from xaqueue.tm.voting import ParticipantOutcome
from xaqueue.xa import Code, Outcome

IDLE_S = 60
"""So long a session may stand still between its decision and its commit, where the database can tell."""
_LIMITED = (
    "set_config('idle_in_transaction_session_timeout', CASE WHEN "
    f"current_setting('idle_in_transaction_session_timeout')::interval BETWEEN '1ms' AND '{IDLE_S}s' THEN "
    f"current_setting('idle_in_transaction_session_timeout') ELSE '{IDLE_S}s' END, true)"
)
_LIMIT = "idle_write_transaction_timeout"
_LIMIT_MARIADB = f"SET SESSION {_LIMIT} = IF(@@{_LIMIT} BETWEEN 1 AND {IDLE_S}, @@{_LIMIT}, {IDLE_S})"
_WORDS = last_resource.OUTCOMES | {one.value: one for one in (Outcome.COMMITTED, Outcome.ROLLED_BACK)}
"""Of a row, and of what was noted of one who did otherwise."""
_NODE_AT, _NODE_LENGTH = 21, 16
"""Where in a gtrid its node is, counted as databases do."""


class NodeEnded(RolledBack):
    """Others took this process for dead; the transaction may be done again, under a new name."""

    def __init__(self, node: str) -> None:
        super().__init__(
            f"this process was silent for so long that it may not decide any more as node {node}: it goes on under a "
            "new name, so do the transaction again",
            Code.XA_RBTRANSIENT,
        )


class BranchState(NamedTuple):
    """What its database knows of a transaction. decision: None where there is none. sign: the last one of its node,
    0 without any."""

    decision: Outcome | None
    sign: int
    is_node: bool
    is_ended: bool

    def is_known(self, sign: int) -> bool:
        """Whether this database has seen the node's sign of this number, as an older one, or another, has not."""
        return self.sign >= sign and (self.is_node or self.is_ended)


class NodeRow(NamedTuple):
    """What an operator sees of a node. signed_us: its last sign, by the database's clock; 0 where that is gone.
    ended_us: 0 while it may decide. decisions: to commit, which somebody has to carry out, or to remove."""

    node: str
    sign: int
    signed_us: int
    ended_us: int
    participants: str
    decisions: int


class Standing(NamedTuple):
    """A decision, or a tombstone, as it was read: it goes only as it is."""

    key: str
    participants: str
    carried: bytes = b""
    """See ``DecisionRow``."""

    def names(self) -> dict[str, str]:
        """Of each participant by its identity, the name that the node has given it."""
        pairs = (word.split("=") for word in self.participants.split())
        return {unquote(identity[0] if identity else name): unquote(name) for name, *identity in pairs}

    def without(self, identity: str) -> str:
        return " ".join(word for word in self.participants.split() if unquote(word.rpartition("=")[2]) != identity)


@dataclass(frozen=True, slots=True)
class NodeTables(DecisionRows):
    """Those of one database. Raises what the driver raises, whatever it is asked."""

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

    @classmethod
    def find(cls, connection: Any, *, make: bool = False) -> NodeTables | None:
        """Those of this connection's database. make: where there are none they are made; else None.

        Raises InvalidArgument where it is none that can decide so, or one whose commits are not durable, and
        OperationalError where they cannot be made.
        """
        dialect = driver.dialect_of(connection)
        check_dialect(dialect)
        if dialect is Dialect.MYSQL:
            check_mysql(connection)
        found = found_in(connection, dialect)
        if make and not (found and found.is_whole):
            found = _made(connection, dialect, found.schema if found is not None else "")
        if found is None:
            return None
        schema = found.schema
        database, trouble = _whose(connection, dialect, schema)
        has_limit = dialect is Dialect.MYSQL and bool(run(connection, f"SHOW VARIABLES LIKE '{_LIMIT}'"))
        connection.rollback()
        return cls(dialect, database, schema, found.is_whole, has_limit, trouble)

    def again(self, connection: Any) -> NodeTables:
        """The same ones as they are now, whatever this session's search path says: somebody may have said that they are
        another database's."""
        database, trouble = _whose(connection, self.dialect, self.schema)
        return replace(self, database=database, trouble=trouble)

    def claim(self, connection: Any, *, is_new: bool = False) -> None:
        """It is the database that it says it is, wherever it stands now; is_new: it is another one from here on, in
        which nobody may decide who had his name before."""
        place = place_of(connection, self.dialect)
        fresh = f"id = '{secrets.token_hex(8)}', " if is_new else ""
        with durable(connection, self.dialect):
            run(connection, f"UPDATE {self.schema}xaqueue_id SET {fresh}place = '{place}' WHERE one = 1")
            if is_new:
                run(connection, f"DELETE FROM {self.schema}xaqueue_nodes")
                run(connection, f"DELETE FROM {self.schema}xaqueue_signs")

    # Of a node itself

    def register(self, connection: Any, node: str, participants: str) -> None:
        """The node may decide from here on; its first sign is 1."""
        with durable(connection, self.dialect):
            run(connection, f"INSERT INTO {self.schema}xaqueue_nodes (node) VALUES ('{node}')")
            run(
                connection,
                f"INSERT INTO {self.schema}xaqueue_signs (node, n, at, participants) "
                f"VALUES ('{node}', 1, {self._now_us}, '{participants}')",
            )

    def sign(self, connection: Any, node: str, last: int, participants: str) -> bool:
        """Its next sign of life, behind this one. False: that is not its last one, or it may decide no more."""
        with durable(connection, self.dialect):
            changed = run(
                connection,
                f"UPDATE {self.schema}xaqueue_signs SET n = n + 1, at = {self._now_us}, participants = "
                f"'{participants}' WHERE node = '{node}' AND n = {last} AND EXISTS (SELECT 1 FROM "
                f"{self.schema}xaqueue_nodes WHERE node = '{node}')",
            )
        return bool(changed)

    def close(self, connection: Any, node: str) -> None:
        """Nothing is left of the node: nobody will ask for it."""
        with durable(connection, self.dialect):
            run(
                connection,
                f"DELETE FROM {self.schema}xaqueue_decisions WHERE gtrid LIKE 'XAQ2{self.database}{node}%' "
                "AND decision = 'rollback'",
            )
            run(connection, f"DELETE FROM {self.schema}xaqueue_nodes WHERE node = '{node}'")
            run(connection, f"DELETE FROM {self.schema}xaqueue_signs WHERE node = '{node}'")

    # Of others

    def signs(self, connection: Any) -> dict[str, int]:
        """The last sign of each node that may decide."""
        found = run(
            connection,
            f"SELECT s.node, s.n FROM {self.schema}xaqueue_signs s JOIN {self.schema}xaqueue_nodes n "
            "ON n.node = s.node",
        )
        connection.rollback()
        return {str(node): int(n) for node, n in found}

    def all(self, connection: Any) -> list[NodeRow]:
        """Those that may decide, by their names, and behind them those that are ended, in the order of their ends."""
        node = f"substr(d.gtrid, {_NODE_AT}, {_NODE_LENGTH})"
        counted = (
            f"(SELECT COUNT(*) FROM {self.schema}xaqueue_decisions d WHERE d.gtrid LIKE 'XAQ2{self.database}%' "
            f"AND d.decision = 'commit' AND {node} = n.node)"
        )
        signed = f"LEFT JOIN {self.schema}xaqueue_signs s ON s.node = n.node"
        live = run(
            connection,
            f"SELECT n.node, s.n, s.at, 0, s.participants, {counted} FROM {self.schema}xaqueue_nodes n {signed} "
            "ORDER BY n.node",
        )
        ended = run(
            connection,
            f"SELECT n.node, s.n, s.at, n.at, n.participants, {counted} FROM {self.schema}xaqueue_ended n {signed} "
            "ORDER BY n.at, n.node",
        )
        connection.rollback()
        return [
            NodeRow(str(node), int(n or 0), int(at or 0), int(ended_at), unquote(str(names or "")), int(count))
            for node, n, at, ended_at, names, count in (*live, *ended)
        ]

    def decided(self, connection: Any, gtrid: bytes = b"") -> list[Standing]:
        """Decisions to commit that not all have carried out, or that nobody has struck yet; or this one, if it is."""
        which = f"= '{last_resource.checked(gtrid)}'" if gtrid else f"LIKE 'XAQ2{self.database}%'"
        found = run(
            connection,
            f"SELECT gtrid, participants FROM {self.schema}xaqueue_decisions WHERE gtrid {which} "
            "AND decision = 'commit' ORDER BY gtrid",
        )
        connection.rollback()
        return [Standing(str(key), str(names)) for key, names in found]

    def clock_us(self, connection: Any) -> int:
        """The database's."""
        ((now,),) = run(connection, f"SELECT {self._now_us}")
        connection.rollback()
        return int(now)

    def silent(self, connection: Any, age_s: float) -> list[str]:
        """Nodes whose last sign is so old, by the database's clock."""
        found = run(
            connection,
            f"SELECT s.node FROM {self.schema}xaqueue_signs s JOIN {self.schema}xaqueue_nodes n ON n.node = s.node "
            f"WHERE s.at < {self._now_us} - {int(age_s * 1e6)}",
        )
        connection.rollback()
        return [str(node) for (node,) in found]

    def still(self, connection: Any, age_s: int) -> list[tuple[int, int]]:
        """Sessions of MySQL and MariaDB that have stood still for so long in a transaction that has written, which may
        keep its node from being ended; and for how many seconds. Only a role with the right PROCESS may ask."""
        if self.dialect is not Dialect.MYSQL:
            return []
        found = run(
            connection,
            "SELECT p.id, p.time FROM information_schema.innodb_trx t JOIN information_schema.processlist p "
            "ON p.id = t.trx_mysql_thread_id WHERE p.db = DATABASE() AND p.command = 'Sleep' "
            f"AND t.trx_rows_modified > 0 AND p.time >= {age_s} ORDER BY p.id",
        )
        connection.rollback()
        return [(int(session), int(idle_s)) for session, idle_s in found]

    def end(self, connection: Any, node: str) -> bool:
        """The node may decide no more. False: it is deciding just now, so it lives; or somebody else was faster.

        It waits for nobody, and nobody waits for it: in PostgreSQL it is one statement.
        """
        if self.dialect is Dialect.POSTGRESQL:
            return self._end_postgresql(connection, node)
        lock = " FOR UPDATE SKIP LOCKED" if self.dialect is Dialect.MYSQL else ""
        with durable(connection, self.dialect):
            if not run(connection, f"SELECT node FROM {self.schema}xaqueue_nodes WHERE node = '{node}'{lock}"):
                return False
            run(connection, f"DELETE FROM {self.schema}xaqueue_nodes WHERE node = '{node}'")
            run(
                connection,
                f"INSERT INTO {self.schema}xaqueue_ended (node, at, participants) SELECT node, {self._now_us}, "
                f"participants FROM {self.schema}xaqueue_signs WHERE node = '{node}'",
            )
        return True

    def _end_postgresql(self, connection: Any, node: str) -> bool:
        statement = (
            f"WITH s AS (SELECT {SYNCED}), "
            f"l AS (SELECT n.node, g.participants FROM {self.schema}xaqueue_nodes n JOIN {self.schema}xaqueue_signs g "
            f"ON g.node = n.node, s WHERE n.node = '{node}' FOR UPDATE OF n, g SKIP LOCKED), "
            f"x AS (DELETE FROM {self.schema}xaqueue_nodes n USING l WHERE n.node = l.node "
            "RETURNING n.node, l.participants) "
            f"INSERT INTO {self.schema}xaqueue_ended (node, at, participants) "
            f"SELECT x.node, {self._now_us}, x.participants FROM x"
        )
        if isinstance(connection, Adapter) or not hasattr(connection, "autocommit"):
            with durable(connection, self.dialect):  # who stands still behind it is ended by the database
                return bool(run(connection, statement))
        connection.rollback()
        connection.autocommit = True
        try:
            return bool(run(connection, statement))
        finally:
            connection.autocommit = False

    def state_of(self, connection: Any, gtrid: bytes) -> BranchState:
        """What is known of this transaction, at one moment."""
        key = last_resource.checked(gtrid)
        node = _node_of(key)
        decided = f"(SELECT decision FROM {self.schema}xaqueue_decisions WHERE gtrid = '{key}')"
        if (
            self.is_whole
        ):  # a queue that did otherwise lists its branch until that is forgotten, and the row goes before
            noted = f"(SELECT MIN(decision) FROM {self.schema}xaqueue_heuristics WHERE gtrid = '{key}')"
            decided = f"COALESCE({decided}, {noted})"
        ((word, sign, nodes, ended),) = run(
            connection,
            f"SELECT {decided}, "
            f"(SELECT n FROM {self.schema}xaqueue_signs WHERE node = '{node}'), "
            f"(SELECT COUNT(*) FROM {self.schema}xaqueue_nodes WHERE node = '{node}'), "
            f"(SELECT COUNT(*) FROM {self.schema}xaqueue_ended WHERE node = '{node}')",
        )
        connection.rollback()
        return BranchState(_WORDS.get(word), int(sign or 0), bool(nodes), bool(ended))

    # What participants did by themselves

    def heuristics(self, connection: Any) -> list[Heuristic]:
        """Those that nobody has forgotten, oldest first."""
        if not self.is_whole:
            return []
        found = run(
            connection,
            f"SELECT gtrid, participant, decision, outcome, at, detail FROM {self.schema}xaqueue_heuristics "
            f"WHERE gtrid LIKE 'XAQ2{self.database}%' ORDER BY at, gtrid, participant",
        )
        connection.rollback()
        return [
            Heuristic(key.encode(), _told(name), Outcome(word), ParticipantOutcome(did), int(at), _told(detail))
            for key, name, word, did, at, detail in found
        ]

    def note(self, connection: Any, noted: Heuristic) -> None:
        """In the place of what was noted of that participant before."""
        key, name = last_resource.checked(noted.gtrid), _quoted(noted.participant)
        table = f"{self.schema}xaqueue_heuristics"
        with durable(connection, self.dialect):
            run(connection, f"DELETE FROM {table} WHERE gtrid = '{key}' AND participant = '{name}'")
            run(
                connection,
                f"INSERT INTO {table} (gtrid, participant, decision, outcome, at, detail) VALUES ('{key}', '{name}', "
                f"'{noted.decision.value}', '{noted.outcome.value}', {noted.when_us}, '{_quoted(noted.detail)}')",
            )

    def forget(self, connection: Any, gtrid: bytes) -> None:
        """All that was noted of this transaction."""
        key = last_resource.checked(gtrid)
        with durable(connection, self.dialect):
            run(connection, f"DELETE FROM {self.schema}xaqueue_heuristics WHERE gtrid = '{key}'")

    # Decisions

    def insert(self, connection: Any, row: DecisionRow, dialect: Dialect, life: Life | None = None) -> bool:
        """As ``DecisionRows.insert``, as long as its node may decide, which nobody ends then before the commit.

        life: of the space whose change the row carries, as in ``insert_carried``. Raises NodeEnded where the node may
        not, LifeOver.
        """
        key = last_resource.checked(row.gtrid)
        node, names = _node_of(key), names_of(row.participants, row.spaces)
        if len(names) > NAMES_LENGTH:  # without all of them nobody else could finish it
            raise InvalidArgument(
                f"{len(row.participants)} participants are too many for one transaction: their names and ids have "
                f"{len(names):,} characters, and at most {NAMES_LENGTH:,} may be kept. Take fewer, or shorter names"
            )
        into = f"INSERT INTO {self.schema}xaqueue_decisions (gtrid, decision, participants) SELECT"
        nodes = f"SELECT 1 FROM {self.schema}xaqueue_nodes WHERE node ="
        if life is not None:
            return self._insert_carried(connection, row, life, (key, names, row.carried, node))
        if dialect is Dialect.POSTGRESQL:
            added = run(
                connection,
                f"{into} %s, 'commit', %s FROM (SELECT {SYNCED}, {_LIMITED}) AS s, "
                f"({nodes} %s FOR KEY SHARE) AS l WHERE {IS_MARKED}",
                (key, names, node),
            )
        elif not is_marked(connection):
            return False
        else:
            if self.has_limit:
                run(connection, _LIMIT_MARIADB)
            lock = " LOCK IN SHARE MODE" if dialect is Dialect.MYSQL else ""
            added = run(
                connection,
                f"{into} '{key}', 'commit', '{names}' FROM {self.schema}xaqueue_nodes WHERE node = '{node}'{lock}",
            )
            if not added:
                raise NodeEnded(node)
        if not added and is_marked(connection):
            raise NodeEnded(node)
        return bool(added)

    def insert_carried(self, connection: Any, row: DecisionRow, life: Life, dialect: Dialect) -> bool:
        return self.insert(connection, row, dialect, life)

    def _insert_carried(self, connection: Any, row: DecisionRow, life: Life, values: tuple[Any, ...]) -> bool:
        node = f"{self.schema}xaqueue_nodes WHERE node ="
        if self.dialect is Dialect.POSTGRESQL:
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
        if run(connection, statement, (*values, *last_resource.life_row(life))):
            return True
        if is_marked(connection):
            if not run(connection, f"SELECT 1 FROM {node} '{values[-1]}'"):
                raise NodeEnded(values[-1])
            raise last_resource.life_over(row)
        return False

    @property
    def table(self) -> str:
        """Of decisions."""
        return f"{self.schema}{last_resource.TABLE}"

    def begin_life(self, connection: Any, life: Life) -> None:
        last_resource.begin_life(connection, life, self.table)

    def read_carried(self, connection: Any, node: str, space: str, carrier: str) -> tuple[list[bytes], Pruned]:
        """Of all nodes: a space has one carrier here for all processes."""
        return last_resource.read_carried(connection, f"XAQ2{self.database}", space, carrier, self.table)

    def resolve_own(self, connection: Any, gtrid: bytes) -> DecisionRow:
        """As ``resolve``, as long as its node may decide: of one that is ended what says commit goes, once all have."""
        return self.resolve(connection, gtrid, is_own=True)

    def resolve(self, connection: Any, gtrid: bytes, *, is_own: bool = False) -> DecisionRow:
        """What stands there from now on: a row that says rollback, where there was none. Raises what the driver
        raises, also where somebody is about to write the row: try again then."""
        key = last_resource.checked(gtrid)
        row = f"'{key}', 'rollback', ''"
        lock = {Dialect.POSTGRESQL: " FOR KEY SHARE", Dialect.MYSQL: " LOCK IN SHARE MODE"}.get(self.dialect, "")
        node = _node_of(key)
        living = f"SELECT {row} FROM {self.schema}xaqueue_nodes WHERE node = '{node}'{lock}"
        try:
            with durable(connection, self.dialect):
                if self.dialect is Dialect.MYSQL:
                    run(connection, f"SET SESSION innodb_lock_wait_timeout = {LOCK_S}")
                added = run(
                    connection,
                    f"INSERT INTO {self.schema}xaqueue_decisions (gtrid, decision, participants) "
                    + (living if is_own else f"VALUES ({row})"),
                )
        except Exception as error:
            if not driver.is_a(error, "IntegrityError"):
                raise
            found = self._select(connection, f"gtrid = '{key}'", locked=True)
            if not found:
                raise OperationalError(f"the row of {key} went while it was read: look again") from error
            return found[0]
        if is_own and not added:
            found = self._select(connection, f"gtrid = '{key}'", locked=True)
            if not found:
                raise RowGone(f"the node of {key} was ended, and nothing stands there of it: others see to it, or did")
            return found[0]
        return DecisionRow(gtrid, Outcome.ROLLED_BACK)

    def is_struck(self, connection: Any, gtrid: bytes, identity: str) -> bool:
        """Whether that participant has carried out a decision to commit which was there."""
        found = self._select(connection, f"gtrid = '{last_resource.checked(gtrid)}'", locked=True)
        return not found or (found[0].outcome is Outcome.COMMITTED and identity not in found[0].spaces.values())

    def make_ready(self, connection: Any, node: str, *, is_known: bool) -> None:
        """They were made before the node had its name."""

    def read(self, connection: Any, node: str, epoch: int) -> list[DecisionRow]:
        """None: what earlier nodes have left is swept."""
        return []

    def of_ended(self, connection: Any, identity: str) -> list[Standing]:
        """Decisions to commit of nodes that are ended, which this participant has to have carried out, and those that
        all have."""
        found = run(
            connection,
            f"SELECT d.gtrid, d.participants, d.carried FROM {self.table} d JOIN {self.schema}xaqueue_ended e "
            f"ON e.node = substr(d.gtrid, {_NODE_AT}, {_NODE_LENGTH}) "
            f"WHERE d.gtrid LIKE 'XAQ2{self.database}%' AND d.decision = 'commit'",
        )
        connection.rollback()
        standing = [Standing(str(key), str(names), bytes(data or b"")) for key, names, data in found]
        return [one for one in standing if identity in (names := one.names()) or not names]

    def strike(self, connection: Any, standing: Standing, identity: str) -> None:
        """That participant has carried the decision out, as durably as it does: the last one takes the row along, but
        not as long as its node may decide, which may have no answer yet, and look for the row."""
        if standing.carried:
            change = decode(standing.carried)
            gone = change.life.space, change.carrier, change.number
            self.delete(connection, [standing.key.encode()], {standing.key.encode(): gone})
            return
        left = standing.without(identity)
        where = f"WHERE gtrid = '{standing.key}' AND participants = '{standing.participants}'"
        table = f"{self.schema}xaqueue_decisions"
        lives = f"EXISTS (SELECT 1 FROM {self.schema}xaqueue_nodes WHERE node = '{_node_of(standing.key)}')"
        with durable(connection, self.dialect, LAZY):  # a crash may undo it
            if left or not run(connection, f"DELETE FROM {table} {where} AND NOT {lives}"):
                run(connection, f"UPDATE {table} SET participants = '{left}' {where}")

    def delete(
        self,
        connection: Any,
        gtrids: Iterable[bytes],
        carried: Mapping[bytes, tuple[str, str, int]] = last_resource.NOTHING,
    ) -> None:
        """Decisions that all have carried out."""
        lazily = partial(durable, dialect=self.dialect, commit=LAZY)
        last_resource.delete_rows(connection, gtrids, carried, self.table, lazily)

    def tombstones(self, connection: Any, age_s: float) -> list[Standing]:
        """Of nodes that were ended so long ago, and have no decision to commit any more."""
        found = run(
            connection,
            f"SELECT node, participants FROM {self.schema}xaqueue_ended e WHERE at < {self._now_us} - "
            f"{int(age_s * 1e6)} AND NOT EXISTS (SELECT 1 FROM {self.schema}xaqueue_decisions d WHERE decision = "
            f"'commit' AND substr(d.gtrid, {_NODE_AT}, {_NODE_LENGTH}) = e.node AND d.gtrid LIKE "
            f"'XAQ2{self.database}%')",
        )
        connection.rollback()
        return [Standing(str(node), str(names)) for node, names in found]

    def bury(self, connection: Any, standing: Standing, identity: str) -> None:
        """That participant has no branch of the node: the last one takes all that is left of it along."""
        left, node = standing.without(identity), standing.key
        where = f"WHERE node = '{node}' AND participants = '{standing.participants}'"
        if left:
            with durable(connection, self.dialect, LAZY):
                run(connection, f"UPDATE {self.schema}xaqueue_ended SET participants = '{left}' {where}")
            return
        with durable(connection, self.dialect):
            if run(connection, f"DELETE FROM {self.schema}xaqueue_ended {where}"):
                run(connection, f"DELETE FROM {self.schema}xaqueue_signs WHERE node = '{node}'")
                run(
                    connection,
                    f"DELETE FROM {self.schema}xaqueue_decisions WHERE gtrid LIKE 'XAQ2{self.database}{node}%'",
                )

    @property
    def _now_us(self) -> str:
        return NOW_US[self.dialect]

    def _select(self, connection: Any, where: str, *, locked: bool) -> list[DecisionRow]:
        lock = {Dialect.POSTGRESQL: " FOR SHARE", Dialect.MYSQL: " LOCK IN SHARE MODE"}.get(self.dialect, "")
        return last_resource.select_rows(connection, where + lock * locked, f"{self.schema}{last_resource.TABLE}")


def _whose(connection: Any, dialect: Dialect, schema: str) -> tuple[str, str]:
    """The database's id, and why nothing of others may be touched in it."""
    database, place = id_of(connection, dialect, schema)
    if is_same(place, place_of(connection, dialect)):
        return database, ""
    return database, "it is a copy of the database that it says it is: see `xaqueue tm claim` and `xaqueue tm new-id`"


def _node_of(key: str) -> str:
    return key[_NODE_AT - 1 : _NODE_AT - 1 + _NODE_LENGTH]


def _made(connection: Any, dialect: Dialect, schema: str) -> Found:
    """The tables, or those of them that were missing in this schema. Raises OperationalError."""
    wanted = statements(dialect, schema)
    try:
        for statement in wanted:
            run(connection, statement)
        connection.commit()
        refused: Exception | None = None
    except Exception as error:
        connection.rollback()
        refused = error  # which may be that somebody else has just made them
    found = found_in(connection, dialect)
    if found is None or not found.is_whole:
        raise OperationalError(
            f"the tables of nodes cannot be made ({refused}): a role that may has to run {'; '.join(wanted)}, and this "
            "one needs SELECT, INSERT, UPDATE and DELETE on them"
        ) from refused
    return found


def _quoted(text: str) -> str:
    """As it may stand in a literal: without quotes, and without what some drivers take for a parameter."""
    return quote(text, safe=" ").replace("%", "=")


def _told(text: str) -> str:
    return unquote(text.replace("=", "%"))
