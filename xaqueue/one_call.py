"""One call at a time, of the process that connected: what all methods of a connection have in common."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from xaqueue.errors import Error, InterfaceError, ResourceFailed
from xaqueue.transaction import Transaction

if TYPE_CHECKING:
    from xaqueue.resource_manager import ResourceManager

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S", bound="OneCall")


class Process:
    """This one; a forked child is another, and is told so: each call asks."""

    pid = os.getpid()


def _in_child() -> None:
    Process.pid = os.getpid()


os.register_at_fork(after_in_child=_in_child)


def alone(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """The method, for one thread at a time of the process that connected. Raises InterfaceError, ResourceFailed.

    What every two-phase transaction calls has the same in its own body: five calls less.
    """

    @wraps(method)
    def alone_in(self: S, *arguments: P.args, **options: P.kwargs) -> T:
        if self._pid != Process.pid or not self._entered.acquire(False):
            raise self._refused()
        try:
            return method(self, *arguments, **options)
        finally:
            self._entered.release()

    return alone_in  # type: ignore[return-value]


class OneCall:
    """A session, and the transaction that it is in."""

    def __init__(self, manager: ResourceManager, make_id: Callable[[], bytes]) -> None:
        """``make_id``: 16 unique bytes for the xid of a local transaction."""
        self._manager = manager
        self._transaction = Transaction(manager, make_id)
        self._pid = Process.pid
        self._entered = threading.Lock()
        """Held by who is in a call."""

    def _refused(self) -> Error:
        if self._pid != Process.pid:
            return ResourceFailed("the connection belongs to the parent of this forked process: connect again")
        return InterfaceError("the connection is in a call already, perhaps of another thread: open one for each")

    @alone
    def _within(self, call: Callable[[], T]) -> T:
        """A call that is no method's own, alone as these are."""
        return call()
