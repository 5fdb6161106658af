"""What a resource manager does, embedded or behind a server: the protocol through which rooms meet.

Source: X/Open C193 (Distributed TP: The XA Specification), chapter 3.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, Unpack

from xaqueue.carried import Carriers, CarrierStatus
from xaqueue.delivery import LEASE_S, Detail
from xaqueue.message import EnqueueOptions, Message, MessageId
from xaqueue.snapshot import SnapshotStatus
from xaqueue.xa import Flag, Outcome, Vote
from xaqueue.xid import Xid


class ResourceManager(Protocol):
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

    def enqueue_many(
        self,
        queue: str,
        bodies: Sequence[bytes],
        ids: Sequence[MessageId | None] | None = None,
        own: Sequence[EnqueueOptions] | None = None,
        /,
        **options: Unpack[EnqueueOptions],
    ) -> list[MessageId]:
        """Adds several messages with these options; see ``Connection.enqueue_many``. ids: None where one is to be made.
        own: the options of each, where they are not the same; then there are no others."""

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

    def restore(self, queue: str, messages: Sequence[Message]) -> list[bool]:
        """In the branch, adds messages with their ids and all their properties, which were checked by nobody yet; see
        ``Connection.restore``. False where the queue, or the branch, has one of this id."""

    def mark(self) -> int:
        """Of the associated branch, as it is now."""

    def cut(self, mark: int) -> None:
        """What the associated branch has added and taken since this mark of it is undone."""

    def browse(self, queue: str, limit: int | None = None, id_digits: str = "") -> Iterator[Message]:
        """Committed messages in the order of the queue, locking nothing; with hex digits those whose id begins so."""

    def define(self, queue: str, settings: Mapping[str, Any], table: str = "queues") -> None:
        """Defines a queue, or what has a name in another table of queues.toml, or changes that, at once and durably."""

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

    # Messages that are handed out for a while, beside the branches of the session. Any session may settle a lease, 16
    # bytes. Each but ``receive`` raises LeaseExpired where it has ended, and then has done nothing. See the verbs of
    # these names in ``xaqueue.features.leases``.

    def receive(
        self, queue: str, max_messages: int = 1, lease_s: float = LEASE_S, wait_s: float | None = 0.0
    ) -> list[tuple[bytes, Message]]: ...

    def settle(self, queue: str, lease: bytes, how: str, detail: Detail = None) -> None: ...

    def extend(self, queue: str, lease: bytes, lease_s: float) -> None: ...

    def accept(self, queue: str, lease: bytes) -> None: ...

    # For a transaction manager one of whose databases carries changes of the space: see the verbs of these names in
    # ``xaqueue.features.carry``.

    @property
    def space_id(self) -> str:
        """Of the space: another one in its place never heard of its branches."""

    def carriers(self) -> Carriers: ...

    def deliver(
        self, carrier: str, secret: str, changes: Sequence[bytes], highest: int, count: int, more: bool = False
    ) -> bool: ...

    def release_carrier(self, carrier: str) -> CarrierStatus | None: ...
