"""An interrupt of the product at a place of the test's choice, as Ctrl-C is one, or a signal handler that raises."""

from __future__ import annotations

import dis
import gc
import sys
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import xaqueue

HOME = f"{Path(xaqueue.__file__).parent}/"


class Interruption:
    """Raised where the interpreter looks for one: behind a call that is not of Python, or where a function begins.
    ``at``: how many such places come before."""

    def __init__(self, at: int) -> None:
        self.left = at
        self._behind: FrameType | None = None
        """Who goes on with what a function of Python has returned."""

    def __call__(self, frame: FrameType, event: str, _: object) -> Any:
        if not frame.f_code.co_filename.startswith(HOME):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "return":
            self._behind = frame.f_back
        elif event == "opcode":
            behind, self._behind = self._behind, None
            if frame is not behind and frame.f_lasti in looks(frame.f_code):
                self.left -= 1
                if self.left < 0:
                    sys.settrace(None)
                    raise KeyboardInterrupt
        return self


@cache
def looks(code: CodeType) -> set[int]:
    """Before which instructions of it."""
    every = list(dis.get_instructions(code))
    return {then.offset for one, then in pairwise(every) if one.opname.startswith(("CALL", "RESUME"))}


def interrupt(at: int, call: Callable[[], object]) -> bool:
    """Whether the call came so far that it was interrupted. Raises what else it raises."""
    before = sys.gettrace()
    gc.disable()  # what an interrupt of ``__del__`` raises nobody hears
    sys.settrace(Interruption(at))
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
        gc.enable()
    return False
