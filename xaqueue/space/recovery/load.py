"""Reads all committed messages into the queues' indexes; what cannot be read is quarantined.

After a clean close an image tells of the messages whose names are there, and after a kill those of full ranges do; of
all others the head is read. Bodies stay on disk. A small file comes whole with its head and is checked bit for bit; a
large one is checked for its length here and for its checksum when it is dequeued, as are the files of messages that an
image tells of.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING

from xaqueue.errors import DamagedBlock
from xaqueue.message import MessageId, Properties
from xaqueue.space.engine import image, range_images
from xaqueue.space.model import layout
from xaqueue.space.model.block import (
    HEAD_READ_BYTES,
    Block,
    Head,
    Kind,
    Listed,
    decode,
    decode_head,
    decode_message,
    unpack_list,
    verify,
)
from xaqueue.space.model.block_files import damage_of, read_block
from xaqueue.space.model.index import Entry
from xaqueue.space.model.layout import RANGE_BITS
from xaqueue.space.recovery import stock
from xaqueue.space.recovery.readers import Readers
from xaqueue.space.recovery.stock import SetAside
from xaqueue.storage.fs import FileSystem

if TYPE_CHECKING:
    from xaqueue.space.engine.state import Space
    from xaqueue.space.model.queue import Queue

Progress = Callable[[int, int], None]
"""Called with messages read and, about, messages there, now and then."""
Found = Entry | str | None
"""The entry that a message's file makes, or what is wrong with the file, or None where it is gone."""

_NO_LIMIT = 1 << 64
_DECIDING = ("correlation_id", "priority", "not_before", "expires_at", "tries", "unknown")
_PLAIN_NAMES = frozenset(field.name for field in fields(Properties)).difference(_DECIDING)
"""Properties that do not decide a message's turn."""
_PLAIN = Properties("")


def read_head(fs: FileSystem, path: str) -> Head:
    """The head of a block whose file is as long as it must be. Raises DamagedBlock also for a file nobody can read."""
    try:
        data = fs.read(path, HEAD_READ_BYTES)
        head = decode_head(data)
        if len(data) < HEAD_READ_BYTES:
            verify(head, data)
        elif fs.size(path) != head.size_bytes:
            raise DamagedBlock(f"{fs.size(path):,} bytes instead of {head.size_bytes:,}: truncated or overwritten")
    except OSError as error:
        raise damage_of(fs, path, error) from error
    return head


def read_list(fs: FileSystem, path: str) -> list[Listed]:
    """What a branch block lists. Raises DamagedBlock as ``read_head`` does."""
    try:
        return unpack_list(decode(read_block(fs, path)).body)
    except OSError as error:
        raise damage_of(fs, path, error) from error


class Load:
    """The messages of all queues. First those that branches name are placed, and then all others are loaded.

    Between the two, and while the others are loaded, branches in doubt may be committed and rolled back: they touch
    only messages that were placed, and give out numbers above all that are found.
    """

    def __init__(self, space: Space, set_aside: SetAside, note: Callable[[str], None]) -> None:
        """Finds the queues, their ranges and their numbers; of the messages it reads none."""
        self._space = space
        self._set_aside = set_aside
        self._readers = Readers()
        queues = stock.queues(space, set_aside)
        self._found = [(queue, stock.ranges(space.fs, queue.name, set_aside)) for queue in queues]
        self._begun: dict[str, _Loading] = {}
        self.highest: dict[str, int] = {}
        """The highest number in each queue, before others used what was placed."""
        for queue, ranges in self._found:
            last, when_us = stock.newest(space.fs, queue.name, ranges)
            space.committed_by(when_us)
            queue.found(ranges, last, stock.watermark(space, queue, bool(ranges), set_aside, note))
            space.range_images.find(space, queue, ranges)
        stock.streams(space, set_aside, note)

    def place(self, wanted: Mapping[str, Collection[MessageId]]) -> None:
        """Loads these messages, by queue, as far as they are there."""
        for queue, ranges in self._found:
            if queue.name in wanted:
                loading = self._begun[queue.name] = _Loading(self._space, queue, self._set_aside, self._readers)
                loading.place(ranges, {message_id.hex() for message_id in wanted[queue.name]})
                image.discard(self._space.fs, queue.name)

    def is_placed(self) -> None:
        """From here on others may use what was placed."""
        for queue in self._space.queues.values():
            self.highest[queue.name] = queue.last
            if queue.name in self._begun:
                self._begun[queue.name].go_on()

    def rest(self, progress: Progress | None) -> None:
        """Loads all others. In memory are the names of one range directory at a time; so how many there are to be is
        an estimate.
        """
        left = sum(len(ranges) for _, ranges in self._found)
        read = done = 0
        with self._readers:
            for queue, ranges in self._found:
                loading = self._begun.pop(queue.name, None)
                loading = loading or _Loading(self._space, queue, self._set_aside, self._readers)
                for number in ranges:
                    done += loading.load_range(number)
                    read, left = read + 1, left - 1
                    if progress is not None:
                        progress(done, done + left * done // read)
        for queue, _ in self._found if self._space.read_only is None else ():
            image.discard(self._space.fs, queue.name)


def remaining_s(done: int, total: int, elapsed_s: float) -> float:
    """How long the rest takes if it goes on like this."""
    return elapsed_s * (total - done) / done if done else 0.0


class _Loading:
    """One queue's messages: each from the image, or from its file."""

    def __init__(self, space: Space, queue: Queue, set_aside: SetAside, readers: Readers) -> None:
        self._space = space
        self._fs = space.fs
        self._lock = space.lock
        self._queue = queue
        self._set_aside = set_aside
        self._readers = readers
        found = image.read(space.fs, queue.name)
        self._sections = found.sections if found is not None and found.follows(space.epoch) else {}
        self._last = -1
        """The number of the message that was added last."""
        self._placed: dict[MessageId, int] = {}
        """The numbers of those that were in the index before all others are loaded."""
        self._taken: frozenset[int] = frozenset()
        """The same numbers."""
        self._begin = (queue.consumed_through + 1) >> RANGE_BITS
        """The first range that a stream has not consumed wholly."""
        self._consumed = f"{queue.consumed_through:016x}.~" if queue.consumed_through else ""
        """Above the names of all messages that it has consumed."""
        self._highest = _NO_LIMIT
        """Numbers above it are of messages that are committed while the others are loaded."""

    def place(self, ranges: Sequence[int], wanted: Collection[str]) -> None:
        """Adds the messages of these ids, in hex."""
        for number in ranges:
            directory = layout.range_path(self._queue.name, number << RANGE_BITS)
            listed = self._unconsumed(self._fs.list(directory))
            paths = [f"{directory}/{name}" for name in listed if name[17:] in wanted]
            self._load_each(number, sorted(paths), {})

    def go_on(self) -> None:
        """All that is loaded from here on is beside what was placed, which others use."""
        self._placed = {entry.message_id: entry.seq for entry in self._queue.index.entries(0)}
        self._taken = frozenset(self._placed.values())
        self._highest, self._last = self._queue.last, -1

    def load_range(self, number: int) -> int:
        """Adds the messages of a range directory; returns how many names it has."""
        directory = layout.range_path(self._queue.name, number << RANGE_BITS)
        try:
            listed = self._unconsumed(self._fs.list(directory)) if number >= self._begin else ()
            names = sorted(name for name in listed if not name.startswith("."))
        except FileNotFoundError:
            return 0  # a branch in doubt took the last one
        section = self._sections.pop(number, None) or range_images.read(self._space, self._queue, number)
        if section is None or not self._add_section(number, section, names):
            told = section.entries(self._queue.name) if section is not None else ()
            known = {(entry.seq, entry.message_id): entry for entry in told}
            self._load_each(number, [f"{directory}/{name}" for name in names], known)
        return len(names)

    def _unconsumed(self, names: Sequence[str]) -> Sequence[str]:
        """Without those that a stream has consumed, whose files are going to be removed."""
        if not self._consumed:
            return names
        return [name for name in names if name > self._consumed or len(name) != layout.MESSAGE_NAME]

    def _add_section(self, number: int, section: image.Section, names: Sequence[str]) -> bool:
        """Adds what the image tells of a range, where it is exactly what is there, and no branch uses any of it."""
        if number in {seq >> RANGE_BITS for seq in self._taken} or not section.matches(names):
            return False
        with self._lock:
            if not section.add_to(self._queue.index, self._queue.name):
                return False
            self._last = int(names[-1][:16], 16)
            self._queue.holds(number, len(names))
        return True

    def _load_each(self, number: int, paths: Sequence[str], known: Mapping[tuple[int, MessageId], Entry]) -> None:
        def read(path: str) -> Found:
            parsed = layout.parse_message(path.rpartition("/")[2])
            if parsed is None or parsed[0] >> RANGE_BITS != number:
                return "no message of this range: its name is not <seq>.<message id>"
            if parsed[0] > self._highest or self._placed.get(parsed[1]) == parsed[0]:
                return None
            return known.get(parsed) or self._read(path, *parsed)

        for path, found in zip(paths, self._readers.map(read, paths), strict=True):
            wrong = self._add(number, found) if isinstance(found, Entry) else found
            if wrong:
                self._set_aside(path, wrong)

    def _add(self, number: int, entry: Entry) -> str:
        """Returns what is wrong with it."""
        if entry.message_id in self._placed or entry.message_id in self._queue.index:
            return f"message {entry.message_id.hex()} stands in its queue twice; the earlier one is kept"
        if entry.seq == self._last or entry.seq in self._taken:
            return f"another message of its queue has its number, {entry.seq:,}, and is kept"
        with self._lock:
            self._queue.index.add(entry)
            self._queue.holds(number, 1)
        self._last = entry.seq
        return ""

    def _read(self, path: str, seq: int, message_id: MessageId) -> Found:
        try:
            return self._entry(path, seq, message_id)
        except DamagedBlock as damage:
            return str(damage)
        except FileNotFoundError:
            return None

    def _entry(self, path: str, seq: int, message_id: MessageId) -> Entry:
        try:
            data = self._fs.read(path, HEAD_READ_BYTES)
        except OSError as error:
            raise damage_of(self._fs, path, error) from error
        if len(data) < HEAD_READ_BYTES:
            found, stored, _ = decode_message(data)
            if found == message_id and stored.get("queue") == self._queue.name and stored.keys() <= _PLAIN_NAMES:
                return Entry(seq, message_id, _PLAIN, len(data))
        head = read_head(self._fs, path)
        check_message(head, self._queue.name, message_id)
        return Entry(seq, message_id, head.properties, head.size_bytes)


def check_message(head: Head | Block, queue: str, message_id: MessageId) -> None:
    """DamagedBlock unless this is the message that its name says."""
    if head.kind not in (Kind.ENQUEUE, Kind.UPDATE):
        raise DamagedBlock(f"a block of kind {head.kind.name.lower()} is no message")
    if head.message_id != message_id:
        raise DamagedBlock(f"holds message {head.message_id.hex()}, not the one it is named after")
    if head.properties.queue != queue:
        raise DamagedBlock(f"belongs to queue {head.properties.queue!r}, not {queue!r}")
