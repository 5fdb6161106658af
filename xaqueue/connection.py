"""A connection is one session with a queue space, with PEP 249's two-phase methods to the letter.

Work outside ``tpc_begin`` belongs to a local transaction that starts by itself and ends with ``commit`` or
``rollback``, in one phase. ``tpc_begin`` starts a branch under the caller's xid; ``tpc_prepare`` makes it durable and
in doubt; ``tpc_commit`` and ``tpc_rollback`` finish it, or, with an xid and outside a transaction, one that recovery
listed. Beyond PEP 249 the names follow python-oracledb, and blocks (``with``) are psycopg's. Closing rolls back what
is not prepared.

One thread uses a connection at a time. Between transactions it may be handed on, and whoever drives a two-phase
transaction may prepare and finish it from other threads; work, ``commit`` and ``rollback`` are their own thread's. A
forked child cannot use it.

It is written over the ResourceManager protocol: it neither knows nor cares where the space is.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial, wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar, Unpack

from xaqueue.delivery import LEASE_S, Delivery, checked_count, checked_lease_s
from xaqueue.errors import DuplicateXid, Error, InterfaceError, InvalidArgument, NoReply, ResourceFailed
from xaqueue.message import (
    EnqueueOptions,
    Message,
    MessageId,
    body_of,
    check_queue_name,
    check_queues,
    id_digits_of,
    id_of,
    options_of,
)
from xaqueue.times import FOREVER_S, check_seconds
from xaqueue.transaction import Phase, Transaction
from xaqueue.xa import Flag, Outcome
from xaqueue.xid import Xid

if TYPE_CHECKING:  # brings the types of batches, which a plain connection never needs
    from xaqueue.carried import CarriedChange, Carriers, CarrierStatus, Pruned
    from xaqueue.resource_manager import ResourceManager

RECOVER_PAGE = 1000
DELIVER_BYTES = 1024 * 1024
"""Of carried changes in one call, about."""
REPLY_TTL_S = 86_400.0
"""A reply that nobody takes is gone after so long, unless its sender says otherwise."""

P = ParamSpec("P")
T = TypeVar("T")


def _alone(method: Callable[Concatenate[Connection, P], T]) -> Callable[Concatenate[Connection, P], T]:
    """The method, for one thread at a time of the process that connected. Raises InterfaceError, ResourceFailed.

    What every two-phase transaction calls has the same in its own body: five calls less.
    """

    @wraps(method)
    def alone(self: Connection, *arguments: P.args, **options: P.kwargs) -> T:
        if self._pid != os.getpid() or not self._entered.acquire(False):
            raise self._refused()
        try:
            return method(self, *arguments, **options)
        finally:
            self._entered.release()

    return alone  # type: ignore[return-value]


class Connection:
    """Made by ``xaqueue.connect``. Errors are those of ``xaqueue.errors``, PEP 249's classes above them.

    As a block it commits at its end, rolls back on an exception, and is closed then; see ``__exit__``.
    """

    def __init__(self, manager: ResourceManager, make_id: Callable[[], bytes]) -> None:
        """``make_id``: 16 unique bytes for the xid of a local transaction."""
        self._manager = manager
        self._transaction = Transaction(manager, make_id)
        self._pid = os.getpid()
        self._entered = threading.Lock()
        """Held by who is in a call."""

    # Messages

    def enqueue(self, queue: str, body: bytes | bytearray | memoryview, **options: Unpack[EnqueueOptions]) -> MessageId:
        """Adds a message, visible once the transaction commits. Returns its id, 16 bytes.

        body: bytes, or what has them: a bytearray, a memoryview. Options: see ``xaqueue.message.EnqueueOptions``.
        Raises UnknownQueue, MessageTooLarge, InvalidArgument (and nothing has changed), QueueFull, DiskLow (nothing has
        changed either; there may be room later), any other DiskFull (the transaction can only be rolled back).
        """
        if self._pid != os.getpid() or not self._entered.acquire(False):
            raise self._refused()
        try:
            if type(body) is not bytes:
                body = body_of(body)
            plain = options_of(options, time.time_ns() // 1000) if options else options
            if type(queue) is not str:
                check_queue_name(queue)
            self._transaction.work()
            message_id = self._manager.enqueue(queue, body, **plain)
            self._transaction.uncommitted += 1
            return message_id
        finally:
            self._entered.release()

    def dequeue(
        self,
        queue: str,
        *,
        wait_s: float | None = 0.0,
        message_id: bytes | str | None = None,
        correlation_id: bytes | str | None = None,
    ) -> Message | None:
        """The next message of the queue, or the one of this id, or the first of this correlation id.

        It is locked for this transaction: gone when it commits, back in its place when it is rolled back. None where
        there is none within ``wait_s`` seconds; where that is None or infinite, it is waited for until there is one.
        Messages that other transactions hold are passed over. message_id: 16 bytes or 32 hex digits.
        Raises UnknownQueue, QueueReserved, InvalidArgument.
        """
        if self._pid != os.getpid() or not self._entered.acquire(False):
            raise self._refused()
        try:
            if type(queue) is not str:
                check_queue_name(queue)
            if message_id is not None:
                message_id = id_of(message_id)
            if wait_s.__class__ is not float or not 0.0 <= wait_s < FOREVER_S:
                wait_s = check_seconds("wait_s", wait_s)
            self._transaction.work()
            found = self._manager.dequeue(queue, wait_s=wait_s, message_id=message_id, correlation_id=correlation_id)
            if found is not None:
                self._transaction.uncommitted += 1
            return found
        finally:
            self._entered.release()

    def consume(self, queue: str, *, wait_s: float | None = None) -> Iterator[Message]:
        """The messages of the queue as they come, each taken as by ``dequeue`` when the loop asks for it:
        ``for message in connection.consume("orders"): ...``.

        Commit, or roll back, after each one: what is not ended then goes on with the next. The loop ends where none
        comes within ``wait_s`` seconds, by default never.
        """
        return iter(partial(self.dequeue, queue, wait_s=wait_s), None)

    @_alone
    def enqueue_many(
        self, queue: str, bodies: Iterable[bytes | bytearray | memoryview], **options: Unpack[EnqueueOptions]
    ) -> list[MessageId]:
        """Adds a message for each of these bodies, in one call. Returns their ids, in the same order.

        The options are those of ``enqueue``, and hold for every one; ``message_id`` is none of them. Raises as
        ``enqueue``: what one can be refused for by itself is found before the first is added, and nothing has changed.
        Where the disk becomes full among them, the transaction can only be rolled back.
        """
        if "message_id" in options:
            raise InvalidArgument("message_id names one message: enqueue_many makes the ids, or enqueue each by itself")
        check_queue_name(queue)
        if isinstance(bodies, str | bytes | bytearray | memoryview):
            raise InvalidArgument(
                f"bodies is a {type(bodies).__name__}: a list, or another iterable, of bytes is wanted"
            )
        checked = [body_of(body) for body in bodies]
        plain = options_of(options, time.time_ns() // 1000) if options else options
        self._transaction.work()
        found = self._manager.enqueue_many(queue, checked, **plain)
        self._transaction.uncommitted += len(found)
        return found

    @_alone
    def enqueue_to(
        self, queues: Sequence[str], body: bytes | bytearray | memoryview, **options: Unpack[EnqueueOptions]
    ) -> MessageId:
        """Adds one message to several queues; in each it is a message of its own, under the same id, which is returned.

        On the disk it is one file with a name in each of the queues, as far as the file system has such. Options and
        errors: see ``enqueue``; InvalidArgument also where a queue is named twice.
        """
        plain = options_of(options, time.time_ns() // 1000)
        self._transaction.work()
        message_id = self._manager.enqueue_to(check_queues(queues), body_of(body), **plain)
        self._transaction.uncommitted += 1
        return message_id

    @_alone
    def publish(self, topic: str, body: bytes | bytearray | memoryview, **options: Unpack[EnqueueOptions]) -> MessageId:
        """Adds a message to every queue that subscribes to the topic just now and wants these headers.

        Where none does, nobody is ever given it. Returns its id, the same in each queue. Otherwise as ``enqueue_to``.
        Raises UnknownQueue where the topic is not defined.
        """
        plain = options_of(options, time.time_ns() // 1000)
        check_queue_name(topic)
        self._transaction.work()
        message_id = self._manager.publish(topic, body_of(body), **plain)
        self._transaction.uncommitted += 1
        return message_id

    @_alone
    def dequeue_many(self, queue: str, count: int, *, wait_s: float | None = 0.0) -> list[Message]:
        """Up to ``count`` messages, taken in this transaction in one call; ``dequeue`` says how each is.

        It waits for the first, as long as ``wait_s`` says, and for no other; an empty list: there was none. Raises as
        ``dequeue``, and then it has taken none.
        """
        check_queue_name(queue)
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise InvalidArgument(f"count {count!r} is refused: a number of messages from 1 is wanted")
        wait_s = check_seconds("wait_s", wait_s)
        self._transaction.work()
        found = self._manager.dequeue_many(queue, count, wait_s=wait_s)
        self._transaction.uncommitted += len(found)
        return found

    @_alone
    def receive(
        self, queue: str, max_messages: int = 1, lease_s: float = LEASE_S, wait_s: float | None = 0.0
    ) -> list[Delivery]:
        """Up to ``max_messages`` (1 to 1,000), each on a lease of its own, in no transaction of this connection.

        They are held from everybody else for ``lease_s`` seconds, a day at most; ``Delivery`` says how each is settled.
        One that is not by then is back in its queue, with one more try, and so it is when this connection is closed, or
        its process ends. It waits for the first as ``dequeue`` does, and for no other; an empty list: there was none.
        Raises UnknownQueue, QueueReserved, InvalidArgument; of a server RetryLater, where the session has too many.
        """
        check_queue_name(queue)
        count, seconds = checked_count(max_messages), checked_lease_s(lease_s)
        limit_s = check_seconds("wait_s", wait_s)
        self._transaction.check_open()
        found = self._manager.receive(queue, count, seconds, limit_s)
        return [Delivery(lease, message, self._settle, self._extend) for lease, message in found]

    @_alone
    def accept(self, delivery: Delivery) -> None:
        """Settles a delivery with this transaction, which has dequeued its message from here on.

        It may have been received by another connection to the same space. Raises LeaseExpired, ProtocolError where it
        was settled before; then the transaction is as it was.
        """
        delivery.check_held()
        self._transaction.work()
        self._manager.accept(delivery.message.queue, delivery.lease)
        delivery.is_settled = True
        self._transaction.uncommitted += 1

    @_alone
    def move(self, queue: str, message_id: bytes | str, to: str) -> MessageId | None:
        """Moves a message to another queue, with all its properties, in this transaction.

        Returns its id there, which is another one only where that queue has a message of this id; None where it is
        not there, or locked. It moves whatever it waits for: a delay, a retry, the turn of its group. Its ``origin``
        says where it was, or was first. Its tries begin at 0.
        Raises UnknownQueue, QueueReserved, InvalidArgument, QueueFull, DiskLow; then it stays.
        """
        return self._move(queue, message_id, check_queue_name(to))

    @_alone
    def requeue(self, queue: str, message_id: bytes | str) -> MessageId | None:
        """Moves a message back to where it was before it was moved, as a failed one is, in this transaction.

        There it is as it was, without a try. Returns and raises as ``move``; InvalidArgument where it has no origin.
        """
        return self._move(queue, message_id, None)

    @_alone
    def remove(self, queue: str, message_id: bytes | str) -> bool:
        """Removes a message in this transaction, whatever it waits for: a delay, a retry, the turn of its group.

        False where it is not there, or locked. Raises UnknownQueue, QueueReserved, InvalidArgument.
        """
        check_queue_name(queue)
        plain = id_of(message_id)
        self._transaction.work()
        is_removed = self._manager.remove(queue, plain)
        self._transaction.uncommitted += is_removed
        return is_removed

    @_alone
    def restore(self, message: Message, queue: str | None = None) -> bool:
        """Adds a message as ``browse`` or ``dequeue`` has shown it, in this transaction, to its own queue or this one.

        With its id, its times, its tries, its origin and whatever else it has; only its sequence number is a new one.
        False where the queue, or this transaction, has a message of this id: that one stays as it is.
        Raises UnknownQueue, MessageTooLarge, InvalidArgument, also where this transaction takes the one of this id, or
        another adds one, DiskLow (and nothing has changed), any other DiskFull (it can only be rolled back).
        """
        if not isinstance(message, Message):
            raise InvalidArgument(f"{message!r} is no message: what browse or dequeue has given is wanted")
        name = check_queue_name(message.queue if queue is None else queue)
        self._transaction.work()
        is_added = self._manager.restore(name, message)
        self._transaction.uncommitted += is_added
        return is_added

    def _move(self, queue: str, message_id: bytes | str, to: str | None) -> MessageId | None:
        check_queue_name(queue)
        plain = id_of(message_id)
        self._transaction.work()
        found = self._manager.move(queue, plain, to)
        if found is not None:
            self._transaction.uncommitted += 1
        return found

    def request(
        self,
        queue: str,
        body: bytes | bytearray | memoryview,
        *,
        timeout_s: float | None = 30.0,
        **options: Unpack[EnqueueOptions],
    ) -> Message:
        """Enqueues a request, commits it, and waits for its reply, which is taken in a transaction of its own.

        The options are those of ``enqueue``: reply_queue is ``<queue>.replies`` without it, and has to be there. The
        reply is known by the request's correlation_id, or by its message id where it has none. Without ttl or
        expires_at a request expires with ``timeout_s``, so that nobody works for who has gone. Only outside a
        transaction. Raises NoReply where none came, ProtocolError, and as ``enqueue``, ``commit`` and ``dequeue``.
        """
        until = time.monotonic() + (limit_s := check_seconds("timeout_s", timeout_s))
        reply_queue = options.get("reply_queue") or f"{check_queue_name(queue)}.replies"
        options["reply_queue"] = reply_queue
        if limit_s < FOREVER_S and "expires_at" not in options:
            options.setdefault("ttl", limit_s)
        with self.transaction():
            message_id = self.enqueue(queue, body, **options)
            self.dequeue(reply_queue, message_id=message_id)  # it has none of this id: a wrong queue is refused now
        wanted = options.get("correlation_id") or message_id
        with self.transaction():
            reply = self.dequeue(reply_queue, wait_s=max(0.0, until - time.monotonic()), correlation_id=wanted)
        if reply is None:
            raise NoReply(
                f"no reply to message {message_id.hex()} of queue {queue} came into queue {reply_queue} within "
                f"{limit_s:g} s: is there a worker? One that comes late stays there until it expires",
                wanted,
            )
        return reply

    def reply(
        self, message: Message, body: bytes | bytearray | memoryview, **options: Unpack[EnqueueOptions]
    ) -> MessageId:
        """Enqueues the reply to a request, in this transaction, which most often is that which has taken the request.

        It goes to the request's reply_queue, with its correlation_id, or its message id where it has none. Without ttl
        or expires_at it expires after a day. Options, id and errors: as ``enqueue``.
        """
        to = message.properties.reply_queue
        if to is None:
            raise InvalidArgument(
                f"message {message.message_id.hex()} of queue {message.queue} has no reply_queue: it wants no reply"
            )
        options.setdefault("correlation_id", message.correlation_id or message.message_id)
        if "expires_at" not in options:
            options.setdefault("ttl", REPLY_TTL_S)
        return self.enqueue(to, body, **options)

    def browse(
        self, queue: str, limit: int | None = None, *, message_id: bytes | str | None = None
    ) -> Iterator[Message]:
        """Committed messages in the order of the queue, at most ``limit``; also those that are locked or not yet due.

        message_id: only the one of this id, or those whose id begins with these hex digits. Locks nothing and takes
        part in no transaction.
        """
        found = self._within(partial(self._browse, queue, limit, id_digits_of(message_id)))
        return iter(lambda: self._within(partial(next, found, None)), None)

    @_alone
    def flush(self) -> None:
        """Raises now what a server may yet refuse of ``tpc_begin`` and ``enqueue``, which ride with a later call.

        Without a server there is nothing to wait for: they have raised already.
        """
        self._transaction.check_open()
        if not self.in_transaction:
            return
        try:
            self._manager.flush()
        except DuplicateXid:
            self._transaction.leave()  # it never began
            raise

    # One phase

    @_alone
    def commit(self) -> None:
        """Commits the local transaction; without one, nothing. Raises RolledBack where it was rolled back instead.

        Called again after OutcomeUnknown it asks what became of that commit.
        """
        self._transaction.commit()

    @_alone
    def rollback(self) -> None:
        """Rolls the local transaction back; without one, nothing."""
        self._transaction.rollback()

    @contextmanager
    def transaction(self) -> Iterator[Self]:
        """A block that is one local transaction: commits at its end, and rolls back on an exception.

        The connection stays open. Only outside a transaction. Raises what ``commit`` raises.
        """
        self._within(self._transaction.begin_block)
        try:
            yield self
        except BaseException:
            with suppress(Error):  # the block's own says what went wrong
                self._within(self._transaction.give_up)
            raise
        self._within(self._transaction.conclude)

    # Two phases

    xid = Xid
    """``xid(format_id, gtrid, bqual)``: a transaction id; str parts are taken as UTF-8. Raises InvalidArgument."""

    def tpc_begin(self, xid: Xid, flags: Flag = Flag.NOFLAGS, timeout_s: float | None = None) -> None:
        """Starts a branch, or enters one with JOIN or RESUME. Only outside a transaction.

        timeout_s: a branch that is not prepared by then is rolled back, and its next call is told so.
        """
        if self._pid != os.getpid() or not self._entered.acquire(False):
            raise self._refused()
        try:
            if self._transaction.phase is not Phase.NONE:
                self._transaction.check("tpc_begin")
            if timeout_s is not None:
                limit_s = check_seconds("timeout_s", timeout_s)
                timeout_s = limit_s if limit_s < FOREVER_S else None
            if type(xid) is not Xid:
                xid = _as_xid(xid)
            self._manager.start(xid, flags, timeout_s)
            self._transaction.enter(Phase.ACTIVE, xid)
        finally:
            self._entered.release()

    @_alone
    def tpc_end(self, xid: Xid | None = None, flags: Flag = Flag.SUCCESS) -> None:
        """Leaves the branch: SUCCESS to prepare it, SUSPEND to resume it here or (MIGRATE) elsewhere, FAIL to doom it.

        After SUSPEND the connection is outside a transaction. ``xid`` names a branch suspended before.
        """
        self._transaction.check_open()
        if xid is not None and _as_xid(xid) != self._transaction.xid:
            self._manager.end(_as_xid(xid), flags)
            return
        self._transaction.end(flags)

    def tpc_prepare(self) -> bool:
        """First phase. True: prepared, and only tpc_commit or tpc_rollback may follow. False: no work, and over.

        Called again after OutcomeUnknown it asks what became of the first call, and answers that.
        """
        if self._pid != os.getpid() or not self._entered.acquire(False):
            raise self._refused()
        try:
            return self._transaction.prepare()
        finally:
            self._entered.release()

    @property
    def is_embedded(self) -> bool:
        """Whether this process has the space open; else a server has it."""
        return hasattr(self._manager, "carry")

    @property
    def can_carry(self) -> bool:
        """Whether a database may carry changes of this space: this process has it open."""
        return getattr(self._manager, "can_carry", False) is True

    @_alone
    def tpc_carry(self, carrier: str) -> CarriedChange | None:
        """In the place of tpc_prepare: votes in memory, for who commits what it returns in a database, as a row.

        None where it has to be prepared: it is large, or the space cannot have it carried just now. From here on only
        tpc_commit and tpc_rollback end the branch. After a crash the space waits for what that database has: see
        ``deliver``. carrier: ``<node>.<participant>``.
        """
        vote = getattr(self._manager, "carry", None)
        if vote is None:
            raise InvalidArgument("the space is not open in this process: tpc_prepare its branches")
        return self._transaction.carry(carrier, vote)

    @_alone
    def carriers(self) -> Carriers:
        """Who has the space open, and which databases carry its changes, or did."""
        self._transaction.check_open()
        return self._manager.carriers()

    @_alone
    def deliver(self, carrier: str, secret: str, changes: Sequence[bytes], pruned: Pruned) -> bool:
        """Hands over what a database has carried in earlier lives of the space; see ``Carrying.deliver``."""
        self._transaction.check_open()
        size, page = 0, list[bytes]()
        for change in changes:
            page.append(change)
            size += len(change)
            if size > DELIVER_BYTES:
                self._manager.deliver(carrier, secret, page, *pruned, True)
                size, page = 0, []
        return self._manager.deliver(carrier, secret, page, *pruned)

    @_alone
    def release_carrier(self, carrier: str) -> CarrierStatus | None:
        """Its queues wait no more, by an operator's decision; None where it carries now, or was released before."""
        self._transaction.check_open()
        return self._manager.release_carrier(carrier)

    @_alone
    def define(self, queue: str, /, **settings: Any) -> None:
        """Defines a queue, or changes its definition: in queues.toml, durably, and at once for everybody.

        settings: keys as in queues.toml, see xaqueue(5): ``order="priority"``, ``max_tries=5``; None takes a key away.
        It belongs to no transaction. Raises InvalidArgument that names the key, and then nothing was changed;
        AccessDenied, and ResourceFailed where the space is fenced or open for reading only.
        """
        self._transaction.check_open()
        for key, value in settings.items():
            if key == "match" and isinstance(value, Mapping):
                continue
            if not isinstance(value, str | int | float | None) or (isinstance(value, int) and abs(value) >= 2**63):
                raise InvalidArgument(f"{key} = {value!r} is refused: a string, a number, true or false is wanted")
        self._manager.define(queue, settings)

    @_alone
    def define_topic(self, topic: str, /, *, description: str | None = None) -> None:
        """Defines a topic, to which queues may subscribe, or changes what it is for; as ``define``."""
        self._transaction.check_open()
        self._manager.define(check_queue_name(topic), {"description": description}, True)

    def subscribe(self, topic: str, queue: str, match: Mapping[str, str] | None = None) -> None:
        """From now on the queue gets what is published to the topic, also when nobody is connected.

        It is defined where it is not yet. A queue subscribes to one topic. match: only messages with these headers; a
        value that ends in ``*`` stands for all that begin so. Durable, as ``define``, until ``unsubscribe``. Raises as
        ``define``; InvalidArgument where the topic is not defined.
        """
        self.define(queue, topic=check_queue_name(topic), match=dict(match) if match else None)

    def unsubscribe(self, queue: str) -> None:
        """The queue gets no more of what is published. It stays, with the messages that it has."""
        self.define(queue, topic=None, match=None)

    @_alone
    def undefine(self, queue: str) -> None:
        """Takes the definition of a queue away: out of queues.toml, durably, and at once for everybody.

        Only where it has no message, none that somebody holds or is adding either, and no other queue names it; what
        it takes then says the [default] table, or it is unknown. It belongs to no transaction. Raises RetryLater where
        it has messages, UnknownQueue where it is not defined, QueueReserved, InvalidArgument, and then nothing was
        changed; otherwise as ``define``.
        """
        self._transaction.check_open()
        self._manager.undefine(check_queue_name(queue))

    def tpc_commit(self, xid: Xid | None = None, *, late: bool = False) -> None:
        """Second phase; without tpc_prepare before it, a commit in one phase.

        With ``xid``, outside a transaction: commits a branch that recovery listed. late: for who can find out again,
        after a crash, that this prepared branch was to be committed: it is visible to the sessions of this space's
        owner at once, and on disk with whatever comes next, within 100 ms, or behind ``harden``; until then a crash
        leaves it prepared. At level JOURNAL; the others do not wait. Raises UnknownXid where it is finished,
        HeuristicOutcome where an operator decided, RetryLater where it stays in doubt.
        """
        if self._pid != os.getpid() or not self._entered.acquire(False):
            raise self._refused()
        try:
            if xid is not None:
                self._transaction.check("the call with an xid")
                self._manager.commit(_as_xid(xid), Flag.LATE if late else Flag.NOFLAGS)
                return
            self._transaction.commit_branch(late=late)
        finally:
            self._entered.release()

    @_alone
    def harden(self) -> None:
        """Returns once all is on disk that was committed with ``late``. Raises RetryLater where there is no room."""
        self._transaction.check_open()
        self._manager.harden()

    @_alone
    def tpc_rollback(self, xid: Xid | None = None) -> None:
        """Rolls the branch back, prepared or not; with ``xid``, outside a transaction, one that recovery listed."""
        if xid is not None:
            self._transaction.check("the call with an xid")
            self._manager.rollback(_as_xid(xid))
            return
        self._transaction.roll_back_branch()

    @_alone
    def tpc_recover(self) -> list[Xid]:
        """The xids in doubt, and those that an operator finished and nobody forgot yet."""
        self._transaction.check_open()
        page = self._manager.recover(RECOVER_PAGE, Flag.STARTRSCAN)
        found = list(page)
        while len(page) == RECOVER_PAGE:
            page = self._manager.recover(RECOVER_PAGE)
            found += page
        self._manager.recover(0, Flag.ENDRSCAN)
        return found

    @_alone
    def tpc_forget(self, xid: Xid) -> None:
        """Ends the memory of an operator's decision. Raises UnknownXid where there is none."""
        self._transaction.check_open()
        self._manager.forget(_as_xid(xid))

    @_alone
    def outcome(self, xid: Xid) -> Outcome:
        """What became of a branch, as far as it is remembered (the last 10,000, for an hour).

        A step that is on its way is waited for. Raises ResourceFailed where the space is fenced meanwhile.
        """
        self._transaction.check_open()
        return self._manager.outcome(_as_xid(xid))

    # The connection

    @property
    def in_transaction(self) -> bool:
        """Whether one is open: local work, or since ``tpc_begin``."""
        return self._transaction.phase not in (Phase.NONE, Phase.UNANSWERED, Phase.CLOSED)

    def close(self) -> None:
        """Rolls back what is not prepared and ends the session. A second call does nothing.

        Where that loses work there is a ResourceWarning, unless an exception is on its way already.
        """
        if self._end_session() and sys.exc_info()[0] is None:
            self._warn("closed with work undone")

    def __enter__(self) -> Self:
        self._transaction.check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Commits the local transaction, or rolls it back on an exception; then closes.

        A two-phase transaction that is prepared stays in doubt. One that is not is rolled back, and without an
        exception ProtocolError says so. Raises what ``commit`` raises.
        """
        done = False
        try:
            if kind is None:
                self._within(self._transaction.conclude)
            done = kind is None
        finally:
            if done:
                self._end_session()
            else:
                with suppress(Error):  # what went wrong is said already
                    self._end_session()

    def __del__(self) -> None:
        transaction = getattr(self, "_transaction", None)
        if transaction is None or transaction.phase is Phase.CLOSED:
            return
        uncommitted = transaction.is_uncommitted and self._pid == os.getpid()
        if self._manager.drop() and uncommitted:
            self._warn("never closed, with work undone")

    def __repr__(self) -> str:
        return f"<xaqueue.Connection {self._transaction.phase.value}>"

    # Within

    def _refused(self) -> Error:
        if self._pid != os.getpid():
            return ResourceFailed("the connection belongs to the parent of this forked process: connect again")
        return InterfaceError("the connection is in a call already, perhaps of another thread: open one for each")

    def _warn(self, how: str) -> None:
        what = f"{self._transaction.uncommitted} enqueues and dequeues of its transaction are rolled back"
        reason = f"the connection was {how}: {what}"
        warnings.warn(f"{reason}. Commit it, or use a with block", ResourceWarning, stacklevel=3, source=self)

    def _end_session(self) -> bool:
        """Returns whether work was undone by it. In a forked child there is nothing to be ended."""
        if self._transaction.phase is Phase.CLOSED:
            return False
        if self._pid != os.getpid():
            self._transaction.phase = Phase.CLOSED
            self._manager.drop()
            return False
        return self._within(self._close)

    def _close(self) -> bool:
        transaction = self._transaction
        uncommitted, ended = transaction.is_uncommitted, transaction.phase in (Phase.ENDED, Phase.PREPARING)
        left = transaction.xid if ended else None
        transaction.phase = Phase.CLOSED
        self._manager.close(left)
        return uncommitted

    @_alone
    def _settle(self, delivery: Delivery, how: str, detail: int | str | None) -> None:
        self._transaction.check_open()
        delivery.check_held()
        self._manager.settle(delivery.message.queue, delivery.lease, how, detail)
        delivery.is_settled = True

    @_alone
    def _extend(self, delivery: Delivery, lease_s: float) -> None:
        self._transaction.check_open()
        delivery.check_held()
        self._manager.extend(delivery.message.queue, delivery.lease, checked_lease_s(lease_s))

    def _browse(self, queue: str, limit: int | None, id_digits: str) -> Iterator[Message]:
        self._transaction.check_open()
        check_queue_name(queue)
        if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 0):
            raise InvalidArgument(f"limit {limit!r} is refused: a number from 0, or None, is wanted")
        return self._manager.browse(queue, limit, id_digits)

    @_alone
    def _within(self, call: Callable[[], T]) -> T:
        """A call that is no method's own, alone as these are."""
        return call()


def _as_xid(value: Xid | Sequence[Any]) -> Xid:
    """An Xid, or any other sequence of three, as PEP 249 lets callers pass them."""
    if isinstance(value, Xid):
        return value
    if not isinstance(value, Sequence) or isinstance(value, str | bytes | bytearray) or len(value) != 3:
        raise InvalidArgument(f"{value!r} is no xid: make one with connection.xid(format_id, gtrid, bqual)")
    return Xid(*value)
