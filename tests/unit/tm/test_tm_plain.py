"""The plain case of a transaction, two of which one decides, has a way of its own: nobody can tell it from the general.

Whatever fails at whichever call, participants get the same calls, with the same statements and the same bytes, in the
same order, and the log, the tables in memory and the caller hear the same.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support.tm_ledger import IntegrityError
from support.tm_plain import SPACES, Notes, Pair, compare, told
from support.tm_world import OperationalError
from xaqueue.errors import ConnectionLost, HeuristicOutcome, RolledBack
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


@pytest.mark.parametrize("voter", [*SPACES, "bank", "late", "read-only"])
def test_the_two_ways_cannot_be_told_apart(voter: str) -> None:
    compare(lambda notes: Pair(notes, voter), ERRORS)


@pytest.mark.parametrize("plain", [True, False])
def test_the_plain_way_is_taken_and_can_be_shut(plain: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or what is compared above would be one thing with itself."""
    asked: list[str] = []
    before = Transaction._run

    def run(transaction: Transaction, *given: object) -> object:
        asked.append("the votes")
        return before(transaction, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(Transaction, "_run", run)
    notes = told(lambda notes: Pair(notes, "carried"), Notes(), plain=plain)
    assert (asked == []) == plain
    assert any("tpc_carry" in line for line in notes.lines)
