"""RabbitMQ with a durable queue: persistent messages with publisher confirms, and takes that a tx.commit ends.

Several messages are published one behind the other, and then all confirms read. Taking some is a basic.get each, one
behind the other, and an acknowledgement of all of them, in a transaction of AMQP. By the protocol itself (AMQP 0-9-1),
so that no client's Python is measured but this one's.
"""

from __future__ import annotations

import os
import struct
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from bench.peers.peer import Client, Wanted
from bench.peers.started import Started, connected, free_port
from xaqueue.errors import OperationalError

PROGRAM = "/usr/lib/rabbitmq/bin/rabbitmq-server"
"""That of Debian's package; what it has in the path becomes another user first."""
QUEUE = b"bench"
CONFIRMED, TAKING = 1, 2
"""Channels: confirms and transactions exclude one another."""

METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
FRAME_MAX = 131_072
FRAME_END = b"\xce"
PERSISTENT = struct.pack(">HB", 1 << 12, 2)
"""The flag of a delivery mode, and the mode."""

START_OK, TUNE, TUNE_OK, OPEN, CLOSE = (10, 11), (10, 30), (10, 31), (10, 40), (10, 50)
CHANNEL_OPEN, CHANNEL_CLOSE = (20, 10), (20, 40)
DECLARE, PURGE = (50, 10), (50, 30)
PUBLISH, GET, GET_OK, GET_EMPTY, ACK = (60, 40), (60, 70), (60, 71), (60, 72), (60, 80)
SELECT_CONFIRMS = (85, 10)
SELECT_TX, COMMIT = (90, 10), (90, 20)

Call = tuple[int, int]
"""A class and a method of AMQP."""


def open_peer(scratch: Path, _: Wanted) -> RabbitPeer:
    return RabbitPeer(scratch, b"classic")


def open_quorum(scratch: Path, _: Wanted) -> RabbitPeer:
    return RabbitPeer(scratch, b"quorum")


def connect(place: str) -> RabbitClient:
    return RabbitClient(place)


class RabbitPeer:
    two_phase = False
    survives_power_loss = True
    processes = True

    def __init__(self, scratch: Path, kind: bytes) -> None:
        port = free_port()
        self.name = f"rabbitmq-{kind.decode()}"
        self.place = str(port)
        self._environment = {
            **os.environ,
            "HOME": str(scratch),
            "ERL_EPMD_PORT": str(free_port()),
            "RABBITMQ_NODENAME": "bench@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": self.place,
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_MNESIA_BASE": str(scratch / "mnesia"),
            "RABBITMQ_LOG_BASE": str(scratch / "logs"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(scratch / "plugins"),
            "RABBITMQ_CONF_ENV_FILE": str(scratch / "none"),
        }
        with ExitStack() as stack:
            self._server = Started([PROGRAM], port, scratch / "log", self._environment)
            stack.callback(self._end)
            self._own = RabbitClient(self.place, kind)
            stack.callback(self._own.close)
            self.durability = (
                f"RabbitMQ {self._own.version}, {kind.decode()} queue; publisher confirms, basic.get with tx.commit: "
                "survives power loss"
            )
            if kind == b"classic":
                self.durability += " (what is taken is synced some time after the answer)"
            self._stack = stack.pop_all()

    def connect(self) -> Client:
        return connect(self.place)

    def server_cpu_s(self) -> float:
        return self._server.cpu_s()

    def clear(self) -> None:
        self._own.call(TAKING, PURGE, _short(b"\0\0", QUEUE) + b"\0")

    def close(self) -> None:
        self._stack.close()

    def _end(self) -> None:
        """Its daemon that knows the ports of nodes is a process of its own."""
        self._server.close()
        subprocess.run(["epmd", "-kill"], env=self._environment, capture_output=True, check=False)


class _Frame(NamedTuple):
    kind: int
    channel: int
    payload: bytes

    def is_call(self, call: Call) -> bool:
        return self.kind == METHOD and struct.unpack_from(">HH", self.payload) == call


class RabbitClient:
    """``kind``: of the queue that it declares; empty: it is there."""

    def __init__(self, place: str, kind: bytes = b"") -> None:
        self._socket = connected(int(place))
        self._read = self._socket.makefile("rb", 1 << 20)
        self._published = 0
        self._confirmed = 0
        self._socket.sendall(b"AMQP\0\0\x09\x01")
        self.version = _version(self._frame().payload)
        plain = b"\0guest\0guest"
        self._send(0, START_OK, struct.pack(">I", 0) + _short(b"", b"PLAIN") + _long(plain) + _short(b"", b"en_US"))
        self._until(0, TUNE)
        self._send(0, TUNE_OK, struct.pack(">HIH", TAKING, FRAME_MAX, 0))
        self.call(0, OPEN, _short(b"", b"/") + b"\0\0")
        for channel, select in ((CONFIRMED, SELECT_CONFIRMS), (TAKING, SELECT_TX)):
            self.call(channel, CHANNEL_OPEN, b"\0")
            if channel == TAKING and kind:
                table = _short(b"", b"x-queue-type") + b"S" + _long(kind)
                self.call(channel, DECLARE, _short(b"\0\0", QUEUE) + b"\x02" + _long(table))  # durable
            self.call(channel, select, b"\0" if select == SELECT_CONFIRMS else b"")

    def enqueue(self, bodies: Sequence[bytes]) -> None:
        publish = struct.pack(">HH", *PUBLISH) + b"\0\0\0" + _short(b"", QUEUE) + b"\0"
        frames = []
        for body in bodies:
            frames += [_framed(METHOD, CONFIRMED, publish)]
            frames += [_framed(HEADER, CONFIRMED, struct.pack(">HHQ", 60, 0, len(body)) + PERSISTENT)]
            frames += [
                _framed(BODY, CONFIRMED, body[at : at + FRAME_MAX - 8]) for at in range(0, len(body), FRAME_MAX - 8)
            ]
        self._socket.sendall(b"".join(frames))
        self._published += len(bodies)
        while self._confirmed < self._published:
            tag, multiple = struct.unpack_from(">QB", self._until(CONFIRMED, ACK), 4)
            self._confirmed = tag if multiple else self._confirmed + 1

    def dequeue(self, messages: int) -> int:
        get = _framed(METHOD, TAKING, struct.pack(">HH", *GET) + _short(b"\0\0", QUEUE) + b"\0")
        self._socket.sendall(get * messages)
        taken, last = 0, 0
        for _ in range(messages):
            frame = self._frame()
            if frame.is_call(GET_OK):
                taken, last = taken + 1, struct.unpack_from(">Q", frame.payload, 4)[0]
                left = struct.unpack_from(">Q", self._frame().payload, 4)[0]
                while left > 0:
                    left -= len(self._frame().payload)
            elif not frame.is_call(GET_EMPTY):
                raise OperationalError(f"RabbitMQ: {frame}")
        if taken:
            self._send(TAKING, ACK, struct.pack(">QB", last, 1))  # this one and all before
            self.call(TAKING, COMMIT, b"")
        return taken

    def call(self, channel: int, call: Call, told: bytes) -> bytes:
        """The payload of its answer, whose number is the next."""
        self._send(channel, call, told)
        return self._until(channel, (call[0], call[1] + 1))

    def close(self) -> None:
        self.call(0, CLOSE, struct.pack(">H", 200) + b"\0" + struct.pack(">HH", 0, 0))
        self._read.close()
        self._socket.close()

    def _send(self, channel: int, call: Call, told: bytes) -> None:
        self._socket.sendall(_framed(METHOD, channel, struct.pack(">HH", *call) + told))

    def _until(self, channel: int, call: Call) -> bytes:
        frame = self._frame()
        if frame.channel != channel or not frame.is_call(call):
            raise OperationalError(f"RabbitMQ: {frame}")
        return frame.payload

    def _frame(self) -> _Frame:
        while True:
            kind, channel, size = struct.unpack(">BHI", self._bytes(7))
            payload = self._bytes(size + 1)[:-1]
            if kind != HEARTBEAT:
                return _Frame(kind, channel, payload)

    def _bytes(self, size: int) -> bytes:
        found: bytes = self._read.read(size)
        if len(found) < size:
            raise OperationalError("RabbitMQ: it is gone")
        return found


def _framed(kind: int, channel: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + FRAME_END


def _short(before: bytes, text: bytes) -> bytes:
    return before + bytes([len(text)]) + text


def _long(text: bytes) -> bytes:
    return struct.pack(">I", len(text)) + text


def _version(start: bytes) -> str:
    """Of the properties that connection.start tells: only the field's name and type need be found."""
    _, name, rest = start.partition(b"\x07versionS")
    size: int = struct.unpack_from(">I", rest)[0] if name else 0
    return rest[4 : 4 + size].decode()
