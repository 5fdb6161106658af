"""xaqueue on a disk of yours, beside bare calls, other queues, a server and checkpoints.

    cd tests && python -m bench.compare --help

All take turns with the engine, round by round in the same directory. A ratio is the median of each
round's own. ``served`` is to those who run the clients one more peer.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

from bench.bare import BareCalls, lines_of
from bench.checkpoints import Compared, with_checkpoints
from bench.engine import BenchPlan, Figures, Report, Round, figures, ratio, run
from bench.peers import PEERS, opened
from bench.peers.peer import OPERATIONS, ClientRate, Operation, Peer, ThreadClients, Wanted
from bench.peers.process_clients import ProcessClients
from bench.rates import aligned
from bench.served import ServerPeer
from xaqueue.errors import InvalidArgument

SERVER = "server, "
HEADINGS = (
    *("queue", "clients", "as", "operation", "two-phase", "per second", "messages/s", "CPU us", "of server"),
    *("p50 us", "p99 us", "p99.9 us", "round trips", "rounds/tx", "steps/round"),
)
TIMES_HEADINGS = ("xaqueue", "clients", "operation", "of", "times")
CHECKPOINT_HEADINGS = (
    *("JOURNAL", "threads", "checkpoints", "per second", "p50 us", "p99 us", "p99.9 us", "most us"),
    *("a checkpoint ms", "a sync us", "p99.9 in syncs more"),
)

Ways = ThreadClients | ProcessClients
Key = tuple[str, int, str, str]
"""Queue, number of clients, in threads or processes, operation."""


class ClientMeasured(NamedTuple):
    """One rate, and where it is of our server, its rounds of group commit and the steps that shared them."""

    rate: ClientRate
    rounds: int
    steps: int


class Comparison:
    """The measurements that join each round, and what they gave."""

    def __init__(self, plan: BenchPlan, *, in_processes: bool) -> None:
        self.plan = plan
        self.in_processes = in_processes
        """One client is measured in a process, too, as it is with a server."""
        self.taken: dict[Key, list[ClientMeasured]] = {}
        self.checkpoints: dict[int, Compared] = {}
        self.peers: dict[str, Peer] = {}

    def peer(self, name: str, dsn: str | None) -> Round:
        def measure(root: Path, report: Report) -> None:
            with opened(name, root, Wanted(max(self.plan.threads), dsn)) as peer:
                self.peers[name] = peer
                for clients in self.plan.threads:
                    with _ways(peer, clients, also_one=self.in_processes) as ways:
                        for way in ways:
                            self._measure(peer, way, clients, OPERATIONS, report)
                            peer.clear()

        return measure

    def server(self, flags: str, clients: int) -> Round:
        """Echoes first: what the socket alone costs."""

        def measure(root: Path, report: Report) -> None:
            with ExitStack() as stack:
                peer = ServerPeer(root, flags)
                stack.callback(peer.close)
                way = ProcessClients(peer, clients)
                stack.callback(way.close)
                self._measure(peer, way, clients, ("echo", *OPERATIONS), report)

        return measure

    def checkpoint(self, threads: int, every_s: float) -> Round:
        def measure(root: Path, report: Report) -> None:
            with_checkpoints(root, threads, self.plan, every_s, self.checkpoints.setdefault(threads, Compared()))
            report(f"JOURNAL, {threads} threads, with and without checkpoints")

        return measure

    def _measure(self, peer: Peer, way: Ways, clients: int, operations: tuple[Operation, ...], report: Report) -> None:
        body = os.urandom(self.plan.size_bytes)
        for operation in operations:
            before, used = peer.server_cpu_s() or 0.0, _used(peer)
            rate = way.rate(operation, clients, self.plan.messages_per_branch, body, self.plan.seconds)
            server_s = (peer.server_cpu_s() or 0.0) - before
            rate = replace(rate, cpu_seconds=rate.cpu_seconds + server_s, server_cpu_seconds=server_s)
            rounds, steps = (now - then for now, then in zip(_used(peer), used, strict=True))
            self.taken.setdefault((peer.name, clients, way.kind, operation), []).append(
                ClientMeasured(rate, rounds, steps)
            )
            report(f"{peer.name}, {clients} in {way.kind}, {operation}: {rate.per_s:,.0f}/s")

    def rows(self) -> list[Figures]:
        return [
            {"queue": name, "clients": clients, "kind": kind, "operation": operation, **_row(measured)}
            for (name, clients, kind, operation), measured in self.taken.items()
        ]

    def times(self, engine: list[Figures]) -> Iterator[Figures]:
        """How many times each peer's rate ours is, embedded and served: the peer in the faster of its ways."""
        ours = [(row["flags"], row["threads"], row["operation"], row["rounds_per_s"]) for row in engine]
        best: dict[tuple[str, int, str], list[float]] = {}
        for (name, clients, _, operation), measured in self.taken.items():
            per_s = [one.rate.per_s for one in measured]
            if name.startswith(SERVER):
                ours.append((name, clients, operation, per_s))
            elif median(per_s) > median(best.get((name, clients, operation), [0.0])):
                best[name, clients, operation] = per_s
        for label, clients, operation, per_s in ours:
            for name in self.peers:
                if (name, clients, operation) in best:
                    times = ratio(per_s, best[name, clients, operation])
                    yield {"xaqueue": label, "clients": clients, "operation": operation, "peer": name, "times": times}


@contextmanager
def _ways(peer: Peer, clients: int, *, also_one: bool) -> Iterator[list[Ways]]:
    """A client in Python competes with the others of its process; where a peer can have several, both are measured."""
    with ExitStack() as stack:
        ways: list[Ways] = [ThreadClients(peer)]
        if peer.processes and (also_one or clients > 1):
            started = ProcessClients(peer, clients)
            stack.callback(started.close)
            ways.append(started)
        yield ways


def _used(peer: Peer) -> tuple[int, int]:
    """Rounds and steps so far, where it is our server's."""
    if not isinstance(peer, ServerPeer):
        return 0, 0
    used = peer.used()
    return used.rounds, used.steps


def _row(measured: list[ClientMeasured]) -> Figures:
    rates = [one.rate for one in measured]
    done = sum(rate.operations for rate in rates) or 1
    rounds, steps = sum(one.rounds for one in measured), sum(one.steps for one in measured)
    return {
        "server_cpu_us": median(rate.server_cpu_us for rate in rates),
        "round_trips": sum(rate.round_trips for rate in rates) / done,
        "rounds_per_transaction": rounds / done,
        "steps_per_round": steps / rounds if rounds else 0.0,
        **figures(rates),
    }


def _lines(comparison: Comparison, result: Figures) -> Iterator[str]:
    def cells(row: Figures) -> list[str]:
        peer = comparison.peers.get(row["queue"])
        whole = (row["per_s"], row["per_s"] * comparison.plan.messages_per_branch, row["cpu_us"], row["server_cpu_us"])
        return [
            *(row["queue"], str(row["clients"]), row["kind"], row["operation"]),
            "no" if peer is not None and not peer.two_phase else "yes",
            *(f"{number:,.0f}" for number in (*whole, row["p50_us"], row["p99_us"], row["p999_us"])),
            *(f"{row[name]:.2f}" for name in ("round_trips", "rounds_per_transaction", "steps_per_round")),
        ]

    yield from lines_of(result["results"])
    if result["others"]:
        yield from ("", *aligned(HEADINGS, [cells(row) for row in result["others"]]))
        times = [[*(str(value) for value in list(row.values())[:-1]), f"{row['times']:.2f}"] for row in result["times"]]
        yield from ("", *aligned(TIMES_HEADINGS, times))
    if result["checkpoints"]:
        stalls = [line for row in result["checkpoints"] for line in Compared.lines(row)]
        yield from ("", *aligned(CHECKPOINT_HEADINGS, stalls))
    yield from (f"{name}: {promise}" for name, promise in result["durability"].items())


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.compare", description=__doc__)
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--threads", default="1,8", metavar="N,N")
    parser.add_argument("--flags", action="append", metavar="FLAGS", help="JOURNAL without it")
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--messages-per-branch", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer", action="append", choices=PEERS, default=[])
    parser.add_argument("--postgres-dsn", help="of one that runs already; without it one is started")
    parser.add_argument("--server", action="store_true", help="through a server, too: clients in processes")
    parser.add_argument("--checkpoints", type=float, metavar="S", help="one every S seconds, compared with none")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--chart", type=Path, help="ends in .svg, .png or .pdf")
    given = parser.parse_args(words)
    try:
        threads = tuple(map(int, given.threads.split(",")))
        plan = BenchPlan(
            *(given.directory, threads, tuple(given.flags or ["JOURNAL"])),
            *(given.size, given.messages_per_branch, given.seconds, given.rounds),
        )
    except (ValueError, InvalidArgument) as refused:
        parser.error(str(refused))
    if given.directory is not None:
        given.directory.mkdir(parents=True, exist_ok=True)
    comparison, bare = Comparison(plan, in_processes=given.server), BareCalls(plan)
    more: list[Round] = [bare.measure]
    more += [comparison.peer(name, given.postgres_dsn) for name in given.peer]
    if given.server:
        more += [comparison.server(flags, clients) for flags in plan.flags for clients in threads]
    if given.checkpoints is not None:
        more += [comparison.checkpoint(number, given.checkpoints) for number in threads]
    say = partial(print, flush=True, file=sys.stdout)
    result = run(plan, say, more)
    bare.join(result["results"])
    result["others"] = comparison.rows()
    result["times"] = list(comparison.times(result["results"]))
    result["checkpoints"] = [found.row(number) for number, found in comparison.checkpoints.items()]
    result["durability"] = {name: peer.durability for name, peer in comparison.peers.items()}
    for line in _lines(comparison, result):
        say(line)
    if given.json is not None:
        given.json.write_text(json.dumps(result, indent=2) + "\n", "utf-8")
    if given.chart is not None:
        from bench.chart import draw

        draw(result, given.chart)


if __name__ == "__main__":
    main()
