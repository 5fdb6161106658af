"""A thread for each participant: rounds of recovery, at once when there is something to finish, and now and then.

A participant that is down, or hangs, delays its own thread and nothing else. What failed is tried again with growing
pauses, for ever: a decision is never dropped.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

from xaqueue.errors import DecisionLogError
from xaqueue.tm import recovery
from xaqueue.tm.coordinator import Coordinator
from xaqueue.tm.participants import Source, close
from xaqueue.tm.standing import ScanReport

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 30.0

log = logging.getLogger("xaqueue")


class Resolver:
    """Of one participant. ``run_once`` may be called without its thread, but not beside it."""

    def __init__(self, coordinator: Coordinator, source: Source, interval_s: float) -> None:
        self._coordinator = coordinator
        self._source = source
        self._interval_s = interval_s
        self._connection: Any = None
        self._changed = threading.Condition()
        self._asked = 0
        self._answered = 0
        self._stopped = False
        self._thread: threading.Thread | None = None
        self.report = ScanReport(source.name, error="not asked yet")
        """Of the last round."""

    def start(self) -> None:
        name = f"xaqueue-recovery-{self._source.name}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
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
        return ScanReport(self._source.name, error="it has not answered yet; recovery goes on")

    def stop(self, patience_s: float) -> None:
        """Ends the thread, unless it hangs in a call of the participant: then it ends after that."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(patience_s)
        if self._thread is None or not self._thread.is_alive():
            self._drop()

    def run_once(self) -> ScanReport:
        """A round. A connection that was kept and fails is replaced at once."""
        kept = self._connection is not None
        report = self._round()
        if kept and self._connection is None and not self._stopped:
            report = self._round()
        self._tell(report)
        self.report = report
        return report

    def _round(self) -> ScanReport:
        try:
            if self._connection is None:
                self._connection = self._source.open()
            if self._stopped:  # it hung in there, and its transaction manager is closed
                return ScanReport(self._source.name, error="closed")
            if self._source.is_last:
                report = recovery.read_last(self._coordinator, self._source, self._connection)
            else:
                report = recovery.scan(self._coordinator, self._source, self._connection, lambda: self._stopped)
        except DecisionLogError as error:
            report = ScanReport(self._source.name, error=str(error))
        except Exception as error:  # whatever a driver raises: it is reported, and the round is made again
            report = ScanReport(self._source.name, error=f"{type(error).__name__}: {error}")
        if report.error:
            self._drop()
        if self._source.is_last and (report.committed or report.rolled_back):
            self._coordinator.wake(self._coordinator.sources)
        return report

    def _tell(self, report: ScanReport) -> None:
        """Logs each change for better or worse, and not each round."""
        before = self._coordinator.trouble.pop(self._source.name, "")
        if report.error:
            self._coordinator.trouble[self._source.name] = report.error
            if report.error != before:
                log.warning("recovery at participant %s: %s; it goes on trying", self._source.name, report.error)
        elif before:
            log.info("recovery at participant %s is complete again", self._source.name)
        if report.committed or report.rolled_back:
            log.info(
                "recovery at participant %s: %d branches committed, %d rolled back",
                *(self._source.name, len(report.committed), len(report.rolled_back)),
            )

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            close(connection)

    def _run(self) -> None:
        pause_s = FIRST_PAUSE_S
        while not self._stopped:
            number = self._asked
            report = self.run_once()
            with self._changed:
                self._answered = max(self._answered, number)
                self._changed.notify_all()
                wait_s = min(pause_s, self._interval_s) if report.error else self._interval_s
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S) if report.error else FIRST_PAUSE_S
                self._changed.wait_for(lambda: self._asked > number or self._stopped, wait_s)  # noqa: B023
        self._drop()
