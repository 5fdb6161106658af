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

from xaqueue.tm.gtrid import Gtrid
from xaqueue.xa import Outcome

Names = tuple[str, ...]


class Log(Enum):
    """What the decision log says of the transaction."""

    COMMIT = "commit is decided"
    ROLLBACK = "rollback is decided"
    LAST = "the decision stands in the last resource"
    NONE = "no decision, and nobody can be working on it: presumed rollback"
    LIVE = "no decision, and the transaction manager runs: it may be about to decide"
    FOREIGN = "the transaction was begun by another node"
    OLDER = "the transaction is of a later boot: the log is an old copy"
    UNREAD = "the log cannot be read"


def log_says(gtrid: Gtrid, *, node: str, epoch: int, in_use: bool, decision: Outcome | None) -> Log:
    """What a log says, from what ``xaqueue.tm.look`` saw of it.

    in_use: before it was read; so where it was not, nobody who was at work then can decide any more.
    """
    if gtrid.node != node:
        return Log.FOREIGN
    if decision is not None:
        return _OF_DECISION[decision]
    if gtrid.epoch > epoch:
        return Log.OLDER
    return Log.LIVE if in_use and gtrid.epoch == epoch else Log.NONE


class Says(Enum):
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


class Answer(Enum):
    """What is to be done with the branches in doubt."""

    COMMIT = "commit"
    ROLLBACK = "rollback"
    NOTHING = "nothing"
    """No branch is in doubt."""
    UNKNOWN = "cannot know"
    MIXED = "mixed already"
    """Some of it is committed and some rolled back for good, or a person decided otherwise: no answer mends that."""


@dataclass(frozen=True, slots=True)
class Advice:
    """The answer, in words why, and the participants that wait for it."""

    answer: Answer
    why: str
    in_doubt: Names = ()


_OF_DECISION = {
    Outcome.COMMITTED: Log.COMMIT,
    Outcome.ROLLED_BACK: Log.ROLLBACK,
    Outcome.IN_DOUBT: Log.LAST,
    Outcome.UNKNOWN: Log.UNREAD,
}
_COMMITTED = (Says.COMMITTED, Says.BY_HAND_COMMITTED)
_ROLLED_BACK = (Says.ROLLED_BACK, Says.BY_HAND_ROLLED_BACK)
_DECIDED = {
    Log.COMMIT: (Answer.COMMIT, "the decision log says commit"),
    Log.ROLLBACK: (Answer.ROLLBACK, "the decision log says rollback"),
    Log.NONE: (Answer.ROLLBACK, "the decision log has no decision, and nobody can make one any more"),
}


def advise(log: Log, says: Mapping[str, Says]) -> Advice:
    """The one consistent answer, if there is one. says: by participant."""
    in_doubt, silent = _those(says, Says.IN_DOUBT), _those(says, Says.UNREACHABLE)
    decided, why = _decision(log, says)
    committed, rolled_back = _those(says, *_COMMITTED), _those(says, *_ROLLED_BACK)
    mixed = _those(says, Says.BY_HAND_MIXED)
    if mixed or (committed and rolled_back):
        return Advice(Answer.MIXED, _mixed(committed, rolled_back, mixed, why), in_doubt)
    otherwise = {Answer.COMMIT: rolled_back, Answer.ROLLBACK: committed}.get(decided, ())
    if not in_doubt and not silent and not (otherwise and log is not Log.NONE):
        return Advice(Answer.NOTHING, f"no branch is in doubt; {_facts(says) or why}")
    if silent:
        why += f"; {_listed(silent)} {'does' if len(silent) == 1 else 'do'} not answer"
    if otherwise and log is Log.NONE and not in_doubt:  # it may be over, and then it was committed
        return Advice(Answer.UNKNOWN, f"{_facts(says)}; {why}: ask again when all answer")
    if otherwise:
        return Advice(Answer.MIXED, f"{why}, and {_facts(says)}", in_doubt)
    return Advice(decided, why, in_doubt)


def _decision(log: Log, says: Mapping[str, Says]) -> tuple[Answer, str]:
    """COMMIT, ROLLBACK or UNKNOWN, and what proves it, or why nothing does."""
    committed, rolled_back = _those(says, Says.COMMITTED), _those(says, Says.ROLLED_BACK)
    if committed and log not in (Log.COMMIT, Log.ROLLBACK):  # without a record it is committed everywhere, and over
        return Answer.COMMIT, f"{_listed(committed)} {_have(committed)} committed"
    if log in _DECIDED:
        return _DECIDED[log]
    if rolled_back:
        return Answer.ROLLBACK, f"{_listed(rolled_back)} {_have(rolled_back)} rolled back"
    if log is Log.LIVE:
        why = "the transaction manager runs and may be about to decide: wait for it, or stop it and ask again"
    elif log is Log.LAST:
        why = "the decision stands in the last resource, which does not tell it: ask again when it does"
    else:
        why = f"{log.value}, and no participant can tell an outcome: find the log that has the decision"
    return Answer.UNKNOWN, why


def _mixed(committed: Names, rolled_back: Names, mixed: Names, why: str) -> str:
    done = ((committed, "committed"), (rolled_back, "rolled back"), (mixed, "committed in part"))
    told = [f"{_listed(names)} {_have(names)} {what}" for names, what in done if names]
    return f"{' and '.join(told)}; {why}"


def _facts(says: Mapping[str, Says]) -> str:
    told = [f"{name} has {said.value}" for name, said in says.items() if said in (*_COMMITTED, *_ROLLED_BACK)]
    return " and ".join(told)


def _those(says: Mapping[str, Says], *wanted: Says) -> Names:
    return tuple(name for name, said in says.items() if said in wanted)


def _listed(names: Names) -> str:
    return " and ".join(names)


def _have(names: Names) -> str:
    return "has" if len(names) == 1 else "have"
