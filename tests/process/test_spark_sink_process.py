"""A server in a process of its own dies under a task of the sink."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest

from support.sink_scene import Scene, as_bytes, texts
from xaqueue.core.owner.record import read_owner
from xaqueue.rpc.client import server_launcher
from xaqueue.rpc.client.manager import RemoteManager
from xaqueue.spark import sink_task
from xaqueue.xa import Flag, Vote
from xaqueue.xid import Xid

pytest.importorskip("pyspark", reason="pyspark is not installed")
pytest.importorskip("pyarrow", reason="pyarrow is not installed")
PATIENCE_S = 60.0


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    made = Scene(tmp_path, monkeypatch)
    yield made
    made.stop()


@pytest.fixture
def alone(scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    """A scene whose server dies for good; the one that is started in its place ends with the test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(server_launcher, "SERVER_S", 1.0)  # else it is waited for
    yield scene
    root = scene.roots[0]
    found = read_owner(root)
    assert found is not None
    assert found.pid != os.getpid()
    os.kill(found.pid, signal.SIGTERM)
    for process in server_launcher._started:
        process.wait(PATIENCE_S)
    server_launcher._started.clear()


def browsed(root: Path) -> list[bytes]:
    with closing(server_launcher.reach(root)) as manager:
        assert manager.recover(1, Flag.STARTRSCAN | Flag.ENDRSCAN) == []
        return sorted(message.body for message in manager.browse("orders"))


def test_a_server_that_dies_after_a_prepare(alone: Scene) -> None:
    writer = alone.stream(texts(1))
    messages = alone.tasks(writer, [texts(1), texts(2)])
    alone.servers[0].kill()
    writer.commit(messages, 0)
    assert browsed(alone.roots[0]) == as_bytes([1, 2])


def test_a_server_that_dies_while_a_task_writes(alone: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_task, "BRANCH_ROWS", 1)
    prepare: Callable[..., Vote] = RemoteManager.prepare
    calls = count()

    def dying(self: RemoteManager, xid: Xid, flags: Flag = Flag.NOFLAGS) -> Vote:
        if next(calls) == 1:
            alone.servers[0].kill()
        return prepare(self, xid, flags)

    monkeypatch.setattr(RemoteManager, "prepare", dying)
    writer = alone.stream(texts(1))
    writer.commit(alone.tasks(writer, [texts(1, 2, 3)]), 0)
    assert browsed(alone.roots[0]) == as_bytes([1, 2, 3])
