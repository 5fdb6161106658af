"""Threads that take turns at a queue until they are stopped, nothing is left, or something ends them.

A turn is a transaction of its own: whatever ends a thread, a kill included, what it had in hand is rolled back, and the
queue's policy says what becomes of it. Nothing is tried again here. A space that cannot be used just now is waited for,
with pauses that grow to PAUSE_MOST_S; one that this process has open, and that is fenced, ends the loop.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from enum import Enum
from types import FrameType
from typing import TYPE_CHECKING, Any, Self

from xaqueue.connection import Connection
from xaqueue.errors import (
    ConnectionLost,
    DecisionLogError,
    Error,
    InterfaceError,
    InvalidArgument,
    OperationalError,
    ResourceFailed,
    RetryLater,
    SpaceError,
    SpaceInUse,
)
from xaqueue.message import Message
from xaqueue.rpc.client import reach

if TYPE_CHECKING:
    from xaqueue.tm.manager import TransactionManager

SLICE_S = 0.5
"""So long a thread waits for a message before it looks whether it is to stop."""
PAUSE_S = 0.1
PAUSE_MOST_S = 10.0
LAST_TRIES = 5
"""So often in a row it is tried to go on, where it would end once the queue is empty."""

log = logging.getLogger("xaqueue")


class RunOutcome(Enum):
    """What came of one."""

    DONE = "done"
    EMPTY = "there was no message"
    AGAIN = "it failed with a message that had failed just before"


class Loop:
    """What a worker and a forwarder have in common. Safe for threads."""

    def __init__(
        self, target: str, queue: str, *, threads: int = 1, tm: TransactionManager | None = None, until_empty: bool
    ) -> None:
        if not isinstance(threads, int) or isinstance(threads, bool) or threads < 1:
            raise InvalidArgument(f"threads {threads!r} is refused: a number from 1 is wanted")
        self._target = target
        self._queue = queue
        self._tm = tm
        self.is_until_empty = until_empty
        self._wait_s = 0.0 if until_empty else SLICE_S
        self._stopping = threading.Event()
        self._mutex = threading.Lock()
        self._failure: BaseException | None = None
        self._at_end: Callable[[], object] | None = None
        self._is_embedded = False
        """This process has a space of it open."""
        self._lately_failed: deque[bytes] = deque(maxlen=None if until_empty else threads)
        self.done = 0
        """Messages."""
        self.failed = 0
        """Deliveries that were rolled back."""
        name = f"xaqueue-work-{queue}"
        self._threads = [threading.Thread(target=self._work, name=name, daemon=True) for _ in range(threads)]

    def _run_once(self, connection: Connection | None) -> RunOutcome:
        """One transaction. connection: where there is no transaction manager. Raises where no message is to blame."""
        raise NotImplementedError

    # For who has it

    def start(self) -> Self:
        """Begins. Only once: a loop that has ended is not begun again."""
        if self._threads[0].ident is not None:
            raise InterfaceError("it was started before: make another one")
        for thread in self._threads:
            thread.start()
        return self

    def stop(self, grace_s: float | None = None) -> bool:
        """Takes no more messages, and waits until what runs is finished, at most for ``grace_s`` seconds.

        False where something runs still: it is rolled back when the process ends. From any thread but its own.
        """
        self._stopping.set()
        return self._wait(grace_s)

    def join(self, timeout_s: float | None = None) -> bool:
        """Waits until it has ended, and returns whether it has. Raises what has ended it."""
        is_over = self._wait(timeout_s)
        if self._failure is not None:
            raise self._failure
        return is_over

    def run(self, at_end: Callable[[], object] = bool) -> None:
        """In the main thread: until SIGTERM or SIGINT, which let finish what runs. A second one ends the process.

        at_end: is called once, whichever ends it. Raises what has ended it.
        """
        self._at_end = at_end
        before = {number: signal.signal(number, self._heard) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            self.start()
            self.join()
        finally:
            self._end()
            for number, action in before.items():
                signal.signal(number, action)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: object, *raised: object) -> None:
        self.stop()
        if kind is None:
            self.join()

    def _wait(self, limit_s: float | None) -> bool:
        until = None if limit_s is None else time.monotonic() + limit_s
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(None if until is None else max(0.0, until - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _heard(self, number: int, _: FrameType | None) -> None:
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, self._heard_again)
        log.warning(
            "[worker-stops] %s: what runs is finished; a second signal ends it at once", signal.Signals(number).name
        )
        self._stopping.set()

    def _heard_again(self, number: int, _: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        if self._at_end is not None:  # else it is being called, and the process ends behind it
            self._end()
            signal.raise_signal(number)

    def _end(self) -> None:
        at_end, self._at_end = self._at_end, None
        if at_end is not None:
            at_end()

    # A thread

    def _work(self) -> None:
        try:
            with ExitStack() as stack:
                self._run_until_stopped(stack)
        except BaseException as error:
            with self._mutex:
                self._failure = self._failure or error
            self._stopping.set()

    def _run_until_stopped(self, stack: ExitStack) -> None:
        connection: Connection | None = None
        trouble = 0
        """Turns in a row that could not be, or that failed with the same message."""
        while not self._stopping.is_set():
            try:
                if self._tm is None and connection is None:
                    connection = reach.connect(self._target, pause=self._wait_for_server)
                    stack.callback(connection.close)  # which commits nothing that could not be rolled back
                    self._is_embedded = connection.is_embedded
                outcome = self._run_once(connection)
            except OperationalError as error:
                if not self._may_pass(error, trouble):
                    raise
                if connection is not None and isinstance(error, ConnectionLost | SpaceInUse):
                    with suppress(Error):
                        stack.close()
                    connection = None  # it is connected to whoever has the space then
                if not trouble:
                    log.warning("[worker-waits] queue %s is tried again later: %s", self._queue, error)
                outcome = RunOutcome.AGAIN
            else:
                if self.is_until_empty and outcome is not RunOutcome.DONE:
                    return
            if outcome is not RunOutcome.AGAIN:
                trouble = 0
                continue
            self._pause(trouble)
            trouble += 1

    def _wait_for_server(self, pause_s: float) -> None:
        if self._stopping.wait(pause_s):
            raise reach.GivenUp("it is told to stop while it waits for the server")

    @contextmanager
    def _begun(self, connection: Connection | None, *names: str) -> Iterator[tuple[Any, list[Connection]]]:
        """A transaction, and the connections of these participants in it: all the same one where it is a local one."""
        if connection is not None:
            if connection.in_transaction:  # whose rollback failed
                connection.rollback()
            with connection.transaction():
                yield connection, [connection] * len(names)
                self._commit(connection)
            return
        assert self._tm is not None
        with self._tm.transaction(*names, independent=True) as tx:
            spaces = [tx[name] for name in names]
            for name, space in zip(names, spaces, strict=True):
                if not isinstance(space, Connection):
                    raise InvalidArgument(f"participant {name!r} is a {type(space).__name__}, and no queue space")
            self._is_embedded = any(space.is_embedded for space in spaces)
            yield tx, spaces

    def _commit(self, connection: Connection) -> None:
        """Where the disk is full the same call completes it later, and the message need not be handled again."""
        trouble = 0
        while True:
            try:
                connection.commit()
            except RetryLater as error:
                if not trouble:
                    log.warning("[worker-waits] a commit of queue %s waits: %s", self._queue, error)
                if self._stopping.is_set() or not self._may_pass(error, trouble):
                    raise
                self._pause(trouble)
                trouble += 1
            else:
                return

    def _failed(self, message: Message, what: str, error: Exception) -> RunOutcome:
        """A delivery of this message was rolled back."""
        with self._mutex:
            self.failed += 1
            is_again = message.message_id in self._lately_failed
            self._lately_failed.append(message.message_id)
        log.error(
            "[message-failed] message %s of queue %s %s", message.message_id.hex(), self._queue, what, exc_info=error
        )
        return RunOutcome.AGAIN if is_again else RunOutcome.DONE

    def _succeeded(self, count: int) -> RunOutcome:
        with self._mutex:
            self.done += count
        return RunOutcome.DONE

    def _pause(self, trouble: int) -> None:
        self._stopping.wait(min(PAUSE_S * 2 ** min(trouble, 10), PAUSE_MOST_S))

    def _may_pass(self, error: OperationalError, trouble: int) -> bool:
        if isinstance(error, SpaceError | DecisionLogError):
            return False
        if isinstance(error, ResourceFailed) and self._is_embedded:
            return False
        return not self.is_until_empty or trouble < LAST_TRIES
