"""A pair of servers over one space, and clients that go on with whichever has it."""

from __future__ import annotations

import itertools
import os
import random
import signal
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
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


class Program:
    """A command of ours in a process of its own."""

    def __init__(self, *words: str, within: Sequence[str] = ()) -> None:
        """within: words before its command."""
        self._name = " ".join(words)
        command = [*within, *RUN, *words]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self._lines: Queue[str] = Queue()
        self.said = ""
        """On its standard error."""
        for read in (self._read, self._listen):
            threading.Thread(target=read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)

    def _listen(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.said += line

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_for(self, word: str) -> None:
        while word not in self._next():
            pass

    def _next(self) -> str:
        try:
            return self._lines.get(timeout=PATIENCE_S)
        except Empty:
            raise AssertionError(f"{self._name} says no more: {self.said}") from None

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


class Server(Program):
    """One of the two, which stands by where the other one has the space."""

    def __init__(self, root: Path, place: str, within: Sequence[str] = ()) -> None:
        self.place, self.within = place, within
        waits = ("--standby", "--takeover-after", str(TAKEOVER_S))
        super().__init__("serve", "--space", str(root), *waits, "--tcp", place, "--insecure", within=within)
        self.wait_for("standing by")


class Pair:
    """The first has the space, the second stands by."""

    def __init__(self, root: Path, places: Sequence[str] = (), within: Sequence[Sequence[str]] = ((), ())) -> None:
        self._root = root
        first, second = places or [f"127.0.0.1:{port}" for port in free_ports(2)]
        self.url = f"xaq://{first},{second}?timeout_s=2"
        self.owner = Server(root, first, within[0])
        self.owner.wait_for("serving")
        self.standby = Server(root, second, within[1])

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
        self.standby = Server(self._root, former.place, former.within)

    def close(self) -> None:
        for server in (self.owner, self.standby):
            server.close()


class Networks:
    """A server's place each, on one network with the clients; the link of one can be cut: nobody is told, packets are
    lost."""

    def __init__(self) -> None:
        """Raises OSError, CalledProcessError where this machine has no namespaces to give."""
        self.names = [f"xaq{os.getpid()}{letter}" for letter in "ab"]
        subnet = f"10.213.{os.getpid() % 256}"  # workers of a run have one each
        self.places = [f"{subnet}.{number}:7000" for number in (2, 3)]
        self.within = [["ip", "netns", "exec", name] for name in self.names]
        self._bridge = f"xaq{os.getpid()}"
        try:
            _ip("link", "add", self._bridge, "type", "bridge")
            _ip("addr", "add", f"{subnet}.1/24", "dev", self._bridge)
            _ip("link", "set", self._bridge, "up")
            for number, name in enumerate(self.names):
                _ip("netns", "add", name)
                _ip("link", "add", f"{name}o", "type", "veth", "peer", "name", "inner", "netns", name)
                _ip("link", "set", f"{name}o", "master", self._bridge, "up")
                _ip("-n", name, "addr", "add", f"{subnet}.{number + 2}/24", "dev", "inner")
                self.cut(number, up=True)
        except BaseException:
            self.close()
            raise

    def cut(self, number: int, *, up: bool = False) -> None:
        _ip("-n", self.names[number], "link", "set", "inner", "up" if up else "down")

    def close(self) -> None:
        for words in (*(("netns", "del", name) for name in self.names), ("link", "del", self._bridge)):
            with suppress(subprocess.CalledProcessError, OSError):
                _ip(*words)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def free_ports(count: int) -> list[int]:
    """This worker's own, and none that the kernel gives out: nobody takes one while its server is killed."""
    found: list[int] = []
    while len(found) < count:
        port = _FIRST + next(_NUMBERS) % _OF_A_WORKER
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            found.append(port)
    return found


_OF_A_WORKER = 250
_FIRST = 20_000 + int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 50 * _OF_A_WORKER
_NUMBERS = itertools.count(random.randrange(_OF_A_WORKER))
"""Begun somewhere, for another run of the tests may be under way."""


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


def wait_for_work(clients: list[Client]) -> None:
    """Each of them ends a transaction that it began after now, or fails."""
    before, deadline = [len(client.added) + 2 for client in clients], time.monotonic() + PATIENCE_S
    while any(len(client.added) < wanted for client, wanted in zip(clients, before, strict=True)):
        assert [client.failure for client in clients if client.failure is not None] == []
        assert time.monotonic() < deadline
        time.sleep(0.01)
