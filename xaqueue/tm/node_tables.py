"""What processes of a service tell each other in the database that decides, each statement of it.

    xaqueue_id(one, id, place)                  the database: a random id, and where it stood then
    xaqueue_nodes(node)                         who may decide: a decision locks its row
    xaqueue_signs(node, n, at, participants)    its signs of life, and all participants that it has prepared at
    xaqueue_ended(node, at, participants)       tombstones: who may decide no more
    xaqueue_decisions                           see ``node_decisions``
    xaqueue_heuristics(gtrid, participant, ...) what a participant did by itself, until a person forgets it

Participants stand there by what they say of themselves, a space's id, since two services may have one name for two.
Whatever is asked here is asked in a transaction of its own at READ COMMITTED, whose commit waits for the disk. Only
literals of our own making go into the statements: drivers do not agree on how parameters are written.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from xaqueue.carried import decode
from xaqueue.errors import OperationalError
from xaqueue.tm import driver, last_resource
from xaqueue.tm.driver import Adapter, Dialect, read, run
from xaqueue.tm.last_resource import SYNCED, DecisionRow
from xaqueue.tm.node_decisions import LIMIT, NODE_AT, NODE_LENGTH, NodeDecisions, node_of
from xaqueue.tm.node_schema import (
    LAZY,
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
from xaqueue.xa import Outcome

_WORDS = last_resource.OUTCOMES | {one.value: one for one in (Outcome.COMMITTED, Outcome.ROLLED_BACK)}
"""Of a row, and of what was noted of one who did otherwise."""


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
class NodeTables(NodeDecisions):
    """All of one database."""

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
        has_limit = dialect is Dialect.MYSQL and bool(run(connection, f"SHOW VARIABLES LIKE '{LIMIT}'"))
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
        gone = [f"DELETE FROM {self.schema}xaqueue_{table}" for table in ("nodes", "signs") if is_new]
        self._change(connection, f"UPDATE {self.schema}xaqueue_id SET {fresh}place = '{place}' WHERE one = 1", *gone)

    # Of a node itself

    def register(self, connection: Any, node: str, participants: str) -> None:
        """The node may decide from here on; its first sign is 1."""
        self._change(
            connection,
            f"INSERT INTO {self.schema}xaqueue_nodes (node) VALUES ('{node}')",
            f"INSERT INTO {self.schema}xaqueue_signs (node, n, at, participants) "
            f"VALUES ('{node}', 1, {self._now_us}, '{participants}')",
        )

    def sign(self, connection: Any, node: str, last: int, participants: str) -> bool:
        """Its next sign of life, behind this one. False: that is not its last one, or it may decide no more."""
        return self._change(
            connection,
            f"UPDATE {self.schema}xaqueue_signs SET n = n + 1, at = {self._now_us}, participants = "
            f"'{participants}' WHERE node = '{node}' AND n = {last} AND EXISTS (SELECT 1 FROM "
            f"{self.schema}xaqueue_nodes WHERE node = '{node}')",
        )

    def close(self, connection: Any, node: str) -> None:
        """Nothing is left of the node: nobody will ask for it."""
        self._change(
            connection,
            f"DELETE FROM {self.table} WHERE gtrid LIKE 'XAQ2{self.database}{node}%' AND decision = 'rollback'",
            f"DELETE FROM {self.schema}xaqueue_nodes WHERE node = '{node}'",
            f"DELETE FROM {self.schema}xaqueue_signs WHERE node = '{node}'",
        )

    # Of others

    def signs(self, connection: Any) -> dict[str, int]:
        """The last sign of each node that may decide."""
        found = read(
            connection,
            f"SELECT s.node, s.n FROM {self.schema}xaqueue_signs s JOIN {self.schema}xaqueue_nodes n "
            "ON n.node = s.node",
        )
        return {str(node): int(n) for node, n in found}

    def all(self, connection: Any) -> list[NodeRow]:
        """Those that may decide, by their names, and behind them those that are ended, in the order of their ends."""
        node = f"substr(d.gtrid, {NODE_AT}, {NODE_LENGTH})"
        counted = (
            f"(SELECT COUNT(*) FROM {self.table} d WHERE d.gtrid LIKE 'XAQ2{self.database}%' "
            f"AND d.decision = 'commit' AND {node} = n.node)"
        )
        signed = f"LEFT JOIN {self.schema}xaqueue_signs s ON s.node = n.node"
        live = run(
            connection,
            f"SELECT n.node, s.n, s.at, 0, s.participants, {counted} FROM {self.schema}xaqueue_nodes n {signed} "
            "ORDER BY n.node",
        )
        ended = read(
            connection,
            f"SELECT n.node, s.n, s.at, n.at, n.participants, {counted} FROM {self.schema}xaqueue_ended n {signed} "
            "ORDER BY n.at, n.node",
        )
        return [
            NodeRow(str(node), int(n or 0), int(at or 0), int(ended_at), unquote(str(names or "")), int(count))
            for node, n, at, ended_at, names, count in (*live, *ended)
        ]

    def decided(self, connection: Any, gtrid: bytes = b"") -> list[Standing]:
        """Decisions to commit that not all have carried out, or that nobody has struck yet; or this one, if it is."""
        which = f"= '{last_resource.checked(gtrid)}'" if gtrid else f"LIKE 'XAQ2{self.database}%'"
        found = read(
            connection,
            f"SELECT gtrid, participants FROM {self.table} WHERE gtrid {which} AND decision = 'commit' ORDER BY gtrid",
        )
        return [Standing(str(key), str(names)) for key, names in found]

    def own(self, connection: Any, node: str) -> list[DecisionRow]:
        """All decisions to commit of this node."""
        return self._select(connection, f"gtrid LIKE 'XAQ2{self.database}{node}%' AND decision = 'commit'")

    def clock_us(self, connection: Any) -> int:
        """The database's."""
        ((now,),) = read(connection, f"SELECT {self._now_us}")
        return int(now)

    def silent(self, connection: Any, age_s: float) -> list[str]:
        """Nodes whose last sign is so old, by the database's clock."""
        found = read(
            connection,
            f"SELECT s.node FROM {self.schema}xaqueue_signs s JOIN {self.schema}xaqueue_nodes n ON n.node = s.node "
            f"WHERE s.at < {self._now_us} - {int(age_s * 1e6)}",
        )
        return [str(node) for (node,) in found]

    def still(self, connection: Any, age_s: int) -> list[tuple[int, int]]:
        """Sessions of MySQL and MariaDB that have stood still for so long in a transaction that has written, which may
        keep its node from being ended; and for how many seconds. Only a role with the right PROCESS may ask."""
        if self.dialect is not Dialect.MYSQL:
            return []
        found = read(
            connection,
            "SELECT p.id, p.time FROM information_schema.innodb_trx t JOIN information_schema.processlist p "
            "ON p.id = t.trx_mysql_thread_id WHERE p.db = DATABASE() AND p.command = 'Sleep' "
            f"AND t.trx_rows_modified > 0 AND p.time >= {age_s} ORDER BY p.id",
        )
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
            return self._change(connection, statement)  # who stands still behind it is ended by the database
        connection.rollback()
        connection.autocommit = True
        try:
            return bool(run(connection, statement))
        finally:
            connection.autocommit = False

    def state_of(self, connection: Any, gtrid: bytes) -> BranchState:
        """What is known of this transaction, at one moment."""
        key = last_resource.checked(gtrid)
        node = node_of(key)
        decided = f"(SELECT decision FROM {self.table} WHERE gtrid = '{key}')"
        if self.is_whole:  # who did otherwise lists its branch until that is forgotten, and the row goes before
            noted = f"(SELECT MIN(decision) FROM {self.schema}xaqueue_heuristics WHERE gtrid = '{key}')"
            decided = f"COALESCE({decided}, {noted})"
        ((word, sign, nodes, ended),) = read(
            connection,
            f"SELECT {decided}, "
            f"(SELECT n FROM {self.schema}xaqueue_signs WHERE node = '{node}'), "
            f"(SELECT COUNT(*) FROM {self.schema}xaqueue_nodes WHERE node = '{node}'), "
            f"(SELECT COUNT(*) FROM {self.schema}xaqueue_ended WHERE node = '{node}')",
        )
        return BranchState(_WORDS.get(word), int(sign or 0), bool(nodes), bool(ended))

    # What participants did by themselves

    def heuristics(self, connection: Any) -> list[Heuristic]:
        """Those that nobody has forgotten, oldest first."""
        if not self.is_whole:
            return []
        found = read(
            connection,
            f"SELECT gtrid, participant, decision, outcome, at, detail FROM {self.schema}xaqueue_heuristics "
            f"WHERE gtrid LIKE 'XAQ2{self.database}%' ORDER BY at, gtrid, participant",
        )
        return [
            Heuristic(key.encode(), _told(name), Outcome(word), ParticipantOutcome(did), int(at), _told(detail))
            for key, name, word, did, at, detail in found
        ]

    def note(self, connection: Any, noted: Heuristic) -> None:
        """In the place of what was noted of that participant before."""
        key, name = last_resource.checked(noted.gtrid), _quoted(noted.participant)
        table = f"{self.schema}xaqueue_heuristics"
        self._change(
            connection,
            f"DELETE FROM {table} WHERE gtrid = '{key}' AND participant = '{name}'",
            f"INSERT INTO {table} (gtrid, participant, decision, outcome, at, detail) VALUES ('{key}', '{name}', "
            f"'{noted.decision.value}', '{noted.outcome.value}', {noted.when_us}, '{_quoted(noted.detail)}')",
        )

    def forget(self, connection: Any, gtrid: bytes) -> None:
        """All that was noted of this transaction."""
        key = last_resource.checked(gtrid)
        self._change(connection, f"DELETE FROM {self.schema}xaqueue_heuristics WHERE gtrid = '{key}'")

    # What ended nodes have left

    def of_ended(self, connection: Any, identity: str) -> list[Standing]:
        """Decisions to commit of nodes that are ended, which this participant has to have carried out, and those that
        all have."""
        found = read(
            connection,
            f"SELECT d.gtrid, d.participants, d.carried FROM {self.table} d JOIN {self.schema}xaqueue_ended e "
            f"ON e.node = substr(d.gtrid, {NODE_AT}, {NODE_LENGTH}) "
            f"WHERE d.gtrid LIKE 'XAQ2{self.database}%' AND d.decision = 'commit'",
        )
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
        lives = f"EXISTS (SELECT 1 FROM {self.schema}xaqueue_nodes WHERE node = '{node_of(standing.key)}')"
        with durable(connection, self.dialect, LAZY):  # a crash may undo it
            if left or not run(connection, f"DELETE FROM {self.table} {where} AND NOT {lives}"):
                run(connection, f"UPDATE {self.table} SET participants = '{left}' {where}")

    def tombstones(self, connection: Any, age_s: float) -> list[Standing]:
        """Of nodes that were ended so long ago, and have no decision to commit any more."""
        found = read(
            connection,
            f"SELECT node, participants FROM {self.schema}xaqueue_ended e WHERE at < {self._now_us} - "
            f"{int(age_s * 1e6)} AND NOT EXISTS (SELECT 1 FROM {self.table} d WHERE decision = "
            f"'commit' AND substr(d.gtrid, {NODE_AT}, {NODE_LENGTH}) = e.node AND d.gtrid LIKE "
            f"'XAQ2{self.database}%')",
        )
        return [Standing(str(node), str(names)) for node, names in found]

    def bury(self, connection: Any, standing: Standing, identity: str) -> None:
        """That participant has no branch of the node: the last one takes all that is left of it along."""
        left, node = standing.without(identity), standing.key
        where = f"WHERE node = '{node}' AND participants = '{standing.participants}'"
        if left:
            update = f"UPDATE {self.schema}xaqueue_ended SET participants = '{left}' {where}"
            self._change(connection, update, commit=LAZY)
            return
        with durable(connection, self.dialect):
            if run(connection, f"DELETE FROM {self.schema}xaqueue_ended {where}"):
                run(connection, f"DELETE FROM {self.schema}xaqueue_signs WHERE node = '{node}'")
                run(
                    connection,
                    f"DELETE FROM {self.table} WHERE gtrid LIKE 'XAQ2{self.database}{node}%'",
                )

    def _change(self, connection: Any, *statements: str, commit: str = SYNCED) -> bool:
        """In one transaction of their own. Returns whether the last one has changed anything."""
        with durable(connection, self.dialect, commit):
            changed = [run(connection, statement) for statement in statements]
        return bool(changed[-1])

    @property
    def _now_us(self) -> str:
        return NOW_US[self.dialect]


def _whose(connection: Any, dialect: Dialect, schema: str) -> tuple[str, str]:
    """The database's id, and why nothing of others may be touched in it."""
    database, place = id_of(connection, dialect, schema)
    if is_same(place, place_of(connection, dialect)):
        return database, ""
    return database, "it is a copy of the database that it says it is: see `xaqueue tm claim`, and its --new-id"


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
