"""From what the decision log and the participants say of one transaction follows one answer for its branches in doubt.

Or none: then that is said, and why. The answer is what the transaction manager itself would do, so that following it
never makes an outcome mixed. Pure: nothing is asked and nothing is done here.

What counts as proof of commit: the decision log; a last resource's row; a branch that was committed by its coordinator.
Of rollback: a log without a decision, of a transaction that nobody can be working on any more; a branch that was rolled
back by its coordinator. No proof of anything: a branch that is not there, and what a person decided somewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

Names = tuple[str, ...]


class LogStatus(Enum):
    """What the decision log says of the transaction."""

    COMMIT = "commit is decided"
    ROLLBACK = "rollback is decided"
    LAST = "the decision may stand in a participant's database"
    NONE = "no decision, and nobody can be working on it: presumed rollback"
    LIVE = "no decision, and the transaction manager runs: it may be about to decide"
    ELSEWHERE = (
        "no decision here, and this is a copy of the log, or another host had it open last: its transaction manager "
        "may be at work there: ask there; where that is gone for good, `xaqueue tm recover --moved` ends what is left"
    )
    SILENT = "no decision, and its node is silent: once that is ended, as `xaqueue tm recover` does, it is rolled back"
    LOST = "the database does not know of it: it is another one, or a copy"
    FOREIGN = "the transaction was begun by another node"
    OTHER = "another product's transaction manager has begun it, and its log has the decision"
    OLDER = "the transaction is of a later boot: the log is an old copy"
    UNREAD = "what is decided cannot be read"


class ParticipantStatus(Enum):
    """What one participant says of its branch."""

    IN_DOUBT = "in doubt"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    BY_HAND_COMMITTED = "committed by hand"
    BY_HAND_ROLLED_BACK = "rolled back by hand"
    BY_HAND_MIXED = "committed in part by hand"
    ABSENT = "not in doubt"
    """It never was, or is finished: this participant cannot tell which."""
    UNREACHABLE = "does not answer"


class Advised(Enum):
    """What is to be done with the branches in doubt."""

    COMMIT = "commit"
    ROLLBACK = "rollback"
    RECOVER = "this will be rolled back"
    """By recovery, which writes so into the database that might decide, unless it finds a decision there."""
    NOTHING = "nothing"
    """No branch is in doubt."""
    UNKNOWN = "cannot know"
    MIXED = "mixed already"
    """Some of it is committed and some rolled back for good, or a person decided otherwise: no answer mends that."""


@dataclass(frozen=True, slots=True)
class Advice:
    """The answer, in words why, and the participants that wait for it."""

    answer: Advised
    why: str
    in_doubt: Names = ()


_COMMITTED = (ParticipantStatus.COMMITTED, ParticipantStatus.BY_HAND_COMMITTED)
_ROLLED_BACK = (ParticipantStatus.ROLLED_BACK, ParticipantStatus.BY_HAND_ROLLED_BACK)
_DECIDED = {
    LogStatus.COMMIT: (Advised.COMMIT, "the decision log says commit"),
    LogStatus.ROLLBACK: (Advised.ROLLBACK, "the decision log says rollback"),
    LogStatus.NONE: (Advised.ROLLBACK, "the decision log has no decision, and nobody can make one any more"),
}


def advise(log: LogStatus, says: Mapping[str, ParticipantStatus], lasts: Names = ()) -> Advice:
    """The one consistent answer, if there is one. says: by participant.

    lasts: all those in whose databases the decision may stand, where no transaction manager is at work.
    """
    in_doubt, silent = _those(says, ParticipantStatus.IN_DOUBT), _those(says, ParticipantStatus.UNREACHABLE)
    decided, why = _decision(log, says, lasts)
    committed, rolled_back = _those(says, *_COMMITTED), _those(says, *_ROLLED_BACK)
    mixed = _those(says, ParticipantStatus.BY_HAND_MIXED)
    if mixed or (committed and rolled_back):
        return Advice(Advised.MIXED, _mixed(committed, rolled_back, mixed, why), in_doubt)
    otherwise = {Advised.COMMIT: rolled_back, Advised.UNKNOWN: ()}.get(decided, committed)
    if not in_doubt and not silent and not (otherwise and log is not LogStatus.NONE):
        return Advice(Advised.NOTHING, f"no branch is in doubt; {_facts(says) or why}")
    if silent:
        why += f"; {_listed(silent)} {'does' if len(silent) == 1 else 'do'} not answer"
    if otherwise and log is LogStatus.NONE and not in_doubt:  # it may be over, and then it was committed
        return Advice(Advised.UNKNOWN, f"{_facts(says)}; {why}: ask again when all answer")
    if otherwise:
        return Advice(Advised.MIXED, f"{why}, and {_facts(says)}", in_doubt)
    if decided is Advised.RECOVER:
        why += ": start the application, or run `xaqueue tm recover`"
    return Advice(decided, why, in_doubt)


def _decision(log: LogStatus, says: Mapping[str, ParticipantStatus], lasts: Names) -> tuple[Advised, str]:
    """COMMIT, ROLLBACK, RECOVER or UNKNOWN, and what proves it, or why nothing does."""
    committed, rolled_back = _those(says, ParticipantStatus.COMMITTED), _those(says, ParticipantStatus.ROLLED_BACK)
    is_recorded = log in (LogStatus.COMMIT, LogStatus.ROLLBACK)
    if committed and not is_recorded:  # it is committed everywhere then, and over
        return Advised.COMMIT, f"{_listed(committed)} {_have(committed)} committed"
    if log in _DECIDED:
        return _DECIDED[log]
    if rolled_back:
        return Advised.ROLLBACK, f"{_listed(rolled_back)} {_have(rolled_back)} rolled back"
    if log is LogStatus.LIVE:
        why = "the transaction manager runs and may be about to decide: wait for it, or stop it and ask again"
    elif log is LogStatus.LAST and lasts and all(says.get(name) is ParticipantStatus.ABSENT for name in lasts):
        return Advised.RECOVER, f"{_listed(lasts)}, where the decision would stand, {_have(lasts)} no row of it"
    elif log is LogStatus.LAST:
        why = "the decision may stand in a participant's database, which does not tell it: ask again when it does"
    elif log is LogStatus.SILENT:
        why = log.value
    else:
        why = f"{log.value}, and no participant can tell an outcome: find the log that has the decision"
    return Advised.UNKNOWN, why


def _mixed(committed: Names, rolled_back: Names, mixed: Names, why: str) -> str:
    done = ((committed, "committed"), (rolled_back, "rolled back"), (mixed, "committed in part"))
    facts = " and ".join(f"{_listed(names)} {_have(names)} {what}" for names, what in done if names)
    return f"{facts}; {why}"


def _facts(says: Mapping[str, ParticipantStatus]) -> str:
    decided = (*_COMMITTED, *_ROLLED_BACK)
    return " and ".join(f"{name} has {said.value}" for name, said in says.items() if said in decided)


def _those(says: Mapping[str, ParticipantStatus], *wanted: ParticipantStatus) -> Names:
    return tuple(name for name, said in says.items() if said in wanted)


def _listed(names: Names) -> str:
    return " and ".join(names)


def _have(names: Names) -> str:
    return "has" if len(names) == 1 else "have"
