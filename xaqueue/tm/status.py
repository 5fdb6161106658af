"""How things stand, in words that programs and people read: what is open, who did what, what a recovery did."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum

from xaqueue.tm.voting import ParticipantOutcome
from xaqueue.xa import Outcome


class TransactionState(Enum):
    """Why a global transaction is not over."""

    COMMITTING = "committing"
    """Decided; some participants have not acknowledged yet."""
    UNDECIDED = "undecided"
    """The decision stands in the last resource, which could not be read yet."""
    ROLLING_BACK = "rolling back"
    """The last resource did not commit; some participants have not acknowledged yet."""
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
    outcome: Outcome = Outcome.COMMITTED
    """IN_DOUBT as long as it stands in a last resource that was not read."""
    outstanding: set[str] = field(default_factory=set)
    """Participants that have not acknowledged."""


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


_STATES = {
    Outcome.COMMITTED: TransactionState.COMMITTING,
    Outcome.ROLLED_BACK: TransactionState.ROLLING_BACK,
    Outcome.IN_DOUBT: TransactionState.UNDECIDED,
}


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
        asked = (made.last,) if made.outcome is Outcome.IN_DOUBT and made.last else outstanding
        trouble = {name: why for name in asked if (why := trouble_of(name))}
        own = tuple(noted.pop(made.gtrid, ()))
        rest = made.participants, outstanding, made.when_us, made.last, own, trouble
        found.append(InDoubtTransaction(made.gtrid, _STATES[made.outcome], *rest))
    for gtrid, some in noted.items():
        names, since = tuple(one.participant for one in some), min(one.when_us for one in some)
        found.append(InDoubtTransaction(gtrid, TransactionState.HEURISTIC, names, (), since, None, tuple(some)))
    return sorted(found, key=lambda one: (one.decided_us, one.gtrid))


@dataclass(slots=True)
class ScanReport:
    """What one round of recovery did at one participant."""

    participant: str
    complete: bool = False
    """Whether the participant told all its branches in doubt, and each one that was finished answered."""
    committed: list[bytes] = field(default_factory=list)
    rolled_back: list[bytes] = field(default_factory=list)
    finished_before: list[bytes] = field(default_factory=list)
    """Decided, and not in doubt at the participant any more."""
    heuristics: list[Heuristic] = field(default_factory=list)
    left: list[bytes] = field(default_factory=list)
    """Own ones that are live, or wait for the last resource."""
    strangers: list[str] = field(default_factory=list)
    """Names of participants in own xids that are not configured here any more."""
    error: str = ""
    """Why it is not complete."""


@dataclass(slots=True)
class RecoveryResult:
    """What ``TransactionManager.recover`` found, by participant."""

    scans: dict[str, ScanReport] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        return all(scan.complete for scan in self.scans.values())

    @property
    def committed(self) -> int:
        """Branches that were committed."""
        return sum(len(scan.committed) for scan in self.scans.values())

    @property
    def rolled_back(self) -> int:
        """Branches that were rolled back."""
        return sum(len(scan.rolled_back) for scan in self.scans.values())
