"""A journal log over directories of its own, without a space: changes go in, and the directories follow."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from support.forgetful import ForgetfulFileSystem, Tree
from support.log_owner import LogOwner
from xaqueue.core.engine.journal_log import JournalLog
from xaqueue.core.model.change import Change, CoreStep, Op
from xaqueue.core.model.definitions import UNDEFINED
from xaqueue.core.model.queue import Queue
from xaqueue.core.storage.fs import FileSystem
from xaqueue.core.storage.journal import Journal

DIRECTORIES = ("active", "prepared", "committed", "committed/queue=q", "committed/queue=q/range=0")
RANGE = DIRECTORIES[-1]
MARK = "committed/queue=q/.watermark"


def directories() -> ForgetfulFileSystem:
    return Tree(dict.fromkeys(DIRECTORIES)).open()


class LoggedDirectories(JournalLog):
    """``through``: how far its next round publishes the queue. The journal stands elsewhere."""

    def __init__(self, fs: FileSystem, cache_bytes: int = 0) -> None:
        self.through: int | None = None
        journal = Journal(ForgetfulFileSystem(), segment_bytes=1024 * 1024)
        journal.start()
        self.owner = LogOwner(self._take_marks)
        super().__init__(fs, journal, threading.Lock(), self.owner, cache_bytes=cache_bytes)
        self.changed_queues["q"] = Queue("q", UNDEFINED, threading.Condition())

    def _take_marks(self, marks: dict[str, Queue]) -> None:
        if self.through is not None:
            marks["q"] = self.changed_queues["q"]
            marks["q"].published = marks["q"].last = self.through
            self.through = None

    def do(self, *ops: Op, rest: Sequence[Op] = ()) -> None:
        """One step."""
        self.perform(Change(CoreStep.COMMIT, "branch", ops, rest=rest))

    def publish(self, published: int, *ops: Op) -> None:
        """One step behind which the queue is published so far."""
        self.through = published
        self.do(*ops)
