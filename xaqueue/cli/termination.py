"""What is asked to end removes what it made first: ``kill`` and a closed terminal are answered as Ctrl-C is."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

ENDING = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def ended_in_order() -> Iterator[None]:
    """Inside, these signals raise SystemExit, with the exit code that a shell shows for them."""
    heard = [number for number in ENDING if signal.getsignal(number) is not signal.SIG_IGN]  # as nohup asks for
    before = {number: signal.signal(number, _end) for number in heard}
    try:
        yield
    finally:
        for number, action in before.items():
            signal.signal(number, action)


def _end(number: int, _: FrameType | None) -> None:
    sys.exit(128 + number)
