"""Recovery has a thread for each participant: rounds at once when there is something to finish, and now and then.

In a round the branches that the participant lists are finished, and those it lost are accounted for. Touched are only
branches that carry this log's node id and this participant's name, and whose transaction was over before the
participant was asked for its list. Decided ones are committed, undecided ones rolled back. A decision is acknowledged
by a participant that has just committed, or that has given its whole list and does not have it any more.

What goes wrong with one branch stops no other one. A participant that is down, or hangs, delays its own thread and
nothing else. What failed is tried again with growing pauses, for ever: a decision is never dropped.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from xaqueue.carried import Carriers
from xaqueue.errors import DecisionLogError
from xaqueue.tm import driver, voting
from xaqueue.tm.coordinator import Coordinator, TraceStep
from xaqueue.tm.gtrid import ListedBranch, parse_listed
from xaqueue.tm.node_schema import identity_of
from xaqueue.tm.participant import ConnectionSource
from xaqueue.tm.records import Heuristic
from xaqueue.tm.sweep import Sweep
from xaqueue.tm.voting import Command, ParticipantOutcome, Replies, Reply, XaVerb
from xaqueue.xa import Outcome

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 30.0
OLD = timedelta(minutes=5)
"""A branch that is prepared for longer keeps a database from its work, and whoever runs it is told."""
_STEPS = {
    XaVerb.COMMIT: (TraceStep.COMMIT, TraceStep.COMMITTED),
    XaVerb.ROLLBACK: (TraceStep.ROLLBACK, TraceStep.ROLLED_BACK),
}

log = logging.getLogger("xaqueue")


@dataclass(slots=True)
class ScanReport:
    """What one round of recovery did at one participant."""

    participant: str
    complete: bool = False
    """Whether the participant listed all its branches in doubt, and each one that was finished answered."""
    committed: list[bytes] = field(default_factory=list)
    rolled_back: list[bytes] = field(default_factory=list)
    finished_before: list[bytes] = field(default_factory=list)
    """Decided, and not in doubt at the participant any more."""
    heuristics: list[Heuristic] = field(default_factory=list)
    left: list[bytes] = field(default_factory=list)
    """Own ones that are live, or wait for a database that may have decided."""
    untouched: list[tuple[str, str]] = field(default_factory=list)
    """Branches of other nodes of the same database that are left, each with why; "": its node lives."""
    strangers: list[str] = field(default_factory=list)
    """Names of participants in own xids that are not configured here any more."""
    carrying: str = ""
    """Why no database carries for it, or what one has carried is not delivered yet."""
    is_awaited: bool = False
    """Queues wait for that."""
    error: str = ""
    """Why it is not complete."""

    def followed_by(self, later: ScanReport) -> ScanReport:
        """Both, as one."""
        return replace(
            later,
            committed=self.committed + later.committed,
            rolled_back=self.rolled_back + later.rolled_back,
            finished_before=self.finished_before + later.finished_before,
            heuristics=self.heuristics + later.heuristics,
        )


@dataclass(slots=True)
class RecoveryResult:
    """What ``TransactionManager.recover`` found, by participant."""

    scans: dict[str, ScanReport] = field(default_factory=dict)

    def add(self, other: RecoveryResult) -> None:
        """What was found of an adopted slot."""
        for name, scan in other.scans.items():
            own = self.scans[name]
            self.scans[name] = own.followed_by(scan) if own.complete else scan.followed_by(own)

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


class RecoveryThread:
    """Of one participant. ``run_once`` may be called without its thread, but not beside it."""

    def __init__(self, coordinator: Coordinator, source: ConnectionSource, interval_s: float) -> None:
        self._coordinator = coordinator
        self._source = source
        self._name = source.name
        self._interval_s = interval_s
        self._connection: Any = None
        self._has_read = False
        """Whether the decisions were read that earlier lives have left in its database."""
        self._changed = threading.Condition()
        self._asked = 0
        self._answered = 0
        self._stopped = False
        self._warned: set[str] = set()
        """Branches that were said to be old."""
        self._thread: threading.Thread | None = None
        self.report = ScanReport(source.name, error="not asked yet")
        """Of the last round."""

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name=f"xaqueue-recovery-{self._name}", daemon=True)
        self._thread.start()

    def wake(self) -> int:
        """Asks for a round from now on; returns its number."""
        with self._changed:
            self._asked += 1
            self._changed.notify_all()
            return self._asked

    def wait(self, number: int, deadline: float | None) -> ScanReport:
        """The report of that round, or of a later one; where it does not come until then, one that says so."""
        with self._changed:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if self._changed.wait_for(lambda: self._answered >= number or self._stopped, left) and not self._stopped:
                return self.report
        return ScanReport(self._name, error="it has not answered yet; recovery goes on")

    def stop(self, patience_s: float) -> None:
        """Ends the thread, unless it hangs in a call of the participant: then it ends after that."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(patience_s)
        if self._thread is None or not self._thread.is_alive():
            self._drop()

    def _run(self) -> None:
        pause_s = FIRST_PAUSE_S
        while not self._stopped:
            number = self._asked
            report = self._run_whatever_comes()
            with self._changed:
                self._answered = max(self._answered, number)
                self._changed.notify_all()
                trouble = report.error or report.carrying
                wait_s = min(pause_s, self._interval_s) if trouble else self._interval_s
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S) if trouble else FIRST_PAUSE_S
                self._changed.wait_for(lambda: self._asked > number or self._stopped, wait_s)  # noqa: B023
        self._drop()

    def _run_whatever_comes(self) -> ScanReport:
        """A round in this thread, to which nobody else would see: a driver may raise CancelledError, or SystemExit."""
        try:
            return self.run_once()
        except BaseException as error:
            self._connection = None
            self.report = ScanReport(self._name, error=f"{type(error).__name__}: {error}")
            self._log_changes(self.report)
            return self.report

    @property
    def is_alive(self) -> bool:
        """Whether its thread is not over: stopped, it hangs in a call of the participant."""
        return self._thread is not None and self._thread.is_alive()

    def run_once(self) -> ScanReport:
        """A round. A connection that was kept and fails is replaced at once."""
        kept = self._connection is not None
        report = self._round()
        if kept and self._connection is None and not self._stopped:
            report = self._round()
        self._log_changes(report)
        self.report = report
        return report

    def _round(self) -> ScanReport:
        report = ScanReport(self._name)
        try:
            if self._connection is None:
                self._connection = self._source.open()
            if self._stopped:  # it hung in there, and its transaction manager is closed
                report.error = "closed"
            else:
                self._read_decisions(report)
                if driver.has_two_phases(self._connection):
                    self._scan(report)
        except DecisionLogError as error:
            report.error = str(error)
        except Exception as error:  # whatever a driver raises: it is reported, and the round is made again
            report.error = f"{type(error).__name__}: {error}"
        if report.error:
            self._drop()
        report.complete = not (report.error or report.is_awaited or self._stopped)
        return report

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            driver.close(connection)

    def _log_changes(self, report: ScanReport) -> None:
        """Logs each change for better or worse, and not each round; at the end nothing is tried again."""
        if self._stopped:
            return
        before, trouble = self._coordinator.trouble.pop(self._name, ""), report.error or report.carrying
        if trouble:
            self._coordinator.trouble[self._name] = trouble
            if trouble != before:
                log.warning("[participant-waits] recovery at %s: %s; it goes on trying", self._name, trouble)
        elif before:
            log.info("[participant-recovered] recovery at participant %s is complete again", self._name)
        if report.committed or report.rolled_back:
            counts = len(report.committed), len(report.rolled_back)
            log.info("[participant-recovered] at %s: %d branches committed, %d rolled back", self._name, *counts)

    # A participant with two phases

    def _scan(self, report: ScanReport) -> None:
        """Finishes what can be finished now. Raises what the driver raises to the listing itself."""
        before = self._coordinator.snapshot()
        outstanding = self._coordinator.outstanding(self._name, before)
        carriers = self._connection.carriers() if driver.offers(self._connection, "carriers") else None
        if any(outstanding.values()) or not self._coordinator.deciding.rows.keys().isdisjoint(outstanding):
            self._connection.harden()
        sweep = self._coordinator.log.sweep(self._name, self._connection)
        listed = map(parse_listed, self._connection.tpc_recover())
        found = [one for one in listed if one is not None and driver.is_here(self._connection, one.xid)]
        self._coordinator.hear(self._name, found, carriers)
        own = [branch for branch in found if branch.gtrid.node == self._coordinator.log.node]
        report.strangers = list(self._strangers(own))
        mine = [branch for branch in own if branch.participant == self._name]
        for branch in mine:
            if self._stopped:
                return
            gtrid = bytes(branch.gtrid)
            decision = self._coordinator.action_for(gtrid, self._name, before)
            if decision is None:
                report.left.append(gtrid)
            else:
                self._finish(gtrid, branch.xid, decision, report, is_listed=True)
        for gtrid in sorted(outstanding.keys() - {bytes(branch.gtrid) for branch in mine}):
            if self._stopped:
                return
            if gtrid in self._coordinator.deciding.rows:
                self._settle_carried(gtrid, carriers, report)
                continue
            voted = self._coordinator.log.space_of(gtrid, self._name)
            if voted and voted != (carriers.space if carriers is not None else self._identity()):
                what = _gone(voted) if carriers is not None else f"database {voted}, and this is another one"
                report.error = f"{gtrid.decode()} is to be committed in {what}"
                continue
            if outstanding[gtrid]:  # committed before, and hardened now: a crash in between would have had it listed
                self._coordinator.settle(gtrid, Outcome.COMMITTED, {self._name: ParticipantOutcome.COMMITTED}, {})
                continue
            xid = driver.xid_on(self._connection, gtrid, self._name)
            self._finish(gtrid, xid, Outcome.COMMITTED, report)  # told all the same: some never list anything
        if carriers is not None:
            self._carry(carriers, report)
        if sweep is not None:
            self._sweep(sweep, found, report)
        self._coordinator.wake(self._coordinator.log.has_done_rows)
        self._warn_of_old({*report.committed, *report.rolled_back}, own)

    def _identity(self) -> str:
        return identity_of(self._connection, self._name).answer

    def _sweep(self, sweep: Sweep, found: Collection[ListedBranch], report: ScanReport) -> None:
        """Finishes what ended nodes of the same database have left."""
        for branch, outcome, why in sweep.words(found):
            gtrid, name = bytes(branch.gtrid), f"{branch.gtrid}, {branch.participant}"
            if outcome is not None:
                noted = self._coordinator.log.table.heuristics.get((gtrid, branch.participant))
                if voting.recovery_action(True, outcome, noted.outcome if noted is not None else None) is not None:
                    self._finish(gtrid, branch.xid, outcome, report, is_listed=True, named=branch.participant)
                    if gtrid in report.committed:
                        sweep.committed(branch)
                continue
            report.untouched.append((str(branch.gtrid), why))
            if why and self._is_news(name):
                log.warning("[branch-left] participant %s: a branch (%s) is left: %s", self._name, name, why)
        for name, why in sweep.strike(found).items():
            if self._is_news(name):
                log.warning("[decision-left] participant %s: what stands of %s stays: %s", self._name, name, why)

    def _is_news(self, name: str) -> bool:
        is_known = name in self._warned
        self._warned.add(name)
        return not is_known

    def _warn_of_old(self, ended: set[bytes], own: Iterable[ListedBranch]) -> None:
        """Once of each that stays prepared, where the driver tells since when."""
        for branch in own:
            name, since = f"{bytes(branch.gtrid).decode()}, {branch.participant}", getattr(branch.xid, "prepared", None)
            if bytes(branch.gtrid) in ended or name in self._warned or not isinstance(since, datetime):
                continue
            if datetime.now(since.tzinfo) - since > OLD:
                self._warned.add(name)
                log.warning(
                    "[branch-old] participant %s: a branch (%s) is prepared since %s, keeps its locks, and holds back "
                    "the vacuum of its database; `xaqueue indoubt advise` says what to do",
                    *(self._name, name, since.isoformat(" ", "minutes")),
                )

    def _settle_carried(self, gtrid: bytes, carriers: Carriers | None, report: ScanReport) -> None:
        """Its branch is not there any more: it was applied, which is hardened now, or its space is to be told of it."""
        row = self._coordinator.deciding.rows[gtrid]
        noted = carriers.get(row.carrier) if carriers is not None else None
        if carriers is None or carriers.space != row.space:
            report.carrying = f"the change of {gtrid.decode()} is for {_gone(row.space)}"
        elif noted is None or not noted.has_applied(row.number):
            self._coordinator.deciding.want(row)
        elif self._connection.carriers().life == carriers.life:
            self._coordinator.settle(gtrid, Outcome.COMMITTED, {self._name: ParticipantOutcome.COMMITTED}, {})

    def _carry(self, carriers: Carriers, report: ScanReport) -> None:
        """Arranges which databases carry for its space; see ``deciding``."""
        coordinator, deciding = self._coordinator, self._coordinator.deciding
        if not coordinator.log.carries_as:
            return
        others = [source for source in coordinator.sources.values() if source.name != self._name]
        databases = [one.name for one in others if one.may_decide or carriers.get(coordinator.log.carrier(one.name))]
        if coordinator.log.gives_signs:  # which has one carrier, whatever it is asked for
            databases = [one for one in databases if one == coordinator.log.decides]
        coordinator.wake(deciding.ask(self._name, carriers, databases))
        is_taken, trouble = deciding.deliver(self._name, carriers, self._connection, databases)
        report.carrying = report.carrying or trouble
        if is_taken:
            carriers = self._connection.carriers()
            coordinator.wake([self._name])  # what was waited for can be settled
        mine = [one for one in carriers.carriers if one.carrier.startswith(f"{coordinator.log.carries_as}.")]
        report.is_awaited = any(one.is_awaited for one in mine)

    def _strangers(self, own: Iterable[ListedBranch]) -> Iterable[str]:
        """Of this node, and nobody's: a participant that was renamed, or branches of a later life of an older log."""
        for branch in own:
            if branch.participant not in self._coordinator.sources:
                yield branch.participant
            elif branch.gtrid.epoch > self._coordinator.log.epoch:
                yield f"{branch.participant} of epoch {branch.gtrid.epoch}"

    def _finish(
        self, gtrid: bytes, xid: Any, decision: Outcome, report: ScanReport, *, is_listed: bool = False, named: str = ""
    ) -> None:
        """Tells a branch what was decided, and records what became of it. named: as its own node calls this one."""
        failures: list[Exception] = []

        def perform(command: Command) -> Replies:
            if command.verb is XaVerb.ASK:
                return {self._name: self._ask(xid, failures)}
            before, after = _STEPS[command.verb]
            self._coordinator.step(before, gtrid, self._name)
            reply = self._call(command.verb, xid, is_listed, failures)
            self._coordinator.step(after, gtrid, self._name)
            return {self._name: reply}

        outcome = voting.run(voting.finish(decision, [self._name], first=False), perform)[self._name]
        failed = str(failures[-1]) if failures else ""
        if outcome is ParticipantOutcome.PENDING:
            report.error = report.error or f"{gtrid.decode()}: {failed or 'still in doubt'}"
            return
        name = named or self._name
        noted = self._coordinator.settle(gtrid, decision, {name: outcome}, {name: failed})
        report.heuristics += noted
        if not noted:
            listed = report.committed if decision is Outcome.COMMITTED else report.rolled_back
            (listed if is_listed else report.finished_before).append(gtrid)
        for heuristic in noted:
            if not heuristic.agrees:
                log.error(
                    "[heuristic] transaction %s was to be %s: %s %s. It is kept until TransactionManager.forget, or "
                    "`xaqueue tm forget`",
                    *(gtrid.decode(), decision.value, self._name, outcome.value),
                )

    def _call(self, verb: XaVerb, xid: Any, is_listed: bool, failures: list[Exception]) -> Reply:
        try:
            (self._connection.tpc_commit if verb is XaVerb.COMMIT else self._connection.tpc_rollback)(xid)
        except Exception as error:
            failures.append(error)
            if driver.is_unknown_xid(error):  # just listed, it may be another mistake: the next list tells
                return Reply.PENDING if is_listed and not driver.offers(self._connection, "outcome") else Reply.UNKNOWN
            return driver.heuristic_answer(error) or Reply.PENDING
        return Reply.DONE

    def _ask(self, xid: Any, failures: list[Exception]) -> Reply:
        try:
            life = self._found_life()
            reply = driver.ask(self._connection, xid)
            if driver.offers(self._connection, "harden"):
                self._connection.harden()  # it tells what is so in memory
            return reply if self._found_life() == life else Reply.PENDING  # else it may have forgotten that in between
        except Exception as error:
            failures.append(error)
            return Reply.PENDING

    def _found_life(self) -> Any:
        return self._connection.carriers().life if driver.offers(self._connection, "carriers") else None

    # A database that may decide

    def _read_decisions(self, report: ScanReport) -> None:
        """Reads rows that nobody was told of, and removes those that nobody needs any more.

        Raises what the driver raises.
        """
        coordinator, decisions = self._coordinator, self._coordinator.log
        if self._name not in decisions.table.lasts:
            if not coordinator.deciding.is_asked(self._name):
                return
            coordinator.make_ready(self._name)
        if not self._has_read:
            coordinator.check_database(self._name, self._connection)
            needless = []
            for row in decisions.rows.read(self._connection, decisions.node, decisions.epoch):
                coordinator.take_row(row, self._name)
                if row.outcome is Outcome.ROLLED_BACK:
                    needless.append(row.gtrid)  # nobody is left who could commit it
            coordinator.wake(coordinator.sources)
            decisions.rows.delete(self._connection, needless)
            self._has_read = True
        for gtrid in coordinator.undecided(self._name):
            row = decisions.rows.resolve_own(self._connection, gtrid)
            coordinator.take_row(row, self._name)
            (report.committed if row.outcome is Outcome.COMMITTED else report.rolled_back).append(gtrid)
            coordinator.wake(row.participants or coordinator.sources)
        rows = coordinator.deciding.rows
        for row in decisions.came_back(self._connection):
            coordinator.deciding.add_row(row)
            decisions.restore_done_rows(self._name, [row.gtrid])
        done = decisions.take_done_rows(self._name)
        try:
            known = {gtrid: rows[gtrid] for gtrid in done if gtrid in rows}
            carried = {gtrid: (row.space, row.carrier, row.number) for gtrid, row in known.items()}
            decisions.rows.delete(self._connection, done, carried)
        except BaseException:
            decisions.restore_done_rows(self._name, done)
            raise
        decisions.removed(done)
        for gtrid in carried:
            del rows[gtrid]
        coordinator.wake(coordinator.deciding.begin(self._name, self._connection))


def _gone(space: str) -> str:
    """What is to be done where another space is in its place."""
    return (
        f"space {space}, and this is another one: put that back; or, where it was restored and has another id since, "
        f"`xaqueue tm release DIR {space}` ends the wait"
    )
