"""An operator reaches what is in doubt in a directory or through a server, with the same few calls."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from xaqueue.cli.spaces import Place, reached, remote, served_at
from xaqueue.space.engine import heuristics, operator_log
from xaqueue.space.engine.heuristics import Decision
from xaqueue.space.engine.operator_log import Forgotten
from xaqueue.space.engine.session import Session
from xaqueue.space.offline import inspect, inspect_branches
from xaqueue.space.offline.inspect_branches import InDoubt
from xaqueue.xid import Xid

if TYPE_CHECKING:
    from xaqueue.rpc.client import RemoteManager
    from xaqueue.rpc.operator_client import RemoteOperator


class Side(Protocol):
    """What an operator asks of a space, and does in it."""

    def in_doubt(self) -> list[InDoubt]:
        """Branches in doubt, committing or decided by an operator, the oldest first."""

    def depths(self, queues: Iterable[str]) -> dict[str, int]:
        """How many messages these queues have, with those that branches hold."""

    def decide(self, xid: Xid, commit: bool, by: str, reason: str) -> Decision:
        """Records a decision and carries it out; returns the one that holds."""

    def forget(self, xid: Xid, by: str, reason: str) -> None:
        """Ends the memory of a decision, recorded first."""

    def forgotten(self) -> list[Forgotten]:
        """The decisions that operators forgot, in their order."""


@contextmanager
def side_of(place: Place, *, decides: bool = False) -> Iterator[Side]:
    """decides: whether something is to be done there, for which a directory that is served is left to its server."""
    url = served_at(place) if decides else place.url
    if url:
        with remote(url) as manager:
            yield _operator_of(manager)
    else:
        yield DirectorySide(place)


class DirectorySide:
    """Looks at the directory, whoever owns it; decides through its server, or as its owner."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def in_doubt(self) -> list[InDoubt]:
        return inspect_branches.in_doubt(self._place.directory)

    def depths(self, queues: Iterable[str]) -> dict[str, int]:
        return inspect.depths(self._place.directory, queues)

    def decide(self, xid: Xid, commit: bool, by: str, reason: str) -> Decision:
        with reached(self._place) as manager:
            if isinstance(manager, Session):
                return heuristics.decide(manager.space, xid, commit, by, reason)
            return _operator_of(manager).decide(xid, commit, by, reason)

    def forget(self, xid: Xid, by: str, reason: str) -> None:
        with reached(self._place) as manager:
            if isinstance(manager, Session):
                operator_log.forget(manager, xid, by, reason)
            else:
                _operator_of(manager).forget(xid, by, reason)

    def forgotten(self) -> list[Forgotten]:
        return operator_log.forgotten(self._place.directory)


def operator() -> str:
    """Who decides: ``user@host``."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def _operator_of(manager: RemoteManager) -> RemoteOperator:
    from xaqueue.rpc.operator_client import RemoteOperator

    return RemoteOperator(manager)
