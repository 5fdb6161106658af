"""A stream consumes a queue from its front: the queue is reserved for it, and one record says how far it is.

    reserve    first time: the record is hardened, and from then on nobody else takes a message of the queue
    consume    the record with a higher number is the commit point; memory forgets the messages in the same step, and
               ``xaqueue.features.streams.cleanup`` removes their files afterwards, in this life of the owner or in
               the next
    release    what is consumed is cleared and hardened, and only then the record says that it is released

A consumed message never comes back: recovery loads none at or below the record's number, and a replay of the journal
makes none. So the record stays when it is released, and says which streams must not come again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from xaqueue.access import CONSUME, NOTHING, RESOLVE
from xaqueue.core.engine.session import Session
from xaqueue.core.engine.state import Space
from xaqueue.core.model import layout
from xaqueue.core.model.change import PUT, Change, Op
from xaqueue.core.model.queue import Queue
from xaqueue.core.model.records import encode_record
from xaqueue.core.storage.group_commit import nothing
from xaqueue.errors import InvalidArgument, QueueReserved
from xaqueue.features.streams import cleanup
from xaqueue.features.streams.record import StreamRecord, StreamStep, record_of, stream_path
from xaqueue.features.streams.taken import CONSUMED, Taken, encode_taken, taken_directory, taken_path
from xaqueue.message import Properties, check_queue_name
from xaqueue.reservation import Reservation, check_stream
from xaqueue.rpc.verb import verb

FORMER = 100
"""Streams that were released are refused when they come again, and so many are remembered for it."""


@verb(CONSUME, "call_with_retry")
def reserve(self: Session, queue: str, stream: str, after: int, upto: int) -> Reservation:
    """Keeps the queue for this stream, which is about to read (after, upto]. Idempotent.

    Raises QueueReserved where another stream or a branch has messages of it, or an operator released it.
    """
    space = _opened(self)
    space.definitions.find(check_queue_name(queue))
    check_stream(stream)
    if check_number(after) > check_number(upto):
        raise InvalidArgument(f"range ({after}, {upto}] is refused: it ends before it begins")
    with _in_hand(space, queue) as kept:
        before, record = kept.record, _record_for(space, kept, stream)
        if record is not before:
            with space.lock:
                why = space.why_shut(queue)
                if why is not None:
                    raise why
                _wait_for_the_sweep(space, kept)
                try:
                    _check_unlocked(space, kept)
                except QueueReserved:
                    space.wakes.consumed.wake()  # the sweep goes on
                    raise
                kept.keep_leaving()
                kept.record = record  # from here on nobody locks a message
                kept.arrived.notify_all()
            try:
                _write(space, record)
            except BaseException:
                with space.lock:
                    kept.record = before
                    space.wakes.consumed.wake()
                raise
        with space.lock:
            kept.in_flight = (after, upto) if upto > after else None
            return _reservation_of(kept)


@verb(CONSUME, "call_with_retry")
def consume(self: Session, queue: str, stream: str, upto: int, archive: bool = False) -> Reservation:
    """Everything up to this number is consumed: removed, or moved to the archive, as it always is where the queue has
    one. Cumulative and idempotent."""
    space = _opened(self)
    check_stream(stream)
    check_number(upto)
    if not isinstance(archive, bool):
        raise InvalidArgument(f"archive {archive!r} is refused: true (keep in archive/) or false (remove) is wanted")
    with _in_hand(space, queue) as kept:
        record = _record_of(kept, stream)
        if upto <= record.consumed:
            return _reservation_of(kept)
        with space.lock:
            _check_consumable(kept, upto)
            archive = archive or bool(kept.kept_in)
        if record.archived_after is not None and not archive:
            _harden_cleared(space, kept)  # what was to be kept is in its place
        after = record.consumed if record.archived_after is None else record.archived_after
        further = replace(record, consumed=upto, archived_after=after if archive else None)
        taken = Taken(space.now_us(), stream, CONSUMED, [(record.consumed + 1, upto)])
        _write(space, further, lambda: kept.consume(further), taken if archive else None)
        space.wakes.consumed.wake()
        with space.lock:
            return _reservation_of(kept)


@verb(RESOLVE)
def release(self: Session, queue: str) -> Reservation | None:
    """Ends the reservation, whoever has it; what is not consumed is there for everybody. None without one.

    A client raises ConnectionLost where the answer is lost: then ``reservations`` tells.
    """
    space = _opened(self)
    with _in_hand(space, queue) as kept:
        record = record_of(kept) if kept.keeper is not None else None
        if record is None:
            return None
        _harden_cleared(space, kept)
        former = tuple(one for one in (*record.former, record.stream) if one)[-FORMER:]
        released = replace(record, released=True, archived_after=None, former=former, damage="")

        def publish() -> None:
            kept.record = released

        with space.lock:
            found = replace(_reservation_of(kept), released=True)
        _write(space, released, publish)
        with space.lock:
            kept.in_flight = None
            kept.arrived.notify_all()
        space.wakes.consumed.wake()  # what had all its tries moves now
        return found


@verb(NOTHING, "call_with_retry")
def reservations(self: Session) -> list[Reservation]:
    """Of all queues, sorted by their names."""
    space = _opened(self)
    space.wait_until_loaded()
    with space.lock:
        space.check_readable()
        kept = [_reservation_of(queue) for queue in space.queues.values() if queue.keeper is not None]
    return sorted(kept, key=lambda one: one.queue)


def _opened(self: Session) -> Space:
    self._check_open()
    return self.space


def check_number(value: int) -> int:
    """The commit sequence number itself. Raises InvalidArgument."""
    if type(value) is not int or not 0 <= value <= layout.LAST_SEQ:
        raise InvalidArgument(f"number {value!r} is refused: a commit sequence number from 0 is wanted")
    return value


@contextmanager
def _in_hand(space: Space, name: str) -> Iterator[Queue]:
    """The queue, whose record nobody else changes meanwhile."""
    check_queue_name(name)
    space.wait_until_loaded()
    taken: Queue | None = None
    try:
        with space.lock:
            space.log.check()
            queue = space.queue(name)
            while queue.in_hand:
                space.wait_settled()
            taken = queue
            queue.in_hand = True
        yield queue
    finally:
        if taken is not None:  # an interrupt may come once the lock is free
            with space.lock:
                taken.in_hand = False
                space.settled.notify_all()
            space.log.deliver_interrupt()


def _record_for(space: Space, queue: Queue, stream: str) -> StreamRecord:
    """The record as this stream has it, or as it would make it. QueueReserved where it may not."""
    record = record_of(queue)
    if record is None:
        return StreamRecord(queue.name, stream, since=space.now_us())
    if not record.released:
        if record.stream == stream and not record.damage:
            return record
        raise record.refusal()
    if stream in record.former:
        raise _released(queue.name, stream)
    return replace(record, stream=stream, since=space.now_us(), archived_after=None, released=False)


def _record_of(queue: Queue, stream: str) -> StreamRecord:
    """The record that this stream has. Raises QueueReserved."""
    record = record_of(queue)
    if record is not None and stream in record.former:
        raise _released(queue.name, stream)
    if record is None or record.released:
        raise QueueReserved(f"queue {queue.name} is not reserved for stream {stream}: reserve it before it is consumed")
    if record.stream != stream or record.damage:
        raise record.refusal()
    return record


def _released(queue: str, stream: str) -> QueueReserved:
    return QueueReserved(
        f"the reservation of queue {queue} for stream {stream} was released by an operator, and others may have taken "
        "messages since: start the stream with a new checkpoint"
    )


def _wait_for_the_sweep(space: Space, queue: Queue) -> None:
    """What has expired and is being removed is held by nobody. Called with the lock held."""
    queue.is_wanted = True
    try:
        while queue.expiring:
            space.wait_settled()
    finally:
        queue.is_wanted = False


def _check_unlocked(space: Space, queue: Queue) -> None:
    """QueueReserved where branches hold messages. Called with the lock held."""
    held = queue.index.locked - queue.leaving
    if not held:
        return
    holders = [
        branch
        for branch in space.branches.values()
        if any(w.entry is not None and w.queue == queue.name and w.entry.locked for w in branch.blocks)
    ]
    one = f", one of them branch {holders[0].xid}, which is {holders[0].base.value}" if holders else ""
    raise QueueReserved(
        f"queue {queue.name} cannot be reserved now: {held:,} of its messages are held by branches{one}. "
        "Stop its consumers, and decide what is in doubt: `xaqueue indoubt list`"
    )


def _check_consumable(queue: Queue, upto: int) -> None:
    """Called with the lock held. Raises InvalidArgument, QueueReserved."""
    if upto > queue.published:
        raise InvalidArgument(
            f"queue {queue.name} is published up to {queue.published:,}, and {upto:,} cannot be consumed: is the "
            "stream's checkpoint that of another space, or the space older than it? Nothing was done"
        )
    held = queue.index.locked_through(upto)
    if held:
        raise QueueReserved(
            f"{held:,} messages of queue {queue.name} are held by branches and cannot be consumed: decide what is in "
            "doubt: `xaqueue indoubt list`"
        )


def _harden_cleared(space: Space, queue: Queue) -> None:
    """The files of what is consumed are where they belong, and no crash brings one back. RetryLater without room."""
    cleanup.clear_queue(space, queue)
    cleanup.keep_cut(space, queue)
    space.sync_all()
    space.checkpoint()


def _reservation_of(queue: Queue) -> Reservation:
    """What is known of the stream that consumes it."""
    record = record_of(queue)
    assert record is not None
    return Reservation(
        queue.name,
        record.stream,
        record.consumed,
        queue.in_flight,
        queue.published,
        record.since,
        record.archived_after is not None,
        record.released,
    )


def _write(
    space: Space, record: StreamRecord, publish: Callable[[], None] = nothing, taken: Taken | None = None
) -> None:
    """Replaces the queue's record durably: that is the commit point. taken: what is kept for it, which is said before.
    RetryLater where nothing was done."""
    path, content = stream_path(record.queue), encode_stream(record, space.epoch)
    said = [(taken_path(record.queue, taken), *encode_taken(record.queue, taken, space.epoch))] if taken else []
    space.stage(path, *content)
    ops: list[Op] = [(PUT, path, *content, 0)]
    change = Change(StreamStep.STREAM, path.rpartition("/")[2], ops)
    if said and space.log.is_atomic:
        cleanup.make_place(space, taken_directory(record.queue))
        ops[:0] = [(PUT, *one, 0) for one in said]
    else:
        change = change._replace(beside=said)
    space.log.perform(change, publish)


def encode_stream(record: StreamRecord, epoch: int) -> tuple[bytes, bytes]:
    """Head and body of its block."""
    stored = {"stream": record.stream, "consumed": str(record.consumed)}
    if record.archived_after is not None:
        stored["archived_after"] = str(record.archived_after)
    if record.released:
        stored["released"] = "1"
    properties = Properties(record.queue, enqueued_at=record.since, headers=stored)
    body = "\n".join(record.former[-FORMER:]).encode()
    return encode_record(properties, body, epoch)
