"""A second message of one dedup_key comes to nothing, where its queue has a window: which one that is, decided once.

    enqueue    a key that is known gives the first one's id, and adds nothing
    decide     before a prepare, a vote or a commit in one phase: what became known since is left out of the branch, and
               it claims its other keys. What a branch in doubt claims nobody can decide: the work is to be done again
    commit     its record in .dedup/ is part of the change, so the key is known exactly if the message is committed
    rollback   the claims are given up

All keys of a branch are claimed at once, or none, so nobody who claims one waits for another. A branch with keys is
prepared with a branch block even if it has one block: that says which of its messages claim theirs, whatever the level
of the next open. Where files are the record of a branch, its .commit is on disk before message and record move, and
goes behind both. So no crash leaves a record without its message, which would swallow the next try.

Branches of one batch do not refuse each other: an attempt that is written again is in no list. Of those that are
committed together, the first has the message. What is moved to another queue is the same message: it claims nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from heapq import heappush

from xaqueue.batch import is_of_a_batch
from xaqueue.errors import RetryLater, RolledBack
from xaqueue.message import MessageId
from xaqueue.space.engine.state import Space
from xaqueue.space.model import layout, records
from xaqueue.space.model.block import Head
from xaqueue.space.model.branch import Branch, Written
from xaqueue.space.model.change import DROP, PUT, Change, Op
from xaqueue.space.model.change import Kind as Step
from xaqueue.space.model.dedup import Seen, hash_of
from xaqueue.space.model.queue import Queue
from xaqueue.xa import Code

PIECE = 256
"""Records that are removed in one step."""


def known(space: Space, branch: Branch, name: str, key: bytes) -> MessageId | None:
    """The message of this key that is committed, or that the branch has added before."""
    with space.lock:
        queue = space.queue(name)
        if not queue.definition.dedup_window_s:
            return None
        return queue.keys.find(key, space.now_us()) or branch.keys.get((name, key))


def key_of(head: Head) -> bytes:
    """The hash of its dedup_key; empty where it has none."""
    return hash_of(head.properties.dedup_key) if head.properties.dedup_key is not None else b""


def recover_key(space: Space, branch: Branch, written: Written, key: bytes) -> None:
    """Of a block that was found, or handed in, and claims this: its branch has decided before. Called with the lock
    held, or alone."""
    queue = space.queue(written.queue)
    if key and queue.definition.dedup_window_s:
        written.key = key
        branch.keys[queue.name, key] = written.message_id
        queue.keys.claim(key, branch)


def decide(space: Space, branch: Branch) -> None:
    """Its caller has the branch busy. Raises RolledBack where the work is to be done again, ResourceFailed."""
    with space.lock:
        while (holder := _holder_locked(space, branch)) is not None:
            if not holder.busy:
                raise _transient(branch, f"branch {holder.xid} is in doubt, and has a message of the same dedup_key")
            space.wait_settled()
        now_us = space.now_us()
        for name, key in list(branch.keys):
            queue = space.queues[name]
            if queue.keys.find(key, now_us) is None:
                queue.keys.claim(key, branch)
            else:
                del branch.keys[name, key]
        left_out = [one for one in branch.blocks if one.key and branch.keys.get((one.queue, one.key)) != one.message_id]
        for written in left_out:
            space.queues[written.queue].withdraw(written.message_id)
        if left_out:
            numbers = {written.number for written in left_out}
            branch.blocks = [one for one in branch.blocks if one.number not in numbers]
    space.discard([written.path for written in left_out if written.path])
    for written in left_out:
        written.path = ""  # whose content is the same has a file of its own


def _holder_locked(space: Space, branch: Branch) -> Branch | None:
    """Another branch that claims one of its keys. Raises RolledBack where nobody knows who does."""
    now_us = space.now_us()
    for name, key in branch.keys:
        keys = space.queues[name].keys
        if keys.find(key, now_us) is not None:
            continue
        carrier = space.awaited.get(name) or space.awaited.get("") if space.awaited else None
        if carrier is not None:
            why = f"the database of carrier {carrier.name} may have a message of the same dedup_key for queue {name}"
            raise _transient(branch, f"{why}, and was not asked yet")
        for holder in keys.claims.get(key, ()):
            if holder is not branch and not (holder.xid.gtrid == branch.xid.gtrid and is_of_a_batch(branch.xid)):
                return holder
    return None


def _transient(branch: Branch, why: str) -> RolledBack:
    again = "Do the work again once that is over"
    return RolledBack(f"branch {branch.xid} is rolled back: {why}. {again}", Code.XA_RBTRANSIENT)


def release_locked(space: Space, branch: Branch) -> None:
    for name, key in branch.keys:
        space.queues[name].keys.give_up(key, branch)


def stage(space: Space, branches: Sequence[Branch]) -> None:
    """Before the step that commits these: the windows of their keys begin. Raises RetryLater, ResourceFailed."""
    now_us, taken = space.now_us(), dict[tuple[str, bytes], Written]()
    for written, branch in [(one, each) for each in branches if each.keys for one in each.blocks if one.key]:
        queue = space.queues[written.queue]
        if is_of_a_batch(branch.xid):
            first = queue.keys.find(written.key, now_us) or written.message_id
            if first != written.message_id or taken.setdefault((queue.name, written.key), written) is not written:
                written.key, written.entry = b"", None  # another branch of its batch has it
                with space.lock:
                    queue.withdraw(written.message_id)
                continue
        written.until_us = written.until_us or _until_us(queue, now_us)
        if written.until_us and not space.log.is_atomic:
            _, path, head, body, _ = put_of(space, written)
            space.stage(path, head, body)


def _until_us(queue: Queue, when_us: int) -> int:
    """The end of a window that begins then; 0 where the queue has none any more."""
    window_s = queue.definition.dedup_window_s
    return when_us + int(window_s * 1_000_000) if window_s else 0


def put_of(space: Space, written: Written) -> Op:
    """The record of a message, as its commit puts it."""
    seen = Seen(written.until_us, written.key, written.message_id)
    return (PUT, layout.key_path(written.queue, *seen), records.encode_key(written.queue, seen, space.epoch), b"", 0)


def publish_locked(space: Space, written: Written) -> None:
    """A message is committed; the claims of its branch are given up behind it."""
    if written.until_us:
        space.queues[written.queue].keys.add(Seen(written.until_us, written.key, written.message_id))
        space.has_expiring()


def restore(space: Space, queue: Queue, key: bytes, head: Head, when_us: int) -> None:
    """A message that claimed this was committed then, and its record may be lost. Raises as ``stage``."""
    now_us = space.now_us()
    until_us = _until_us(queue, max(when_us, head.properties.enqueued_at))  # the time of a file may be lost
    if until_us <= now_us or queue.keys.find(key, now_us) is not None:
        return
    written = Written(0, head.kind, queue.name, head.message_id, head.checksum)
    written.key, written.until_us = key, until_us
    _, path, content, body, _ = put_of(space, written)
    space.put(Step.EXPIRY, queue.name, path, content, body, partial(publish_locked, space, written))


def clear(space: Space, stopped: Callable[[], bool]) -> bool:
    """Removes records whose window is over; False where it was stopped before. Raises RetryLater, ResourceFailed."""
    for queue in list(space.queues.values()):
        while _clear_piece(space, queue):
            if stopped():
                return False
    return True


def _clear_piece(space: Space, queue: Queue) -> bool:
    with space.lock:
        over = queue.keys.pop_over(space.now_us(), PIECE)
    try:
        if over:
            drops = [(DROP, layout.key_path(queue.name, *seen)) for seen in over]
            space.log.perform(Change(Step.EXPIRY, queue.name, (), rest=drops))
    except RetryLater:
        with space.lock:
            for seen in over:
                heappush(queue.keys.ends, seen)
        raise
    return bool(over)
