"""Code that blocks is carried out for a task of asyncio: in a greenlet, and where it would block the task awaits.

So there is one client, for threads and for tasks. A call whose task is cancelled is cut off where it waits: there
ConnectionLost is raised, since an answer may be on its way that nobody will read, and it may not wait again.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, cast

from greenlet import getcurrent, greenlet

from xaqueue.errors import ConnectionLost, InterfaceError

T = TypeVar("T")


class _Carrier(greenlet):
    """The greenlet of one call; its parent is the one in which the loop runs."""

    def __init__(self, call: Callable[[], Any]) -> None:
        parent = getcurrent()
        super().__init__(call, parent)
        self.gr_context = parent.gr_context


async def carried(call: Callable[[], T], cut_off: Callable[[Exception], object]) -> T:
    """The result of a call that waits by ``awaited``. cut_off is told what it ended with, if its task was cancelled."""
    carrier = _Carrier(call)
    result = carrier.switch()
    while not carrier.dead:
        try:
            answer = await result
        except Exception as error:
            result = carrier.throw(error)
        except BaseException:
            _cut(carrier, cut_off)
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


def _cut(carrier: _Carrier, cut_off: Callable[[Exception], object]) -> None:
    lost = ConnectionLost("the connection to the server is lost: the call that waited for an answer was cancelled")
    try:
        while not carrier.dead:
            result = carrier.throw(lost)
            if not carrier.dead:
                result.close()
    except Exception as error:
        cut_off(error)
