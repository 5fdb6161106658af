"""A thread that makes checkpoints: when a segment of the journal is full, and now and then while there is work.

Without it a space is just as durable, and its journal grows until the space is closed.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from xaqueue.errors import ResourceFailed

if TYPE_CHECKING:
    from xaqueue.space.space import Space

log = logging.getLogger("xaqueue")


class Checkpointer:
    """Runs until ``stop``, or until the space fails."""

    def __init__(self, space: Space) -> None:
        self._space = space
        self._stopped = False
        self._due = threading.Event()
        self.checkpoints = 0
        self.seconds = 0.0
        """The last checkpoint took so long."""
        self._thread = threading.Thread(target=self._run, name="xaqueue-checkpoint", daemon=True)

    def start(self) -> None:
        journal = self._space.barrier.journal
        assert journal is not None
        journal.switched = self._due.set
        self._thread.start()

    def stop(self) -> None:
        self._stopped = True
        self._due.set()
        self._thread.join()

    def _run(self) -> None:
        journal = self._space.barrier.journal
        assert journal is not None
        covered = journal.position
        while True:
            self._due.wait(self._space.definitions.checkpoint_s)
            self._due.clear()
            if self._stopped:
                return
            if journal.position == covered:
                continue
            started = time.monotonic()
            try:
                self._space.checkpoint()
            except ResourceFailed as failed:
                if not self._space.closed:
                    log.error("no checkpoint: %s", failed)  # noqa: TRY400
                return
            covered = journal.position
            self.checkpoints += 1
            self.seconds = time.monotonic() - started
