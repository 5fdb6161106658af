"""dirq, a queue of files in directories: no transactions, and no sync anywhere."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import dirq
from dirq.QueueSimple import QueueSimple

from bench.peers.peer import Client, Wanted


def open_peer(scratch: Path, _: Wanted) -> DirqPeer:
    return DirqPeer(scratch)


def connect(place: str) -> DirqClient:
    return DirqClient(place)


class DirqPeer:
    name = "dirq"
    durability = (
        f"dirq {dirq.VERSION}, QueueSimple: no transactions, every message for itself; nothing is synced: "
        "survives a killed process, not power loss"
    )
    two_phase = False
    survives_power_loss = False
    processes = True

    def __init__(self, scratch: Path) -> None:
        self.place = str(scratch / "dirq")
        connect(self.place)

    def connect(self) -> Client:
        return connect(self.place)

    def server_cpu_s(self) -> float:
        return 0.0

    def clear(self) -> None:
        for place in Path(self.place).iterdir():  # the place itself stays: clients are connected to it
            shutil.rmtree(place)

    def close(self) -> None:
        """It holds nothing open."""


class DirqClient:
    def __init__(self, place: str) -> None:
        self._queue = QueueSimple(place)
        self._ahead = iter(self._queue)

    def enqueue(self, bodies: Sequence[bytes]) -> None:
        for body in bodies:
            self._queue.add(body)

    def dequeue(self, messages: int) -> int:
        taken = sum(self._take() for _ in range(messages))
        if not taken:  # the names that were listed are used up
            self._ahead = iter(self._queue)
            taken = sum(self._take() for _ in range(messages))
        return taken

    def close(self) -> None:
        """It holds nothing open."""

    def _take(self) -> bool:
        """Whether there was one. Its iterator is asked directly: a loop over it would list the directories anew."""
        while name := next(self._ahead, None):
            if self._queue.lock(name):
                self._queue.get(name)
                self._queue.remove(name)
                return True
        return False
