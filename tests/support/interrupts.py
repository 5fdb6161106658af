"""Interrupts a call where the interpreter hears a signal: where a function begins, and behind each call of its own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from itertools import count
from types import FrameType


class Interrupted(BaseException):
    """As KeyboardInterrupt, and nobody else's."""


class Interrupt:
    """The profile function of a thread: raises once, at the place of this number among those of the given files."""

    def __init__(self, at: int, files: tuple[str, ...]) -> None:
        self.left, self.files = at, files
        self.where = ""

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if event in ("call", "c_return") and not self.where and frame.f_code.co_filename.endswith(self.files):
            self.left -= 1
            if self.left < 0:
                self.where = f"{frame.f_code.co_qualname}:{frame.f_lineno}"
                raise Interrupted


def interrupted_anywhere(begin: Callable[[], Callable[[], object]], *files: str) -> Iterator[str]:
    """Begins again and again and makes the call that this gives, interrupted one place later each time, until it is
    through: says where."""
    for at in count():
        call, interrupt = begin(), Interrupt(at, files)
        sys.setprofile(interrupt)
        try:
            call()
        except Interrupted:
            pass
        finally:
            sys.setprofile(None)
        if not interrupt.where:
            return
        yield interrupt.where
