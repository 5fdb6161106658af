"""The first attempt at a share is slow, so that Spark makes another: they end together, or the first too late or never.

What each attempt does is told in the file ``XAQUEUE_TEST_WORDS``, one line a word: batch, attempt, word.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from xaqueue.errors import RolledBack

PATIENCE_S = 60.0
ROWS = 20
"""Of a branch, so that there are several of each attempt."""


def together_or_late(batch: int) -> str:
    """What becomes of the first attempt, by turns."""
    return ("together", "late")[batch % 2]


def slow_partition(batch: int) -> int:
    """Two that go into different spaces, by turns."""
    return batch // 2 % 2


class Attempt:
    """One attempt at the slow share."""

    def __init__(self, batch: int, number: int) -> None:
        self._words = Path(os.environ["XAQUEUE_TEST_WORDS"])
        self.number = number
        self._batch = batch

    def tell(self, word: str) -> None:
        with self._words.open("a") as told:
            told.write(f"{self._batch} {self.number} {word}\n")

    def wait_for_other(self, word: str) -> None:
        wanted = f"{self._batch} {1 - self.number} {word}"
        deadline = time.monotonic() + PATIENCE_S
        while wanted not in self._words.read_text().splitlines():
            if time.monotonic() > deadline:
                raise TimeoutError(f"nobody says: {wanted}")
            time.sleep(0.02)


class Slow:
    """The server, to an attempt that is held up before its second branch is prepared."""

    def __init__(self, manager: Any, branches: Any, attempt: Attempt, hangs: bool) -> None:
        self._manager = manager
        self._branches = branches
        self._attempt = attempt
        self._hangs = hangs
        self._prepared = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)

    def prepare(self, xid: Any) -> Any:
        self._prepared += 1
        if self._prepared == 2:
            self._manager.decision(self._branches._prepared.batch)  # with it goes what is not sent yet
            self._attempt.tell("held up")
            while self._hangs or self._manager.decision(self._branches._prepared.batch) is None:
                time.sleep(0.02)
        return self._manager.prepare(xid)


def write(original: Any, branches: Any, rows: Any, attempt: Attempt, story: str) -> None:
    """The second attempt waits for the first as well: else it may be the quicker one by chance."""
    if story != "together":
        if attempt.number == 0:
            branches._manager = Slow(branches._manager, branches, attempt, story == "hangs")
        else:
            attempt.wait_for_other("held up")
    try:
        original(branches, rows)
    except RolledBack:
        attempt.tell("refused")
        raise
    attempt.tell("prepared")
    if story == "together":
        attempt.wait_for_other("prepared")


def arm(module: Any, last: int) -> None:
    """last: the batch whose first attempt never ends."""
    original = module.Branches.write
    module.BRANCH_ROWS = ROWS

    def slowly(branches: Any, rows: Any) -> None:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        batch = branches._prepared.batch.number
        if context.partitionId() == slow_partition(batch):
            story = "hangs" if batch == last else together_or_late(batch)
            write(original, branches, rows, Attempt(batch, context.attemptNumber()), story)
        else:
            original(branches, rows)

    module.Branches.write = slowly
