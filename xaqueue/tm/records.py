"""What the files of a decision log hold: the NODE file, and the journal's records, in MessagePack.

Their forms are in ``man/xaqueue.5``. CARRIED repeats what dangled at a checkpoint; it is never newer than what the
other kinds say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from itertools import islice
from typing import Any, NoReturn

import msgpack

from xaqueue.core.storage.fs import FileSystem, replace_file
from xaqueue.core.storage.journal_format import Entry, Record
from xaqueue.errors import DecisionLogDamaged, DecisionLogError
from xaqueue.tm.gtrid import Gtrid
from xaqueue.tm.voting import ParticipantOutcome
from xaqueue.xa import Outcome

NODE = "NODE"
"""Whose decisions a log holds, and how often it was opened; durable before either names anything."""
NEW_NODE = ".NODE.new"
_MAGIC = "xaqueue-tm"
_VERSION = "1"
CARRIED_AT_A_TIME = 500


class TransactionState(Enum):
    """Why a global transaction is not over."""

    COMMITTING = "committing"
    """Decided; some participants have not acknowledged yet."""
    UNDECIDED = "undecided"
    """The decision may stand in a last resource, which could not be asked yet."""
    HEURISTIC = "heuristic"
    """Over, but a participant did something else, or perhaps did: kept until somebody forgets it."""


@dataclass(slots=True)
class OpenDecision:
    """A global transaction whose second phase has begun."""

    gtrid: bytes
    participants: tuple[str, ...]
    """Those that voted to commit, without the last resource."""
    when_us: int
    last: str | None = None
    """In whose database its row is the decision; None where the log has it."""
    outstanding: set[str] = field(default_factory=set)
    """Participants that have not acknowledged."""
    spaces: Mapping[str, str] = field(default_factory=dict)
    """By participant, the id of the space that voted; of those that have one."""
    deferred: set[str] = field(default_factory=set)
    """Outstanding ones that have committed, and lose that with a crash until they harden it."""


@dataclass(frozen=True, slots=True)
class Heuristic:
    """What a participant did, or may have done, without this transaction manager."""

    gtrid: bytes
    participant: str
    decision: Outcome
    """COMMITTED or ROLLED_BACK: what it was told."""
    outcome: ParticipantOutcome
    """What it did instead."""
    when_us: int
    """When it was noticed, int microseconds UTC."""
    detail: str = ""
    """In the participant's words."""

    @property
    def agrees(self) -> bool:
        """Whether it did by itself what it was told later."""
        return self.outcome.value == f"{self.decision.value} by itself"


@dataclass(frozen=True, slots=True)
class InDoubtTransaction:
    """A global transaction that is not over; live ones are not among them."""

    gtrid: bytes
    state: TransactionState
    participants: tuple[str, ...]
    """Those with a branch in the second phase; of a heuristic one that was never logged, those that are known."""
    outstanding: tuple[str, ...]
    """Those that have not acknowledged the decision."""
    decided_us: int
    last_resource: str | None = None
    heuristics: tuple[Heuristic, ...] = ()
    trouble: dict[str, str] = field(default_factory=dict)
    """Why an outstanding participant has not answered, by its name."""


def in_doubt_transactions(
    decisions: Iterable[OpenDecision], heuristics: Iterable[Heuristic], trouble_of: Callable[[str], str] = lambda _: ""
) -> list[InDoubtTransaction]:
    """What a log's table says, for people, oldest first. trouble_of: what is the matter with a participant."""
    noted: dict[bytes, list[Heuristic]] = {}
    for heuristic in heuristics:
        noted.setdefault(heuristic.gtrid, []).append(heuristic)
    found = []
    for made in decisions:
        outstanding = tuple(sorted(made.outstanding))
        trouble = {name: why for name in outstanding if (why := trouble_of(name))}
        own = tuple(noted.pop(made.gtrid, ()))
        rest = made.participants, outstanding, made.when_us, made.last, own, trouble
        found.append(InDoubtTransaction(made.gtrid, TransactionState.COMMITTING, *rest))
    for gtrid, some in noted.items():
        names, since = tuple(one.participant for one in some), min(one.when_us for one in some)
        found.append(InDoubtTransaction(gtrid, TransactionState.HEURISTIC, names, (), since, None, tuple(some)))
    return sorted(found, key=lambda one: (one.decided_us, one.gtrid))


class LogRecordKind(IntEnum):
    """Of a record of the journal."""

    DECISION = 1
    DONE = 2
    HEURISTIC = 3
    FORGET = 4
    CARRIED = 5
    LAST = 6


def decision(made: OpenDecision, done: Sequence[bytes]) -> Entry:
    return Entry(LogRecordKind.DECISION, msgpack.packb([*_decision_parts(made), list(done)]))


def done(gtrids: Sequence[bytes]) -> Entry:
    return Entry(LogRecordKind.DONE, msgpack.packb(list(gtrids)))


def heuristic(noted: Heuristic) -> Entry:
    return Entry(LogRecordKind.HEURISTIC, msgpack.packb(_heuristic_parts(noted)))


def forget(gtrid: bytes) -> Entry:
    return Entry(LogRecordKind.FORGET, msgpack.packb([gtrid]))


def last(participant: str, first: int, newest: int) -> Entry:
    return Entry(LogRecordKind.LAST, msgpack.packb([participant, first, newest]))


def carried(table: DecisionTable) -> Iterator[Entry]:
    """As many records as it takes, perhaps none."""
    for participant, epochs in table.lasts.items():
        yield last(participant, *epochs)
    rows = map(_decision_parts, [made for made in table.open.values() if made.last is None])
    notes = map(_heuristic_parts, table.heuristics.values())
    while (some := list(islice(rows, CARRIED_AT_A_TIME))) or (more := list(islice(notes, CARRIED_AT_A_TIME))):
        yield Entry(LogRecordKind.CARRIED, msgpack.packb([some, [] if some else more]))


@dataclass(slots=True)
class DecisionTable:
    """What dangles: decisions that were not acknowledged everywhere, and heuristics that nobody forgot."""

    open: dict[bytes, OpenDecision] = field(default_factory=dict)
    heuristics: dict[tuple[bytes, str], Heuristic] = field(default_factory=dict)
    lasts: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By participant, the first and the last epoch in which decisions were made in its database."""

    def decision_on(self, gtrid: bytes) -> Outcome | None:
        """None: there is none here, which for a prepared branch means rollback, unless ``lasts_of`` names anybody."""
        if gtrid in self.open:
            return Outcome.COMMITTED
        return next((noted.decision for (other, _), noted in self.heuristics.items() if other == gtrid), None)

    def add(self, made: OpenDecision) -> None:
        self.open[made.gtrid] = made

    def lasts_of(self, gtrid: bytes) -> set[str]:
        """Participants in whose databases the decision may stand."""
        parsed = Gtrid.parse(gtrid)
        return {name for name, (first, newest) in self.lasts.items() if parsed and first <= parsed.epoch <= newest}

    def add_last(self, participant: str, first: int, newest: int) -> None:
        known = self.lasts.get(participant, (first, newest))
        self.lasts[participant] = min(first, known[0]), max(newest, known[1])

    def note(self, heuristic: Heuristic) -> None:
        self.heuristics[heuristic.gtrid, heuristic.participant] = heuristic

    def forget(self, gtrid: bytes) -> None:
        for key in [key for key in self.heuristics if key[0] == gtrid]:
            del self.heuristics[key]


def replay(records: Iterable[Record]) -> DecisionTable:
    """What these say together. Raises DecisionLogDamaged for one that cannot be read."""
    table, over = DecisionTable(), set[bytes]()
    for record in records:
        try:
            _replay(table, over, LogRecordKind(record.kind), msgpack.unpackb(record.meta))
        except (ValueError, TypeError, KeyError, msgpack.UnpackException) as error:
            raise DecisionLogDamaged(
                f"the record at LSN {record.lsn:#x} of the decision log cannot be read ({error}): it is damaged, or "
                "of a newer xaqueue, which is to be used then. Nothing was changed, and nothing is rolled back"
            ) from error
    return table


def _replay(table: DecisionTable, over: set[bytes], kind: LogRecordKind, parts: list[Any]) -> None:
    """over: what these records end, so that a CARRIED one does not begin it again."""
    if kind is LogRecordKind.DECISION:
        table.add(_decision(parts[:3]))
        _end(table, over, parts[3])
    elif kind is LogRecordKind.DONE:
        _end(table, over, parts)
    elif kind is LogRecordKind.HEURISTIC:
        table.note(_heuristic(parts))
    elif kind is LogRecordKind.FORGET:
        table.forget(parts[0])
        over.add(b"forgotten " + parts[0])
    elif kind is LogRecordKind.LAST:
        table.add_last(*parts)
    else:
        for made in map(_decision, parts[0]):
            if made.gtrid not in over:
                table.open.setdefault(made.gtrid, made)
        for noted in map(_heuristic, parts[1]):
            if b"forgotten " + noted.gtrid not in over:
                table.heuristics.setdefault((noted.gtrid, noted.participant), noted)


def _end(table: DecisionTable, over: set[bytes], gtrids: Iterable[bytes]) -> None:
    for gtrid in gtrids:
        table.open.pop(gtrid, None)
        over.add(gtrid)


def _decision_parts(made: OpenDecision) -> list[Any]:
    spaces = made.spaces
    return [made.gtrid, made.when_us, [[name, spaces[name]] if name in spaces else name for name in made.participants]]


def _decision(parts: list[Any]) -> OpenDecision:
    gtrid, when_us, voters = parts
    spaces = dict(one for one in voters if not isinstance(one, str))
    names = [one if isinstance(one, str) else one[0] for one in voters]
    return OpenDecision(gtrid, tuple(names), when_us, None, set(names), spaces)


def _heuristic_parts(noted: Heuristic) -> list[Any]:
    decision, outcome = noted.decision.value, noted.outcome.value
    return [noted.gtrid, noted.participant, decision, outcome, noted.when_us, noted.detail]


def _heuristic(parts: list[Any]) -> Heuristic:
    gtrid, participant, decision, outcome, when_us, detail = parts
    return Heuristic(gtrid, participant, Outcome(decision), ParticipantOutcome(outcome), when_us, detail)


def read_node(fs: FileSystem) -> tuple[str, int]:
    """Node id and epoch; "" and 0 where there was never a log. Raises DecisionLogDamaged, DecisionLogError, OSError."""
    try:
        line = fs.read(NODE, 4096).decode("ascii", "replace")
    except FileNotFoundError:
        return "", 0
    words = line.split()
    if len(words) > 1 and words[0] == _MAGIC and words[1] != _VERSION:
        raise DecisionLogError(
            f"{NODE} has format {words[1]}; this xaqueue reads format {_VERSION}: use a newer one. Nothing was changed"
        )
    try:
        magic, _, node, epoch = words
        if magic != _MAGIC or not line.endswith("\n"):
            raise ValueError  # noqa: TRY301
        Gtrid(node, int(epoch), 0)
    except ValueError:  # InvalidArgument is one
        damaged(f"{NODE} cannot be read")
    return node, int(epoch)


def write_node(fs: FileSystem, node: str, epoch: int) -> None:
    """Replaces it, durably. Raises OSError."""
    replace_file(fs, NODE, f"{_MAGIC} {_VERSION} {node} {epoch}\n".encode())


def damaged(what: str) -> NoReturn:
    """Raises DecisionLogDamaged, which says what to do."""
    raise DecisionLogDamaged(
        f"the decision log is damaged: {what}. Decisions may be lost with it, so nothing was changed and nothing is "
        "rolled back. Put the files back from a copy. Without one, move the directory away and keep it: a new log has "
        "a new node id and leaves the old branches alone; finish those by hand, each participant's list of what is in "
        "doubt has them (`xaqueue indoubt advise` compares)"
    )
