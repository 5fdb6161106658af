"""What a server does without being asked: branches that take too long are rolled back, peers that do are ended, and
systemd is told how far it is: one datagram a state, to the socket that the environment names.

One that was told so stops by itself once nobody has been connected for long enough.
Source: sd_notify(3), sd_watchdog_enabled(3). Where nobody asked to be told, nothing is sent.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, Mapping

from xaqueue.errors import InvalidArgument, ResourceFailed
from xaqueue.rpc.server.session import Host
from xaqueue.space.engine.timeouts import expire, sweep

TICK_S = 1.0
LEAST_TICK_S = 0.01
SWEEP_S = 60.0
"""Between two looks for what dead queries left."""
SEND_S = 1.0
READY = "READY=1"
STOPPING = "STOPPING=1"
ALIVE = "WATCHDOG=1"

log = logging.getLogger("xaqueue.server")


class Housekeeping:
    """Runs from the start to ``stop``, in the loop's thread. Branches are rolled back in a greenlet: that may wait."""

    def __init__(self, host: Host, stop_server: Callable[[], object]) -> None:
        limits = host.limits
        shortest = min(
            limits.branch_idle_s, limits.session_idle_s, limits.login_s, limits.stalled_s, limits.idle_exit_s
        )
        self._tick_s = max(min(TICK_S, shortest / 4), LEAST_TICK_S)
        self._host, self._loop = host, host.scheduler.loop
        self._stop_server = stop_server
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
        for session in list(self._host.sessions):
            session.check_timeouts(now)
        self._leave_idle(now)
        if self._resting.is_set() and not self._failed:
            self._resting.clear()
            self._host.scheduler.spawn(self._expire).switch()

    def _leave_idle(self, now: float) -> None:
        if self._busy_at is None:
            return
        if self._host.sessions:
            self._busy_at = now
        elif now - self._busy_at >= self._host.limits.idle_exit_s:
            log.info("nobody was connected for %g s: the server ends", self._host.limits.idle_exit_s)
            self._busy_at = None
            self._stop_server()

    def _expire(self) -> None:
        try:
            expire(self._host.space, time.monotonic(), self._host.limits.branch_idle_s)
            now = self._loop.time()
            if now >= self._sweep_at:
                self._sweep_at = now + SWEEP_S
                sweep(self._host.space)
        except ResourceFailed:  # which is logged, and the server ends
            self._failed = True
        finally:
            self._resting.set()


class Notifier:
    """Made from the environment that systemd gave this process. Raises InvalidArgument for what it cannot reach."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        name = environment.get("NOTIFY_SOCKET", "")
        if name and name[0] not in "/@":
            raise InvalidArgument(f"NOTIFY_SOCKET {name!r} is no Unix socket: only those are notified, drop --notify")
        self._address = "\0" + name[1:] if name.startswith("@") else name
        self.watchdog_s = _watchdog_s(environment) if name else None
        """How often at least systemd wants to hear that the server is alive; None where it does not."""

    def notify(self, *states: str) -> None:
        """Sends states like READY and ``STATUS=text``, together. That nobody takes them stops no server."""
        if not self._address:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sending:
            sending.settimeout(SEND_S)
            try:
                sending.sendto("\n".join(states).encode(), self._address)
            except OSError as error:
                log.warning("systemd is not told %s: %s", states[0], error)

    async def stay_alive(self, is_well: Callable[[], bool]) -> None:
        """Says so, twice as often as is wanted, for ever: this loop turns, and its server is well.

        Where it is not, systemd ends and starts it again after the time that its unit gives.
        """
        while self.watchdog_s is not None:
            if is_well():
                self.notify(ALIVE)
            await asyncio.sleep(self.watchdog_s / 2)


def _watchdog_s(environment: Mapping[str, str]) -> float | None:
    """Of this process, and not of one that inherited the environment."""
    wanted, pid = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", "")
    if not wanted.isdecimal() or int(wanted) == 0 or (pid and pid != str(os.getpid())):
        return None
    return int(wanted) / 1_000_000
