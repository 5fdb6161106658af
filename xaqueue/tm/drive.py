"""Performs the commands of a vote on the connections of one live transaction, side by side where they allow it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from xaqueue.errors import DecisionLogError, RetryLater
from xaqueue.tm.coordinator import Coordinator
from xaqueue.tm.enlisted import Enlisted, LastResource
from xaqueue.tm.steps import Step
from xaqueue.tm.voting import (
    DECISION,
    Answer,
    Answers,
    Ask,
    Command,
    Commit,
    CommitLast,
    CommitOnePhase,
    Decide,
    Prepare,
    Rollback,
    Verdict,
    Voting,
)
from xaqueue.xa import Outcome

_DECIDED = {Answer.DONE: Outcome.COMMITTED, Answer.REFUSED: Outcome.ROLLED_BACK}
"""What a last resource's answer means for all."""


class Drive:
    """Of one transaction. expired: whether it is too late to decide."""

    def __init__(
        self,
        coordinator: Coordinator,
        gtrid: bytes,
        enlisted: Mapping[str, Enlisted],
        expired: Callable[[], bool] = lambda: False,
    ) -> None:
        self._coordinator = coordinator
        self._gtrid = gtrid
        self._enlisted = enlisted
        self._expired = expired
        self.error: Exception | None = None
        """Why the log did not take the decision."""
        self._perform: dict[type[Command], Callable[..., Answers]] = {
            Prepare: lambda command: self._each(command, Step.PREPARE, Step.PREPARED, lambda one: one.prepare()),
            Commit: lambda command: self._each(command, Step.COMMIT, Step.COMMITTED, lambda one: one.commit()),
            CommitOnePhase: lambda command: self._each(
                command, Step.COMMIT, Step.COMMITTED, lambda one: one.commit_one_phase()
            ),
            Rollback: lambda command: self._each(command, Step.ROLLBACK, Step.ROLLED_BACK, lambda one: one.rollback()),
            Ask: lambda command: {name: self._enlisted[name].ask() for name in command.names},
            Decide: self._decide,
            CommitLast: self._commit_last,
        }

    def run(self, voting: Voting) -> Verdict:
        """Until it comes to a verdict."""
        try:
            command = next(voting)
            while True:
                command = voting.send(self._perform[type(command)](command))
        except StopIteration as end:
            verdict: Verdict = end.value
            return verdict

    def _each(self, command: Command, before: Step, after: Step, verb: Callable[[Enlisted], Answer]) -> Answers:
        def call(name: str) -> Answer:
            self._coordinator.step(before, self._gtrid, name)
            answer = verb(self._enlisted[name])
            self._coordinator.step(after, self._gtrid, name)
            return answer

        together = all(self._enlisted[name].is_parallel for name in command.names)
        lent = {name: self._coordinator.lend(call, name) for name in command.names[1:] if together}
        futures = {name: future for name, future in lent.items() if future is not None}
        try:
            answers = {name: call(name) for name in command.names if name not in futures}
        finally:
            for future in futures.values():
                future.exception()  # it is over, however it ended
        return answers | {name: future.result() for name, future in futures.items()}

    def _decide(self, command: Decide) -> Answers:
        if self._expired():
            return {DECISION: Answer.REFUSED}
        self._coordinator.step(Step.DECIDE, self._gtrid, "")
        try:
            self._coordinator.log.decide(self._gtrid, command.names, command.last)
        except RetryLater as full:
            self.error = full
            return {DECISION: Answer.REFUSED}
        except DecisionLogError as failed:
            self.error = failed
            return {DECISION: Answer.LOST}
        self._coordinator.step(Step.DECIDED, self._gtrid, "")
        return {DECISION: Answer.DONE}

    def _commit_last(self, command: CommitLast) -> Answers:
        (name,) = command.names
        last = self._enlisted[name]
        assert isinstance(last, LastResource)
        self._coordinator.step(Step.COMMIT_LAST, self._gtrid, name)
        answer = last.commit_last(self._coordinator.log.check)
        self._coordinator.step(Step.COMMITTED_LAST, self._gtrid, name)
        outcome = _DECIDED.get(answer)
        if outcome is not None:
            self._coordinator.log.resolve(self._gtrid, outcome)
        return {name: answer}
