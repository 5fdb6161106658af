"""The methods of a connection that add, take, move and show messages, most of them in its transaction, and those that
define queues and topics: durably, at once, and in no transaction."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import groupby
from typing import Any, Unpack

from xaqueue.delivery import LEASE_S, Delivery, Detail, checked_lease_s
from xaqueue.errors import InterfaceError, InvalidArgument, ResourceFailed
from xaqueue.message import (
    Body,
    EnqueueOptions,
    Message,
    MessageId,
    body_of,
    check_queue_name,
    check_queues,
    each_of,
    id_digits_of,
    id_of,
    options_of,
)
from xaqueue.one_call import OneCall, alone
from xaqueue.snapshot import SnapshotStatus
from xaqueue.times import FOREVER_S, check_seconds
from xaqueue.transaction import HERE, WORKING, Phase


class MessageCalls(OneCall):
    """The part of a ``Connection`` that is about messages and queues."""

    def enqueue(self, queue: str, body: bytes | bytearray | memoryview, **options: Unpack[EnqueueOptions]) -> MessageId:
        """Adds a message, visible once the transaction commits. Returns its id, 16 bytes.

        body: bytes, or what has them: a bytearray, a memoryview. Options: see ``xaqueue.message.EnqueueOptions``.
        Raises UnknownQueue, MessageTooLarge, InvalidArgument (and nothing has changed), QueueFull, DiskLow (nothing has
        changed either; there may be room later), any other DiskFull (the transaction can only be rolled back).
        """
        if self._entered.locked():
            raise self._refused()
        with self._entered:
            if type(body) is not bytes:
                body = body_of(body)
            if type(queue) is not str:
                check_queue_name(queue)
            transaction = self._transaction
            plain = options_of(options, time.time_ns() // 1000) if options else None
            if transaction.thread is not HERE.thread or transaction.phase not in WORKING:
                transaction.work()
            if plain is None:
                message_id = self._manager.enqueue(queue, body)
            else:
                message_id = self._manager.enqueue(queue, body, **plain)
            transaction.uncommitted += 1
            return message_id

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
        if self._entered.locked():
            raise self._refused()
        with self._entered:
            if type(queue) is not str:
                check_queue_name(queue)
            if message_id is not None:
                message_id = id_of(message_id)
            if wait_s.__class__ is not float or not 0.0 <= wait_s < FOREVER_S:
                wait_s = check_seconds("wait_s", wait_s)
            transaction = self._transaction
            if transaction.thread is not HERE.thread or transaction.phase not in WORKING:
                transaction.work()
            found = self._manager.dequeue(queue, wait_s=wait_s, message_id=message_id, correlation_id=correlation_id)
            if found is not None:
                transaction.uncommitted += 1
            return found

    def consume(self, queue: str, *, wait_s: float | None = None) -> Iterator[Message]:
        """The messages of the queue as they come, each taken as by ``dequeue`` when the loop asks for it:
        ``for message in connection.consume("orders"): ...``.

        Commit, or roll back, after each one: what is not ended then goes on with the next. The loop ends where none
        comes within ``wait_s`` seconds, by default never.

        With a server the commit brings the next message along, of a transaction that this loop has begun, where the
        loop came at once from the commit before. It is held for the next turn: back in its queue, without a try, as
        soon as anything else is asked of this connection, or the loop is over.
        """
        if hasattr(self._manager, "take_ahead"):
            return self._consume_ahead(queue, wait_s)
        return iter(partial(self.dequeue, queue, wait_s=wait_s), None)

    def _consume_ahead(self, queue: str, wait_s: float | None) -> Iterator[Message]:
        manager: Any = self._manager
        try:
            while (message := self._next(queue, wait_s)) is not None:
                yield message
        finally:  # perhaps by the collector, anywhere
            with suppress(InterfaceError, ResourceFailed):  # where it is in a call, the next one sees to it
                self._within(partial(manager.end_ahead, queue))

    def _next(self, queue: str, wait_s: float | None) -> Message | None:
        """As ``dequeue``; the commit of a transaction that it has begun asks for what comes next."""
        manager: Any = self._manager
        is_own = self._transaction.phase is Phase.NONE
        message = (self._take_ahead(queue) if is_own else None) or self.dequeue(queue, wait_s=wait_s)
        if is_own and message is not None:
            manager.want_ahead(queue)
        return message

    @alone
    def _take_ahead(self, queue: str) -> Message | None:
        """The message that came with the last commit. Where it has brought none, the transaction is begun already."""
        manager: Any = self._manager
        message: Message | None = manager.take_ahead(queue, partial(self._transaction.enter, Phase.LOCAL))
        if message is not None:
            self._transaction.uncommitted = 1
        return message

    @alone
    def enqueue_many(
        self, queue: str, bodies: Iterable[Body | tuple[Body, EnqueueOptions]], **options: Unpack[EnqueueOptions]
    ) -> list[MessageId]:
        """Adds a message for each of these bodies, in one call. Returns their ids, in the same order.

        The options are those of ``enqueue``, and hold for every one. A message with options of its own is given as
        ``(body, options)``: they go before those of the call, of which None takes one away, and only there is a
        ``message_id``. Raises as ``enqueue``: what one can be refused for by itself is found before the first is added,
        and nothing has changed. Where the disk becomes full among them, the transaction can only be rolled back.
        """
        if "message_id" in options:
            raise InvalidArgument(
                'message_id names one message: enqueue_many makes the ids, or is given (body, {"message_id": ...})'
            )
        check_queue_name(queue)
        if isinstance(bodies, str | bytes | bytearray | memoryview):
            raise InvalidArgument(
                f"bodies is a {type(bodies).__name__}: a list, or another iterable, of bytes is wanted"
            )
        given: list[Any] = [*bodies]
        ids: list[Any] | None = None
        own: list[EnqueueOptions] | None = None
        if tuple in (types := {*map(type, given)}):
            given, ids, own = each_of(given, options, time.time_ns() // 1000)
            options = own[0]
            own = own if own.count(options) < len(own) else None
            ids = ids if any(ids) else None
        else:
            if types != {bytes}:
                given = [*map(body_of, given)]
            options = options_of(options, time.time_ns() // 1000) if options else options
        self._transaction.work()
        found = self._manager.enqueue_many(queue, given, ids, own, **({} if own else options))
        self._transaction.uncommitted += len(found)
        return found

    @alone
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

    @alone
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

    @alone
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

    @alone
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
        self._transaction.check_open()
        found = self._manager.receive(queue, max_messages, lease_s, wait_s)
        return [Delivery(lease, message, self._settle, self._extend) for lease, message in found]

    @alone
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

    @alone
    def move(self, queue: str, message_id: bytes | str, to: str) -> MessageId | None:
        """Moves a message to another queue, with all its properties, in this transaction.

        Returns its id there, which is another one only where that queue has a message of this id; None where it is
        not there, or locked. It moves whatever it waits for: a delay, a retry, the turn of its group. Its ``origin``
        says where it was, or was first. Its tries begin at 0.
        Raises UnknownQueue, QueueReserved, InvalidArgument, QueueFull, DiskLow; then it stays.
        """
        return self._move(queue, message_id, check_queue_name(to))

    @alone
    def requeue(self, queue: str, message_id: bytes | str) -> MessageId | None:
        """Moves a message back to where it was before it was moved, as a failed one is, in this transaction.

        There it is as it was, without a try. Returns and raises as ``move``; InvalidArgument where it has no origin.
        """
        return self._move(queue, message_id, None)

    @alone
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

    def restore(self, message: Message, queue: str | None = None) -> bool:
        """Adds a message as ``browse`` or ``dequeue`` has shown it, in this transaction, to its own queue or this one.

        With its id, its times, its tries, its origin and whatever else it has; only its sequence number is a new one.
        False where the queue, or this transaction, has a message of this id: that one stays as it is.
        Raises UnknownQueue, MessageTooLarge, InvalidArgument, also where this transaction takes the one of this id, or
        another adds one, DiskLow (and nothing has changed), any other DiskFull (it can only be rolled back).
        """
        return self._restore([message], queue)[0]

    def restore_many(self, messages: Iterable[Message], queue: str | None = None) -> list[bool]:
        """Adds messages as ``restore`` does, neighbours of one queue in one call. Returns what that does of each.

        Where one is refused the transaction may have others: it is to be rolled back.
        """
        return self._restore([*messages], queue)  # this connection may be asked for them first

    @alone
    def _restore(self, messages: Sequence[Message], queue: str | None) -> list[bool]:
        for message in messages:
            if not isinstance(message, Message):
                raise InvalidArgument(f"{message!r} is no message: what browse or dequeue has given is wanted")
            check_queue_name(message.queue if queue is None else queue)
        self._transaction.work()
        found: list[bool] = []
        for name, some in groupby(messages, lambda message: message.queue if queue is None else queue):
            found += (added := self._manager.restore(name, [*some]))
            self._transaction.uncommitted += sum(added)
        return found

    def _move(self, queue: str, message_id: bytes | str, to: str | None) -> MessageId | None:
        check_queue_name(queue)
        plain = id_of(message_id)
        self._transaction.work()
        found = self._manager.move(queue, plain, to)
        if found is not None:
            self._transaction.uncommitted += 1
        return found

    def browse(
        self, queue: str, limit: int | None = None, *, message_id: bytes | str | None = None
    ) -> Iterator[Message]:
        """Committed messages in the order of the queue, at most ``limit``; also those that are locked or not yet due.

        message_id: only the one of this id, or those whose id begins with these hex digits. Locks nothing and takes
        part in no transaction.
        """
        found = self._within(partial(self._browse, queue, limit, id_digits_of(message_id)))
        return iter(lambda: self._within(partial(next, found, None)), None)

    # Queues

    @alone
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

    @alone
    def define_topic(self, topic: str, /, *, description: str | None = None) -> None:
        """Defines a topic, to which queues may subscribe, or changes what it is for; as ``define``."""
        self._transaction.check_open()
        self._manager.define(check_queue_name(topic), {"description": description}, "topics")

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

    @alone
    def snapshot(self) -> SnapshotStatus:
        """Takes a snapshot of the space, in ``snapshots/`` of its directory, while others work; it has what was
        committed until now, in whatever queue. `xaqueue restore` puts it back.

        Removes the oldest where there are more than ``[snapshots] keep`` in queues.toml says. Raises OperationalError
        where there is no room.
        """
        self._transaction.check_open()
        return self._manager.snapshot()

    @alone
    def undefine(self, queue: str) -> None:
        """Takes the definition of a queue away: out of queues.toml, durably, and at once for everybody.

        Only where it has no message, none that somebody holds or is adding either, and no other queue names it; what
        it takes then says the [default] table, or it is unknown. It belongs to no transaction. Raises RetryLater where
        it has messages, UnknownQueue where it is not defined, QueueReserved, InvalidArgument, and then nothing was
        changed; otherwise as ``define``.
        """
        self._transaction.check_open()
        self._manager.undefine(check_queue_name(queue))

    # Within

    @alone
    def _settle(self, delivery: Delivery, how: str, detail: Detail) -> None:
        self._transaction.check_open()
        delivery.check_held()
        self._manager.settle(delivery.message.queue, delivery.lease, how, detail)
        delivery.is_settled = True

    @alone
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
