"""Three participants in memory, and a coordinator that dies wherever it is told to: how a vote must end for all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from functools import partial

from support.paths import Choices, every_path
from xaqueue.tm import voting
from xaqueue.tm.voting import (
    DECISION,
    Command,
    Replies,
    Reply,
    TransactionResult,
    XaVerb,
    heuristic_code,
)
from xaqueue.tm.voting import ParticipantOutcome as Ended
from xaqueue.xa import Outcome

NAMES = ("a", "b", "c")
LAST = "last"
Prepare, CommitOnePhase, Decide, CommitLast, Commit, Rollback = (partial(Command, verb) for verb in list(XaVerb)[:6])


class Rm(Enum):
    """A participant's branch."""

    ACTIVE = "active"
    PREPARED = "prepared"
    NOTHING = "nothing to do"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"


class Crash(Enum):
    NO = "goes on"
    YES = "crashes"


CRASHES = tuple(Crash)


@dataclass
class World:
    """What outlives the transaction manager, and what was said before it ended."""

    choices: Choices
    tells: bool
    """Whether participants can tell the outcome of a branch."""
    rms: dict[str, Rm]
    by_hand: dict[str, Rm] = field(default_factory=dict)
    """What a person made of a prepared branch; kept by the participant unless it was forgotten."""
    forgotten: set[str] = field(default_factory=set)
    logged: Outcome | None = None
    row: bool | None = None
    """Of the last resource: whether its row is there; None: nobody looked, and it may still come."""
    said: dict[str, Ended] = field(default_factory=dict)
    """Heuristics that were reported."""

    # One command

    def perform(self, command: Command) -> Replies:
        if command.verb is XaVerb.DECIDE:
            return {DECISION: self._decide(command)}
        if command.verb is XaVerb.COMMIT_LAST:
            return {command.last: self._commit_last(command)}
        perform = _PERFORMED_BY[command.verb]
        return {name: perform(self, name) for name in command.names}

    def _prepare(self, name: str) -> Reply:
        assert self.rms[name] is Rm.ACTIVE
        options = ["prepared", "read-only", "refused", "answer lost", "request lost"]
        what = self.choices.choose(options, f"prepare {name}")
        self.rms[name] = {
            "prepared": Rm.PREPARED,
            "answer lost": Rm.PREPARED,
            "read-only": Rm.NOTHING,
            "refused": Rm.ROLLED_BACK,
            "request lost": Rm.ROLLED_BACK,
        }[what]
        votes = {"prepared": Reply.PREPARED, "read-only": Reply.READ_ONLY, "refused": Reply.REFUSED}
        return votes.get(what, Reply.LOST)

    def _decide(self, command: Command) -> Reply:
        assert all(self.rms[name] is Rm.PREPARED for name in command.names)
        what = self.choices.choose(["recorded", "no room", "lost, recorded", "lost, not recorded"], "decide")
        if what in ("recorded", "lost, recorded"):
            self.logged = Outcome.COMMITTED
        return {"recorded": Reply.DONE, "no room": Reply.REFUSED}.get(what, Reply.LOST)

    def _commit_last(self, command: Command) -> Reply:
        assert self.logged is None
        assert all(self.rms[name] is Rm.PREPARED for name in command.names)
        what = self.choices.choose(["committed", "refused", "lost, committed", "lost, not committed"], "last")
        self.row = what in ("committed", "lost, committed")
        self.rms[command.last] = Rm.COMMITTED if self.row else Rm.ROLLED_BACK
        return {"committed": Reply.DONE, "refused": Reply.REFUSED}.get(what, Reply.LOST)

    def _one_phase(self, name: str) -> Reply:
        assert self.logged is None
        what = self.choices.choose(["done", "refused", "lost, done", "lost, not done"], f"one phase {name}")
        self.rms[name] = Rm.COMMITTED if what in ("done", "lost, done") else Rm.ROLLED_BACK
        return {"done": Reply.DONE, "refused": Reply.REFUSED}.get(what, Reply.LOST)

    def _person(self, name: str) -> None:
        """Before a prepared branch is told anything, somebody may have decided on it."""
        if self.rms[name] is not Rm.PREPARED:
            return
        options = ["nobody", "commits", "rolls back", "rolls back and forgets", "commits and forgets"]
        what = self.choices.choose(options, f"a person at {name}")
        if what != "nobody":
            self.rms[name] = self.by_hand[name] = Rm.COMMITTED if what.startswith("commits") else Rm.ROLLED_BACK
            if what.endswith("forgets"):
                self.forgotten.add(name)

    def _commit(self, name: str) -> Reply:
        assert self.logged is Outcome.COMMITTED or self.row, "nobody commits before the decision is recorded"
        self._person(name)
        return self._second(name, Rm.COMMITTED)

    def _rollback(self, name: str) -> Reply:
        assert self.logged is not Outcome.COMMITTED
        assert not self.row
        if self.rms[name] is Rm.ACTIVE:
            self.rms[name] = Rm.ROLLED_BACK
            return Reply.DONE
        self._person(name)
        return self._second(name, Rm.ROLLED_BACK)

    def _second(self, name: str, wanted: Rm) -> Reply:
        if name in self.by_hand and name not in self.forgotten:
            return Reply.HEUR_COMMITTED if self.by_hand[name] is Rm.COMMITTED else Reply.HEUR_ROLLED_BACK
        if self.rms[name] is not Rm.PREPARED:
            return Reply.UNKNOWN
        what = self.choices.choose(["done", "answer lost", "request lost"], f"{wanted.value} {name}")
        if what != "request lost":
            self.rms[name] = wanted
        return Reply.DONE if what == "done" else Reply.PENDING

    def _ask(self, name: str) -> Reply:
        told = {Rm.COMMITTED: Reply.COMMITTED, Rm.ROLLED_BACK: Reply.ROLLED_BACK, Rm.PREPARED: Reply.PENDING}
        return told[self.rms[name]] if self.tells else Reply.UNKNOWN

    # The end of the transaction manager, and the next one

    def settle(self, outcome: Outcome, parties: dict[str, Ended]) -> None:
        self.said |= {name: party for name, party in parties.items() if party.is_heuristic}
        assert outcome in (Outcome.COMMITTED, Outcome.ROLLED_BACK)

    def recover(self, prepared: tuple[str, ...]) -> None:
        """What the next boot does: first the last resource's row, then each participant, which now answers."""
        for name, state in self.rms.items():
            if state is Rm.ACTIVE:
                self.rms[name] = Rm.ROLLED_BACK  # its session is gone
        decision = Outcome.COMMITTED if self.row else self.logged
        for name in [name for name in NAMES if name in self.rms]:
            heuristic = name in self.by_hand and name not in self.forgotten
            if self.rms[name] is Rm.PREPARED or heuristic:
                self._treat(name, voting.recovery_action(True, decision, self.said.get(name)))
            elif decision is not None and name in prepared and name not in self.said:
                told = drive(self, voting.finish(decision, [name], first=False))
                self.settle(decision, told)

    def _treat(self, name: str, outcome: Outcome | None) -> None:
        if outcome is None:
            assert name in self.said
            return
        party = Ended.PENDING
        while party is Ended.PENDING:  # retried for ever: here until it is told
            self.choices = Choices()
            party = drive(self, voting.finish(outcome, [name], first=False))[name]
        self.settle(outcome, {name: party})


_PERFORMED_BY = {
    XaVerb.PREPARE: World._prepare,
    XaVerb.COMMIT_ONE_PHASE: World._one_phase,
    XaVerb.COMMIT: World._commit,
    XaVerb.ROLLBACK: World._rollback,
    XaVerb.ASK: World._ask,
}


def drive(world: World, finishing: voting.Finishing) -> dict[str, Ended]:
    return voting.run(finishing, world.perform)


@dataclass
class Run:
    world: World
    verdict: TransactionResult | None
    """None: it crashed before there was one."""


def vote(
    choices: Choices, names: tuple[str, ...], last: str | None, tells: bool, crashes: bool, is_parallel: bool
) -> Run:
    world = World(choices, tells, dict.fromkeys((*names, *([last] if last else ())), Rm.ACTIVE))
    voted = voting.commit(names, last, is_parallel=is_parallel)
    prepared: tuple[str, ...] = ()
    verdict = None
    try:
        command = next(voted)
        while True:
            if crashes and choices.choose(CRASHES, "before") is Crash.YES:
                break
            if command.verb in (XaVerb.DECIDE, XaVerb.COMMIT_LAST):
                prepared = command.names
            answers = world.perform(command)
            if crashes and choices.choose(CRASHES, "after") is Crash.YES:
                break
            command = voted.send(answers)
    except StopIteration as end:
        verdict = end.value
        if verdict.outcome in (Outcome.COMMITTED, Outcome.ROLLED_BACK):
            world.settle(verdict.outcome, dict(verdict.participants))
    world.recover(prepared)
    return Run(world, verdict)


def judge(run: Run) -> None:
    """The rule: never one committed and another one rolled back, unless somebody else did it, and then it is said."""
    world, verdict = run.world, run.verdict
    states = {state for state in world.rms.values() if state is not Rm.NOTHING}
    assert states <= {Rm.COMMITTED, Rm.ROLLED_BACK}, "everything is finished"
    decided = verdict.outcome if verdict is not None else None
    if verdict is not None and decided in (Outcome.COMMITTED, Outcome.ROLLED_BACK):
        wanted = Rm.COMMITTED if decided is Outcome.COMMITTED else Rm.ROLLED_BACK
        against = {name for name, state in world.rms.items() if state not in (wanted, Rm.NOTHING)}
        assert against <= world.by_hand.keys(), "what was reported is what happened, but for a person"
        judge_report(world, verdict, against)
    else:
        by_itself = {state for name, state in world.rms.items() if name not in world.by_hand} - {Rm.NOTHING}
        assert len(by_itself) <= 1, "undecided for the caller, and one outcome for all"
    if len(states) == 2:
        assert world.by_hand, "only a person makes it mixed"
        assert world.said or world.forgotten, "and then it is said, as long as anybody knows"


def judge_report(world: World, verdict: TransactionResult, against: set[str]) -> None:
    """What the caller is told of those who did otherwise."""
    told = {name for name in against if verdict.participants[name].is_heuristic}
    if verdict.outcome is Outcome.COMMITTED:
        assert told == against, "a branch that is gone at the first commit is never counted as committed"
    if told:
        assert heuristic_code(verdict.outcome, verdict.participants) is not None
    for name, party in verdict.participants.items():
        if party is Ended.COMMITTED:
            assert world.rms[name] is Rm.COMMITTED


def judged(run: Callable[[Choices], Run]) -> int:
    runs = 0
    for choices, done in every_path(run):
        try:
            judge(done)
        except AssertionError as wrong:
            raise AssertionError(f"{wrong}: {choices}") from wrong
        runs += 1
    return runs


PREPARED = dict.fromkeys(NAMES, Reply.PREPARED)
