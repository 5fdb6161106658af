"""The durable steps of a batch: its decision, what follows from it, and what is undone.

The decision is a record in batches/; once that is hardened, a crash is rolled forward from it. Then the branches
follow in groups, between which others have their turn. The record of the batch before goes with this one; if a crash
brings it back, the next open removes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from xaqueue.batch import BatchDecision, is_of_a_batch, key_of, parse_gtrid
from xaqueue.core.engine import commit
from xaqueue.core.engine.state import Space
from xaqueue.core.model.branch import Branch, State
from xaqueue.core.model.change import DROP, Change, Op
from xaqueue.core.model.entry import MessageBlock
from xaqueue.errors import RetryLater
from xaqueue.features.batches import record
from xaqueue.features.batches.record import BatchStep
from xaqueue.xa import Outcome
from xaqueue.xid import Xid

STEP_BLOCKS = 4096
"""More branches go together only as long as they have no more blocks: everybody waits while a step moves them."""
RECORDS = 1000
"""So many are forgotten in one step, at most."""


def of_batch(space: Space, gtrid: bytes) -> list[Branch]:
    """All branches of a batch. Called with the lock held."""
    return [branch for xid, branch in space.branches.items() if xid.gtrid == gtrid and is_of_a_batch(xid)]


def refusal(space: Space, xid: Xid) -> str:
    """Why nothing more is prepared for the batch of this branch; empty where it is. Called with the lock held."""
    if record.batches_of(space).has(xid.gtrid):
        return f"branch {xid} comes too late: its batch is decided"
    key, number = parse_gtrid(xid.gtrid) or ("", 0)
    last = record.batches_of(space).highest(key)
    return f"branch {xid} comes too late: its query has written batch {last} already" if number < last else ""


def decide(space: Space, decision: BatchDecision, branches: Sequence[Branch]) -> None:
    """Records the decision that these branches are committed; ``finish`` follows.

    RetryLater: nothing is decided.
    """
    batch = decision.batch
    before = record.batches_of(space).last.get(batch.key)
    outdated = [] if before is None else [record.batch_path(batch.key, before)]

    def publish() -> None:
        record.batches_of(space).last[batch.key] = batch.number
        for branch in of_batch(space, batch.gtrid):
            if branch.base is State.ACTIVE:
                branch.doom(f"comes too late: {batch} is decided")
        for branch in branches:
            branch.become(State.COMMITTING)

    path, content = record.decision_path(batch.gtrid), record.encode_decision(decision, space.epoch)
    space.put(BatchStep.BATCH, _name(batch.gtrid), path, *content, publish, outdated)


def finish(space: Space, gtrid: bytes, branches: Sequence[Branch]) -> None:
    """Commits branches of a batch that is decided. RetryLater: those for which there was room are."""
    full: RetryLater | None = None
    for group in _groups(branches):
        try:
            _commit(space, gtrid, group)
        except RetryLater as error:
            full = error
    if full is not None:
        raise full


def _groups(branches: Sequence[Branch]) -> Iterator[list[Branch]]:
    """As many branches at a time as others may wait for."""
    group: list[Branch] = []
    blocks = 0
    for branch in branches:
        blocks += len(branch.blocks)
        if group and blocks > STEP_BLOCKS:
            yield group
            group, blocks = [], len(branch.blocks)
        group.append(branch)
    if group:
        yield group


def _commit(space: Space, gtrid: bytes, branches: Sequence[Branch]) -> None:
    """One step: these branches are committed. A list says so for itself, should the record be damaged."""

    def plan() -> Change:
        changes = [commit.commit_change(space, branch, BatchStep.BATCH) for branch in branches]
        ops = [op for change in changes for op in (*change.point, *change.ops)]
        ops.sort(key=lambda op: op[0] == DROP)  # where there is no room, moves are taken back
        rest = [op for change in changes for op in change.rest]
        arrivals = [one for change in changes for one in change.arrivals]
        beside = [one for change in changes for one in change.beside]
        taken: dict[MessageBlock, int] = {}
        for block, bits in (one for change in changes for one in change.taken.items()):
            taken[block] = taken.get(block, 0) | bits
        return Change(BatchStep.BATCH, _name(gtrid), ops, (), rest, arrivals, True, taken, beside)

    def publish() -> None:
        for branch in branches:
            commit.publish_commit(space, branch)

    together: dict[Any, Any] = {}
    try:
        for branch in branches:
            for rider in branch.riders:
                rider.stage(space, branch, together)
        space.log.perform(plan, publish)
    except RetryLater:
        for branch in branches:
            commit.forget_numbers(space, branch)
        raise
    with space.lock:
        for branch in branches:
            space.finish_locked(branch, Outcome.COMMITTED)
    for branch in branches:
        if branch.damage:
            commit.resolve_damage(space, branch.xid)


def undo(space: Space, gtrid: bytes, branches: Sequence[Branch]) -> None:
    """Rolls back prepared branches of a batch, some at a time."""
    for group in _groups(branches):
        _undo(space, gtrid, group)


def _undo(space: Space, gtrid: bytes, branches: Sequence[Branch]) -> None:
    returns = space.features.returns
    back = [returns.of(space, branch) for branch in branches]
    records = [returns.records(space, each) for each in back]
    try:
        space.log.perform(_rollback_change(gtrid, branches, records))
    except RetryLater:  # what is recorded may be what has no room
        if not any(records):
            raise
        space.log.perform(_rollback_change(gtrid, branches, [[] for _ in branches]))
    for branch, each in zip(branches, back, strict=True):
        commit.release(space, branch, each)
        if branch.damage:
            commit.resolve_damage(space, branch.xid)
        with space.lock:
            space.finish_locked(branch, Outcome.ROLLED_BACK)


def _rollback_change(gtrid: bytes, branches: Sequence[Branch], records: Sequence[list[Op]]) -> Change:
    changes = [commit.rollback_change(branch, each) for branch, each in zip(branches, records, strict=True)]
    ops, rest = [op for one in changes for op in one.ops], [op for one in changes for op in one.rest]
    return Change(BatchStep.BATCH, _name(gtrid), ops, rest=rest)


def forget(space: Space, keys: Sequence[str]) -> None:
    """Removes the records of queries that had one batch, unless branches of these are there, or something is done."""
    with space.lock:
        used = {key_of(xid.gtrid) for xid in space.branches if is_of_a_batch(xid)} | record.batches_of(space).claimed
    gone = [key for key in keys if key not in used]
    for first in range(0, len(gone), RECORDS):
        some = gone[first : first + RECORDS]
        drops: list[Op] = [(DROP, record.batch_path(key, 0)) for key in some]
        space.log.perform(Change(BatchStep.BATCH, "", drops))
        with space.lock:
            for key in some:
                if record.batches_of(space).last.get(key) == 0:
                    del record.batches_of(space).last[key]


def _name(gtrid: bytes) -> str:
    """Of the file of a batch's record."""
    return record.decision_path(gtrid).rpartition("/")[2]
