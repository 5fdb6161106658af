"""Snapshots that are taken when they are due, and what is kept of the journal for them and for replicas."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from xaqueue.core.engine.state import Space, log
from xaqueue.core.owner.chores import NEVER, Chore, Chores
from xaqueue.errors import Error, ResourceFailed, RetryLater, SpaceError
from xaqueue.features.snapshots import store
from xaqueue.features.snapshots.copies import copy_and_keep
from xaqueue.features.snapshots.options import policy_of
from xaqueue.features.snapshots.take import take_and_keep

RETRY_S = 600.0
"""After one that could not be taken."""


class TakeSnapshots(Chore):
    """Takes one when the newest is as old as ``[snapshots] interval_min`` says, and reads it, for a tenth of its time;
    the log has what is damaged there, as ``snapshot list`` does. In a thread of its own: that takes long."""

    thread = "snapshot"

    def __init__(self, space: Space, root: Path) -> None:
        super().__init__(space)
        self._root = root

    def run(self, turn: Chores) -> float:
        try:
            left_s = self.left_of_interval_s()
            if left_s:
                return left_s
            taken = take_and_keep(self.space)
            turn.began = time.monotonic()
            self._check_and_copy(taken.number, turn)
        except ResourceFailed:
            raise
        except (Error, OSError) as error:
            if not self.space.is_closing:
                log.warning("[snapshot-failed] no snapshot was taken: %s", error)
            return RETRY_S
        return 0.0

    def _check_and_copy(self, number: int, turn: Chores) -> None:
        """One that is damaged is copied nowhere: there it would take the place of a better one."""
        next_at = time.monotonic() + self.left_of_interval_s()

        def pause() -> None:
            if turn.rest() or time.monotonic() > next_at:
                raise RetryLater("the next one is due")

        try:
            problems = store.check(self.space.fs, number, self.space.now_us(), pause)
        except (RetryLater, OSError) as error:
            problems = []
            if not turn.is_over():
                log.warning("[snapshot-unread] snapshot %d was not read to its end: %s", number, error)
        if problems:
            text = "[snapshot-damaged] snapshot %d has %d problems, the first: %s"
            log.error(text, number, len(problems), problems[0])
            return
        try:
            copy_and_keep(self.space, self._root, number, pause)
        except (SpaceError, RetryLater, OSError) as error:
            if not turn.is_over():
                log.warning("[snapshot-uncopied] snapshot %d was not copied to [snapshots] path: %s", number, error)

    def left_of_interval_s(self) -> float:
        """Until the next one is due; much of it, since the clock may be set."""
        interval_s = policy_of(self.space.definitions).interval_min * 60
        if not interval_s:
            return threading.TIMEOUT_MAX
        now_us = self.space.now_us()  # which may have been ahead once
        last_us = max((one.taken_at for one in store.listed(self.space.fs) if one.taken_at <= now_us), default=0)
        return max(last_us / 1e6 + interval_s - now_us / 1e6, 0.0)


class PruneJournal(Chore):
    """Behind each checkpoint, where replicas follow: what none of them, and no snapshot, needs goes."""

    def __init__(self, space: Space) -> None:
        super().__init__(space)
        self._seen = space.log.checkpoints

    def left_s(self) -> float:
        shipping = self.space.shipping
        if shipping is None or shipping.copying or self.space.log.checkpoints == self._seen:
            return NEVER
        return 0.0

    def run(self, turn: Chores) -> float:
        self._seen = self.space.log.checkpoints
        try:
            store.prune_for(self.space.fs, self.space.definitions)
        except OSError as error:
            log.warning("[archive-unread] the journal that is kept for replicas is not looked through: %s", error)
        return 0.0
