"""The connection of a space in memory keeps the contract of all connections."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.contract_connection import (
    QUEUES,
)
from support.contract_whole import WholeContract
from xaqueue.connection import Connection
from xaqueue.core.engine import heuristics
from xaqueue.errors import NotSupportedError
from xaqueue.testing import MemorySpace
from xaqueue.xid import Xid


class MemoryHost:
    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        self.space = MemorySpace(QUEUES)
        self._connections: list[Connection] = []

    @property
    def root(self) -> Path:
        """Its files as they are now, laid out on a disk."""
        shutil.rmtree(self.scratch, ignore_errors=True)
        self.scratch.mkdir()
        (self.scratch / "queues.toml").write_text(self.space._text)
        for path, content in self.space._fs.tree_after_kill().nodes.items():
            if content is None:
                (self.scratch / path).mkdir()
            else:
                (self.scratch / path).write_bytes(content)
        return self.scratch

    def connect(self) -> Connection:
        self._connections.append(self.space.connect())
        return self._connections[-1]

    def restart(self) -> None:
        while self._connections:
            self._connections.pop().close()
        self.space.reopen()

    def kill(self) -> None:
        self._connections.clear()
        self.space.reopen()

    def decide(self, xid: Xid, commit: bool) -> None:
        heuristics.decide(self.space._engine, xid, commit, "test")


class TestConnection(WholeContract):
    @pytest.fixture
    def host(self, tmp_path: Path) -> Iterator[MemoryHost]:
        made = MemoryHost(tmp_path / "laid out")
        with made.space:
            yield made
            made.restart()

    test_foreign_files_are_kept_and_the_rest_serves = None  # type: ignore[assignment]  # nobody puts any there

    def test_a_snapshot_has_what_is_committed(self, connection: Connection) -> None:  # type: ignore[override]
        """There is none."""
        with pytest.raises(NotSupportedError, match="in a directory"):
            connection.snapshot()
