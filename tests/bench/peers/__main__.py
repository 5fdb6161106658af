"""Durable messages a second beside what people take instead: cd tests && python -m bench.peers --help

xaqueue, Redis, NATS, RabbitMQ, PostgreSQL and SQLite, each with a sync on disk before its answer; those installed: the
servers are started by this, over files of their own. Each transaction has one message, or a hundred; 100/10 puts a
hundred in a transaction, and takes ten. A client is a process, where a queue can be used by several, else a thread. All
take turns, round by round; figures are medians.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import NamedTuple

from bench.engine import Figures, Report, figures, fresh
from bench.peers import commits, opener
from bench.peers.peer import Operation, Peer, ThreadClients, Wanted
from bench.peers.process_clients import ProcessClients
from bench.rates import Rate, aligned, busy_share
from xaqueue.errors import OperationalError
from xaqueue.tools import environment

SERVED, EMBEDDED = "xaqueue, served", "xaqueue, embedded"
QUEUES = {
    SERVED: ("bench.peers.commits", "open_served"),
    EMBEDDED: ("bench.peers.commits", "open_embedded"),
    "Redis": ("redis", ""),
    "NATS JetStream": ("nats", ""),
    "RabbitMQ, classic": ("rabbitmq", ""),
    "RabbitMQ, quorum": ("bench.peers.rabbitmq", "open_quorum"),
    "PostgreSQL, a table": ("postgres-table", ""),
    "SQLite, a table": ("sqlite", ""),
}
"""What opens each: a module's function, or a name of ``bench.peers.PEERS``."""
LEVELS = {f"xaqueue, {level}": ("bench.peers.commits", call) for level, call in commits.LEVELS.items()}
"""Levels of hardening, embedded; measured where they are asked for."""
WORDS = {"enqueue": "produce", "dequeue": "consume"}


Messages = int | str
"""In a transaction: put and taken, or as 100/10 where they differ."""


def counts(messages: Messages) -> dict[Operation, int]:
    put, _, taken = str(messages).partition("/")
    return {"enqueue": int(put), "dequeue": int(taken or put)}


class Plan(NamedTuple):
    directory: Path
    queues: Sequence[str] = tuple(QUEUES)
    clients: tuple[int, ...] = (1, 8)
    messages: tuple[Messages, ...] = (1, 100)
    size_bytes: int = 1024
    seconds: float = 2.0
    rounds: int = 5
    dsn: str | None = None
    """Of a PostgreSQL that runs already."""


Key = tuple[str, int, str, Messages]
"""Queue, clients, operation, messages a transaction."""


class Peers:
    """What is measured, and what it came to."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.taken: dict[Key, list[Rate]] = {}
        self.server_us: dict[Key, list[float]] = {}
        """The server's processor time for a transaction."""
        self.durability: dict[str, str] = {}
        self.missing: dict[str, str] = {}
        self.busy: list[float] = []

    def run(self, report: Report) -> None:
        with tempfile.TemporaryDirectory(prefix="xaqueue-bench-", dir=self.plan.directory) as name:
            scratch = Path(name)
            scratch.chmod(0o711)  # a server that refuses to run as root must get to its files
            for number in range(1, self.plan.rounds + 1):
                self.busy.append(busy_share())
                for queue in self.plan.queues:
                    if queue not in self.missing:
                        self._round(queue, scratch, lambda text, number=number: report(f"round {number}: {text}"))  # type: ignore[misc]

    def _round(self, queue: str, scratch: Path, report: Report) -> None:
        try:
            with fresh(scratch) as root, opened(queue, root, Wanted(max(self.plan.clients), self.plan.dsn)) as peer:
                self.durability[queue] = peer.durability
                for clients in self.plan.clients:
                    self._measure(queue, peer, clients, report)
        except OperationalError as why:
            if queue in self.durability:
                raise
            self.missing[queue] = str(why)
            report(f"{queue}: {why}")

    def _measure(self, queue: str, peer: Peer, clients: int, report: Report) -> None:
        body = os.urandom(self.plan.size_bytes)
        with closing(ProcessClients(peer, clients) if peer.processes else ThreadClients(peer)) as ways:
            for messages in self.plan.messages:
                for operation, count in counts(messages).items():
                    key, before = (queue, clients, WORDS[operation], messages), peer.server_cpu_s() or 0.0
                    rate = ways.rate(operation, clients, count, body, self.plan.seconds)
                    used_us = ((peer.server_cpu_s() or 0.0) - before) * 1e6
                    self.taken.setdefault(key, []).append(rate)
                    self.server_us.setdefault(key, []).append(used_us / max(rate.operations, 1))
                    report(f"{queue}, {clients} clients, {messages} each, {WORDS[operation]}: {rate.per_s:,.0f}/s")
                peer.clear()

    def result(self) -> Figures:
        plan = self.plan
        options = {"threads": plan.clients, "size_bytes": plan.size_bytes, "messages": plan.messages}
        return {
            "environment": {
                **environment.look(plan.directory).as_dict(),
                "busy_share": self.busy,
                "date": time.strftime("%Y-%m-%d"),
            },
            "options": {**options, "seconds": plan.seconds, "rounds": plan.rounds},
            "results": [
                {
                    **dict(zip(("way", "threads", "operation", "messages"), key, strict=True)),
                    **figures(rates),
                    "server_cpu_us": median(self.server_us[key]),
                }
                for key, rates in self.taken.items()
            ],
            "durability": self.durability,
            "missing": self.missing,
        }


@contextmanager
def opened(queue: str, scratch: Path, wanted: Wanted) -> Iterator[Peer]:
    module, call = {**QUEUES, **LEVELS}[queue]
    open_peer: Callable[[Path, Wanted], Peer] = getattr(import_module(module), call) if call else opener(module)
    peer = open_peer(scratch, wanted)
    try:
        yield peer
    finally:
        peer.close()


def table(result: Figures, messages: Messages) -> tuple[list[str], list[list[str]]]:
    """Headings and rows: messages a second of each queue, with so many in a transaction."""
    return _table(result, messages, "messages a second", lambda row, count: f"{row['per_s'] * count:,.0f}")


def _table(
    result: Figures, messages: Messages, title: str, cell: Callable[[Figures, int], str]
) -> tuple[list[str], list[list[str]]]:
    sizes = {WORDS[operation]: count for operation, count in counts(messages).items()}
    columns = [(operation, clients) for operation in sizes for clients in result["options"]["threads"]]
    found = {
        (row["way"], row["operation"], row["threads"]): cell(row, sizes[row["operation"]])
        for row in result["results"]
        if row["messages"] == messages
    }
    rows = [[queue, *(found[queue, *column] for column in columns)] for queue in dict.fromkeys(key[0] for key in found)]
    rows += [[queue, *["not measured"] * len(columns)] for queue in result["missing"]]
    return [title, *(f"{operation} x{clients}" for operation, clients in columns)], rows


def _cpu(row: Figures, count: int) -> str:
    return f"{row['cpu_us'] / count:.1f}, {row['server_cpu_us'] / count:.1f}"


def lines(result: Figures) -> Iterator[str]:
    for messages in result["options"]["messages"]:
        yield from ("", f"{messages} in a transaction", *aligned(*table(result, messages)))
        yield from ("", *aligned(*_table(result, messages, "CPU us a message: client, server", _cpu)))
    yield ""
    yield from (f"{queue}: {why}" for queue, why in {**result["durability"], **result["missing"]}.items())


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


def _messages(text: str) -> tuple[Messages, ...]:
    return tuple(one if "/" in one else int(one) for one in text.split(","))


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()), help="on a disk")
    parser.add_argument(
        "--queue", action="append", choices=[*QUEUES, *LEVELS], help="all but those of a level without it"
    )
    parser.add_argument("--clients", default="1,8", metavar="N,N")
    parser.add_argument("--messages", default="1,100", metavar="N,N/N", help="in a transaction")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--postgres-dsn", help="of one that runs already; without it one is started")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(words)
    plan = Plan(
        *(given.directory, given.queue or tuple(QUEUES), _numbers(given.clients), _messages(given.messages)),
        seconds=given.seconds,
        rounds=given.rounds,
        dsn=given.postgres_dsn,
    )
    peers = Peers(plan)
    for line in environment.look(plan.directory).lines():
        print(line)
    peers.run(lambda text: print(text, file=sys.stderr, flush=True))
    result = peers.result()
    for line in lines(result):
        print(line)
    if given.json is not None:
        given.json.write_text(json.dumps(result, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
