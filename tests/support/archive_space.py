"""A space with a queue that keeps what leaves it, which knows what it had, and a process that is killed at a call."""

from __future__ import annotations

import os
from collections.abc import Callable
from copy import copy
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

import xaqueue
from xaqueue import lake
from xaqueue.core.owner.definitions_file import write_definitions
from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.features.opening import create
from xaqueue.features.session import attach

STREAM = "query#1"


class Space:
    """A space whose queue q keeps what leaves it; it knows which body each number has, and who took it."""

    def __init__(self, root: Path, sync: str) -> None:
        create(root, sync=sync)
        write_definitions(root, '[queues.q]\narchive = "parquet"\n[queues.other]\n')
        self.root = root
        self.session = attach(root, sync=sync)
        self.connection = xaqueue.connect(root)
        self.bodies: dict[int, bytes] = {}
        self.taken: dict[int, str] = {}

    def put(self, *bodies: bytes, many: bool = False) -> None:
        if many:
            self.connection.enqueue_many("q", bodies)
        else:
            for body in bodies:
                self.connection.enqueue("q", body)
        self.connection.commit()
        first = len(self.bodies) + 1
        self.bodies |= {first + at: body for at, body in enumerate(bodies)}

    def take(self, count: int) -> None:
        taken = [m for _ in range(count) if (m := self.connection.dequeue("q")) is not None]
        self.connection.commit()
        number = {body: seq for seq, body in self.bodies.items()}
        self.taken |= {number[message.body]: "" for message in taken}

    def consume(self, upto: int, *, stream: str = STREAM, archives: bool = False) -> None:
        """By a stream, from the front; of what is not archived the queue knows nothing more."""
        consumed = self.session.reserve("q", stream, 0, 0).consumed
        self.session.consume("q", stream, upto, archives)
        numbers = range(consumed + 1, upto + 1)
        self.taken |= {seq: stream for seq in numbers if seq in self.bodies and seq not in self.taken}

    def settle(self) -> None:
        """The directories are as far as the journal is."""
        self.session.space.log.settle()

    def at(self, root: Path) -> Space:
        """What this one knows, of a copy of it."""
        copied = copy(self)
        copied.root = root
        return copied

    def stop(self) -> None:
        self.connection.close()
        self.session.close()


def rows(space: Space, *columns: str, **options: Any) -> list[dict[str, Any]]:
    found = lake.scan(space.root, "q", ["seq", "body", *columns], archived=True, **options)
    return list(found.read_all().to_pylist())


def in_parquet(root: Path) -> list[int]:
    paths = (root / "archive/parquet/queue=q").glob("day=*/*.parquet")
    return sorted(seq for path in paths for seq in pq.read_table(path, columns=["seq"])["seq"].to_pylist())


def check(space: Space) -> None:
    found = rows(space, "taken_at", "taken_by")
    assert [row["seq"] for row in found] == list(space.bodies)
    assert {row["seq"]: row["body"] for row in found} == space.bodies
    assert {row["seq"] for row in found if row["taken_at"] is not None} == space.taken.keys()
    by = {row["seq"]: row["taken_by"] for row in found if row["taken_at"] is not None}
    assert by | {seq: who for seq, who in space.taken.items() if who} == by


class Killed(BaseException):
    pass


class Cut(DirectoryFileSystem):
    """Killed before one of its calls that change something."""

    def __init__(self, root: Path, left: int) -> None:
        super().__init__(root, keep_unsynced=False)
        self.left = left
        for name in ("create", "rename", "unlink", "make_dir", "remove_dir", "sync_file", "sync_dir", "sync_all"):
            setattr(self, name, self._counted(getattr(self, name)))

    def _counted(self, call: Callable[..., None]) -> Callable[..., None]:
        def counted(*given: Any) -> None:
            self.left -= 1
            if self.left < 0:
                raise Killed
            call(*given)

        return counted


def spread(root: Path) -> None:
    """What is in the archive was committed on three days."""
    for at, path in enumerate(sorted((root / "archive").glob("queue=q/range=*/*"))):
        when = datetime(2026, 11, 1 + at % 3, tzinfo=UTC).timestamp()
        os.utime(path, (when, when))
