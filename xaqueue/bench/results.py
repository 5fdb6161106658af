"""From the rounds of every measurement to rows of figures: medians, ratios of the same round, percentiles.

A ratio is the median of each round's own ratio, so that what slowed a whole round down does not show in it.
Percentiles of latency are over the operations of all rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from xaqueue.bench.checkpoints import Compared
from xaqueue.bench.limits import FLOOR, OVERWRITE
from xaqueue.bench.peers.peer import Kind, Operation, Peer
from xaqueue.bench.rates import Rate, latency_us
from xaqueue.bench.workload import Measured, Pair

Figures = dict[str, Any]


@dataclass(slots=True)
class Series:
    """What all rounds measured so far."""

    raw: dict[tuple[str, int], list[Rate]] = field(default_factory=dict)
    engine: dict[tuple[str, int, Operation], list[Measured]] = field(default_factory=dict)
    bare: dict[tuple[str, int, Operation], list[Measured]] = field(default_factory=dict)
    peers: dict[tuple[str, int, Operation], dict[Kind, list[Rate]]] = field(default_factory=dict)
    checkpoints: dict[int, Compared] = field(default_factory=dict)
    server: dict[tuple[str, int, Operation], list[Measured]] = field(default_factory=dict)

    def add_server(self, flags: str, clients: int, measured: Pair) -> None:
        for operation, one in measured.items():
            self.server.setdefault((flags, clients, operation), []).append(one)

    def add(self, flags: str, threads: int, engine: Pair, bare: Pair) -> None:
        for operation, measured in engine.items():
            self.engine.setdefault((flags, threads, operation), []).append(measured)
            self.bare.setdefault((flags, threads, operation), []).append(bare[operation])

    def add_peer(self, name: str, clients: int, kind: Kind, measured: Pair) -> None:
        for operation, one in measured.items():
            self.peers.setdefault((name, clients, operation), {}).setdefault(kind, []).append(one.rate)

    def fastest(self, name: str, clients: int, operation: Operation) -> tuple[Kind, list[Rate]]:
        """The way of running a peer's clients that gave the most, by its median."""
        ways = self.peers[name, clients, operation]
        kind = max(ways, key=lambda kind: median_per_s(ways[kind]))
        return kind, ways[kind]


def median_per_s(rates: Sequence[Rate]) -> float:
    return median(rate.per_s for rate in rates)


def ratio(these: Sequence[Rate], those: Sequence[Rate]) -> float:
    """How many times the others' rate theirs is, round by round."""
    return median(this.per_s / that.per_s if that.per_s else 0.0 for this, that in zip(these, those, strict=True))


def raw_rows(series: Series) -> list[Figures]:
    return [{"name": name, "threads": threads, **_figures(rates)} for (name, threads), rates in series.raw.items()]


def engine_rows(series: Series, messages: int) -> list[Figures]:
    """A row for each flag, number of threads and operation."""
    rows = []
    for (flags, threads, operation), measured in series.engine.items():
        rates = [one.rate for one in measured]
        bare = [one.rate for one in series.bare[flags, threads, operation]]
        alone = series.engine.get((flags, 1, operation)) if threads != 1 else None
        rounds, steps = sum(one.rounds for one in measured), sum(one.steps for one in measured)
        branches = sum(rate.operations for rate in rates)
        rows.append(
            {
                "flags": flags,
                "threads": threads,
                "operation": operation,
                "messages_per_s": median_per_s(rates) * messages,
                "ratio": ratio(rates, bare),
                "of_floor": ratio(rates, series.raw[FLOOR, threads]),
                "times_one_thread": ratio(rates, [one.rate for one in alone]) if alone is not None else None,
                "times_peer": _against_peers(series, rates, threads, operation),
                "rounds_per_transaction": rounds / branches if branches else 0.0,
                "steps_per_round": steps / rounds if rounds else 0.0,
                **_figures(rates, "engine_"),
                **_figures(bare, "bare_"),
            }
        )
    return rows


def server_rows(series: Series, messages: int) -> list[Figures]:
    """A row for each flag, number of clients and operation, the bare echo among them."""
    rows = []
    for (flags, clients, operation), measured in series.server.items():
        rates = [one.rate for one in measured]
        rounds, steps = sum(one.rounds for one in measured), sum(one.steps for one in measured)
        done = sum(rate.operations for rate in rates)
        bare = operation == "echo"
        embedded = [one.rate for one in series.engine[flags, clients, operation]] if not bare else []
        rows.append(
            {
                "flags": flags,
                "clients": clients,
                "operation": operation,
                "messages_per_s": 0.0 if bare else median_per_s(rates) * messages,
                "of_floor": None if bare else ratio(rates, series.raw[FLOOR, clients]),
                "times_embedded": None if bare else ratio(rates, embedded),
                "times_peer": {} if bare else _against_peers(series, rates, clients, operation),
                "round_trips": sum(rate.round_trips for rate in rates) / done if done else 0.0,
                "rounds_per_transaction": rounds / done if done else 0.0,
                "steps_per_round": steps / rounds if rounds else 0.0,
                "client_cpu_us": median(rate.cpu_us - rate.server_cpu_us for rate in rates),
                "server_cpu_us": median(rate.server_cpu_us for rate in rates),
                **_figures(rates),
            }
        )
    return rows


def peer_rows(series: Series, peers: Sequence[Peer], messages: int) -> list[Figures]:
    """A row for each peer, number of clients and operation: the faster way of running its clients, and the others."""
    by_name = {peer.name: peer for peer in peers}
    rows = []
    for (name, clients, operation), ways in series.peers.items():
        kind, rates = series.fastest(name, clients, operation)
        peer = by_name[name]
        rows.append(
            {
                "peer": name,
                "clients": clients,
                "operation": operation,
                "kind": kind,
                "two_phase": peer.two_phase,
                "survives_power_loss": peer.survives_power_loss,
                "messages_per_s": median_per_s(rates) * messages,
                "cpu_of_server": peer.server_cpu_s() is not None,
                "server_cpu_us": median(rate.server_cpu_us for rate in rates),
                "slower": {other: median_per_s(found) for other, found in ways.items() if other != kind},
                **_figures(rates),
            }
        )
    return rows


def checkpoint_rows(series: Series) -> list[Figures]:
    return [found.row(threads, series.raw[OVERWRITE, threads]) for threads, found in series.checkpoints.items()]


def _against_peers(series: Series, rates: list[Rate], threads: int, operation: Operation) -> dict[str, float]:
    names = {name: None for name, clients, _ in series.peers if clients == threads}
    return {name: ratio(rates, series.fastest(name, threads, operation)[1]) for name in names}


def _figures(rates: Sequence[Rate], prefix: str = "") -> Figures:
    p99_us, p999_us = latency_us(rates, 99, 99.9)
    figures: Figures = {
        "per_s": median_per_s(rates),
        "cpu_us": median(rate.cpu_us for rate in rates),
        "p50_us": latency_us(rates, 50)[0],
        "p99_us": p99_us,
        "p999_us": p999_us,
        "rounds_per_s": [rate.per_s for rate in rates],
    }
    return {prefix + name: value for name, value in figures.items()}
