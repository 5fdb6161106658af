"""Prepare, commit and rollback: the one place where the order of their operations is read.

Each verb asks nobody how durable the space is. It makes sure that content is on disk before a name (``harden``), says
what is done as a change, and gives that to the space's log, which returns once it is durable and published:

    prepare    blocks into prepared/, the one that makes the branch complete (.000) last
    commit     one block: it enters committed/, or the message that it names goes; that is the commit point
               several: .000 becomes .commit, that is the commit point; then messages come and go; then the rest goes
    one phase  the same from active/, or from memory, where nothing that is not committed survives
               where a rider has something listed, one block is as several: what it records moves with the message
    rollback   of a prepared branch: .000 goes first, which un-prepares it

In the terms of crash rules 1 to 4 in ARCHITECTURE.md. A redo record is atomic: it needs no commit point of its own, and
holds the same operations. After RetryLater nothing was done; after CommitPending the same call completes it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from enum import IntEnum
from functools import partial
from typing import Any

from xaqueue.core.engine import many, quarantine
from xaqueue.core.engine.log import HELD_BYTES, STEP_FILES, CommitPending
from xaqueue.core.engine.messages import add_branch_block, add_last
from xaqueue.core.engine.state import Space
from xaqueue.core.model.block import ADDS, Kind
from xaqueue.core.model.block_files import dequeue_block
from xaqueue.core.model.branch import Branch, State, Written
from xaqueue.core.model.change import DROP, MOVE, PUT, Change, CoreStep, Op
from xaqueue.core.model.entry import MessageBlock, Run
from xaqueue.core.model.layout import (
    COMMIT,
    FIRST,
    PREPARED,
    QUARANTINE,
    block_path,
    message_path,
    numbered,
    retry_path,
)
from xaqueue.core.storage.group_commit import Publish, nothing
from xaqueue.errors import DiskFull, RetryLater
from xaqueue.xa import Outcome
from xaqueue.xid import Xid

MANY = 16
"""Blocks of a branch from which on ``Features.merge`` is asked."""
_change = tuple.__new__
"""As ``Change`` itself, without a frame."""
_ENQUEUE, _PREPARED = Kind.ENQUEUE, State.PREPARED


def prepare(space: Space, branch: Branch, *, performs: bool = True) -> tuple[Change, Publish]:
    """After it, nothing but commit, rollback or an operator's decision removes the branch.

    Returns its change and the publication of that, which are the caller's to give to the log where it ``performs`` them
    not. Raises DiskFull without room; then the branch can only be rolled back.
    """
    if len(branch.blocks) >= MANY:
        space.features.merge(space, branch)
    blocks, suffix = branch.blocks, FIRST
    for written in blocks:
        if written.content is None and not written.path:
            add_last(space, branch, written, dequeue_block(written, space.epoch, space.queues[written.queue]))
    if len(blocks) > 1 or blocks[0].shared is not None or (branch.riders and branch.needs_list):
        add_branch_block(space, branch)
        blocks, suffix = branch.all_blocks, ""
    try:
        if branch.to_harden:
            space.log.harden(branch)
        ops: list[Op] = []
        for written in blocks:
            target = f"{PREPARED}/{branch.name}.{suffix or numbered(written.number)}"
            if written.path:
                ops.append((MOVE, written.path, target, 0))
            else:
                assert written.content is not None
                ops.append((PUT, target, *written.content, 0))
        change = Change(CoreStep.PREPARE, branch.name, ops)
        publish = partial(_publish_prepared, space, branch, blocks, ops)
        if performs:
            if len(ops) > STEP_FILES:
                change = space.log.ahead(branch, change)
            space.log.perform(change, publish)  # never late, whatever its queues say: others rely on this vote
    except RetryLater as full:
        branch.rollback_reason = DiskFull(f"{full}. Branch {branch.xid} is rolled back")
        raise branch.rollback_reason from full
    return change, publish


def _publish_prepared(space: Space, branch: Branch, blocks: Sequence[Written], ops: Sequence[Op]) -> None:
    """Called with the lock held."""
    for written, op in zip(blocks, ops, strict=True):
        written.path = op[2] if op[0] == MOVE else op[1]
    if branch.kept[0] > HELD_BYTES:
        for written in blocks:
            written.content = None
    branch.prepared_at = space.now_ns() // 1000
    branch.base = State.PREPARED
    branch.busy = False
    if space.waiters:
        space.settle_locked(branch)


def commit(space: Space, branch: Branch, *, late: bool = False) -> None:
    """Commits a branch that is prepared, or one that never was, in one phase.

    late: one that has voted before may be hardened behind its publication. RetryLater: nothing was lost, commit again
    later.
    """
    step = CoreStep.COMMIT
    if branch.base is not _PREPARED and branch.base is not State.COMMITTING:
        step = CoreStep.ONE_PHASE
        space.log.harden_unprepared(branch, partial(_complete, space, branch))
    for rider in branch.riders:
        if rider.acts:
            rider.stage(space, branch, {})
    ends = space.log.follows  # its files go their ways in the order of the log, whoever has its name then
    plan = partial(commit_change, space, branch, step)
    publish = partial(publish_commit, space, branch, ends=ends)
    try:
        for rider in branch.riders:
            if rider.acts and rider.performs(space, branch, plan, publish):
                break
        else:
            space.log.perform(plan, publish, branch, late=late)
    except RetryLater as full:
        forget_numbers(space, branch)
        if not isinstance(full, CommitPending):
            raise
        branch.become(State.COMMITTING)
        with space.lock:
            space.look_by(time.monotonic())
        if branch.branch_block is not None:
            branch.branch_block.path = block_path(PREPARED, branch.name, COMMIT)
        raise
    if not ends:
        with space.lock:  # its files are gone: another branch may have its name
            space.finish_locked(branch, Outcome.COMMITTED)
    for rider in branch.riders:
        if rider.acts:
            rider.committed(space, late=late)


def _complete(space: Space, branch: Branch) -> None:
    """Adds the blocks by which recovery finds all of a branch that was never prepared."""
    for written in branch.blocks:
        if not written.path:
            add_last(space, branch, written, dequeue_block(written, space.epoch, space.queues[written.queue]))
    add_branch_block(space, branch)


def commit_change(space: Space, branch: Branch, step: IntEnum) -> Change:
    """What a commit does: numbers are given to what arrives. Called with the lock held."""
    when_us = space.last_commit_us = max(space.now_ns() // 1000, space.last_commit_us)
    ops: list[Op] = []
    removals: list[Op] = []
    rest: list[Op] = []
    arrivals: list[tuple[str, int]] = []
    taken: dict[MessageBlock, int] = {}
    keeps = False
    for written in branch.blocks:
        entry, name = written.entry, written.queue
        if entry is None:  # the message is lost, and an operator knows
            rest.append((DROP, written.path))
        elif written.kind in ADDS:
            queue = space.queues.get(name) or space.queue(name)
            if type(entry) is Run:
                target = many.number(queue, entry, arrivals)
            else:
                entry.seq = seq = queue.keep_number(entry.seq) if entry.seq else queue.allocate()
                target = message_path(name, seq, written.message_id, entry.tags)
                arrivals.append((name, seq))
            if written.path:
                ops.append((MOVE, written.path, target, when_us))
            else:
                assert written.content is not None
                ops.append((PUT, target, *written.content, when_us))
        else:
            queue = space.queues[name]
            keeps |= queue.kept_in != ""
            if not (queue.blocks and many.takes(queue, entry, taken)):
                path = entry.path or message_path(name, entry.seq, written.message_id, entry.tags)
                removals.append((DROP, path))
            if entry.retry is not None:
                rest.append((DROP, retry_path(name, entry.seq, written.message_id)))
            if written.path:
                rest.append((DROP, written.path))
    for rider in branch.riders:
        if rider.acts:
            ops += rider.ops(space, branch)
    point = _point(branch.branch_block, branch.name, rest) if branch.branch_block is not None else ()
    if taken:
        many.leave(space, taken, removals, rest)
    beside = space.features.keep(space, branch, ops, removals) if keeps else ()
    ops += removals
    return _change(Change, (step, branch.name, ops, point, rest, arrivals, True, taken, beside))  # it commits


def _point(branch_block: Written, name: str, rest: list[Op]) -> Sequence[Op]:
    """Of several blocks, unless it is done; what marks it goes with the rest."""
    marker = block_path(PREPARED, name, COMMIT)
    rest.append((DROP, marker))
    return ((MOVE, branch_block.path, marker, 0),) if branch_block.path != marker else ()


def forget_numbers(space: Space, branch: Branch) -> None:
    """Its messages found no room: others may have published above their numbers by then."""
    with space.lock:
        for written in branch.blocks:
            if written.kind in ADDS and written.entry is not None and written.entry.seq:
                space.queues[written.queue].return_number(written.entry.seq, len(written.ids))
                written.entry.seq = 0


def publish_commit(space: Space, branch: Branch, *, ends: bool = False) -> None:
    """What a branch has added and taken is visible. Called with the lock held, in commit order. ends: it is over."""
    for written in branch.blocks:
        entry = written.entry
        if entry is None:
            continue
        queue = space.queues[written.queue]
        if written.kind is _ENQUEUE:
            queue.index.add(entry)
            queue.pending.discard(written.message_id)
            queue.enqueued += 1
            if entry.seq > queue.shown:
                queue.shown = entry.seq
            space.log.changed_queues[queue.name] = queue
            continue
        if type(entry) is Run:
            many.publish(space, queue, entry, written.kind)
            continue
        queue.dequeued += 1
        if queue.consumed(entry):
            space.wakes.consumed.wake()
    for rider in branch.riders:
        if rider.acts:
            rider.publish_locked(space, branch)
            rider.release_locked(space, branch)
    if ends:
        space.finish_locked(branch, Outcome.COMMITTED)


def rollback(space: Space, branch: Branch) -> None:
    """Undoes a branch and ends it."""
    undo(space, branch)
    if branch.damage:
        resolve_damage(space, branch.xid)
    with space.lock:
        space.finish_locked(branch, Outcome.ROLLED_BACK)


def undo(space: Space, branch: Branch) -> None:
    """What a branch did is gone; its dequeued messages are back where they were.

    RetryLater: nothing was done. What was never prepared is undone all the same, and nothing of that is recorded.
    """
    many.expand(space, branch)
    returns = space.features.returns
    back = returns.of(space, branch)
    records = returns.records(space, back)
    if branch.base is State.PREPARED:
        try:
            space.log.perform(rollback_change(branch, records), nothing, branch)
        except RetryLater:  # what is recorded may be what has no room
            if not records:
                raise
            space.log.perform(rollback_change(branch, ()), nothing, branch)
    else:
        if records:
            with suppress(RetryLater):
                space.log.perform(Change(CoreStep.ROLLBACK, branch.name, records), nothing, branch)
        space.discard(_files(branch))
    release(space, branch, back)


def rollback_change(branch: Branch, records: Sequence[Op]) -> Change:
    """What the rollback of a prepared branch does: of its files .000 goes first.

    What is recorded comes before: of a branch in doubt recovery goes by its blocks, whatever that says.
    """
    first, *others = _files(branch) or [block_path(PREPARED, branch.name, FIRST)]
    return Change(CoreStep.ROLLBACK, branch.name, [*records, (DROP, first)], rest=[(DROP, path) for path in others])


def _files(branch: Branch) -> list[str]:
    """Of its blocks, the one that makes it prepared first."""
    return [written.path for written in reversed(branch.all_blocks) if written.path]


def resolve_damage(space: Space, xid: Xid) -> None:
    """What quarantine has of a branch that is decided now holds it in doubt no longer. Raises ResourceFailed."""
    with space.fencing():
        quarantine.resolve(space.fs, xid)
    space.log.sync_names((QUARANTINE,))


def release(space: Space, branch: Branch, back: Sequence[Any]) -> None:
    """Gives every message back that the branch held, and forgets what it had added."""
    with space.lock:
        for written in branch.blocks:
            if written.kind in ADDS:
                for message_id in written.ids:
                    space.queue(written.queue).withdraw(message_id)
        for rider in branch.riders:
            rider.release_locked(space, branch)
        space.features.returns.publish_locked(space, back)
