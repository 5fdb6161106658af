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


LEVELS = {"NONE": "open_none", "FSYNC;DSYNC": "open_fsync_dsync"}
"""What opens an embedded space of a level."""


def connect(place: str) -> CommitClient:
    return CommitClient(xaqueue.connect(place))


def open_served(scratch: Path, _: Wanted) -> ServedPeer:
    return ServedPeer(scratch)


def open_embedded(scratch: Path, _: Wanted) -> EmbeddedPeer:
    return EmbeddedPeer(scratch)


def open_none(scratch: Path, _: Wanted) -> EmbeddedPeer:
    return EmbeddedPeer(scratch, "NONE", "NONE: no sync, survives a kill only")


def open_fsync_dsync(scratch: Path, _: Wanted) -> EmbeddedPeer:
    return EmbeddedPeer(scratch, "FSYNC;DSYNC", "FSYNC;DSYNC: files and directories are synced, survives power loss")


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
    two_phase = False
    processes = False

    def __init__(self, root: Path, level: str = LEVEL, durability: str = PROMISE) -> None:
        self.name = f"embedded, {level}"
        self.durability = durability
        self.survives_power_loss = level != "NONE"
        self.place = os.fspath(root)
        self._level = level
        self._own = xaqueue.connect(root, create=True, sync=level)

    def connect(self) -> Client:
        return CommitClient(xaqueue.connect(self.place, sync=self._level))

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
