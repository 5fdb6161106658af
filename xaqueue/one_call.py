"""One call at a time, of the process that connected: what all methods of a connection have in common."""

from __future__ import annotations

import os
import threading
import weakref
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
    """This one; a forked child is another, in which each connection of its parent is shut."""

    pid = os.getpid()


_all: weakref.WeakSet[OneCall] = weakref.WeakSet()


def _in_child() -> None:
    Process.pid = os.getpid()
    for one in list(_all):
        one._entered = _held_lock()  # noqa: SLF001


def _held_lock() -> threading.Lock:
    """Nobody gets in."""
    made = threading.Lock()
    made.acquire()
    return made


os.register_at_fork(after_in_child=_in_child)


def alone(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """The method, for one thread at a time of the process that connected. Raises InterfaceError, ResourceFailed.

    What every two-phase transaction calls has the same in its own body: five calls less. The lock is taken by ``with``,
    since an interrupt may come behind any other call that takes it: then nobody would give it back. Who comes between
    the two looks waits.
    """

    @wraps(method)
    def alone_in(self: S, *arguments: P.args, **options: P.kwargs) -> T:
        if self._entered.locked():
            raise self._refused()
        with self._entered:
            return method(self, *arguments, **options)

    return alone_in  # type: ignore[return-value]


class OneCall:
    """A session, and the transaction that it is in."""

    def __init__(self, manager: ResourceManager, make_id: Callable[[], bytes]) -> None:
        """``make_id``: 16 unique bytes for the xid of a local transaction."""
        import logging  # the package does without it, until somebody connects; the end of the process is too late

        self._manager = manager
        self._transaction = Transaction(manager, make_id)
        self._pid = Process.pid
        self._entered = threading.Lock()
        """Held by who is in a call."""
        self._logger = logging.getLogger("xaqueue")
        _all.add(self)

    def _refused(self) -> Error:
        if self._pid != Process.pid:
            return ResourceFailed("the connection belongs to the parent of this forked process: connect again")
        return InterfaceError("the connection is in a call already, perhaps of another thread: open one for each")

    @alone
    def _within(self, call: Callable[[], T]) -> T:
        """A call that is no method's own, alone as these are."""
        return call()
