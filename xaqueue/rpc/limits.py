"""What one server takes on, at most. Whatever is over a limit is refused or ended, alone, with a line in the log."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

from xaqueue.errors import InvalidArgument

FRAME_OVERHEAD_BYTES = 128 * 1024
"""Of an enqueue beside its body: properties, and the frame itself."""
STRANGER_BYTES = 64 * 1024
"""What a peer may send before it was let in."""

NEVER_S = 1e9
"""Thirty years."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes in bytes, times in seconds; each at least what ``LEAST`` says. Raises InvalidArgument."""

    request_bytes: int = 64 * 1024 * 1024 + FRAME_OVERHEAD_BYTES
    """The largest request. Unless another one is given it grows with the space's max_body_bytes."""
    request_memory_bytes: int = 256 * 1024 * 1024
    """Of all sessions' requests that are received in part; at least one of the largest finds room."""
    sessions: int = 1024
    branches: int = 256
    """Of one session: those it has begun that are neither prepared nor over."""
    branch_idle_s: float = 180.0
    """A branch that does nothing for longer is rolled back."""
    session_idle_s: float = 3600.0
    """A session that asks for nothing for longer is ended."""
    login_s: float = 10.0
    """For TLS, and then for the token, each."""
    stalled_s: float = 60.0
    """A peer may stop for so long in the middle of a request, or before it reads its answers."""
    stop_s: float = 10.0
    """A server that stops waits so long for peers to read their last answers."""
    idle_exit_s: float = NEVER_S
    """A server without any session for longer ends by itself."""

    def for_bodies(self, body_bytes: int) -> Limits:
        """With the default limit of a request, room for such a body."""
        needed = body_bytes + FRAME_OVERHEAD_BYTES
        is_default = self.request_bytes == Limits().request_bytes
        return replace(self, request_bytes=needed) if is_default and needed > self.request_bytes else self

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            kinds = (int,) if isinstance(field.default, int) else (int, float)
            least = LEAST[field.name]
            if type(value) not in kinds or not least <= value < math.inf:
                unit = "seconds" if field.name.endswith("_s") else "bytes" if field.name.endswith("_bytes") else "them"
                raise InvalidArgument(f"limit {field.name} = {value!r}: at least {least:g} {unit} are wanted")


LEAST: dict[str, float] = {
    "request_bytes": FRAME_OVERHEAD_BYTES,
    "request_memory_bytes": FRAME_OVERHEAD_BYTES,
    "sessions": 1,
    "branches": 1,
    **dict.fromkeys(("branch_idle_s", "session_idle_s", "login_s", "stalled_s", "stop_s", "idle_exit_s"), 0.001),
}
