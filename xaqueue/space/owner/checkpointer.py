"""A thread that makes checkpoints: when a segment of the journal is full, when the directories have so many new files
that an open after a kill would take long to make them anew, and now and then while there is work.

Without it a space is just as durable, and its journal grows until the space is closed.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from xaqueue.errors import ResourceFailed
from xaqueue.space.model import layout

TELL_S = 1.0
"""How often it looks whether there is something to do or to tell."""
NEW_FILES = 16 * 1024
"""With more since the last checkpoint, the next one is due."""

if TYPE_CHECKING:
    from xaqueue.space.engine.state import Space


class Checkpointer:
    """Runs until ``stop``, or until the space fails."""

    def __init__(self, space: Space) -> None:
        self._space = space
        self._stopped = False
        self._due = threading.Event()
        self._told = (0, 0)
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
        lag = self._space.lag
        assert journal is not None
        assert lag is not None
        covered, made, last = journal.position, lag.made, time.monotonic()
        while True:
            due = self._due.wait(TELL_S)
            self._due.clear()
            if self._stopped:
                return
            self._tell()
            started = time.monotonic()
            due = due or started > last + self._space.definitions.checkpoint_s or lag.made > made + NEW_FILES
            if not due or journal.position == covered:
                continue
            try:
                self._space.checkpoint()
            except ResourceFailed:
                return  # which is logged
            covered, made, last = journal.position, lag.made, time.monotonic()
            self.checkpoints += 1
            self.seconds = last - started

    def _tell(self) -> None:
        """Writes the cache's counters, for those who ask for the status."""
        lag = self._space.lag
        if lag is None or (lag.hits, lag.misses) == self._told:
            return
        self._told = lag.hits, lag.misses
        with suppress(OSError):
            lag.fs.write_at(layout.COUNTERS, 0, [format_counters(*self._told)])


def format_counters(hits: int, misses: int) -> bytes:
    """One line of fixed length, written in place."""
    return b"%020d %020d\n" % (hits, misses)


def parse_counters(data: bytes) -> tuple[int, int] | None:
    """Reads answered from memory, and from files; None for what is no such line."""
    words = data.split()
    return (int(words[0]), int(words[1])) if len(data) == 42 and len(words) == 2 and data[:20].isdigit() else None
