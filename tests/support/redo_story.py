"""A story for redo: branches that are recorded first and whose files follow, cut off at any call.

It keeps the order of the engine and nothing else: a record, then its operations, now or later; content that is not in
a record is hardened before it, and so is everything that was recorded earlier. ``wanted`` is the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from support.forgetful import Crashed, ForgetfulFileSystem, Tree
from xaqueue.core.engine import redo
from xaqueue.core.model import change, layout
from xaqueue.core.model.block import Block, Kind, decode, encode_with_checksum
from xaqueue.core.model.change import DROP, MOVE, PUT, Change, Op, entry_of, paths_of
from xaqueue.core.storage.journal_format import Entry, Record
from xaqueue.message import MessageId, Properties

QUEUE = "orders"
EMPTY = Tree(dict.fromkeys(layout.directories()))
RESERVED = 4
"""Numbers are reserved in groups, as the engine does."""


def message_id(number: int) -> MessageId:
    return MessageId(number.to_bytes(16, "big"))


def block(number: int, size: int = 3) -> tuple[bytes, bytes]:
    """Head and body of a message."""
    body = (b"%d," % number * size)[:size]
    head, _ = encode_with_checksum(Block(Kind.ENQUEUE, message_id(number), Properties(QUEUE), body))
    return head, body


def path_of(number: int, seq: int) -> str:
    return layout.message_path(QUEUE, seq, message_id(number))


def prepared(xid: int) -> str:
    return layout.block_path(layout.PREPARED, f"1.{xid}.", layout.FIRST)


def active(xid: int, number: int) -> str:
    return layout.block_path(layout.ACTIVE, f"1.{xid}.", layout.numbered(number))


@dataclass
class Made:
    """A record in the making."""

    kind: IntEnum
    name: str
    ops: list[Op] = field(default_factory=list)

    def put(self, path: str, head: bytes, body: bytes, when_us: int = 0) -> None:
        self.ops.append((PUT, path, head, body, when_us))

    def move(self, source: str, target: str, when_us: int = 0) -> None:
        self.ops.append((MOVE, source, target, when_us))

    def drop(self, path: str) -> None:
        self.ops.append((DROP, path))

    def entry(self) -> Entry:
        return entry_of(Change(self.kind, self.name, self.ops))


@dataclass
class Story:
    """``lag``: operations wait until they are flushed; without it each follows its record at once."""

    fs: ForgetfulFileSystem
    lag: bool = False
    records: list[Record] = field(default_factory=list)
    """Hardened, since the last checkpoint."""
    wanted: dict[str, int] = field(default_factory=dict)
    """What prepared/ and committed/ hold once all is done: the number of the message by path."""
    waiting: list[Callable[[], None]] = field(default_factory=list)
    numbers: int = 0
    seq: int = 0
    reserved: int = 0
    given: int = 0
    """The highest number in a record."""

    def play(self, acts: list[tuple[str, int]]) -> bool:
        """Whether it came to its end."""
        try:
            for act, which in acts:
                getattr(self, act)(which)
        except Crashed:
            return False
        return True

    # Acts

    def prepare(self, which: int) -> None:
        """The block is in the record; the xid may be one that was used before."""
        xid = which % 3
        if prepared(xid) in self.wanted:
            return
        made = Made(change.CoreStep.PREPARE, str(xid))
        self._put(made, active(xid, 1), prepared(xid))

    def prepare_large(self, which: int) -> None:
        """The block stands on disk and the record moves it."""
        xid = 101 + self.numbers
        made = Made(change.CoreStep.PREPARE, str(xid))
        self._move_large(made, active(xid, 1), prepared(xid))

    def commit(self, which: int) -> None:
        source = self._pick(layout.PREPARED, which)
        if source is None:
            return
        number = self.wanted[source]
        target = self._place(number)
        made = Made(change.CoreStep.COMMIT, "x")
        made.move(source, target, self.seq)
        made.drop(source.replace(".000", ".commit"))
        self._record(made)
        self.wanted[target] = self.wanted.pop(source)
        self._do(lambda: self.fs.rename(source, target))

    def one_phase(self, which: int) -> None:
        number = self.numbers + 1
        self._put(Made(change.CoreStep.ONE_PHASE, "x"), active(which % 3, 1), self._place(number), self.seq)

    def one_phase_large(self, which: int) -> None:
        number = self.numbers + 1
        self._move_large(Made(change.CoreStep.ONE_PHASE, "x"), active(100 + number, 1), self._place(number))

    def rollback(self, which: int) -> None:
        self._drop(change.CoreStep.ROLLBACK, self._pick(layout.PREPARED, which))

    def take(self, which: int) -> None:
        self._drop(change.CoreStep.COMMIT, self._pick(layout.COMMITTED, which))

    def count_a_try(self, which: int) -> None:
        """What stands beside a message is put again, with another content."""
        path = layout.retry_path(QUEUE, which % 3, message_id(0))
        for directory in (layout.queue_path(QUEUE), layout.retries_path(QUEUE)):
            if not self.fs.is_dir(directory):
                self.fs.make_dir(directory)
        self.numbers += 1
        content, making = block(self.numbers), active(200, self.numbers)
        made = Made(change.CoreStep.ROLLBACK, "x")
        made.put(path, *content)
        self._record(made)
        self.wanted[path] = self.numbers

        def put() -> None:
            self.fs.create(making, content)
            self.fs.rename(making, path)

        self._do(put)

    def flush(self, which: int) -> None:
        for _ in range(min(which, len(self.waiting))):
            self.waiting[0]()
            del self.waiting[0]

    def checkpoint(self, which: int) -> None:
        self.flush(100)
        self.fs.sync_all()
        self.records.clear()

    # Within

    def _put(self, made: Made, source: str, target: str, when_us: int = 0) -> None:
        self.numbers += 1
        content, lag = block(self.numbers), self.lag
        source = f"{layout.ACTIVE}/{redo.MAKING}" if lag else source
        if not lag and not self.fs.exists(source):
            self.fs.create(source, content)
        made.put(target, *content, when_us)
        self._record(made)
        self.wanted[target] = self.numbers

        def put() -> None:
            if lag:
                self.fs.create(source, content)
            self.fs.rename(source, target)

        self._do(put)

    def _move_large(self, made: Made, source: str, target: str) -> None:
        self.numbers += 1
        self.fs.create(source, block(self.numbers, size=2000))
        self.flush(100)
        self.fs.sync_all()
        made.move(source, target)
        self._record(made)
        self.wanted[target] = self.numbers
        self._do(lambda: self.fs.rename(source, target))

    def _drop(self, kind: change.CoreStep, path: str | None) -> None:
        if path is not None:
            made = Made(kind, "x")
            made.drop(path)
            self._record(made)
            del self.wanted[path]
            self._do(lambda: self.fs.unlink(path))

    def _record(self, made: Made) -> None:
        self.records.append(record_of(made.entry(), len(self.records)))
        for path in paths_of(self.records[-1]):
            if path.startswith(layout.range_path(QUEUE, self.seq)):
                self.given = max(self.given, int(path.rpartition("/")[2][:16], 16))

    def _do(self, operation: Callable[[], None]) -> None:
        self.waiting.append(operation)
        if not self.lag:
            self.flush(100)

    def _place(self, number: int) -> str:
        """The next number; its directory and its reservation are made first, unsynced, as the engine does."""
        self.seq += 1
        for path in (layout.queue_path(QUEUE), layout.range_path(QUEUE, self.seq)):
            if not self.fs.is_dir(path):
                self.fs.make_dir(path)
        if self.seq > self.reserved:
            self.reserved = self.seq | (RESERVED - 1)
            line = layout.format_watermark(layout.Watermark(0, self.reserved))
            self.fs.write_at(layout.watermark_path(QUEUE), 0, [line])
        return path_of(number, self.seq)

    def _pick(self, directory: str, which: int) -> str | None:
        paths = sorted(path for path in self.wanted if path.startswith(directory))
        return paths[which % len(paths)] if paths else None


def record_of(entry: Entry, lsn: int = 0) -> Record:
    return Record(lsn, entry.kind, entry.meta, memoryview(b"".join(entry.bodies)))


def held(fs: ForgetfulFileSystem) -> dict[str, int]:
    """What prepared/ and committed/ hold. DamagedBlock where a file there is no whole block."""
    files = [f"{layout.PREPARED}/{name}" for name in fs.list(layout.PREPARED)]
    for queue in fs.list(layout.COMMITTED):
        for inner in fs.list(f"{layout.COMMITTED}/{queue}"):
            directory = f"{layout.COMMITTED}/{queue}/{inner}"
            if fs.is_dir(directory):
                files += [f"{directory}/{name}" for name in fs.list(directory)]
    return {path: int.from_bytes(decode(fs.read(path)).message_id, "big") for path in files}


def whole(fs: ForgetfulFileSystem) -> Mapping[str, bytes | None]:
    """All that is there, but for active/, which recovery empties."""
    return {path: data for path, data in fs.tree_after_kill().nodes.items() if not path.startswith(f"{layout.ACTIVE}/")}
