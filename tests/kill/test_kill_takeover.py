"""Failovers of a pair on one disk, amid two-phase transactions: nothing is lost, doubled or half done.

The owner is killed, or stopped for longer than any of its timeouts, and continued when the other one has the space: it
ends by itself. Or its network is cut, where this machine has namespaces to give. ``XAQUEUE_FAILOVERS`` is how many of
each there are; with ``XAQUEUE_CRASH_FULL=1`` 100.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

import xaqueue
from support.booking import Booking
from support.pair import FENCED, Client, Networks, Pair, judge, wait_for_work
from support.served import PATIENCE_S
from xaqueue.core.owner.definitions_file import write_definitions
from xaqueue.features.opening import create
from xaqueue.offline.check import check
from xaqueue.offline.findings import Severity

FULL = os.environ.get("XAQUEUE_CRASH_FULL") == "1"
FAILOVERS = int(os.environ.get("XAQUEUE_FAILOVERS", "100" if FULL else "1"))
CLIENTS = 8
STOCKED = 20_000 if FULL else 500


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_failovers(tmp_path: Path, number: signal.Signals) -> None:
    with at_work(tmp_path / "space") as (pair, clients):
        for _ in range(FAILOVERS):
            wait_for_work(clients)
            former = pair.fail_over(number)
            wait_for_work(clients)
            if number == signal.SIGSTOP:
                former.signal(signal.SIGCONT)
                assert former.code() == FENCED
                assert "owns it no more" in former.said
            pair.stand_by(former)


def test_cut_off_from_its_clients(tmp_path: Path, networks: Networks) -> None:
    """Calls and answers on their way are lost, and nobody hangs up; then it is killed, as an operator would."""
    with at_work(tmp_path / "space", networks.places, networks.within) as (pair, clients):
        for failover in range(FAILOVERS):
            wait_for_work(clients)
            networks.cut(failover % 2)
            time.sleep(0.1)
            former = pair.fail_over(signal.SIGKILL)
            wait_for_work(clients)
            networks.cut(failover % 2, up=True)
            pair.stand_by(former)


def test_a_transaction_manager_goes_on_with_the_other_one(tmp_path: Path, dsn: str) -> None:
    """A row of PostgreSQL and its message are there, or neither is."""
    with at_work(tmp_path / "space") as (pair, _):
        booking = Booking(tmp_path / "log", dsn, pair.url)
        booking.start()
        for _ in range(FAILOVERS):
            booking.wait_for_work()
            pair.stand_by(pair.fail_over(signal.SIGKILL))
        booking.wait_for_work()
        booking.judge()


@contextmanager
def at_work(
    root: Path, places: Sequence[str] = (), within: Sequence[Sequence[str]] = ((), ())
) -> Iterator[tuple[Pair, list[Client]]]:
    """A pair, and clients whose work is judged at the end."""
    stock(root)
    pair = Pair(root, places, within)
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
    assert judge(root, clients, STOCKED) == []
    assert [str(one) for one in check(root) if one.severity is Severity.DAMAGE] == []
    assert sum(sum(client.errors.values()) for client in clients) >= FAILOVERS, "nobody noticed"


def stock(root: Path) -> None:
    create(root)
    write_definitions(root, "[queues.in]\n[queues.out]\n[queues.booked]\n")
    with xaqueue.connect(root) as connection:
        for number in range(STOCKED):
            connection.enqueue("in", b"%d" % number)
