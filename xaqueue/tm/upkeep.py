"""A thread that looks after the log and the clock: what is done is recorded as done, and expired work is interrupted.

Without it everything is just as durable: a crash then makes recovery look again at more that is done.
"""

from __future__ import annotations

import logging
import threading

from xaqueue.errors import DecisionLogError, RetryLater
from xaqueue.tm.coordinator import Coordinator

TICK_S = 0.5

log = logging.getLogger("xaqueue")


class Upkeep:
    """Runs until ``stop``."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="xaqueue-tm-upkeep", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, patience_s: float) -> None:
        """Ends the thread, unless it hangs in a call to the disk: then it ends after that."""
        self._stopped.set()
        self._thread.join(patience_s)

    def _run(self) -> None:
        failed = False
        while not self._stopped.wait(TICK_S):
            for transaction in self._coordinator.live():
                transaction.interrupt_if_expired()
            if not failed and not self._stopped.is_set():
                failed = not self._look_after_log()

    def _look_after_log(self) -> bool:
        """Whether it can go on."""
        decisions = self._coordinator.log
        try:
            decisions.flush()
            if decisions.wants_checkpoint:
                decisions.checkpoint()
        except RetryLater as full:
            log.warning("decision log: no checkpoint yet: %s", full)
        except DecisionLogError:
            return False  # which is logged
        return True
