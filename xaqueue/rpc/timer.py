"""What a server does without being asked: branches that take too long are rolled back, peers that do are ended.

One that was told so stops by itself once nobody has been connected for long enough.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from xaqueue.errors import ResourceFailed
from xaqueue.space.engine.batch_sweep import sweep
from xaqueue.space.engine.timeouts import expire

if TYPE_CHECKING:
    from xaqueue.rpc.server import Server

TICK_S = 1.0
LEAST_TICK_S = 0.01
SWEEP_S = 60.0
"""Between two looks for what dead queries left."""

log = logging.getLogger("xaqueue.server")


class Timer:
    """Runs from ``start`` to ``stop``, in the loop's thread. Branches are rolled back in a greenlet: that may wait."""

    def __init__(self, server: Server) -> None:
        limits = server.limits
        shortest = min(limits.branch_idle_s, limits.session_idle_s, limits.login_s, limits.stalled_s)
        shortest = min(shortest, limits.idle_exit_s)
        self._tick_s = max(min(TICK_S, shortest / 4), LEAST_TICK_S)
        self._server = server
        self._next: asyncio.TimerHandle | None = None
        self._resting = asyncio.Event()
        self._resting.set()
        self._failed = False
        self._sweep_at = 0.0
        self._busy_at: float | None = None
        """When a session was seen last; None until it is ready for them."""

    def start(self) -> None:
        self._next = self._server.loop.call_later(self._tick_s, self._tick)

    def ready(self) -> None:
        """From now on sessions are waited for."""
        self._busy_at = self._server.loop.time()

    def see(self) -> None:
        """A session was there until now."""
        if self._busy_at is not None:
            self._busy_at = self._server.loop.time()

    async def stop(self) -> None:
        """Returns once nothing of it is on its way."""
        if self._next is not None:
            self._next.cancel()
        await self._resting.wait()

    def _tick(self) -> None:
        self.start()
        now = self._server.loop.time()
        for session in list(self._server.sessions):
            session.look(now)
        self._leave_idle(now)
        if self._resting.is_set() and not self._failed:
            self._resting.clear()
            self._server.hub.spawn(self._expire).switch()

    def _leave_idle(self, now: float) -> None:
        idle_exit_s = self._server.limits.idle_exit_s
        if self._busy_at is None:
            return
        if self._server.sessions:
            self._busy_at = now
        elif now - self._busy_at >= idle_exit_s:
            log.info("nobody was connected for %g s: the server ends", idle_exit_s)
            self._busy_at = None
            self._server.stop()

    def _expire(self) -> None:
        try:
            expire(self._server.space, time.monotonic(), self._server.limits.branch_idle_s)
            self._sweep()
        except ResourceFailed:  # which is logged, and the server ends
            self._failed = True
        finally:
            self._resting.set()

    def _sweep(self) -> None:
        now = self._server.loop.time()
        if now >= self._sweep_at:
            self._sweep_at = now + SWEEP_S
            sweep(self._server.space)
