"""Who may use a connection, and what becomes of one that nobody uses any more: threads, forks, the collector, a server
that is gone, and a directory that a server has."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import xaqueue
from support.contract_connection import PATIENCE_S, bodies, drain, put
from support.patience import eventually
from support.served import ServerThread
from xaqueue import errors
from xaqueue.connection import Connection
from xaqueue.core.owner import open
from xaqueue.errors import InterfaceError, InvalidArgument, OperationalError, SpaceInUse
from xaqueue.features import opening
from xaqueue.rpc.client.asyncio import AsyncConnection
from xaqueue.tm.manager import TransactionManager
from xaqueue.xa import Outcome

AT_ONCE_S = 5.0
"""Far less than a connection is tried for, however slow the machine is."""

Connect = Callable[[], Connection]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    opening.create(tmp_path / "space", any_queue=True, sync="NONE")
    return tmp_path / "space"


@pytest.fixture
def server(root: Path, tmp_path: Path) -> Iterator[ServerThread]:
    made = ServerThread(root, tmp_path / "socket")
    yield made
    made.stop()


@pytest.fixture(params=["embedded", "remote"])
def connect(request: pytest.FixtureRequest, root: Path) -> Connect:
    place = root if request.param == "embedded" else request.getfixturevalue("server").url
    return lambda: xaqueue.connect(place)


def in_thread(pool: ThreadPoolExecutor, call: Callable[[], Any]) -> Any:
    return pool.submit(call).result(PATIENCE_S)


# Threads


def test_work_of_another_thread_is_refused_and_nothing_is_disturbed(connect: Connect) -> None:
    with connect() as connection, ThreadPoolExecutor(1) as pool:
        put(connection, b"there")
        assert connection.dequeue("orders") is not None
        calls: list[Callable[[], object]] = [
            lambda: connection.enqueue("orders", b"another's"),
            lambda: connection.dequeue("orders"),
            connection.commit,
            connection.rollback,
        ]
        for call in calls:
            with pytest.raises(InterfaceError, match="another thread"):
                in_thread(pool, call)
        connection.enqueue("orders", b"mine")
        connection.commit()
        assert in_thread(pool, lambda: bodies(connection)) == [b"mine"]


def test_a_call_in_another_call_is_refused(connect: Connect) -> None:
    connection, other, waits = connect(), connect(), threading.Event()

    def wait() -> bytes:
        with connection.transaction():
            waits.set()
            message = connection.dequeue("orders", wait_s=None)
            assert message is not None
            return message.body

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(wait)
        assert waits.wait(PATIENCE_S)
        time.sleep(0.05)
        for call in (lambda: connection.outcome(connection.xid(1, "", "")), connection.tpc_recover, connection.close):
            with pytest.raises(InterfaceError, match="in a call already"):
                call()
        put(other, b"x")
        assert waiting.result(PATIENCE_S) == b"x"
    connection.close()
    other.close()


def test_a_connection_is_handed_on_between_transactions(connect: Connect) -> None:
    with connect() as connection, ThreadPoolExecutor(1) as pool, ThreadPoolExecutor(1) as another:
        for number, thread in enumerate((pool, another, pool)):
            thread.submit(put, connection, b"%d" % number).result(PATIENCE_S)
        assert bodies(connection) == [b"0", b"1", b"2"]


def test_a_two_phase_transaction_is_finished_by_any_thread(connect: Connect) -> None:
    with connect() as connection, ThreadPoolExecutor(1) as pool, ThreadPoolExecutor(1) as another:
        connection.tpc_begin(connection.xid(1, "x", ""))
        connection.enqueue("orders", b"x")
        assert in_thread(pool, connection.tpc_prepare)
        in_thread(another, connection.tpc_commit)
        assert bodies(connection) == [b"x"]


def test_what_a_dead_thread_has_begun_is_anybodys(connect: Connect) -> None:
    with connect() as connection:
        thread = threading.Thread(target=connection.enqueue, args=("orders", b"x"))
        thread.start()
        thread.join()
        connection.commit()
        assert bodies(connection) == [b"x"]


def test_a_living_thread_with_the_number_of_the_dead_one_is_another(connect: Connect) -> None:
    """The system gives numbers out again, mostly at once."""
    connection, over = connect(), threading.Event()
    dead = threading.Thread(target=connection.enqueue, args=("orders", b"x"))
    dead.start()
    dead.join()
    living: list[threading.Thread] = []
    while not living or (living[-1].ident != dead.ident and len(living) < 100):
        living.append(threading.Thread(target=over.wait))
        living[-1].start()
    try:
        connection.commit()
    finally:
        over.set()
        for thread in living:
            thread.join()
    assert bodies(connection) == [b"x"]
    connection.close()


def test_participants_that_prepare_side_by_side(root: Path, tmp_path: Path) -> None:
    participants = {"one": lambda: xaqueue.connect(root), "other": lambda: xaqueue.connect(root)}
    with TransactionManager(tmp_path / "log", participants) as manager:
        for _ in range(3):
            with manager.transaction() as tx:
                tx["one"].enqueue("a", b"x")
                tx["other"].enqueue("b", b"x")
    with xaqueue.connect(root) as connection:
        assert (len(bodies(connection, "a")), len(bodies(connection, "b"))) == (3, 3)


@pytest.mark.parametrize("place", ["embedded", "remote"])
def test_a_wait_without_an_end_is_interrupted_by_ctrl_c(root: Path, tmp_path: Path, place: str) -> None:
    server = ServerThread(root, tmp_path / "socket") if place == "remote" else None
    script = """
        import sys, xaqueue
        with xaqueue.connect(sys.argv[1]) as connection:
            try:
                print("waits", flush=True)
                connection.dequeue("orders", wait_s=None)
            except KeyboardInterrupt:
                print("interrupted", flush=True)
                connection.rollback()
            connection.enqueue("orders", b"goes on")
    """
    try:
        arguments = [sys.executable, "-c", textwrap.dedent(script), server.url if server else str(root)]
        with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as waiting:
            assert waiting.stdout is not None
            assert waiting.stdout.readline() == "waits\n"
            time.sleep(0.3)
            waiting.send_signal(signal.SIGINT)
            assert waiting.communicate(timeout=PATIENCE_S)[0] == "interrupted\n"
        assert waiting.returncode == 0
        with xaqueue.connect(server.url if server else root) as connection:
            assert bodies(connection) == [b"goes on"]
    finally:
        if server is not None:
            server.stop()


# Forks


def test_a_forked_child_is_refused_and_the_parent_goes_on(connect: Connect) -> None:
    """Whatever the child calls, closes, collects or leaves by its end."""
    with connect() as connection:
        connection.enqueue("orders", b"the parent's")
        browsing = connection.browse("orders")
        read, write = os.pipe()
        child = os.fork()
        if not child:
            try:
                os.write(write, in_child(connection, browsing).encode())
                connection = None  # type: ignore[assignment]
                gc.collect()
            finally:
                os._exit(0)
        os.close(write)
        assert os.waitpid(child, 0)[1] == 0
        with os.fdopen(read) as told:
            assert told.read() == "ResourceFailed " * 7 + "closed"
        connection.enqueue("orders", b"more of it")
        connection.commit()
        assert bodies(connection) == [b"the parent's", b"more of it"]


def in_child(connection: Connection, browsing: Iterator[Any]) -> str:
    told = ""
    calls: list[Callable[[], object]] = [
        lambda: connection.enqueue("orders", b"the child's"),
        connection.commit,
        connection.rollback,
        lambda: list(connection.browse("orders")),
        lambda: next(browsing),
        lambda: connection.outcome(connection.xid(1, "", "")),
        lambda: connection.__exit__(None, None, None),
    ]
    for call in calls:
        try:
            call()
        except Exception as error:
            told += f"{type(error).__name__ if 'connect again' in str(error) else error} "
    connection.close()
    return told + "closed"


# Those that nobody uses any more


def test_a_connection_that_is_collected_lets_go_of_all_it_had(connect: Connect, root: Path) -> None:
    other = connect()
    put(other, b"x")
    dropped = connect()
    assert dropped.dequeue("orders") is not None
    with pytest.warns(ResourceWarning, match="never closed, with work undone"):  # noqa: PT031
        del dropped
        gc.collect()
    with other.transaction():
        message = other.dequeue("orders", wait_s=PATIENCE_S)
    assert message is not None
    other.close()


ENDS = {
    "": "never closed, with work undone: 1 enqueues",
    "connection.close()": "closed with work undone: 1 enqueues",
    "connection.commit()": "",
    "with connection: pass": "",
    "connection.rollback()": "",
    "try: 1 / 0\nexcept ZeroDivisionError: connection.close()": "",
    "try:\n    with connection: 1 / 0\nexcept ZeroDivisionError: pass": "",
    "connection.commit()\nxid = connection.xid(1, 'x', '')\nconnection.tpc_begin(xid)\n"
    "connection.enqueue('orders', b'2')\nconnection.tpc_prepare()\nconnection.close()": "",
}
"""What a program does once it has enqueued, and what is lost by that, as Python says it without any option."""


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("place", ["embedded", "remote"])
def test_a_commit_that_was_forgotten_is_said(place: str, end: str, request: pytest.FixtureRequest, root: Path) -> None:
    url = str(root) if place == "embedded" else request.getfixturevalue("server").url
    script = f"import xaqueue\nconnection = xaqueue.connect({url!r})\nconnection.enqueue('orders', b'1')\n{end}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr.startswith(f"[work-undone] the connection was {ENDS[end]}" if ENDS[end] else "")
    assert done.stderr.count("\n") == bool(ENDS[end])


def test_a_space_whose_connections_are_collected_is_free_again(root: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            xaqueue.connect(root)
        gc.collect()
    eventually(lambda: not open.is_owned(root))


def test_an_async_connection_that_is_collected_ends_its_session(server: ServerThread) -> None:
    async def work() -> None:
        dropped = await xaqueue.connect_async(server.url)
        await dropped.enqueue("orders", b"x")
        await dropped.flush()
        with pytest.warns(ResourceWarning, match="never closed"):  # noqa: PT031
            del dropped
            gc.collect()
        while server.server.sessions:
            await asyncio.sleep(0.001)

    asyncio.run(asyncio.wait_for(work(), PATIENCE_S))


@pytest.mark.parametrize("ends", ["work", "tpc_end", "prepare", "one phase", "prepared"])
def test_closing_does_not_wait_for_a_server_that_is_gone(root: Path, tmp_path: Path, ends: str) -> None:
    server = ServerThread(root, tmp_path / "socket")
    connection = xaqueue.connect(server.url)
    connection.tpc_begin(connection.xid(1, "x", ""))
    connection.enqueue("orders", b"x")
    connection.flush()
    if ends == "tpc_end":
        connection.tpc_end()
        connection.flush()
    if ends == "prepared":
        connection.tpc_prepare()
    connection._manager._connect_s = 0.1  # type: ignore[attr-defined]
    server.kill()
    if ends in ("prepare", "one phase"):
        with pytest.raises(OperationalError):
            (connection.tpc_prepare if ends == "prepare" else connection.tpc_commit)()
    connection._manager._connect_s = 10 * AT_ONCE_S  # type: ignore[attr-defined]
    began = time.monotonic()
    connection.close()
    assert time.monotonic() - began < AT_ONCE_S


# Where it connects to


def test_a_directory_that_is_served_is_reached_through_its_server(root: Path) -> None:
    with serving(root) as url, xaqueue.connect(root) as connection:
        assert connection._manager._socket is not None  # type: ignore[attr-defined]
        put(connection, b"x")
        with xaqueue.connect(f'datadir="{root}",qspace="space"', create=True, sync="NONE") as other:
            assert drain(other) == [b"x"]
        with pytest.raises(InvalidArgument, match="served with NONE"):
            xaqueue.connect(root, sync="FSYNC")
        with pytest.raises(xaqueue.SpaceError, match="not 'other'"):
            xaqueue.connect(f'datadir="{root}",qspace="other"')
        assert url
    with xaqueue.connect(root, server_s=0) as connection:
        assert connection.outcome(connection.xid(1, "", "")) is Outcome.UNKNOWN


class serving:
    """A server in a process of its own."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def __enter__(self) -> str:
        command = [sys.executable, "-m", "xaqueue", "serve", "--space", str(self._root)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.communicate(timeout=PATIENCE_S)


def test_a_space_in_use_says_how_it_may_be_shared(root: Path) -> None:
    script = "import sys, xaqueue; c = xaqueue.connect(sys.argv[1]); print('open', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", script, str(root)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "open\n"
        with pytest.raises(SpaceInUse) as told:
            xaqueue.connect(root)
        owner.communicate("")
    assert f"`xaqueue serve --space {root}`" in str(told.value)
    assert f"xaq+unix://{root}/socket" in str(told.value)
    assert str(owner.pid) in str(told.value)


@pytest.mark.parametrize("given", [b"dir", None, 42, "", [], "xaq:/host:1", "xaq:///host", "file:///x", "amqp://host/"])
def test_what_is_no_place_is_refused(given: Any) -> None:
    with pytest.raises(InvalidArgument):
        xaqueue.connect(given)


def test_a_server_opens_its_space_itself(server: ServerThread) -> None:
    with pytest.raises(InvalidArgument, match="whoever serves"):
        xaqueue.connect(server.url, create=True)
    with pytest.raises(InvalidArgument, match="whoever serves"):
        xaqueue.connect(server.url, sync="NONE")


# What is exported


def test_every_error_that_a_docstring_names_is_exported() -> None:
    kinds = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, errors.Error)}
    assert kinds <= set(xaqueue.__all__)
    assert all(getattr(xaqueue, name) is getattr(errors, name) for name in kinds)
    texts = [
        inspect.getdoc(method) or ""
        for kind in (Connection, AsyncConnection, TransactionManager)
        for _, method in inspect.getmembers(kind)
        if callable(method)
    ]
    texts += [inspect.getdoc(getattr(xaqueue, name)) or "" for name in xaqueue.__all__]
    named = {
        name
        for text in texts
        for raises in re.findall(r"[Rr]aises([^.]*)", text)
        for name in re.findall(r"\b[A-Z][a-z]+(?:[A-Z][a-z]+)+\b", raises)
    }
    assert len(named) > 8
    assert {name for name in named if not hasattr(xaqueue, name)} <= {"ResourceWarning", "KeyboardInterrupt"}


# A call that fails or is interrupted at an odd moment


@pytest.mark.parametrize("error", [xaqueue.ResourceFailed("fenced"), xaqueue.ConnectionLost("gone")])
def test_a_prepare_that_fails_with_its_end_can_be_rolled_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: xaqueue.Error
) -> None:
    """The end is a part of it, and was not done either."""
    with closing(xaqueue.connect(tmp_path / "s", create=True)) as connection:
        connection.tpc_begin(connection.xid(1, "g", "b"))
        connection.enqueue("q", b"1")

        def prepare(*_: object, **__: object) -> None:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(connection._manager, "prepare", prepare)
            with pytest.raises(type(error)):
                connection.tpc_prepare()
        connection.tpc_rollback()
        assert connection.tpc_recover() == []
        assert connection.dequeue("q") is None


def interrupted_behind(manager: object, verb: str, patch: pytest.MonkeyPatch) -> None:
    """As an interrupt that waited until the step of this verb was over."""
    real = getattr(manager, verb)

    def late(*arguments: object, **options: object) -> None:
        patch.undo()
        real(*arguments, **options)
        raise KeyboardInterrupt

    patch.setattr(manager, verb, late)


def test_a_prepare_that_was_interrupted_may_be_called_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(xaqueue.connect(tmp_path / "s", create=True)) as connection:
        xid = connection.xid(1, "g", "b")
        connection.tpc_begin(xid)
        connection.enqueue("q", b"1")
        interrupted_behind(connection._manager, "prepare", monkeypatch)
        with pytest.raises(KeyboardInterrupt):
            connection.tpc_prepare()
        assert connection.outcome(xid) is Outcome.IN_DOUBT
        assert connection.tpc_prepare()
        connection.tpc_commit()
        assert [message.body for message in connection.browse("q")] == [b"1"]


def test_a_commit_that_was_interrupted_leaves_the_connection_usable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(xaqueue.connect(tmp_path / "s", create=True)) as connection:
        connection.enqueue("q", b"1")
        interrupted_behind(connection._manager, "commit", monkeypatch)
        with pytest.raises(KeyboardInterrupt):
            connection.commit()
        with pytest.raises(xaqueue.UnknownXid):
            connection.commit()
        connection.enqueue("q", b"2")
        connection.commit()
        assert [message.body for message in connection.browse("q")] == [b"1", b"2"]
