"""How long a server waits for one peer: to be let in, to go on, to read its answers, to want anything at all.

Looked at now and then; a peer that goes on, however slowly, is waited for.
"""

from __future__ import annotations

from xaqueue.rpc.limits import Limits


class Patience:
    """With one peer. Times are the loop's."""

    __slots__ = ("_heard", "_opened", "_partial", "_read", "_unread")

    def __init__(self, now: float) -> None:
        self._opened = self._heard = self._read = now
        self._partial = False
        """It has sent a part of a request."""
        self._unread = 0

    def hear(self, now: float, *, whole: bool) -> None:
        """Something came; ``whole``: that ends a request."""
        self._heard = now
        self._partial = not whole

    def lost(self, now: float, limits: Limits, *, admitted: bool, idle: bool, unread: int) -> str | None:
        """Why the peer is waited for no longer. idle: it is its turn. unread: bytes of answers that it has not read."""
        if not idle:
            self._heard = now
        if unread < self._unread or not unread:
            self._read = now
        self._unread = unread
        if not admitted and now - self._opened > limits.login_s:
            return f"it has not shown who it is within {limits.login_s:g} s"
        if now - self._read > limits.stalled_s:
            return f"it has not read its answers for {limits.stalled_s:g} s"
        if self._partial and now - self._heard > limits.stalled_s:
            return f"it stopped in the middle of a request for {limits.stalled_s:g} s"
        if now - self._heard > limits.session_idle_s:
            return f"it has asked for nothing for {limits.session_idle_s:g} s"
        return None
