"""The operator's calls on a served space, as their client makes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from xaqueue.errors import ConnectionLost, OutcomeUnknown
from xaqueue.rpc.client import RemoteManager
from xaqueue.rpc.operator_wire import decision_of, forgotten_of, in_doubt_of
from xaqueue.rpc.wire import xid_to
from xaqueue.space.engine.heuristics import Decision
from xaqueue.space.engine.operator_log import Forgotten
from xaqueue.space.offline.inspect_branches import InDoubt, by_age
from xaqueue.xid import Xid


class RemoteOperator:
    """Each call raises ConnectionLost where the server does not answer, and what it refuses with."""

    def __init__(self, manager: RemoteManager) -> None:
        self._manager = manager

    def in_doubt(self) -> list[InDoubt]:
        return by_age(map(in_doubt_of, self._pages()))

    def _pages(self) -> Iterator[Any]:
        more, page = self._manager.call("indoubt_list")
        yield from page
        while more:
            more, page = self._manager.call("indoubt_next")
            yield from page

    def depths(self, queues: Iterable[str]) -> dict[str, int]:
        answer: dict[str, Any] = self._manager.call("depths", list(queues))
        return {str(name): int(count) for name, count in answer.items()}

    def decide(self, xid: Xid, commit: bool, by: str, reason: str) -> Decision:
        """Raises OutcomeUnknown where the answer is lost."""
        with _told(xid, "decided"):
            return decision_of(self._manager.call("indoubt_decide", xid_to(xid), commit, by, reason))

    def forget(self, xid: Xid, by: str, reason: str) -> None:
        """Raises OutcomeUnknown where the answer is lost."""
        with _told(xid, "forgotten"):
            self._manager.call("indoubt_forget", xid_to(xid), by, reason)

    def forgotten(self) -> list[Forgotten]:
        return [forgotten_of(value) for value in self._manager.call("indoubt_forgotten")]


@contextmanager
def _told(xid: Xid, done: str) -> Iterator[None]:
    try:
        yield
    except ConnectionLost as lost:
        raise OutcomeUnknown(
            f"{lost}. Whether branch {xid} was {done} is unknown: `xaqueue indoubt show {xid}` tells", xid
        ) from lost
