"""A queue as a whole: what is there, what has left it and is kept in files of messages, and what of that is Parquet.

A message goes from the first to the second to the third while it is read. So each span of numbers is read in this
order, the second and third as far as the batch goes that the one before has given, and of a number that is found twice
the first holds. Memory has a batch of each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from xaqueue.core.model.layout import RANGE_BITS
from xaqueue.lake.archive_files import KeptFiles
from xaqueue.lake.archive_tables import Tables, cut, together
from xaqueue.lake.batches import record_batches
from xaqueue.lake.columns import Columns, Rows
from xaqueue.lake.place import QueueScan, ServedQueue

Source = Callable[[int, int], Iterator[pa.Table]]
"""Gives what it has above the one number up to the other, ascending."""


def live(reader: QueueScan, path: str, columns: Columns) -> Callable[[int, int], Iterator[pa.RecordBatch]]:
    """What is there."""
    tries = reader.tries() if "tries" in columns.schema.names else {}

    def read(after: int, upto: int) -> Iterator[pa.RecordBatch]:
        return record_batches(reader.files(after, upto), Rows(reader.queue, path, tries=tries), columns)

    return read


def history(reader: QueueScan, path: str, columns: Columns, span: tuple[int, int]) -> Iterator[pa.Table]:
    """Each message of these numbers once, ascending. columns: seq is the first."""
    there, names = live(reader, path, columns), columns.schema.names

    def by_server(after: int, upto: int) -> Iterator[pa.Table]:
        assert isinstance(reader, ServedQueue)
        for page in reader.kept(names, after, upto):
            table = pa.ipc.open_stream(page).read_all()
            if table.num_rows:
                yield _placed(table, path).cast(columns.schema)

    others = [by_server] if isinstance(reader, ServedQueue) else kept(reader.queue, path, columns)
    return read([lambda after, upto: map(_table, there(after, upto)), *others], *span)


def kept(queue: str, path: str, columns: Columns) -> list[Source]:
    """What has left it."""
    files, tables, names = KeptFiles(path, queue), Tables(path, queue), columns.schema.names

    def in_files(after: int, upto: int) -> Iterator[pa.Table]:
        for number in files.ranges(with_leaving=True):
            if after >> RANGE_BITS <= number <= upto >> RANGE_BITS:
                of = files.range(number, after, upto, with_leaving=True)
                yield from map(_table, record_batches(files.found(of), Rows(queue, path, taken=of.taken), columns))

    def in_tables(after: int, upto: int) -> Iterator[pa.Table]:
        for table in tables.read(names, after, upto):
            yield _placed(table, path).cast(columns.schema)

    return [in_files, in_tables]


def _placed(table: pa.Table, path: str) -> pa.Table:
    """Where the space is now."""
    if "space" not in table.column_names:
        return table
    return table.set_column(table.column_names.index("space"), "space", pa.repeat(pa.scalar(path), table.num_rows))


def read(sources: Sequence[Source], after: int, upto: int) -> Iterator[pa.Table]:
    """As one, in which each comes before the next."""
    first, *others = sources
    if not others:
        yield from first(after, upto)
        return
    for table in first(after, upto):
        last, held = table["seq"][-1].as_py(), table
        for other in read(others, after, last):
            here, held = cut(held, other["seq"][-1].as_py())
            yield together([here, other])
        if held.num_rows:
            yield held
        after = last
    if after < upto:
        yield from read(others, after, upto)


def _table(batch: pa.RecordBatch) -> pa.Table:
    return pa.Table.from_batches([batch])
