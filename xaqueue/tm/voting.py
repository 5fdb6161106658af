"""The votes are counted in a generator, which asks and is answered, and has no other way to touch the world.

It yields commands and is sent what each named participant answered. Whoever drives it performs them: on connections,
in a simulator, at once or side by side. Presumed rollback: until the decision is hardened, nothing but the branches
themselves is durable, and whoever finds one without a decision rolls it back.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from xaqueue.xa import Code, Outcome, TableKey

Names = tuple[str, ...]


class Reply(TableKey):
    """What one participant said to one command, or the lack of it."""

    PREPARED = "prepared"
    READ_ONLY = "read-only"
    REFUSED = "refused"
    """It is not prepared, not decided, not committed, and never will be."""
    LOST = "lost"
    """Nobody knows whether it was done."""
    DONE = "done"
    PENDING = "pending"
    """It could not be told; the same command may succeed later."""
    UNKNOWN = "unknown"
    """It knows no such branch."""
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    HEUR_COMMITTED = "committed by itself"
    HEUR_ROLLED_BACK = "rolled back by itself"
    HEUR_MIXED = "partly committed by itself"
    HEUR_HAZARD = "perhaps finished by itself"


class ParticipantOutcome(TableKey):
    """What became of one participant's branch."""

    READ_ONLY = "read-only"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    PENDING = "pending"
    UNKNOWN = "unknown"
    """Its one-phase commit got no answer."""
    HEUR_COMMITTED = "committed by itself"
    HEUR_ROLLED_BACK = "rolled back by itself"
    HEUR_MIXED = "partly committed by itself"
    HEUR_HAZARD = "perhaps finished by itself"
    """Its branch was gone when it was first told to commit, and it cannot tell why."""

    @property
    def is_heuristic(self) -> bool:
        return self in BY_ITSELF


BY_ITSELF = frozenset(one for one in ParticipantOutcome if one.name.startswith("HEUR_"))


class XaVerb(TableKey):
    """What is to be done by, or on behalf of, participants, and what they may reply."""

    PREPARE = "prepare"
    """PREPARED, READ_ONLY, REFUSED, LOST."""
    COMMIT_ONE_PHASE = "commit without a prepare"
    """Also the last resource's. DONE, REFUSED, LOST, or a heuristic one."""
    DECIDE = "harden the decision to commit these"
    """Under ``DECISION``: DONE, REFUSED (surely not recorded), LOST."""
    COMMIT_LAST = "commit the last resource with its row, which is the decision to commit these"
    """Under its name: DONE, REFUSED, LOST."""
    COMMIT = "commit"
    """DONE, PENDING, UNKNOWN, or a heuristic one."""
    ROLLBACK = "roll back"
    """DONE, PENDING, UNKNOWN, or a heuristic one."""
    ASK = "tell what became of the branch"
    """COMMITTED, ROLLED_BACK, PENDING (it is in doubt), UNKNOWN."""


class Command(NamedTuple):
    """A verb, for these participants. last: of COMMIT_LAST, whose commit decides."""

    verb: XaVerb
    names: Names
    last: str = ""


DECISION = ""
"""Stands in answers where a participant's name would."""
Replies = Mapping[str, Reply]


@dataclass(frozen=True, slots=True)
class TransactionResult:
    """How a global transaction ended, or did not yet.

    outcome: COMMITTED or ROLLED_BACK as decided, whoever has heard of it; IN_DOUBT where the decision may or may not
    have been recorded; UNKNOWN where a commit in one phase got no answer.
    """

    outcome: Outcome
    participants: Mapping[str, ParticipantOutcome] = field(default_factory=dict)


Outcomes = dict[str, ParticipantOutcome]
Voting = Generator[Command, Replies, TransactionResult]
Finishing = Generator[Command, Replies, Outcomes]
R = TypeVar("R")


def run(
    voting: Generator[Command, Replies, R], perform: Callable[[Command], Replies], said: Iterable[Replies] = ()
) -> R:
    """Performs what is asked for until it comes to its result. said: the replies to what it asks first, and is done."""
    try:
        command = next(voting)
        for replies in said:
            command = voting.send(replies)
        while True:
            command = voting.send(perform(command))
    except StopIteration as end:
        result: R = end.value
        return result


def commit(names: Sequence[str], last: str | None = None, *, is_parallel: bool = False) -> Voting:
    """Both phases, over the participants in this order.

    last: committed in one phase between them, which decides; not among the names. is_parallel: they may prepare side by
    side.
    """
    if last is None and len(names) == 1:
        return (yield from _one_phase(names[0], {}))
    prepared: list[str] = []
    outcomes: Outcomes = {}
    waiting = list(names)
    while waiting:
        batch = tuple(waiting) if is_parallel else (waiting[0],)
        votes = yield Command(XaVerb.PREPARE, batch)
        waiting = waiting[len(batch) :]
        lost: list[str] = []
        for name in batch:
            if votes[name] is Reply.PREPARED:
                prepared.append(name)
            elif votes[name] is Reply.LOST:
                lost.append(name)
            else:
                outcomes[name] = _UNPREPARED[votes[name]]
        if lost or ParticipantOutcome.ROLLED_BACK in outcomes.values():
            return (yield from roll_back((*prepared, *lost, *waiting), last, outcomes))
    if not prepared:
        if last is not None:
            return (yield from _one_phase(last, outcomes))
        return TransactionResult(Outcome.COMMITTED, outcomes)
    return (yield from _decide(prepared, last, outcomes))


def _decide(prepared: Sequence[str], last: str | None, outcomes: Outcomes) -> Voting:
    if last is None:
        decided = (yield Command(XaVerb.DECIDE, tuple(prepared)))[DECISION]
    else:
        decided = (yield Command(XaVerb.COMMIT_LAST, tuple(prepared), last))[last]
        outcomes[last] = _OF_LAST[decided]
    if decided is Reply.LOST:
        return TransactionResult(Outcome.IN_DOUBT, outcomes | dict.fromkeys(prepared, ParticipantOutcome.PENDING))
    if decided is Reply.REFUSED:
        return (yield from roll_back(prepared, None, outcomes))
    outcomes |= yield from finish(Outcome.COMMITTED, prepared, first=True)
    return TransactionResult(Outcome.COMMITTED, outcomes)


def roll_back(names: Iterable[str], last: str | None = None, outcomes: Outcomes | None = None) -> Voting:
    """Nothing was decided: these go back, prepared or not. outcomes: of others."""
    others = tuple(names) if last is None else (*names, last)
    rolled_back = yield from finish(Outcome.ROLLED_BACK, others, first=True)
    return TransactionResult(Outcome.ROLLED_BACK, {**(outcomes or {}), **rolled_back})


def _one_phase(name: str, outcomes: Outcomes) -> Voting:
    """All the others are read-only, or there are none: its own commit is the decision, and no log is needed."""
    reply = (yield Command(XaVerb.COMMIT_ONE_PHASE, (name,)))[name]
    if reply is Reply.LOST:
        reply = (yield Command(XaVerb.ASK, (name,)))[name]
    outcome = _ONE_PHASE.get(reply, Outcome.UNKNOWN)
    mine = ParticipantOutcome(reply.value) if reply in _HEURISTIC else _AS_DECIDED[outcome]
    return TransactionResult(outcome, {**outcomes, name: mine})


def finish(decision: Outcome, names: Sequence[str], *, first: bool) -> Finishing:
    """Tells these participants what was decided, once, and says what became of each.

    Those that do not know their branch any more are asked what became of it, where they can tell. first: whether
    nobody can have told them before; a branch that is gone all the same is then no sign of a commit.
    """
    if not names:
        return {}
    asked = tuple(names)
    replies = yield Command(XaVerb.COMMIT if decision is Outcome.COMMITTED else XaVerb.ROLLBACK, asked)
    outcomes = {name: _outcome(decision, replies[name]) for name in asked if replies[name] is not Reply.UNKNOWN}
    gone = tuple(name for name in asked if name not in outcomes)
    if gone:
        answers = yield Command(XaVerb.ASK, gone)
        outcomes |= {name: _outcome_of_gone(decision, answers[name], first) for name in gone}
    return outcomes


def _outcome(decision: Outcome, reply: Reply) -> ParticipantOutcome:
    return _AS_DECIDED[decision] if reply is Reply.DONE else ParticipantOutcome(reply.value)


def _outcome_of_gone(decision: Outcome, answer: Reply, first: bool) -> ParticipantOutcome:
    if answer is Reply.PENDING:
        return ParticipantOutcome.PENDING
    if answer is Reply.UNKNOWN:
        hazard = first and decision is Outcome.COMMITTED
        return ParticipantOutcome.HEUR_HAZARD if hazard else _AS_DECIDED[decision]
    if answer.value == _AS_DECIDED[decision].value:
        return _AS_DECIDED[decision]
    by_itself = answer is Reply.COMMITTED
    return ParticipantOutcome.HEUR_COMMITTED if by_itself else ParticipantOutcome.HEUR_ROLLED_BACK


_AS_DECIDED = {
    Outcome.COMMITTED: ParticipantOutcome.COMMITTED,
    Outcome.ROLLED_BACK: ParticipantOutcome.ROLLED_BACK,
    Outcome.UNKNOWN: ParticipantOutcome.UNKNOWN,
}
_UNPREPARED = {
    Reply.READ_ONLY: ParticipantOutcome.READ_ONLY,
    Reply.REFUSED: ParticipantOutcome.ROLLED_BACK,
}
_HEURISTIC = (Reply.HEUR_COMMITTED, Reply.HEUR_ROLLED_BACK, Reply.HEUR_MIXED, Reply.HEUR_HAZARD)
_OF_LAST = {
    Reply.DONE: ParticipantOutcome.COMMITTED,
    Reply.REFUSED: ParticipantOutcome.ROLLED_BACK,
    Reply.LOST: ParticipantOutcome.PENDING,
}
_ONE_PHASE = {
    **dict.fromkeys((Reply.DONE, Reply.COMMITTED, Reply.HEUR_COMMITTED, Reply.HEUR_MIXED), Outcome.COMMITTED),
    **dict.fromkeys((Reply.REFUSED, Reply.ROLLED_BACK, Reply.HEUR_ROLLED_BACK), Outcome.ROLLED_BACK),
}
"""The transaction's outcome after its one participant's reply; UNKNOWN after any other."""


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


def recovery_action(
    is_over: bool, decision: Outcome | None = None, noted: ParticipantOutcome | None = None
) -> Outcome | None:
    """What recovery tells a branch that a participant listed, COMMITTED or ROLLED_BACK; None leaves it.

    Only own branches whose global transaction is over are touched; without a decision they are rolled back. is_over: it
    was begun by this log's transaction manager, and was not live any more when the participant was asked for its list.
    decision: IN_DOUBT where it may stand in a last resource that has not told it. noted: a heuristic of this very
    branch.
    """
    if not is_over or decision is Outcome.IN_DOUBT:
        return None
    if noted is not None and noted is not ParticipantOutcome.HEUR_HAZARD:
        return None  # it is listed until somebody forgets it
    return Outcome.COMMITTED if decision is Outcome.COMMITTED else Outcome.ROLLED_BACK
