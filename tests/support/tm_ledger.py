"""A database in memory whose own commit decides: it understands the statements on its rows, and nothing else.

A commit may be lost before it arrives, after it, or on its way: then it lands later, and holds its key until then.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from support.tm_world import OperationalError, World
from xaqueue.tm import last_resource

TABLE = last_resource.TABLE
_INSERT = re.compile(rf"INSERT INTO {TABLE} \(gtrid, decision, participants\) VALUES \('(.*)', '(.*)', '(.*)'\)")
_CARRY = f"INSERT INTO {TABLE} (gtrid, decision, participants, carried)"
_UPDATE = re.compile(
    rf"UPDATE {TABLE} SET participants = .*?'([^']*)'.* WHERE gtrid = '(\w+)'(?: AND participants = '(.*)')?"
)
_SELECT = re.compile(rf"SELECT (.*) FROM {TABLE} WHERE gtrid (=|LIKE) '(.*?)%?'(.*)")
_CARRIED = re.compile(
    rf"SELECT (.*) FROM {TABLE} WHERE gtrid = '(.*)' OR \(gtrid LIKE '(.*)%' AND carried IS NOT NULL\)"
)
_DELETE = re.compile(rf"DELETE FROM {TABLE} WHERE gtrid IN \((.*)\)")
Row = tuple[str, str, str, bytes | None]


NAMES = ("gtrid", "decision", "participants", "carried")


def _columns(names: str, rows: Iterable[Row]) -> list[tuple[Any, ...]]:
    columns = [NAMES.index(name) if name in NAMES else 0 for name in names.split(", ")]
    return [tuple(row[column] for column in columns) for row in sorted(rows, key=lambda row: row[0])]


class IntegrityError(Exception):
    """PEP 249's, of this driver."""


@dataclass
class Work:
    """Of one transaction of one session."""

    rows: dict[str, Row] = field(default_factory=dict)
    removed: set[str] = field(default_factory=set)
    done: list[str] = field(default_factory=list)
    """The gtrids of the application's own work."""
    life: str = ""
    """The key of the row that it has locked, shared."""


@dataclass
class Ledger:
    """fault_of: chooses what goes wrong with a commit that decides."""

    world: World
    has_two_phases: bool = True
    can_carry: bool = False
    has_table: bool = False
    rows: dict[str, Row] = field(default_factory=dict)
    done: set[str] = field(default_factory=set)
    on_their_way: list[Work] = field(default_factory=list)
    is_down: bool = False
    is_down_next: bool = False
    """From the end of the next commit on that goes wrong."""
    fault_of: Callable[[], str] = str

    def connect(self) -> Any:
        if self.is_down:
            raise OperationalError("the ledger is down")
        if self.can_carry:
            return Carrying(self)
        return TwoPhased(self) if self.has_two_phases else Plain(self)

    def apply(self, work: Work) -> None:
        self.rows |= work.rows
        for key in work.removed:
            self.rows.pop(key, None)
        self.done |= set(work.done)

    def land(self, key: str = "") -> None:
        """What is on its way arrives; only what holds this key, or its lock, where one is given."""
        for work in [work for work in self.on_their_way if key in ("", work.life) or key in work.rows]:
            self.on_their_way.remove(work)
            self.apply(work)

    def decisions(self) -> list[str]:
        return [row[1] for row in self.rows.values() if row[1] in ("commit", "rollback")]


class Plain:
    """PEP 249's connection and its cursor in one."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.closed = False
        self._work = Work()
        self._found: list[Any] = []
        self.rowcount = 0

    def work(self, gtrid: bytes) -> None:
        self._work.done.append(gtrid.decode())

    def cursor(self) -> Plain:
        return self

    def execute(self, statement: str, values: tuple[Any, ...] = ()) -> None:
        self._call()
        self.rowcount = 1
        if statement.startswith("CREATE TABLE"):
            self.ledger.has_table = True
        elif statement.startswith("PRAGMA"):
            self._found = [(2,)]
        elif not self.ledger.has_table:
            raise OperationalError(f"no such table: {TABLE}")
        elif found := _INSERT.match(statement):
            self._insert((found[1], found[2], found[3], None))
        elif statement.startswith(_CARRY):
            *row, carried, key, life = values
            known = self.ledger.rows.get(key)
            self.rowcount = 0
            if known is not None and known[2] == life:
                self._work.life = key
                self._insert((row[0], row[1], row[2], carried))
                self.rowcount = 1
        elif found := _UPDATE.match(statement):
            self.ledger.land(found[2])
            before = self.ledger.rows.get(found[2])
            self.rowcount = int(before is not None and found[3] in (None, before[2]))
            if before is not None and self.rowcount:
                self._work.rows[found[2]] = (before[0], before[1], found[1], None)
        elif found := _CARRIED.match(statement):
            rows = [
                row
                for key, row in self.ledger.rows.items()
                if key == found[2] or (key.startswith(found[3]) and row[3] is not None)
            ]
            self._found = _columns(found[1], rows)
        elif found := _SELECT.match(statement):
            wide = found[2] == "LIKE"
            rows = [
                row for key, row in self.ledger.rows.items() if key == found[3] or (wide and key.startswith(found[3]))
            ]
            if "carried IS NOT NULL" in found[4]:
                rows = [row for row in rows if row[3] is not None]
            self._found = _columns(found[1], rows)
        else:
            gone = _DELETE.match(statement)
            assert gone is not None, statement
            keys = {key.strip("'") for key in gone[1].split(", ")} & self.ledger.rows.keys()
            self._work.removed |= keys
            self.rowcount = len(keys)
        self.ledger.world.point()

    def _insert(self, row: Row) -> None:
        self.ledger.land(row[0])
        if row[0] in self.ledger.rows:
            raise IntegrityError(row[0])
        self._work.rows[row[0]] = row

    def fetchone(self) -> Any:
        return self._found[0] if self._found else None

    def fetchall(self) -> list[Any]:
        return self._found

    def commit(self) -> None:
        self._call()
        work, self._work = self._work, Work()
        fault = self.ledger.fault_of() if work.done and work.rows else ""
        if fault == "on its way":
            self.ledger.on_their_way.append(work)
        elif fault == "refused":
            raise IntegrityError("a constraint that is checked at the end")
        elif fault != "request lost":
            self.ledger.apply(work)
        self.ledger.world.point()
        if fault:
            self.ledger.is_down = self.ledger.is_down_next
            self.closed = True
            raise OperationalError(f"connection to the ledger lost: {fault}")

    def rollback(self) -> None:
        self._call()
        self._work = Work()

    def close(self) -> None:
        """Of a connection and of a cursor: what is open is rolled back by the next use of neither."""
        self.ledger.world.point()

    def _call(self) -> None:
        self.ledger.world.point()
        if self.closed or self.ledger.is_down:
            self.closed = True
            raise OperationalError("connection to the ledger lost")


class Carrying(Plain):
    """Of a database that may carry: to the transaction manager it is SQLite."""

    __module__ = "sqlite3.fake"

    def execute(self, statement: str, values: tuple[Any, ...] = ()) -> Carrying:  # type: ignore[override]
        super().execute(statement, values)
        return self


class TwoPhased(Plain):
    """It could prepare, and is not asked to."""

    def xid(self, format_id: int, gtrid: str, bqual: str) -> tuple[int, str, str]:
        return format_id, gtrid, bqual

    def tpc_begin(self, xid: object) -> None:
        self._call()

    def tpc_commit(self) -> None:
        self.commit()

    def tpc_rollback(self) -> None:
        self.rollback()

    def tpc_recover(self) -> list[object]:
        self._call()
        return []
