"""Messages that had all their tries, or have expired, move to another queue: each once, in a branch of its own.
Others move because somebody wants it, in that one's branch.

The branch takes the message from its queue and adds it to the other, so that a crash leaves it in one of the two. What
cannot be moved stays where it is, is given to nobody, and is tried again: it is never dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from xaqueue.core.engine import commit, messages, taking
from xaqueue.core.engine.log import CommitPending
from xaqueue.core.engine.state import Busy, Space, log
from xaqueue.core.model.block import PROPERTIES_LIMIT_BYTES, Kind, head_of, pack_properties
from xaqueue.core.model.branch import Branch, Rider, State, Written
from xaqueue.core.model.entry import Entry, Retry
from xaqueue.core.model.message_name import tags_of
from xaqueue.core.model.queue import Queue
from xaqueue.core.storage.ids import fresh_id
from xaqueue.errors import Error, InvalidArgument, MessageTooLarge, ResourceFailed, RetryLater
from xaqueue.features.counters.values import Counters
from xaqueue.features.retries import tries
from xaqueue.features.retries.options import EXPIRY_QUEUE, FAILURE_QUEUE
from xaqueue.message import REASON_LIMIT, Message, MessageId, Origin, Properties, id_of
from xaqueue.xid import Xid

TRIES, EXPIRED, MOVED, REJECTED = "tries", "expired", "moved", "rejected"
DETAIL_BYTES = 12 * REASON_LIMIT + 1024
"""An origin may take so many; properties that leave less room move without the reason, rather than not at all."""
_BQUAL = b"move"
_COUNTED = {TRIES: "dead_lettered", REJECTED: "rejected", EXPIRED: "expired"}


class Leaving(Rider):
    """Messages that the branch takes leave by another way than by being consumed: they count there instead."""

    def __init__(self, ways: dict[int, str]) -> None:
        """ways: by the number of its block, a field of ``Counters``."""
        self.ways = ways

    def publish_locked(self, space: Space, branch: Branch) -> None:
        for written in branch.blocks:
            way = self.ways.get(written.number)
            if way and written.entry is not None:
                queue = space.queues[written.queue]
                queue.dequeued -= 1
                counters = queue.memory_of(Counters)
                setattr(counters, way, getattr(counters, way) + 1)


def leaves(branch: Branch, written: Written, way: str) -> None:
    """This dequeue counts so from here on; empty: as any other. Called with the lock held, where the branch is not the
    caller's alone."""
    for rider in branch.riders:
        if isinstance(rider, Leaving):
            rider.ways[written.number] = way
            return
    branch.riders = (*branch.riders, Leaving({written.number: way}))


def move_exhausted(space: Space, stopped: Callable[[], bool]) -> bool:
    """Moves the messages that had all their tries; False where it was stopped before.

    Raises RetryLater where some could not be moved, ResourceFailed.
    """
    with space.lock:
        for queue in space.queues.values():
            if queue.index.is_to_be_searched:
                queue.index.find_exhausted()
        queues = [queue for queue in space.queues.values() if queue.index.exhausted]
    return move_all(space, queues, TRIES, stopped)


def is_own(xid: Xid) -> bool:
    """Whether the branch moves what is to leave its queue: it delivers nothing."""
    return xid.is_local and xid.bqual == _BQUAL


def move_all(space: Space, queues: list[Queue], reason: str, stopped: Callable[[], bool]) -> bool:
    """Moves the messages that are to leave these queues; False where it was stopped before. Raises as above."""
    why = ""
    for queue in queues:
        if stopped():
            return False
        queue.stuck, before = _move_out(space, queue, reason, stopped), queue.stuck
        if queue.stuck and queue.stuck != before:
            log.error("[move-stuck] messages of queue %s cannot be moved, and stay: %s", queue.name, queue.stuck)
        why = queue.stuck or why
    if why:
        raise RetryLater(why)
    return True


def _move_out(space: Space, queue: Queue, reason: str, stopped: Callable[[], bool]) -> str:
    """Returns why some could not be moved."""
    kept: list[Entry] = []
    why, count, last = "", 0, ""
    try:
        while not stopped() and (entry := _next(space, queue, reason)) is not None:
            try:
                _move(space, queue, entry, reason)
                count, last = count + 1, entry.retry.reason if entry.retry is not None else ""
            except ResourceFailed:
                raise
            except Error as error:
                why = str(error)
                kept.append(entry)
                if not isinstance(error, MessageTooLarge | InvalidArgument):  # the next one has the same fault
                    break
    finally:
        with space.lock:
            for entry in kept:
                if entry.locked:
                    _leaving(queue, reason).append(entry)
            queue.index.is_to_be_searched |= bool(kept)
            queue.expiring.clear()
            space.settled.notify_all()
    if count:
        why_last = f"; the last one had failed last with: {last}" if last and reason == TRIES else ""
        log.info("[messages-moved] %d messages left queue %s, reason: %s%s", count, queue.name, reason, why_last)
    return why


def _next(space: Space, queue: Queue, reason: str) -> Entry | None:
    """One that is nobody else's any more."""
    with space.lock:
        space.check()
        if queue.keeper is not None or queue.is_wanted or space.draining:
            return None
        if space.gates and space.why_shut(queue.name) is not None:
            return None
        found = _leaving(queue, reason)
        if reason == EXPIRED:
            queue.index.find_expired(space.now_us(), 1)
        queue.expiring = {found[0]} if found else set()
        return found.pop(0) if found else None


def _leaving(queue: Queue, reason: str) -> list[Entry]:
    return queue.index.expired if reason == EXPIRED else queue.index.exhausted


def _move(space: Space, queue: Queue, entry: Entry, reason: str) -> None:
    """Where an error is raised the message is locked still, or back in its queue. Past its commit point it is moved
    by whoever completes the branch."""
    xid = Xid.local(fresh_id(), _BQUAL)
    taken = Written(1, Kind.DEQUEUE, queue.name, entry.message_id, 0, entry)
    branch = Branch(xid, str(xid), [taken])
    branch.numbers, branch.busy, branch.riders = 1, True, (Leaving({1: _COUNTED[reason]}),)
    with space.lock:
        space.branches[xid] = branch
    try:
        with Busy(space, branch):
            message = taking.fetch(space, branch, taken)
            if message is not None:
                target = _target(space, queue, message.properties.failure_queue or "", reason)
                _add(space, branch, message, *_out(message, target, entry.retry or Retry(0), reason))
                commit.commit(space, branch)
    except CommitPending as pending:
        log.warning("[move-later] message %s of queue %s: %s", entry.message_id.hex(), queue.name, pending)
    finally:
        if branch.base is State.ACTIVE:
            _forget(space, branch)


def move_one(
    space: Space, branch: Branch, name: str, message_id: MessageId, to: str | None, check: Callable[[str], object]
) -> MessageId | None:
    """Moves a message within a branch, for somebody; see ``ResourceManager.move``."""
    if to is not None:
        space.definitions.find(to)
        if to == name:
            raise InvalidArgument(f"queue {name} is where the message is: name another")
    message = taking.dequeue(space, branch, name, 0.0, message_id, None, even_early=True)
    if message is None:
        return None
    try:
        properties, wanted_id = _back(message) if to is None else _onwards(message, to)
        check(properties.queue)
        with space.lock:  # another session may be at work in the branch, and something else of it ride
            for written in branch.blocks:
                if written.kind is Kind.DEQUEUE and written.queue == name and written.message_id == message_id:
                    leaves(branch, written, MOVED)
        return _add(space, branch, message, properties, wanted_id)
    except BaseException:
        try:
            for written in reversed(branch.blocks):  # another session may be at work in the branch
                if written.kind is Kind.DEQUEUE and written.queue == name and written.message_id == message_id:
                    taking.return_taken(space, branch, written)
        except BaseException as error:
            taking.keeps(branch, error)
            raise
        raise


def reject(space: Space, branch: Branch, reason: str) -> None:
    """Moves the message that is the only dequeue of this branch to its failure queue, and ends the branch.

    Where an error is raised it is held still, or past its commit point; InvalidArgument: there is no such queue.
    """
    (taken,) = branch.blocks
    entry, name = taken.entry, taken.queue
    assert entry is not None
    with space.lock:
        queue = space.queue(name)
    message = taking.fetch(space, branch, taken, is_held=True)
    if message is None:  # damaged, and set aside
        _forget(space, branch)
        return
    target = _target(space, queue, message.properties.failure_queue or "", REJECTED)
    if target in ("", name):
        raise InvalidArgument(
            f"queue {name} has no failure queue, so nothing can be rejected: `xaqueue define {name} failure_queue=...` "
            "gives it one. The delivery is held still"
        )
    retry = tries.failed_now(space, name, entry, reason)
    try:
        _add(space, branch, message, *_out(message, target, retry, REJECTED))
        leaves(branch, taken, _COUNTED[REJECTED])
        commit.commit(space, branch)
    except BaseException:
        if branch.base is State.ACTIVE:
            _withdraw(space, branch, taken)
        raise


def _withdraw(space: Space, branch: Branch, taken: Written) -> None:
    """The branch has this dequeue and nothing else."""
    added = [written for written in branch.all_blocks if written is not taken]
    with space.lock:
        branch.blocks, branch.branch_block, branch.rollback_reason = [taken], None, None
        leaves(branch, taken, "")
        for written in added:
            if written.kind is Kind.ENQUEUE:
                space.queue(written.queue).withdraw(written.message_id)
    if space.failure is None:
        space.discard([written.path for written in added if written.path])


def _back(message: Message) -> tuple[Properties, MessageId]:
    """To where it was before it was moved, as it was then. Raises InvalidArgument where it was not."""
    origin = message.origin
    if origin is None or not origin.queue:
        raise InvalidArgument(f"message {message.message_id.hex()} of queue {message.queue} was not moved here")
    properties = replace(message.properties, queue=origin.queue, tries=0, expires_at=origin.expires_at, origin=None)
    return properties, id_of(origin.message_id) if origin.message_id else message.message_id


def _onwards(message: Message, to: str) -> tuple[Properties, MessageId]:
    """With its first origin, where it has one."""
    before = message.properties
    origin = before.origin or Origin(message.queue, MOVED, before.tries, expires_at=before.expires_at).text
    return replace(before, queue=to, tries=0, origin=origin), message.message_id


def _out(message: Message, target: str, retry: Retry, reason: str) -> tuple[Properties, MessageId]:
    """There it is due at once, never expires, and has not been tried."""
    before = message.properties
    detail = retry.reason if len(pack_properties(before)) < PROPERTIES_LIMIT_BYTES - DETAIL_BYTES else ""
    origin = Origin(message.queue, reason, retry.tries, retry.first, retry.last, detail, before.expires_at)
    moved = replace(before, queue=target, tries=0, not_before=None, expires_at=None, origin=origin.text)
    return moved, message.message_id


def _add(space: Space, branch: Branch, message: Message, properties: Properties, message_id: MessageId) -> MessageId:
    """The same message for the other queue. Returns its id there: another one where that has a message of this id."""
    target = properties.queue
    space.definitions.find(target)
    messages.check_room(space, branch, len(message.body))
    with space.lock:
        there = space.queue(target)
        is_taken = message_id in there.index or message_id in there.pending
    if is_taken:
        if properties.origin:
            origin = replace(message, properties=properties).origin
            assert origin is not None
            properties = replace(
                properties, origin=replace(origin, message_id=origin.message_id or message_id.hex()).text
            )
        message_id = MessageId(fresh_id())
    limit_bytes = max(space.definitions.max_body_bytes, len(message.body))
    packed = pack_properties(properties)
    head, checksum = head_of(Kind.ENQUEUE, message_id, packed, message.body, space.epoch, limit_bytes)
    written = Written(0, Kind.ENQUEUE, target, message_id, checksum, Entry(0, message_id, tags_of(properties)))
    messages.add(space, branch, written, (head, message.body), messages.Terms(not is_taken, may_wait=False))
    return message_id


def _target(space: Space, queue: Queue, own: str, reason: str) -> str:
    """Where it goes: a failed message may name its own queue for that."""
    if reason == EXPIRED:
        return EXPIRY_QUEUE.of(queue.definition)
    named = space.definitions.of(own) if own not in ("", queue.name) else None
    keeps = named is not None and (named.persistent or not queue.definition.persistent)
    return own if keeps else FAILURE_QUEUE.of(queue.definition)


def _forget(space: Space, branch: Branch) -> None:
    """The branch came to nothing."""
    with space.lock:
        space.branches.pop(branch.xid, None)
        for written in branch.blocks:
            if written.kind is Kind.ENQUEUE:
                space.queue(written.queue).withdraw(written.message_id)
    if space.failure is None:
        space.discard([written.path for written in branch.all_blocks if written.path])
