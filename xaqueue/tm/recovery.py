"""One round of recovery at one participant: branches that it lists are finished, those it lost are accounted for.

Touched are only branches that carry this log's node id and this participant's name, and whose transaction was over
before the participant was asked for its list. Decided ones are committed, undecided ones rolled back. A decision is
acknowledged by a participant that has just committed, or that has told its whole list and does not have it any more.
What goes wrong with one branch stops no other one, and is tried again in the next round.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from xaqueue.tm import marker, voting
from xaqueue.tm.coordinator import Coordinator, Mark
from xaqueue.tm.gtrid import Gtrid, Listed, listed
from xaqueue.tm.participants import Source, ask, can_tell, heuristic_answer, is_unknown_xid, xid_on
from xaqueue.tm.standing import ScanReport
from xaqueue.tm.steps import Step
from xaqueue.tm.voting import Answer, Answers, Ask, Command, Commit, Finishing, Party, Treatment
from xaqueue.xa import Outcome

log = logging.getLogger("xaqueue")


def scan(
    coordinator: Coordinator, source: Source, connection: Any, stopped: Callable[[], bool] = lambda: False
) -> ScanReport:
    """Finishes what can be finished at this participant now. Raises what the driver raises to the scan itself."""
    return _Scan(coordinator, source, connection, stopped).run()


class _Scan:
    def __init__(self, coordinator: Coordinator, source: Source, connection: Any, stopped: Callable[[], bool]) -> None:
        self.coordinator = coordinator
        self.source = source
        self.name = source.name
        self.connection = connection
        self.stopped = stopped
        self.report = ScanReport(self.name)
        self.error: Exception | None = None
        """Of the branch in hand."""
        self.listed = False
        """Whether the participant has that one in its list."""

    def run(self) -> ScanReport:
        before = self.coordinator.mark(self.name)
        found = [branch for branch in map(listed, self.connection.tpc_recover()) if branch is not None]
        own = [branch for branch in found if branch.gtrid.node == self.coordinator.log.node]
        self._tell_strangers(own)
        mine = [branch for branch in own if branch.participant == self.name]
        for branch in mine:
            if self.stopped():
                break
            self._treat(branch, before)
        seen = {bytes(branch.gtrid) for branch in mine}
        for gtrid in sorted(before.outstanding.keys() - seen):
            if self.stopped():
                break
            self._account_for(gtrid, before.outstanding[gtrid])
        self.report.complete = not self.report.error and not self.stopped()
        return self.report

    def _tell_strangers(self, own: Iterable[Listed]) -> None:
        """Of this node, and nobody's: a participant that was renamed, or branches of a later life of an older log."""
        for branch in own:
            if branch.participant not in self.coordinator.sources:
                self.report.strangers.append(branch.participant)
            elif branch.gtrid.epoch > self.coordinator.log.epoch:
                self.report.strangers.append(f"{branch.participant} of epoch {branch.gtrid.epoch}")

    def _treat(self, branch: Listed, before: Mark) -> None:
        treatment = voting.treatment(self.coordinator.known(branch.gtrid, self.name, before))
        gtrid = bytes(branch.gtrid)
        if treatment is Treatment.ROLL_BACK and not self.coordinator.may_presume():
            treatment = Treatment.LEAVE
        if treatment is Treatment.LEAVE:
            self.report.left.append(gtrid)
            return
        outcome = Outcome.COMMITTED if treatment is Treatment.COMMIT else Outcome.ROLLED_BACK
        self.listed = True
        party = self._drive(gtrid, branch.xid, voting.finish(outcome, [self.name], first=False))
        finished = self.report.committed if outcome is Outcome.COMMITTED else self.report.rolled_back
        self._settle(gtrid, outcome, party, finished)

    def _account_for(self, gtrid: bytes, outcome: Outcome) -> None:
        xid = xid_on(self.connection, gtrid, self.name)
        self.listed = False
        party = self._drive(gtrid, xid, voting.finish(outcome, [self.name], first=False))  # some never list anything
        self._settle(gtrid, outcome, party, self.report.finished_before)

    def _settle(self, gtrid: bytes, outcome: Outcome, party: Party, finished: list[bytes]) -> None:
        if party is Party.PENDING:
            why = str(self.error or "still in doubt")
            self.report.error = self.report.error or f"{gtrid.decode()}: {why}"
            return
        detail = str(self.error) if self.error is not None else ""
        noted = self.coordinator.settle(gtrid, outcome, {self.name: party}, {self.name: detail})
        self.report.heuristics += noted
        if not noted:
            finished.append(gtrid)
        for heuristic in noted:
            if not heuristic.agrees:
                log.error(
                    "transaction %s was to be %s: %s %s. It is kept until TransactionManager.forget",
                    *(gtrid.decode(), outcome.value, self.name, party.value),
                )

    def _drive(self, gtrid: bytes, xid: Any, finishing: Finishing) -> Party:
        self.error = None
        command = next(finishing)
        while True:
            try:
                command = finishing.send(self._perform(command, gtrid, xid))
            except StopIteration as end:
                parties: dict[str, Party] = end.value
                return parties[self.name]

    def _perform(self, command: Command, gtrid: bytes, xid: Any) -> Answers:
        if isinstance(command, Ask):
            return {self.name: self._ask(xid)}
        commits = isinstance(command, Commit)
        verb = self.connection.tpc_commit if commits else self.connection.tpc_rollback
        self.coordinator.step(Step.COMMIT if commits else Step.ROLLBACK, gtrid, self.name)
        answer = self._tell(verb, xid)
        self.coordinator.step(Step.COMMITTED if commits else Step.ROLLED_BACK, gtrid, self.name)
        return {self.name: answer}

    def _tell(self, verb: Callable[[Any], None], xid: Any) -> Answer:
        try:
            verb(xid)
        except Exception as error:
            self.error = error
            if is_unknown_xid(error):  # just listed, it may be another mistake: the next list tells
                return Answer.PENDING if self.listed and not can_tell(self.connection) else Answer.UNKNOWN
            return heuristic_answer(error) or Answer.PENDING
        return Answer.DONE

    def _ask(self, xid: Any) -> Answer:
        try:
            return ask(self.connection, xid)
        except Exception as error:
            self.error = error
            return Answer.PENDING


def read_last(coordinator: Coordinator, source: Source, connection: Any) -> ScanReport:
    """The last resource's part: reads decisions that nobody was told of, and removes rows that nobody needs any more.

    Raises what the driver raises.
    """
    report = ScanReport(source.name)
    undecided = coordinator.undecided()
    if not coordinator.has_table and not undecided:  # else it was made before: without it this is another database
        marker.create(connection)
        coordinator.has_table = True
    for gtrid in undecided:
        outcome = marker.resolve(connection, gtrid)
        coordinator.log.resolve(gtrid, outcome)
        (report.committed if outcome is Outcome.COMMITTED else report.rolled_back).append(gtrid)
    written = marker.rows(connection, coordinator.log.node)
    needless = coordinator.over([gtrid for gtrid in written if Gtrid.parse(gtrid) is not None])
    if needless and coordinator.may_presume():
        coordinator.log.flush()  # that they are done has to outlive their rows
        marker.delete(connection, needless)
    report.complete = True
    return report
