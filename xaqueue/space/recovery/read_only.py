"""A space whose journal is damaged is opened for reading only: it shows what the directories hold, and changes nothing.

The directories may be behind what was acknowledged, so nothing that is missing here is known to be lost: a branch that
is not listed may be prepared all the same. Every verb that would change something says what is damaged and what to do.
"""

from __future__ import annotations

import logging
import time

from xaqueue.errors import DamagedBlock, JournalDamaged, ResourceFailed
from xaqueue.message import MessageId
from xaqueue.space.engine import heuristics
from xaqueue.space.engine.state import Space
from xaqueue.space.model import layout
from xaqueue.space.model.branch import Branch, State
from xaqueue.space.recovery import prepared
from xaqueue.space.recovery.load import Load, Progress
from xaqueue.space.recovery.prepared import Verdict
from xaqueue.storage.layers import ReadOnlyFileSystem
from xaqueue.xa import Outcome

log = logging.getLogger("xaqueue")


def open_for_reading(space: Space, damage: JournalDamaged, progress: Progress | None) -> None:
    """Fills the memory of a space, and its report, from what the directories hold, and fences it with the damage."""
    started, report = time.monotonic(), space.report
    space.read_only = damage
    space.fs = ReadOnlyFileSystem(space.fs)
    space.log.end(ResourceFailed(f"the space is open for reading only: {damage}"))
    log.error("the space is open for reading only: %s", damage)
    report.notes.append(str(damage))
    Load(space, lambda path, reason: report.notes.append(f"{path}: {reason}"), report.notes.append).rest(progress)
    report.messages = sum(len(queue.index) for queue in space.queues.values())
    space.batches.found(prepared.listed(space.fs, layout.BATCHES))
    _prepared(space)
    _decided(space)
    report.in_doubt = sum(1 for branch in space.branches.values() if branch.base is State.PREPARED)
    report.heuristic = len(space.branches) - report.in_doubt
    report.seconds = time.monotonic() - started
    space.loaded = True


def _prepared(space: Space) -> None:
    """Branches as their files in prepared/ say."""

    def holds(queue: str, message_id: MessageId) -> bool:
        return message_id in space.queue(queue).index

    found, _ = prepared.prepared(space.fs)
    lost = prepared.lost_blocks(space.fs)
    for xid in {**found, **lost}:
        standing = prepared.survey(space.fs, xid, found.get(xid, {}), lost.get(xid, ()), holds)
        if standing.verdict is Verdict.IN_DOUBT and (standing.blocks or standing.damage):
            branch = Branch(xid, base=State.PREPARED, damage=standing.damage)
            branch.prepared_at = standing.prepared_at
            space.branches[xid] = branch
        elif standing.verdict in (Verdict.COMMITTING, Verdict.FINISHED) and not xid.is_local:
            space.remember(xid, Outcome.COMMITTED)


def _decided(space: Space) -> None:
    """What operators decided."""
    for name in prepared.listed(space.fs, layout.HEURISTIC):
        xid = layout.parse_xid(name)
        if xid is None:
            continue
        try:
            decision = heuristics.read(space.fs, f"{layout.HEURISTIC}/{name}")
        except DamagedBlock:
            continue
        space.branches[xid] = Branch(xid, base=heuristics.OUTCOMES[decision.outcome])
