"""The connection of asyncio keeps the contract of all connections, by a synchronous face on it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from support.awaited import Facade, LoopThread
from support.contract_whole import WholeContract
from support.served import RemoteHost
from xaqueue.connection import Connection
from xaqueue.rpc.client.asyncio import AsyncConnection


class AsyncHost(RemoteHost):
    """All connections are in one loop."""

    def __init__(self, root: Path, sync: str) -> None:
        super().__init__(root, sync)
        self.thread = LoopThread()

    def connect(self) -> Connection:
        connection = cast(Connection, Facade(self.thread, self.server.url))
        self._connections.append(connection)
        return connection

    def kill(self) -> None:
        if self._server is not None:
            self._server.kill()
            self._server = None
        while self._connections:
            cast(Facade, self._connections.pop()).cut()

    def end(self) -> None:
        self.restart()
        self.thread.stop()


class TestConnection(WholeContract):
    @pytest.fixture(params=["FDATASYNC;DSYNC", "JOURNAL"])
    def host(self, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[AsyncHost]:
        made = AsyncHost(tmp_path / "space", request.param)
        yield made
        made.end()


def test_it_has_the_names_and_parameters_of_the_other_connection() -> None:
    def shapes(kind: type) -> dict[str, list[str]]:
        methods = {name: getattr(kind, name) for name in dir(kind) if not name.startswith("_")}
        return {name: list(inspect.signature(m).parameters) for name, m in methods.items() if callable(m)}

    assert shapes(AsyncConnection) == shapes(Connection)
