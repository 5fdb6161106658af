"""A thread that makes checkpoints: when a segment of the journal is full, when the directories have so many new files
that an open after a kill would take long to make them anew, and now and then while there is work.

Without it a space is just as durable, and its journal grows until the space is closed.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress

from xaqueue.errors import ResourceFailed
from xaqueue.space.engine.journal_log import JournalLog
from xaqueue.space.engine.state import Space
from xaqueue.space.model import layout

LOOK_S = 1.0
"""How often it looks whether there is something to do."""
NEW_FILES = 16 * 1024
"""With more since the last checkpoint, the next one is due."""


class Checkpointer:
    """Runs until ``stop``, or until the space fails."""

    def __init__(self, space: Space, log: JournalLog) -> None:
        self._space = space
        self._log = log
        self._stopped = False
        self._due = threading.Event()
        self._written = (0, 0)
        self.checkpoints = 0
        self.seconds = 0.0
        """The last checkpoint took so long."""
        log.journal.switched = self._due.set
        self._thread = threading.Thread(target=self._run, name="xaqueue-checkpoint", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped = True
        self._due.set()
        self._thread.join()

    def _run(self) -> None:
        log, journal = self._log, self._log.journal
        covered, made, last = journal.position, log.made, time.monotonic()
        while True:
            due = self._due.wait(LOOK_S)
            self._due.clear()
            if self._stopped:
                return
            self._write_counters()
            started = time.monotonic()
            due = due or started > last + self._space.definitions.checkpoint_s or log.made > made + NEW_FILES
            if not due or journal.position == covered:
                continue
            try:
                self._space.checkpoint()
            except ResourceFailed:
                return  # which is logged
            covered, made, last = journal.position, log.made, time.monotonic()
            self.checkpoints += 1
            self.seconds = last - started

    def _write_counters(self) -> None:
        """The cache's counters, for those who ask for the status."""
        counters = self._log.hits, self._log.misses
        if counters == self._written:
            return
        self._written = counters
        with suppress(OSError):
            self._space.fs.write_at(layout.COUNTERS, 0, [format_counters(*counters)])


def format_counters(hits: int, misses: int) -> bytes:
    """One line of fixed length, written in place."""
    return b"%020d %020d\n" % (hits, misses)


def parse_counters(data: bytes) -> tuple[int, int] | None:
    """Reads answered from memory, and from files; None for what is no such line."""
    words = data.split()
    return (int(words[0]), int(words[1])) if len(data) == 42 and len(words) == 2 and data[:20].isdigit() else None
