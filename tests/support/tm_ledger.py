"""A database in memory whose own commit decides: it understands the statements on its rows, and nothing else.

A commit may be lost before it arrives, after it, or on its way: then it lands later, and holds its key until then.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from support.tm_world import OperationalError, World
from xaqueue.tm import last_resource

TABLE = last_resource.TABLE
_INSERT = re.compile(rf"INSERT INTO {TABLE} \(gtrid, decision, participants\) VALUES \('(.*)', '(.*)', '(.*)'\)")
_SELECT = re.compile(rf"SELECT (.*) FROM {TABLE} WHERE gtrid (=|LIKE) '(.*?)%?'")
_DELETE = re.compile(rf"DELETE FROM {TABLE} WHERE gtrid IN \((.*)\)")
Row = tuple[str, str, str]


class IntegrityError(Exception):
    """PEP 249's, of this driver."""


@dataclass
class Work:
    """Of one transaction of one session."""

    rows: dict[str, Row] = field(default_factory=dict)
    removed: set[str] = field(default_factory=set)
    done: list[str] = field(default_factory=list)
    """The gtrids of the application's own work."""


@dataclass
class Ledger:
    """fault_of: chooses what goes wrong with a commit that decides."""

    world: World
    has_two_phases: bool = True
    has_table: bool = False
    rows: dict[str, Row] = field(default_factory=dict)
    done: set[str] = field(default_factory=set)
    on_their_way: list[Work] = field(default_factory=list)
    is_down: bool = False
    fault_of: Callable[[], str] = str

    def connect(self) -> Any:
        if self.is_down:
            raise OperationalError("the ledger is down")
        return TwoPhased(self) if self.has_two_phases else Plain(self)

    def apply(self, work: Work) -> None:
        self.rows |= work.rows
        for key in work.removed:
            self.rows.pop(key, None)
        self.done |= set(work.done)

    def land(self, key: str = "") -> None:
        """What is on its way arrives; only what holds this key, where one is given."""
        for work in [work for work in self.on_their_way if not key or key in work.rows]:
            self.on_their_way.remove(work)
            self.apply(work)

    def decisions(self) -> list[str]:
        return [decision for _, decision, _ in self.rows.values() if decision != "node"]


class Plain:
    """PEP 249's connection and its cursor in one."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.closed = False
        self._work = Work()
        self._found: list[Any] = []

    def work(self, gtrid: bytes) -> None:
        self._work.done.append(gtrid.decode())

    def cursor(self) -> Plain:
        return self

    def execute(self, statement: str) -> None:
        self._call()
        if statement.startswith("CREATE TABLE"):
            self.ledger.has_table = True
        elif not self.ledger.has_table:
            raise OperationalError(f"no such table: {TABLE}")
        elif found := _INSERT.match(statement):
            row: Row = (found[1], found[2], found[3])
            self.ledger.land(found[1])
            if found[1] in self.ledger.rows:
                raise IntegrityError(found[1])
            self._work.rows[found[1]] = row
        elif found := _SELECT.match(statement):
            wide = found[2] == "LIKE"
            rows = [
                row for key, row in self.ledger.rows.items() if key == found[3] or (wide and key.startswith(found[3]))
            ]
            self._found = [row[: found[1].count(",") + 1] for row in sorted(rows)]
        else:
            gone = _DELETE.match(statement)
            assert gone is not None, statement
            self._work.removed |= {key.strip("'") for key in gone[1].split(", ")}
        self.ledger.world.point()

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
