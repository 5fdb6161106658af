"""The decision of a transaction with a last resource is a row in that resource's own database.

The row is written in the transaction that it decides on, so that both commit or neither does. To learn what was
decided, the opposite is tried: a row that says rollback, under the same key. Either it goes in, and then a commit that
is still on its way can never succeed, or the key is taken, and the row that is there tells. A row of its node says
that this is the database in which a transaction manager decides, and not another one or an old copy.

Elsewhere than in PostgreSQL only literals of our own making go into the statements: drivers do not agree on how
parameters are written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import quote, unquote
from zlib import crc32

from xaqueue.carried import CarriedChange, Life, Pruned, decode
from xaqueue.errors import InvalidArgument, OperationalError
from xaqueue.tm.driver import Dialect, dialect_of, is_a, read, run, sync_fully
from xaqueue.tm.gtrid import TEXT, Gtrid
from xaqueue.tm.guard import IS_MARKED, is_marked
from xaqueue.xa import Outcome

TABLE = "xaqueue_decisions"
NAMES_LENGTH = 2000
"""Of the names of those that prepared, as the row has them, at most."""
_CREATE = (
    f"CREATE TABLE IF NOT EXISTS {TABLE} (gtrid VARCHAR(64) NOT NULL PRIMARY KEY, decision VARCHAR(16) NOT NULL, "
    f"participants VARCHAR({NAMES_LENGTH}) NOT NULL, carried "
)
_INSERT = f"INSERT INTO {TABLE} (gtrid, decision, participants)"
AT_A_TIME = 1000
"""Rows that one statement removes, at most."""
_LIFE = "life"
_PRUNED = "pruned"
_WORDS = {Outcome.COMMITTED: "commit", Outcome.ROLLED_BACK: "rollback"}
OUTCOMES = {word: outcome for outcome, word in _WORDS.items()}
SYNCED = (
    "set_config('synchronous_commit', CASE WHEN current_setting('synchronous_commit') IN ('off', 'local') THEN 'on' "
    "ELSE current_setting('synchronous_commit') END, true)"
)
"""A commit of PostgreSQL waits for its disk, and for its standbys."""
_DURABLE = (
    " FROM (SELECT set_config('synchronous_commit', CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on' "
    "ELSE current_setting('synchronous_commit') END, true)) AS durable"
)
"""PostgreSQL's commit of this transaction waits for its disk, whatever the database, the role or the pool has set."""
_CARRY = f"{_INSERT[:-1]}, carried) SELECT ?, ?, ?, ? FROM {TABLE} WHERE gtrid = ? AND participants = ?"
_CARRY_POSTGRESQL = (
    f"{_INSERT[:-1]}, carried) SELECT %s, %s, %s, %s{_DURABLE}, "
    f"(SELECT 1 FROM {TABLE} WHERE gtrid = %s AND participants = %s FOR SHARE) AS life WHERE {IS_MARKED}"
)
NOTHING: Mapping[bytes, tuple[str, str, int]] = MappingProxyType({})
"""Of decisions that carry no change."""
LOCK_S = 10
"""So long the row of a space's life is waited for, while others commit what they carry; then it is tried again."""


class RowGone(OperationalError):
    """Others have taken this process for dead: where no row is there any more, they may have done what it said."""


class LifeOver(OperationalError):
    """The space was opened anew, so that what is carried for its last life is refused."""


class DecisionRow(NamedTuple):
    """What stands there of one transaction. participants: those that prepared, where it was committed."""

    gtrid: bytes
    outcome: Outcome
    participants: tuple[str, ...] = ()
    carried: bytes = b""
    """What the space is to do, where the row carries its change; see ``xaqueue.carried``."""
    spaces: Mapping[str, str] = MappingProxyType({})
    """By participant, the id of the space that voted."""


def create_statement(dialect: Dialect) -> str:
    """What may be made by hand for a role that may make no table: it needs SELECT, INSERT, UPDATE and DELETE on it."""
    kind = "BYTEA" if dialect is Dialect.POSTGRESQL else "BLOB"
    return f"{_CREATE}{kind})" + (" ENGINE=InnoDB" if dialect is Dialect.MYSQL else "")


def names_of(participants: Iterable[str], spaces: Mapping[str, str] = MappingProxyType({})) -> str:
    """As a row has them, each with its space: nothing in it means anything to a database."""
    if not spaces:
        return " ".join(map(_quoted, participants))
    return " ".join(_quoted(name) + (f"={_quoted(spaces[name])}" if name in spaces else "") for name in participants)


@lru_cache(maxsize=1024)
def _quoted(name: str) -> str:
    return quote(name, safe="")


class DecisionRows:
    """The rows of one transaction manager's decisions, where they stand in a database."""

    @property
    def table(self) -> str:
        return TABLE

    @property
    def _lock(self) -> str:
        """Of a row that is there, behind a SELECT: waits for who is about to write or remove it."""
        return ""

    def make_ready(self, connection: Any, node: str, *, is_known: bool) -> None:
        """There is a table, with the row of this node, durably, in a transaction of their own; some databases commit
        before they create.

        is_known: decisions of this node may stand here, so that a database without its row is the wrong one. Who may
        not create a table uses the one that is there; of two who make it at once PostgreSQL refuses one. Raises
        OperationalError for the wrong database, InvalidArgument for one whose commits are not durable, and what the
        driver raises.
        """
        dialect = dialect_of(connection)
        if dialect is Dialect.MYSQL:
            check_mysql(connection)
        elif dialect is Dialect.SQLITE:
            sync_fully(connection)
        trouble, create = _trouble_of_mark(connection, node), create_statement(dialect)
        if not trouble:
            return
        if is_known:
            raise OperationalError(
                f"decisions of this transaction manager stand in {TABLE} of this participant's database, and its row "
                f"XAQ1{node} {trouble}: where it is another database, or an old copy, open the right one. Where the "
                f"decisions are lost for good, run {create}; {_INSERT} VALUES ('XAQ1{node}', 'node', ''); what is in "
                "doubt is rolled back then"
            )
        try:
            run(connection, create)
            connection.commit()
        except Exception as error:
            connection.rollback()
            trouble = f"cannot be made ({error}), run {create}"
        try:
            self._insert(connection, f"XAQ1{node}", "node", "")
            connection.commit()
        except Exception as error:
            connection.rollback()
            if _trouble_of_mark(connection, node):
                raise OperationalError(
                    f"{TABLE}, in which this participant's database is to keep decisions, {trouble}; its role needs to "
                    f"SELECT, INSERT, UPDATE and DELETE there. Or give two_phase=True, where it can prepare ({error})"
                ) from error

    def insert(self, connection: Any, row: DecisionRow, dialect: Dialect) -> bool:
        """Adds the row to the transaction that was marked on this connection, and makes its commit a durable one.

        False, and nothing was added: that transaction is over.
        """
        if dialect is Dialect.POSTGRESQL:
            return self.insert_unmarked(connection, row, f" WHERE {IS_MARKED}")
        return is_marked(connection) and self.insert_unmarked(connection, row)

    def insert_unmarked(self, connection: Any, row: DecisionRow, where: str = "") -> bool:
        names = names_of(row.participants, row.spaces)
        if len(names) > NAMES_LENGTH:  # of some forty: who has voted is what has to be there
            names = names_of(row.participants)
        return self._insert(connection, checked(row.gtrid), _WORDS[row.outcome], names, where)

    def _insert(self, connection: Any, key: str, word: str, names: str, where: str = "") -> bool:
        insert = f"INSERT INTO {self.table} (gtrid, decision, participants)"
        if dialect_of(connection) is Dialect.POSTGRESQL:  # whose drivers agree, and which plans such a statement once
            return bool(run(connection, f"{insert} SELECT %s, %s, %s{_DURABLE}{where}", (key, word, names)))
        run(connection, f"{insert} VALUES ('{key}', '{word}', '{names}')")
        return True

    def resolve(self, connection: Any, gtrid: bytes) -> DecisionRow:
        """What stands there from now on. Raises what the driver raises: try again then."""
        row = DecisionRow(gtrid, Outcome.ROLLED_BACK)
        try:
            self.insert_unmarked(connection, row)
            connection.commit()
        except Exception as error:
            connection.rollback()
            if not is_a(error, "IntegrityError"):
                raise
            return self._there(connection, gtrid, error)
        return row

    def resolve_own(self, connection: Any, gtrid: bytes) -> DecisionRow:
        """Of this transaction manager. Raises RowGone, too."""
        return self.resolve(connection, gtrid)

    def read(self, connection: Any, node: str, epoch: int) -> list[DecisionRow]:
        """All that this node has written before this epoch."""
        found = self._select(connection, f"gtrid LIKE 'XAQ1{node}%'")
        return [row for row in found if (gtrid := Gtrid.parse(row.gtrid)) is not None and gtrid.epoch < epoch]

    def _there(self, connection: Any, gtrid: bytes, taken: Exception) -> DecisionRow:
        """taken: its key is. Raises OperationalError where that is not so any more."""
        found = self._select(connection, f"gtrid = '{checked(gtrid)}'{self._lock}")
        if not found:
            raise OperationalError(
                f"the row of {gtrid.decode()} in {self.table} went while it was read: look again"
            ) from taken
        return found[0]

    def _select(self, connection: Any, where: str) -> list[DecisionRow]:
        """Those that decide."""
        found = read(connection, f"SELECT gtrid, decision, participants, carried FROM {self.table} WHERE {where}")
        return [
            _row(str(gtrid).encode("ascii"), OUTCOMES[decision], str(names), bytes(carried or b""))
            for gtrid, decision, names, carried in found
            if decision in OUTCOMES
        ]

    def delete(
        self, connection: Any, gtrids: Iterable[bytes], carried: Mapping[bytes, tuple[str, str, int]] = NOTHING
    ) -> None:
        """Removes rows that nobody will ask for any more; a crash may bring them back.

        carried: of those that carry a change, its space, carrier and number; what is gone of these is remembered.
        """
        groups: dict[tuple[str, str], list[bytes]] = {}
        for gtrid in gtrids:
            space, carrier, _ = carried.get(gtrid, ("", "", 0))
            groups.setdefault((space, carrier), []).append(gtrid)
        for (space, carrier), left in groups.items():
            while left:
                some, left = left[:AT_A_TIME], left[AT_A_TIME:]
                with self._lazily(connection):
                    keys = ", ".join(f"'{checked(gtrid)}'" for gtrid in some)
                    gone = len(run(connection, f"DELETE FROM {self.table} WHERE gtrid IN ({keys})"))
                    if carrier and gone:
                        self._note_pruned(connection, space, carrier, max(carried[gtrid][2] for gtrid in some), gone)

    @contextmanager
    def _lazily(self, connection: Any) -> Iterator[None]:
        if dialect_of(connection) is Dialect.POSTGRESQL:
            run(connection, "SET LOCAL synchronous_commit = off")
        yield
        connection.commit()

    # Changes that a database carries for a space

    def insert_carried(self, connection: Any, row: DecisionRow, life: Life, dialect: Dialect) -> bool:
        """As ``insert``, with the change, as long as nobody else has opened the space, who waits for this commit then.

        Raises LifeOver where somebody has.
        """
        key, text = life_row(life)
        values = row.gtrid.decode("ascii"), _WORDS[row.outcome], names_of(row.participants), row.carried, key, text
        statement = _CARRY_POSTGRESQL if dialect is Dialect.POSTGRESQL else _CARRY
        is_added = bool(run(connection, statement, values))
        if not is_added and is_marked(connection):
            raise life_over(row)
        return is_added

    def begin_life(self, connection: Any, life: Life) -> None:
        """From here on nothing is carried for this space but by who has it open now; returns once others have ended.

        Raises OperationalError where it is open elsewhere, or an old copy, and what the driver raises.
        """
        (key, text), dialect = life_row(life), dialect_of(connection)
        found = read(connection, f"SELECT participants FROM {self.table} WHERE gtrid = '{key}'")
        before = str(found[0][0]) if found else ""
        if before != text:
            if dialect is Dialect.POSTGRESQL:
                run(connection, "SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
                run(connection, f"SET LOCAL lock_timeout = '{LOCK_S}s'")
                run(connection, f"SELECT {SYNCED}")
            elif dialect is Dialect.SQLITE:
                sync_fully(connection)
            if not before:
                self._insert(connection, key, _LIFE, text)
            elif int(before.split()[0]) >= life.epoch:
                raise OperationalError(
                    f"space {life.space}, opened for the {life.epoch}th time, is an old copy: this database knows of "
                    f"its opening {before.split()[0]}. Find out where the newer one is"
                )
            elif not self._replace(connection, key, before, text):
                raise OperationalError(f"space {life.space} is opened elsewhere just now: look again")
            connection.commit()
        if dialect is Dialect.POSTGRESQL:  # which says so to a role that may not lock the row
            run(connection, f"SELECT 1 FROM {self.table} WHERE gtrid = '{key}' FOR SHARE")
        connection.rollback()

    def _replace(self, connection: Any, key: str, before: str, text: str) -> bool:
        """What stands in a row that is no decision; False: somebody else was faster."""
        where = f"WHERE gtrid = '{key}' AND participants = '{before}'"
        return bool(run(connection, f"UPDATE {self.table} SET participants = '{text}' {where}"))

    def read_carried(self, connection: Any, node: str, space: str, carrier: str) -> tuple[list[bytes], Pruned]:
        """All changes of the space that this carrier has, and what is known of those that are gone, at one moment."""
        key = _pruned_key(space, carrier)
        found = read(
            connection,
            f"SELECT decision, participants, carried FROM {self.table} WHERE gtrid = '{key}' "
            f"OR (gtrid LIKE '{self._named(node)}%' AND carried IS NOT NULL)",
        )
        changes = [bytes(data) for word, _, data in found if word == _WORDS[Outcome.COMMITTED]]
        mine = [data for data in changes if _is_of(decode(data), space, carrier)]
        pruned = [Pruned(*map(int, str(names).split())) for word, names, _ in found if word == _PRUNED]
        return mine, pruned[0] if pruned else Pruned()

    def _named(self, node: str) -> str:
        """What the names of transactions begin with for which a carrier may have changes."""
        return f"XAQ1{node}"

    def _note_pruned(self, connection: Any, space: str, carrier: str, highest: int, count: int) -> None:
        """In the transaction that removes so many rows. Raises OperationalError, or what the driver raises, where
        somebody else does at the same time: try again then."""
        key = _pruned_key(space, carrier)
        found = run(connection, f"SELECT participants FROM {self.table} WHERE gtrid = '{key}'")
        if not found:
            self._insert(connection, key, _PRUNED, f"{highest} {count}")
            return
        before = str(found[0][0])
        known = Pruned(*map(int, before.split()))
        if not self._replace(connection, key, before, f"{max(highest, known.highest)} {known.total + count}"):
            raise OperationalError(f"somebody else removes rows of {carrier} just now: look again")


def life_over(row: DecisionRow) -> LifeOver:
    return LifeOver(
        f"the space of participant {' '.join(row.participants)} was opened anew since its changes were carried "
        "last: do the transaction again"
    )


def _is_of(change: CarriedChange, space: str, carrier: str) -> bool:
    return (change.carrier, change.life.space) == (carrier, space)


def life_row(life: Life) -> tuple[str, str]:
    """The key of the row that says who has its space open, and what it says."""
    return f"XAQS{_id_of(life.space)}", f"{life.epoch} {life.secret}"


def _pruned_key(space: str, carrier: str) -> str:
    """Of a carrier, whose own name is too long for a key."""
    node, _, participant = carrier.partition(".")
    return f"XAQP{_id_of(space)}{node}{crc32(participant.encode()):08x}"


@lru_cache(maxsize=64)
def _id_of(space: str) -> str:
    """As it stands in a key, in which nothing means anything to a database."""
    found = space.replace("-", "")
    if not found.isalnum() or not found.isascii() or len(found) > 32:
        raise OperationalError(f"{space!r} is no id of a space")
    return found


def _trouble_of_mark(connection: Any, node: str) -> str:
    """Empty where the row of the node is there."""
    try:
        found = run(connection, f"SELECT gtrid FROM {TABLE} WHERE gtrid = 'XAQ1{node}'")
    except Exception as error:  # drivers do not agree on its class; if it is anything else, what follows fails of it
        return f"cannot be read ({error})"
    finally:
        connection.rollback()
    return "" if found else "is not there"


def _row(gtrid: bytes, outcome: Outcome, names: str, carried: bytes) -> DecisionRow:
    voters = [tuple(map(unquote, word.split("="))) for word in names.split()]
    spaces = {name: space[0] for name, *space in voters if space}
    return DecisionRow(gtrid, outcome, tuple(name for name, *_ in voters), carried, spaces)


def checked(gtrid: bytes) -> str:
    """As it stands in a key. Raises OperationalError for the name of nobody's transaction."""
    text = gtrid.decode("latin-1")
    if TEXT.fullmatch(text) is None:
        raise OperationalError(f"{gtrid!r} is no gtrid of a transaction manager: remove its row from {TABLE}")
    return text


def check_mysql(connection: Any) -> None:
    """Raises InvalidArgument where its commits are not durable."""
    wanted = {"innodb_flush_log_at_trx_commit": "1"}
    if str(run(connection, "SELECT @@GLOBAL.log_bin")[0][0]) == "1":
        wanted["sync_binlog"] = "1"
    for setting, value in wanted.items():
        found = str(run(connection, f"SELECT @@GLOBAL.{setting}")[0][0])
        if found != value:
            raise InvalidArgument(
                f"{setting} of this participant's database is {found}, so that a power loss may undo what its commit "
                f"decided: SET GLOBAL {setting} = {value}"
            )
