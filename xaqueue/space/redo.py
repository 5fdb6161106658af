"""What the journal records of a step: the files it makes, moves and removes; and how they are made so again.

A record is physical: *put* a file with this content, *move* one, *drop* one. A replay works out the final state of
every path that is named and makes the directories so, in whatever state a crash left them: that may be cut off at any
call and done again. Content that stood on disk at the last checkpoint is moved, all other is in the record.

    meta  MessagePack [xid, operations]
          [1, path, head, size of body, time]   the block's head stands here, its body in the record's body
          [2, source, target, time]             time: int microseconds UTC for the file's modification time, 0 for none
          [3, path]
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import msgpack

from xaqueue.command import is_sound
from xaqueue.space import layout
from xaqueue.space.layout import COMMITTED, Watermark
from xaqueue.storage.fs import FileSystem
from xaqueue.storage.segments import Entry, Record

PUT, MOVE, DROP = 1, 2, 3
_MAKING = ".replay"
"""In active/, where a name that starts with a dot is no block."""


class Kind(IntEnum):
    """Which step a record is of; for those who look at a journal, since a replay reads the operations."""

    PREPARE = 1
    COMMIT = 2
    ROLLBACK = 3
    ONE_PHASE = 4
    DECISION = 5
    FORGET = 6


class Redo:
    """A record in the making."""

    def __init__(self, kind: Kind, xid: str) -> None:
        self._kind = kind
        self._xid = xid
        self._operations: list[tuple[Any, ...]] = []
        self._bodies: list[bytes] = []

    def put(self, path: str, head: bytes, body: bytes, when_us: int = 0) -> None:
        self._operations.append((PUT, path, head, len(body), when_us))
        if body:
            self._bodies.append(body)

    def move(self, source: str, target: str, when_us: int = 0) -> None:
        self._operations.append((MOVE, source, target, when_us))

    def drop(self, path: str) -> None:
        self._operations.append((DROP, path))

    def entry(self) -> Entry:
        packed: bytes = msgpack.packb((self._xid, self._operations), use_bin_type=True)
        return Entry(self._kind, packed, self._bodies)


def operations_of(record: Record) -> list[list[Any]]:
    _, operations = msgpack.unpackb(record.meta)
    return list(operations)


def sound(record: Record) -> bool:
    """Whether each body is the one that its head has the checksum of."""
    offset = 0
    for operation in operations_of(record):
        if operation[0] == PUT:
            _, _, head, size, _ = operation
            if not is_sound(head, record.body[offset : offset + size]):
                return False
            offset += size
    return offset == len(record.body)


@dataclass(slots=True)
class _Content:
    head: bytes
    body: memoryview
    when_us: int


@dataclass(slots=True)
class _Moved:
    origin: str
    when_us: int


def replay(fs: FileSystem, records: Iterable[Record]) -> list[str]:
    """Makes the directories what the records say; the caller syncs it all. Returns what is worth a note.

    Raises OSError.
    """
    wanted, highest = _final(records)
    with suppress(FileNotFoundError):
        fs.unlink(f"{layout.ACTIVE}/{_MAKING}")
    for directory in sorted({path.rpartition("/")[0] for path, want in wanted.items() if want is not None}):
        _make_dirs(fs, directory)
    notes = []
    for path, want in wanted.items():
        if isinstance(want, _Moved) and not _stands(fs, path):
            if not fs.exists(want.origin):
                notes.append(f"{path} should have come from {want.origin}, and neither is there")
                continue
            fs.rename(want.origin, path)
        if isinstance(want, _Moved) and want.when_us:
            fs.set_modified_ns(path, want.when_us * 1000)
    for path, want in wanted.items():
        if isinstance(want, _Content):
            _make(fs, path, want)
    for path, want in wanted.items():
        if want is None:
            with suppress(FileNotFoundError):
                fs.unlink(path)
    for queue, seq in highest.items():
        _reserve(fs, queue, seq)
    return notes


def _final(records: Iterable[Record]) -> tuple[dict[str, _Content | _Moved | None], dict[str, int]]:
    """What each path is in the end, and the highest number that each queue is known to have used."""
    wanted: dict[str, _Content | _Moved | None] = {}
    highest: dict[str, int] = {}
    for record in records:
        offset = 0
        for operation in operations_of(record):
            if operation[0] == PUT:
                _, path, head, size, when_us = operation
                wanted[path] = _Content(head, record.body[offset : offset + size], when_us)
                offset += size
            elif operation[0] == MOVE:
                _, source, path, when_us = operation
                want = wanted.get(source)
                if isinstance(want, _Content):
                    wanted[path] = _Content(want.head, want.body, when_us)
                else:
                    wanted[path] = _Moved(want.origin if want is not None else source, when_us)
                wanted[source] = None
            else:
                path = operation[1]
                wanted[path] = None
            number = layout.parse_message_path(path)
            if number is not None:
                queue, seq = number
                highest[queue] = max(highest.get(queue, 0), seq)
    return wanted, highest


def _make_dirs(fs: FileSystem, directory: str) -> None:
    if not fs.is_dir(directory):
        above = directory.rpartition("/")[0]
        if above:
            _make_dirs(fs, above)
        fs.make_dir(directory)


def _make(fs: FileSystem, path: str, content: _Content) -> None:
    """Puts the content there, unless it is there; a message whose tries were counted since stays as it is."""
    if not _stands(fs, path, content):
        making = f"{layout.ACTIVE}/{_MAKING}"
        fs.create(making, [content.head, bytes(content.body)])
        fs.rename(making, path)
    if content.when_us:
        fs.set_modified_ns(path, content.when_us * 1000)


def _stands(fs: FileSystem, path: str, content: _Content | None = None) -> bool:
    """Whether a whole block stands there: this one, or where it is a message, any with its id in its name."""
    try:
        data = fs.read(path)
    except OSError:
        return False
    if content is None or path.startswith(COMMITTED):
        return is_sound(data)
    return len(data) == len(content.head) + len(content.body) and data.startswith(content.head) and is_sound(data)


def _reserve(fs: FileSystem, queue: str, seq: int) -> None:
    """No number that the journal has seen is given out again."""
    _make_dirs(fs, layout.queue_path(queue))
    path = layout.watermark_path(queue)
    watermark = layout.parse_watermark(fs.read(path)) if fs.exists(path) else None
    if watermark is None or watermark.reserved < seq:
        published = watermark.published if watermark is not None else 0
        fs.write_at(path, 0, [layout.format_watermark(Watermark(published, max(seq, published)))])
