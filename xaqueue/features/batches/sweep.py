"""What dead queries leave goes by its age: branches that are prepared for a batch that nobody will decide, and
decisions that nobody will ask for.

Branches of a batch that may be decided in another space, and damaged ones, are left alone. A query's last decision
stays for good: that is what it asks for when it comes back, however late. Only that of a query that had one batch, and
said so, is forgotten after ``forget_after_s``.
"""

from __future__ import annotations

import time

from xaqueue.batch import ONE_SPACE, is_of_a_batch
from xaqueue.core.engine.state import Space, log
from xaqueue.core.model.branch import Branch, State
from xaqueue.core.owner.chores import Chore, Chores
from xaqueue.errors import DamagedBlock, RetryLater
from xaqueue.features.batches import batch_steps, record
from xaqueue.features.batches.batch_steps import of_batch
from xaqueue.features.batches.batches import claimed
from xaqueue.features.batches.options import FORGET_AFTER_S, SWEEP_AFTER_S

FORGET_EVERY_US = 3600 * 1_000_000
"""Between two looks for decisions that are to be forgotten."""
LEAST_S, MOST_S = 1.0, 3600.0
"""Batches that are not decided are looked at so often; in between, as soon as they may be old."""


class Sweep(Chore):
    """In a space that no server looks after. The open has swept just now."""

    def __init__(self, space: Space) -> None:
        super().__init__(space)
        self._swept_at = time.monotonic()

    def left_s(self) -> float:
        return self._swept_at + min(max(SWEEP_AFTER_S.of(self.space.definitions), LEAST_S), MOST_S) - time.monotonic()

    def run(self, turn: Chores) -> float:
        self._swept_at = time.monotonic()
        sweep(self.space)
        return 0.0


def sweep(space: Space) -> int:
    """Rolls back what dead queries left prepared, and returns how many branches; now and then, forgets decisions too.

    Of a batch all branches have to be old, and none at work. Raises ResourceFailed.
    """
    with space.lock:
        if space.closed or space.read_only is not None:
            return 0
        branches = [branch for xid, branch in space.branches.items() if is_of_a_batch(xid)]
        old = {branch.xid.gtrid for branch in branches if _is_left_by_query(space, branch)}
        used = {branch.xid.gtrid for branch in branches if not _is_left_by_query(space, branch)}
    swept = sum(_sweep(space, gtrid) for gtrid in old - used)
    if space.now_us() >= record.batches_of(space).forget_us:
        record.batches_of(space).forget_us = space.now_us() + FORGET_EVERY_US
        _forget(space)
    return swept


def _is_left_by_query(space: Space, branch: Branch) -> bool:
    """Whether it was prepared long ago, as far as anybody knows, for a batch that is decided here or nowhere."""
    before_us = space.now_us() - SWEEP_AFTER_S.of(space.definitions) * 1_000_000
    is_prepared = branch.xid.format_id == ONE_SPACE and branch.base is State.PREPARED
    return is_prepared and 0 < branch.prepared_at < before_us


def _sweep(space: Space, gtrid: bytes) -> int:
    with claimed(space, gtrid) as claim:
        with space.lock:
            decided = record.batches_of(space).has(gtrid) or record.batches_of(space).is_lost(gtrid)
            still = not decided and all(_is_left_by_query(space, branch) for branch in of_batch(space, gtrid))
        waiting = [branch for branch in claim.prepared.values() if branch.base is State.PREPARED]
        branches = [branch for branch in waiting if not branch.damage and not branch.is_for_operator]
        if not still or not branches:
            return 0
        after_s = SWEEP_AFTER_S.of(space.definitions)
        left = f"{len(branches)} branches of batch {gtrid.decode()}, not decided, were prepared over {after_s} s ago"
        try:
            batch_steps.undo(space, gtrid, branches)
        except RetryLater as full:
            log.warning("[no-room-yet] %s: they are rolled back later: %s", left, full)
            return 0
        log.warning("[batch-timeout] %s: they are rolled back", left)
        return len(branches)


def _forget(space: Space) -> None:
    """Removes the old records of queries that had one batch."""
    before_us = space.now_us() - FORGET_AFTER_S.of(space.definitions) * 1_000_000
    with space.lock:
        firsts = [key for key, number in record.batches_of(space).last.items() if number == 0]
    old = [key for key in firsts if _is_over(space, record.batch_path(key, 0), before_us)]
    try:
        batch_steps.forget(space, old)
    except RetryLater as full:
        log.warning("[no-room-yet] decisions on batches are forgotten later: %s", full)
        return
    if old:
        days = FORGET_AFTER_S.of(space.definitions) / 86_400
        log.info("[batch-forgotten] %d queries, which wrote one batch over %g days ago, are forgotten", len(old), days)


def _is_over(space: Space, path: str, before_us: int) -> bool:
    try:
        if space.fs.modified_ns(path) >= before_us * 1000:
            return False
        decided = record.read_decision(space.fs, path)
    except (OSError, DamagedBlock):
        return False  # it is no more, or cannot be read, which whoever asks for it is told
    return decided.plan.once and decided.decided_at < before_us
