"""Redis with a stream and a consumer group, each command synced before it is answered (appendfsync always).

A message is XADD; taking some is XREADGROUP, and XACK with XDEL once they are done with. Several messages are one
pipeline. By the protocol itself (RESP), so that no client's Python is measured but this one's.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

from bench.peers.peer import Client, Wanted
from bench.peers.started import Started, connected, version_of
from xaqueue.errors import OperationalError

PROGRAM = "redis-server"
STREAM, GROUP = b"bench", b"takers"
_clients = count()


def open_peer(scratch: Path, _: Wanted) -> RedisPeer:
    return RedisPeer(scratch)


def connect(place: str) -> RedisClient:
    return RedisClient(place)


class RedisPeer:
    name = "redis"
    two_phase = False
    survives_power_loss = True
    processes = True

    def __init__(self, scratch: Path) -> None:
        found = re.search(r"v=(\S+)", version_of(PROGRAM, "--version"))
        self.durability = f"Redis {found.group(1) if found else ''}, stream, appendfsync=always: survives power loss"
        with ExitStack() as stack:
            sockets = stack.enter_context(tempfile.TemporaryDirectory(prefix="xaqueue-bench-"))
            self.place = f"{sockets}/socket"
            options = ("--port", "0", "--unixsocket", self.place, "--dir", str(scratch), "--save", "")
            durable = ("--appendonly", "yes", "--appendfsync", "always")
            self._server = Started([PROGRAM, *options, *durable], self.place, scratch / "log")
            stack.callback(self._server.close)
            self._own = connect(self.place)
            stack.callback(self._own.close)
            self.clear()
            self._stack = stack.pop_all()

    def connect(self) -> Client:
        return connect(self.place)

    def server_cpu_s(self) -> float:
        return self._server.cpu_s()

    def clear(self) -> None:
        self._own.ask([b"FLUSHALL"], [b"XGROUP", b"CREATE", STREAM, GROUP, b"0", b"MKSTREAM"])

    def close(self) -> None:
        self._stack.close()


class RedisClient:
    def __init__(self, place: str) -> None:
        self._socket = connected(place)
        self._answers = self._socket.makefile("rb")
        self._name = b"%d.%d" % (os.getpid(), next(_clients))

    def enqueue(self, bodies: Sequence[bytes]) -> None:
        self.ask(*((b"XADD", STREAM, b"*", b"b", body) for body in bodies))

    def dequeue(self, messages: int) -> int:
        words = (b"XREADGROUP", b"GROUP", GROUP, self._name, b"COUNT", b"%d" % messages, b"STREAMS", STREAM, b">")
        (found,) = self.ask(words)
        if not found:
            return 0
        ids = [message[0] for message in found[0][1]]
        self.ask((b"XACK", STREAM, GROUP, *ids), (b"XDEL", STREAM, *ids))
        return len(ids)

    def ask(self, *commands: Sequence[bytes]) -> list[Any]:
        """All of them at once, and their answers."""
        self._socket.sendall(b"".join(map(_packed, commands)))
        return [self._answer() for _ in commands]

    def close(self) -> None:
        self._answers.close()
        self._socket.close()

    def _answer(self) -> Any:
        line = self._answers.readline()
        kind, rest = line[:1], line[1:-2]
        if kind == b"$":
            size = int(rest)
            return None if size < 0 else self._answers.read(size + 2)[:-2]
        if kind == b"*":
            return None if rest == b"-1" else [self._answer() for _ in range(int(rest))]
        if kind in (b"+", b":"):
            return rest
        raise OperationalError(f"Redis: {rest.decode(errors='replace') or 'it is gone'}")


def _packed(words: Sequence[bytes]) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)
