"""A transaction manager that keeps no decision: the ring that kills parties has to find it out.

Between its phases only its memory knows that it has decided. Whoever starts it again rolls back what it finds.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from typing import Any, Self

import psycopg

from xaqueue.errors import Error

FORMAT_ID = 77
Failures = (psycopg.Error, Error)


class CarelessManager:
    def __init__(
        self,
        log_dir: object,
        participants: Mapping[str, Callable[[], Any]],
        *,
        timeout_s: float,
        recovery_interval_s: float,
        on_step: Callable[[str, bytes, str], None] | None,
        two_phase: bool,
    ) -> None:
        self._participants = participants
        self._step = on_step or (lambda step, gtrid, name: None)

    @contextmanager
    def transaction(self) -> Iterator[dict[str, Any]]:
        gtrid = uuid.uuid4().hex
        opened = _Opened(self._participants, gtrid)
        try:
            yield opened
            for verb, before, after in (("tpc_prepare", "prepare", "prepared"), ("tpc_commit", "commit", "committed")):
                for name in sorted(opened):
                    self._step(before, gtrid.encode(), name)
                    getattr(opened[name], verb)()
                    self._step(after, gtrid.encode(), name)
        except BaseException:
            for connection in opened.values():
                with suppress(*Failures):
                    connection.tpc_rollback()
            raise
        finally:
            for connection in opened.values():
                connection.close()

    def __enter__(self) -> Self:
        for name, connect in self._participants.items():
            for xid in self._recovered(name):
                with closing(connect()) as connection, suppress(*Failures):
                    connection.tpc_rollback(xid)
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def _recovered(self, name: str) -> list[Any]:
        while True:
            with suppress(*Failures), closing(self._participants[name]()) as connection:
                return [xid for xid in connection.tpc_recover() if xid[0] == FORMAT_ID]
            time.sleep(0.05)


class _Opened(dict[str, Any]):
    """Participants of one transaction, opened when they are first asked for."""

    def __init__(self, participants: Mapping[str, Callable[[], Any]], gtrid: str) -> None:
        super().__init__()
        self._participants, self._gtrid = participants, gtrid

    def __missing__(self, name: str) -> Any:
        connection = self._participants[name]()
        connection.tpc_begin(connection.xid(FORMAT_ID, self._gtrid, name))
        self[name] = connection
        return connection
