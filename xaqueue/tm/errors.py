"""What a caller is told of a transaction that did not end as it was wanted: one error, which says what to do next."""

from __future__ import annotations

from collections.abc import Mapping

from xaqueue.errors import HeuristicHazard, HeuristicMixed, HeuristicOutcome, OutcomeUnknown, RolledBack
from xaqueue.tm.gtrid import FORMAT_ID
from xaqueue.tm.voting import ParticipantOutcome, TransactionResult
from xaqueue.xa import Code, Outcome
from xaqueue.xid import Xid


def heuristic_code(outcome: Outcome, participants: Mapping[str, ParticipantOutcome]) -> Code | None:
    """What a caller has to be told beside the outcome; None where everybody did, or will do, as was decided."""
    agreeing, opposed = ParticipantOutcome.HEUR_COMMITTED, ParticipantOutcome.HEUR_ROLLED_BACK
    if outcome is not Outcome.COMMITTED:
        agreeing, opposed = opposed, agreeing
    wrong = {ended for ended in participants.values() if ended.is_heuristic and ended is not agreeing}
    if not wrong:
        return None
    if wrong == {ParticipantOutcome.HEUR_HAZARD}:
        return Code.XA_HEURHAZ
    if {ended for ended in participants.values() if ended is not ParticipantOutcome.READ_ONLY} == {opposed}:
        return Code.XA_HEURRB if opposed is ParticipantOutcome.HEUR_ROLLED_BACK else Code.XA_HEURCOM
    return Code.XA_HEURMIX


def heuristic_error(
    gtrid: bytes, code: Code, result: TransactionResult, unrecorded: Exception | None
) -> HeuristicOutcome:
    """A participant did otherwise. unrecorded: why the log does not have it yet."""
    did = {name: ended.value for name, ended in result.participants.items()}
    message = (
        f"transaction {gtrid.decode()} was to be {result.outcome.value}, and a participant did not do so "
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


def in_doubt_error(gtrid: bytes, why: Exception | None) -> OutcomeUnknown:
    """Nobody can tell what was decided."""
    return OutcomeUnknown(
        f"transaction {gtrid.decode()} is in doubt until its decision can be read ({why}); recovery goes on trying, "
        "and TransactionManager.outcome tells",
        Xid(FORMAT_ID, gtrid, b""),
    )


def unanswered_error(gtrid: bytes, participant: str) -> OutcomeUnknown:
    """A commit in one phase got no answer."""
    return OutcomeUnknown(
        f"the answer of participant {participant!r} to the commit of {gtrid.decode()} was lost, and nobody else has "
        "work in it: ask that participant what it has",
        Xid(FORMAT_ID, gtrid, participant.encode("ascii")),
    )


def rolled_back_error(gtrid: bytes, who: str, why: Exception | None) -> RolledBack:
    """Somebody could not commit."""
    code = why.code if isinstance(why, RolledBack) else Code.XA_RBROLLBACK
    return RolledBack(f"transaction {gtrid.decode()} was rolled back because of {who}: {why}", code)


def expired_error(gtrid: bytes, timeout_s: float) -> RolledBack:
    """The time ran out before the decision."""
    return RolledBack(
        f"transaction {gtrid.decode()} was rolled back: it took more than {timeout_s:g} s", Code.XA_RBTIMEOUT
    )
