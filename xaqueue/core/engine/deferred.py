"""What of a journal log's steps is published before it is recorded: a *deferred* step.

One is deferred whose loss in a crash undoes nothing that anybody was promised: who plans it says so, or all queues of
its branch do. It is seen at once, and read from memory; its record is in the next round, before all that follows from
it. The follower, and the watermarks by which readers of the directories go, wait for that record.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import chain

from xaqueue.core.engine.behind import Behind
from xaqueue.core.engine.log import HELD_BYTES, Owner
from xaqueue.core.model.branch import Branch
from xaqueue.core.model.change import Change, Op
from xaqueue.core.model.queue import Queue
from xaqueue.core.storage.group_commit import JournalCommit
from xaqueue.core.storage.hardening import NOTHING
from xaqueue.errors import RetryLater


class DeferringCommit(JournalCommit):
    """Decides which steps are deferred, and knows what of them is not recorded yet."""

    _owner: Owner
    behind: Behind
    _marks: dict[str, Queue]
    """Those whose watermark is to say how far they are by then, once that is followed."""

    def _is_late(self, of: Branch | None, late: bool) -> bool:
        return self._owner.serving and (late or (of is not None and not self._waits(of)))

    def _waits(self, branch: Branch) -> bool:
        """Whether its steps wait for their syncs: not where all its queues say so. What has a rule for its xid does,
        since others rely on that; and what is too much to be in memory only until the next sync.
        """
        if branch.kept[0] > HELD_BYTES or branch.to_harden or branch.xid[0] in self._owner.features.rules:
            return True
        definitions = [self._owner.definitions.of(written.queue) for written in branch.blocks]
        return any(one is None or one.sync != NOTHING for one in definitions)

    def _defers(self, planned: Change) -> None:
        """Its record is what is followed, and what watermarks tell of, so both wait for that."""
        self.behind.show(chain(planned.point, planned.ops, planned.rest))
        self._owner.arrived_locked()
        self._owner.pending_locked()

    def unhardened(self) -> dict[str, int]:
        lowest: dict[str, int] = {}
        for step in self.deferred:
            for queue, number in step.planned.arrivals:
                lowest[queue] = min(number, lowest.get(queue, number))
        return lowest

    def mark_published_locked(self) -> None:
        """What was kept back until now counts as published. Called with the lock held.

        A round may be under way, whose changes are recorded and do not count yet.
        """
        self._owner.published_locked(self._marks)

    def _harden_deferred(self) -> None:
        """What finds no room stays deferred."""
        if self.deferred:
            with suppress(RetryLater):
                self.harden_late()

    def _deferred_ops(self) -> list[Sequence[Op]]:
        return [(*one.ops, *one.rest) for step in self.deferred if type(one := step.planned) is Change]
