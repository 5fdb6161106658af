"""Reads all committed messages into the queues' indexes; what cannot be read is quarantined.

After a clean close an image tells of the messages whose names are there; of all others the head is read. Bodies stay on
disk. A small file comes whole with its head and is checked bit for bit; a large one is checked for its length here and
for its checksum when it is dequeued, as are the files of messages that an image tells of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import chain
from types import TracebackType
from typing import TYPE_CHECKING

from xaqueue.command import (
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
from xaqueue.errors import DamagedBlock
from xaqueue.index import Entry
from xaqueue.message import MessageId, Properties
from xaqueue.space import image, layout, quarantine
from xaqueue.space.layout import COMMITTED, RANGE_BITS, Watermark
from xaqueue.storage.fs import FileSystem

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

    from xaqueue.space.queue import Queue
    from xaqueue.space.space import Space

Progress = Callable[[int, int], None]
"""Called with messages read and, about, messages there, now and then."""
SetAside = Callable[[str, str], None]
"""Quarantines a path for a reason."""
Found = Entry | str | None
"""The entry that a message's file makes, or what is wrong with the file, or None where it is gone."""

READERS = 4
SLICE = 128
"""Files that one thread reads at a time."""

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
        return unpack_list(decode(fs.read(path)).body)
    except OSError as error:
        raise damage_of(fs, path, error) from error


def damage_of(fs: FileSystem, path: str, error: OSError) -> Exception:
    """The DamagedBlock that a failed read of this one file is, or the error itself where it concerns the space."""
    if quarantine.is_damage(fs, path, error):
        return DamagedBlock(f"cannot be read: {error.strerror}")
    return error


def load(space: Space, set_aside: SetAside, note: Callable[[str], None], progress: Progress | None) -> int:
    """Fills ``space.queues`` from ``committed/``; returns the number of messages.

    In memory are the names of one range directory at a time; so how many messages are to come is an estimate.
    """
    found = [(queue, _ranges(space.fs, queue.name, set_aside)) for queue in _queues(space, set_aside)]
    left = sum(len(ranges) for _, ranges in found)
    read = done = 0
    with _Readers() as readers:
        for queue, ranges in found:
            loading = _Loading(space, queue, set_aside, readers)
            for number in ranges:
                done += loading.load_range(number)
                read, left = read + 1, left - 1
                if progress is not None:
                    progress(done, done + left * done // read)
            if loading.newest:
                space.committed_by(space.fs.modified_ns(loading.newest) // 1000)
            watermark = _watermark(space, queue, bool(ranges), set_aside, note)
            queue.found(loading.counts, loading.last, watermark)
    for queue, _ in found if space.read_only is None else ():
        image.discard(space.fs, queue.name)
    return done


def remaining_s(done: int, total: int, elapsed_s: float) -> float:
    """How long the rest takes if it goes on like this."""
    return elapsed_s * (total - done) / done if done else 0.0


def _queues(space: Space, set_aside: SetAside) -> list[Queue]:
    queues = []
    for name in sorted(space.fs.list(COMMITTED)):
        queue_name = layout.parse_queue_directory(name)
        if queue_name is not None and space.fs.is_dir(layout.queue_path(queue_name)):
            queues.append(space.queue(queue_name))
        elif not name.startswith("."):
            why = "its name is not queue=<name>" if queue_name is None else "a file where a queue's directory should be"
            set_aside(f"{COMMITTED}/{name}", f"no queue directory: {why}")
    return queues


def _ranges(fs: FileSystem, queue: str, set_aside: SetAside) -> list[int]:
    directory = layout.queue_path(queue)
    ranges = []
    for name in sorted(fs.list(directory)):
        number = layout.parse_range(name)
        path = f"{directory}/{name}"
        if number is not None and fs.is_dir(path):
            ranges.append(number)
        elif not name.startswith("."):
            set_aside(path, "no range directory")
    return ranges


class _Loading:
    """One queue's messages: each from the image, or from its file."""

    def __init__(self, space: Space, queue: Queue, set_aside: SetAside, readers: _Readers) -> None:
        self._fs = space.fs
        self._queue = queue
        self._set_aside = set_aside
        self._readers = readers
        found = image.read(space.fs, queue.name)
        self._sections = found.sections if found is not None and found.follows(space.epoch) else {}
        self.counts: dict[int, int] = {}
        """Messages in each range."""
        self.last = 0
        self.newest = ""
        """The highest number, and the path of its message."""

    def load_range(self, number: int) -> int:
        """Adds the messages of a range directory; returns how many names it has."""
        directory = layout.range_path(self._queue.name, number << RANGE_BITS)
        names = sorted(name for name in self._fs.list(directory) if not name.startswith("."))
        index = self._queue.index
        before = len(index)
        section = self._sections.pop(number, None)
        if section is not None and section.matches(names) and section.add_to(index, self._queue.name):
            self.last, self.newest = int(names[-1][:16], 16), f"{directory}/{names[-1]}"
        else:
            told = section.entries(self._queue.name) if section is not None else ()
            known = {(entry.seq, entry.message_id): entry for entry in told}
            self._load_each(number, [f"{directory}/{name}" for name in names], known)
        self.counts[number] = len(index) - before
        return len(names)

    def _load_each(self, number: int, paths: Sequence[str], known: Mapping[tuple[int, MessageId], Entry]) -> None:
        def read(path: str) -> Found:
            parsed = layout.parse_message(path.rpartition("/")[2])
            if parsed is None or parsed[0] >> RANGE_BITS != number:
                return "no message of this range: its name is not <seq>.<message id>"
            return known.get(parsed) or self._read(path, *parsed)

        for path, found in zip(paths, self._readers.map(read, paths), strict=True):
            if isinstance(found, Entry):
                self._add(path, found)
            elif found is not None:
                self._set_aside(path, found)

    def _add(self, path: str, entry: Entry) -> None:
        if entry.message_id in self._queue.index:
            why = f"message {entry.message_id.hex()} stands in its queue twice; the earlier one is kept"
            self._set_aside(path, why)
        elif self.newest and entry.seq == self.last:
            self._set_aside(path, f"another message of its queue has its number, {entry.seq:,}, and is kept")
        else:
            self._queue.index.add(entry)
            self.last, self.newest = entry.seq, path

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


class _Readers:
    """Reads files in the order in which they are asked for, several at once where they are many.

    On a cold disk this takes a third of the time; from memory it takes a little longer.
    """

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None

    def __enter__(self) -> _Readers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def map(self, read: Callable[[str], Found], paths: Sequence[str]) -> Iterator[Found]:
        if len(paths) <= SLICE:
            return map(read, paths)
        if self._pool is None:
            from concurrent.futures import ThreadPoolExecutor

            self._pool = ThreadPoolExecutor(READERS, "xaqueue-load")
        slices = (paths[first : first + SLICE] for first in range(0, len(paths), SLICE))
        return chain.from_iterable(self._pool.map(lambda part: [read(path) for path in part], slices))


def check_message(head: Head | Block, queue: str, message_id: MessageId) -> None:
    """DamagedBlock unless this is the message that its name says."""
    if head.kind not in (Kind.ENQUEUE, Kind.UPDATE):
        raise DamagedBlock(f"a block of kind {head.kind.name.lower()} is no message")
    if head.message_id != message_id:
        raise DamagedBlock(f"holds message {head.message_id.hex()}, not the one it is named after")
    if head.properties.queue != queue:
        raise DamagedBlock(f"belongs to queue {head.properties.queue!r}, not {queue!r}")


def _watermark(
    space: Space, queue: Queue, used: bool, set_aside: SetAside, note: Callable[[str], None]
) -> Watermark | None:
    """The queue's watermark. Where it is lost, one that is above every number that can have been used before."""
    path = layout.watermark_path(queue.name)
    data: bytes | None
    try:
        data = space.fs.read(path, 4096)
    except OSError as error:
        missing = not space.fs.exists(path)
        if not missing and not quarantine.is_damage(space.fs, path, error):
            raise
        data = b"" if missing else None
    watermark = layout.parse_watermark(data) if data else None
    if watermark is not None:
        return watermark
    if data == b"":  # a crash leaves it missing or empty while the queue's first message is on its way
        if not used:
            return None
        reason = "is missing or empty"
    else:
        set_aside(path, "no watermark: damaged or foreign")
        reason = "was damaged"
    above = max(space.now_us(), 1)
    note(f"the watermark of queue {queue.name} {reason}: its numbers go on at {above:,}, so that none is used twice")
    return Watermark(above, above)
