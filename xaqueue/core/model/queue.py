"""One queue of an open space: its index, its sequence numbers and its range directories.

Sequence numbers are given out under the space's lock, in the order in which they will be published, and never twice:
their upper bound is written to the watermark file before the first number below it is used, and that write is
hardened with the step that used it. So after a crash the next number is above the bound, whatever was consumed.
"""

from __future__ import annotations

import errno
from bisect import bisect_left, insort
from collections.abc import Iterable
from contextlib import suppress
from operator import attrgetter
from typing import Any, Protocol, TypeVar

from xaqueue.core.model import layout, options
from xaqueue.core.model.definitions import QueueDefinition
from xaqueue.core.model.entry import Entry, MessageBlock, Run
from xaqueue.core.model.index import QueueIndex
from xaqueue.core.model.layout import RANGE_BITS, RANGE_SIZE, Watermark
from xaqueue.core.model.message_name import Named
from xaqueue.core.storage.fs import NO_ROOM, FileSystem
from xaqueue.core.storage.scheduling import Condition
from xaqueue.errors import Error

T = TypeVar("T")


_last_of = attrgetter("named.last")


class Room(Protocol):
    """How much a queue may hold: what is committed, and what branches add to it. The space's lock is held."""

    def admit(
        self, space: Any, branch: Any, queue: Queue, size_bytes: int, *, count: int = 1, may_wait: bool = False
    ) -> None:
        """Returns once there is room for so many messages more, of so many bytes in all. Raises where there is none.

        may_wait: the lock is let go meanwhile, and the queue may be defined otherwise.
        """

    def hold(self, message_id: bytes, size_bytes: int) -> None:
        """One more comes, or is there."""

    def gone(self, message_id: bytes) -> None:
        """One that was counted has left, or does not come."""

    def measure(self, space: Any, queue: Queue) -> None:
        """It was defined so just now: what is there is counted. Called without the lock."""


class Consumer(Protocol):
    """Who takes the messages of a queue in their order, by numbers, and alone."""

    @property
    def consumed(self) -> int:
        """What is at or below this number is gone."""

    @property
    def released(self) -> bool:
        """It was ended: sessions may take what is left."""

    def refusal(self) -> Error:
        """What a session is told that wants something of the queue."""


class Queue:
    """All methods are called with the space's lock held."""

    def __init__(self, name: str, definition: QueueDefinition, arrived: Condition) -> None:
        self.name = name
        self.index = QueueIndex()
        self.enqueued = 0
        """Messages that came, by whatever way."""
        self.dequeued = 0
        """Consumed, by a commit or a stream, or removed by an operator."""
        self.redelivered = 0
        """Deliveries of a message of which one had failed before."""
        self.arrived = arrived
        """There may be a message, or room, for somebody who waits for one."""
        self.waiters = 0
        """Who waits for that."""
        self.takers = 0
        """Who of these waits for a message."""
        self.room: Room | None = None
        """Where what it holds is limited."""
        self.blocks: dict[int, list[MessageBlock]] = {}
        """By range its blocks of many messages, in the order of their numbers."""
        self.kept_in = ""
        """The directory, beside ``committed/``, to which messages move that are taken; empty: they go away."""
        self.stuck = ""
        """Why messages that had all their tries, or have expired, are not moved."""
        self._memory: dict[type[object], object] = {}
        self.pending: set[bytes] = set()
        """Ids of messages that branches have enqueued and not yet committed."""
        self.define(definition)
        self.last = 0
        self.reserved = 0
        self.shown = 0
        """The highest number that was published to the sessions of this owner."""
        self.published = 0
        """The highest below which all numbers were published and are durable."""
        self.ranges: dict[int, int] = {}
        """Messages a range directory holds, for each that exists; files of what a stream has consumed do not count."""
        self.record: Consumer | None = None
        """Of the stream that consumes it, or of the last one that did."""
        self.in_flight: tuple[int, int] | None = None
        """What that stream reads now: above the first number, up to the second."""
        self.cleared = 0
        """Up to this number the files of what was consumed are gone."""
        self.in_hand = False
        """Its record is being changed."""
        self.expiring: set[Entry] = set()
        """Messages that have expired, or had all their tries, and that are being removed or moved now."""
        self.is_wanted = False
        """A stream waits to reserve it: nothing more is removed until it has."""
        self._has_directory = False
        self.made_ranges: set[int] = set()
        """Ranges whose directory is known to be there."""

    def define(self, definition: QueueDefinition) -> None:
        """It behaves so from here on."""
        self.definition = definition
        self.index.reorder(definition.order)
        for act in options.everything().acts:
            act(self)

    def memory_of(self, kind: type[T]) -> T:
        """What a feature keeps of it in memory: made when that asks first."""
        found = self._memory.get(kind)
        if found is None:
            found = self._memory[kind] = kind()
        assert isinstance(found, kind)
        return found

    def withdraw(self, message_id: bytes) -> None:
        """What was pending does not come."""
        self.pending.discard(message_id)
        if self.room is not None:
            self._is_less(self.room, message_id)

    def _is_less(self, room: Room, message_id: bytes) -> None:
        """A message that was counted is gone: there may be room."""
        room.gone(message_id)
        if self.waiters:
            self.arrived.notify_all()

    def found(self, ranges: Iterable[int], last: int, watermark: Watermark | None) -> None:
        """What recovery read of a queue's directory: its ranges, its highest number, its watermark."""
        self._has_directory = True
        self.ranges = dict.fromkeys(ranges, 0)
        self.made_ranges = set(self.ranges)
        self.last = self.reserved = max(last, watermark.reserved) if watermark else last
        self.published = min(watermark.published, self.last) if watermark else 0  # a damaged one may say anything

    def keep(self, record: Consumer) -> None:
        """What recovery read of the stream that consumes it. Called after ``found``."""
        self.record = record
        self.last = max(self.last, record.consumed)
        self.reserved = max(self.reserved, self.last)
        self.published = max(self.published, record.consumed)

    @property
    def keeper(self) -> Consumer | None:
        """Of the stream for which it is reserved; None where anybody may take its messages."""
        return self.record if self.record is not None and not self.record.released else None

    @property
    def leaving(self) -> int:
        """Messages that nobody is given any more: the index counts them, as locked, until they have left."""
        return len(self.index.expired) + len(self.index.exhausted) + len(self.expiring)

    def keep_leaving(self) -> None:
        """What was to leave stays: a stream takes that, too."""
        self.index.is_to_be_searched = True  # once that is released
        for found in (self.index.expired, self.index.exhausted):
            for entry in found:
                self.index.release(entry)
            found.clear()

    @property
    def consumed_through(self) -> int:
        """What is at or below this number is no message any more, wherever its file is."""
        return self.record.consumed if self.record is not None else 0

    def consume(self, record: Consumer) -> None:
        """Its record is hardened: what it says is consumed is forgotten."""
        gone, boundary = self.index.remove_through(record.consumed), (record.consumed + 1) >> RANGE_BITS
        left = len(gone)
        self.dequeued += left
        if self.room is not None:
            for message_id in gone:
                self._is_less(self.room, message_id)
        for number in [number for number in self.ranges if number < boundary]:
            left -= self.ranges[number]
            self.ranges[number] = 0
        if left:
            self.ranges[boundary] -= left
        for block in [one for blocks in self.blocks.values() for one in blocks if one.named.first <= record.consumed]:
            if block.named.last <= record.consumed:
                self.forget_block(block)
            else:
                block.take_through(record.consumed)
        self.record = record
        if self.in_flight is not None and self.in_flight[1] <= record.consumed:
            self.in_flight = None

    def oldest(self, now: int) -> Entry | None:
        """The message that is ready and was committed first; see ``QueueIndex.oldest``."""
        used = sorted(number for number, count in self.ranges.items() if count)
        return self.index.oldest(now, (range(n << RANGE_BITS, (n + 1) << RANGE_BITS) for n in used))

    def is_spent(self, number: int) -> bool:
        """Whether a range has no messages and takes none any more."""
        return not self.ranges.get(number) and number != (self.last + 1) >> RANGE_BITS

    def _is_to_be_cleared(self, number: int) -> bool:
        """Whether files of consumed messages may be there: then whoever clears these removes the range, too."""
        return self.cleared < self.consumed_through and number <= self.consumed_through >> RANGE_BITS

    def holds(self, number: int, messages: int) -> None:
        """A range holds so many messages more, which were found."""
        self.ranges[number] = self.ranges.get(number, 0) + messages

    def allocate(self) -> int:
        """The next commit sequence number; its range counts one more from here on, so that nobody removes it."""
        self.last = seq = self.last + 1
        number = seq >> RANGE_BITS
        self.ranges[number] = self.ranges.get(number, 0) + 1
        return seq

    def allocate_many(self, count: int) -> int:
        """The first of so many numbers of one range, as ``allocate``; those that are left of the one before are not
        used."""
        first = self.last + 1
        if first >> RANGE_BITS != (first + count - 1) >> RANGE_BITS:
            first = (first >> RANGE_BITS) + 1 << RANGE_BITS
        return self.keep_number(first, count)

    def return_number(self, seq: int, count: int = 1) -> None:
        """Numbers from this one on that were given to messages which did not come; they are not used again."""
        self.ranges[seq >> RANGE_BITS] -= count

    def keep_number(self, seq: int, count: int = 1) -> int:
        """Numbers that messages were given, before a crash too, and keep. Returns the first."""
        self.last = max(self.last, seq + count - 1)
        self.holds(seq >> RANGE_BITS, count)
        return seq

    def block(self, named: Named, gone: int = 0) -> MessageBlock:
        path, gone_path = layout.messages_path(self.name, named), layout.gone_path(self.name, named)
        return MessageBlock(self.name, named, path, gone_path, gone)

    def add_block(self, block: MessageBlock) -> None:
        """Many of its messages lie in this one."""
        insort(self.blocks.setdefault(block.named.first >> RANGE_BITS, []), block, key=_last_of)

    def block_of(self, seq: int) -> MessageBlock | None:
        """In which the message of this number lies; None where it has a file of its own."""
        blocks = self.blocks.get(seq >> RANGE_BITS, ())
        at = bisect_left(blocks, seq, key=_last_of)
        return blocks[at] if at < len(blocks) and blocks[at].named.first <= seq else None

    def path_of(self, entry: Entry) -> str:
        """Of the file in which a message lies."""
        block = self.block_of(entry.seq) if self.blocks else None
        if block is not None:
            return block.path
        return layout.message_path(self.name, entry.seq, entry.message_id, entry.tags)

    def kept(self, path: str) -> str:
        """Where what stands there goes; empty: away."""
        return self.kept_in and self.kept_in + path.removeprefix(layout.COMMITTED)

    def make_range(self, fs: FileSystem, seq: int) -> None:
        """Makes the directory that a number needs, and reserves it. Raises OSError.

        For those whose files are their record: numbers at or below ``reserved`` are not used again after a crash.
        """
        if seq > self.reserved:
            reserved = seq | (RANGE_SIZE - 1)
            if not self._has_directory:
                with suppress(FileExistsError):
                    fs.make_dir(layout.queue_path(self.name))
                self._has_directory = True
            watermark = Watermark(self.published, reserved)
            fs.write_at(layout.watermark_path(self.name), 0, [layout.format_watermark(watermark)])
            self.reserved = reserved
        if seq >> RANGE_BITS not in self.made_ranges:
            with suppress(FileExistsError):
                fs.make_dir(layout.range_path(self.name, seq))
            self.made_ranges.add(seq >> RANGE_BITS)

    def consumed(self, entry: Entry) -> bool:
        """The message's removal is hardened. Whether its range has become spent: whoever clears removes that."""
        if self.expiring:
            self.expiring.discard(entry)
        if self.index.remove(entry) and self.waiters:
            self.arrived.notify_all()
        if self.room is not None:
            self._is_less(self.room, entry.message_id)
        number = entry.seq >> RANGE_BITS
        if self.blocks and (block := entry.block or self.block_of(entry.seq)) is not None:
            block.left -= 1
            if not block.left:
                self.forget_block(block)
        self.ranges[number] = left = self.ranges[number] - 1
        return not left and self.is_spent(number)

    def consumed_run(self, run: Run) -> bool:
        """As ``consumed``, of all of these, which lie in one block."""
        self.index.remove_run(run)
        if (room := self.room) is not None:
            for message_id in run.ids:
                self._is_less(room, message_id)
        block, number, count = run.block or self.block_of(run.seq), run.seq >> RANGE_BITS, len(run.ids)
        if block is not None:
            block.left -= count
            if not block.left:
                self.forget_block(block)
        self.ranges[number] = left = self.ranges[number] - count
        return not left and self.is_spent(number)

    def forget_block(self, block: MessageBlock) -> None:
        """It is gone."""
        number = block.named.first >> RANGE_BITS
        block.opened = None
        self.blocks[number].remove(block)
        if not self.blocks[number]:
            del self.blocks[number]

    def spent_ranges(self) -> list[int]:
        """Those that may be removed, but for what is still to be cleared in them."""
        return [number for number in self.ranges if self.is_spent(number) and not self._is_to_be_cleared(number)]

    def remove_empty_ranges(self, fs: FileSystem) -> None:
        for number in [number for number, count in self.ranges.items() if not count]:
            if not self._is_to_be_cleared(number):
                self.remove_range(fs, number)

    def remove_range(self, fs: FileSystem, number: int) -> None:
        """Removes an emptied range directory; it stays with a foreign file in it, or for want of room."""
        try:
            self.made_ranges.discard(number)
            with suppress(FileNotFoundError):  # whose messages came and went before it was made
                fs.remove_dir(layout.range_path(self.name, number << RANGE_BITS))
            del self.ranges[number]
        except OSError as error:
            if error.errno != errno.ENOTEMPTY and error.errno not in NO_ROOM:
                raise

    @property
    def exists(self) -> bool:
        """Whether the queue has a directory; where that follows a journal, as of the opening."""
        return self._has_directory

    def directories(self) -> list[str]:
        """Its directory and those of its ranges."""
        if not self._has_directory:
            return []
        ranges = [layout.range_path(self.name, number << RANGE_BITS) for number in self.ranges]
        return [layout.queue_path(self.name), *ranges]

    def write_watermark(self, fs: FileSystem) -> None:
        fs.write_at(layout.watermark_path(self.name), 0, [layout.format_watermark(self.watermark)])

    @property
    def watermark(self) -> Watermark:
        return Watermark(self.published, max(self.reserved, self.last))
