"""A delivery that has failed is counted beside its message, which is put off as its queue's policy says.

The change of the rollback has the record. Of those that a killed process had begun tell their blocks in active/, and
with a journal ``register``: the next open counts them. Both say how many tries there were before, so that none is
counted twice. A try for which there is no room is only a try not counted, and the message is safe.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from xaqueue.core.engine.features import Returns
from xaqueue.core.engine.state import Space, log
from xaqueue.core.model import layout
from xaqueue.core.model.block import Block, Kind, encode_with_checksum
from xaqueue.core.model.branch import Branch, Explained
from xaqueue.core.model.change import DROP, PUT, Change, CoreStep, Op
from xaqueue.core.model.definitions import UNDEFINED
from xaqueue.core.model.entry import Entry, Retry
from xaqueue.core.storage.fs import NO_ROOM
from xaqueue.core.storage.regular import DAMAGE, NO_DIRECTORY
from xaqueue.errors import RetryLater
from xaqueue.features.retries.options import policy_of
from xaqueue.features.retries.register import LARGEST_BYTES, TRIES, Taken, decode
from xaqueue.message import MessageId, Properties
from xaqueue.xa import Code, Outcome
from xaqueue.xid import LOCAL_FORMAT_ID, Xid

Held = tuple[str, Entry]
"""Queue and entry of a message that a branch dequeued."""
Failed = tuple[str, Entry, Retry]
"""The same, and what is remembered of it from now on."""
KILLED = "the process ended before it was done"
ROLLED_BACK, LEASE_EXPIRED = "rolled back", "lease expired"
_REASONS = {Code.XA_RBTIMEOUT: "timeout", Code.XA_RBCOMMFAIL: "session lost: its process ended, or its connection"}
_NOBODY = str(Xid(LOCAL_FORMAT_ID, b"tries", b""))
"""Names the step that counts those of a killed process."""


def failed_by(space: Space, branch: Branch) -> list[Failed]:
    """The deliveries that fail with this branch, and what comes back as it was."""
    held = [(w.queue, w.entry, w.is_try) for w in branch.blocks if w.kind is Kind.DEQUEUE and w.entry is not None]
    if not held:
        return []
    back = [(queue, entry, _before(entry)) for queue, entry, is_try in held if not is_try]
    why = branch.rollback_reason
    reason = next((one.reason for one in branch.riders if isinstance(one, Explained)), "") or ROLLED_BACK
    reason = reason if why is None else _REASONS.get(why.code, reason)
    if branch.holder is not None and why is not None and why.code is Code.XA_RBTIMEOUT:
        reason = LEASE_EXPIRED
    return back + _failed(space, [(queue, entry) for queue, entry, is_try in held if is_try], reason)


def failed_now(space: Space, queue: str, entry: Entry, reason: str) -> Retry:
    """What is to be remembered of a message whose delivery fails for this reason."""
    ((_, _, retry),) = _failed(space, [(queue, entry)], reason)
    return retry


def return_untried(space: Space, branch: Branch, delay_us: int | None, reason: str = "") -> None:
    """The only dequeue of a branch is handed back, which is no try, and the branch is over. Its message is put off;
    None: as its queue's policy says. reason: of who hands it back. Raises RetryLater, and then it is held still,
    ResourceFailed.
    """
    (written,) = branch.blocks
    queue, entry = written.queue, written.entry
    assert entry is not None
    policy = policy_of(space.definitions.of(queue) or UNDEFINED)
    before = _before(entry)
    retry = policy.put_off(before, entry.message_id, space.now_us(), delay_us)
    retry = replace(retry, reason=sys.intern(reason) if reason else retry.reason)
    put_off = [(queue, entry, retry)] if (reason or retry.not_before is not None) and retry != before else []
    ops = records_of(space, put_off)
    if len(ops) < len(put_off):
        raise RetryLater(f"no room to record that a message of queue {queue} is put off: it is held still")
    if written.path:
        ops.append((DROP, written.path))
    space.log.return_untried(written)  # before somebody else takes it: what is killed meanwhile is no try either

    def publish_back() -> None:
        branch.blocks.clear()
        publish(space, put_off)
        if not put_off:
            space.queue(queue).index.release(entry)
            space.queue(queue).arrived.notify_all()

    if ops:
        space.log.perform(Change(CoreStep.ROLLBACK, branch.name, ops), publish_back)
    with space.lock:
        if not ops:
            publish_back()
        space.finish_locked(branch, Outcome.ROLLED_BACK)


def _failed(space: Space, held: Sequence[Held], reason: str) -> list[Failed]:
    now_us, reason = space.now_us(), sys.intern(reason)  # many fail for the same one
    found = []
    for queue, entry in held:
        policy = policy_of(space.definitions.of(queue) or UNDEFINED)
        found.append((queue, entry, policy.failed(_before(entry), entry.message_id, now_us, reason)))
    return found


def _before(entry: Entry) -> Retry:
    before = entry.retry or Retry(entry.tries)
    return before if before.tries == entry.tries else replace(before, tries=entry.tries)


def records_of(space: Space, back: Sequence[Failed]) -> list[Op]:
    """What records these, as far as there is room; what is as it was needs none. Raises ResourceFailed."""
    ops: list[Op] = []
    for queue, entry, retry in back:
        if retry == _before(entry):
            continue
        path = layout.retry_path(queue, entry.seq, entry.message_id)
        content = encode_retry(queue, entry.message_id, retry, space.epoch)
        try:
            space.log.stage(path, content, b"")
        except OSError as error:
            if error.errno not in NO_ROOM | NO_DIRECTORY:
                raise space.fence(error) from error
        else:
            ops.append((PUT, path, content, b"", 0))
    return ops


def publish(space: Space, back: Sequence[Failed]) -> None:
    """The messages are back, put off or set aside. Called with the lock held."""
    for name, entry, retry in back:
        queue = space.queue(name)
        if retry == _before(entry):
            queue.index.come_back(entry)
        else:
            queue.index.fail(entry, retry)
        if queue.index.exhausted:
            space.wakes.consumed.wake()
        queue.arrived.notify_all()  # the first who waits may wait for another id


def count(space: Space, name: str, held: Sequence[Held]) -> None:
    """Counts a try of each of these, which an earlier owner had begun. Raises RetryLater, ResourceFailed."""
    if held:
        failed = _failed(space, held, KILLED)
        space.log.perform(Change(CoreStep.ROLLBACK, name, records_of(space, failed)), partial(publish, space, failed))


def count_killed(space: Space, set_aside: Callable[[str, str], object]) -> None:
    """Counts the tries that an earlier owner had begun when it was killed. Raises OSError, ResourceFailed."""
    try:
        data = space.fs.read(TRIES, LARGEST_BYTES)
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno not in DAMAGE:
            raise
        set_aside(TRIES, f"the register of tries cannot be read ({error.strerror}): some may not be counted")
        return
    with space.lock:
        held = [pair for taken, had in decode(data).items() if (pair := _uncounted_locked(space, taken, had))]
    count(space, _NOBODY, held)
    if held:
        log.info("[tries-counted] a try of %d messages is counted: a process was killed with them", len(held))


def _uncounted_locked(space: Space, taken: Taken, had: int) -> tuple[str, Entry] | None:
    """The message in its queue, as it was when it was taken; None where that try is counted, or will be."""
    name, seq, message_id = taken
    queue = space.queues.get(name)
    entry = queue.index.find(message_id) if queue is not None else None
    if entry is None or entry.seq != seq or entry.locked or entry.tries > had:
        return None
    entry.tries = had
    return name, entry


def encode_retry(queue: str, message_id: MessageId, retry: Retry, epoch: int) -> bytes:
    """The record of a message of which a delivery has failed."""
    headers = {"last": str(retry.last), "reason": retry.reason}
    made = Properties(queue, tries=retry.tries, not_before=retry.not_before, enqueued_at=retry.first, headers=headers)
    head, _ = encode_with_checksum(Block(Kind.UPDATE, message_id, made, epoch=epoch))
    return head


class Tries(Returns):
    """A delivery that comes to nothing has failed, and the message is put off, or set aside to be moved."""

    of, records, publish_locked = staticmethod(failed_by), staticmethod(records_of), staticmethod(publish)
