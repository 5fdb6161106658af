"""The sessions of an async connection beside that of its transaction, and whose turn it is at each.

Each session is a connection to the server of its own, with one request on its way: so an answer is that of the one
call which waits for it, and a call that is cancelled, or loses its connection, takes no other task's with it. A call
that waits for messages, and a browse, have a session to themselves as long as they last; short ones take turns. A
delivery may be settled over any of them, since a lease is known by its id and outlives the connection that it was given
over.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial

from xaqueue.awaited import carried
from xaqueue.connection import Connection
from xaqueue.errors import ConnectionLost, Error, InterfaceError
from xaqueue.rpc.client.manager import RemoteManager


@dataclass(slots=True)
class Lane:
    """One session."""

    connection: Connection
    manager: RemoteManager
    is_cut: bool = False
    """A call on it was cancelled: the server may have handed out what nobody has received."""


def lost(_: BaseException) -> Exception:
    """What a call ends with whose task was cancelled."""
    return ConnectionLost("the connection to the server is lost: the call that waited for an answer was cancelled")


class FairLock:
    """For ``async with``: one at a time, in the order in which they came. It is handed on: nobody gets between."""

    def __init__(self) -> None:
        self.is_taken = False
        self.is_held = False
        """Somebody has it now. Whom it is handed to may be refused when he comes to it."""
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def __aenter__(self) -> None:
        if not self.is_taken:
            self.is_taken = self.is_held = True
            return
        waits = asyncio.get_running_loop().create_future()
        self._waiting.append(waits)
        try:
            await waits
        except BaseException:
            if waits.done() and not waits.cancelled() and waits.exception() is None:  # cancelled when it was its turn
                self._hand_on()
            raise
        self.is_held = True

    async def __aexit__(self, *raised: object) -> None:
        self.is_held = False
        self._hand_on()

    def tell(self, why: Error) -> None:
        """The server cannot be reached: who waits now is told so, and does not try the same one after another. At once:
        whose turn it is may wait for an answer that never comes."""
        while self._waiting:
            waits = self._waiting.popleft()
            if not waits.done():
                waits.set_exception(ConnectionLost(f"{why} (this call waited for its turn: nothing was asked of it)"))

    def _hand_on(self) -> None:
        while self._waiting:
            waits = self._waiting.popleft()
            if not waits.done():
                waits.set_result(None)
                return
        self.is_taken = False


@dataclass(slots=True, eq=False)
class Owner:
    """Whose work a transaction is: the task that began it, and those that this one has started since."""

    task: asyncio.Task[object] | None = field(default_factory=asyncio.current_task)
    is_over: bool = False

    def __post_init__(self) -> None:
        _OWNERS.set((*(owner for owner in _OWNERS.get() if not owner.is_over), self))

    @property
    def is_here(self) -> bool:
        """Whether the task of now may work in it. One that has ended has left it to whoever comes, as a thread does."""
        return self.task is None or self.task.done() or self in _OWNERS.get()


_OWNERS: ContextVar[tuple[Owner, ...]] = ContextVar("xaqueue_owners", default=())


class Lanes:
    """All sessions but that of the transaction; they are made as they are needed, and kept."""

    def __init__(self, make: Callable[[], Lane]) -> None:
        """make: within ``carried``; raises ConnectionLost."""
        self._make = make
        self._all: list[Lane] = []
        self._idle: list[Lane] = []
        self._is_closed = False
        self.lock = FairLock()
        """Of the short calls."""

    @asynccontextmanager
    async def one(self) -> AsyncIterator[Lane]:
        """One that nobody else uses meanwhile."""
        self._check_open()
        lane = self._idle.pop() if self._idle else await self._made()
        try:
            yield lane
        finally:
            self._idle.append(lane)

    async def _made(self) -> Lane:
        try:
            made = await carried(self._make, lost)
        except ConnectionLost as unreached:
            self.lock.tell(unreached)
            raise
        self._all.append(made)
        if self._is_closed:  # meanwhile
            made.manager.drop()
        self._check_open()
        return made

    def _check_open(self) -> None:
        if self._is_closed:
            raise InterfaceError("the connection is closed: open another one")

    async def close(self) -> None:
        """What is held on lease comes back. Who waits on one is told that its connection is lost."""
        self._is_closed = True
        idle, self._idle = self._idle, []
        for lane in self._all:
            if lane not in idle:
                lane.manager.drop()
        for lane in idle:
            with suppress(ConnectionLost):
                await carried(partial(_close, lane), lost)


def _close(lane: Lane) -> None:
    if lane.is_cut:  # the server knows by its key what it had
        with suppress(ConnectionLost):
            lane.manager.call("echo")
            lane.manager.has_received = True
    lane.connection.close()
