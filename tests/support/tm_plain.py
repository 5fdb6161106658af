"""What participants see of a transaction, by the plain way of the transaction manager and by its general one.

Each call that participants get is noted, with what it was given, and so is each named step. One of them may fail,
before or behind what it does.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count, product
from typing import Any

import pytest

from support.carry_scene import GIVEN_TREE, LEDGER, QUEUE, Scene
from support.tm_ledger import Carrying, TwoPhased
from support.tm_world import STARTED, Bank, BankConnection, LateConnection, Rig
from xaqueue.connection import Connection
from xaqueue.core.storage import ids
from xaqueue.features.session import Session
from xaqueue.tm import branch
from xaqueue.tm.coordinator import Coordinator
from xaqueue.tm.coordinator import TraceStep as Step
from xaqueue.tm.transaction import Transaction

TWO_PHASES = ("tpc_begin", "tpc_prepare", "tpc_carry", "tpc_commit", "tpc_rollback")
VERBS = (*TWO_PHASES, "commit", "rollback", "execute", "close")
SPACES = ("carried", "prepared")
_ADDRESS = re.compile(r"0x[0-9a-f]+")


class Notes:
    """fails_at: which of the noted calls fails, counted from when ``begin`` was called. before: whether it does so
    before it has done anything."""

    def __init__(self, fails_at: int = -1, error: BaseException | None = None, *, before: bool = True) -> None:
        self.lines: list[str] = []
        self.error = error
        self._fails_at = fails_at
        self._before = before
        self._count: int | None = None
        self._is_over = False

    def begin(self) -> None:
        self._count = 0

    def end(self) -> None:
        """Nothing fails any more."""
        self._is_over = True

    @property
    def count(self) -> int:
        return self._count or 0

    @property
    def has_failed(self) -> bool:
        return self.count > self._fails_at >= 0

    def add(self, *words: Any) -> None:
        self.lines.append(_ADDRESS.sub("", " ".join(map(repr, words))))

    @contextmanager
    def call(self, *words: Any) -> Iterator[None]:
        self.add(*words)
        fails = False
        if self._count is not None and not self._is_over:
            fails = self._count == self._fails_at
            self._count += 1
        if fails and self._before:
            assert self.error is not None
            raise self.error
        yield
        if fails:
            assert self.error is not None
            raise self.error

    def of(self, kind: type, name: str) -> type:
        """The class, whose instances note their calls under this name."""
        made = {verb: self._noted(getattr(kind, verb), name) for verb in VERBS if hasattr(kind, verb)}
        return type(kind.__name__, (kind,), {**made, "__module__": kind.__module__})

    def _noted(self, method: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call(connection: Any, *given: Any, **options: Any) -> Any:
            with self.call(name, method.__name__, given, options):
                return method(connection, *given, **options)

        return call


@contextmanager
def way(*, plain: bool) -> Iterator[None]:
    """Whether the plain case has its own way."""
    with pytest.MonkeyPatch.context() as patched:
        if not plain:
            patched.setattr(Transaction, "_is_plain", False)
        yield


class Pair:
    """A ledger that decides, and who votes: a queue whose work it carries, or that prepares, or a bank."""

    def __init__(
        self, notes: Notes, voter: str, decide: Callable[[], Any] | None = None, rows: Callable[[], Any] = str
    ) -> None:
        """decide: opens a ledger of somebody else. rows: what is in that one."""
        self.notes, self.voter, self.rows = notes, voter, rows
        self.scene = Scene()
        if voter in SPACES:
            self.scene.open_for_good(GIVEN_TREE, STARTED)
            self.scene.connect()
        self.bank = Bank(self.scene.world, QUEUE, votes_read_only=voter == "read-only", is_deferred=voter == "late")
        self.queue = notes.of(Connection, QUEUE)
        self.bank_connection = notes.of(LateConnection if voter == "late" else BankConnection, QUEUE)
        self.database = notes.of(TwoPhased if voter == "bank" else Carrying, LEDGER)
        fs = STARTED.open_for_good()
        parties = {QUEUE: self._vote, LEDGER: decide or self._decide}
        self.rig = self.scene.rig = Rig(fs, parties, on_step=self._step)
        if voter == "carried":
            self.scene.make_ready()

    def _vote(self) -> object:
        with self.notes.call(QUEUE, "opened"):
            if self.voter in SPACES:
                assert self.scene.space is not None
                return self.queue(Session(self.scene.space), ids.fresh_id)
            return self.bank_connection(self.bank)

    def _decide(self) -> object:
        with self.notes.call(LEDGER, "opened"):
            return self.database(self.scene.ledgers[LEDGER])

    def _step(self, step: Step, gtrid: bytes, name: str) -> None:
        with self.notes.call("step", step, gtrid, name):
            pass

    def transact(self) -> None:
        tx = self.rig.transaction()
        try:
            with tx:
                if self.voter in SPACES:
                    tx[QUEUE].enqueue("out", b"new")
                    assert tx[QUEUE].dequeue("in") is not None
                else:
                    tx[QUEUE].work()
                tx[LEDGER].work(tx.gtrid)
                self.notes.begin()
        except BaseException as error:
            self.notes.add("told", error, error.__cause__)
        self._look(tx)

    def _look(self, tx: Transaction) -> None:
        """At all that is remembered of it."""
        coordinator = self.rig.coordinator
        self.notes.add("outcome", tx.outcome, tx.pending, coordinator.outcome(tx.gtrid), coordinator.in_doubt())
        self.notes.add("log", self.rig.log.table.open, self.rig.log._done_rows, self.rig.log.table.heuristics)
        self.notes.add("undecided", coordinator._undecided, coordinator.deciding.rows, self.rig.woken)
        self.notes.add("live", coordinator._live, sorted(coordinator._deferred))
        for source in coordinator.sources.values():
            self.notes.add("kept", source.name, len(source._idle))
        ledger = self.scene.ledgers[LEDGER]
        self.notes.add("rows", ledger.rows, sorted(ledger.done), self.bank.branches, self.rows())

    def recover(self) -> None:
        for _ in range(3):
            with suppress(Exception, KeyboardInterrupt):
                self.rig.recover()
        self._look(self.rig.transaction())

    def close(self) -> None:
        self.notes.end()
        for resolver in self.rig.resolvers.values():
            resolver.stop(0.0)
        for source in self.rig.coordinator.sources.values():
            source.close()


def told(make: Callable[[Notes], Pair], notes: Notes, *, plain: bool) -> Notes:
    """All that is seen of one transaction, and of recovery behind it."""
    numbers = count(1)
    with pytest.MonkeyPatch.context() as patched, way(plain=plain):
        patched.setattr(os, "urandom", lambda size: next(numbers).to_bytes(2, "big") * (size // 2))
        patched.setattr(ids, "_fresh", [])
        patched.setattr(branch, "READ_S", 0.0)
        patched.setattr(Coordinator, "lend", lambda *_: None)  # one call at a time, so that their order is one
        pair = make(notes)
        pair.transact()
        pair.recover()
        pair.close()
    return notes


def compare(make: Callable[[Notes], Pair], errors: Sequence[Callable[[], BaseException]]) -> None:
    """The two ways, and each of these errors at each call of the end of a transaction."""
    happy = [told(make, Notes(), plain=plain) for plain in (True, False)]
    assert happy[0].lines == happy[1].lines
    assert happy[0].count > 10
    for at, error, before in product(range(happy[0].count), errors, (True, False)):
        ways = [told(make, Notes(at, error(), before=before), plain=plain) for plain in (True, False)]
        assert ways[0].lines == ways[1].lines, (at, error(), before)
        assert ways[0].has_failed
