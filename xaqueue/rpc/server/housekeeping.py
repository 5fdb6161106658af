"""What a server does without being asked: branches that take too long are rolled back, peers that do are ended.

One that was told so stops by itself once nobody has been connected for long enough.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection
from typing import Protocol

from xaqueue.errors import ResourceFailed
from xaqueue.rpc.server.limits import Limits
from xaqueue.rpc.server.scheduler import Scheduler
from xaqueue.space.engine.state import Space
from xaqueue.space.engine.timeouts import expire, sweep

TICK_S = 1.0
LEAST_TICK_S = 0.01
SWEEP_S = 60.0
"""Between two looks for what dead queries left."""

log = logging.getLogger("xaqueue.server")


class Timed(Protocol):
    """A session whose peer is waited for."""

    def check_timeouts(self, now: float) -> None: ...


class Housekeeping:
    """Runs from the start to ``stop``, in the loop's thread. Branches are rolled back in a greenlet: that may wait."""

    def __init__(
        self,
        space: Space,
        scheduler: Scheduler,
        limits: Limits,
        sessions: Collection[Timed],
        stop_server: Callable[[], object],
    ) -> None:
        shortest = min(limits.branch_idle_s, limits.session_idle_s, limits.login_s, limits.stalled_s)
        shortest = min(shortest, limits.idle_exit_s)
        self._tick_s = max(min(TICK_S, shortest / 4), LEAST_TICK_S)
        self._space, self._scheduler, self._limits = space, scheduler, limits
        self._sessions = sessions
        self._stop_server = stop_server
        self._loop = scheduler.loop
        self._resting = asyncio.Event()
        self._resting.set()
        self._failed = False
        self._sweep_at = 0.0
        self._busy_at: float | None = None
        """When a session was seen last; None until the server is ready for them."""
        self._next = self._loop.call_later(self._tick_s, self._tick)

    def ready(self) -> None:
        """From now on sessions are waited for."""
        self._busy_at = self._loop.time()

    def session_ended(self) -> None:
        """One was there until now."""
        if self._busy_at is not None:
            self._busy_at = self._loop.time()

    async def stop(self) -> None:
        """Returns once nothing of it is on its way."""
        self._next.cancel()
        await self._resting.wait()

    def _tick(self) -> None:
        self._next = self._loop.call_later(self._tick_s, self._tick)
        now = self._loop.time()
        for session in list(self._sessions):
            session.check_timeouts(now)
        self._leave_idle(now)
        if self._resting.is_set() and not self._failed:
            self._resting.clear()
            self._scheduler.spawn(self._expire).switch()

    def _leave_idle(self, now: float) -> None:
        if self._busy_at is None:
            return
        if self._sessions:
            self._busy_at = now
        elif now - self._busy_at >= self._limits.idle_exit_s:
            log.info("nobody was connected for %g s: the server ends", self._limits.idle_exit_s)
            self._busy_at = None
            self._stop_server()

    def _expire(self) -> None:
        try:
            expire(self._space, time.monotonic(), self._limits.branch_idle_s)
            now = self._loop.time()
            if now >= self._sweep_at:
                self._sweep_at = now + SWEEP_S
                sweep(self._space)
        except ResourceFailed:  # which is logged, and the server ends
            self._failed = True
        finally:
            self._resting.set()
