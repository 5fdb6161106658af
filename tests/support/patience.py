"""What another thread or process brings about is waited for, as long as the slowest machine may take."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE_S = 60.0


def eventually(holds: Callable[[], object], within_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, "it never comes"
        time.sleep(0.005)
