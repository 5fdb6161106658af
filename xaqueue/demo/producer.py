"""The producer enqueues the flights in two-phase branches, and may be killed at any moment and started again.

    python -m xaqueue.demo.producer SPACE DECISIONS --stages FILE --flights N --batch N --threads N

It is a transaction manager with one participant: prepare, decide durably, commit. The name of a batch's branch is
derived from the number of the batch, so a restart knows each batch again:

    in doubt, decided       commit it
    in doubt, not decided   roll it back, and enqueue the batch again
    not there, decided      it is done
    not there, not decided  enqueue it
    decided by an operator  take that outcome over into the log, then forget

It prints a line of JSON after recovery and another at its end.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

import xaqueue
from xaqueue.demo import records
from xaqueue.demo.decisions import COMMIT, ROLLBACK, DecisionLog
from xaqueue.demo.stages import COMMITTED, DECIDED, PREPARED, Stages
from xaqueue.errors import HeuristicOutcome
from xaqueue.storage.hardening import DEFAULT
from xaqueue.xa import Code
from xaqueue.xid import Xid

QUEUE = "flights"
FORMAT_ID = 1
THREADS = 3
"""While one waits for the disk another writes."""

_GTRID = re.compile(rb"flights-(\d{6,})")


@dataclass(slots=True)
class Resolved:
    """What a start found in doubt and what became of it; counts of branches."""

    committed: int = 0
    rolled_back: int = 0
    operator_committed: int = 0
    operator_rolled_back: int = 0
    done: int = 0
    """Batches that are finished after recovery."""


def xid_of(batch: int) -> Xid:
    """The name of a batch's branch."""
    return Xid(FORMAT_ID, b"flights-%06d" % batch, QUEUE.encode())


def batch_of(xid: Xid) -> int | None:
    """The batch whose branch has this name; None for a branch of somebody else."""
    match = _GTRID.fullmatch(xid.gtrid)
    batch = int(match[1]) if match else None
    return batch if batch is not None and xid_of(batch) == xid else None


def recover(connection: xaqueue.Connection, decisions: DecisionLog) -> Resolved:
    """Finishes what an earlier run left in doubt, as its log says. Branches of others are left alone."""
    resolved = Resolved()
    for xid in connection.tpc_recover():
        batch = batch_of(xid)
        if batch is None:
            continue
        try:
            if decisions.is_committed(batch):
                connection.tpc_commit(xid)
                resolved.committed += 1
            else:
                connection.tpc_rollback(xid)
                resolved.rolled_back += 1
        except HeuristicOutcome as outcome:
            _take_over(connection, decisions, xid, batch, outcome, resolved)
    resolved.done = decisions.count()
    return resolved


def _take_over(
    connection: xaqueue.Connection,
    decisions: DecisionLog,
    xid: Xid,
    batch: int,
    outcome: HeuristicOutcome,
    resolved: Resolved,
) -> None:
    """An operator was faster. Noted before it is forgotten: a crash in between only hears of it once more."""
    if outcome.code is Code.XA_HEURCOM:
        decisions.record(batch, COMMIT)
        resolved.operator_committed += 1
    elif outcome.code is Code.XA_HEURRB:
        decisions.record(batch, ROLLBACK)
        resolved.operator_rolled_back += 1
    else:
        raise outcome  # part of the batch is lost or doubtful, which no rule can mend
    connection.tpc_forget(xid)


def enqueue(
    connection: xaqueue.Connection,
    decisions: DecisionLog,
    stages: Stages,
    batch: int,
    first: int,
    rows: Sequence[dict[str, str]],
) -> None:
    """One batch, in two phases. ``first``: the number of its first flight."""
    connection.tpc_begin(xid_of(batch))
    for number, row in enumerate(rows, first):
        body = records.body(row)
        connection.enqueue(QUEUE, body, correlation_id=str(number), content_type="application/json")
    connection.tpc_prepare()  # killed from here on, the branch is in doubt
    stages.reached(batch, PREPARED)
    decisions.record(batch, COMMIT)  # killed from here on, it is to be committed
    stages.reached(batch, DECIDED)
    connection.tpc_commit()
    stages.reached(batch, COMMITTED)


class Work:
    """The batches still to be done, handed out to threads one at a time."""

    def __init__(self, decisions: DecisionLog, flights: int, size: int) -> None:
        self._mutex = threading.Lock()
        self._left = self._undone(decisions, flights, size)

    def take(self) -> tuple[int, int, Sequence[dict[str, str]]] | None:
        """Number, first flight and rows of the next batch; None when there is none left."""
        with self._mutex:
            return next(self._left, None)

    @staticmethod
    def _undone(decisions: DecisionLog, flights: int, size: int) -> Iterator[tuple[int, int, Sequence[dict[str, str]]]]:
        for batch, rows in records.batches(flights, size):
            if not decisions.is_committed(batch):
                yield batch, batch * size, rows


def produce(
    space: Path, decisions: DecisionLog, stages: Stages, flights: int, size: int, threads: int = THREADS
) -> Resolved:
    """Recovers, then enqueues every batch that is not done. Returns what recovery did."""
    with _connect(space) as connection:
        resolved = recover(connection, decisions)
        _say(recovered=asdict(resolved))
        work = Work(decisions, flights, size)
        with ThreadPoolExecutor(threads, thread_name_prefix="producer") as pool:
            for finished in [pool.submit(_enqueue_all, space, decisions, stages, work) for _ in range(threads)]:
                finished.result()
    _say(finished=decisions.count())
    return resolved


def _enqueue_all(space: Path, decisions: DecisionLog, stages: Stages, work: Work) -> None:
    with _connect(space) as connection:
        while (batch := work.take()) is not None:
            enqueue(connection, decisions, stages, *batch)


def _connect(space: Path) -> xaqueue.Connection:
    """Durable whatever XAQUEUE_FLAGS says: a decision log promises nothing over a queue that may forget."""
    return xaqueue.connect(space, sync=str(DEFAULT))


def _say(**what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> None:
    """The process that the demo starts, and kills."""
    parser = argparse.ArgumentParser(prog="python -m xaqueue.demo.producer", description="enqueues the flights")
    parser.add_argument("space", type=Path)
    parser.add_argument("decisions", type=Path)
    parser.add_argument("--stages", type=Path, required=True)
    parser.add_argument("--flights", type=int, default=records.TOTAL)
    parser.add_argument("--batch", type=int, default=200)
    parser.add_argument("--threads", type=int, default=THREADS)
    given = parser.parse_args(arguments)
    with DecisionLog(given.decisions) as decisions, closing(Stages(given.stages)) as stages:
        produce(given.space, decisions, stages, given.flights, given.batch, given.threads)


if __name__ == "__main__":
    main()
