"""What xaqueue has refused a query with is the last line that a person sees.

Spark prints it in the middle: below a traceback of its own workers, above the query's state and plan. So where we have
made the session, or were told of it, an error that nobody catches ends with one more line that says it again.
"""

from __future__ import annotations

import re
import sys
from functools import cache
from types import TracebackType
from typing import Any

from pyspark.errors import PySparkException

_SAID = re.compile(r"^\s*xaqueue\.errors\.\w+: (.*\S)", re.MULTILINE)


def said(error: BaseException) -> str | None:
    """What was raised in a process of Spark's; None where that was nothing of xaqueue's."""
    found = _SAID.findall(str(error)) if isinstance(error, PySparkException) else []
    return found[-1] if found else None


@cache
def say_last() -> None:
    """From now on, in this process."""
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        before(kind, error, trace)
        if text := said(error):
            sys.stderr.write(f"\nxaqueue: {text}\n")

    sys.excepthook = hook
    shell: Any = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is not None and not shell.custom_exceptions:  # a notebook that shows errors in its own way goes on to
        shell.set_custom_exc((PySparkException,), _show)


def _show(shell: Any, kind: type[BaseException], error: BaseException, trace: object, tb_offset: object = None) -> None:
    """What a notebook does with an error, and the last line."""
    shell.showtraceback((kind, error, trace), tb_offset=tb_offset)
    if text := said(error):
        sys.stderr.write(f"\nxaqueue: {text}\n")
