"""A worker gives each message of a queue to a function, in a transaction that takes it and does what the function does.

    def handle(message, tx):
        tx.enqueue("parcels", pack(message.body))

    xaqueue.Worker("data/orders-space", "orders", handle, threads=4).run()

Where the function returns, its work and the message's end are committed together. Where it raises, both are rolled
back, and the queue's definition says when the message is tried again, and where it goes at last.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from xaqueue.connection import Connection
from xaqueue.errors import InvalidArgument
from xaqueue.message import Message, check_queue_name
from xaqueue.spans import Tracing, process
from xaqueue.work.loop import Loop, RunOutcome

if TYPE_CHECKING:
    from xaqueue.tm.manager import TransactionManager

Handler = Callable[[Message, Any], object]


class Worker(Loop):
    """``run`` is for a main thread; ``start``, ``stop`` and ``join``, or a ``with`` block, for a part of a program."""

    def __init__(
        self,
        target: str | os.PathLike[str],
        queue: str,
        handler: Handler,
        *,
        threads: int = 1,
        tm: TransactionManager | None = None,
        until_empty: bool = False,
    ) -> None:
        """target: a directory or a URL; with ``tm`` the name of the participant that has the queue.

        handler: called as ``handler(message, tx)``. tx is the thread's connection, in a local transaction; with ``tm``
        a transaction of it, with its participants. It neither commits nor rolls back. threads: so many messages at a
        time, each on a connection of its own. until_empty: ends where there is no message, or only such as have failed
        before. Raises InvalidArgument.
        """
        check_queue_name(queue)
        super().__init__(os.fspath(target), queue, threads=threads, tm=tm, until_empty=until_empty)
        self._handler = checked(handler)
        self._tracing = Tracing.of_process()

    def _run_once(self, connection: Connection | None) -> RunOutcome:
        message = None
        try:
            with self._begun(connection, self._target) as (tx, (queue,)):
                message = queue.dequeue(self._queue, wait_s=self._wait_s)
                if message is None:
                    return RunOutcome.EMPTY
                with process(self._tracing, message):
                    self._handle(message, tx)
        except Exception as error:
            if message is None:
                raise
            return self._failed(message, "failed", error)
        return self._succeeded(1)

    def _handle(self, message: Message, tx: Any) -> None:
        if inspect.isawaitable(self._handler(message, tx)):
            raise InvalidArgument("the handler returned what is to be awaited: a worker calls plain functions")


def checked(handler: Any) -> Handler:
    """The function itself. Raises InvalidArgument where it cannot be called with a message and a transaction."""
    if not callable(handler):
        raise InvalidArgument(f"handler {handler!r} is refused: a function of (message, tx) is wanted")
    if inspect.iscoroutinefunction(handler):
        raise InvalidArgument(f"handler {handler!r} is an async function: a worker calls plain ones of (message, tx)")
    try:
        inspect.signature(handler).bind(None, None)
    except TypeError as error:
        raise InvalidArgument(f"handler {handler!r} is not called with (message, tx): {error}") from None
    except ValueError:
        pass  # written in C, which says nothing of itself
    return cast(Handler, handler)
