"""The books of the ledger: rows, messages and what the service said have to agree, and nothing may be left open.

A row that is taken has its message, order by order, and a row that was sent has none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import xaqueue
from xaqueue.demo.answer import Finding
from xaqueue.demo.ledger_parties import reached
from xaqueue.demo.ledger_service import QUEUE, Place
from xaqueue.tm.look import look

WORDS = ("taken", "sent", "refused", "unknown", "early")


@dataclass(slots=True)
class Said:
    """What the service has said of its orders, over all its lives."""

    taken: set[str] = field(default_factory=set)
    sent: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)
    early: set[str] = field(default_factory=set)
    twice: set[str] = field(default_factory=set)
    """Taken or sent, and said so more than once."""

    def hear(self, lines: Iterable[list[str]]) -> None:
        for word, order in (line for line in lines if len(line) == 2):
            if word not in WORDS or order == "-":
                continue
            heard: set[str] = getattr(self, word)
            if word in ("taken", "sent") and order in heard:
                self.twice.add(order)
            heard.add(order)


@dataclass(frozen=True, slots=True)
class Books:
    """What is there once everything has come to rest."""

    taken: Counter[str]
    """Rows whose order is taken and not sent, by order."""
    sent: Counter[str]
    messages: Counter[str]
    prepared: int
    """Prepared transactions of PostgreSQL."""
    branches: int
    """Branches in doubt in the queue space."""
    undone: int
    """Transactions that the decision log has open."""

    @property
    def open(self) -> int:
        return self.prepared + self.branches + self.undone


def rows(place: Place) -> dict[str, Counter[str]]:
    """The orders in PostgreSQL, by state."""
    found: dict[str, Counter[str]] = {"taken": Counter(), "sent": Counter()}
    with reached(place.dsn) as ledger:
        for state, order in ledger.execute("select state, id from orders").fetchall():
            found[state][order] += 1
    return found


def messages(place: Place) -> Counter[str]:
    """The orders in the queue."""
    with xaqueue.connect(place.queue) as connection:
        return Counter((message.properties.correlation_id or b"").decode() for message in connection.browse(QUEUE))


def read(place: Place) -> Books:
    """``place``: whose service does not run."""
    with reached(place.dsn) as ledger:
        prepared = ledger.tpc_recover()
    with xaqueue.connect(place.queue) as connection:
        branches = connection.tpc_recover()
    found = rows(place)
    undone = look(place.log).open
    return Books(found["taken"], found["sent"], messages(place), len(prepared), len(branches), len(undone))


def check(said: Said, books: Books) -> list[Finding]:
    """Every claim of the ledger, held against what is there."""
    rows = books.taken + books.sent
    return [
        Finding(
            f"{books.taken.total():,} rows wait and {books.messages.total():,} messages do: the same orders",
            books.taken == books.messages,
        ),
        Finding(f"{books.sent.total():,} orders were sent, each once", not said.twice and said.sent <= set(books.sent)),
        Finding(f"{len(said.taken):,} orders were confirmed, and each is there", said.taken <= set(rows)),
        Finding(f"{len(said.refused):,} orders were refused, and none is there", not said.refused & set(rows)),
        Finding(f"nobody was left without an answer ({len(said.unknown)})", not said.unknown),
        Finding(f"PostgreSQL has {books.prepared} prepared transactions", books.prepared == 0),
        Finding(f"the queue has {books.branches} branches in doubt", books.branches == 0),
        Finding(f"the decision log has {books.undone} transactions open", books.undone == 0),
    ]
