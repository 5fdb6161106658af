"""Spaces without process, lock or watch, over a file system that fails where a test says: for damage and faults."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from xaqueue import Connection
from xaqueue.core.engine.state import Space
from xaqueue.core.model import layout
from xaqueue.core.model.block import Block, Kind, encode
from xaqueue.core.model.definitions import ONE, Definitions, QueueDefinition
from xaqueue.core.model.message_name import tags_of
from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.core.storage.fs import Syncing, write_then_sync
from xaqueue.core.storage.hardening import Hardening
from xaqueue.features import opening
from xaqueue.features.opening import open_space
from xaqueue.features.session import Session
from xaqueue.message import MessageId, Properties
from xaqueue.xid import Xid

ANY_QUEUE = Definitions(default=QueueDefinition())
A_FILE_EACH = Definitions(default=QueueDefinition(blocks=ONE))
"""For a test that looks at the files of messages."""
DURABLE = "FDATASYNC;DSYNC"


def wall_clock() -> int:
    """Int microseconds UTC."""
    return time.time_ns() // 1000


class FaultyFileSystem(DirectoryFileSystem):
    """The real one, but calls on some paths end in an error. ``faults``: (call, path prefix) to errno.

    ``meanwhile``: (call, path prefix) to what happens before the first such call, once.
    """

    def __init__(self, root: str | os.PathLike[str], **options: Any) -> None:
        super().__init__(root, **options)
        self._dsync = False  # the write and the sync fail apart
        self.faults: dict[tuple[str, str], int] = {}
        self.meanwhile: dict[tuple[str, str], Callable[[], object]] = {}
        self.struck: list[tuple[str, str]] = []

    def write_synced(self, path: str, offset: int, chunks: Sequence[bytes], syncing: Syncing = None) -> None:
        write = super().write_synced if self._dsync is None else partial(write_then_sync, self)
        write(path, offset, chunks, syncing)

    def strike(self, call: str, path: str) -> None:
        for name, prefix in list(self.meanwhile):
            if name == call and path.startswith(prefix):
                self.meanwhile.pop((name, prefix))()
        for (name, prefix), number in self.faults.items():
            if name == call and path.startswith(prefix):
                self.struck.append((call, path))
                raise OSError(number, os.strerror(number), path)

    def create(self, path: str, chunks: Sequence[bytes], modified_ns: int = 0) -> None:
        self.strike("create", path)
        if modified_ns:
            self.strike("set_modified_ns", path)
        super().create(path, chunks, modified_ns)

    def read(self, path: str, size: int | None = None, offset: int = 0) -> bytes:
        self.strike("read", path)
        return super().read(path, size, offset)

    def rename(self, source: str, target: str) -> None:
        self.strike("rename", target)
        super().rename(source, target)

    def set_modified_ns(self, path: str, when_ns: int) -> None:
        self.strike("set_modified_ns", path)
        super().set_modified_ns(path, when_ns)

    def unlink(self, path: str) -> None:
        self.strike("unlink", path)
        super().unlink(path)

    def make_dir(self, path: str) -> None:
        self.strike("make_dir", path)
        super().make_dir(path)

    def write_at(self, path: str, offset: int, chunks: Sequence[bytes]) -> None:
        self.strike("write_at", path)
        super().write_at(path, offset, chunks)

    def list(self, path: str) -> list[str]:
        self.strike("list", path)
        return super().list(path)

    def hold_dir(self, path: str) -> None:
        self.strike("hold_dir", path)
        super().hold_dir(path)

    def sync_file(self, path: str) -> None:
        self.strike("sync_file", path)
        super().sync_file(path)

    def sync_data(self, path: str) -> None:
        self.strike("sync_data", path)
        super().sync_data(path)

    def sync_dir(self, path: str) -> None:
        self.strike("sync_dir", path)
        super().sync_dir(path)

    def sync_all(self) -> None:
        self.strike("sync_all", "")
        super().sync_all()


class BareSpace:
    """An open space, and connections to it. ``crash`` forgets it as a killed process would."""

    def __init__(
        self,
        root: Path,
        sync: str = "NONE",
        now_us: Callable[[], int] = wall_clock,
        definitions: Definitions = ANY_QUEUE,
    ) -> None:
        opening.create(root, any_queue=True)
        self.root = root
        self.fs = FaultyFileSystem(root)
        self.sync = sync
        self.now_us = now_us
        self.definitions = definitions
        self.space = self._open()

    def _open(self) -> Space:
        hardening = Hardening.parse(self.sync)
        return open_space(self.fs, self.definitions, hardening=hardening, now_ns=lambda: self.now_us() * 1000)

    def connect(self) -> Connection:
        return Connection(Session(self.space), lambda: os.urandom(16))

    def crash(self) -> None:
        """Nothing more is written; what is active stays in its directory."""
        self.space.log.end(OSError("crashed"))
        self.fs.close()

    def reopen(self) -> Space:
        """Crashes, and recovers from what the directories hold."""
        self.crash()
        faults, self.fs = self.fs.faults, FaultyFileSystem(self.root)
        self.fs.faults = faults
        self.space = self._open()
        return self.space

    def put(self, queue: str, *bodies: bytes) -> None:
        """Commits messages, each in its own transaction."""
        with self.connect() as connection:
            for body in bodies:
                connection.enqueue(queue, body)
                connection.commit()

    def take(self, queue: str) -> list[bytes]:
        """The bodies of all messages of a queue that can be dequeued now, which are put back."""
        bodies = []
        with self.connect() as connection:
            while message := connection.dequeue(queue):
                bodies.append(message.body)
            connection.rollback()
        return bodies

    def prepare(self, name: str | Xid, *, add: Sequence[tuple[str, bytes]] = (), take: Sequence[str] = ()) -> Xid:
        """A prepared branch that adds (queue, body) and takes the next message of each queue; its Xid, or its gtrid."""
        xid = name if isinstance(name, Xid) else Xid(1, name.encode(), b"b")
        with self.connect() as connection:
            connection.tpc_begin(xid)
            for queue, body in add:
                connection.enqueue(queue, body)
            for queue in take:
                assert connection.dequeue(queue) is not None
            assert connection.tpc_prepare()
        return xid

    def in_doubt(self) -> list[Xid]:
        with self.connect() as connection:
            return connection.tpc_recover()

    def message_file(self, queue: str, body: bytes) -> Path:
        """The one message file of this queue whose bytes hold this body."""
        found = [path for path in self.messages(queue) if path.is_file() and body in path.read_bytes()]
        assert len(found) == 1
        return found[0]

    def messages(self, queue: str) -> list[Path]:
        return sorted((self.root / layout.queue_path(queue)).glob("range=*/*"))

    def block(self, directory: str, xid: Xid, suffix: str) -> Path:
        return self.root / layout.block_path(directory, str(xid), suffix)

    def quarantined(self) -> list[Path]:
        """What stands in quarantine, without the reasons."""
        return sorted(p for p in (self.root / layout.QUARANTINE).iterdir() if not p.name.endswith(".reason"))


@contextmanager
def bare_space(
    root: Path,
    sync: str = "NONE",
    now_us: Callable[[], int] = wall_clock,
    definitions: Definitions = ANY_QUEUE,
) -> Iterator[BareSpace]:
    """A new or existing space, whose descriptors are closed in the end."""
    bare = BareSpace(root, sync, now_us, definitions)
    try:
        yield bare
    finally:
        bare.crash()


def identity(number: int) -> MessageId:
    return MessageId(number.to_bytes(16, "big"))


def lay(
    bare: BareSpace,
    seq: int,
    message_id: MessageId,
    properties: Properties | None = None,
    body: bytes = b"",
    tags: str | None = None,
) -> Path:
    """A message's file, as if its owner had left it there; with other tags, where some are given."""
    properties = properties or Properties("q", enqueued_at=seq)
    path = bare.root / layout.message_path("q", seq, message_id, tags_of(properties) if tags is None else tags)
    path.parent.mkdir(parents=True, exist_ok=True)
    block = Block(Kind.ENQUEUE, message_id, properties, body)
    path.write_bytes(b"".join(encode(block)))
    return path
