"""What stands in ``committed/``: its queues, their ranges, and the numbers that they are at. No message is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xaqueue.errors import DamagedBlock
from xaqueue.space.engine.state import Space
from xaqueue.space.model import layout, stream_records
from xaqueue.space.model.layout import COMMITTED, RANGE_BITS, STREAMS, Watermark
from xaqueue.space.model.queue import Queue
from xaqueue.space.model.stream_records import StreamRecord
from xaqueue.storage.fs import FileSystem, is_damage

SetAside = Callable[[str, str], None]
"""Quarantines a path for a reason."""


def queues(space: Space, set_aside: SetAside) -> list[Queue]:
    found = []
    for name in sorted(space.fs.list(COMMITTED)):
        queue_name = layout.parse_queue_directory(name)
        if queue_name is not None and space.fs.is_dir(layout.queue_path(queue_name)):
            found.append(space.queue(queue_name))
        elif not name.startswith("."):
            why = "its name is not queue=<name>" if queue_name is None else "a file where a queue's directory should be"
            set_aside(f"{COMMITTED}/{name}", f"no queue directory: {why}")
    return found


def streams(space: Space, set_aside: SetAside, note: Callable[[str], None]) -> None:
    """Who consumes the queues, and how far. A damaged record stays, and its queue is kept for nobody knows whom.

    No crash leaves one: its content is hardened before its name.
    """
    try:
        names = space.fs.list(STREAMS)
    except FileNotFoundError:
        return  # of an older version, and open for reading only
    for name in sorted(name for name in names if not name.startswith(".")):
        path, queue_name = f"{STREAMS}/{name}", layout.parse_queue_directory(name)
        if queue_name is None:
            set_aside(path, "no record of a stream: its name is not queue=<name>")
            continue
        queue = space.queue(queue_name)
        try:
            record = stream_records.read(space.fs, queue_name)
        except DamagedBlock as damage:
            record = StreamRecord(queue_name, "", damage=str(damage))
        except OSError as error:
            if not is_damage(space.fs, path, error):
                raise
            record = StreamRecord(queue_name, "", damage=f"cannot be read: {error.strerror}")
        if record is not None:
            queue.keep(record)
            if record.damage:
                note(f"{path}: {stream_records.refusal(record)}")


def ranges(fs: FileSystem, queue: str, set_aside: SetAside) -> list[int]:
    directory = layout.queue_path(queue)
    found = []
    for name in sorted(fs.list(directory)):
        number = layout.parse_range(name)
        path = f"{directory}/{name}"
        if number is not None and fs.is_dir(path):
            found.append(number)
        elif not name.startswith("."):
            set_aside(path, "no range directory")
    return found


def newest(fs: FileSystem, queue: str, ranges: Sequence[int]) -> tuple[int, int]:
    """The highest number in the queue's directory, and when it was committed; 0 for what cannot be told."""
    for number in reversed(ranges):
        directory = layout.range_path(queue, number << RANGE_BITS)
        places = [(layout.parse_message(name), name) for name in fs.list(directory)]
        found = [(place[0], name) for place, name in places if place is not None and place[0] >> RANGE_BITS == number]
        if found:
            seq, name = max(found)
            return seq, _modified_us(fs, f"{directory}/{name}")
    return 0, 0


def _modified_us(fs: FileSystem, path: str) -> int:
    try:
        return fs.modified_ns(path) // 1000
    except OSError as error:
        if not is_damage(fs, path, error):
            raise
        return 0


def watermark(
    space: Space, queue: Queue, used: bool, set_aside: SetAside, note: Callable[[str], None]
) -> Watermark | None:
    """The queue's watermark. Where it is lost, one that is above every number that can have been used before."""
    path = layout.watermark_path(queue.name)
    data: bytes | None
    try:
        data = space.fs.read(path, 4096)
    except OSError as error:
        missing = not space.fs.exists(path)
        if not missing and not is_damage(space.fs, path, error):
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
