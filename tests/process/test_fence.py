"""A fence is logged once, by whoever fences; callers are told that the resource failed; a server ends by itself."""

from __future__ import annotations

import errno
import logging
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import xaqueue
from support.bare_space import DURABLE, BareSpace
from support.contract_connection import PATIENCE_S
from support.served import ServerThread
from xaqueue.cli.exit_codes import ExitCode
from xaqueue.core.owner.open import start_background
from xaqueue.core.owner.threads import Watchdog
from xaqueue.core.storage.layers import OwnerFileSystem
from xaqueue.errors import DecisionLogError, Error, ProtocolError, ResourceFailed
from xaqueue.features.session import attach
from xaqueue.offline import inspect
from xaqueue.rpc.client.manager import remote_manager
from xaqueue.rpc.server import server as server_room
from xaqueue.rpc.server.peer import Limits
from xaqueue.rpc.server.server import Server
from xaqueue.tm.log_directory import open_log

LEVELS = ["JOURNAL", DURABLE, "NONE"]


def critical(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged as bad; anything else of a fence would be a second line."""
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]


class Ending(queue.Queue[bool]):
    """What ends a server that hangs; ``wait`` tells whether that was fenced."""

    __call__ = queue.Queue.put

    def wait(self) -> bool:
        return self.get(timeout=PATIENCE_S)


def settled(bare: BareSpace) -> None:
    """All that is going to fence has done so, and whoever meets it."""
    log = bare.space.log
    until = threading.Event()
    while not log.fenced:
        assert not until.wait(0.01)
    for call in (lambda: bare.put("orders", b"more"), bare.in_doubt, log.check):
        with pytest.raises(ResourceFailed):
            call()


def by_a_step(bare: BareSpace) -> None:
    bare.fs.faults["rename", ""] = bare.fs.faults["sync_data", ""] = errno.EIO
    with pytest.raises(ResourceFailed):
        bare.put("orders", b"body")
    settled(bare)


def by_several_steps(bare: BareSpace) -> None:
    bare.fs.faults["rename", ""] = bare.fs.faults["sync_data", ""] = errno.EIO
    failed = []

    def put() -> None:
        try:
            bare.put("orders", b"body")
        except ResourceFailed as error:
            failed.append(error)

    threads = [threading.Thread(target=put) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(failed) == 8
    settled(bare)


def by_whoever_meets_an_error(bare: BareSpace) -> None:
    for _ in range(3):
        bare.space.fence(OSError(errno.EIO, "Input/output error"))
    settled(bare)


def by_the_watchdog(bare: BareSpace) -> None:
    files = OwnerFileSystem(bare.fs)
    files.running[1] = (0.0, "sync", "it")
    object.__setattr__(bare.space.definitions, "io_deadline_s", 0.01)
    Watchdog(bare.space, files)
    settled(bare)


def by_the_flusher(bare: BareSpace) -> None:
    background = start_background(bare.space)
    bare.fs.faults["create", "active/"] = errno.EIO
    bare.put("orders", b"body")
    settled(bare)
    for thread in background:
        thread.stop()


def by_the_checkpointer(bare: BareSpace) -> None:
    object.__setattr__(bare.space.definitions, "checkpoint_s", 0.01)
    background = start_background(bare.space)
    bare.fs.faults["sync_all", ""] = errno.EIO
    bare.put("orders", b"body")
    settled(bare)
    for thread in background:
        thread.stop()


def by_a_close(bare: BareSpace) -> None:
    bare.put("orders", b"body")
    bare.fs.faults["sync_all", ""] = errno.EIO
    bare.space.close()


EVERYWHERE = [by_a_step, by_several_steps, by_whoever_meets_an_error, by_the_watchdog]
WAYS = [(way, level) for way in EVERYWHERE for level in LEVELS]
WAYS += [(way, "JOURNAL") for way in (by_the_flusher, by_the_checkpointer, by_a_close)]


@pytest.mark.parametrize(("way", "level"), WAYS, ids=lambda value: getattr(value, "__name__", value))
def test_it_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, way: Callable[[BareSpace], None], level: str
) -> None:
    bare = BareSpace(tmp_path / "space", level)
    way(bare)
    bare.space.close()
    (line,) = critical(caplog)
    assert line.startswith("[fenced] the space is fenced: ")
    assert "Input/output error" in line or "has taken" in line
    bare.fs.close()


def test_no_fence_is_logged_without_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with xaqueue.connect(tmp_path / "space", create=True) as connection:
        connection.enqueue("orders", b"body")
        connection.commit()
    open_log(tmp_path / "log").close()
    assert critical(caplog) == []


def test_a_decision_log_likewise(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    owned = open_log(tmp_path)

    def broken(path: str, *_: object) -> None:
        raise OSError(errno.EIO, "Input/output error", path)

    monkeypatch.setattr(owned._fs, "write_synced", broken)
    for _ in range(2):
        with pytest.raises(DecisionLogError):
            owned.decide(b"1", ["a", "b"])
    owned.close()
    (line,) = critical(caplog)
    assert line.startswith("[fenced] the decision log is fenced: OSError")


# What callers are told


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServerThread]:
    """A server that stays for a while once it is fenced."""
    monkeypatch.setattr(Server, "_leave_fenced", lambda _: None)
    xaqueue.connect(tmp_path / "space", create=True).close()
    server = ServerThread(tmp_path / "space", tmp_path / "socket")
    yield server
    server.stop()


def begin(connection: xaqueue.Connection, verb: str) -> None:
    """A new transaction, or a look."""
    match verb:
        case "two-phase":
            connection.tpc_begin(connection.xid(1, "new", "b"))
            connection.enqueue("orders", b"new")
            connection.tpc_prepare()
        case "dequeue":
            connection.dequeue("orders")
        case "recover":
            connection.tpc_recover()
        case _:
            connection.enqueue("orders", b"new")
            connection.flush() if verb == "flush" else connection.commit()


def check_told(connect: Callable[[], xaqueue.Connection]) -> None:
    """Whatever is begun anew, the resource failed; nothing invites to do the same work again."""
    for verb in ("commit", "flush", "two-phase", "dequeue", "recover"):
        connection = connect()
        for _ in range(2 if verb in ("dequeue", "recover") else 1):
            with pytest.raises(ResourceFailed, match="fenced"):
                begin(connection, verb)
        let_go(connection)


def let_go(connection: xaqueue.Connection) -> None:
    """Of what cannot be rolled back here any more."""
    for call in (connection.rollback, connection.tpc_rollback, connection.close):
        with suppress(ResourceFailed, ProtocolError):
            call()


def test_remote_callers_are_told_that_the_resource_failed(served: ServerThread) -> None:
    begun, waiting = xaqueue.connect(served.url), xaqueue.connect(served.url)
    begun.enqueue("orders", b"begun")
    begun.flush()
    told: list[BaseException] = []

    def wait() -> None:
        try:
            waiting.dequeue("orders", wait_s=PATIENCE_S)
        except BaseException as error:
            told.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    served.space.fence(OSError(errno.EIO, "Input/output error"))
    with pytest.raises(ResourceFailed, match="fenced"):
        begun.commit()
    thread.join(PATIENCE_S)
    assert isinstance(told[0], ResourceFailed)
    check_told(lambda: xaqueue.connect(served.url))
    let_go(begun)
    let_go(waiting)


def test_embedded_callers_likewise(tmp_path: Path) -> None:
    session = attach(tmp_path / "space", create_missing=True, watch=False)
    session.space.fence(OSError(errno.EIO, "Input/output error"))
    check_told(lambda: xaqueue.connect(tmp_path / "space"))
    session.close()


# A server


SERVE = """
import os, sys, time
from pathlib import Path
fdatasync, pwritev, trigger = os.fdatasync, os.pwritev, Path(sys.argv.pop(1))
def sync(fd):
    if trigger.exists():
        raise OSError(5, "Input/output error")
    fdatasync(fd)
def write(fd, chunks, offset, flags=0):
    if flags and trigger.exists():
        raise OSError(5, "Input/output error")
    return pwritev(fd, chunks, offset, flags)
os.fdatasync, os.pwritev = sync, write
from xaqueue.cli.main import main
main()
"""


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_server_ends_with_a_code_of_its_own(tmp_path: Path) -> None:
    root, path, trigger = tmp_path / "space", tmp_path / "socket", tmp_path / "trigger"
    xaqueue.connect(root, create=True).close()
    command = [sys.executable, "-c", SERVE, str(trigger), "serve", "--space", str(root), "--unix", str(path)]
    for code in (ExitCode.FENCED, ExitCode.OK):
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("serving")
            connection = xaqueue.connect(f"xaq+unix://{path}")
            connection.enqueue("orders", b"acknowledged")
            connection.commit()
            if code is ExitCode.FENCED:
                trigger.touch()
                connection.enqueue("orders", b"uncertain")
                with pytest.raises(ResourceFailed):
                    connection.commit()
                trigger.unlink()
            else:
                assert [message.body for message in connection.browse("orders")].count(b"acknowledged") == 2
            with suppress(Error):
                connection.close()
            if code is ExitCode.OK:
                process.terminate()
            stderr = process.communicate(timeout=PATIENCE_S)[1]
        assert process.returncode == code
        lines = [line for line in stderr.splitlines() if "fenced" in line]
        assert len(lines) == (2 if code is ExitCode.FENCED else 0), stderr
    assert "the space is fenced: OSError(5, 'Input/output error')" in " ".join(lines) or not lines
    assert inspect.status(root).trouble == ""


def test_one_that_hangs_ends_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its loop is in the kernel, or its close is."""
    monkeypatch.setattr(server_room, "HANG_S", 0.05)
    xaqueue.connect(tmp_path / "space", create=True).close()
    server = ServerThread(tmp_path / "space", tmp_path / "socket", limits=Limits(stop_s=0.05))
    hung, ended = threading.Event(), Ending()
    server.server.on_stop_overdue = ended
    server.server.loop.call_soon_threadsafe(hung.wait)
    server.space.fence(OSError(errno.EIO, "Input/output error"))
    assert ended.wait()
    hung.set()
    server.stop()


@pytest.mark.parametrize("is_fenced", [False, True])
def test_one_whose_session_waits_for_a_call_that_hangs_ends_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_fenced: bool
) -> None:
    monkeypatch.setattr(server_room, "HANG_S", 0.05)
    xaqueue.connect(tmp_path / "space", create=True).close()
    server = ServerThread(tmp_path / "space", tmp_path / "socket", limits=Limits(stop_s=0.05))
    begun, hung, ended, statvfs = threading.Event(), threading.Event(), Ending(), os.statvfs

    def hangs(path: Any) -> Any:
        if threading.current_thread().name.startswith("xaqueue-slow"):
            begun.set()
            hung.wait()
        return statvfs(path)

    def ask() -> None:
        with suppress(Error):
            remote_manager(server.url).call("metrics")

    monkeypatch.setattr(os, "statvfs", hangs)
    server.server.on_stop_overdue = ended
    asking = threading.Thread(target=ask)
    asking.start()
    try:
        assert begun.wait(PATIENCE_S)
        if is_fenced:
            server.space.fence(OSError(errno.EIO, "Input/output error"))
        else:
            server.server.loop.call_soon_threadsafe(server.server.stop)
        assert ended.wait() is is_fenced
    finally:
        hung.set()
    asking.join()
    server.stop()


LEAVE = """
import sys, threading
from xaqueue.cli import log_output, serve
serve.HANG_S = 0.1
threading.Thread(target=threading.Event().wait, name=sys.argv[1]).start()
log_output.begin(verbose=False)
with log_output.written_aside():
    sys.stdout.write("said")
    serve._leave(5)
sys.exit(6)
"""


@pytest.mark.parametrize("name", ["xaqueue-slow_0", "xaqueue-http_0", "asyncio_0"])
def test_a_process_ends_without_a_thread_that_hangs(name: str) -> None:
    done = subprocess.run([sys.executable, "-c", LEAVE, name], capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stdout) == (5, "said")
    assert "[disk-hangs] calls have not returned" in done.stderr


CLOSES = """
import os, sys, threading
from functools import partial
from xaqueue.rpc.server import peer
from xaqueue.core.engine.state import Space
peer.Limits = partial(peer.Limits, close_s=0.2)
Space.checkpoint = lambda self: threading.Event().wait()  # as a sync that hangs
from xaqueue.cli.main import main
main()
"""


def test_a_close_that_hangs_ends_and_loses_nothing(tmp_path: Path) -> None:
    """The server has a limit for it, in the loop that hangs, and says so."""
    root = tmp_path / "space"
    xaqueue.connect(root, create=True).close()
    words = [sys.executable, "-c", CLOSES, "serve", "--space", str(root)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert "serving" in process.stdout.readline()
        with xaqueue.connect(f"xaq+unix://{root / 'socket'}") as connection:
            connection.enqueue("orders", b"acknowledged")
        process.terminate()
        said = process.communicate(timeout=PATIENCE_S)[1]
    assert process.returncode == ExitCode.FENCED, said
    assert "[disk-hangs] calls have not returned: the process ends without them" in said
    with xaqueue.connect(root, server_s=0) as connection:
        assert [message.body for message in connection.browse("orders")] == [b"acknowledged"]
