"""Reads the heads of all committed messages into the queues' indexes; what cannot be read is quarantined.

Bodies stay on disk. A small file comes whole with its head and is checked bit for bit; a large one is checked for its
length here and for its checksum when it is dequeued.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from xaqueue.command import HEAD_READ_BYTES, Block, Head, Kind, Listed, decode, decode_head, unpack_list, verify
from xaqueue.errors import DamagedBlock
from xaqueue.index import Entry
from xaqueue.message import MessageId
from xaqueue.space import layout, quarantine
from xaqueue.space.layout import COMMITTED, RANGE_BITS, Watermark
from xaqueue.storage.fs import FileSystem

if TYPE_CHECKING:
    from xaqueue.space.queue import Queue
    from xaqueue.space.space import Space

Progress = Callable[[int, int], None]
"""Called with messages read and messages there, now and then."""
SetAside = Callable[[str, str], None]
"""Quarantines a path for a reason."""


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
    """Fills ``space.queues`` from ``committed/``; returns the number of messages."""
    found: list[tuple[Queue, list[tuple[int, list[str]]]]] = []
    for name in sorted(space.fs.list(COMMITTED)):
        queue_name = layout.parse_queue_directory(name)
        if queue_name is not None and space.fs.is_dir(layout.queue_path(queue_name)):
            found.append((space.queue(queue_name), _ranges(space.fs, queue_name, set_aside)))
        elif not name.startswith("."):
            why = "its name is not queue=<name>" if queue_name is None else "a file where a queue's directory should be"
            set_aside(f"{COMMITTED}/{name}", f"no queue directory: {why}")
    total = sum(len(names) for _, ranges in found for _, names in ranges)
    done = 0
    for queue, ranges in found:
        counts: dict[int, int] = {}
        last = 0
        newest: Entry | None = None
        for number, names in ranges:
            counts[number] = 0
            for name in names:
                entry = _entry(space.fs, queue, number, name, set_aside)
                if entry is not None:
                    queue.index.add(entry)
                    counts[number] += 1
                    last, newest = entry.seq, entry
            done += len(names)
            if progress is not None:
                progress(done, total)
        if newest is not None:
            path = layout.message_path(queue.name, newest.seq, newest.message_id)
            space.committed_by(space.fs.modified_ns(path) // 1000)
        queue.found(counts, last, _watermark(space, queue, bool(ranges), set_aside, note))
    return done


def _ranges(fs: FileSystem, queue: str, set_aside: SetAside) -> list[tuple[int, list[str]]]:
    directory = layout.queue_path(queue)
    ranges = []
    for name in sorted(fs.list(directory)):
        number = layout.parse_range(name)
        path = f"{directory}/{name}"
        if number is not None and fs.is_dir(path):
            ranges.append((number, sorted(inner for inner in fs.list(path) if not inner.startswith("."))))
        elif not name.startswith("."):
            set_aside(path, "no range directory")
    return ranges


def _entry(fs: FileSystem, queue: Queue, number: int, name: str, set_aside: SetAside) -> Entry | None:
    path = f"{layout.range_path(queue.name, number << RANGE_BITS)}/{name}"
    parsed = layout.parse_message(name)
    if parsed is None or parsed[0] >> RANGE_BITS != number:
        set_aside(path, "no message of this range: its name is not <seq>.<message id>")
        return None
    seq, message_id = parsed
    try:
        head = read_head(fs, path)
        check_message(head, queue.name, message_id)
    except DamagedBlock as damage:
        set_aside(path, str(damage))
        return None
    except FileNotFoundError:
        return None
    if message_id in queue.index:
        set_aside(path, f"message {message_id.hex()} stands in its queue twice; the earlier one is kept")
        return None
    return Entry(seq, message_id, head.properties, head.size_bytes)


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
