"""What a message costs in a deep queue, beside the same in a shallow one of the same space, at the same moment.

Both are enqueued to and dequeued from in turns, so that what the machine does meanwhile touches both alike. What is
dequeued was laid out at about the same time, and read before: a file system takes longer for a file that it has not
seen for long. A transaction is two-phase and moves one message.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from xaqueue.connection import Connection
from xaqueue.features.session import attach

ROUNDS = 10
TRANSACTIONS = 200
"""Of each kind in each queue in a round."""
OPERATIONS = ("enqueue", "dequeue")


def measure(space: Path, flags: str, deep: str, shallow: str, transactions: int = TRANSACTIONS) -> list[dict[str, Any]]:
    """Microseconds a transaction for each operation, in both queues: medians of the rounds, and of their ratios."""
    taken: dict[tuple[str, str], list[_Took]] = {(op, queue): [] for op in OPERATIONS for queue in (deep, shallow)}
    with Connection(attach(space, sync=flags, watch=False), lambda: os.urandom(16)) as connection:
        verbs = _Verbs(connection)
        for number in range(ROUNDS + 1):
            for operation in OPERATIONS:
                for queue in (deep, shallow) if number % 2 else (shallow, deep):
                    once = _timed(verbs.of(operation), queue, transactions)
                    if number:  # the first warms up
                        taken[operation, queue].append(once)
    return [_row(flags, operation, taken[operation, deep], taken[operation, shallow]) for operation in OPERATIONS]


class _Took(NamedTuple):
    us: float
    cpu_us: float


def _row(flags: str, operation: str, deep: list[_Took], shallow: list[_Took]) -> dict[str, Any]:
    return {
        "flags": flags,
        "operation": operation,
        "deep_us": median(took.us for took in deep),
        "deep_cpu_us": median(took.cpu_us for took in deep),
        "shallow_us": median(took.us for took in shallow),
        "shallow_cpu_us": median(took.cpu_us for took in shallow),
        "ratio": median(this.us / that.us for this, that in zip(deep, shallow, strict=True)),
    }


class _Verbs:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._numbers = count()
        self._body = os.urandom(200)

    def of(self, operation: str) -> Callable[[str], None]:
        return self._enqueue if operation == "enqueue" else self._dequeue

    def _enqueue(self, queue: str) -> None:
        self._begin()
        self._connection.enqueue(queue, self._body)
        self._end()

    def _dequeue(self, queue: str) -> None:
        self._begin()
        self._connection.dequeue(queue)
        self._end()

    def _begin(self) -> None:
        self._connection.tpc_begin(self._connection.xid(1, b"%d" % next(self._numbers), b"bench"))

    def _end(self) -> None:
        self._connection.tpc_prepare()
        self._connection.tpc_commit()


def _timed(verb: Callable[[str], None], queue: str, transactions: int) -> _Took:
    began, cpu = time.perf_counter(), time.process_time()
    for _ in range(transactions):
        verb(queue)
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu
    return _Took(seconds * 1e6 / transactions, cpu_seconds * 1e6 / transactions)
