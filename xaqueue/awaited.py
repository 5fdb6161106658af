"""Code that is written for threads, in a task of asyncio: where it would block, the task awaits.

``carried`` runs a call in a greenlet of its own, and ``awaited``, within it, hands the task what is to be awaited. A
call whose task is cancelled is cut off where it waits: there an error is raised, and it may not wait again.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, cast

from xaqueue.errors import InterfaceError, NotSupportedError

try:
    from greenlet import getcurrent, greenlet
except ModuleNotFoundError:  # it comes with an extra: nothing is carried without it
    greenlet, getcurrent = object, lambda: None  # type: ignore[assignment, misc, return-value]

T = TypeVar("T")
MISSING = "async connections and servers need greenlet: pip install 'xaqueue[server]'"


class _Carrier(greenlet):
    """The greenlet of one call; its parent is the one in which the loop runs."""

    def __init__(self, call: Callable[[], Any]) -> None:
        parent = getcurrent()
        super().__init__(call, parent)
        self.gr_context = parent.gr_context
        self.is_cut = False


async def carried(
    call: Callable[[], T],
    error_of: Callable[[BaseException], BaseException] = lambda cancelled: cancelled,
    cut_off: Callable[[Exception], object] = lambda _: None,
) -> T:
    """The result of a call that waits by ``awaited``.

    error_of: what is raised in the call where its task was cancelled. cut_off: is told what it ended with then.
    Raises NotSupportedError without greenlet.
    """
    if greenlet is object:
        raise NotSupportedError(MISSING)
    carrier = _Carrier(call)
    result = carrier.switch()
    while not carrier.dead:
        try:
            answer = await result
        except Exception as error:
            result = carrier.throw(error)
        except BaseException as cancelled:
            try:
                _cut(carrier, error_of(cancelled))
            except Exception as error:
                cut_off(error)
            raise
        else:
            result = carrier.switch(answer)
    return cast(T, result)


def awaited(waits: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine, for code within ``carried``. Raises what it raises, and InterfaceError elsewhere."""
    carrier = getcurrent()
    if not isinstance(carrier, _Carrier) or carrier.parent is None:
        waits.close()
        raise InterfaceError("an async connection is used outside of its own methods: await those")
    return cast(T, carrier.parent.switch(waits))


def is_carried() -> bool:
    """Whether the caller may wait by ``awaited``."""
    return isinstance(getcurrent(), _Carrier)


def is_cut() -> bool:
    """Whether the caller's task was cancelled, so that it may not wait."""
    carrier = getcurrent()
    return isinstance(carrier, _Carrier) and carrier.is_cut


def _cut(carrier: _Carrier, error: BaseException) -> None:
    carrier.is_cut = True
    try:
        while not carrier.dead:
            result = carrier.throw(error)
            if not carrier.dead:
                result.close()
    except BaseException as raised:
        if raised is not error or isinstance(raised, Exception):
            raise
