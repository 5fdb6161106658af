"""A server in a thread of this process: as fast to start as a space is to open, and its space can be looked at."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import xaqueue
from support.contract_connection import QUEUES
from xaqueue.connection import Connection
from xaqueue.core.engine import heuristics
from xaqueue.core.engine.state import Space
from xaqueue.core.owner import definitions_file
from xaqueue.core.owner import open as attach_room
from xaqueue.core.storage.ids import fresh_id
from xaqueue.core.storage.owner_file import OwnerFile
from xaqueue.features.opening import create
from xaqueue.rpc.client.manager import remote_manager
from xaqueue.rpc.server.listeners import ListenConfig
from xaqueue.rpc.server.peer import Limits
from xaqueue.rpc.server.server import Server
from xaqueue.xid import Xid

PATIENCE_S = 60.0


class ServerThread:
    """Serves ``root`` at ``path`` until ``stop`` or ``kill``."""

    def __init__(
        self,
        root: Path,
        path: Path,
        *,
        sync: str | None = None,
        limits: Limits | None = None,
        listen: ListenConfig | None = None,
        opens: bool = True,
        lock: OwnerFile | None = None,
        verifies: bool = False,
    ) -> None:
        """opens: returns once the space is open; else as soon as it listens. lock: that a standby has taken."""
        self.root = root
        self.path = path
        self._made: Server | None = None
        self._failure: BaseException | None = None
        ready = threading.Event()

        async def main() -> None:
            server = Server(root, sync=sync, limits=limits, lock=lock)
            server.verifies = verifies
            await server.recover()
            try:
                await server.listen(replace(listen or ListenConfig(), unix=(path,)))
            except BaseException:
                await server.give_up()
                raise
            self._made = server
            if not opens:
                ready.set()
            await server.serve(ready.set)

        def run() -> None:
            try:
                asyncio.run(main())
            except BaseException as error:
                self._failure = error
            finally:
                ready.set()

        self._thread = threading.Thread(target=run, name="server")
        self._thread.start()
        assert ready.wait(PATIENCE_S)
        if self._failure is not None:
            raise self._failure

    @property
    def url(self) -> str:
        return f"xaq+unix://{self.path}"

    @property
    def server(self) -> Server:
        assert self._made is not None
        return self._made

    @property
    def space(self) -> Space:
        return self.server.space

    def call(self, call: Callable[[], Any]) -> Any:
        """The result of a call in the loop's thread."""
        done = threading.Event()
        results: list[Any] = []

        def perform() -> None:
            results.append(call())
            done.set()

        self.server.loop.call_soon_threadsafe(perform)
        assert done.wait(PATIENCE_S)
        return results[0]

    def stop(self) -> None:
        if self._thread.is_alive():
            self.server.loop.call_soon_threadsafe(self.server.stop)
            self._thread.join(PATIENCE_S)
            assert not self._thread.is_alive()

    def kill(self, *, keeps_lock: bool = False) -> None:
        """The memory is gone, the kernel's cache and the lock on the directory are as a dead process leaves them.

        keeps_lock: as one that is stopped leaves it, which only a takeover ends.
        """

        def die() -> None:
            attached = attach_room._attached.pop(self.root.resolve(), None)
            if attached is not None:
                if attached.watch is not None:
                    attached.watch.stop()
                attached.space.abandon()
                if not keeps_lock:
                    attached.held.lock.release()
                if attached.watchdog is not None:
                    attached.watchdog.stop()
            for session in self.server.sessions:
                session._transport.abort()

        def stop_background() -> None:
            attached = attach_room._attached.get(self.root.resolve())
            for thread in attached.background if attached is not None else []:
                thread.stop()

        stop_background()
        self.call(die)
        self.stop()


CONNECT_S = 1.0
"""For how long a killed server is looked for."""


@contextmanager
def serving(root: Path) -> Iterator[ServerThread]:
    """A server of this space until the end of the block, at a short path: a socket's has 107 bytes at most."""
    with tempfile.TemporaryDirectory(prefix="xaq-") as short:
        thread = ServerThread(root, Path(short) / "socket")
        try:
            yield thread
        finally:
            thread.stop()


class RemoteHost:
    """The space is opened by a server; every connection is a session of its own there."""

    def __init__(self, root: Path, sync: str) -> None:
        self.root = root
        self.sync = sync
        self._connections: list[Connection] = []
        self._server: ServerThread | None = None
        self._guard = threading.Lock()
        create(root)
        definitions_file.write_definitions(root, QUEUES)

    @property
    def server(self) -> ServerThread:
        with self._guard:
            if self._server is None:
                self._server = ServerThread(self.root, self.root.with_name("socket"), sync=self.sync)
            return self._server

    def connect(self) -> Connection:
        connection = Connection(remote_manager(self.server.url, connect_s=CONNECT_S), fresh_id)
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
            socket = self._connections.pop()._manager._socket  # type: ignore[attr-defined]
            if socket is not None:
                socket.close()

    def decide(self, xid: Xid, commit: bool) -> None:
        heuristics.decide(self.server.space, xid, commit, "test")


RUN = [sys.executable, "-c", "from xaqueue.cli.main import main; main()"]


class Process:
    """``xaqueue serve`` in a process of its own."""

    def __init__(self, root: Path, *options: str) -> None:
        self.path = root.with_name("socket")
        words = [*RUN, "serve", "--space", str(root), "--unix", str(self.path), *options]
        self._process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert "serving" in self._process.stdout.readline()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def resident_bytes(self) -> int:
        pages = Path(f"/proc/{self._process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def end(self, number: int) -> int:
        """The exit code."""
        self._process.send_signal(number)
        return self._process.wait(PATIENCE_S)

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdout is not None
        self._process.kill()
        self._process.wait(PATIENCE_S)
        self._process.stdout.close()


STRICT = "FDATASYNC;DSYNC"


class EmbeddedHost:
    """The space is opened by this process, once for all connections."""

    def __init__(self, root: Path, sync: str = STRICT) -> None:
        self.root = root
        self.sync = sync
        self._connections: list[Connection] = []
        create(root)
        definitions_file.write_definitions(root, QUEUES)

    def connect(self) -> Connection:
        connection = xaqueue.connect(self.root, sync=self.sync)
        self._connections.append(connection)
        return connection

    @property
    def space(self) -> Space:
        return attach_room._attached[self.root.resolve()].space

    def restart(self) -> None:
        while self._connections:
            self._connections.pop().close()

    def kill(self) -> None:
        """The memory is gone, the kernel's cache and the lock on the directory are as a dead process leaves them."""
        attached = attach_room._attached.pop(self.root.resolve(), None)
        if attached is not None:
            if attached.watch is not None:
                attached.watch.stop()
            for thread in attached.background:
                thread.stop()
            attached.space.abandon()
            attached.held.lock.release()
        self._connections.clear()

    def decide(self, xid: Xid, commit: bool) -> None:
        heuristics.decide(self.space, xid, commit, "test")
