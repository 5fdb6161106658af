"""xaqueue beside what has one phase only: local transactions through a server, and in a space of this process."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import xaqueue
from bench.peers.peer import Client, Wanted
from bench.served import QUEUE, ServerPeer
from xaqueue.connection import Connection

LEVEL = "JOURNAL"
PROMISE = f"{LEVEL}: one sync a commit, survives power loss"


def connect(place: str) -> CommitClient:
    return CommitClient(xaqueue.connect(place))


def open_served(scratch: Path, _: Wanted) -> ServedPeer:
    return ServedPeer(scratch)


def open_embedded(scratch: Path, _: Wanted) -> EmbeddedPeer:
    return EmbeddedPeer(scratch)


class CommitClient:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def enqueue(self, bodies: Sequence[bytes]) -> None:
        if len(bodies) == 1:
            self._connection.enqueue(QUEUE, bodies[0])
        else:
            self._connection.enqueue_many(QUEUE, bodies)
        self._connection.commit()

    def dequeue(self, messages: int) -> int:
        if messages == 1:
            taken = int(self._connection.dequeue(QUEUE) is not None)
        else:
            taken = len(self._connection.dequeue_many(QUEUE, messages))
        self._connection.commit()
        return taken

    def close(self) -> None:
        self._connection.close()


class ServedPeer(ServerPeer):
    two_phase = False

    def __init__(self, root: Path) -> None:
        super().__init__(root, LEVEL)
        self.durability = PROMISE

    def connect(self) -> Client:
        return connect(self.place)

    def clear(self) -> None:
        with xaqueue.connect(self.place) as connection:
            _empty(connection)


class EmbeddedPeer:
    name = f"embedded, {LEVEL}"
    durability = PROMISE
    two_phase = False
    survives_power_loss = True
    processes = False

    def __init__(self, root: Path) -> None:
        self.place = os.fspath(root)
        self._own = xaqueue.connect(root, create=True, sync=LEVEL)

    def connect(self) -> Client:
        return CommitClient(xaqueue.connect(self.place, sync=LEVEL))

    def server_cpu_s(self) -> float:
        return 0.0

    def clear(self) -> None:
        _empty(self._own)

    def close(self) -> None:
        self._own.close()


def _empty(connection: Connection) -> None:
    while connection.dequeue_many(QUEUE, 1000):
        connection.commit()
    connection.commit()
