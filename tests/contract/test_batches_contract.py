"""A session and a client of a server do the same for queries that write in batches."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.contract_batches import BatchesContract, Manager
from support.served import ServerThread
from xaqueue.core.engine import heuristics
from xaqueue.core.engine.state import Space
from xaqueue.core.owner import open as attach_room
from xaqueue.features.session import Session, attach
from xaqueue.rpc.client.manager import remote_manager
from xaqueue.xid import Xid

LEVELS = ["FDATASYNC;DSYNC", "JOURNAL"]


class EmbeddedHost:
    def __init__(self, root: Path, sync: str) -> None:
        self.root = root
        self._sync = sync
        self._sessions: list[Session] = []
        attach_room.create(root, any_queue=True)

    def connect(self) -> Manager:
        self._sessions.append(attach(self.root, sync=self._sync, watch=False))
        return self._sessions[-1]

    def restart(self) -> None:
        while self._sessions:
            self._sessions.pop().close()

    def decide(self, xid: Xid, commit: bool) -> None:
        heuristics.decide(self._sessions[0].space, xid, commit, "test")


class RemoteHost:
    def __init__(self, root: Path, sync: str) -> None:
        self.root = root
        self._sync = sync
        self._managers: list[Manager] = []
        self._server: ServerThread | None = None
        attach_room.create(root, any_queue=True)

    @property
    def space(self) -> Space:
        assert self._server is not None
        return self._server.space

    def connect(self) -> Manager:
        if self._server is None:
            self._server = ServerThread(self.root, self.root.with_name("socket"), sync=self._sync)
        self._managers.append(remote_manager(self._server.url))
        return self._managers[-1]

    def restart(self) -> None:
        while self._managers:
            self._managers.pop().close()
        if self._server is not None:
            self._server.stop()
            self._server = None

    def decide(self, xid: Xid, commit: bool) -> None:
        heuristics.decide(self.space, xid, commit, "test")


class TestEmbedded(BatchesContract):
    @pytest.fixture(params=LEVELS)
    def host(self, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[EmbeddedHost]:
        made = EmbeddedHost(tmp_path / "space", request.param)
        yield made
        made.restart()


class TestRemote(BatchesContract):
    @pytest.fixture(params=LEVELS)
    def host(self, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[RemoteHost]:
        made = RemoteHost(tmp_path / "space", request.param)
        yield made
        made.restart()
