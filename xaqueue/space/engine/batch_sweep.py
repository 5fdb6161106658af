"""What dead queries leave goes by its age: branches that nobody will decide, and decisions that nobody will ask for.

Branches of a batch that may be decided in another space, and damaged ones, are left alone. A query's last decision
stays for good: that is what it asks for when it comes back, however late. Only that of a query that had one batch, and
said so, is forgotten after ``forget_after_s``.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from xaqueue.batch import ONE_SPACE, is_of_a_batch
from xaqueue.errors import DamagedBlock, RetryLater
from xaqueue.space.engine import batch_steps
from xaqueue.space.engine import redo as redo_of
from xaqueue.space.engine.batch_claim import Claim, of_batch
from xaqueue.space.engine.complete import remove
from xaqueue.space.engine.redo import Redo
from xaqueue.space.model import batch_records, layout
from xaqueue.space.model.branch import State
from xaqueue.storage.group_commit import Touched, touched
from xaqueue.storage.journal_format import Entry

if TYPE_CHECKING:
    from xaqueue.space.engine.state import Space

FORGET_EVERY_US = 3600 * 1_000_000
"""Between two looks for decisions that are to be forgotten."""
RECORDS = 1000
"""So many are removed in one step, at most."""

log = logging.getLogger("xaqueue")


def sweep(space: Space) -> int:
    """Rolls back what dead queries left prepared, and returns how many branches; now and then, forgets decisions too.

    Of a batch all branches have to be old, and none at work. Raises ResourceFailed.
    """
    after_s = space.definitions.sweep_after_s
    with space.lock:
        if space.closed or space.read_only is not None:
            return 0
        old = _old(space, space.now_us() - after_s * 1_000_000)
    swept = sum(_sweep(space, gtrid, after_s) for gtrid in old)
    if space.now_us() >= space.batches.look_us:
        space.batches.look_us = space.now_us() + FORGET_EVERY_US
        _forget(space)
    return swept


def _old(space: Space, before_us: int) -> list[bytes]:
    """The gtrids of batches that are to be swept. Called with the lock held."""
    youngest: dict[bytes, float] = {}
    for xid, branch in space.branches.items():
        if is_of_a_batch(xid):
            prepared = xid.format_id == ONE_SPACE and branch.base is State.PREPARED
            at = (prepared and branch.prepared_at) or float("inf")  # 0: nobody knows when
            youngest[xid.gtrid] = max(youngest.get(xid.gtrid, 0), at)
    memory = space.batches
    return [
        gtrid for gtrid, at in youngest.items() if at < before_us and not (memory.has(gtrid) or gtrid in memory.lost)
    ]


def _sweep(space: Space, gtrid: bytes, after_s: int) -> int:
    with Claim(space, gtrid) as claim:
        with space.lock:
            still = gtrid in _old(space, space.now_us() - after_s * 1_000_000)
        branches = [branch for branch in claim.prepared.values() if not (branch.damage or branch.committing)]
        if not still or not branches:
            return 0
        told = f"{len(branches)} branches of batch {gtrid.decode()}, not decided, were prepared over {after_s} s ago"
        try:
            batch_steps.undo(space, gtrid, branches)
        except RetryLater as full:
            log.warning("%s: they are rolled back later: %s", told, full)
            return 0
        log.warning("%s: they are rolled back", told)
        return len(branches)


def _forget(space: Space) -> None:
    """Removes the old records of queries that had one batch."""
    before_us = space.now_us() - space.definitions.forget_after_s * 1_000_000
    with space.lock:
        keys = space.batches.firsts()
    old = [key for key in keys if _is_over(space, layout.batch_path(key, 0), before_us)]
    for first in range(0, len(old), RECORDS):
        step = _Forgetting(space, old[first : first + RECORDS])
        try:
            space.barrier.perform(step.apply, entry=step.entry)
        except RetryLater as full:
            log.warning("decisions on batches are forgotten later: %s", full)
            return
    if old:
        days = space.definitions.forget_after_s / 86_400
        log.info("%d queries wrote one batch over %g days ago: it is forgotten that they did", len(old), days)


def _is_over(space: Space, path: str, before_us: int) -> bool:
    try:
        if space.fs.modified_ns(path) >= before_us * 1000:
            return False
        decided = batch_records.read(space.fs, path)
    except (OSError, DamagedBlock):
        return False  # it is no more, or cannot be read, which whoever asks for it is told
    return decided.plan.once and decided.decided_at < before_us


class _Forgetting:
    """One step: the records of these queries go, unless branches of theirs are not finished."""

    def __init__(self, space: Space, keys: list[str]) -> None:
        self._space = space
        self._keys = keys
        self._found: list[str] | None = None

    def entry(self) -> Entry:
        redo = Redo(redo_of.Kind.BATCH, "")
        for key in self._records():
            redo.drop(layout.batch_path(key, 0))
        return redo.entry()

    def apply(self) -> Touched:
        for key in self._records():
            remove(self._space, layout.batch_path(key, 0))
            self._space.batches.remove(key, 0)
        return touched(sources=(layout.BATCHES,))

    def _records(self) -> list[str]:
        """Found out once, with the lock held."""
        if self._found is None:
            space = self._space
            self._found = [
                key
                for key in self._keys
                if space.batches.numbers(key) == [0] and not of_batch(space, f"{key}:0".encode())
            ]
        return self._found
