"""A server in a process of its own over a fresh space, measured through clients in processes of their own.

It is told apart from what it is compared with by nothing but its name: to those who run the clients it is one more
peer. The bench asks it by a line on its input what it has used so far; at the end of its input it stops, so that none
outlives its bench.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Coroutine, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path

from bench.peers.peer import Client
from xaqueue.connection import Connection
from xaqueue.core.storage.ids import fresh_id
from xaqueue.errors import OperationalError
from xaqueue.features.opening import create
from xaqueue.rpc.client.manager import remote_manager
from xaqueue.rpc.server.listeners import ListenConfig
from xaqueue.rpc.server.server import Server

QUEUE = "bench"
STOP_S = 60.0


@dataclass(frozen=True, slots=True)
class Used:
    """What a server has used since it was started: processor time, rounds of its log, steps that shared them."""

    cpu_s: float
    rounds: int
    steps: int


def connect(place: str) -> ServerClient:
    return ServerClient(place)


class ServerPeer:
    """A started server. Raises OperationalError where it does not come up; why, it has said on stderr."""

    two_phase = True
    processes = True

    def __init__(self, root: Path, flags: str) -> None:
        """``root``: an empty directory."""
        self.name = f"server, {flags}"
        self.durability = flags
        self.survives_power_loss = flags != "NONE"
        create(root, name=QUEUE, any_queue=True)
        with ExitStack() as stack:
            # the path of a socket may have no more than 107 bytes
            sockets = stack.enter_context(tempfile.TemporaryDirectory(prefix="xaqueue-bench-"))
            self.place = f"xaq+unix://{sockets}/socket"
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, os.fspath(root), f"{sockets}/socket", flags],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            stack.callback(self._end)
            self._answer()
            self._stack = stack.pop_all()

    def connect(self) -> Client:
        return connect(self.place)

    def used(self) -> Used:
        """So far."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self._answer()

    def server_cpu_s(self) -> float:
        return self.used().cpu_s

    def clear(self) -> None:
        """A fresh space is what empties it."""

    def close(self) -> None:
        self._stack.close()

    def _answer(self) -> Used:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise OperationalError(f"the server that was to be measured ended with {self._process.wait()}")
        return Used(**json.loads(line))

    def _end(self) -> None:
        try:
            self._process.communicate(timeout=STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()


class ServerClient:
    """One session with the server."""

    def __init__(self, place: str) -> None:
        self._manager = remote_manager(place)
        self._connection = Connection(self._manager, fresh_id)
        self._name = f"{os.getpid()}."
        self._numbers = count()

    @property
    def round_trips(self) -> int:
        """How many there were so far."""
        return self._manager.requests

    def enqueue(self, bodies: Sequence[bytes]) -> None:
        connection = self._begin()
        for body in bodies:
            connection.enqueue(QUEUE, body)
        connection.tpc_prepare()
        connection.tpc_commit()

    def dequeue(self, messages: int) -> int:
        connection = self._begin()
        taken = 0
        while taken < messages and connection.dequeue(QUEUE) is not None:
            taken += 1
        if taken:
            connection.tpc_prepare()
            connection.tpc_commit()
        else:
            connection.tpc_rollback()
        return taken

    def echo(self, body: bytes) -> None:
        self._manager.call("echo", body)

    def close(self) -> None:
        self._connection.close()

    def _begin(self) -> Connection:
        self._connection.tpc_begin(self._connection.xid(1, f"{self._name}{next(self._numbers)}", QUEUE))
        return self._connection


async def serve(root: Path, path: Path, flags: str) -> None:
    """What the process does until its input ends."""
    server = Server(root, sync=flags)
    await server.recover()
    await server.listen(ListenConfig(unix=(path,)))

    def say() -> None:
        log = server.space.log
        print(json.dumps(asdict(Used(time.process_time(), log.rounds, log.steps))), flush=True)

    loop, questions = asyncio.get_running_loop(), sys.stdin.fileno()

    def asked() -> None:
        if os.read(questions, 1):
            say()
        else:
            loop.remove_reader(questions)
            server.stop()

    loop.add_reader(questions, asked)
    await server.serve(say)


def run(main: Coroutine[None, None, None]) -> None:
    """In the event loop that a server has."""
    try:
        import uvloop
    except ModuleNotFoundError:
        asyncio.run(main)
    else:
        uvloop.run(main)


if __name__ == "__main__":
    run(serve(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]))
