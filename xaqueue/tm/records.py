"""The records of the decision log: what each kind holds, in MessagePack.

    1 DECISION   [gtrid, when_us, last, [participant, ...], [gtrid that is done, ...]]
    2 DONE       [gtrid, ...]
    3 HEURISTIC  [gtrid, participant, decision, party, when_us, detail]
    4 FORGET     [gtrid]
    5 CARRIED    [[DECISION without its fifth part, ...], [HEURISTIC, ...]]

``last`` is nil where the record is the decision to commit; otherwise the decision stands in that participant's
database. CARRIED repeats what dangled at a checkpoint; it is never newer than what the other kinds say.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import islice
from typing import Any

import msgpack

from xaqueue.errors import DecisionLogDamaged
from xaqueue.storage.journal_format import Entry, Record
from xaqueue.tm.standing import Heuristic
from xaqueue.tm.voting import Party
from xaqueue.xa import Outcome

CARRIED_AT_A_TIME = 500


class Kind(IntEnum):
    """Of a record of the journal."""

    DECISION = 1
    DONE = 2
    HEURISTIC = 3
    FORGET = 4
    CARRIED = 5


@dataclass(slots=True)
class Decision:
    """A global transaction whose second phase has begun."""

    gtrid: bytes
    participants: tuple[str, ...]
    """Those that voted to commit, without the last resource."""
    when_us: int
    last: str | None = None
    outcome: Outcome = Outcome.COMMITTED
    """IN_DOUBT as long as it stands in a last resource that was not read."""
    outstanding: set[str] = field(default_factory=set)
    """Participants that have not acknowledged."""


def decision(made: Decision, done: Sequence[bytes]) -> Entry:
    return Entry(Kind.DECISION, msgpack.packb([*_decision_parts(made), list(done)]))


def done(gtrids: Sequence[bytes]) -> Entry:
    return Entry(Kind.DONE, msgpack.packb(list(gtrids)))


def heuristic(noted: Heuristic) -> Entry:
    return Entry(Kind.HEURISTIC, msgpack.packb(_heuristic_parts(noted)))


def forget(gtrid: bytes) -> Entry:
    return Entry(Kind.FORGET, msgpack.packb([gtrid]))


def carried(decisions: Iterable[Decision], heuristics: Iterable[Heuristic]) -> Iterator[Entry]:
    """As many records as it takes, perhaps none."""
    rows, notes = map(_decision_parts, decisions), map(_heuristic_parts, heuristics)
    while (some := list(islice(rows, CARRIED_AT_A_TIME))) or (more := list(islice(notes, CARRIED_AT_A_TIME))):
        yield Entry(Kind.CARRIED, msgpack.packb([some, [] if some else more]))


@dataclass(slots=True)
class Table:
    """What dangles: decisions that were not acknowledged everywhere, and heuristics that nobody forgot."""

    open: dict[bytes, Decision] = field(default_factory=dict)
    heuristics: dict[tuple[bytes, str], Heuristic] = field(default_factory=dict)

    def decision_on(self, gtrid: bytes) -> Outcome | None:
        """None: there is none, which for a prepared branch means rollback. IN_DOUBT: it stands in the last resource."""
        made = self.open.get(gtrid)
        if made is not None:
            return made.outcome
        return next((noted.decision for (other, _), noted in self.heuristics.items() if other == gtrid), None)

    def forget(self, gtrid: bytes) -> None:
        for key in [key for key in self.heuristics if key[0] == gtrid]:
            del self.heuristics[key]


def replay(records: Iterable[Record]) -> Table:
    """What these say together. Raises DecisionLogDamaged for one that cannot be read."""
    table, over = Table(), set[bytes]()
    for record in records:
        try:
            _replay(table, over, Kind(record.kind), msgpack.unpackb(record.meta))
        except (ValueError, TypeError, KeyError, msgpack.UnpackException) as error:
            raise DecisionLogDamaged(
                f"the record at LSN {record.lsn:#x} of the decision log cannot be read ({error}): it is damaged, or "
                "of a newer xaqueue, which is to be used then. Nothing was changed, and nothing is rolled back"
            ) from error
    return table


def _replay(table: Table, over: set[bytes], kind: Kind, parts: list[Any]) -> None:
    """over: what these records end, so that a CARRIED one does not begin it again."""
    if kind is Kind.DECISION:
        made = _decision(parts[:4])
        table.open[made.gtrid] = made
        _end(table, over, parts[4])
    elif kind is Kind.DONE:
        _end(table, over, parts)
    elif kind is Kind.HEURISTIC:
        noted = _heuristic(parts)
        table.heuristics[noted.gtrid, noted.participant] = noted
    elif kind is Kind.FORGET:
        table.forget(parts[0])
        over.add(b"forgotten " + parts[0])
    else:
        for made in map(_decision, parts[0]):
            if made.gtrid not in over:
                table.open.setdefault(made.gtrid, made)
        for noted in map(_heuristic, parts[1]):
            if b"forgotten " + noted.gtrid not in over:
                table.heuristics.setdefault((noted.gtrid, noted.participant), noted)


def _end(table: Table, over: set[bytes], gtrids: Iterable[bytes]) -> None:
    for gtrid in gtrids:
        table.open.pop(gtrid, None)
        over.add(gtrid)


def _decision_parts(made: Decision) -> list[Any]:
    return [made.gtrid, made.when_us, made.last, list(made.participants)]


def _decision(parts: list[Any]) -> Decision:
    gtrid, when_us, last, names = parts
    outcome = Outcome.COMMITTED if last is None else Outcome.IN_DOUBT
    return Decision(gtrid, tuple(names), when_us, last, outcome, set(names))


def _heuristic_parts(noted: Heuristic) -> list[Any]:
    decided, party = noted.decision.value, noted.party.value
    return [noted.gtrid, noted.participant, decided, party, noted.when_us, noted.detail]


def _heuristic(parts: list[Any]) -> Heuristic:
    gtrid, participant, decided, party, when_us, detail = parts
    return Heuristic(gtrid, participant, Outcome(decided), Party(party), when_us, detail)
