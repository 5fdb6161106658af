"""Many sessions wait in one thread: each runs in a greenlet, and where it has to wait the event loop goes on.

The engine's code is the same as under threads (``xaqueue.core.storage.scheduling``). A greenlet is never ended from
outside: it runs on until its session is over. Whoever is no session's greenlet, the checkpointer's thread or the loop
at its end, waits as a thread does.

A round of group commit is synced in the loop: who is waited for meanwhile waits for it, or for the next one, and to
hand a sync to a thread and back costs more than it takes. Who needs no greenlet (``Awaiting``) waits for one in none.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import msgpack

from xaqueue.awaited import MISSING
from xaqueue.core.engine.log import Log
from xaqueue.core.storage.group_commit import Step
from xaqueue.core.storage.layers import SyncTimes
from xaqueue.core.storage.scheduling import THREADS, Condition, Threads, Waiter
from xaqueue.errors import ResourceFailed
from xaqueue.rpc.server.regulars import Regulars

try:
    from greenlet import getcurrent, greenlet
except ModuleNotFoundError as missing:
    raise ImportError(MISSING) from missing

T = TypeVar("T")

SLOW_CALLS = 8
"""Threads for calls that may be slow."""
LONG_SYNC_S = 0.002
"""Behind a shorter one the next round waits for nobody."""


class ScheduledTask(greenlet):
    """The greenlet of one session; it is begun and resumed by the loop's."""

    def __init__(self, run: Callable[..., None], scheduler: Scheduler) -> None:
        super().__init__(run, scheduler.greenlet)
        self.scheduler = scheduler


class Awaiting:
    """Who waits in no greenlet, for one step at a time, whose waiter it is."""

    step: Step

    def __init__(self, scheduler: Scheduler, log: Log) -> None:
        self.scheduler = scheduler
        self.log = log

    def go_on(self) -> None:
        """The step is done, or has failed, or is to lead: its waiter is set then. Called in the loop; perhaps again, or
        once more for the step before."""
        raise NotImplementedError

    def break_off(self) -> None:
        """That has failed in a way that nobody foresaw."""
        raise NotImplementedError

    def acquire(self, *, timeout: float = -1) -> bool:
        raise NotImplementedError

    def release(self) -> None:
        self.scheduler.tell(self)


class Scheduler(Threads):
    """The loop that greenlets switch to. Made in the loop's thread, outside any task."""

    is_served = True

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.greenlet = getcurrent()
        self._thread = threading.get_ident()
        self._pool: ThreadPoolExecutor | None = None
        self._leader: object = None
        """The task that led the last round, or whose step did."""
        self._waited = False
        """Somebody waited since then."""
        self._leading = self.spawn(self._lead_for_others)
        self._is_leading = False
        self._regulars = Regulars()
        self._wait: asyncio.TimerHandle | None = None
        """For them, of the next round, which this one leads."""
        self._leads_next: Awaiting
        self.syncs = SyncTimes()
        """Those of the space."""
        self._sync_s = 0.0
        """What the last round's took, where that was long."""
        self._told: deque[Awaiting] = deque()
        self.pack: Callable[[object], bytes] = msgpack.Packer().pack
        """For what the loop sends: a new packer for each answer takes twice as long."""

    def spawn(self, run: Callable[..., None]) -> ScheduledTask:
        """A task that has not begun yet: ``switch`` begins it, and returns when it waits."""
        return ScheduledTask(run, self)

    def is_here(self) -> bool:
        """Whether this is the loop's thread."""
        return threading.get_ident() == self._thread

    def call_soon(self, call: Callable[[], object]) -> None:
        """From any thread."""
        if self.is_here():
            self.loop.call_soon(call)
        else:
            self.loop.call_soon_threadsafe(call)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False)  # one that hangs in the kernel never returns

    # Rounds for sessions that wait in no greenlet

    def gather(self, one: Awaiting) -> None:
        """Its step is in the next round."""
        step = one.step
        step.waiter = one
        if self._sync_s:
            self._regulars.here[one] = None
        try:
            one.log.gather(step)
        except ResourceFailed:
            one.go_on()
            return
        if step.round is not None:
            self.lead(one)
            return
        self._waited = True
        if self._wait is not None and self._regulars.are_here():
            self._wait.cancel()
            self._wait = None
            self.loop.call_soon(self._begin, self._leads_next, False)

    def lead(self, one: Awaiting) -> None:
        """Its step leads: behind what this turn of the loop brings, or those who are waited for, unless it is alone."""
        one.step.waiter = None  # it is told by who leads
        is_alone = one is self._leader and not self._waited
        self._leader, self._waited = one, False
        if is_alone:
            self._lead(one)
        elif not self._sync_s:
            self.loop.call_soon(self._lead, one)
        elif wait_s := self._regulars.wait_s(self._sync_s):
            self._leads_next, self._wait = one, self.loop.call_later(wait_s, self._begin, one, True)
        else:
            self.loop.call_soon(self._begin, one, False)

    def _begin(self, one: Awaiting, waited: bool) -> None:
        self._wait = None
        self._regulars.begin(waited=waited)
        self._lead(one)

    def tell(self, one: Awaiting) -> None:
        """From any thread: have it go on. Those of one round do so one behind the other."""
        self._told.append(one)
        if not (self._is_leading and self.is_here()):  # else they go on behind the round
            self.call_soon(self._go_on)

    def _lead(self, one: Awaiting) -> None:
        self._is_leading, before_s = True, self.syncs.total_s
        self._leading.switch(one)  # returns when the round is over, or waits for a thread
        sync_s = self.syncs.total_s - before_s
        self._is_leading, self._sync_s = False, sync_s if sync_s >= LONG_SYNC_S else 0.0
        self._go_on()

    def _go_on(self) -> None:
        while self._told:
            one = self._told.popleft()
            try:
                one.go_on()
            except Exception:  # the others of its round have their answers
                one.break_off()

    def _lead_for_others(self, one: Awaiting) -> None:
        """In a greenlet, since a round may have to wait."""
        while True:
            try:
                one.log.run_rounds(one.step)
            except ResourceFailed:  # everybody is told
                pass
            except BaseException:  # it was interrupted, and this greenlet ends: likewise, and another one leads
                self._leading, self._is_leading = self.spawn(self._lead_for_others), False
                self._told.append(one)
                self.loop.call_soon(self._go_on)
                raise
            self._told.append(one)
            if not self._is_leading:
                self.loop.call_soon(self._go_on)
            one = self.greenlet.switch()

    # How the engine waits

    def waiter(self) -> Waiter:
        self._waited = True
        task = getcurrent()
        return _TaskWaiter(task) if isinstance(task, ScheduledTask) else THREADS.waiter()

    def condition(self, lock: threading.Lock) -> Condition:
        return _Condition(lock, self)

    def yield_once(self) -> None:
        """One turn of the loop: what its other sockets have brought by then goes into the same round.

        A task that led the last round too, and for which nobody has waited since, is alone: it waits for nobody.
        """
        task = getcurrent()
        if isinstance(task, ScheduledTask):
            is_alone = task is self._leader and not self._waited
            self._leader, self._waited = task, False
            if not is_alone:
                self.let_others()

    def let_others(self) -> None:
        task = getcurrent()
        if isinstance(task, ScheduledTask):
            self.loop.call_soon(task.switch)
            self.greenlet.switch()

    def run(self, call: Callable[[], T]) -> T:
        task = getcurrent()
        if not isinstance(task, ScheduledTask):
            return call()
        if self._pool is None:
            self._pool = ThreadPoolExecutor(SLOW_CALLS, thread_name_prefix="xaqueue-slow")
        future: Future[T] = self._pool.submit(call)
        waiter = _TaskWaiter(task)
        future.add_done_callback(lambda _: waiter.release())
        waiter.acquire()
        return future.result()


class _TaskWaiter:
    """Handed to a task: it switches to the loop until then."""

    __slots__ = ("_handed", "_task", "_waits")

    def __init__(self, task: ScheduledTask) -> None:
        self._task = task
        self._handed = False
        self._waits = False

    def acquire(self, *, timeout: float = -1) -> bool:
        if self._handed:
            return True
        scheduler = self._task.scheduler
        timer = scheduler.loop.call_later(timeout, self._wake) if timeout >= 0 else None
        self._waits = True
        scheduler.greenlet.switch()
        if timer is not None:
            timer.cancel()
        return self._handed

    def release(self) -> None:
        if self._handed:
            raise RuntimeError("it was handed over before")
        self._handed = True
        self._task.scheduler.call_soon(self._wake)

    def _wake(self) -> None:
        if self._waits:
            self._waits = False
            self._task.switch()


class _Condition:
    """``threading.Condition`` for tasks and threads alike, beside one lock."""

    def __init__(self, lock: threading.Lock, scheduler: Scheduler) -> None:
        self._lock = lock
        self._scheduler = scheduler
        self._waiting: dict[Waiter, None] = {}

    def wait(self, timeout: float | None = None) -> bool:
        waiter = self._scheduler.waiter()
        self._waiting[waiter] = None
        self._lock.release()
        try:
            return waiter.acquire(timeout=-1 if timeout is None else max(timeout, 0))
        finally:
            self._lock.acquire()
            self._waiting.pop(waiter, None)

    def notify_all(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for waiter in waiting:
            waiter.release()
