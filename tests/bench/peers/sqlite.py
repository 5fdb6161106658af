"""SQLite with a table as the queue: durable, one writer at a time, and no prepare: its transactions have one phase."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path

from bench.peers.peer import Client, Wanted

BUSY_S = 60.0
TABLE = "create table queue (id integer primary key autoincrement, body blob not null)"


def open_peer(scratch: Path, _: Wanted) -> SQLitePeer:
    return SQLitePeer(scratch)


def connect(place: str) -> SQLiteClient:
    return SQLiteClient(place)


class SQLitePeer:
    name = "sqlite"
    durability = (
        f"SQLite {sqlite3.sqlite_version}: one phase, no prepare; journal_mode=WAL, synchronous=FULL: "
        "one sync a commit, survives power loss"
    )
    two_phase = False
    survives_power_loss = True
    processes = True

    def __init__(self, scratch: Path) -> None:
        self.place = str(scratch / "queue.sqlite")
        self._own = connect(self.place)
        self._own.execute(TABLE)

    def connect(self) -> Client:
        return connect(self.place)

    def server_cpu_s(self) -> float:
        return 0.0

    def clear(self) -> None:
        self._own.execute("delete from queue")
        self._own.execute("pragma wal_checkpoint(truncate)")

    def close(self) -> None:
        self._own.close()


class SQLiteClient:
    def __init__(self, place: str) -> None:
        self._connection = sqlite3.connect(place, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
        self.execute("pragma journal_mode=wal")
        self.execute("pragma synchronous=full")

    def execute(self, statement: str) -> None:
        self._connection.execute(statement).fetchall()

    def enqueue(self, bodies: Sequence[bytes]) -> None:
        self.execute("begin immediate")
        self._connection.executemany("insert into queue (body) values (?)", [(body,) for body in bodies])
        self.execute("commit")

    def dequeue(self, messages: int) -> int:
        self.execute("begin immediate")
        taken = self._connection.execute("select id, body from queue order by id limit ?", (messages,)).fetchall()
        self._connection.executemany("delete from queue where id = ?", [(number,) for number, _ in taken])
        self.execute("commit")
        return len(taken)

    def close(self) -> None:
        self._connection.close()
