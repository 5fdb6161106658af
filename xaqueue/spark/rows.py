"""Message files become Arrow batches, every bit of them checked, in the columns that the query asked for.

A batch is closed at 2,000 rows or 4 MiB, whichever comes first: Spark takes a batch over at once, and tuples one at a
time at a fifth of the speed. Damage is reported by the name of the file, and nothing damaged is ever passed over.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from xaqueue.errors import DamagedBlock
from xaqueue.space.model.block import split_message, stored_in
from xaqueue.space.model.block_files import read_message
from xaqueue.space.model.layout import RANGE_BITS, range_path
from xaqueue.space.offline.reader import QueueReader
from xaqueue.spark.columns import Columns, Rows
from xaqueue.storage.read_ahead import ahead
from xaqueue.storage.regular import READ

BATCH_ROWS = 2_000
BATCH_BYTES = 4 * 1024 * 1024

Found = tuple[int, str, bytes, int]
"""Sequence number, file name, the block's bytes, and when it was committed."""


def files(reader: QueueReader, after: int, upto: int, *, times: bool = True) -> Iterator[Found]:
    """The messages with after < seq <= upto, ascending; what was consumed is left out. ``times``: or else all are 0."""
    flags = READ | os.O_NOATIME
    for number, found in reader.names(after, upto):
        try:
            directory = os.open(reader.space / range_path(reader.queue, number << RANGE_BITS), os.O_RDONLY)
        except FileNotFoundError:
            continue
        try:
            for seq, name in ahead(directory, found):
                try:
                    read = read_message(directory, name, flags)
                except PermissionError:  # the files are somebody else's: then each first reading is noted in the inode
                    flags = READ
                    read = read_message(directory, name, flags)
                if read is not None:
                    yield seq, name, read[0], read[1] if times else 0
        finally:
            os.close(directory)


def record_batches(found: Iterator[Found], empty: Rows, columns: Columns) -> Iterator[pa.RecordBatch]:
    """Batches in the order of the messages; ``empty``: of their queue. Raises DamagedBlock and not its batch."""
    wants_stored = "stored" in columns.needs
    rows, size_bytes = _fresh(empty), 0
    for seq, name, data, time_ns in found:
        try:
            message_id, packed, body = split_message(data)
            _check_id(message_id, name)
            if wants_stored:
                rows.stored.append(stored_in(packed))
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


def _check_id(written: bytes, name: str) -> None:
    if written.hex() != name[17:]:
        raise DamagedBlock(f"holds message {written.hex()}: renamed or copied by hand")


def _fresh(empty: Rows) -> Rows:
    return replace(empty, seqs=[], ids=[], bodies=[], stored=[], times_ns=[])


def _batch(rows: Rows, columns: Columns) -> pa.RecordBatch:
    try:
        return pa.RecordBatch.from_arrays(columns.arrays(rows), schema=columns.schema)
    except (pa.ArrowException, TypeError, AttributeError) as error:
        raise DamagedBlock(
            f"queue {rows.queue}, messages {rows.seqs[0]} to {rows.seqs[-1]}: a property is not of its type: {error}"
        ) from error
