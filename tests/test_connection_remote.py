"""The connection through a server keeps the contract of all connections."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from contract_connection import (
    QUEUES,
    BlockContract,
    ConcurrencyContract,
    KillContract,
    MessagesContract,
    TwoPhaseContract,
)
from served import ServerThread

from xaqueue.connection import Connection
from xaqueue.rpc import dial
from xaqueue.space.engine import heuristics
from xaqueue.space.owner import open as attach_room
from xaqueue.storage.ids import fresh_id
from xaqueue.xid import Xid

CONNECT_S = 1.0
"""For how long a killed server is looked for."""


class RemoteHost:
    """The space is opened by a server; every connection is a session of its own there."""

    def __init__(self, root: Path, sync: str) -> None:
        self.root = root
        self.sync = sync
        self._connections: list[Connection] = []
        self._server: ServerThread | None = None
        self._guard = threading.Lock()
        attach_room.create(root)
        attach_room.write_definitions(root, QUEUES)

    @property
    def server(self) -> ServerThread:
        with self._guard:
            if self._server is None:
                self._server = ServerThread(self.root, self.root.with_name("socket"), sync=self.sync)
            return self._server

    def connect(self) -> Connection:
        connection = Connection(dial.manager(self.server.url, connect_s=CONNECT_S), fresh_id)
        self._connections.append(connection)
        return connection

    def restart(self) -> None:
        while self._connections:
            self._connections.pop().close()
        if self._server is not None:
            self._server.stop()
            self._server = None

    def kill(self) -> None:
        if self._server is not None:
            self._server.kill()
            self._server = None
        while self._connections:
            stream = self._connections.pop()._manager._stream  # type: ignore[attr-defined]
            if stream is not None:
                stream.close()

    def decide(self, xid: Xid, commit: bool) -> None:
        heuristics.decide(self.server.space, xid, commit, "test")


class AtBothLevels:
    @pytest.fixture(params=["FDATASYNC;DSYNC", "JOURNAL"])
    def host(self, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[RemoteHost]:
        made = RemoteHost(tmp_path / "space", request.param)
        yield made
        made.restart()


class TestTwoPhase(AtBothLevels, TwoPhaseContract):
    pass


class TestBlocks(AtBothLevels, BlockContract):
    pass


class TestMessages(AtBothLevels, MessagesContract):
    pass


class TestKill(AtBothLevels, KillContract):
    pass


class TestConcurrency(AtBothLevels, ConcurrencyContract):
    pass
