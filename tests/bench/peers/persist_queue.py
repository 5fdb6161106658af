"""persist-queue's SQLite queue, the most durable one that it has: every message is a commit of its own."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from shutil import rmtree

from persistqueue import Empty, SQLiteQueue

from bench.peers.peer import Client, Wanted

BUSY_S = 60.0


def open_peer(scratch: Path, _: Wanted) -> PersistQueuePeer:
    return PersistQueuePeer(scratch)


class PersistQueuePeer:
    name = "persist-queue"
    durability = (
        f"persist-queue {version('persist-queue')}, SQLiteQueue: one phase, a commit a message; journal_mode=WAL and "
        "SQLite's default of synchronous, which is FULL unless it was built otherwise: one sync a commit"
    )
    two_phase = False
    survives_power_loss = True
    processes = False

    def __init__(self, scratch: Path) -> None:
        self.place = str(scratch / "persist-queue")
        self.queue = self._open()

    def connect(self) -> Client:
        return PersistQueueClient(self)

    def server_cpu_s(self) -> float:
        return 0.0

    def clear(self) -> None:
        self.queue.close()
        rmtree(self.place)
        self.queue = self._open()

    def close(self) -> None:
        self.queue.close()

    def _open(self) -> SQLiteQueue:
        return SQLiteQueue(self.place, multithreading=True, timeout=BUSY_S, auto_commit=True)


class PersistQueueClient:
    """All threads share the peer's one queue object, which is how it is meant to be used in a process."""

    def __init__(self, peer: PersistQueuePeer) -> None:
        self._peer = peer

    def enqueue(self, bodies: Sequence[bytes]) -> None:
        for body in bodies:
            self._peer.queue.put(body)

    def dequeue(self, messages: int) -> int:
        taken = 0
        try:
            while taken < messages:
                self._peer.queue.get(block=False)
                taken += 1
        except Empty:
            pass
        return taken

    def close(self) -> None:
        """The queue is the peer's."""
