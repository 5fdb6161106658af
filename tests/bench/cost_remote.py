"""What one two-phase transaction through a server costs, in Python calls that a busy machine does not change.

    python tests/bench/cost_remote.py [DIR]     DIR: on a memory file system (default /dev/shm), where a sync is free

Prints, for each level and each of enqueue and dequeue, how many of xaqueue's own Python functions one transaction of
one message of 1 KiB calls: in the client's thread, and in those of a server in this process that serve its sessions
(the loop's, and the ones that lead rounds of syncs for it; not those that follow behind the journal).
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import xaqueue
from xaqueue.connection import Connection
from xaqueue.rpc.server.listeners import ListenConfig
from xaqueue.rpc.server.server import Server

HOME = str(Path(xaqueue.__file__).parent)
WARM, COUNTED = 50, 20
LEVELS = ("JOURNAL", "NONE")


class CallCounter:
    """The profile function of threads: counts calls of xaqueue's functions in those of these names, while it is on."""

    def __init__(self, *threads: str) -> None:
        self._threads = threads
        self.calls = 0
        self.on = False

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if self.on and event == "call" and frame.f_code.co_filename.startswith(HOME):
            self.calls += threading.current_thread().name.startswith(self._threads)


class ServedSpace:
    """A server in a thread, whose calls are counted."""

    def __init__(self, root: Path, counter: CallCounter) -> None:
        self.root = root
        self._ready = threading.Event()
        threading.setprofile(counter)
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="server")
        self._thread.start()
        self._ready.wait()

    @property
    def url(self) -> str:
        return self._server.endpoint

    async def _serve(self) -> None:
        self._server = Server(self.root)
        await self._server.recover()
        await self._server.listen(ListenConfig(unix=(self.root / "socket",)))
        await self._server.serve(self._ready.set)

    def stop(self) -> None:
        self._server.loop.call_soon_threadsafe(self._server.stop)
        self._thread.join()


def transaction(connection: Connection, verb: str) -> Callable[[int], None]:
    body = os.urandom(1024)

    def one(number: int) -> None:
        connection.tpc_begin(connection.xid(1, f"{verb}{number}", "b"))
        if verb == "enqueue":
            connection.enqueue("bench", body)
        else:
            assert connection.dequeue("bench") is not None
        connection.tpc_prepare()
        connection.tpc_commit()

    return one


def counts(one: Callable[[int], None], server: CallCounter) -> tuple[float, float]:
    """Calls of the client and of the server, a transaction."""
    for number in range(WARM):
        one(number)
    client, before = CallCounter("MainThread"), server.calls
    server.on = client.on = True
    sys.setprofile(client)
    for number in range(WARM, WARM + COUNTED):
        one(number)
    sys.setprofile(None)
    server.on = False
    return client.calls / COUNTED, (server.calls - before) / COUNTED


def main(place: Path) -> None:
    for level in LEVELS:
        root = place / level
        xaqueue.connect(root, create=True, sync=level).close()
        counter = CallCounter("server", "xaqueue-slow")
        served = ServedSpace(root, counter)
        try:
            connection = xaqueue.connect(served.url)
            for verb in ("enqueue", "dequeue"):
                client, server = counts(transaction(connection, verb), counter)
                sys.stdout.write(f"{level:8} {verb:8} client {client:5.0f} calls   server {server:5.0f} calls\n")
            connection.close()
        finally:
            served.stop()


if __name__ == "__main__":
    made = tempfile.mkdtemp(dir=sys.argv[1] if len(sys.argv) > 1 else "/dev/shm")
    try:
        main(Path(made))
    finally:
        shutil.rmtree(made, ignore_errors=True)
