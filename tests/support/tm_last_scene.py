"""A last participant that has no two phases: a small database of files, and banks that do have them."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Any

from support.forgetful import Crashed, Tree
from support.tm_world import Bank, Rig, World
from xaqueue.tm import last_resource
from xaqueue.tm.coordinator import TraceStep as Step
from xaqueue.xa import Outcome

FILES = "files"


class Lost(sqlite3.OperationalError):
    """The answer to a commit, of a database that is somewhere else."""


class Fickle(sqlite3.Connection):
    """Loses its connection in a commit, before or after it was carried out."""

    faults: list[str]

    def commit(self) -> None:
        fault = self.faults.pop(0) if self.faults else ""
        if fault == "request lost":
            super().rollback()
        else:
            super().commit()
        if fault:
            raise Lost(fault)


class Scene:
    """Participants a and b, and a database of sqlite3."""

    def __init__(self, place: Path) -> None:
        self.world = World()
        self.a, self.b = (Bank(self.world, name) for name in "ab")
        self.fs = Tree({}).open()
        self.path = place / "files.db"
        self.faults: list[str] = []
        self.is_down = False
        self.level: Any = ""
        """How the database's transactions begin, where it is not as the transaction manager likes it."""
        with contextlib.closing(sqlite3.connect(self.path)) as connection:
            connection.execute("create table files (name text primary key)")
        self.gtrids: list[bytes] = []
        self.opened: list[sqlite3.Connection] = []

    def connect(self) -> sqlite3.Connection:
        if self.is_down:
            raise sqlite3.OperationalError("unable to open database file")
        factory = type("Fickle", (Fickle,), {"faults": self.faults})
        connection: sqlite3.Connection = sqlite3.connect(
            self.path, timeout=0.05, factory=factory, check_same_thread=False, isolation_level=self.level
        )
        connection.execute("pragma foreign_keys = on")
        self.opened.append(connection)
        return connection

    def boot(self, die_at: tuple[Step, str] | None = None, *, last: str | None = FILES) -> Rig:
        self.world.revive()
        for connection in self.opened:
            connection.close()  # with the process they belonged to
        participants: dict[str, Any] = {"a": self.a.connect, "b": self.b.connect}
        if last:
            participants[FILES] = self.connect

        def on_step(step: Step, gtrid: bytes, name: str) -> None:
            self.world.point()
            self.gtrids.append(gtrid)
            if (step, name) == die_at:
                self.world.alive = False
                raise Crashed(step)

        return Rig(self.fs, participants, last=last, on_step=on_step)

    def transact(self, rig: Rig, name: str, *others: str) -> Outcome | None:
        with rig.transaction() as tx:
            for other in others:
                tx[other].work()
            tx[FILES].execute("insert into files values (?)", (name,))
        return tx.outcome

    def die(self, step: Step, participant: str = "") -> bytes:
        with contextlib.suppress(Crashed):
            self.transact(self.boot((step, participant)), "one", "a", "b")
        return self.gtrids[-1]

    def select(self, statement: str) -> list[Any]:
        with contextlib.closing(sqlite3.connect(self.path)) as connection:
            return [row[0] for row in connection.execute(statement)]

    @property
    def files(self) -> list[str]:
        return self.select("select name from files order by name")

    @property
    def rows(self) -> list[str]:
        if not self.select(f"select name from sqlite_master where name = '{last_resource.TABLE}'"):
            return []
        return self.select(f"select decision from {last_resource.TABLE} where decision <> 'node' order by gtrid")

    def states(self) -> set[str]:
        return {state for bank in (self.a, self.b) for state in bank.branches.values()}
