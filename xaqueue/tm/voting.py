"""The votes are counted in a generator, which asks and is answered, and has no other way to touch the world.

It yields commands and is sent what each named participant answered. Whoever drives it performs them: on connections,
in a simulator, at once or side by side. Presumed rollback: until ``Decide`` is answered, nothing but the branches
themselves is durable, and whoever finds one without a decision rolls it back.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from xaqueue.xa import Code, Outcome

Names = tuple[str, ...]


class Answer(Enum):
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


class Party(Enum):
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
        return self.name.startswith("HEUR_")


@dataclass(frozen=True, slots=True)
class Command:
    """Something to be done by, or on behalf of, these participants."""

    names: Names


class Prepare(Command):
    """Answers: PREPARED, READ_ONLY, REFUSED, LOST."""


class CommitOnePhase(Command):
    """A commit without a prepare; also the last resource's. Answers: DONE, REFUSED, LOST, or a heuristic one."""


@dataclass(frozen=True, slots=True)
class Decide(Command):
    """Harden the decision to commit these; with ``last``, that it will stand there.

    Answered under ``DECISION``: DONE, REFUSED (surely not recorded), LOST.
    """

    last: str | None = None


class CommitLast(Command):
    """Commit the last resource together with its row, which is the decision. Answers: DONE, REFUSED, LOST."""


class Commit(Command):
    """Answers: DONE, PENDING, UNKNOWN, or a heuristic one."""


class Rollback(Command):
    """Answers: DONE, PENDING, UNKNOWN, or a heuristic one."""


class Ask(Command):
    """What became of the branch? Answers: COMMITTED, ROLLED_BACK, PENDING (it is in doubt), UNKNOWN."""


DECISION = ""
"""Stands in answers where a participant's name would."""
Answers = Mapping[str, Answer]


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a global transaction ended, or did not yet.

    outcome: COMMITTED or ROLLED_BACK as decided, whoever has heard of it; IN_DOUBT where the decision may or may not
    have been recorded; UNKNOWN where a commit in one phase got no answer.
    """

    outcome: Outcome
    parties: Mapping[str, Party] = field(default_factory=dict)


Voting = Generator[Command, Answers, Verdict]
Finishing = Generator[Command, Answers, dict[str, Party]]


def commit(names: Sequence[str], last: str | None = None, *, together: bool = False) -> Voting:
    """Both phases, over the participants in this order.

    last: one without two phases, committed between them; not among the names. together: they may prepare side by side.
    """
    if last is None and len(names) == 1:
        return (yield from _one_phase(names[0], {}))
    prepared: list[str] = []
    parties: dict[str, Party] = {}
    waiting = list(names)
    while waiting:
        batch = tuple(waiting) if together else (waiting[0],)
        votes = yield Prepare(batch)
        waiting = waiting[len(batch) :]
        prepared += [name for name in batch if votes[name] is Answer.PREPARED]
        parties |= {name: Party.READ_ONLY for name in batch if votes[name] is Answer.READ_ONLY}
        parties |= {name: Party.ROLLED_BACK for name in batch if votes[name] is Answer.REFUSED}
        lost = [name for name in batch if votes[name] is Answer.LOST]
        if lost or Party.ROLLED_BACK in parties.values():
            return (yield from roll_back((*prepared, *lost, *waiting), last, parties))
    if not prepared:
        return (yield from _one_phase(last, parties)) if last is not None else Verdict(Outcome.COMMITTED, parties)
    decided = (yield Decide(tuple(prepared), last))[DECISION]
    if last is None:
        if decided is Answer.LOST:
            return Verdict(Outcome.IN_DOUBT, parties | dict.fromkeys(prepared, Party.PENDING))
        if decided is Answer.REFUSED:
            return (yield from roll_back(prepared, None, parties))
    else:
        if decided is not Answer.DONE:  # without its row there is no decision, whatever the log has
            return (yield from roll_back(prepared, last, parties))
        told = (yield CommitLast((last,)))[last]
        if told is Answer.LOST:
            return Verdict(Outcome.IN_DOUBT, parties | dict.fromkeys((*prepared, last), Party.PENDING))
        if told is Answer.REFUSED:
            return (yield from roll_back(prepared, None, parties | {last: Party.ROLLED_BACK}))
        parties[last] = Party.COMMITTED
    parties |= yield from finish(Outcome.COMMITTED, prepared, first=True)
    return Verdict(Outcome.COMMITTED, parties)


def roll_back(names: Iterable[str], last: str | None = None, parties: Mapping[str, Party] | None = None) -> Voting:
    """Nothing was decided: these go back, prepared or not."""
    others = tuple(names) if last is None else (*names, last)
    told = yield from finish(Outcome.ROLLED_BACK, others, first=True)
    return Verdict(Outcome.ROLLED_BACK, {**(parties or {}), **told})


def _one_phase(name: str, parties: Mapping[str, Party]) -> Voting:
    """All the others are read-only, or there are none: its own commit is the decision, and no log is needed."""
    answer = (yield CommitOnePhase((name,)))[name]
    if answer is Answer.LOST:
        answer = (yield Ask((name,)))[name]
    party, outcome = _ONE_PHASE[answer]
    return Verdict(outcome, {**parties, name: party})


def finish(outcome: Outcome, names: Sequence[str], *, first: bool) -> Finishing:
    """Tells these participants what was decided, once, and says what became of each.

    first: whether they may have been told before; only then is an unknown branch a finished one.
    """
    if not names:
        return {}
    told = tuple(names)
    answers = yield Commit(told) if outcome is Outcome.COMMITTED else Rollback(told)
    parties = {name: _FINISHED[answers[name]] for name in told if answers[name] not in (Answer.DONE, Answer.UNKNOWN)}
    parties |= {name: _AS_DECIDED[outcome] for name in told if answers[name] is Answer.DONE}
    gone = tuple(name for name in told if answers[name] is Answer.UNKNOWN)
    return parties | (yield from account_for(outcome, gone, first=first))


def account_for(outcome: Outcome, names: Sequence[str], *, first: bool) -> Finishing:
    """What became of branches that their participants do not know any more: those that can tell are asked."""
    if not names:
        return {}
    answers = yield Ask(tuple(names))
    return {name: _gone(outcome, answers[name], first) for name in names}


def _gone(outcome: Outcome, told: Answer, first: bool) -> Party:
    if told is Answer.PENDING:
        return Party.PENDING
    if told is Answer.UNKNOWN:
        hazard = first and outcome is Outcome.COMMITTED
        return Party.HEUR_HAZARD if hazard else _AS_DECIDED[outcome]
    as_decided = (told is Answer.COMMITTED) is (outcome is Outcome.COMMITTED)
    by_itself = Party.HEUR_COMMITTED if told is Answer.COMMITTED else Party.HEUR_ROLLED_BACK
    return _AS_DECIDED[outcome] if as_decided else by_itself


_AS_DECIDED = {Outcome.COMMITTED: Party.COMMITTED, Outcome.ROLLED_BACK: Party.ROLLED_BACK}
_HEURISTIC = {
    Answer.HEUR_COMMITTED: Party.HEUR_COMMITTED,
    Answer.HEUR_ROLLED_BACK: Party.HEUR_ROLLED_BACK,
    Answer.HEUR_MIXED: Party.HEUR_MIXED,
    Answer.HEUR_HAZARD: Party.HEUR_HAZARD,
}
_FINISHED = {Answer.PENDING: Party.PENDING, **_HEURISTIC}
_ONE_PHASE = {
    Answer.DONE: (Party.COMMITTED, Outcome.COMMITTED),
    Answer.COMMITTED: (Party.COMMITTED, Outcome.COMMITTED),
    Answer.REFUSED: (Party.ROLLED_BACK, Outcome.ROLLED_BACK),
    Answer.ROLLED_BACK: (Party.ROLLED_BACK, Outcome.ROLLED_BACK),
    Answer.PENDING: (Party.UNKNOWN, Outcome.UNKNOWN),
    Answer.UNKNOWN: (Party.UNKNOWN, Outcome.UNKNOWN),
    Answer.HEUR_COMMITTED: (Party.HEUR_COMMITTED, Outcome.COMMITTED),
    Answer.HEUR_ROLLED_BACK: (Party.HEUR_ROLLED_BACK, Outcome.ROLLED_BACK),
    Answer.HEUR_MIXED: (Party.HEUR_MIXED, Outcome.COMMITTED),
    Answer.HEUR_HAZARD: (Party.HEUR_HAZARD, Outcome.UNKNOWN),
}


def heuristic_code(outcome: Outcome, parties: Mapping[str, Party]) -> Code | None:
    """What a caller has to be told beside the outcome; None where everybody did, or will do, as was decided."""
    agreeing = Party.HEUR_COMMITTED if outcome is Outcome.COMMITTED else Party.HEUR_ROLLED_BACK
    opposed = Party.HEUR_ROLLED_BACK if outcome is Outcome.COMMITTED else Party.HEUR_COMMITTED
    wrong = {party for party in parties.values() if party.is_heuristic and party is not agreeing}
    if not wrong:
        return None
    if wrong == {Party.HEUR_HAZARD}:
        return Code.XA_HEURHAZ
    if {party for party in parties.values() if party is not Party.READ_ONLY} == {opposed}:
        return Code.XA_HEURRB if opposed is Party.HEUR_ROLLED_BACK else Code.XA_HEURCOM
    return Code.XA_HEURMIX


# Recovery


class Treatment(Enum):
    """What recovery does with a branch that a participant listed."""

    LEAVE = "leave"
    COMMIT = "commit"
    ROLL_BACK = "roll back"


@dataclass(frozen=True, slots=True)
class Known:
    """What this transaction manager knows of a branch's global transaction.

    over: it was begun here, and was not live any more when the participant was asked for its list. decision: None
    where the log has none; IN_DOUBT where it stands in the last resource. noted: a heuristic of this very branch.
    """

    own: bool
    over: bool
    decision: Outcome | None = None
    noted: Party | None = None


def treatment(known: Known) -> Treatment:
    """Only own branches whose global transaction is over are touched; without a decision they are rolled back."""
    if not known.own or not known.over or known.decision is Outcome.IN_DOUBT:
        return Treatment.LEAVE
    if known.noted is not None and known.noted is not Party.HEUR_HAZARD:
        return Treatment.LEAVE  # it is listed until somebody forgets it
    return Treatment.COMMIT if known.decision is Outcome.COMMITTED else Treatment.ROLL_BACK
