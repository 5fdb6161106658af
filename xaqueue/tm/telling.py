"""What a caller is told of a transaction that did not end as it was wanted: one error, which says what to do next."""

from __future__ import annotations

from collections.abc import Mapping

from xaqueue.errors import HeuristicHazard, HeuristicMixed, HeuristicOutcome, OutcomeUnknown, RolledBack
from xaqueue.tm.gtrid import FORMAT_ID
from xaqueue.tm.voting import Party
from xaqueue.xa import Code, Outcome
from xaqueue.xid import Xid


def heuristic(
    gtrid: bytes, code: Code, outcome: Outcome, parties: Mapping[str, Party], unrecorded: Exception | None
) -> HeuristicOutcome:
    """A participant did otherwise. unrecorded: why the log does not have it yet."""
    did = {name: party.value for name, party in parties.items()}
    message = (
        f"transaction {gtrid.decode()} was to be {outcome.value}, and a participant did not do so "
        f"({', '.join(f'{name}: {what}' for name, what in did.items())}). Set right what it did; the record is kept "
        "until TransactionManager.forget"
    )
    if unrecorded is not None:
        message += f". It could not be recorded yet: {unrecorded}"
    if code is Code.XA_HEURHAZ:
        return HeuristicHazard(message, did)
    if code is Code.XA_HEURMIX:
        return HeuristicMixed(message, did)
    return HeuristicOutcome(message, code)


def in_doubt(gtrid: bytes, why: Exception | None) -> OutcomeUnknown:
    """Nobody can tell what was decided."""
    return OutcomeUnknown(
        f"transaction {gtrid.decode()} is in doubt until its decision can be read ({why}); recovery goes on trying, "
        "and TransactionManager.outcome tells",
        Xid(FORMAT_ID, gtrid, b""),
    )


def unanswered(gtrid: bytes, participant: str) -> OutcomeUnknown:
    """A commit in one phase got no answer."""
    return OutcomeUnknown(
        f"the answer of participant {participant!r} to the commit of {gtrid.decode()} was lost, and nobody else has "
        "work in it: ask that participant what it has",
        Xid(FORMAT_ID, gtrid, participant.encode("ascii")),
    )


def rolled_back(gtrid: bytes, who: str, why: Exception | None) -> RolledBack:
    """Somebody could not commit."""
    code = why.code if isinstance(why, RolledBack) else Code.XA_RBROLLBACK
    return RolledBack(f"transaction {gtrid.decode()} was rolled back because of {who}: {why}", code)


def expired(gtrid: bytes, timeout_s: float) -> RolledBack:
    """The time ran out before the decision."""
    return RolledBack(
        f"transaction {gtrid.decode()} was rolled back: it took more than {timeout_s:g} s", Code.XA_RBTIMEOUT
    )
