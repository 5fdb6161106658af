"""A moment becomes a sequence number by bisection: a few directories are listed, whatever the queue holds.

Messages of a queue are committed in the order of their numbers, and a message file's modification time is its commit
time; so the times ascend with the numbers, as far as the clock does.
"""

from __future__ import annotations

import os

from xaqueue.space.model.layout import RANGE_BITS, RANGE_SIZE, range_path
from xaqueue.space.offline.reader import QueueReader

NS_PER_MS = 1_000_000


def last_before(reader: QueueReader, time_ms: int, upto: int) -> int:
    """The number after which the messages begin that were committed at ``time_ms`` or later; ``upto`` without any.

    Numbers between there and the first of them belong to messages that are gone.
    """
    ranges = [number for number in reader.ranges() if number << RANGE_BITS <= upto]
    low, high = 0, len(ranges)
    while low < high:
        middle = (low + high) // 2
        times = _edge(reader, ranges[middle], upto)
        if times is None:  # emptied since: nothing to go by, and nothing to be found in it
            del ranges[middle]
            high -= 1
        elif times >= time_ms * NS_PER_MS:
            high = middle
        else:
            low = middle + 1
    if low == len(ranges):
        return upto
    return _within(reader, ranges[low], time_ms, upto)


def _edge(reader: QueueReader, number: int, upto: int) -> int | None:
    """The commit time of the last message of a range, in nanoseconds; None where there is none."""
    for _, name in reversed(_names(reader, number, upto)):
        time_ns = _time(reader, number, name)
        if time_ns is not None:
            return time_ns
    return None


def _within(reader: QueueReader, number: int, time_ms: int, upto: int) -> int:
    names = _names(reader, number, upto)
    low, high = 0, len(names)
    while low < high:
        middle = (low + high) // 2
        time_ns = _time(reader, number, names[middle][1])
        if time_ns is None:
            del names[middle]
            high -= 1
        elif time_ns >= time_ms * NS_PER_MS:
            high = middle
        else:
            low = middle + 1
    return names[low][0] - 1 if low < len(names) else upto


def _names(reader: QueueReader, number: int, upto: int) -> list[tuple[int, str]]:
    first = number << RANGE_BITS
    found = list(reader.names(max(0, first - 1), min(upto, first + RANGE_SIZE - 1)))
    return found[0][1] if found else []


def _time(reader: QueueReader, number: int, name: str) -> int | None:
    try:
        path = reader.space / range_path(reader.queue, number << RANGE_BITS) / name
        return os.stat(path, follow_symlinks=False).st_mtime_ns  # noqa: PTH116
    except FileNotFoundError:
        return None
