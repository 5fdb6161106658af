"""The plain case of a transaction, two of which one decides, has a way of its own: nobody can tell it from the general.

Whatever fails at whichever call, participants get the same calls, with the same statements and the same bytes, in the
same order, and the log, the tables in memory and the caller hear the same.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from itertools import count

import pytest

from support.carry_scene import GIVEN_TREE, LEDGER, QUEUE, Scene
from support.tm_ledger import Carrying, IntegrityError, TwoPhased
from support.tm_plain import Notes, way
from support.tm_world import STARTED, Bank, BankConnection, LateConnection, OperationalError, Rig
from xaqueue.connection import Connection
from xaqueue.core.storage import ids
from xaqueue.errors import ConnectionLost, HeuristicOutcome, RolledBack
from xaqueue.features.session import Session
from xaqueue.tm import branch
from xaqueue.tm.coordinator import TraceStep as Step
from xaqueue.tm.transaction import Transaction
from xaqueue.xa import Code

ERRORS: tuple[Callable[[], BaseException], ...] = (
    lambda: OperationalError("lost"),
    lambda: IntegrityError("a constraint"),
    lambda: RolledBack("no"),
    lambda: ConnectionLost("gone"),
    lambda: HeuristicOutcome("by hand", Code.XA_HEURRB),
    lambda: KeyboardInterrupt(),
)
SPACES = ("carried", "prepared")


class Pair:
    """A ledger that decides, and who votes: a queue whose work it carries, or that prepares, or a bank."""

    def __init__(self, notes: Notes, voter: str) -> None:
        self.notes, self.voter = notes, voter
        self.scene = Scene()
        if voter in SPACES:
            self.scene.open_for_good(GIVEN_TREE, STARTED)
            self.scene.connect()
        self.bank = Bank(self.scene.world, QUEUE, votes_read_only=voter == "read-only", is_deferred=voter == "late")
        self.queue = notes.of(Connection, QUEUE)
        self.bank_connection = notes.of(LateConnection if voter == "late" else BankConnection, QUEUE)
        self.database = notes.of(TwoPhased if voter == "bank" else Carrying, LEDGER)
        fs = STARTED.open_for_good()
        self.rig = self.scene.rig = Rig(fs, {QUEUE: self._vote, LEDGER: self._decide}, on_step=self._step)
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
        self.notes.add("rows", ledger.rows, sorted(ledger.done), self.bank.branches)

    def recover(self) -> None:
        for _ in range(3):
            with suppress(Exception, KeyboardInterrupt):
                self.rig.recover()
        self._look(self.rig.transaction())


def told(voter: str, notes: Notes, *, plain: bool, monkeypatch: pytest.MonkeyPatch) -> Notes:
    """All that is seen of one transaction, and of recovery behind it."""
    numbers = count(1)
    with monkeypatch.context() as patched, way(plain=plain):
        patched.setattr(os, "urandom", lambda size: next(numbers).to_bytes(2, "big") * (size // 2))
        patched.setattr(ids, "_fresh", [])
        patched.setattr(branch, "READ_S", 0.0)
        pair = Pair(notes, voter)
        pair.transact()
        pair.recover()
    return notes


@pytest.mark.parametrize("voter", [*SPACES, "bank", "late", "read-only"])
def test_the_two_ways_cannot_be_told_apart(voter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    happy = [told(voter, Notes(), plain=plain, monkeypatch=monkeypatch) for plain in (True, False)]
    assert happy[0].lines == happy[1].lines
    assert happy[0].count > 10
    for at in range(happy[0].count):
        for error in ERRORS:
            for before in (True, False):
                ways = [
                    told(voter, Notes(at, error(), before=before), plain=plain, monkeypatch=monkeypatch)
                    for plain in (True, False)
                ]
                assert ways[0].lines == ways[1].lines, (at, error(), before)
                assert ways[0].has_failed


@pytest.mark.parametrize("plain", [True, False])
def test_the_plain_way_is_taken_and_can_be_shut(plain: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or what is compared above would be one thing with itself."""
    asked: list[str] = []
    before = Transaction._run

    def run(transaction: Transaction, *given: object) -> object:
        asked.append("the votes")
        return before(transaction, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(Transaction, "_run", run)
    notes = told("carried", Notes(), plain=plain, monkeypatch=monkeypatch)
    assert "carried" not in asked
    assert (asked == []) == plain
    assert any("tpc_carry" in line for line in notes.lines)
