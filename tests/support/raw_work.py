"""Many raw sessions at work, some killed at any byte of a transaction, and a ledger that knows what must be there then.

Every transaction takes one message of the queue ``in``, which never runs dry, and adds two to ``out``, which nobody
takes from: so ``out`` says which transactions were done, and each must be there as a whole or not at all.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any

import msgpack

import xaqueue
from support.raw_client import ONEPHASE, HungUp, RawClient, Xid
from xaqueue.connection import Connection
from xaqueue.errors import UnknownXid


class Stage(IntEnum):
    """How far a transaction came, as its session knows."""

    BEGUN = 0
    PREPARE_SENT = 1
    PREPARED = 2
    COMMIT_SENT = 3
    """In two phases: it was prepared, or is by the time that the server gets to it."""
    ONE_PHASE_SENT = 4
    COMMITTED = 5


ENDS = (Stage.PREPARE_SENT, Stage.PREPARED, Stage.COMMIT_SENT, Stage.ONE_PHASE_SENT)
"""How far the first transactions of the first workers come, where any die: no stage is left to chance."""


@dataclass
class Transaction:
    xid: Xid
    stage: Stage = Stage.BEGUN
    knows_prepared: bool = False
    taken: bytes | None = None

    @property
    def bodies(self) -> list[bytes]:
        return [self.xid[1] + b"/1", self.xid[1] + b"/2"]


class Worker(threading.Thread):
    """One session after the other; ``dies`` says how probable it is that a transaction ends with its session."""

    def __init__(self, path: Path, number: int, seed: object, transactions: int, dies: float) -> None:
        super().__init__(name=f"worker {number}")
        self._path = path
        self._number = number
        self._rng = random.Random(f"{seed}/{number}")
        self._count = transactions
        self._dies = dies
        self.transactions: list[Transaction] = []
        self.failure: BaseException | None = None

    def run(self) -> None:
        client: RawClient | None = None
        try:
            for number in range(self._count):
                client = client or RawClient(self._path)
                transaction = Transaction((7, b"%d.%d" % (self._number, number), b""))
                self.transactions.append(transaction)
                if not self._perform(client, transaction):
                    client = None
        except (HungUp, OSError):
            pass  # the server is gone: what is known is in the transactions
        except BaseException as error:
            self.failure = error
        finally:
            if client is not None:
                client.close()

    def _perform(self, client: RawClient, transaction: Transaction) -> bool:
        """Whether the session is still there."""
        end = ENDS[self._number] if self._number < len(ENDS) and transaction is self.transactions[0] else None
        end = end if self._dies else None
        one_phase = self._rng.random() < 0.2 if end is None else end is Stage.ONE_PHASE_SENT
        calls: list[tuple[str, Sequence[Any]]] = [
            ("start", [transaction.xid]),
            ("dequeue", ["in"]),
            *(("enqueue", ["out", body]) for body in transaction.bodies),
            ("end", [transaction.xid]),
            *([("prepare", [transaction.xid])] if not one_phase else []),
            ("commit", [transaction.xid, ONEPHASE if one_phase else 0]),
        ]
        rides = {"start", "enqueue", "end"} if self._rng.random() < 0.5 else set()
        pipelined = self._rng.random() < 0.5 and end is None
        dies = self._rng.random() < self._dies
        frames = [
            (method, msgpack.packb([2, method, params] if method in rides else [0, number, method, params]))
            for number, (method, params) in enumerate(calls)
        ]
        groups = [frames] if pipelined else [[frame] for frame in frames]
        last = self._rng.randrange(len(groups)) if dies else -1
        if end is not None:
            last = len(groups) - (2 if end is Stage.PREPARE_SENT else 1)
        for number, group in enumerate(groups):
            if number == last:
                self._die(client, transaction, group, one_phase, end)
                return False
            self._send(client, transaction, group, one_phase)
            for method, _ in group:
                if method not in rides:
                    self._answered(transaction, method, client.answer())
        return True

    def _send(
        self, client: RawClient, transaction: Transaction, frames: Iterable[tuple[str, bytes]], one_phase: bool
    ) -> None:
        """Now and then byte by byte."""
        for method, data in frames:
            self._sent(transaction, method, one_phase)
            step = 1 if self._rng.random() < 0.05 else len(data)
            for start in range(0, len(data), step):
                client.send(data[start : start + step])

    def _die(
        self,
        client: RawClient,
        transaction: Transaction,
        frames: Sequence[tuple[str, bytes]],
        one_phase: bool,
        end: Stage | None,
    ) -> None:
        whole = sum(len(data) for _, data in frames)
        cut = self._rng.choice([self._rng.randint(0, whole), whole])
        if end is not None:
            cut = 0 if end is Stage.PREPARED else whole
        for method, data in frames:
            part = data[:cut]
            cut -= len(part)
            if len(part) == len(data):
                self._sent(transaction, method, one_phase)
            client.send(part)
        self._rng.choice([client.close, client.reset])()

    @staticmethod
    def _sent(transaction: Transaction, method: str, one_phase: bool) -> None:
        if method == "prepare":
            transaction.stage = Stage.PREPARE_SENT
        elif method == "commit":
            transaction.stage = Stage.ONE_PHASE_SENT if one_phase else Stage.COMMIT_SENT

    @staticmethod
    def _answered(transaction: Transaction, method: str, answer: list[Any]) -> None:
        _, _, error, result = answer
        assert error is None, error
        if method == "dequeue":
            assert result is not None
            transaction.taken = result[4]
        elif method == "prepare":
            assert result == "ok"
            transaction.knows_prepared = True
            if transaction.stage is Stage.PREPARE_SENT:
                transaction.stage = Stage.PREPARED
        elif method == "commit":
            transaction.stage = Stage.COMMITTED


def stock(root: Path, count: int, sync: str) -> None:
    """Makes a space with so many messages in ``in``."""
    with xaqueue.connect(root, create=True, sync=sync) as connection:
        for number in range(count):
            connection.enqueue("in", b"%d" % number)
        connection.commit()


@dataclass
class Verdict:
    """What was found; ``faults`` has to be empty."""

    faults: list[str] = field(default_factory=list)
    done: set[bytes] = field(default_factory=set)
    recovered: set[Xid] = field(default_factory=set)


def judge(connection: Connection, transactions: Sequence[Transaction], stocked: int) -> Verdict:
    """Commits what is in doubt, rolls back what is idle, and compares. Nobody else is at work any more."""
    verdict = Verdict()
    verdict.recovered = {(xid.format_id, xid.gtrid, xid.bqual) for xid in connection.tpc_recover()}
    for transaction in transactions:
        fault = _wrongly_listed(transaction, verdict.recovered)
        if fault:
            verdict.faults.append(f"{transaction}: {fault}")
        xid = connection.xid(*transaction.xid)
        finish: Callable[[Any], None] = (
            connection.tpc_commit if transaction.xid in verdict.recovered else connection.tpc_rollback
        )
        with suppress(UnknownXid):
            finish(xid)
    found = Counter(message.body for message in connection.browse("out"))
    left = {message.body for message in connection.browse("in")}
    for transaction in transactions:
        counts = {found.pop(body, 0) for body in transaction.bodies}
        if counts == {1}:
            verdict.done.add(transaction.xid[1])
        elif counts != {0}:
            verdict.faults.append(f"{transaction}: its messages are there {counts} times")
        fault = _wrongly_done(transaction, counts == {1}, verdict.recovered, left)
        if fault:
            verdict.faults.append(f"{transaction}: {fault}")
    if found:
        verdict.faults.append(f"messages of nobody: {found}")
    taken = Counter(one.taken for one in transactions if one.taken is not None and one.xid[1] in verdict.done)
    verdict.faults += [f"{body!r} was taken {times} times" for body, times in taken.items() if times > 1]
    if len(left) != stocked - len(verdict.done):
        verdict.faults.append(f"{len(left)} of {stocked} are left after {len(verdict.done)} were taken")
    return verdict


def _wrongly_listed(transaction: Transaction, recovered: set[Xid]) -> str:
    listed = transaction.xid in recovered
    if transaction.stage is Stage.PREPARED and not listed:
        return "it was prepared, and is not listed"
    if listed and transaction.stage in (Stage.BEGUN, Stage.ONE_PHASE_SENT, Stage.COMMITTED):
        return "it is listed as in doubt"
    return ""


def _wrongly_done(transaction: Transaction, done: bool, recovered: set[Xid], left: set[bytes]) -> str:
    if transaction.stage is Stage.COMMITTED and not done:
        return "its commit was acknowledged and is lost"
    if transaction.xid in recovered and not done:
        return "it was in doubt, was committed then, and is lost"
    if transaction.stage is Stage.COMMIT_SENT and transaction.knows_prepared and not done:
        return "it was prepared, was told to commit, and is lost"
    if done and transaction.stage in (Stage.BEGUN, Stage.PREPARE_SENT) and transaction.xid not in recovered:
        return "nobody committed it, and it is done"
    if done and transaction.taken in left:
        return "it is done, and what it took is still there"
    return ""
