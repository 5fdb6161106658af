"""A call that may be made twice is asked for again where its answer was lost, over a new connection."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from xaqueue.errors import ConnectionLost

ASKED = 3
"""How often a call is made whose answer is lost each time."""


class CallsAgain:
    """A part of a RemoteManager whose calls may be made twice."""

    def call(self, method: str, *params: Any) -> Any:
        raise NotImplementedError

    def call_again(self, method: str, *params: Any) -> Any:
        """Raises ConnectionLost where the answer is lost each time."""
        for _ in range(ASKED - 1):
            with suppress(ConnectionLost):
                return self.call(method, *params)
        return self.call(method, *params)
