"""NATS JetStream with a stream of files that is synced with every message (sync_interval: always), and a consumer.

A message is published and its PubAck waited for; several are published one behind the other, and then all answers
read. Taking some asks the pull consumer, and acknowledges each until the server has said that it has that. By the
protocol itself, so that no client's Python is measured but this one's.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from bench.peers.peer import Client, Wanted
from bench.peers.started import Started, connected, free_port, version_of
from xaqueue.errors import OperationalError

PROGRAM = "nats-server"
STREAM, SUBJECT, TAKERS = "BENCH", "bench", "takers"
WAIT_NS = 1_000_000_000
"""An empty queue says so at once; this is for a server that is slow to."""


def open_peer(scratch: Path, _: Wanted) -> NatsPeer:
    return NatsPeer(scratch)


def connect(place: str) -> NatsClient:
    return NatsClient(place)


class NatsPeer:
    name = "nats"
    two_phase = False
    survives_power_loss = True
    processes = True

    def __init__(self, scratch: Path) -> None:
        version = version_of(PROGRAM, "--version").rpartition("v")[2]
        self.durability = f"NATS JetStream {version}, file storage, sync_interval=always: survives power loss"
        port = free_port()
        self.place = str(port)
        options = scratch / "options"
        options.write_text(
            f'listen: "127.0.0.1:{port}"\njetstream {{ store_dir: "{scratch}", sync_interval: always }}\n'
        )
        with ExitStack() as stack:
            self._server = Started([PROGRAM, "-c", str(options)], port, scratch / "log")
            stack.callback(self._server.close)
            self._own = connect(self.place)
            stack.callback(self._own.close)
            self._own.call(f"STREAM.CREATE.{STREAM}", {"name": STREAM, "subjects": [SUBJECT], "retention": "workqueue"})
            taking = {"durable_name": TAKERS, "ack_policy": "explicit"}
            self._own.call(f"CONSUMER.DURABLE.CREATE.{STREAM}.{TAKERS}", {"stream_name": STREAM, "config": taking})
            self._stack = stack.pop_all()

    def connect(self) -> Client:
        return connect(self.place)

    def server_cpu_s(self) -> float:
        return self._server.cpu_s()

    def clear(self) -> None:
        self._own.call(f"STREAM.PURGE.{STREAM}", {})

    def close(self) -> None:
        self._stack.close()


class _Heard(NamedTuple):
    subject: str
    reply: str
    status: str
    body: bytes


class NatsClient:
    def __init__(self, place: str) -> None:
        self._socket = connected(int(place))
        self._lines = self._socket.makefile("rb")
        self._lines.readline()  # INFO
        self._inbox = f"_INBOX.{os.urandom(8).hex()}"
        self._numbers = count()
        told = json.dumps({"verbose": False, "pedantic": False, "headers": True, "no_responders": True})
        self._send(f"CONNECT {told}\r\nSUB {self._inbox}.* 1\r\n".encode())

    def enqueue(self, bodies: Sequence[bytes]) -> None:
        self._send(b"".join(self._published(SUBJECT, body) for body in bodies))
        for _ in bodies:
            _checked(self._heard().body)

    def dequeue(self, messages: int) -> int:
        wanted = json.dumps({"batch": messages, "no_wait": True, "expires": WAIT_NS}).encode()
        self._send(self._published(f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.{TAKERS}", wanted))
        taken: list[str] = []
        while len(taken) < messages:
            heard = self._heard()
            if heard.status:  # no more of them
                break
            taken.append(heard.reply)
        self._send(b"".join(self._published(reply, b"+ACK") for reply in taken))
        for _ in taken:
            self._heard()
        return len(taken)

    def call(self, name: str, told: object) -> None:
        self._send(self._published(f"$JS.API.{name}", json.dumps(told).encode()))
        _checked(self._heard().body)

    def close(self) -> None:
        self._lines.close()
        self._socket.close()

    def _published(self, subject: str, body: bytes) -> bytes:
        return f"PUB {subject} {self._inbox}.{next(self._numbers)} {len(body)}\r\n".encode() + body + b"\r\n"

    def _send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def _heard(self) -> _Heard:
        while True:
            words = self._lines.readline().decode().split()
            if not words:
                raise OperationalError("NATS: it is gone")
            if words[0] == "PING":
                self._send(b"PONG\r\n")
            elif words[0] in ("MSG", "HMSG"):
                head = int(words[-2]) if words[0] == "HMSG" else 0
                fixed = 5 if words[0] == "HMSG" else 4
                data = self._lines.read(int(words[-1]) + 2)[:-2]
                status = data[:head].decode().partition("\r\n")[0].partition(" ")[2]
                return _Heard(words[1], words[3] if len(words) > fixed else "", status, data[head:])
            elif words[0] == "-ERR":
                raise OperationalError(f"NATS: {' '.join(words)}")


def _checked(answer: bytes) -> None:
    told: dict[str, Any] = json.loads(answer)
    if "error" in told:
        raise OperationalError(f"NATS: {told['error']}")
