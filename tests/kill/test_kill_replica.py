"""Failovers to a replica for which steps wait, amid two-phase transactions: nothing is lost, doubled or half done.

The owner is killed, or stopped or cut off until its replica has the space: then it is fenced. Its directory becomes the
replica of the other one, and so on. ``XAQUEUE_FAILOVERS`` is how many of each there are; with ``XAQUEUE_CRASH_FULL=1``
100.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

import xaqueue
from support.booking import Booking
from support.pair import Client, Networks, judge, wait_for_work
from support.replica_pair import ReplicatedPair
from support.replicas import made, text
from support.served import PATIENCE_S
from xaqueue.core.owner.definitions_file import write_definitions
from xaqueue.offline.check import check
from xaqueue.offline.findings import Severity

FULL = os.environ.get("XAQUEUE_CRASH_FULL") == "1"
FAILOVERS = int(os.environ.get("XAQUEUE_FAILOVERS", "100" if FULL else "1"))
CLIENTS = 8
STOCKED = 5_000 if FULL else 300
QUEUES = "[queues.in]\n[queues.out]\n[queues.booked]\n"


@contextmanager
def at_work(
    tmp_path: Path, places: Sequence[str] = (), within: Sequence[Sequence[str]] = ((), ())
) -> Iterator[tuple[ReplicatedPair, list[Client]]]:
    root = made(tmp_path / "a", "local", more=QUEUES)
    with xaqueue.connect(root) as connection:
        for number in range(STOCKED):
            connection.enqueue("in", b"%d" % number)
        connection.commit()
    write_definitions(root, text("replica", 30, QUEUES))
    pair = ReplicatedPair([root, tmp_path / "b"], places, within)
    clients = [Client(pair.url, f"c{name}") for name in range(CLIENTS)]
    try:
        for client in clients:
            client.start()
        yield pair, clients
        for client in clients:
            client.stopped = True
        for client in clients:
            client.join(PATIENCE_S)
            assert client.failure is None
        pair.owner.signal(signal.SIGTERM)
        assert pair.owner.code() == 0, pair.owner.said
    finally:
        for client in clients:
            client.stopped = True
        pair.close()
    write_definitions(pair.root, text("local", more=QUEUES))
    assert judge(pair.root, clients, STOCKED) == []
    assert [str(one) for one in check(pair.root) if one.severity is Severity.DAMAGE] == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_failovers(tmp_path: Path, number: signal.Signals) -> None:
    with at_work(tmp_path) as (pair, clients):
        for _ in range(FAILOVERS):
            wait_for_work(clients)
            pair.fail_over(number)
            wait_for_work(clients)
    assert sum(sum(client.errors.values()) for client in clients) >= FAILOVERS, "nobody noticed"


def test_cut_off_from_its_replica_and_its_clients(tmp_path: Path, networks: Networks) -> None:
    """It waits, and nobody hangs up; when its link is back it is told that it has the space no more."""
    with at_work(tmp_path, networks.places, networks.within) as (pair, clients):
        for _ in range(FAILOVERS):
            wait_for_work(clients)
            side = pair.at
            networks.cut(side)
            pair.fail_over(0, partial(networks.cut, side, up=True))
            wait_for_work(clients)


def test_a_replica_is_killed_and_comes_back(tmp_path: Path) -> None:
    with at_work(tmp_path) as (pair, clients):
        for _ in range(FAILOVERS):
            wait_for_work(clients)
            pair.kill_replica()
            wait_for_work(clients)
        pair.fail_over(signal.SIGKILL)


def test_a_transaction_manager_goes_on_with_the_replica(tmp_path: Path, dsn: str) -> None:
    """A row of PostgreSQL and its message are there, or neither is."""
    with at_work(tmp_path) as (pair, _):
        booking = Booking(tmp_path / "log", dsn, pair.url)
        booking.start()
        for failover in range(FAILOVERS):
            booking.wait_for_work()
            pair.fail_over(signal.SIGKILL if failover % 2 else signal.SIGSTOP)
        booking.wait_for_work()
        booking.judge()
