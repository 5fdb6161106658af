"""Message files become Arrow batches, every bit of them checked, in the columns that the query asked for.

A batch is closed at 2,000 rows or 4 MiB, whichever comes first: Spark takes a batch over at once, and tuples one at a
time at a fifth of the speed. Damage is reported by the name of the file, and nothing damaged is ever passed over.

For planning the same files tell their sizes and their times, and are not read: 2.2 microseconds a message in the page
cache, a tenth of what reading it costs later.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from xaqueue.errors import DamagedBlock
from xaqueue.space.model.block import split_message, stored_in
from xaqueue.space.model.block_files import read_message
from xaqueue.space.model.layout import RANGE_BITS, RANGE_SIZE, range_path
from xaqueue.space.model.message_name import ID_DIGITS
from xaqueue.space.offline.reader import QueueReader
from xaqueue.spark.source.columns import Columns, Rows
from xaqueue.storage.read_ahead import ahead
from xaqueue.storage.regular import READ

BATCH_ROWS = 2_000
BATCH_BYTES = 4 * 1024 * 1024
NS_PER_MS = 1_000_000

Found = tuple[int, str, bytes, int]
"""Sequence number, file name, the block's bytes, and when it was committed."""
Item = TypeVar("Item")


def files(reader: QueueReader, after: int, upto: int, *, times: bool = True) -> Iterator[Found]:
    """The messages with after < seq <= upto, ascending; what was consumed is left out. ``times``: or else all are 0."""
    flags = READ | os.O_NOATIME
    for directory, found in _directories(reader, after, upto):
        for seq, name in ahead(directory, found):
            try:
                read = read_message(directory, name, flags)
            except PermissionError:  # the files are somebody else's: then each first reading is noted in the inode
                flags = READ
                read = read_message(directory, name, flags)
            if read is not None:
                yield seq, name, read[0], read[1] if times else 0


def sizes(reader: QueueReader, after: int, upto: int) -> Iterator[tuple[int, int]]:
    """(seq, size in bytes) of the messages there are, ascending, looked up one by one as they are asked for."""
    for directory, found in _directories(reader, after, upto):
        for seq, name in found:
            try:
                yield seq, os.stat(name, dir_fd=directory, follow_symlinks=False).st_size
            except FileNotFoundError:
                continue  # consumed


def _directories(reader: QueueReader, after: int, upto: int) -> Iterator[tuple[int, list[tuple[int, str]]]]:
    """Each range directory, open, with the numbers and names in it."""
    for number, found in reader.names(after, upto):
        try:
            directory = os.open(reader.space / range_path(reader.queue, number << RANGE_BITS), os.O_RDONLY)
        except FileNotFoundError:
            continue
        try:
            yield directory, found
        finally:
            os.close(directory)


def record_batches(found: Iterator[Found], empty: Rows, columns: Columns) -> Iterator[pa.RecordBatch]:
    """Batches in the order of the messages; ``empty``: of their queue. Raises DamagedBlock and not its batch."""
    wants_stored = "stored" in columns.needs
    rows, size_bytes = _fresh(empty), 0
    for seq, name, data, time_ns in found:
        try:
            message_id, packed, body = split_message(data)
            if message_id.hex() != name[ID_DIGITS]:
                raise DamagedBlock(f"holds message {message_id.hex()}: renamed or copied by hand")  # noqa: TRY301
            if wants_stored:
                stored = stored_in(packed)
                if seq in rows.tries:
                    stored["tries"] = rows.tries[seq]
                rows.stored.append(stored)
        except DamagedBlock as damage:
            path = Path(empty.space) / range_path(empty.queue, seq) / name
            raise DamagedBlock(f"{path}: {damage}") from None
        rows.seqs.append(seq)
        rows.ids.append(message_id)
        rows.bodies.append(body)
        rows.times_ns.append(time_ns)
        size_bytes += len(data)
        if len(rows.seqs) == BATCH_ROWS or size_bytes >= BATCH_BYTES:
            yield _batch(rows, columns)
            rows, size_bytes = _fresh(empty), 0
    if rows.seqs:
        yield _batch(rows, columns)


def _fresh(empty: Rows) -> Rows:
    return replace(empty, seqs=[], ids=[], bodies=[], stored=[], times_ns=[])


def _batch(rows: Rows, columns: Columns) -> pa.RecordBatch:
    try:
        return pa.RecordBatch.from_arrays(columns.arrays(rows), schema=columns.schema)
    except (pa.ArrowException, TypeError, AttributeError) as error:
        raise DamagedBlock(
            f"queue {rows.queue}, messages {rows.seqs[0]} to {rows.seqs[-1]}: a property is not of its type: {error}"
        ) from error


def last_before(reader: QueueReader, time_ms: int, upto: int) -> int:
    """The number after which the messages begin that were committed at ``time_ms`` or later; ``upto`` without any.

    Messages of a queue are committed in the order of their numbers, and the modification time of a file is its commit
    time: so it is found by bisection, as far as the clock ascends, and a few directories are listed. Numbers between
    there and the first of these messages belong to messages that are gone.
    """

    def names(number: int) -> list[tuple[int, str]]:
        first = number << RANGE_BITS
        found = list(reader.names(max(0, first - 1), min(upto, first + RANGE_SIZE - 1)))
        return found[0][1] if found else []

    def time(found: tuple[int, str]) -> int | None:
        try:
            path = reader.space / range_path(reader.queue, found[0]) / found[1]
            return os.stat(path, follow_symlinks=False).st_mtime_ns  # noqa: PTH116
        except FileNotFoundError:
            return None

    def last_time(number: int) -> int | None:
        return next((last for found in reversed(names(number)) if (last := time(found)) is not None), None)

    ranges = [number for number in reader.ranges() if number << RANGE_BITS <= upto]
    place = _first_since(time_ms * NS_PER_MS, ranges, last_time)
    if place == len(ranges):
        return upto
    held = names(ranges[place])
    place = _first_since(time_ms * NS_PER_MS, held, time)
    return held[place][0] - 1 if place < len(held) else upto


def _first_since(time_ns: int, items: list[Item], time_of: Callable[[Item], int | None]) -> int:
    """The place of the first that is not before this time; what is gone has no time, and goes from the list."""
    low, high = 0, len(items)
    while low < high:
        middle = (low + high) // 2
        found = time_of(items[middle])
        if found is None:
            del items[middle]
            high -= 1
        elif found >= time_ns:
            high = middle
        else:
            low = middle + 1
    return low
