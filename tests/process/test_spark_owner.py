"""A space is reached by its path alone: through its owner's server, or through one that is started for it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")

import xaqueue
from support.patience import eventually
from xaqueue.core.owner import open as attach_room
from xaqueue.core.owner import record
from xaqueue.core.owner.open import is_owned
from xaqueue.core.owner.record import Owner, read_owner
from xaqueue.core.storage.ids import fresh_id
from xaqueue.endpoint import UNIX_PATH_LIMIT_BYTES
from xaqueue.errors import SpaceError, SpaceInUse
from xaqueue.rpc.client import server_launcher
from xaqueue.rpc.client.manager import RemoteManager
from xaqueue.rpc.client.server_launcher import reach
from xaqueue.xa import Flag
from xaqueue.xid import Xid

PATIENCE_S = 60.0


def owner_of(root: Path) -> Owner:
    found = read_owner(root)
    assert found is not None
    return found


def end(root: Path, number: int = signal.SIGTERM) -> None:
    """Ends the server of a space, if it has one."""
    if is_owned(root) and owner_of(root).pid != os.getpid():
        os.kill(owner_of(root).pid, number)
        eventually(lambda: not is_owned(root))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "xaqueue"


@pytest.fixture
def root(tmp_path: Path, cache: Path) -> Iterator[Path]:
    """A space that nobody owns."""
    made = tmp_path / "space"
    attach_room.create(made, sync="NONE", any_queue=True)
    yield made
    end(made)
    for process in server_launcher._started:
        process.wait(PATIENCE_S)
    server_launcher._started.clear()


def put(manager: RemoteManager, body: bytes) -> None:
    xid = Xid(1, fresh_id(), b"")
    manager.start(xid)
    manager.enqueue("orders", body)
    manager.end(xid)
    manager.commit(xid, Flag.ONEPHASE)


def bodies(manager: RemoteManager) -> list[bytes]:
    return [message.body for message in manager.browse("orders")]


def test_a_server_is_started_where_nobody_owns_the_space_and_found_by_the_next(root: Path, cache: Path) -> None:
    one = reach(root)
    put(one, b"1")
    pid = owner_of(root).pid
    assert pid != os.getpid()
    assert os.getsid(pid) == pid  # what kills this process's group does not reach it
    two = reach(str(root))
    assert (bodies(two), owner_of(root).pid) == ([b"1"], pid)
    [log] = cache.glob("serve-*.log")
    assert f"serving {root}" in log.read_text()
    one.close()
    two.close()


def test_a_url_needs_no_directory(root: Path) -> None:
    reach(root).close()
    manager = reach("/no/such/directory", owner_of(root).endpoint)
    put(manager, b"1")
    assert bodies(manager) == [b"1"]
    manager.close()


def test_a_session_survives_its_server_between_transactions(root: Path) -> None:
    manager = reach(root)
    put(manager, b"1")
    for number, body in ((signal.SIGTERM, b"2"), (signal.SIGKILL, b"3")):
        before = owner_of(root)
        end(root, number)
        put(manager, body)
        assert owner_of(root).epoch > before.epoch
    assert bodies(manager) == [b"1", b"2", b"3"]
    manager.close()


def test_many_that_come_at_once_start_one_server(root: Path, cache: Path) -> None:
    program = (
        "import sys; from xaqueue.rpc.client.server_launcher import reach; "
        "m = reach(sys.argv[1]); print(m.space['epoch']); m.close()"
    )
    starters = [
        subprocess.Popen([sys.executable, "-c", program, str(root)], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    epochs = [starter.communicate(timeout=PATIENCE_S)[0].strip() for starter in starters]
    assert epochs == ["1"] * 3
    [log] = cache.glob("serve-*.log")
    assert log.read_text().count("serving ") == 1


def test_starters_that_do_not_know_of_each_other_find_the_winner(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = iter([root.parent / "one", root.parent / "two"])
    monkeypatch.setattr(
        server_launcher, "log_of", lambda _: next(logs)
    )  # as two users have, each with a lock of its own
    ends: list[bool] = []
    threads = [threading.Thread(target=lambda: ends.append(server_launcher.start(root))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert ends == [True, True]
    assert owner_of(root).epoch == 1


def test_what_a_crash_left_in_the_owner_file_leads_nowhere(root: Path, tmp_path: Path) -> None:
    reach(root).close()
    end(root, signal.SIGKILL)
    other = tmp_path / "other"
    attach_room.create(other, sync="NONE", any_queue=True)
    stranger = reach(other)
    told = replace(owner_of(root), endpoint=owner_of(other).endpoint)
    (root / "owner").write_bytes(record.format_owner(told))
    manager = reach(root)
    put(manager, b"1")
    assert (bodies(manager), bodies(stranger)) == ([b"1"], [])
    manager.close()
    stranger.close()
    end(other)


def test_an_owner_that_serves_nobody_is_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_launcher, "EMBEDDED_S", 0.1)
    with (
        xaqueue.connect(root),
        pytest.raises(SpaceInUse, match=rf"process {os.getpid()} on .*does not serve it: close it there, or run"),
    ):
        reach(root)


def test_a_command_that_has_the_space_for_a_moment_is_waited_for(root: Path) -> None:
    holder = xaqueue.connect(root)
    let_go = threading.Timer(0.3, holder.close)
    let_go.start()
    reach(root).close()
    let_go.join()
    assert owner_of(root).pid != os.getpid()


def test_a_server_on_another_machine_is_named(root: Path) -> None:
    with xaqueue.connect(root):
        told = replace(owner_of(root), host="elsewhere", endpoint="xaq+unix:///run/xaqueue.sock")
        (root / "owner").write_bytes(record.format_owner(told))
        with pytest.raises(SpaceInUse, match=r"served on elsewhere .* --tls .* option \"server\""):
            reach(root)


def test_why_a_server_cannot_be_started_is_told_with_its_log(root: Path, cache: Path) -> None:
    (root / "queues.toml").write_text("[default]\norder = 'sideways'\n")
    with pytest.raises(SpaceError, match=rf"no server can be started for .*sideways.*\(in {cache}/serve-\w+\.log\)"):
        reach(root)


def test_a_directory_that_is_no_space_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpaceError, match="no queue space"):
        reach(tmp_path)


def test_a_path_that_is_too_long_for_a_socket(tmp_path: Path, cache: Path) -> None:
    root = tmp_path / ("d" * 60) / "a space, 100 % odd?" / ("e" * 60)
    attach_room.create(root, sync="NONE", any_queue=True)
    place = server_launcher.socket_of(root)
    assert place.parent != root
    assert len(os.fsencode(place)) <= UNIX_PATH_LIMIT_BYTES
    manager = reach(root)
    put(manager, b"1")
    manager.close()
    end(root)


def test_a_socket_in_a_directory_with_odd_characters(tmp_path: Path, cache: Path) -> None:
    root = tmp_path / "a #1, 100% ?"
    attach_room.create(root, sync="NONE", any_queue=True)
    reach(root).close()
    assert server_launcher.socket_of(root) == root / "socket"
    end(root)


def test_a_directory_of_somebody_else_holds_no_socket_and_no_log(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.mkdir(parents=True)
    cache.chmod(0o777)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert server_launcher.log_of(tmp_path).parent == tmp_path / f"xaqueue-{os.getuid()}"
    (tmp_path / f"xaqueue-{os.getuid()}").chmod(0o722)
    with pytest.raises(xaqueue.Error, match="set XDG_CACHE_HOME"):
        server_launcher.log_of(tmp_path)


def test_a_log_does_not_grow_for_ever(tmp_path: Path) -> None:
    log = tmp_path / "log"
    for expected, content in (("old\nnew\n", "old\n"), ("new\n", "x" * server_launcher.LOG_BYTES)):
        log.write_text(content)
        with server_launcher.open_log(log) as file:
            file.write(b"new\n")
        assert log.read_text() == expected


def test_a_server_without_sessions_ends_by_itself_and_cleanly(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_launcher, "IDLE_EXIT_S", 0.2)
    manager = reach(root)
    put(manager, b"1")
    process = server_launcher._started[-1]  # others may have been left by tests of whole queries
    manager.close()
    assert process.wait(PATIENCE_S) == 0
    assert not (root / "socket").exists()
    assert not json.loads((root / "owner").read_bytes())["journalled"]
    put(manager := reach(root), b"2")
    assert bodies(manager) == [b"1", b"2"]
    manager.close()
