"""What systemd is told, by a socket that stands for it."""

from __future__ import annotations

import asyncio
import os
import socket
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from xaqueue.core.storage.owner_file import OwnerFile
from xaqueue.errors import InvalidArgument
from xaqueue.rpc.server.listeners import ListenConfig
from xaqueue.rpc.server.server import ALIVE, READY, Notifier, run

PATIENCE_S = 60.0


@pytest.fixture(params=["path", "abstract"])
def systemd(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[str, socket.socket]]:
    """NOTIFY_SOCKET, and what listens there."""
    name = f"{tmp_path}/notify" if request.param == "path" else f"@xaqueue-test-{uuid.uuid4()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(name.replace("@", "\0", 1) if name[0] == "@" else name)
        listening.settimeout(PATIENCE_S)
        yield name, listening


def test_states_arrive_together(systemd: tuple[str, socket.socket]) -> None:
    name, listening = systemd
    Notifier({"NOTIFY_SOCKET": name}).notify(READY, "STATUS=serving dätå")
    assert listening.recv(4096) == "READY=1\nSTATUS=serving dätå".encode()


def test_nobody_asked_and_nobody_is_told() -> None:
    notifier = Notifier({"WATCHDOG_USEC": "1000"})
    notifier.notify(READY)
    assert notifier.watchdog_s is None


def test_that_nobody_listens_stops_no_server(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Notifier({"NOTIFY_SOCKET": str(tmp_path / "nobody")}).notify(READY)
    assert "systemd is not told READY=1" in caplog.text


@pytest.mark.parametrize("name", ["vsock:2:1234", "relative/path"])
def test_a_socket_that_cannot_be_reached_is_refused(name: str) -> None:
    with pytest.raises(InvalidArgument, match="--notify"):
        Notifier({"NOTIFY_SOCKET": name})


@pytest.mark.parametrize(
    ("usec", "pid", "wanted"),
    [
        ("3000000", "own", 3.0),
        ("3000000", "", 3.0),
        ("3000000", "1", None),
        ("0", "", None),
        ("", "", None),
        ("soon", "", None),
    ],
)
def test_the_watchdog_is_for_this_process(usec: str, pid: str, wanted: float | None) -> None:
    given = str(os.getpid()) if pid == "own" else pid
    environment = {"NOTIFY_SOCKET": "@nobody", "WATCHDOG_USEC": usec, "WATCHDOG_PID": given}
    assert Notifier(environment).watchdog_s == wanted


def test_it_is_said_to_be_alive_only_while_it_is_well(systemd: tuple[str, socket.socket]) -> None:
    name, listening = systemd
    notifier = Notifier({"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "2000"})
    asked = 0

    def is_well() -> bool:
        nonlocal asked
        asked += 1
        return asked <= 3

    async def watch(until: Callable[[], bool]) -> None:
        watching = asyncio.ensure_future(notifier.stay_alive(is_well))
        async with asyncio.timeout(PATIENCE_S):
            while not until():
                await asyncio.sleep(0.001)
        watching.cancel()

    asyncio.run(watch(lambda: asked > 5))
    assert [listening.recv(64) for _ in range(3)] == [ALIVE.encode()] * 3
    listening.setblocking(False)
    with pytest.raises(BlockingIOError):
        listening.recv(64)


def test_without_a_watchdog_nothing_is_said(systemd: tuple[str, socket.socket]) -> None:
    name, listening = systemd
    asyncio.run(Notifier({"NOTIFY_SOCKET": name}).stay_alive(lambda: True))
    listening.setblocking(False)
    with pytest.raises(BlockingIOError):
        listening.recv(64)


@pytest.mark.parametrize("usec", ["", "3000000"])
def test_one_that_stands_by_is_ready_and_alive(
    systemd: tuple[str, socket.socket], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, usec: str
) -> None:
    """It may stand by for longer than systemd waits for a start."""
    name, listening = systemd
    monkeypatch.setenv("NOTIFY_SOCKET", name)
    monkeypatch.setenv("WATCHDOG_USEC", usec)

    def stand_by(look: Callable[[], None]) -> OwnerFile:
        look()
        raise InvalidArgument("told to stop")

    with pytest.raises(InvalidArgument, match="told to stop"):
        run(tmp_path / "s", ListenConfig(), notify=True, stand_by=stand_by)
    assert listening.recv(4096).decode() == f"READY=1\nSTATUS=standing by for {tmp_path / 's'}"
    listening.setblocking(False)
    if usec:
        assert listening.recv(4096).decode() == ALIVE
    with pytest.raises(BlockingIOError):
        listening.recv(4096)
