"""A pair of servers over one space, and clients that go on with whichever has it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import Empty, Queue

import xaqueue
from support.served import PATIENCE_S, RUN
from xaqueue.connection import Connection
from xaqueue.errors import Error, UnknownXid
from xaqueue.xid import Xid

TAKEOVER_S = 2.0
FENCED = 5
"""The exit code of a server that lost the space."""


class Server:
    """One of the two, which stands by where the other one has the space."""

    def __init__(self, root: Path, port: int, *options: str) -> None:
        self.port = port
        words = ["serve", "--space", str(root), "--standby", "--takeover-after", str(TAKEOVER_S)]
        words += ["--tcp", f"127.0.0.1:{port}", "--insecure", *options]
        self._process = subprocess.Popen(
            [*RUN, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "LC_ALL": "C"}
        )
        self._lines: Queue[str] = Queue()
        self.said = ""
        """On its standard error."""
        for read in (self._read, self._listen):
            threading.Thread(target=read, daemon=True).start()
        self.wait_for("standing by")

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)

    def _listen(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.said += line

    def wait_for(self, word: str) -> None:
        while word not in self._next():
            pass

    def _next(self) -> str:
        try:
            return self._lines.get(timeout=PATIENCE_S)
        except Empty:
            raise AssertionError(f"the server at {self.port} says no more: {self.said}") from None

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def code(self) -> int:
        return self._process.wait(PATIENCE_S)

    def close(self) -> None:
        for number in (signal.SIGCONT, signal.SIGKILL):
            with suppress(ProcessLookupError):
                self._process.send_signal(number)
        self._process.wait(PATIENCE_S)
        for stream in (self._process.stdout, self._process.stderr):
            assert stream is not None
            stream.close()


class Pair:
    """The first has the space, the second stands by."""

    def __init__(self, root: Path, *options: str) -> None:
        self._root, self._options = root, options
        ports = free_ports(2)
        self.url = f"xaq://{','.join(f'127.0.0.1:{port}' for port in ports)}?timeout_s=2"
        self.owner = Server(root, ports[0], *options)
        self.owner.wait_for("serving")
        self.standby = Server(root, ports[1], *options)

    def fail_over(self, number: int) -> Server:
        """The owner gets this signal, and the standby the space; the former owner is returned."""
        former = self.owner
        former.signal(number)
        self.standby.wait_for("serving")
        self.owner = self.standby
        return former

    def stand_by(self, former: Server) -> None:
        """Whoever is over is started again."""
        former.close()
        self.standby = Server(self._root, former.port, *self._options)

    def close(self) -> None:
        for server in (self.owner, self.standby):
            server.close()


def free_ports(count: int) -> list[int]:
    made = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in made]
    for one in made:
        one.close()
    return ports


class Client(threading.Thread):
    """Moves messages by two-phase transactions, and decides each as a transaction manager does: what it has decided is
    committed, however often it must ask; what it has not is rolled back."""

    def __init__(self, url: str, name: str) -> None:
        super().__init__(name=name)
        self._url = url
        self.stopped = False
        self.failure: BaseException | None = None
        self.added: list[bytes] = []
        """What it decided to add; and in the same transactions it takes."""
        self.taken: list[bytes] = []
        self.errors: Counter[str] = Counter()

    def run(self) -> None:
        try:
            number, self._connection = 0, self._connect()
            while not self.stopped:
                number += 1
                self._transact(Xid(1, f"{self.name}.{number}".encode(), b""))
            self._connection.close()
        except BaseException as error:
            self.failure = error

    def _transact(self, xid: Xid) -> None:
        try:
            self._connection.tpc_begin(xid)
            self._connection.enqueue("out", xid[1])
            message = self._connection.dequeue("in")
            self._connection.tpc_prepare()
        except Error as error:
            self.errors[type(error).__name__] += 1
            self._finish(xid, lambda connection: connection.tpc_rollback(xid))
            return
        self.added.append(xid[1])
        if message is not None:
            self.taken.append(message.body)
        try:
            self._connection.tpc_commit()
        except Error as error:
            self.errors[type(error).__name__] += 1
            self._finish(xid, lambda connection: connection.tpc_commit(xid))

    def _finish(self, xid: Xid, verb: Callable[[Connection], None]) -> None:
        """Whoever has the space is asked whether it is in doubt, until there is an answer."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            with suppress(Error):
                self._connection.close()
            try:
                self._connection = self._connect()
                if xid in self._connection.tpc_recover():
                    with suppress(UnknownXid):
                        verb(self._connection)
                    continue
            except Error:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
            else:
                return

    def _connect(self) -> Connection:
        return xaqueue.connect(self._url)


def judge(root: Path, clients: list[Client], stocked: int) -> list[str]:
    """What is lost or doubled, once nobody has the space."""
    with xaqueue.connect(root) as connection:
        decided = {body for client in clients for body in client.added}
        for xid in connection.tpc_recover():  # as a recovering manager does of what it has not decided
            assert xid[1] not in decided, "a decided branch is in doubt still"
            connection.tpc_rollback(xid)
        found = {queue: Counter[bytes]() for queue in ("in", "out")}
        for queue, bodies in found.items():
            while (message := connection.dequeue(queue)) is not None:
                bodies[message.body] += 1
        connection.commit()
    wanted_in = Counter(b"%d" % number for number in range(stocked))
    wanted_in.subtract(body for client in clients for body in client.taken)
    wanted_out = Counter(body for client in clients for body in client.added)
    return [
        f"{queue}: {body!r} is there {found[queue][body]} times, not {wanted[body]}"
        for queue, wanted in (("in", wanted_in), ("out", wanted_out))
        for body in {*wanted, *found[queue]}
        if found[queue][body] != wanted[body]
    ]
