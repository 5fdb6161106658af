"""What a resource manager does, embedded or behind a server: the protocols through which rooms meet.

Source: X/Open C193 (Distributed TP: The XA Specification), chapter 3.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, Unpack

from xaqueue.batch import Batch, Decision, Plan
from xaqueue.carried import Carriers, CarrierStatus
from xaqueue.delivery import LEASE_S, Detail
from xaqueue.message import EnqueueOptions, Message, MessageId
from xaqueue.reservation import Reservation
from xaqueue.snapshot import SnapshotStatus
from xaqueue.xa import Flag, Outcome, Vote
from xaqueue.xid import Xid


class Carrying(Protocol):
    """What a resource manager does for a transaction manager one of whose databases carries changes of the space.

    carrier: ``<node>.<participant>``; changes: as ``CarriedChange.encode`` made them.
    """

    @property
    def space_id(self) -> str:
        """Of the space: another one in its place never heard of its branches."""

    def carriers(self) -> Carriers:
        """Who has the space open, and which databases carry its changes, or did."""

    def deliver(
        self, carrier: str, secret: str, changes: Sequence[bytes], highest: int, count: int, more: bool = False
    ) -> bool:
        """Hands over what stands in the database of earlier lives, which can add to it no more.

        secret: of the life that has begun there. highest, count: of changes whose rows are gone. more: there are
        further changes. Whether all is applied and hardened; it is not where another carrier of the same queues has not
        delivered yet. Idempotent. Raises SpaceError where the space or the database is an old copy, RetryLater where
        there is no room, or a branch is in the way.
        """

    def release_carrier(self, carrier: str) -> CarrierStatus | None:
        """Its queues wait no more, by an operator's decision; None where it carries now, or was released before."""


class Leasing(Protocol):
    """Messages that are handed out for a while, beside the branches of the session. Any session may settle a lease, 16
    bytes. Each but ``receive`` raises LeaseExpired where it has ended, and then has done nothing."""

    def receive(
        self, queue: str, max_messages: int = 1, lease_s: float = LEASE_S, wait_s: float | None = 0.0
    ) -> list[tuple[bytes, Message]]:
        """See ``Connection.receive``."""

    def settle(self, queue: str, lease: bytes, how: str, detail: Detail = None) -> None:
        """how: ``ack``, ``nack`` or ``reject``. detail: microseconds, or None, of a nack, or both these and its reason;
        the reason of a reject."""

    def extend(self, queue: str, lease: bytes, lease_s: float) -> None:
        """The lease ends so many seconds from now."""

    def accept(self, queue: str, lease: bytes) -> None:
        """The message is one that the associated branch has taken, and the lease is over."""


class ResourceManager(Carrying, Leasing, Protocol):
    """One session with a queue space: the XA verbs with explicit xids, and the work between them.

    A session is used by one thread at a time. It is associated with at most one branch; ``enqueue`` and ``dequeue``
    belong to that branch. Prepare, commit, rollback and forget need no association and may come from any session.
    Errors are exceptions that carry the XA code; ResourceFailed means that the outcome of this call is unknown.
    """

    def start(self, xid: Xid, flags: Flag = Flag.NOFLAGS, timeout_s: float | None = None) -> None:
        """Begins a branch, or enters one with JOIN or RESUME. ``timeout_s``: rolled back when not idle by then."""

    def end(self, xid: Xid, flags: Flag = Flag.SUCCESS) -> None:
        """Leaves the branch: SUCCESS, FAIL (now rollback-only) or SUSPEND (to RESUME, elsewhere with MIGRATE)."""

    def prepare(self, xid: Xid, flags: Flag = Flag.NOFLAGS) -> Vote:
        """Makes an idle branch durable and in doubt. RDONLY: it had no blocks, is gone, and no file was touched."""

    def commit(self, xid: Xid, flags: Flag = Flag.NOFLAGS) -> None:
        """Commits a prepared branch, or with ONEPHASE an idle one. Returns once hardened and visible.

        LATE, of a prepared one: once it is visible to the sessions of this owner, where the level allows it. It is
        hardened with what comes next, a moment later, or by ``harden``; until then a crash leaves it prepared. For who
        can find out again that it was to be committed.
        """

    def harden(self) -> None:
        """Returns once all is hardened that was committed LATE. Raises RetryLater where there is no room."""

    def rollback(self, xid: Xid, flags: Flag = Flag.NOFLAGS) -> None:
        """Undoes an idle, rollback-only or prepared branch; its dequeued messages are back where they were."""

    def recover(self, count: int, flags: Flag = Flag.NOFLAGS) -> list[Xid]:
        """Up to ``count`` prepared or heuristically finished xids: the next of this session's scan.

        STARTRSCAN opens (or restarts) the scan, ENDRSCAN closes it after this call.
        """

    def forget(self, xid: Xid, flags: Flag = Flag.NOFLAGS) -> None:
        """Ends the memory of a heuristic outcome."""

    def outcome(self, xid: Xid) -> Outcome:
        """What became of the branch, as far as it is remembered, or becomes of it by a step that is on its way."""

    def explain(self, xid: Xid, reason: str) -> None:
        """Why a branch that is not over is going to be rolled back, which is why its deliveries fail."""

    def flush(self) -> None:
        """What was not sent yet is done now. Raises what it fails with."""

    def enqueue(self, queue: str, body: bytes, **options: Unpack[EnqueueOptions]) -> MessageId:
        """Adds a message to the associated branch."""

    def dequeue(
        self,
        queue: str,
        *,
        wait_s: float | None = 0.0,
        message_id: bytes | None = None,
        correlation_id: bytes | str | None = None,
    ) -> Message | None:
        """Takes a message in the associated branch; None when there is none within ``wait_s`` seconds.

        Where that is None or infinite it waits until there is one.
        """

    def enqueue_many(self, queue: str, bodies: Sequence[bytes], **options: Unpack[EnqueueOptions]) -> list[MessageId]:
        """Adds several messages with these options; see ``Connection.enqueue_many``."""

    def enqueue_to(self, queues: Sequence[str], body: bytes, **options: Unpack[EnqueueOptions]) -> MessageId:
        """Adds one message to several queues, its content once; see ``Connection.enqueue_to``."""

    def publish(self, topic: str, body: bytes, **options: Unpack[EnqueueOptions]) -> MessageId:
        """Adds a message to each queue that subscribes to the topic; see ``Connection.publish``."""

    def dequeue_many(self, queue: str, count: int, *, wait_s: float | None = 0.0) -> list[Message]:
        """Takes up to ``count`` messages, and waits for the first as ``dequeue`` does. Where it raises, none."""

    def move(self, queue: str, message_id: bytes, to: str | None = None) -> MessageId | None:
        """In the branch, takes a message from the queue and adds it to another, or to where it was before it was moved;
        see ``Connection.move``. None where it is not there, or locked."""

    def remove(self, queue: str, message_id: bytes) -> bool:
        """In the branch, takes a message for good, whatever it waits for; False where it is not there, or locked."""

    def restore(self, queue: str, message: Message) -> bool:
        """In the branch, adds a message with its id and all its properties, which were checked by nobody yet; see
        ``Connection.restore``. False where the queue, or the branch, has one of this id."""

    def browse(self, queue: str, limit: int | None = None, id_digits: str = "") -> Iterator[Message]:
        """Committed messages in the order of the queue, locking nothing; with hex digits those whose id begins so."""

    def define(self, queue: str, settings: Mapping[str, Any], is_topic: bool = False) -> None:
        """Defines a queue, or a topic, or changes its definition, at once and durably; see ``Connection.define``."""

    def undefine(self, queue: str) -> None:
        """Takes the definition of an empty queue away, at once and durably; see ``Connection.undefine``."""

    def snapshot(self, prunes: bool = True) -> SnapshotStatus:
        """Takes a snapshot, while others work; see ``Connection.snapshot``. prunes: removes those that are too many."""

    def close(self, left: Xid | None = None) -> None:
        """Ends the session: what it has active is rolled back, what is prepared stays.

        left: a branch that the session has left, which goes with it unless it is prepared.
        """

    def drop(self) -> bool:
        """Ends it where nobody may be kept waiting, as by the collector; in a forked child all is left as it is.

        Returns whether there was anything to be ended.
        """


class Batches(Protocol):
    """What a resource manager does for a query that writes in batches: many prepared branches, one decision."""

    def commit_all(
        self, batch: Batch, xids: Sequence[Xid], others: Sequence[tuple[str, Xid]] = (), plan: Plan | None = None
    ) -> Decision:
        """Commits prepared branches of a batch in one step and rolls back all others of it.

        A batch that was decided before is finished as it was decided, what is new is rolled back, and the earlier
        decision is returned. ``others``: branches in other spaces, by their ids, that this decision holds for. What is
        left to do here of the query's last batch is done first, RetryLater where that finds no room.
        Raises UnknownXid, and has done nothing, where one of ``xids`` is not prepared; InvalidArgument, likewise, for
        a number below that of the query's last batch, and for that number with another plan.
        """

    def rollback_all(self, batch: Batch, spaces: Sequence[str] = ()) -> int:
        """Rolls back the branches of a batch that is not decided; how many there were. ``spaces``: the ids of those
        that were asked; branches that another one may have committed are left.
        """

    def decision(self, batch: Batch) -> Decision | None:
        """What was decided of a batch, or of the last of its query where that is a later one; None without both."""


class Streams(Protocol):
    """What a resource manager does for a stream that consumes a queue from its front, in batches."""

    def reserve(self, queue: str, stream: str, after: int, upto: int) -> Reservation:
        """Keeps the queue for this stream, which is about to read (after, upto]. Idempotent.

        Raises QueueReserved where another stream or a branch has messages of it, or an operator released it.
        """

    def consume(self, queue: str, stream: str, upto: int, archive: bool = False) -> Reservation:
        """Everything up to this number is consumed: removed, or moved to the archive. Cumulative and idempotent."""

    def release(self, queue: str) -> Reservation | None:
        """Ends the reservation, whoever has it; what is not consumed is there for everybody. None without one."""

    def reservations(self) -> list[Reservation]:
        """Of all queues, sorted by their names."""
