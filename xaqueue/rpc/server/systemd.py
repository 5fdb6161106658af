"""systemd is told how far the server is: one datagram a state, to the socket that the environment names.

Source: sd_notify(3), sd_watchdog_enabled(3). Where nobody asked to be told, nothing is sent.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Mapping

from xaqueue.errors import InvalidArgument

SEND_S = 1.0
READY = "READY=1"
STOPPING = "STOPPING=1"
ALIVE = "WATCHDOG=1"

log = logging.getLogger("xaqueue.server")


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
