"""A forwarder moves what is due in a queue to another queue, of the same space or of another, each message once.

A batch is a transaction: a local one where both queues are in one space, else one of a transaction manager with both
spaces as participants, which finishes it after any crash. Messages are taken as a worker takes them, so that the order
of a group is kept, and what is delayed waits. They keep their ids and properties, but for when they were enqueued.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

from xaqueue.connection import Connection
from xaqueue.errors import AccessDenied, InvalidArgument, UnknownQueue
from xaqueue.message import EnqueueOptions, Message, Origin, check_queue_name
from xaqueue.work.loop import Loop, RunOutcome, log

if TYPE_CHECKING:
    from xaqueue.tm.manager import TransactionManager

SOURCE, TARGET = "source", "target"
"""The participants of its transaction manager, whose names stay."""
BATCH = 100
BATCH_BYTES = 8 * 1024 * 1024
"""A batch that has come to so much takes no more."""
PIECE = 10
"""Messages that are asked for at a time."""
_KEPT = (
    *("correlation_id", "reply_queue", "failure_queue", "priority", "expires_at", "group", "dedup_key"),
    *("persistent", "content_type", "headers", "traceparent", "origin"),
)


class Forwarder(Loop):
    """One thread: the batches are what makes it fast, and two would wait for each other's groups."""

    def __init__(
        self, target: str, queue: str, to: str, *, tm: TransactionManager | None = None, until_empty: bool = False
    ) -> None:
        """target: the space of both queues; with ``tm``, whose participants are SOURCE and TARGET, not looked at."""
        super().__init__(target, check_queue_name(queue), tm=tm, until_empty=until_empty)
        self._to = check_queue_name(to)
        if tm is None and queue == to:
            raise InvalidArgument(f"queue {to} is where the messages are: name another, or another space")
        self._size = BATCH
        self.check: Callable[[Connection, Sequence[Message]], object] = lambda *_: None
        """Of where it goes, and what it has taken. What that raises ends it, where no message was taken before."""

    def _run_once(self, connection: Connection | None) -> RunOutcome:
        taken: list[Message] = []
        try:
            with self._begun(connection, SOURCE, TARGET) as (_, (source, target)):
                target.enqueue_many(self._to, [])  # a queue that is not there costs no message a try,
                target.flush()  # and neither does a target that is gone already
                self._take(source, target, taken)
                target.enqueue_many(self._to, [(message.body, self._options(message)) for message in taken])
        except Exception as error:
            if not taken or isinstance(error, UnknownQueue | AccessDenied):
                raise  # no message is to blame
            if len(taken) == 1:
                return self._failed(taken[0], f"cannot be forwarded to queue {self._to}", error)
            log.warning("[forward-singly] messages of queue %s are tried one by one: %s", self._queue, error)
            self._size = 1
            return RunOutcome.DONE
        self._size = min(2 * self._size, BATCH)
        return self._succeeded(len(taken)) if taken else RunOutcome.EMPTY

    def _take(self, source: Connection, target: Connection, taken: list[Message]) -> None:
        size_bytes, wait_s = 0, self._wait_s
        while len(taken) < self._size and size_bytes < BATCH_BYTES:
            found = source.dequeue_many(self._queue, min(PIECE, self._size - len(taken)), wait_s=wait_s)
            self.check(target, found)
            taken += found
            if len(found) < PIECE:
                return
            size_bytes, wait_s = size_bytes + sum(len(message.body) for message in found), 0.0

    def _options(self, message: Message) -> EnqueueOptions:
        """Within a space it says where it was, as one that is moved; another space knows nothing of that queue."""
        options = {name: getattr(message.properties, name) for name in _KEPT}
        if self._tm is None and not message.properties.origin:
            options["origin"] = Origin(message.queue, "moved", message.tries, expires_at=options["expires_at"]).text
        return cast(EnqueueOptions, {**options, "message_id": message.message_id})
