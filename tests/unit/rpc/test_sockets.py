"""A socket has its mode before anybody can connect, a dead server's is replaced, and nothing else is ever removed."""

from __future__ import annotations

import os
import socket
import stat
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from xaqueue.errors import InvalidArgument, OperationalError
from xaqueue.rpc.client.sockets import keep_alive
from xaqueue.rpc.server import listeners
from xaqueue.rpc.server.listeners import listen_tcp, listen_unix, remove_unix, unix_peer, unix_user

PATIENCE_S = 60.0


@pytest.fixture
def closing() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def connect(path: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.settimeout(PATIENCE_S)
    try:
        made.connect(str(path))
    except OSError:
        made.close()
        raise
    return made


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
@pytest.mark.parametrize("mode", [0o600, 0o660])
def test_a_socket_has_its_mode_whatever_the_umask(tmp_path: Path, closing: ExitStack, umask: int, mode: int) -> None:
    path = tmp_path / "socket"
    before = os.umask(umask)
    try:
        closing.enter_context(listen_unix(path, mode))
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == mode
    closing.enter_context(connect(path))


def test_nobody_connects_before_the_mode_is_set(
    tmp_path: Path, closing: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, real, tried = tmp_path / "socket", Path.chmod, []

    def chmod(self: Path, mode: int) -> None:
        with pytest.raises(ConnectionRefusedError):
            connect(self)
        tried.append(mode)
        real(self, mode)

    monkeypatch.setattr(Path, "chmod", chmod)
    closing.enter_context(listen_unix(path))
    assert tried == [0o600]


def test_the_socket_of_a_dead_server_is_replaced(tmp_path: Path, closing: ExitStack) -> None:
    path = tmp_path / "socket"
    listen_unix(path).close()
    assert path.is_socket()
    closing.enter_context(listen_unix(path))
    closing.enter_context(connect(path))


def test_the_socket_of_a_live_server_is_not(tmp_path: Path, closing: ExitStack) -> None:
    path = tmp_path / "socket"
    listening = closing.enter_context(listen_unix(path))
    with pytest.raises(OperationalError, match=r"socket is served already: stop that server, or choose another path"):
        listen_unix(path)
    closing.enter_context(connect(path))
    listening.accept()[0].close()


def test_a_live_server_that_is_busy_is_no_dead_one(tmp_path: Path, closing: ExitStack) -> None:
    path = tmp_path / "socket"
    busy = closing.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
    busy.bind(str(path))
    busy.listen(0)
    for _ in range(8):
        waiting = closing.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK))
        if waiting.connect_ex(str(path)):
            break
    else:
        pytest.skip("the backlog has no end here")
    with pytest.raises(OperationalError, match="served already"):
        listen_unix(path)


@pytest.mark.parametrize("kind", ["file", "directory", "link", "dangling"])
def test_what_is_no_socket_is_left_alone(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "socket"
    if kind == "file":
        path.write_text("mine")
    elif kind == "directory":
        path.mkdir()
    else:
        target = tmp_path / "target"
        path.symlink_to(target)
        if kind == "link":
            listen_unix(target).close()
    with pytest.raises(OperationalError, match="is no socket: choose another path"):
        listen_unix(path)
    assert os.path.lexists(path)
    assert kind != "link" or (tmp_path / "target").is_socket()


def test_of_servers_that_start_at_once_over_a_dead_ones_socket_one_serves(tmp_path: Path, closing: ExitStack) -> None:
    path = tmp_path / "socket"
    for _ in range(20):
        listen_unix(path).close()
        made: list[socket.socket] = []
        refused: list[OperationalError] = []
        gate = threading.Barrier(4)

        def start(made: list[socket.socket], refused: list[OperationalError], gate: threading.Barrier) -> None:
            gate.wait(PATIENCE_S)
            try:
                made.append(listen_unix(path))
            except OperationalError as error:
                refused.append(error)

        threads = [threading.Thread(target=start, args=(made, refused, gate), daemon=True) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert len(made) == 1
        assert len(refused) == 3
        connect(path).close()
        made[0].close()


def test_a_directory_that_is_locked_by_another_is_said(
    tmp_path: Path, closing: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listeners, "LOCK_PAUSE_S", 0.0)
    held = listeners._lock_of(tmp_path)
    closing.callback(held.release)
    with pytest.raises(OperationalError, match="is locked by another process"):
        listen_unix(tmp_path / "socket")


def test_a_path_that_cannot_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="cannot hold a socket: No such file"):
        listen_unix(tmp_path / "missing" / "socket")
    with pytest.raises(InvalidArgument, match="over the system's limit"):
        listen_unix(tmp_path / ("a" * 120))


def test_only_the_own_socket_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    listen_unix(path).close()
    first = path.lstat()
    path.rename(tmp_path / "elsewhere")
    listen_unix(path).close()
    remove_unix(path, first)
    assert path.is_socket()
    remove_unix(path, path.lstat())
    assert not path.exists()
    remove_unix(path, first)


def test_the_peer_of_a_socket_is_known_by_name_and_number(tmp_path: Path, closing: ExitStack) -> None:
    path = tmp_path / "socket"
    listening = closing.enter_context(listen_unix(path))
    closing.enter_context(connect(path))
    seen = unix_peer(closing.enter_context(listening.accept()[0]))
    assert f"user:{os.geteuid()}" in seen.names
    assert seen.owner
    assert not seen.trusted


@pytest.mark.parametrize(
    ("uid", "own_uid", "owner"),
    [(0, 0, True), (0, 1000, True), (1000, 1000, True), (1000, 0, False), (1001, 1000, False)],
)
def test_the_owner_is_who_runs_the_server_and_root(uid: int, own_uid: int, owner: bool) -> None:
    assert unix_user(uid, own_uid).owner is owner


def test_a_user_without_a_name_has_a_number() -> None:
    assert unix_user(4_000_000, 0).names == ("user:4000000",)
    assert unix_user(0, 0).names == ("user:root", "user:0")


def test_a_port_is_listened_on_at_every_address_of_a_name(closing: ExitStack) -> None:
    for made in listen_tcp("127.0.0.1", 0):
        closing.enter_context(made)
        host, port = made.getsockname()
        asking = closing.enter_context(socket.create_connection((host, port), PATIENCE_S))
        keep_alive(asking)
        assert asking.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        with pytest.raises(OperationalError, match=f"port {port} cannot be listened on: Address already in use"):
            listen_tcp(host, port)


def test_a_host_that_is_none_is_refused() -> None:
    with pytest.raises(OperationalError, match=r"no.such.host.invalid is no address of this machine"):
        listen_tcp("no.such.host.invalid", 1)
